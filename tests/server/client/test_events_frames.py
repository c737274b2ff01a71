"""Decoding frames: known, unknown and invalid events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import pytest

from conductor.client.connection import UnknownEvent, decode_frame, show_url
from conductor.events.envelope import encode_event
from conductor.events.server import ErrorEvent, ServerEvent, SessionPing, SpeechPartial


def frame(kind: str, payload: Any) -> bytes:
    return json.dumps({"id": "e", "type": kind, "payload": payload}).encode()


@pytest.mark.parametrize("struct", get_args(ServerEvent), ids=lambda struct: str(struct.TYPE))
def test_each_server_event_is_decoded_as_its_struct(struct: Any) -> None:
    required = {
        field.encode_name: _sample(field.type) for field in msgspec.structs.fields(struct) if field.required
    }
    event = msgspec.convert(required, struct)
    decoded = decode_frame(encode_event("e", "s", event))
    assert decoded == ("e", event)
    assert decoded is not None


def _sample(kind: Any) -> Any:
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    empty: Any = {} if get_origin(kind) is Mapping else []
    return {str: "x", bool: True, int: 1, float: 1.5}.get(kind, empty)


def test_an_unknown_error_code_is_accepted() -> None:
    payload = {"code": "quota_exhausted", "message": "No.", "eventId": "e1", "callId": "c1"}
    decoded = decode_frame(frame("error", payload))
    assert decoded is not None
    event = decoded[1]
    assert isinstance(event, ErrorEvent)
    assert (event.code, event.message, event.event_id, event.call_id) == (
        "quota_exhausted",
        "No.",
        "e1",
        "c1",
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"id":1,"type":"x"}',
        b"[" * 100_000,
        b'{"id":"e","type":"x","payload":[]}',
    ],
)
def test_an_invalid_frame_has_no_event(data: bytes) -> None:
    assert decode_frame(data) is None


def test_a_payload_may_be_missing_or_have_unknown_fields() -> None:
    assert decode_frame(b'{"id":"e","type":"session.ping"}') == ("e", SessionPing())
    assert decode_frame(frame("assistant.speech.partial", {"text": "a", "mood": "s"})) == (
        "e",
        SpeechPartial("a"),
    )


def test_an_unknown_type_keeps_its_payload() -> None:
    assert decode_frame(frame("turn.ended", {"n": 1})) == ("e", UnknownEvent("turn.ended", {"n": 1}))


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("ws://user:pass@host:1/ws?token=t#f", "ws://host:1/ws"),
        ("nonsense?token=t", "nonsense"),
        ("ws://[bad?token=t", "ws://[bad"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, text: str) -> None:
    assert show_url(url) == text
