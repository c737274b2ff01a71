"""The session log of a single process: a session lives until its grace is over."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from conductor.errors import Fenced
from conductor.stores.base import (
    MAX_SESSIONS,
    NO_ATTACHMENTS,
    Attachments,
    Claim,
    Meta,
    SessionKey,
    Stored,
    StoreOptions,
    settle,
    too_many,
)


@dataclass(slots=True)
class _Session:
    meta: Meta = field(default_factory=lambda: Meta("", 0, 0, ""))
    commits: list[bytes] = field(default_factory=list)
    attachments: dict[str, bytes] = field(default_factory=dict)

    def stored(self) -> Stored:
        first = self.meta.revision - len(self.commits) + 1
        return Stored(replace(self.meta), dict(enumerate(self.commits, first)))


class MemoryStore:
    """Keeps sessions in a dictionary, at most ``max_sessions`` of a subject."""

    durable = False

    def __init__(self, *, max_sessions: int = MAX_SESSIONS) -> None:
        self._sessions: dict[SessionKey, _Session] = {}
        self._max_sessions = max_sessions
        self._counts: Counter[str] = Counter()

    async def open(self) -> None:
        """Do nothing."""

    async def claim(self, key: SessionKey) -> Claim:
        session = self._sessions.get(key)
        if session is None:
            if key.counted and self._counts[key.subject] >= self._max_sessions:
                raise too_many(self._max_sessions)
            session = self._sessions[key] = _Session()
            if key.counted:
                self._counts[key.subject] += 1
        meta = session.meta
        meta.token, meta.epoch, meta.updated = secrets.token_hex(16), meta.epoch + 1, time.time()
        return session.stored().claim(key)

    async def append(
        self,
        claim: Claim,
        commit_id: str,
        data: bytes,
        *,
        snapshot: bool = False,
        attachments: Attachments = NO_ATTACHMENTS,
    ) -> None:
        session = self._sessions.get(claim.key)
        if session is None:
            raise Fenced("This session was deleted or released.", gone=True)
        meta = session.meta
        if (meta.token, meta.revision) != (claim.token, claim.revision) or meta.commit_id == commit_id:
            settle(claim, commit_id, meta)
            return
        if snapshot:
            session.commits.clear()
        session.commits.append(data)
        for name in attachments.drop:
            session.attachments.pop(name, None)
        session.attachments.update(attachments.put)
        claim.revision = meta.revision = meta.revision + 1
        meta.commit_id, meta.updated = commit_id, time.time()

    async def read_attachments(self, key: SessionKey, names: Sequence[str]) -> Mapping[str, bytes]:
        session = self._sessions.get(key)
        kept = {} if session is None else session.attachments
        return {name: kept[name] for name in names if name in kept}

    async def release(self, claim: Claim) -> None:
        """Delete the session: its grace is over, and memory keeps nothing longer."""
        session = self._sessions.get(claim.key)
        if session is not None and session.meta.token == claim.token:
            self._delete(claim.key)

    async def keys(
        self,
        subject: str | None,
        session_id: str | None,
        after: SessionKey | None,
        limit: int,
        since: float = 0.0,
    ) -> list[SessionKey]:
        keys = sorted(
            (key.subject, key.session_id)
            for key, session in self._sessions.items()
            if subject in (None, key.subject) and session_id in (None, key.session_id)
            if session.meta.updated >= since
        )
        first = ("", "") if after is None else (after.subject, after.session_id)
        return [SessionKey(*key) for key in keys if after is None or key > first][:limit]

    async def read(self, key: SessionKey) -> Stored | None:
        session = self._sessions.get(key)
        return None if session is None else session.stored()

    async def delete(self, subject: str, session_id: str | None = None) -> int:
        keys = await self.keys(subject, session_id, None, len(self._sessions))
        for key in keys:
            self._delete(key)
        return len(keys)

    async def warnings(self) -> list[str]:
        """Return an empty list: all sessions end with the process, as documented."""
        return []

    async def aclose(self) -> None:
        """Do nothing."""

    def _delete(self, key: SessionKey) -> None:
        del self._sessions[key]
        if key.counted:
            self._counts[key.subject] -= 1
            if not self._counts[key.subject]:
                del self._counts[key.subject]

    def __len__(self) -> int:
        """Count the sessions."""
        return len(self._sessions)


def from_url(url: str, options: StoreOptions) -> MemoryStore:
    """Make the store of ``memory://``."""
    return MemoryStore(max_sessions=options.max_sessions)
