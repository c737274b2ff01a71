"""Conversations with a model in the server's process, from the phone to a real llama.cpp.

The tiny model's words are nonsense and are not checked; its calls are real.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from conductor.plugins.models.llama_cpp import LlamaCppProvider
from tests.dialogues import begin, decide, declared
from tests.serving import serving
from tests.shapes import Event
from tests.stand_ins.llama_server import needs_llama_cpp
from tests.stand_ins.tiny_model import write_tiny_model

SWITCH = declared("switch", destructiveHint=False)
SWITCH["inputSchema"] = {
    "type": "object",
    "properties": {"lamp": {"type": "string", "enum": ["hall"]}, "on": {"type": "boolean"}},
    "required": ["lamp", "on"],
    "additionalProperties": False,
}


@pytest.fixture(autouse=True)
def only_one_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_llama_cpp()
    monkeypatch.setenv("ALLOWED_TOOLS", "switch")


def local(folder: Path, *, end: float = 0.9, max_tokens: int = 120) -> LlamaCppProvider:
    return LlamaCppProvider(
        write_tiny_model(folder / "tiny.gguf", end=end), max_tokens, context=16_000, threads=1
    )


def is_partial(event: Event) -> bool:
    return bool(event["type"] == "assistant.speech.partial")


@pytest.mark.parametrize("by_voice", [False, True], ids=["card", "voice"])
async def test_a_call_that_is_approved(tmp_path: Path, by_voice: bool) -> None:
    tools = {"switch": lambda a: f"{a['lamp']} is done"}
    async with serving(local(tmp_path)) as served, served.phone(tools=tools) as phone:
        await begin(phone, *([] if by_voice else ["approval"]), tools=[SWITCH])
        phone.say("the light, please")
        if by_voice:
            question = await phone.until("tts.speak")
            await phone.until("state idle", since=phone.log.index(question))
            phone.say("yes, just this once")
        else:
            await decide(phone, await phone.until("approval.request"), "allow")
        final = await phone.until("assistant.speech.final")
        await phone.until("state idle", since=phone.log.index(final))
        ((name, arguments),) = phone.runs
        assert name == "switch" and arguments["lamp"] == "hall"
        assert phone.errors() == []


async def test_barge_in_and_a_reconnect(tmp_path: Path) -> None:
    # It never ends by itself: the next turn begins only when it is stopped.
    async with serving(local(tmp_path, end=-3.0, max_tokens=100_000), turn_timeout=60.0) as served:
        async with served.phone() as phone:
            phone.say("tell me a story")
            await phone.until("assistant.speech.partial")
            await phone.cut()
            since = len(phone.log)
            await phone.open()
            await phone.until("assistant.speech.partial", since=since)
            since = len(phone.log)
            phone.say("something else")
            await phone.until("state thinking", since=since)
            await phone.until("assistant.speech.partial", since=since)
            since = len(phone.log)
            phone.interrupt()
            await phone.idle(since=since)
            assert phone.errors() == []


async def test_a_restart_keeps_the_conversation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    for text in ("hello", "still there?"):
        async with serving(local(tmp_path)) as served, served.phone() as phone:
            await phone.ask(text)
            assert phone.errors() == [] and len(phone.finals()) == 1
