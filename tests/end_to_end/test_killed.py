"""A server that is killed and started again: the same session, the same turn, the same question."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.app import App
from tests.end_to_end.dialogues import MOVE
from tests.models import AnthropicService, Call, JsonObject, Reply
from tests.shapes import arguments_of
from tests.test_cli import Announced, server

MOVED = Reply(text="It is moved.")


@asynccontextmanager
async def node(folder: Path, claude: AnthropicService) -> AsyncIterator[Announced]:
    """Run a server that keeps its sessions in the folder."""
    values = {"ANTHROPIC_API_KEY": "test-key", "ANTHROPIC_BASE_URL": claude.base_url, "DATA_DIR": "data"}
    async with server(folder, TOOL_TIMEOUT_MS="1000", **values) as running:
        yield running


def reply(request: JsonObject) -> Reply:
    last = request["messages"][-1]["content"]
    moved = isinstance(last, list) and any(block["type"] == "tool_result" for block in last)
    return MOVED if moved else Reply(calls=(Call("move_file", {"path": "notes.txt"}),))


async def before(phone: App, when: str) -> None:
    """Come as far as the server is killed."""
    phone.acknowledge = lambda name: name != "tts.speak" or when != "while it is asked"
    await phone.open()
    phone.say("Move my notes.")
    question = await phone.until("tts.speak")
    assert "move" in arguments_of(question)["text"].lower()
    await phone.until("state idle")
    since = len(phone.log)
    if when != "while it is asked":
        phone.start()  # answered after the events before it
        await phone.until("session.started", since=since)
    if when == "once it was answered":
        phone.say("yes")
        await phone.until("move_file", since=since)


async def after(phone: App, when: str) -> None:
    """Come back to the server that was started again."""
    phone.acknowledge = lambda name: True
    since = len(phone.log)
    await phone.open()
    started = next(e for e in phone.log[since:] if e["type"] == "session.started")
    assert started["payload"]["resumed"] is True
    if when == "while it is asked":  # the app has the prompt, and has not answered it
        await phone.until("state idle", since=since)
        since = len(phone.log)
        phone.say("yes")
    if when != "once it was answered":  # it may not have been heard, so it is spoken again
        prompt = await phone.until("tts.speak", since=since)
        await phone.until("state idle", since=phone.log.index(prompt))
        phone.say("yes")
    final = await phone.until("assistant.speech.final")
    assert final["payload"]["text"] == MOVED.text
    assert phone.runs == [("move_file", {"path": "notes.txt"})], when
    await phone.close()


async def test_a_spoken_question_survives_kill_9_and_its_answer_runs_the_call_once(tmp_path: Path) -> None:
    phones = {}
    for number, when in enumerate(("while it is asked", "once it was asked", "once it was answered")):
        phone = App("", f"s-{number}", start_fields={"capabilities": ["tools"], "tools": [MOVE]})
        phone.tools["move_file"] = lambda _: "moved"
        phones[when] = phone
    async with AnthropicService(api_keys=None, default=reply) as claude:
        async with node(tmp_path, claude) as first:
            for when, phone in phones.items():
                phone.url = first.url
                await before(phone, when)
            assert await first.end(signal.SIGKILL) == -signal.SIGKILL
            await asyncio.gather(*(asyncio.wait_for(phone.closed.wait(), 5) for phone in phones.values()))
        async with node(tmp_path, claude) as second:
            for when, phone in phones.items():
                phone.url = second.url
                await after(phone, when)
            assert await second.end(signal.SIGTERM) == 0
        assert not claude.refused
