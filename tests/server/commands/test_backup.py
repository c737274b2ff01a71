"""``conductor sessions backup`` and ``restore`` beside a server that is talking."""

from __future__ import annotations

import asyncio
import json
import signal
from itertools import count
from pathlib import Path

import pytest

from tests.app import App
from tests.server.commands.conftest import mistake
from tests.server.test_cli import run, server

SESSIONS = 20
RATES = {"SESSION_RATE_LIMIT_PER_MIN": "100000"}
IN_USE = "conductor: A server uses data/conductor.db; stop it before you restore a backup.\n"


async def test_a_backup_while_many_sessions_talk_holds_every_acknowledged_turn(tmp_path: Path) -> None:
    answered = {f"s-{number}": 0 for number in range(SESSIONS)}
    ending, all_talk = asyncio.Event(), asyncio.Event()

    async def talk(phone: App) -> None:
        for number in count(1):
            await phone.ask(f"say turn {number} of {phone.session_id}")
            answered[phone.session_id] = number
            if min(answered.values()) > 1:
                all_talk.set()
            if ending.is_set():
                return

    async with server(tmp_path, DATA_DIR="data", **RATES) as served:
        assert served.process.stderr is not None
        log = asyncio.create_task(served.process.stderr.read())  # else the pipe would fill
        phones = [App(served.url, session_id, wait_s=60) for session_id in answered]
        await asyncio.gather(*(phone.open() for phone in phones))
        talking = [asyncio.create_task(talk(phone)) for phone in phones]
        await asyncio.wait_for(all_talk.wait(), 60)
        acknowledged = dict(answered)
        backup = await run(tmp_path, "sessions", "backup", "backup.db", DATA_DIR="data")
        assert backup == (0, f"{SESSIONS} sessions copied to backup.db.\n", "")
        refusal = await run(tmp_path, "sessions", "restore", "backup.db", "--force", DATA_DIR="data")
        assert refusal == (2, "", IN_USE)
        ending.set()
        await asyncio.gather(*talking)
        await asyncio.gather(*(phone.close() for phone in phones))
        assert await served.end(signal.SIGTERM) == 0
        assert b"Traceback" not in await log
    elsewhere = {"DATA_DIR": "elsewhere/data"}
    restored = await run(tmp_path, "sessions", "restore", "backup.db", **elsewhere)
    assert restored == (0, f"{SESSIONS} sessions restored to elsewhere/data/conductor.db.\n", "")
    _, lines, _ = await run(tmp_path, "sessions", "export", **elsewhere)
    documents = {document["session_id"]: document for document in map(json.loads, lines.splitlines())}
    for session_id, turns in acknowledged.items():
        assert f"say turn {turns} of {session_id}" in json.dumps(documents[session_id]["state"]["log"])
        assert documents[session_id]["messages"] >= 2 * turns
    async with server(tmp_path, **elsewhere, **RATES) as served, App(served.url, "s-7") as phone:
        await phone.ask("say hello")


@pytest.mark.parametrize(
    ("action", "values", "sentence"),
    [
        ("backup", {"DATA_DIR": "data"}, "There is no session store: data/conductor.db does not exist."),
        ("restore", {"DATA_DIR": "data"}, "b.db cannot be restored: unable to open database file."),
        ("backup", {"SESSION_STORE_URL": "memory://"}, "Sessions are in memory"),
        ("backup", {"SESSION_STORE_URL": "redis://h/0"}, "The session store is redis://h/0: back it up"),
    ],
)
def test_a_mistake_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, action: str, values: dict[str, str], sentence: str
) -> None:
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert mistake("sessions", action, "b.db").startswith(sentence)
    assert not Path("data").exists()
