"""Streams of OpenAI-compatible services: recorded ones, and known quirks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from conductor.errors import ModelError, ModelFailure
from conductor.messages import ToolCall
from conductor.models.base import Finished, ModelEvent, StopReason, StreamDecoder, TextDelta, Usage
from conductor.plugins.models.anthropic_stream import ReplyDecoder
from conductor.plugins.models.openai_responses import ResponsesDecoder
from conductor.plugins.models.openai_stream import ChatDecoder
from conductor.plugins.models.reasoning import CallSlot, Reasoning, Words, opaque_of
from conductor.plugins.models.tool_names import ToolNameMap

RECORDED = Path(__file__).parent / "recorded"
NAMES = ToolNameMap(["agent.spawn", "get_weather", "delete_file"])


def decode(decoder: StreamDecoder, pieces: Iterable[bytes]) -> tuple[str, list[ModelEvent]]:
    """Give the words of a stream, and its other events."""
    events: list[ModelEvent] = []
    for piece in pieces:
        events += decoder.feed(piece)
        if decoder.finished:
            break
    if not decoder.finished:
        events += decoder.end()
    words = "".join(event.text for event in events if isinstance(event, TextDelta))
    return words, [event for event in events if not isinstance(event, TextDelta)]


def new_decoder(kind: str) -> StreamDecoder:
    if kind == "anthropic":
        return ReplyDecoder(NAMES, str)
    return ResponsesDecoder(NAMES, "here") if kind == "responses" else ChatDecoder(NAMES, "here")


def decode_any(stream: bytes, kind: str = "chat") -> tuple[str, list[ModelEvent]]:
    """Decode a stream at once, byte by byte, and in two pieces: the result is always the same."""
    result = decode(new_decoder(kind), [stream])
    assert decode(new_decoder(kind), (stream[at : at + 1] for at in range(len(stream)))) == result
    for at in range(0, len(stream), max(1, len(stream) // 200)):
        assert decode(new_decoder(kind), [stream[:at], stream[at:]]) == result
    return result


# -- recorded from llama.cpp's own server


def recorded(name: str) -> bytes:
    return (RECORDED / f"llama_cpp_{name}.txt").read_bytes()


RECORDINGS: dict[str, tuple[str, str, list[ModelEvent]]] = {
    "text_stream_usage": ("chat", "an:qM o<tool_call>\nm", [Finished("max_tokens", Usage(1, 8, 56))]),
    "text_utf8_stream": ("chat", "naïve — 日本語 🙂 ok\n₲", [Finished("end_turn", Usage(1, 33, 56))]),
    "tool_parallel_stream": (
        "chat",
        "//0IVF",
        [
            ToolCall("4L7r9V2AAG58gf1XayzsdWDGMw1ytCOj", "get_weather", '{"city" :"Oslo", "days": 7 }'),
            ToolCall("UtPGAxOTGQAXXU8lYkzjrhBpfgcVFImo", "delete_file", '{\n\n"path":"Zau a]-X" }'),
            Finished("tool_use", Usage(1, 158, 813)),
        ],
    ),
    "tool_only_no_text_stream": (
        "chat",
        "",
        [
            ToolCall("1drt5H9lzclNGlAelARMXZeIb1HyFcJ3", "get_weather", '{"city": "Oslo", "days":5}'),
            Finished("tool_use", Usage(1, 99, 613)),
        ],
    ),
    "sse_ping_stream": ("chat", "LP", [Finished("max_tokens")]),
    "completions_stream": ("chat", "Vkyu", [Finished("max_tokens", Usage(1, 4, 4))]),
    "responses_stream": ("responses", "an 8.", [Finished("end_turn", Usage(22, 4, 1))]),
    "anthropic_stream": ("anthropic", "}aX ", [Finished("max_tokens", Usage(15, 4, 5))]),
}


@pytest.mark.parametrize("name", RECORDINGS)
def test_recorded_streams(name: str) -> None:
    kind, *expected = RECORDINGS[name]
    assert [*decode_any(recorded(name), kind)] == expected


def test_a_recorded_call_that_the_limit_cut_does_not_run() -> None:
    _, (call, finished) = decode_any(recorded("tool_cut_by_length_stream"))
    assert isinstance(call, ToolCall) and call.arguments == "{"
    assert isinstance(finished, Finished) and finished.stop == "max_tokens"


def test_recorded_error_in_mid_stream() -> None:
    decoder, stream = ChatDecoder(NAMES), recorded("midstream_error_stream")
    (before, after), text = stream.split(b'data: {"error"'), ""
    for at in range(len(before)):
        text += "".join(e.text for e in decoder.feed(before[at : at + 1]) if isinstance(e, TextDelta))
    assert text == "ok "
    with pytest.raises(ModelError) as caught:
        list(decoder.feed(b'data: {"error"' + after))
    assert caught.value.reason == "overloaded"


# -- quirks of other servers: written from their documented formats and from reports, not recorded

DONE = "data: [DONE]"
STOP = '{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
CALLED = '{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}'
A_CALL = ToolCall("c1", "agent.spawn", '{"task":"x"}')


def stream_of(*events: str) -> bytes:
    lines = (line if line.startswith(("data:", ":", "event:")) else f"data: {line}" for line in events)
    return "".join(f"{line}\n\n" for line in lines).encode()


def says(text: str, reason: str = "null") -> str:
    return f'{{"choices":[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":{reason}}}]}}'


def calls(*parts: str) -> str:
    return f'{{"choices":[{{"index":0,"delta":{{"tool_calls":[{",".join(parts)}]}},"finish_reason":null}}]}}'


def part(
    arguments: str, name: str | None = "agent_spawn", call_id: str | None = None, index: int | None = None
) -> str:
    name_field = f'"name":"{name}",' if name else ""
    id_field = f'"id":"{call_id}",' if call_id else ""
    index_field = f'"index":{index},' if index is not None else ""
    return f'{{{index_field}{id_field}"function":{{{name_field}"arguments":{arguments}}}}}'


TASK = '"{\\"task\\":\\"x\\"}"'
HI: list[ModelEvent] = [TextDelta("Hi."), Finished("end_turn")]
STOPS: dict[str, StopReason] = {
    "length": "max_tokens", "MAX_TOKENS": "max_tokens", "model_length": "max_tokens",
    "content_filter": "refusal", "SAFETY": "refusal", "sensitive": "refusal",
}  # fmt: skip


def with_opaque(message: str, extras: str = "[null]") -> Finished:
    return Finished("tool_use", opaque=f'{{"source":"here","message":{message},"calls":{extras}}}')


def thinks(field: str, *values: str) -> list[str]:
    return [f'{{"choices":[{{"delta":{{"{field}":{value}}}}}]}}' for value in values]


CALL_C1 = calls(part(TASK, call_id="c1", index=0))
SIGNED = part(TASK, call_id="c1", index=0)[:-1] + ',"extra_content":{"google":{"thought_signature":"s"}}}'
SPAWN_C1, WEATHER_C1 = ToolCall("c1", "agent.spawn", "{}"), ToolCall("c1", "get_weather", "{}")
WEATHER_C2 = ToolCall("c2", "get_weather", "{}")
# The deltas before the end of a stream, and its calls.
CALLS: dict[str, tuple[list[str], list[ToolCall]]] = {
    "arguments as an object": ([calls(part('{"task":"x"}', call_id="c1", index=0))], [A_CALL]),
    "no id and no type: one is made": (
        [calls(part('"{}"', index=0), part('"{}"', "get_weather", index=1))],
        [ToolCall("call_0", "agent.spawn", "{}"), ToolCall("call_1", "get_weather", "{}")],
    ),
    "no index": (
        [calls(part('"{}"', call_id="c1")), calls(part('"{}"', "get_weather", "c2"))],
        [SPAWN_C1, WEATHER_C2],
    ),
    "index 0 for each call (Ollama)": (
        [calls(part('"{}"', "get_weather", "c1", 0)), calls(part('"{}"', "get_weather", "c2", 0))],
        [WEATHER_C1, WEATHER_C2],
    ),
    "index 0 for each call, without ids": (
        [calls(part(f'"{{\\"city\\":{city}}}"', "get_weather", index=0)) for city in (1, 2)],
        [ToolCall(f"call_{city - 1}", "get_weather", f'{{"city":{city}}}') for city in (1, 2)],
    ),
    "the name in each delta": (
        [
            calls(part('""', call_id="c1", index=0)),
            calls(part('"{\\"task\\""', index=0)),
            calls(part('":\\"x\\"}"', call_id="c1", index=0)),
        ],
        [A_CALL],
    ),
    "the id first and the name later": (
        [calls(part("null", None, "c1", 0)), calls(part(TASK, index=0))],
        [A_CALL],
    ),
    "parallel calls whose deltas alternate": (
        [
            calls(part('"{\\"task\\":"', call_id="c1", index=0), part('"{"', "get_weather", "c2", 1)),
            calls(part('"\\"x\\"}"', None, index=0), part('"}"', None, index=1)),
        ],
        [A_CALL, WEATHER_C2],
    ),
    "a call without arguments": ([calls(part('""', "get_weather", "c1", 0))], [WEATHER_C1]),
    **{
        f"a call named {name}": ([calls(part(TASK, name, "c1", 0))], [A_CALL])
        for name in (
            "functions.agent_spawn:0",
            "functions.agent_spawn <|constrain|>json",
            "agent.spawn",
        )
    },
    "a call with a name that no tool has": (
        [calls(part(TASK, "functions.other", "c1", 0))],
        [ToolCall("c1", "functions.other", '{"task":"x"}')],
    ),
}

QUIRKS: dict[str, tuple[bytes, list[ModelEvent]]] = {
    **{
        name: (stream_of(*deltas, CALLED, DONE), [*expected, Finished("tool_use")])
        for name, (deltas, expected) in CALLS.items()
    },
    "whole calls in one chunk, finish reason and usage in it as well": (
        stream_of(
            '{"choices":[{"index":0,"delta":{"content":"","tool_calls":['
            + part('"{\\"task\\":\\"x\\"}"', call_id="c1", index=0)
            + ']},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":7,"completion_tokens":2}}',
            DONE,
        ),
        [A_CALL, Finished("tool_use", Usage(7, 2))],
    ),
    "finish_reason stop with calls (Ollama)": (
        stream_of(calls(part('"{\\"task\\":\\"x\\"}"', call_id="c1", index=0)), STOP, DONE),
        [A_CALL, Finished("tool_use")],
    ),
    **{
        f"finish_reason {reason} with whole calls": (
            stream_of(calls(part(TASK, call_id="c1", index=0)), says("", f'"{reason}"'), DONE),
            [A_CALL, Finished("tool_use")],
        )
        for reason in ("eos", "STOP", "Function_Call")
    },
    **{
        f"finish_reason {reason} with whole calls runs no call": (
            stream_of(calls(part(TASK, call_id="c1", index=0)), says("", f'"{reason}"'), DONE),
            [A_CALL, Finished(stop)],
        )
        for reason, stop in STOPS.items()
    },
    "an unknown finish_reason runs no call that is cut off": (
        stream_of(calls(part('"{"', "get_weather", "c1", 0)), says("", '"eos"'), DONE),
        [ToolCall("c1", "get_weather", "{"), Finished("end_turn")],
    ),
    "length inside the arguments": (
        stream_of(calls(part('""', "get_weather", "c1", 0)), says("", '"length"'), DONE),
        [ToolCall("c1", "get_weather", ""), Finished("max_tokens")],
    ),
    "usage in a last chunk, choices empty (OpenAI, vLLM)": (
        stream_of(
            says("Hi."),
            STOP,
            '{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1,'
            '"prompt_tokens_details":{"cached_tokens":4,"cache_write_tokens":2}}}',
            DONE,
        ),
        [TextDelta("Hi."), Finished("end_turn", Usage(3, 1, 4, 2))],
    ),
    "a text that only begins like reasoning": (
        stream_of(says("<thi"), STOP, DONE),
        [TextDelta("<thi"), Finished("end_turn")],
    ),
    "reasoning_content in pieces is kept with its calls (DeepSeek)": (
        stream_of(*thinks("reasoning_content", '"Let "', "null", '"me."'), CALL_C1, CALLED, DONE),
        [A_CALL, with_opaque('{"reasoning_content":"Let me."}')],
    ),
    "reasoning in pieces is kept with its calls (Ollama, vLLM)": (
        stream_of(*thinks("reasoning", '"Let "', '"me."'), CALL_C1, CALLED, DONE),
        [A_CALL, with_opaque('{"reasoning":"Let me."}')],
    ),
    "reasoning_details in pieces are kept with their calls (OpenRouter)": (
        stream_of(
            *thinks(
                "reasoning_details",
                '[{"type":"reasoning.text","index":0,"text":"Let "}]',
                '[{"type":"reasoning.text","index":0,"text":"me."}]',
                '[{"type":"reasoning.text","index":0,"signature":"s","text":null}]',
                '[{"type":"reasoning.encrypted","index":1,"data":"e"}]',
                '"no list"',
            ),
            CALL_C1,
            CALLED,
            DONE,
        ),
        [
            A_CALL,
            with_opaque(
                '{"reasoning_details":[{"type":"reasoning.text","index":0,"text":"Let me.","signature":"s"},'
                '{"type":"reasoning.encrypted","index":1,"data":"e"}]}'
            ),
        ],
    ),
    "a signature is kept with its call (Gemini)": (
        stream_of(calls(SIGNED, part(TASK, call_id="c2", index=1)), says("", '"stop"'), DONE),
        [
            A_CALL,
            ToolCall("c2", "agent.spawn", '{"task":"x"}'),
            with_opaque("{}", '[{"google":{"thought_signature":"s"}},null]'),
        ],
    ),
    "figures that are no whole numbers": (
        stream_of(
            says("Hi."),
            '{"choices":[],"usage":{"prompt_tokens":9.0,"completion_tokens":1.5,"total_tokens":"10",'
            '"prompt_tokens_details":[]}}',
            STOP,
            DONE,
        ),
        [TextDelta("Hi."), Finished("end_turn", Usage(9, 1))],
    ),
}


SAY_HI: dict[str, bytes] = {
    "usage null in all chunks, never a figure": stream_of(
        '{"choices":[{"delta":{"content":"Hi."}}],"usage":null}', STOP, DONE
    ),
    "the end mark is missing": stream_of(says("Hi."), STOP),
    "no finish_reason at all": stream_of('{"choices":[{"delta":{"content":"Hi."}}]}', DONE),
    "no space after the colon": stream_of(f"data:{says('Hi.')}", f"data:{STOP}", "data:[DONE]"),
    "comments (OpenRouter)": stream_of(
        ": OPENROUTER PROCESSING", says("Hi."), ": OPENROUTER PROCESSING", STOP, DONE
    ),
    "a first chunk about filters, without a choice (Azure)": stream_of(
        '{"choices":[],"prompt_filter_results":[{}],"object":""}', says("Hi."), STOP, DONE
    ),
    "reasoning_content (DeepSeek, llama.cpp, vLLM)": stream_of(
        '{"choices":[{"delta":{"content":null,"reasoning_content":"Hm."}}]}', says("Hi."), STOP, DONE
    ),
    "reasoning (Ollama, OpenRouter)": stream_of(
        '{"choices":[{"delta":{"content":"","reasoning":"Hm."}}]}', says("Hi."), STOP, DONE
    ),
    "content as parts, some of them thoughts (Mistral)": stream_of(
        *thinks("content", '[{"type":"thinking","thinking":[{"type":"text","text":"Hm."}]}]'),
        *thinks("content", '[{"type":"text","text":"H"},"i"]', '"."', "{}", "7"),
        STOP,
        DONE,
    ),
    "an empty event": stream_of("data:", says("Hi."), STOP, DONE),
    "words that keep the connection alive": stream_of(
        "data: ping", says("Hi."), "data: keep-alive", STOP, "data: ping", DONE
    ),
    "error null and error empty": stream_of(
        '{"error":null,"choices":[{"delta":{"content":"Hi."}}]}', '{"error":{}}', STOP, DONE
    ),
    "CRLF line ends": stream_of(says("Hi."), STOP, DONE).replace(b"\n", b"\r\n"),
    "an empty finish_reason in each chunk": stream_of(says("Hi.", '""'), STOP, DONE),
    "choices null, and absent": stream_of('{"choices":null}', "{}", says("Hi."), STOP, DONE),
    "deltas null": stream_of('{"choices":[{"delta":null,"finish_reason":null}]}', says("Hi."), STOP, DONE),
    "tool_calls null and empty": stream_of(*thinks("tool_calls", "null", "[]"), says("Hi."), STOP, DONE),
    "a role in each delta, and fields that are not known": stream_of(
        '{"choices":[{"delta":{"role":"assistant","content":"Hi.","x":{"y":[1]}}}],"z":1}', STOP, DONE
    ),
}


def joined(words: str, events: list[ModelEvent]) -> list[ModelEvent]:
    return [TextDelta(words), *events] if words else events


@pytest.mark.parametrize(("stream", "expected"), QUIRKS.values(), ids=QUIRKS)
def test_quirks(stream: bytes, expected: list[ModelEvent]) -> None:
    assert joined(*decode_any(stream)) == expected


@pytest.mark.parametrize("stream", SAY_HI.values(), ids=SAY_HI)
def test_quirks_of_text(stream: bytes) -> None:
    assert joined(*decode_any(stream)) == HI


FAILURES: dict[str, tuple[bytes, ModelFailure]] = {
    "finish_reason tool_calls without calls (mlx-lm)": (stream_of(CALLED, DONE), "malformed"),
    "a call without a name": (stream_of(calls(part('"{}"', None, "c1", 0)), CALLED, DONE), "malformed"),
    "an error event as a text": (
        stream_of('{"error":"the model runner has stopped"}'),
        "overloaded",
    ),
    "an error beside a choice (OpenRouter)": (
        stream_of(
            '{"error":{"code":429,"message":"Rate limited"},"choices":[{"delta":{},"finish_reason":"error"}]}'
        ),
        "rate_limited",
    ),
    "an error event with a name (LM Studio)": (
        stream_of('event: error\ndata: {"error":{"message":"The context length was reached"}}'),
        "context_too_long",
    ),
    "an event that is no JSON": (stream_of("{not json"), "undecodable"),
    "finish_reason null, and the end mark": (stream_of(says("Hi."), DONE), "connection"),
    "finish_reason null, and the end mark, of completions": (
        stream_of('{"choices":[{"text":"Hi.","finish_reason":null}]}', DONE),
        "connection",
    ),
    "a call, finish_reason null, and the end mark": (stream_of(CALL_C1, DONE), "connection"),
    **{
        f"finish_reason {reason}": (stream_of(says("Hi.", f'"{reason}"'), DONE), "overloaded")
        for reason in ("error", "abort", "network_error", "insufficient_system_resource")
    },
    "only words that keep the connection alive": (stream_of("data: ping", DONE), "connection"),
    "a last event that is cut off": (stream_of(says("Hi."), STOP)[:-20], "connection"),
    "the bytes end in the middle": (stream_of(says("Hi.")), "connection"),
    "no bytes at all": (b"", "connection"),
    "bytes that are no UTF-8": (b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n', "undecodable"),
}


@pytest.mark.parametrize(("stream", "reason"), FAILURES.values(), ids=FAILURES)
def test_failures(stream: bytes, reason: ModelFailure) -> None:
    for pieces in ([stream], [stream[at : at + 1] for at in range(len(stream))]):
        with pytest.raises(ModelError) as caught:
            decode(ChatDecoder(NAMES), pieces)
        assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("delta", "is_lost"), [("{}", True), ('{"content":"<think>Hm."}', False), ('{"reasoning":"Hm."}', False)]
)
def test_a_call_that_the_limit_cut_to_nothing_is_no_answer(delta: str, is_lost: bool) -> None:
    stream = stream_of(f'{{"choices":[{{"delta":{delta},"finish_reason":"length"}}]}}', DONE)
    assert decode(ChatDecoder(NAMES), [stream]) == ("", [Finished("max_tokens")])
    decoder = ChatDecoder(NAMES, offers_tools=True)
    if not is_lost:
        assert decode(decoder, [stream]) == ("", [Finished("max_tokens")])
        return
    with pytest.raises(ModelError) as caught:
        decode(decoder, [stream])
    assert caught.value.reason == "malformed"


# -- responses


def event(kind: str, body: str) -> str:
    return f'event: {kind}\ndata: {{"type":"{kind}",{body}}}'


def item_done(item: str) -> str:
    return event("response.output_item.done", f'"item":{item}')


COMPLETED = event("response.completed", '"response":{"status":"completed"}')
SPAWN = '{"type":"function_call","call_id":"c1","name":"agent_spawn","arguments":"{}","status":"completed"}'

RESPONSES: dict[str, tuple[bytes, list[ModelEvent]]] = {
    "a call whose arguments are empty": (
        stream_of(
            item_done('{"type":"function_call","call_id":"c1","name":"get_weather","arguments":""}'),
            COMPLETED,
        ),
        [ToolCall("c1", "get_weather", "{}"), Finished("tool_use")],
    ),
    "reasoning that holds nothing is not kept": (
        stream_of(item_done('{"type":"reasoning","id":"rs_1","summary":[]}'), item_done(SPAWN), COMPLETED),
        [ToolCall("c1", "agent.spawn", "{}"), Finished("tool_use")],
    ),
    "reasoning is kept in its place": (
        stream_of(
            item_done('{"type":"reasoning","id":"rs_1","encrypted_content":"e1"}'),
            item_done('{"type":"message","content":[]}'),
            item_done('{"type":"reasoning","id":"rs_2","encrypted_content":"e2"}'),
            item_done(SPAWN),
            COMPLETED,
        ),
        [
            ToolCall("c1", "agent.spawn", "{}"),
            Finished(
                "tool_use",
                opaque=opaque_of(
                    [
                        Reasoning({"type": "reasoning", "id": "rs_1", "encrypted_content": "e1"}),
                        Words(""),
                        Reasoning({"type": "reasoning", "id": "rs_2", "encrypted_content": "e2"}),
                        CallSlot("c1"),
                    ],
                    lambda: "here",
                ),
            ),
        ],
    ),
    "a refusal": (
        stream_of(event("response.refusal.delta", '"delta":"I will not."'), COMPLETED),
        [Finished("refusal")],
    ),
    "a call that was cut off but called complete": (
        stream_of(item_done(SPAWN.replace('"{}"', '"{\\"task"')), COMPLETED),
        [ToolCall("c1", "agent.spawn", '{"task'), Finished("max_tokens")],
    ),
    "an end mark after the end": (stream_of(COMPLETED, DONE), [Finished("end_turn")]),
    "an end mark before the end": (stream_of(DONE, COMPLETED), [Finished("end_turn")]),
    "a word that keeps the connection alive": (stream_of("data: ping", COMPLETED), [Finished("end_turn")]),
    "a text that only begins like reasoning": (
        stream_of(event("response.output_text.delta", '"delta":"<"'), COMPLETED),
        [TextDelta("<"), Finished("end_turn")],
    ),
}


@pytest.mark.parametrize(("stream", "expected"), RESPONSES.values(), ids=RESPONSES)
def test_responses(stream: bytes, expected: list[ModelEvent]) -> None:
    assert joined(*decode_any(stream, "responses")) == expected


@pytest.mark.parametrize(
    ("reason", "stop"),
    [("max_output_tokens", "max_tokens"), ("content_filter", "refusal"), ("new", "max_tokens")],
)
def test_responses_that_are_incomplete_run_no_call(reason: str, stop: StopReason) -> None:
    cut = '{"type":"function_call","call_id":"c1","name":"agent_spawn","arguments":"","status":"incomplete"}'
    details = f'"response":{{"incomplete_details":{{"reason":"{reason}"}}}}'
    _, events = decode_any(stream_of(item_done(cut), event("response.incomplete", details)), "responses")
    assert events == [ToolCall("c1", "agent.spawn", ""), Finished(stop)]


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (
            event("response.failed", '"response":{"error":{"code":"server_error","message":"x"}}'),
            "overloaded",
        ),
        (event("response.failed", '"response":{"error":null}'), "overloaded"),
        (event("error", '"code":"rate_limit_exceeded","message":"x"'), "rate_limited"),
        ('{"error":{"code":400,"message":"exceeds the context window"}}', "context_too_long"),
        (event("response.created", '"response":{}'), "connection"),
        ("{not json", "undecodable"),
    ],
)
def test_responses_that_fail(stream: str, reason: ModelFailure) -> None:
    with pytest.raises(ModelError) as caught:
        decode(ResponsesDecoder(NAMES, "here"), [stream_of(stream)])
    assert caught.value.reason == reason
