"""Another process at a SQLite store's file: ``write`` until killed, or ``lock`` it until its input ends."""

from __future__ import annotations

import asyncio
import sqlite3
import sys

from conductor.messages import UserMessage
from conductor.stores.base import AppendLog, OpenCall, Operation, PutOutbound, SessionKey, SetField
from conductor.stores.sqlite import SqliteStore
from tests.stores.contract import call, outbound

SESSIONS = 40


def operations(number: int) -> list[Operation]:
    """Make a commit whose halves would be seen."""
    return [
        AppendLog(UserMessage(str(number))),
        OpenCall(call(f"c-{number}")),
        PutOutbound(outbound(f"evt-{number}")),
        SetField("number", str(number)),
    ]


async def _write(path: str) -> None:
    store = SqliteStore(path)
    await store.open()

    async def write_session(session: int) -> None:
        claim = await store.claim(SessionKey("subject", str(session)))
        number = 0
        while True:
            number += 1
            await store.commit(claim, f"commit-{number}", operations(number))
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
