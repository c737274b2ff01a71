"""What all decoders of replies have in common: halves of characters, and the calls of a reply."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.errors import ModelError
from conductor.messages import ToolCall
from conductor.models.base import Finished, ModelEvent, StreamDecoder, TextDelta, whole_characters
from conductor.plugins.models.anthropic_stream import ReplyDecoder
from conductor.plugins.models.bedrock_stream import ConverseDecoder
from conductor.plugins.models.calls import distinct, one_object
from conductor.plugins.models.openai_responses import ResponsesDecoder
from conductor.plugins.models.openai_stream import ChatDecoder
from conductor.plugins.models.tool_names import ToolNameMap
from tests.cpu import least_cpu_s
from tests.stand_ins.bedrock_service import frame

NAMES = ToolNameMap(["note"])


def sse(*events: Any) -> bytes:
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()


def chat(texts: Sequence[str], arguments: Sequence[str]) -> bytes:
    opened = {"index": 0, "id": "c", "function": {"name": "note", "arguments": ""}}
    parts = [opened, *({"index": 0, "function": {"arguments": piece}} for piece in arguments)]
    deltas = [{"content": text} for text in texts] + [{"tool_calls": [part]} for part in parts]
    end = {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}
    return sse(*({"choices": [{"delta": delta}]} for delta in deltas), end)


def responses(texts: Sequence[str], arguments: Sequence[str]) -> bytes:
    call = {"type": "function_call", "call_id": "c", "name": "note", "arguments": "".join(arguments)}
    return sse(
        *({"type": "response.output_text.delta", "delta": text} for text in texts),
        {"type": "response.output_item.done", "item": {"type": "message"}},
        {"type": "response.output_item.done", "item": call},
        {"type": "response.completed", "response": {}},
    )


def anthropic(texts: Sequence[str], arguments: Sequence[str]) -> bytes:
    def block(index: int, content: Any, deltas: Iterable[Any]) -> list[Any]:
        return [
            {"type": "content_block_start", "index": index, "content_block": content},
            *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
            {"type": "content_block_stop", "index": index},
        ]

    call = {"type": "tool_use", "id": "c", "name": "note", "input": {}}
    pieces = ({"type": "input_json_delta", "partial_json": piece} for piece in arguments)
    return sse(
        *block(0, {"type": "text", "text": ""}, ({"type": "text_delta", "text": text} for text in texts)),
        *block(1, call, pieces),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "message_stop"},
    )


def bedrock(texts: Sequence[str], arguments: Sequence[str]) -> bytes:
    deltas = [frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": text}}) for text in texts]
    start = {"contentBlockIndex": 1, "start": {"toolUse": {"toolUseId": "c", "name": "note"}}}
    for piece in arguments:
        delta = {"contentBlockIndex": 1, "delta": {"toolUse": {"input": piece}}}
        deltas.append(frame("contentBlockDelta", delta))
    deltas.insert(len(texts), frame("contentBlockStart", start))
    end = frame("contentBlockStop", {"contentBlockIndex": 1})
    return b"".join(deltas) + end + frame("messageStop", {"stopReason": "tool_use"}) + frame("metadata", {})


KINDS: dict[str, tuple[Callable[[], StreamDecoder], Callable[[Sequence[str], Sequence[str]], bytes]]] = {
    "chat": (lambda: ChatDecoder(NAMES, "here"), chat),
    "responses": (lambda: ResponsesDecoder(NAMES, "here"), responses),
    "anthropic": (lambda: ReplyDecoder(NAMES, str), anthropic),
    "bedrock": (lambda: ConverseDecoder(NAMES, str), bedrock),
}


def decoded(kind: str, texts: Sequence[str], arguments: Sequence[str]) -> tuple[str, str]:
    """Give the words and the arguments of a stream, in whole and in pieces of 7 bytes."""
    new_decoder, stream_of = KINDS[kind]
    stream, results = stream_of(texts, arguments), []
    for size in (len(stream), 7):
        decoder, events = new_decoder(), list[ModelEvent]()
        for at in range(0, len(stream), size):
            if not decoder.finished:
                events += decoder.feed(stream[at : at + size])
        events += [] if decoder.finished else decoder.end()
        words = "".join(event.text for event in events if isinstance(event, TextDelta))
        (call,) = (event for event in events if isinstance(event, ToolCall))
        assert isinstance(events[-1], Finished)
        results.append((words, call.arguments))
    assert results[0] == results[1]
    return results[0]


HALVES: dict[str, tuple[list[str], str]] = {
    "the halves in two pieces": (["Hi \ud83d", "\ude00!"], "Hi 😀!"),
    "an empty piece between the halves": (["\ud83d", "", "\ude00"], "😀"),
    "only the first half": (["Hi \ud83d", "!"], "Hi \ufffd!"),
    "only the first half, at the end": (["Hi \ud83d"], "Hi \ufffd"),
    "only the second half": (["\ude00 Hi"], "\ufffd Hi"),
    "the halves in the wrong order": (["\ude00", "\ud83d"], "\ufffd\ufffd"),
    "a first half before a whole character": (["\ud83d", "😀"], "\ufffd😀"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("pieces", "whole"), HALVES.values(), ids=HALVES)
def test_the_halves_of_a_character_are_joined_over_deltas(kind: str, pieces: list[str], whole: str) -> None:
    words, arguments = decoded(kind, pieces, ['{"text":"', *pieces, '"}'])
    assert (words, arguments) == (whole, f'{{"text":"{whole}"}}')


@given(st.lists(st.text(st.characters(codec=None), max_size=5)))
def test_a_text_without_halves_can_always_be_sent(pieces: list[str]) -> None:
    text = whole_characters("".join(pieces))
    assert text.encode("utf-16", "surrogatepass").decode("utf-16") == text
    assert whole_characters(text) == text


@pytest.mark.parametrize(
    ("arguments", "one"),
    [
        ('{"a":1}{"a":1}', '{"a":1}'),
        ('{"a":1} \n{ "a": 1 }', '{"a":1}'),
        ('{}{"a":1}', '{"a":1}'),
        ("{}{}", "{}"),
        ('"{\\"a\\":1}"', '{"a":1}'),
        ('{"a":1}"{\\"a\\":1}"', '{"a":1}'),
        ('"{}"{"a":1}', '{"a":1}'),
        ('{"a":1}"{\\"a\\":2}"', '{"a":1}"{\\"a\\":2}"'),
        ('{"a":1}"text"', '{"a":1}"text"'),
        ('null{"a":1}', '{"a":1}'),
        ("nullable", "nullable"),
        ('"text"', '"text"'),
        ('{"a":1}{"a":2}', '{"a":1}{"a":2}'),
        ('{"a":1}{"a":true}', '{"a":1}{"a":true}'),
        ('{"a":1}{"a"', '{"a":1}{"a"'),
        ('{"a":1}[]', '{"a":1}[]'),
        ('{"a":"\\ud83d\\ude00"}', '{"a":"\\ud83d\\ude00"}'),
        ('{"a":"x\\ud83d"}', '{"a": "x\ufffd"}'),
        ("", ""),
        ("{", "{"),
        ("[" * 100_000, "[" * 100_000),
        ('{"a":' * 100_000, '{"a":' * 100_000),
    ],
)
def test_only_one_object_written_twice_becomes_one(arguments: str, one: str) -> None:
    assert one_object(arguments) == one


@pytest.mark.parametrize(("kind", "end"), [("chat", -2), ("anthropic", -3), ("responses", -2)])
def test_a_reply_of_calls_without_end_is_refused_in_little_time(kind: str, end: int) -> None:
    blocks = KINDS[kind][1]([], ["{}"]).split(b"\n\n")[:end]
    stream = b"".join(
        b"\n\n".join(blocks).replace(b'"c"', b'"c%d"' % number) + b"\n\n" for number in range(20_000)
    )

    def run() -> None:
        with pytest.raises(ModelError) as caught:
            KINDS[kind][0]().feed(stream)
        assert caught.value.reason == "undecodable"

    assert least_cpu_s(run, 1.0) < 1.0


def test_mending_takes_little_time() -> None:
    assert least_cpu_s(lambda: one_object("{}" * 500_000 + "x"), 0.05) < 0.5
    assert least_cpu_s(lambda: one_object("{} " * 20_000), 0.05) < 0.5
    assert least_cpu_s(lambda: one_object('"{}"' * 16_000), 0.05) < 0.5


def test_a_repeated_call_keeps_its_place_and_its_whole_arguments() -> None:
    first, second = ToolCall("c1", "note", "{}"), ToolCall("c2", "note", '{"a":2}')
    whole, other = ToolCall("c1", "note", '{"a":1}'), ToolCall("c1", "note", '{"a":3}')
    assert distinct([first, second, whole, other]) == [whole, second]
    assert distinct([whole, ToolCall("c1", "look", "{}")]) == [whole, ToolCall("c1", "look", "{}")]
