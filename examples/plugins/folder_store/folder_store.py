"""A store of one file a session in a plain folder: ``SESSION_STORE_URL=folder:///var/sessions``."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from conductor.plugin import (
    NO_ATTACHMENTS,
    Attachments,
    Claim,
    Fenced,
    Meta,
    SessionKey,
    Stored,
    StoreOptions,
    new_token,
    settle,
    too_many,
)


class _File(msgspec.Struct):
    key: SessionKey
    meta: Meta
    commits: list[bytes]
    attachments: dict[str, bytes] = {}

    def stored(self) -> Stored:
        first = self.meta.revision - len(self.commits) + 1
        return Stored(self.meta, dict(enumerate(self.commits, first)))


class FolderStore:
    """Writes each session's file anew at each commit, under one lock of the folder."""

    durable = True

    def __init__(self, folder: Path, options: StoreOptions) -> None:
        self._folder = folder
        self._options = options

    async def open(self) -> None:
        """Make the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _path(self, key: SessionKey) -> Path:
        digest = hashlib.sha256(msgspec.json.encode([key.subject, key.session_id])).hexdigest()
        return self._folder / f"{digest}.session"

    def _load(self, path: Path) -> _File | None:
        try:
            file = msgspec.msgpack.decode(path.read_bytes(), type=_File)
        except FileNotFoundError:
            return None
        is_old = time.time() - file.meta.updated > self._options.session_ttl_s
        return None if is_old and not file.key.never_expires else file

    def _save(self, file: _File) -> None:
        path = self._path(file.key)
        file.meta.updated = time.time()
        with path.with_suffix(".new").open("wb") as new:
            new.write(msgspec.msgpack.encode(file))
            os.fsync(new.fileno())
        path.with_suffix(".new").replace(path)

    def _files(self) -> list[_File]:
        files = [file for path in self._folder.glob("*.session") if (file := self._load(path)) is not None]
        return sorted(files, key=lambda file: (file.key.subject, file.key.session_id))

    async def claim(self, key: SessionKey) -> Claim:
        with self._locked():
            file = self._load(self._path(key))
            if file is None:
                own = [
                    other for other in self._files() if other.key.counted and other.key.subject == key.subject
                ]
                if key.counted and len(own) >= self._options.max_sessions:
                    raise too_many(self._options.max_sessions)
                file = _File(key, Meta("", 0, 0, ""), [])
            file.meta.token, file.meta.epoch = new_token(), file.meta.epoch + 1
            self._save(file)
            return file.stored().claim(key)

    async def append(
        self,
        claim: Claim,
        commit_id: str,
        data: bytes,
        *,
        snapshot: bool = False,
        attachments: Attachments = NO_ATTACHMENTS,
    ) -> None:
        with self._locked():
            file = self._load(self._path(claim.key))
            if file is None:
                raise Fenced("This session was deleted.", gone=True)
            meta = file.meta
            if (meta.token, meta.revision) != (claim.token, claim.revision) or meta.commit_id == commit_id:
                settle(claim, commit_id, meta)
                return
            file.commits = [*(() if snapshot else file.commits), data]
            kept = {
                name: content for name, content in file.attachments.items() if name not in attachments.drop
            }
            file.attachments = {**kept, **attachments.put}
            meta.revision, meta.commit_id = meta.revision + 1, commit_id
            self._save(file)
            claim.revision = meta.revision

    async def read_attachments(self, key: SessionKey, names: Sequence[str]) -> Mapping[str, bytes]:
        file = self._load(self._path(key))
        kept = {} if file is None else file.attachments
        return {name: kept[name] for name in names if name in kept}

    async def release(self, claim: Claim) -> None:
        with self._locked():
            file = self._load(self._path(claim.key))
            if file is not None and file.meta.token == claim.token:
                file.meta.token = ""
                self._save(file)

    async def keys(
        self,
        subject: str | None,
        session_id: str | None,
        after: SessionKey | None,
        limit: int,
        since: float = 0.0,
    ) -> list[SessionKey]:
        keys = [file.key for file in self._files() if file.meta.updated >= since]
        keys = [
            key for key in keys if subject in (None, key.subject) and session_id in (None, key.session_id)
        ]
        first = ("", "") if after is None else (after.subject, after.session_id)
        return [key for key in keys if after is None or (key.subject, key.session_id) > first][:limit]

    async def read(self, key: SessionKey) -> Stored | None:
        file = self._load(self._path(key))
        return None if file is None else file.stored()

    async def delete(self, subject: str, session_id: str | None = None) -> int:
        with self._locked():
            keys = await self.keys(subject, session_id, None, 1_000_000)
            for key in keys:
                self._path(key).unlink()
            return len(keys)

    async def warnings(self) -> list[str]:
        return []

    async def aclose(self) -> None:
        """Do nothing: no file stays open."""


def from_url(url: str, options: StoreOptions) -> FolderStore:
    """Make the store of an address."""
    return FolderStore(Path(url.removeprefix("folder://")), options)
