"""Streams in which a service repeats, doubles, splits or empties calls: how often each call runs.

Written from reports about gateways and from the documented formats of the services, not recorded.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from conductor.models.base import ModelEvent, StreamDecoder, TextDelta
from conductor.plugins.models.anthropic_stream import ReplyDecoder
from conductor.plugins.models.bedrock_stream import ConverseDecoder
from conductor.plugins.models.openai_responses import ResponsesDecoder
from conductor.plugins.models.openai_stream import ChatDecoder
from conductor.plugins.models.tool_names import ToolNameMap
from tests.models import ScriptedProvider
from tests.session.helpers import CATALOG, SPOKEN, App, make_services, open_stage
from tests.stand_ins.bedrock_service import frame

NAMES = ToolNameMap(spec.name for spec in CATALOG)
DECODERS: dict[str, Callable[[], StreamDecoder]] = {
    "chat": lambda: ChatDecoder(NAMES, "here"),
    "responses": lambda: ResponsesDecoder(NAMES, "here"),
    "anthropic": lambda: ReplyDecoder(NAMES, str),
    "bedrock": lambda: ConverseDecoder(NAMES, str),
}
ONE, TWO = '{"x":1}', '{"x":2}'
ENCODED = json.dumps(ONE)
Case: TypeAlias = tuple[bytes, list[str]]

# -- the formats


def sse(*events: Any) -> bytes:
    lines = (event if isinstance(event, str) else json.dumps(event) for event in events)
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def delta(arguments: Any = None, name: str | None = None, call_id: str | None = None, index: Any = 0) -> Any:
    function = {"name": name, "arguments": arguments}
    part = {"index": index, "id": call_id, "function": function}
    return {key: value for key, value in part.items() if value is not None}


def chat(*chunks: Any, finish: str = "tool_calls") -> bytes:
    """Stream the deltas of calls; those in a list come in one chunk."""
    events = [
        {"choices": [{"index": 0, "delta": {"tool_calls": chunk if isinstance(chunk, list) else [chunk]}}]}
        for chunk in chunks
    ]
    return sse(*events, {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}, "[DONE]")


def item(arguments: Any, call_id: str = "c1", name: str = "device_do") -> Any:
    call = {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}
    return {"type": "response.output_item.done", "item": call}


def responses(*items: Any) -> bytes:
    return sse(*items, {"type": "response.completed", "response": {"status": "completed"}})


def block(
    *pieces: str, call_id: str = "c1", name: str = "device_do", given: Any = None, index: int = 0
) -> list[Any]:
    start = {"type": "tool_use", "id": call_id, "name": name, "input": given or {}}
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": piece} for piece in deltas),
        {"type": "content_block_stop", "index": index},
    ]


END = ({"type": "message_stop"},)


def anthropic(*blocks: list[Any], stop: str = "tool_use", end: Any = END) -> bytes:
    events = [event for events in blocks for event in events]
    return sse(*events, {"type": "message_delta", "delta": {"stop_reason": stop}}, *end)


def use(*pieces: str, call_id: str = "c1", name: str = "device_do", index: int = 0) -> bytes:
    start = {"toolUse": {"toolUseId": call_id, "name": name}}
    stream = frame("contentBlockStart", {"contentBlockIndex": index, "start": start})
    for piece in pieces:
        part = {"contentBlockIndex": index, "delta": {"toolUse": {"input": piece}}}
        stream += frame("contentBlockDelta", part)
    return stream + frame("contentBlockStop", {"contentBlockIndex": index})


def bedrock(*uses: bytes) -> bytes:
    return b"".join(uses) + frame("messageStop", {"stopReason": "tool_use"}) + frame("metadata", {})


# -- the corpus: a stream, and the calls that run

OPEN = delta("", "device_do", "c1")
WHOLE = delta(ONE, "device_do", "c1")
DO_1, DO_2, DO = ["device.do 1"], ["device.do 2"], ["device.do -"]

CHAT: dict[str, Case] = {
    "once": (chat(WHOLE), DO_1),
    "once, in pieces": (chat(OPEN, delta('{"x"'), delta(":1}")), DO_1),
    "open, arguments, then all of it again": (chat(OPEN, delta(ONE), WHOLE), DO_1),
    "pieces, then all of it again": (chat(OPEN, delta('{"x"'), delta(":1}"), WHOLE), DO_1),
    "whole, and whole again": (chat(WHOLE, WHOLE), DO_1),
    "whole three times": (chat(WHOLE, WHOLE, WHOLE), DO_1),
    "again under another index": (chat(WHOLE, delta(ONE, "device_do", "c1", 1)), DO_1),
    "again under another index, in pieces": (
        chat(WHOLE, delta("", "device_do", "c1", 1), delta('{"x"', index=1), delta(":1}", index=1)),
        DO_1,
    ),
    "again without an index": (chat(WHOLE, delta(ONE, "device_do", "c1", None)), DO_1),
    "again in one chunk": (chat([WHOLE, delta(ONE, "device_do", "c1", 1)]), DO_1),
    "a summary with the arguments encoded twice": (chat(WHOLE, delta(ENCODED, "device_do", "c1")), DO_1),
    "a summary under another index, encoded twice": (
        chat(OPEN, delta(ONE), delta(ENCODED, "device_do", "c1", 1)),
        DO_1,
    ),
    "a summary without a name, encoded twice": (chat(OPEN, delta(ONE), delta(ENCODED, None, "c1")), DO_1),
    "a summary of the arguments alone, encoded twice": (chat(OPEN, delta(ONE), delta(ENCODED)), DO_1),
    "null, then the arguments": (chat(delta("null", "device_do", "c1"), delta(ONE)), DO_1),
    "a summary with other blanks": (chat(WHOLE, delta('{ "x": 1 }', "device_do", "c1")), DO_1),
    "a summary with other arguments": (chat(WHOLE, delta(TWO, "device_do", "c1")), DO_1),
    "a summary with empty arguments": (chat(WHOLE, delta("{}", "device_do", "c1")), DO_1),
    "a summary with JSON itself": (chat(WHOLE, delta({"x": 1}, "device_do", "c1")), DO_1),
    "a summary after finish_reason": (
        chat(WHOLE).replace(b"data: [DONE]", chat(WHOLE).split(b"\n\n")[0] + b"\n\ndata: [DONE]"),
        DO_1,
    ),
    "two calls, and a summary of both": (
        chat(
            WHOLE,
            delta(TWO, "device_do", "c2", 1),
            [delta(ONE, "device_do", "c1"), delta(TWO, "device_do", "c2", 1)],
        ),
        [*DO_1, *DO_2],
    ),
    "two calls, and a summary of both in the other order": (
        chat(
            WHOLE,
            delta(TWO, "device_do", "c2", 1),
            [delta(TWO, "device_do", "c2", 0), delta(ONE, "device_do", "c1", 1)],
        ),
        [*DO_1, *DO_2],
    ),
    "only encoded twice": (chat(delta(ENCODED, "device_do", "c1")), DO_1),
    "doubled arguments": (chat(OPEN, delta(ONE), delta(ONE)), DO_1),
    "doubled arguments in one delta": (chat(delta(ONE + ONE, "device_do", "c1")), DO_1),
    "doubled arguments on two lines": (chat(delta(f"{ONE}\n{ONE}", "device_do", "c1")), DO_1),
    "doubled arguments without an id": (chat(delta(ONE + ONE, "device_do")), DO_1),
    "repeated without an id": (chat(delta(ONE, "device_do"), delta(ONE, "device_do")), DO_1),
    "first without an id, then with one": (chat(delta(ONE, "device_do"), WHOLE), DO_1),
    "first without id and name, then with them": (chat(delta(ONE), WHOLE), DO_1),
    "first with an id, then without one under another index": (
        chat(WHOLE, delta(ONE, "device_do", None, 1)),
        DO_1,
    ),
    "an empty object before the arguments": (chat(delta("{}", "device_do", "c1"), delta(ONE)), DO_1),
    "an empty object before the pieces": (
        chat(delta("{}", "device_do", "c1"), delta('{"x"'), delta(":1}")),
        DO_1,
    ),
    "an empty call, then all of it": (chat(OPEN, WHOLE), DO_1),
    "an empty call, then all of it under another index": (chat(OPEN, delta(ONE, "device_do", "c1", 1)), DO_1),
    "an empty entry behind the call": (chat(WHOLE, delta("", None, None, 1)), DO_1),
    "an entry with only an id behind the call": (chat(WHOLE, delta("", "", "c9", 1)), DO_1),
    "each piece under an index of its own": (
        chat(OPEN, delta('{"x"', index=1), delta(":1}", index=2)),
        DO_1,
    ),
    "each piece with the id, under an index of its own": (
        chat(OPEN, delta('{"x"', None, "c1", 1), delta(":1}", None, "c1", 2)),
        DO_1,
    ),
    "the name and the id in each piece": (
        chat(OPEN, delta('{"x"', "device_do", "c1"), delta(":1}", "device_do", "c1")),
        DO_1,
    ),
    "no arguments at all": (chat(OPEN), DO),
    "no arguments, repeated": (chat(OPEN, OPEN), DO),
    "empty arguments, repeated without an id": (chat(delta("{}", "device_do"), delta("{}", "device_do")), DO),
    "two equal calls with two ids": (chat(WHOLE, delta(ONE, "device_do", "c2", 1)), DO_1 * 2),
    "two equal calls with two ids under index 0": (chat(WHOLE, delta(ONE, "device_do", "c2")), DO_1 * 2),
    "two equal calls without ids under two indexes": (
        chat([delta(ONE, "device_do"), delta(ONE, "device_do", None, 1)]),
        DO_1 * 2,
    ),
    "two calls without ids under index 0": (
        chat(delta(ONE, "device_do"), delta(TWO, "device_do")),
        [*DO_1, *DO_2],
    ),
    "one id for calls of two tools": (
        chat(WHOLE, delta(TWO, "device_look", "c1", 1)),
        ["device.do 1", "device.look 2"],
    ),
    "two objects that differ in one call": (chat(OPEN, delta(ONE), delta(TWO)), []),
    "cut arguments": (chat(OPEN, delta('{"x":')), []),
    "cut by the limit behind a whole call": (chat(WHOLE, WHOLE, finish="length"), []),
}

RESPONSES: dict[str, Case] = {
    "once": (responses(item(ONE)), DO_1),
    "the item twice": (responses(item(ONE), item(ONE)), DO_1),
    "the item again, encoded twice": (responses(item(ONE), item(ENCODED)), DO_1),
    "the item first without arguments": (responses(item(""), item(ONE)), DO_1),
    "the item again, cut": (responses(item(ONE), item('{"x":')), DO_1),
    "doubled arguments": (responses(item(ONE + ONE)), DO_1),
    "JSON itself": (responses(item({"x": 1})), DO_1),
    "two equal calls with two ids": (responses(item(ONE), item(ONE, "c2")), DO_1 * 2),
    "one id for calls of two tools": (
        responses(item(ONE), item(TWO, "c1", "device_look")),
        ["device.do 1", "device.look 2"],
    ),
    "cut arguments": (responses(item('{"x":')), []),
}

ANTHROPIC: dict[str, Case] = {
    "once": (anthropic(block('{"x"', ":1}")), DO_1),
    "the block twice": (anthropic(block(ONE), block(ONE)), DO_1),
    "the block again under another index": (anthropic(block(ONE), block(ONE, index=1)), DO_1),
    "the block again, with its input at the start": (
        anthropic(block(ONE), block(given={"x": 1}, index=1)),
        DO_1,
    ),
    "the block first without its input": (anthropic(block(), block(ONE, index=1)), DO_1),
    "the block again without its input": (anthropic(block(ONE), block(index=1)), DO_1),
    "doubled arguments": (anthropic(block(ONE, ONE)), DO_1),
    "an empty object before the arguments": (anthropic(block("{}", ONE)), DO_1),
    "encoded twice": (anthropic(block(ENCODED)), DO_1),
    "no input": (anthropic(block()), DO),
    "two equal calls with two ids": (anthropic(block(ONE), block(ONE, call_id="c2", index=1)), DO_1 * 2),
    "two equal calls without ids": (
        anthropic(block(ONE, call_id=""), block(ONE, call_id="", index=1)),
        DO_1 * 2,
    ),
    "cut arguments": (anthropic(block('{"x":')), []),
    "cut by the limit": (anthropic(block(ONE), stop="max_tokens"), []),
    "an empty stop reason": (anthropic(block(ONE), stop=""), DO_1),
    "an empty stop reason and cut arguments": (anthropic(block('{"x":'), stop=""), []),
    "OpenAI's end mark for the end": (anthropic(block(ONE), end=["[DONE]"]), DO_1),
    "no end mark": (anthropic(block(ONE), end=[]), DO_1),
}

BEDROCK: dict[str, Case] = {
    "once": (bedrock(use('{"x"', ":1}")), DO_1),
    "the block twice": (bedrock(use(ONE), use(ONE)), DO_1),
    "the block again under another index": (bedrock(use(ONE), use(ONE, index=1)), DO_1),
    "the block first without its input": (bedrock(use(), use(ONE, index=1)), DO_1),
    "doubled arguments": (bedrock(use(ONE, ONE)), DO_1),
    "no input": (bedrock(use()), DO),
    "two equal calls with two ids": (bedrock(use(ONE), use(ONE, call_id="c2", index=1)), DO_1 * 2),
    "cut arguments": (bedrock(use('{"x":')), []),
}

CORPUS = {
    f"{kind}: {name}": (kind, *case)
    for kind, cases in {
        "chat": CHAT,
        "responses": RESPONSES,
        "anthropic": ANTHROPIC,
        "bedrock": BEDROCK,
    }.items()
    for name, case in cases.items()
}


def decoded(kind: str, stream: bytes, size: int) -> list[ModelEvent]:
    decoder = DECODERS[kind]()
    events: list[ModelEvent] = []
    for at in range(0, len(stream), size):
        if not decoder.finished:
            events += decoder.feed(stream[at : at + size])
    return [*events, *([] if decoder.finished else decoder.end())]


class Decoded(ScriptedProvider):
    """Plays a stream as its service's decoder reads it, and then answers in words."""

    def __init__(self, kind: str, stream: bytes) -> None:
        super().__init__([decoded(kind, stream, len(stream)), *[[TextDelta("So it is.")]] * 3])


def ran(app: App) -> list[str]:
    """Name the tools that ran on the device, with their argument."""
    payloads = [event["payload"] for event in app.events("tool.call")]
    calls = [call for call in payloads if call["name"].startswith("device.")]
    return [f"{call['name']} {json.loads(call['arguments']).get('x', '-')}" for call in calls]


@pytest.mark.parametrize(("kind", "stream", "expected"), CORPUS.values(), ids=CORPUS)
async def test_each_call_of_a_reply_runs_once(kind: str, stream: bytes, expected: list[str]) -> None:
    assert decoded(kind, stream, 1) == decoded(kind, stream, len(stream))
    stage = await open_stage(make_services(Decoded(kind, stream)), lambda name, call_id: SPOKEN)
    await stage.ask("go")
    assert ran(stage.app) == expected
    assert stage.app.speeches()[-1] == "So it is."
