"""The session store in a SQLite file: sessions outlive the process; those of one host may share them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from conductor.errors import StoreUnavailable
from conductor.settings import Settings
from conductor.stores.base import Claim, Operation, SessionKey
from conductor.stores.sqlite_group import Commit, Delete, LetGo, Sweep, TakeOver, Work
from conductor.stores.sqlite_writer import Limits, Writer

_CLOSE_S = 5.0
_SWEEP_MOST_S = 86_400.0


class SqliteStore:
    """Keeps sessions in a file (durability, "Operations"); `open` it first.

    ``session_ttl`` is how many seconds a session is kept that nobody writes to, unless it is a lasting one;
    ``busy_timeout`` how many a commit waits for other processes; ``now`` gives epoch seconds. All in one
    event loop.
    """

    suspends = True

    def __init__(
        self,
        path: Path | str,
        *,
        session_ttl: float = 86_400.0,
        busy_timeout: float = 2.0,
        sweep_every: float = 60.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.path = Path(path)
        self._limits = Limits(session_ttl, busy_timeout, min(sweep_every, _SWEEP_MOST_S), now)
        self._writer: Writer | None = None

    @property
    def groups(self) -> int:
        """Count the transactions so far, each of which is one fsync and any number of commits."""
        return 0 if self._writer is None else self._writer.groups

    async def open(self) -> None:
        """Open the file, and make it and its folder where they are missing.

        Raises `SettingsError` for what cannot be a store: a folder, another program's or a newer version's
        file, a damaged one, one that may not be written. Raises `StoreUnavailable` for one that is locked.
        """
        if self._writer is not None:
            return
        writer = Writer(self.path, self._limits)
        await writer.open()
        self._writer = writer

    async def claim(self, key: SessionKey) -> Claim:
        """Take a session over, making it if there is none. Raises `StoreUnavailable`."""
        claim: Claim = await self._submit(TakeOver(key))
        return claim

    async def commit(self, claim: Claim, commit_id: str, operations: Sequence[Operation]) -> None:
        """Check all operations, then apply all of them, or none; it is on the disk when this returns.

        Whoever stops waiting does not stop the commit. Raises `Fenced`, `Duplicate`, `Conflict`, `Rollback`
        or `StoreUnavailable`, after which only a retry with the same id can tell whether it was recorded.
        """
        await self._submit(Commit(claim, commit_id, operations))

    async def release(self, claim: Claim) -> None:
        """End the claim; the session stays, for whoever claims it next. Raises `StoreUnavailable`."""
        await self._submit(LetGo(claim.key, claim.token))

    async def sweep(self) -> int:
        """Delete all expired sessions now, as happens by itself every so often; returns how many."""
        deleted: int = await self._submit(Sweep())
        return deleted

    async def delete(self, subject: str, session_id: str | None = None) -> int:
        """Delete a session, or all of a subject's; who owns one is fenced. Returns how many there were."""
        deleted: int = await self._submit(Delete(subject, session_id))
        return deleted

    async def aclose(self) -> None:
        """Finish what waits, and close the file."""
        if self._writer is not None:
            await self._writer.close(_CLOSE_S)

    async def _submit(self, work: Work) -> Any:
        if self._writer is None:
            raise StoreUnavailable("The session store is not open.")
        return await self._writer.submit(work)


def from_settings(settings: Settings) -> SqliteStore:
    """Make the store in the file that SESSION_STORE_URL or DATA_DIR names."""
    return SqliteStore(settings.store_path, session_ttl=settings.session_ttl_s)
