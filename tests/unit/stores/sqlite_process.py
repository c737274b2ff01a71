"""Another process at a SQLite store's file: ``write`` until killed, or ``lock`` it until its input ends."""

from __future__ import annotations

import asyncio
import sqlite3
import sys

from conductor.errors import StoreUnavailable
from conductor.plugins.stores.sqlite import SqliteStore
from conductor.stores.base import Claim, SessionKey

SESSIONS = 40


async def insist(store: SqliteStore, claim: Claim, number: int) -> None:
    """Append a commit, however long the store is away."""
    while True:
        try:
            await store.append(claim, f"commit-{number}", b"%d" % number)
            return
        except StoreUnavailable:
            await asyncio.sleep(0.01)


async def _write(path: str) -> None:
    store = SqliteStore(path)
    await store.open()

    async def write_session(session: int) -> None:
        claim = await store.claim(SessionKey("subject", str(session)))
        number = 0
        while True:
            number += 1
            await insist(store, claim, number)
            sys.stdout.write(f"{session} {number}\n")
            sys.stdout.flush()

    await asyncio.gather(*(write_session(session) for session in range(SESSIONS)))


def _lock(path: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    sys.stdout.write("locked\n")
    sys.stdout.flush()
    sys.stdin.read()
    connection.execute("ROLLBACK")
    connection.close()


if __name__ == "__main__":
    if sys.argv[1] == "write":
        asyncio.run(_write(sys.argv[2]))
    else:
        _lock(sys.argv[2])
