"""The codec: each refusal by its name, and the limits to the byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator
from protocol_schema import json_schema

from conductor.events import client
from conductor.events.codec import (
    BINARY_MARK,
    MAX_DEPTH,
    MAX_INTEGER,
    MAX_NODES,
    InvalidFrame,
    decode_event,
)
from conductor.events.envelope import encode_event
from conductor.events.unreadable import MAX_PARTS
from tests.cpu import least_cpu_s
from tests.unit.events.events import CLIENT, MISSING, event, events_of, frame, refusal, texts

VALIDATOR = Draft202012Validator(json_schema())
INVALID = {f"invalid_{name}" for name in "id type timestamp session_id payload protocol_version".split()}
"""The refusals that the schema knows, besides missing fields."""


def nested(depth: int) -> Any:
    """Make a value that is ``depth`` levels deep."""
    value: Any = 1
    for _ in range(depth - 1):
        value = [value]
    return value


# -- refusals

REFUSED = {
    "nothing": (b"", "invalid_json"),
    "no JSON": (b"hello", "invalid_json"),
    "half of an event": (frame()[:-1], "invalid_json"),
    "two events": (frame() * 2, "invalid_json"),
    "a byte order mark": (b"\xef\xbb\xbf" + frame(), "invalid_json"),
    "a trailing comma": (frame()[:-1] + b",}", "invalid_json"),
    "a raw line feed in a string": (frame().replace(b"hi", b"h\ni"), "invalid_json"),
    "NaN": (frame().replace(b'"hi"', b"NaN"), "invalid_json"),
    "Infinity": (frame().replace(b'"hi"', b"-Infinity"), "invalid_json"),
    "1e999": (frame().replace(b'"hi"', b"1e999"), "invalid_json"),
    "half a surrogate pair": (frame().replace(b"hi", b"\\ud83d"), "invalid_json"),
    "the other half": (frame().replace(b"hi", b"\\udf89\\ud83c"), "invalid_json"),
    "a number of 5000 digits": (frame().replace(b'"hi"', b"1" * 5_000), "invalid_json"),
    "invalid UTF-8": (frame().replace(b"hi", b"\xff"), "invalid_utf8"),
    "overlong UTF-8": (frame().replace(b"hi", b"\xc0\xaf"), "invalid_utf8"),
    "a surrogate in UTF-8": (frame().replace(b"hi", b"\xed\xa0\x80"), "invalid_utf8"),
    "binary": (BINARY_MARK + frame(), "binary_frame"),
    "an array": (b"[" + frame() + b"]", "not_an_object"),
    "a number": (b"7", "not_an_object"),
    "no fields": (b"{}", "missing_id"),
    "no id": (frame(id=MISSING), "missing_id"),
    "null for the id": (frame(id=None), "missing_id"),
    "an empty id": (frame(id=""), "missing_id"),
    "a number for the id": (frame(id=7), "invalid_id"),
    "an id of 129": (frame(id="x" * 129), "invalid_id"),
    "no type": (frame(type=MISSING), "missing_type"),
    "a list for the type": (frame(type=["session.start"]), "invalid_type"),
    "no timestamp": (frame(timestamp=MISSING), "missing_timestamp"),
    "a number for the timestamp": (frame(timestamp=1_772_366_400), "invalid_timestamp"),
    "no session": (frame(sessionId=MISSING), "missing_session_id"),
    "an empty session": (frame(sessionId=""), "missing_session_id"),
    "a session with a space": (frame(sessionId="a b"), "invalid_session_id"),
    "a session with a line feed": (frame(sessionId="a\n"), "invalid_session_id"),
    "a session with other digits": (frame(sessionId="١٢"), "invalid_session_id"),
    "a session of 129": (frame(sessionId="x" * 129), "invalid_session_id"),
    "no payload": (frame(payload=MISSING), "missing_payload"),
    "null for the payload": (frame(payload=None), "missing_payload"),
    "a string for the payload": (frame(payload="hi"), "invalid_payload"),
    "a list for the payload": (frame(payload=[]), "invalid_payload"),
    "version 0": (frame(protocolVersion=0), "invalid_protocol_version"),
    "version true": (frame(protocolVersion=True), "invalid_protocol_version"),
    "version 1.5": (frame(protocolVersion=1.5), "invalid_protocol_version"),
    'version "1"': (frame(protocolVersion="1"), "invalid_protocol_version"),
    "a large integer": (frame(payload={"text": "hi", "n": MAX_INTEGER + 1}), "number_out_of_range"),
    "a key twice": (frame().replace(b'"text": "hi"', b'"text":"a","text":"b"'), "duplicate_key"),
    "a key twice at the top": (b'{"id":"x",' + frame()[1:], "duplicate_key"),
    "a key twice, deep down": (
        frame().replace(b'"text": "hi"', b'"text":"a","x":[{"a":{"b":1,"b":1}}]'),
        "duplicate_key",
    ),
    "a key twice, written otherwise": (
        frame().replace(b'"text": "hi"', b'"text":"a","\\u0074ext":"b"'),
        "duplicate_key",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_frame_is_refused_by_name(name: str) -> None:
    data, message = REFUSED[name]
    error = refusal(data)
    assert (error.code, str(error)) == ("invalid_event", message)
    if message.startswith("missing_") or message in INVALID:
        assert not VALIDATOR.is_valid(json.loads(data))


@pytest.mark.parametrize("version", [2, 7, MAX_INTEGER])
def test_a_newer_version_is_answered_with_the_servers_version(version: int) -> None:
    error = refusal(frame(protocolVersion=version))
    assert not VALIDATOR.is_valid(event(protocolVersion=version))
    assert error.code == "unsupported_protocol_version"
    assert str(error) == "This server speaks protocol version 1."


@pytest.mark.parametrize("event_type", sorted(CLIENT))
@given(data=st.data())
def test_a_refusal_never_quotes_a_value(event_type: str, data: st.DataObject) -> None:
    secret = "hunter2"
    payload = data.draw(
        st.dictionaries(
            st.sampled_from(
                [*CLIENT[event_type].__struct_encode_fields__, "other"],
            ),
            st.sampled_from([secret, [secret], {secret: secret}, [{"decision": secret}], 7]),
        )
    )
    try:
        decode_event(frame(type=event_type, payload=payload))
    except InvalidFrame as error:
        assert secret not in str(error)


def test_instructions_are_at_most_four_kibibytes_of_utf8() -> None:
    fits = "é" * 2048
    inbound = decode_event(frame(type="session.start", payload={"instructions": fits}))
    assert isinstance(inbound.event, client.SessionStart) and inbound.event.instructions == fits
    error = refusal(frame(type="session.start", payload={"instructions": fits + "x"}))
    assert str(error) == "instructions_too_large:4096"


# -- the fields of a refusal


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"payload": "x"}, ("e-1", "user.audio.transcript.final", "s-1")),
        ({"id": 7}, (None, "user.audio.transcript.final", "s-1")),
        ({"id": "x" * 129}, (None, "user.audio.transcript.final", "s-1")),
        ({"sessionId": "a b"}, ("e-1", "user.audio.transcript.final", None)),
        ({"type": 7}, ("e-1", None, "s-1")),
        ({"payload": {"text": "x" * 70_000}}, ("e-1", "user.audio.transcript.final", "s-1")),
    ],
)
def test_a_refusal_names_the_readable_fields(changes: dict[str, Any], fields: tuple[str | None, ...]) -> None:
    error = refusal(frame(**changes))
    assert (error.event_id, error.event_type, error.session_id) == fields


@pytest.mark.parametrize("data", [b"", b"[1]", BINARY_MARK + frame(), b"\xff", b"[" * 100_000])
def test_a_refusal_of_an_unreadable_frame_names_no_fields(data: bytes) -> None:
    error = refusal(data)
    assert (error.event_id, error.event_type, error.session_id) == (None, None, None)


# -- limits


def sized(size: int, event_type: str = "user.audio.transcript.final", key: str = "text") -> bytes:
    """Make a valid event of exactly ``size`` bytes."""
    payload = {"callId": "c", key: ""} if event_type == "tool.result" else {key: ""}
    empty = len(frame(type=event_type, payload=payload))
    data = frame(type=event_type, payload={**payload, key: "x" * (size - empty)})
    assert len(data) == size
    return data


def test_an_event_may_be_as_large_as_the_limit_and_no_byte_larger() -> None:
    assert decode_event(sized(2_000), 2_000).size == 2_000
    assert str(refusal(sized(2_001), 2_000)) == "event_too_large:2001"


def test_a_large_tool_result_is_accepted_whole() -> None:
    inbound = decode_event(sized(1_000_000, "tool.result", "result"))
    assert isinstance(inbound.event, client.ToolResultEvent)
    assert inbound.event.result is not None and len(inbound.event.result) > 999_000


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"status": "ok", "n": [1, 2.5]}, '{"status":"ok","n":[1,2.5]}'),
        ([], "[]"),
        (42, "42"),
        (False, "false"),
        ("", ""),
        ('{"a":1}', '{"a":1}'),
        (None, None),
    ],
)
@pytest.mark.parametrize("filler", [0, 100_000])
def test_a_result_that_is_no_string_is_taken_as_its_json_text(
    result: Any, text: str | None, filler: int
) -> None:
    payload = {"callId": "c", "result": result, "error": None, "more": "x" * filler}
    event = decode_event(frame(type="tool.result", payload=payload)).event
    assert isinstance(event, client.ToolResultEvent) and (event.call_id, event.error) == ("c", None)
    assert text == (None if event.result is None else event.result.replace(" ", ""))


@pytest.mark.parametrize("event_type", sorted(set(CLIENT) - {"tool.result"}))
def test_only_a_tool_result_may_be_large(event_type: str) -> None:
    data = frame(type=event_type, payload={"text": "x" * 70_000})
    assert str(refusal(data)) == f"event_too_large:{len(data)}"


def test_a_large_tool_result_is_checked_like_any_event() -> None:
    payload = {"callId": "c", "result": "x" * 70_000}
    assert str(refusal(frame(type="tool.result", payload=payload, id=MISSING))) == "missing_id"
    data = frame(type="tool.result", payload=payload)
    twice = data.replace(b'"callId": "c"', b'"callId":"c","callId":"d"')
    assert str(refusal(twice)) == "duplicate_key"
    assert str(refusal(data.replace(b"s-1", b"\xff", 1))) == "invalid_utf8"


def test_nesting_may_be_as_deep_as_the_limit_and_no_deeper() -> None:
    fits = nested(MAX_DEPTH - 2)  # below the event and its payload
    assert decode_event(frame(payload={"text": "hi", "more": fits})).event is not None
    assert str(refusal(frame(payload={"text": "hi", "more": [fits]}))) == "too_deep"


@pytest.mark.parametrize("text", [b"[" * 30_000, b"[" * 30_000 + b"]" * 30_000, b'{"a":' * 10_000])
def test_very_deep_nesting_is_refused_and_no_more(text: bytes) -> None:
    assert str(refusal(text)) in ("too_deep", "invalid_json")


def test_there_may_be_as_many_values_as_the_limit_and_no_more() -> None:
    overhead = 9  # the event, its six fields, the text and the list
    fits = [0] * (MAX_NODES - overhead)
    assert decode_event(frame(payload={"text": "hi", "more": fits})).event is not None
    assert str(refusal(frame(payload={"text": "hi", "more": [*fits, 0]}))) == "too_many_values"
    commas = decode_event(frame(payload={"text": 'a, \\"b' * 6_000})).event
    assert isinstance(commas, client.TranscriptFinal), "those of a text are no values"


def test_values_are_not_built_to_be_counted() -> None:
    dear = frame(payload={"text": "hi", "more": [1e308] * 8_000})
    assert str(refusal(dear)) == "too_many_values"
    assert least_cpu_s(lambda: refusal(dear), 0.002) < 0.002  # 0.3 ms here; to build them takes 5 ms
    # An unterminated string with many quotes takes linear time.
    quotes = b'"' + b'\\"' * 30_000 + b"," * 5_001
    assert least_cpu_s(lambda: refusal(quotes), 0.02) < 0.02  # 0.6 ms here; quadratic, minutes


# -- accepted frames


@pytest.mark.parametrize(
    "data",
    [
        frame(protocolVersion=MISSING),  # which means 1
        frame(timestamp=""),
        frame(timestamp="yesterday", id="x" * 128, sessionId="A-z.0_9:"),
        *(frame(payload={"text": "hi", "n": n}) for n in (MAX_INTEGER, -MAX_INTEGER, 0, 1.5, 1e300, -0.0)),
        frame(more={"a": 1}, payload={"text": "hi", "more": [1]}),
    ],
)
def test_a_frame_is_accepted(data: bytes) -> None:
    assert decode_event(data).event == client.TranscriptFinal("hi")


@pytest.mark.parametrize("event_type", ["no.such.type", "", "convo.setState", "x" * 10_000])
def test_an_unknown_type_is_no_error(event_type: str) -> None:
    inbound = decode_event(frame(type=event_type, payload={"any": ["thing"]}))
    assert inbound.event is None and inbound.type == event_type


@given(texts)
@example("\x00\u2028\ufeff\U0010ffff")
@example(" \n\t")
def test_text_arrives_unchanged(text: str) -> None:
    for ascii_only in (True, False):
        data = json.dumps(event(payload={"text": text}), ensure_ascii=ascii_only).encode()
        assert decode_event(data).event == client.TranscriptFinal(text)


# -- other writers of JSON


WRITERS: dict[str, Callable[[Any], str]] = {
    "spaces": lambda value: json.dumps(value, ensure_ascii=False),
    "no spaces": lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")),
    "line feeds": lambda value: json.dumps(value, ensure_ascii=False, indent="\t") + "\r\n",
    "unicode escapes": lambda value: json.dumps(value, ensure_ascii=True),
    "escaped slashes": lambda value: json.dumps(value, ensure_ascii=False).replace("/", "\\/"),
    "sorted keys": lambda value: json.dumps(value, ensure_ascii=False, sort_keys=True),
}


@pytest.mark.parametrize("examples", [5, pytest.param(50, marks=pytest.mark.extended)])
@pytest.mark.parametrize("event_type", sorted(CLIENT))
def test_frames_of_different_json_writers_decode_alike(event_type: str, examples: int) -> None:
    @settings(max_examples=examples)
    @given(events_of(CLIENT[event_type]))
    def check(event: client.ClientEvent) -> None:
        original = encode_event("e-1", "s-1", event)
        expected = decode_event(original)
        assert expected.event == event and type(expected.event) is CLIENT[event_type]
        assert (expected.id, expected.type, expected.session_id) == ("e-1", event_type, "s-1")
        for writer, write in WRITERS.items():
            inbound = decode_event(write(json.loads(original)).encode(), 1_000_000)
            assert inbound.event == expected.event, writer
            assert (inbound.id, inbound.type) == (expected.id, expected.type), writer

    check()


@pytest.mark.parametrize("unit", ["5e-324", '{"k":1.5}', "7"])
def test_the_values_of_a_large_result_are_bounded(unit: str) -> None:
    units = ",".join([unit] * (1_000_000 // (len(unit) + 1)))
    empty = frame(type="tool.result", payload={"callId": "c", "result": "RESULT", "error": None})
    large = empty.replace(b'"RESULT"', f"[{units}]".encode())
    read = decode_event(large).event
    assert read == client.UnreadableResult("c", why="it has more than 5,000 values")
    assert least_cpu_s(lambda: decode_event(large), 0.05) < 0.05  # 0.01; built it takes 0.1


# -- results that cannot be read


def reported(result: bytes, **payload: Any) -> bytes:
    fields = {"callId": "call_1", "result": "RESULT", "error": None, **payload}
    return frame(type="tool.result", payload=fields).replace(b'"RESULT"', result)


UNREADABLE = {
    "NaN": b'{"x":NaN}',
    "Infinity": b"[-Infinity]",
    "1e999": b"1e999",
    "half a surrogate": b'"\\ud83d"',
    "invalid UTF-8": b'"\xff"',
    "6,000 values": b"[" + b"0," * 5_999 + b"0]",
    "many levels": b"[" * 400_000 + b"]" * 400_000,
    "a key twice": b'{"a":1,"a":2}',
    "no JSON": b"{'a': undefined}",
    "an unterminated list": b"[1,",
}


@pytest.mark.parametrize("result", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("order", [("callId", "result"), ("result", "callId")])
def test_a_report_is_taken_although_its_result_cannot_be_read(result: bytes, order: tuple[str, str]) -> None:
    payload = {name: {"callId": "call_1", "result": "RESULT"}[name] for name in order}
    data = frame(type="tool.result", payload=payload).replace(b'"RESULT"', result)
    if result == UNREADABLE["an unterminated list"] and order[1] == "callId":
        assert str(refusal(data)) == "invalid_json"  # what follows is within the list
        return
    inbound = decode_event(data)
    assert (inbound.id, inbound.session_id, inbound.type) == ("e-1", "s-1", "tool.result")
    assert isinstance(inbound.event, client.UnreadableResult)
    assert (inbound.event.call_id, inbound.event.result, inbound.event.error) == ("call_1", None, None)
    assert least_cpu_s(lambda: decode_event(data), 0.1) < 0.1


@pytest.mark.parametrize("number", [2**53, -(2**63), 2**64, 10**30])
def test_integers_of_a_result_are_kept(number: int) -> None:
    read = decode_event(reported(str(number).encode())).event
    assert read == client.ToolResultEvent("call_1", str(number))
    nested = decode_event(reported(b'{"id":%d}' % number)).event
    assert nested == client.ToolResultEvent("call_1", f'{{"id":{number}}}')


def test_an_error_wins_over_a_result_that_cannot_be_read() -> None:
    worded = reported(b"NaN", error="no disk")
    assert decode_event(worded).event == client.ToolResultEvent("call_1", None, "no disk")
    half = reported(b"NaN", error="ERROR").replace(b"ERROR", b"\\ud83d")
    assert decode_event(half).event == client.ToolResultEvent("call_1", None, "\ufffd")
    coded = reported(b"NaN", error="ERROR").replace(b'"ERROR"', b'{"code":5}')
    assert decode_event(coded).event == client.ToolResultEvent("call_1", None, "\ufffd")


def test_a_cancelled_call_keeps_its_effect_without_its_result() -> None:
    payload = {"callId": "call_1", "effect": "partial", "result": "RESULT"}
    data = frame(type="tool.cancelled", payload=payload).replace(b'"RESULT"', b"NaN")
    assert decode_event(data).event == client.ToolCancelled("call_1", "partial")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (reported(b"NaN", callId=""), "invalid_json"),
        (reported(b"NaN", callId=7), "invalid_json"),
        (reported(b"NaN").replace(b"call_1", b"\\ud83d"), "invalid_json"),
        (reported(b'NaN,"callId":"call_2"'), "invalid_json"),
        (reported(b'NaN},"payload":{"callId":"call_2"'), "invalid_json"),
        (reported(b"NaN").replace(b"s-1", b"a b"), "invalid_json"),
        (reported(b"[" + b'{"a":[' * MAX_PARTS + b"NaN]"), "too_deep"),
        (reported(b"NaN").replace(b"tool.result", b"user.audio.transcript.final"), "invalid_json"),
    ],
)
def test_a_report_without_a_clear_call_is_refused(data: bytes, message: str) -> None:
    assert str(refusal(data, len(data))) == message


@pytest.mark.parametrize("half", [b"\\ud83d", b"\xff"])
def test_a_session_starts_although_a_reported_result_has_half_a_character(half: bytes) -> None:
    done = [{"callId": "call_1", "result": "a HALF \\ud83d b \U0001f600"}]
    data = frame(type="session.start", payload={"resume": {"done": done}}).replace(b"HALF", half)
    read = decode_event(data).event
    assert isinstance(read, client.SessionStart) and read.resume is not None
    assert read.resume.done[0].result == "a \ufffd \\ud83d b \U0001f600"
    assert str(refusal(data.replace(b"session.start", b"session.update"))) in ("invalid_json", "invalid_utf8")
    assert str(refusal(data[:-2])) == "invalid_json"


@pytest.mark.parametrize(
    "piece", [b'\\"', b'"', b"[{", b'{"a":', b'"a",', b"NaN,", b"\\", b"[", b'"payload":{"error":']
)
def test_a_hostile_report_takes_a_bounded_time(piece: bytes) -> None:
    for begin in (b"", b'"', b"NaN"):
        data = frame(type="tool.result", payload={"result": "RESULT"})[:-3].replace(b'"RESULT', begin)
        data += piece * ((1_000_000 - len(data)) // len(piece))

        def read(data: bytes = data) -> None:
            with pytest.raises(InvalidFrame):
                decode_event(data)

        assert least_cpu_s(read, 0.3) < 0.3  # 0.03; if quadratic, minutes


LISTED = [{"mimeType": "image/png", "data": ""}, None, 7] * 100
LISTS: dict[str, tuple[str, dict[str, Any]]] = {
    "words": ("user.audio.transcript.final", {"text": "hi", "images": LISTED}),
    "a result": ("tool.result", {"callId": "call_1", "result": "done", "images": LISTED}),
    "a result of a resume": (
        "session.start",
        {"resume": {"done": [{"callId": "call_1", "result": "done", "images": LISTED}]}},
    ),
}


@pytest.mark.parametrize(("type_", "payload"), LISTS.values(), ids=LISTS)
def test_four_images_of_a_list_are_looked_at(type_: str, payload: dict[str, Any]) -> None:
    """The fourth is for the refusal of more than three."""
    read = decode_event(frame(type=type_, payload=payload), 1_048_576, takes_images=True).event
    if isinstance(read, client.SessionStart):
        assert read.resume is not None
        (read,) = read.resume.done
    assert isinstance(read, client.TranscriptFinal | client.ToolResultEvent)
    picture, none = client.WirePicture("image/png", ""), client.WirePicture("", "")
    assert read.images == [picture, none, none, picture]
