"""Models in this process, and llama.cpp's server over HTTP: a real llama.cpp with a tiny model."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal

import pytest

from conductor.errors import ModelError, SettingsError
from conductor.messages import AssistantMessage, Message, ToolCall, ToolResult, UserMessage
from conductor.models.base import (
    Finished,
    ModelEvent,
    ModelProvider,
    ModelRequest,
    TextDelta,
    ToolDefinition,
)
from conductor.models.profiles import ModelProfile
from conductor.plugins.models.anthropic import AnthropicProvider
from conductor.plugins.models.anthropic_request import Account
from conductor.plugins.models.llama_cpp import LlamaCppProvider, from_profile
from conductor.plugins.models.openai import OpenAIProvider
from conductor.settings import Settings
from tests.stand_ins.llama_server import CONTEXT, llama_server, needs_llama_cpp
from tests.stand_ins.tiny_model import write_tiny_model

WEATHER = ToolDefinition(
    "get.weather",
    "The weather of a city.",
    {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Paris"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
)
HELLO = [UserMessage("Hello.")]
# It never says the end by itself.
ENDLESS = -3.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs_llama_cpp()
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def tiny(folder: Path) -> Path:
    return write_tiny_model(folder / "tiny.gguf")


@pytest.fixture(scope="module")
def endless(folder: Path) -> Path:
    return write_tiny_model(folder / "endless.gguf", end=ENDLESS)


@pytest.fixture
async def local(tiny: Path) -> AsyncIterator[LlamaCppProvider]:
    provider = LlamaCppProvider(tiny, 200, threads=1)
    yield provider
    await provider.aclose()


@pytest.fixture(scope="module")
def address(tiny: Path) -> Iterator[str]:
    with llama_server(tiny) as url:
        yield url


def ask(
    messages: Sequence[Message] = HELLO, tools: Sequence[ToolDefinition] = (), system: str = "Be brief."
) -> ModelRequest:
    return ModelRequest(system, messages, tools, silence_s=20.0, deadline_s=20.0, may_retry=False)


async def reply(provider: ModelProvider, request: ModelRequest) -> list[ModelEvent]:
    async with aclosing(provider.stream(request)) as events:
        return [event async for event in events]


def text_of(events: Sequence[ModelEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def converse(provider: ModelProvider) -> None:
    """Words, a call, and words about its result."""
    events = await reply(provider, ask())
    last = events[-1]
    assert isinstance(last, Finished) and last.stop in ("end_turn", "max_tokens") and text_of(events)
    assert last.usage.output_tokens > 0 and last.usage.input_tokens + last.usage.cache_read_tokens > 10
    events = await reply(provider, ask(tools=(WEATHER,)))
    call, last = events[-2], events[-1]
    assert isinstance(call, ToolCall) and isinstance(last, Finished)
    assert call.name == "get.weather" and last.stop == "tool_use" and not text_of(events)
    assert json.loads(call.arguments)["city"] in ("Oslo", "Paris")
    history: list[Message] = [
        *HELLO,
        AssistantMessage(text="", calls=(call,)),
        ToolResult(call.call_id, "4 degrees"),
    ]
    events = await reply(provider, ask(history, (WEATHER,)))
    assert text_of(events) and not any(isinstance(event, ToolCall) for event in events)


async def is_too_long(provider: ModelProvider) -> None:
    with pytest.raises(ModelError) as raised:
        await reply(provider, ask(system="x" * 3 * CONTEXT))
    assert raised.value.reason == "context_too_long"
    assert text_of(await reply(provider, ask()))


# -- in process


async def test_a_conversation_in_process(local: LlamaCppProvider) -> None:
    await converse(local)


async def test_a_history_that_is_too_long_in_process(tiny: Path) -> None:
    provider = LlamaCppProvider(tiny, 20, context=CONTEXT, threads=1)
    await is_too_long(provider)
    await provider.aclose()


async def test_the_prefix_of_a_conversation_stays_cached(local: LlamaCppProvider) -> None:
    system = "A prompt that is long. " * 40
    await reply(local, ask(system=system))
    await reply(local, ask(system="Another conversation."))
    last = (await reply(local, ask(system=system)))[-1]
    assert isinstance(last, Finished)
    assert last.usage.cache_read_tokens > 900 > last.usage.input_tokens


async def test_closing_the_stream_stops_the_model(endless: Path) -> None:
    provider = LlamaCppProvider(endless, 100_000, threads=1)
    async with aclosing(provider.stream(ask())) as events:
        async for event in events:
            assert isinstance(event, TextDelta)
            break
    # Its only slot is free again: the first reply would have taken minutes.
    async with aclosing(provider.stream(ask())) as events:
        assert isinstance(await anext(events), TextDelta)
    await provider.aclose()


async def test_closing_the_stream_stops_the_model_while_it_reads(
    endless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import xllamacpp

    reads, ended, progress = threading.Event(), threading.Event(), list[Any]()

    class Watched(xllamacpp.Server):  # type: ignore[misc] # it has no types
        def handle_chat_completions(self, body: str, take: Callable[[str], bool]) -> None:
            def watched(event: str) -> bool:
                progress.append(json.loads(event).get("prompt_progress"))
                reads.set()
                return take(event)

            super().handle_chat_completions(body, watched)
            ended.set()

    monkeypatch.setattr(xllamacpp, "Server", Watched)
    provider = LlamaCppProvider(endless, 5, context=32_000, threads=1)
    await provider.start()
    reads.clear()
    ended.clear()
    reading = asyncio.create_task(reply(provider, ask(system="x" * 30_000)))
    await asyncio.to_thread(reads.wait, 20.0)
    reading.cancel()
    await asyncio.wait([reading])
    await asyncio.to_thread(ended.wait, 20.0)
    assert reading.cancelled() and progress[-1]["processed"] < progress[-1]["total"]
    last = (await reply(provider, ask()))[-1]
    assert isinstance(last, Finished) and last.usage.output_tokens == 5
    await provider.aclose()


async def test_requests_wait_for_a_slot_and_too_many_are_refused(endless: Path) -> None:
    provider = LlamaCppProvider(endless, 100_000, threads=1, max_waiting=1)
    async with aclosing(provider.stream(ask())) as first:
        assert isinstance(await anext(first), TextDelta)
        second = provider.stream(ask())
        waiting = asyncio.ensure_future(anext(second))
        await asyncio.sleep(0)
        with pytest.raises(ModelError, match="1 request waits") as raised:
            await reply(provider, ask())
        assert raised.value.reason == "overloaded" and not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])
        third = provider.stream(ask())  # takes the place of the second, which was given up
        waiting = asyncio.ensure_future(anext(third))
        await asyncio.sleep(0)
    assert isinstance(await waiting, TextDelta)
    await third.aclose()
    await provider.aclose()


async def test_a_request_that_llama_cpp_refuses_is_an_error(local: LlamaCppProvider) -> None:
    nowhere = ToolDefinition("ask", "Ask.", {"type": "object", "properties": {"x": {"$ref": "#/$defs/none"}}})
    with pytest.raises(ModelError) as raised:
        await reply(local, ask(tools=(nowhere,)))
    assert raised.value.reason == "protocol"
    assert text_of(await reply(local, ask()))


END_WHILE_IT_WRITES = """
import asyncio, sys
from pathlib import Path
from conductor.messages import UserMessage
from conductor.models.base import ModelRequest
from conductor.plugins.models.llama_cpp import LlamaCppProvider

async def main():
    provider = LlamaCppProvider(Path(sys.argv[1]), 100_000, threads=1)
    events = provider.stream(ModelRequest("", [UserMessage("Hello.")]))
    await anext(events)
    await provider.aclose()
    print("closed")

asyncio.run(main())
"""


def test_the_process_ends_while_the_model_writes(endless: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", END_WHILE_IT_WRITES, str(endless)], capture_output=True, text=True, timeout=60
    )
    assert process.returncode == 0 and "closed" in process.stdout
    assert "Traceback" not in process.stderr and "not freed" not in process.stdout


# -- what an operator may get wrong


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "cannot be read: no such file"), (b"not a model", "which is not a GGUF file")],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, content: bytes | None, sentence: str) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    profile = ModelProfile(name="default", provider="llama_cpp", model=str(path))
    with pytest.raises(SettingsError, match=f"LLAMA_CPP_MODEL names .*{sentence}"):
        from_profile(profile, Settings())


@pytest.fixture
def damaged(tmp_path: Path, tiny: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny.read_bytes()[:5_000])
    return path


async def test_a_damaged_file_is_one_sentence(damaged: Path) -> None:
    provider = LlamaCppProvider(damaged, 10)
    with pytest.raises(ModelError, match="could not be loaded"):
        await provider.start()
    await provider.aclose()


# -- over HTTP


@pytest.mark.parametrize("endpoint", ["chat", "responses", "anthropic"])
async def test_a_conversation_with_the_server(
    address: str, endpoint: Literal["chat", "responses", "anthropic"]
) -> None:
    provider: ModelProvider
    if endpoint == "anthropic":
        provider = AnthropicProvider(Account("key", address), "tiny", 200, trust_env=False)
    else:
        provider = OpenAIProvider(
            None, "tiny", 200, base_url=f"{address}/v1", endpoint=endpoint, trust_env=False
        )
    await converse(provider)
    await is_too_long(provider)
    async with aclosing(provider.stream(ask())) as events:
        await anext(events)
    assert text_of(await reply(provider, ask()))
    await provider.aclose()


async def test_completions_of_the_server(address: str) -> None:
    provider = OpenAIProvider(
        None, "tiny", 200, base_url=f"{address}/v1", endpoint="completions", trust_env=False
    )
    events = await reply(provider, ask())
    assert text_of(events) and isinstance(events[-1], Finished)
    await is_too_long(provider)
    await provider.aclose()
