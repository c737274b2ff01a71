"""The session store in a SQLite file: sessions outlive the process, and one host's processes share them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from conductor.errors import StoreUnavailable
from conductor.settings import Settings
from conductor.stores.base import KEPT, Claim, Operation, SessionKey
from conductor.stores.sqlite_writer import Commit, Delete, LetGo, Limits, Sweep, TakeOver, Work, Writer

# Seconds that closing waits for queued work.
_CLOSE_S = 5.0
# Seconds between sweeps at most, also when sessions are kept for years.
_SWEEP_MOST_S = 86_400.0


class SqliteStore:
    """Stores sessions in a file (durability, "Operations"); `open` it first.

    ``session_ttl`` is how many seconds a session without writes is kept, unless it is a lasting one;
    ``busy_timeout`` how many seconds a commit waits for other processes; ``look_every`` how many seconds lie
    between checks that the file is still there; ``now`` gives epoch seconds; ``kept`` is the limit of
    sessions of a subject. Use it in one event loop.
    """

    is_async = True

    def __init__(
        self,
        path: Path | str,
        *,
        session_ttl: float = 86_400.0,
        busy_timeout: float = 2.0,
        sweep_every: float = 60.0,
        look_every: float = 1.0,
        now: Callable[[], float] = time.time,
        kept: int = KEPT,
    ) -> None:
        self.path = Path(path)
        sweep_every = min(sweep_every, _SWEEP_MOST_S)
        self._limits = Limits(session_ttl, busy_timeout, sweep_every, look_every, now, kept)
        self._writer: Writer | None = None

    @property
    def groups(self) -> int:
        """The number of transactions so far; each is one fsync for any number of commits."""
        return 0 if self._writer is None else self._writer.groups

    async def open(self) -> None:
        """Open the file; create it and its folder if they are missing.

        Raises `SettingsError` for what cannot be a store: a folder, a file of another program or of a newer
        version, a damaged file, a read-only one. Raises `StoreUnavailable` for a locked one.
        """
        if self._writer is not None:
            return
        writer = Writer(self.path, self._limits)
        await writer.open()
        self._writer = writer

    async def claim(self, key: SessionKey) -> Claim:
        """Claim a session, creating it if there is none. Raises `StoreUnavailable`, `TooManySessions`."""
        claim: Claim = await self._submit(TakeOver(key))
        return claim

    async def commit(self, claim: Claim, commit_id: str, operations: Sequence[Operation]) -> None:
        """Check all operations, then apply all or none; returns when they are on the disk.

        Cancelling the caller does not cancel the commit. Raises `Fenced`, `Duplicate`, `Conflict`, `Rollback`
        or `StoreUnavailable`; after the last one only a retry with the same id can tell whether it was
        recorded.
        """
        await self._submit(Commit(claim, commit_id, operations))

    async def release(self, claim: Claim) -> None:
        """End the claim; the session stays for the next one. Raises `StoreUnavailable`."""
        await self._submit(LetGo(claim.key, claim.token))

    async def sweep(self) -> int:
        """Delete all expired sessions now, and return their number; this also happens regularly."""
        deleted: int = await self._submit(Sweep())
        return deleted

    async def delete(self, subject: str, session_id: str | None = None) -> int:
        """Delete a session, or all of a subject's, and fence the owners; return their number."""
        deleted: int = await self._submit(Delete(subject, session_id))
        return deleted

    async def aclose(self) -> None:
        """Finish queued work, and close the file."""
        if self._writer is not None:
            await self._writer.close(_CLOSE_S)

    async def _submit(self, work: Work) -> Any:
        if self._writer is None:
            raise StoreUnavailable("The session store is not open.")
        return await self._writer.submit(work)


def from_settings(settings: Settings) -> SqliteStore:
    """Make the store in the file that SESSION_STORE_URL or DATA_DIR names."""
    return SqliteStore(
        settings.store_path,
        session_ttl=settings.session_ttl_s,
        kept=settings.max_kept_sessions_per_subject,
    )
