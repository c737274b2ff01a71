"""From events to frames and records: which must arrive, and for how long they are waited for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conductor.conversation.commit import CallLimits, EncodedEvent, EventEncoder
from conductor.conversation.outbox import Outbox
from conductor.events.server import (
    ApprovalRequest,
    ApprovalResolved,
    ErrorEvent,
    ServerEvent,
    SpeechFinal,
    SpeechPartial,
    ToolActivity,
    ToolCallEvent,
    ToolCancel,
    ToolLate,
    append_message,
    set_state,
    speak,
)
from conductor.settings import Limits
from tests.conversation.test_outbox import Wire

TERMS = {"device.look": CallLimits(7.0, "read"), "device.do": CallLimits(30.0, "write")}


def make_delivery() -> EventEncoder:
    return EventEncoder("s-1", Outbox(Limits(), lambda record: None), Limits(), TERMS.__getitem__)


def ready(event: ServerEvent) -> EncodedEvent:
    (outgoing,) = make_delivery().make_ready([event], "t1")
    return outgoing


@pytest.mark.parametrize(
    ("event", "kind", "limit"),
    [
        (set_state("c1", "idle"), "state", Limits().ui_timeout),
        (append_message("c1", "user", "hi"), "message", Limits().ui_timeout),
        (SpeechFinal("hi"), "final", Limits().ui_timeout),
        (ToolCallEvent("c1", "device.look", "{}"), "call", 7.0),
        (ToolCallEvent("c1", "device.do", "{}"), "call", 30.0),
    ],
)
def test_what_must_arrive_has_a_record_with_the_frames_own_id(
    event: ServerEvent, kind: str, limit: float
) -> None:
    outgoing = ready(event)
    record = outgoing.record
    assert record is not None
    assert outgoing.frame is None
    assert (record.kind, record.turn_id, outgoing.limit) == (kind, "t1", limit)
    sent: dict[str, Any] = json.loads(bytes(record.frame))
    assert sent["id"] == record.event_id
    assert sent["sessionId"] == "s-1"
    assert sent["payload"].get("callId", "") == record.call_id
    assert set(sent) == {"id", "type", "timestamp", "sessionId", "protocolVersion", "payload"}


def test_a_question_must_arrive_and_is_known_by_its_own_id() -> None:
    request = ApprovalRequest(
        "appr1", "b1", "c1", "device.do", {}, "0" * 64, "medium", (), "Do it?", ("once",), "2027-01-15"
    )
    record = ready(request).record
    assert record is not None
    assert (record.kind, record.call_id, record.effect) == ("approval", "appr1", "")
    assert json.loads(bytes(record.frame))["payload"]["callId"] == "c1"


def test_only_calls_of_tools_have_an_effect() -> None:
    effects = [ready(event).record for event in (ToolCallEvent("c1", "device.do", "{}"), speak("c2", "hi"))]
    assert [record.effect for record in effects if record is not None] == ["write", ""]


@pytest.mark.parametrize(
    "event",
    [
        SpeechPartial("hi"),
        ErrorEvent("internal_error", "Sorry."),
        ApprovalResolved("appr1", "expired"),
        ToolCancel("c1", "barge_in"),
        ToolLate("c1", "context"),
        ToolActivity("c1", "device.do", "device", "started", display="device.do …"),
    ],
)
def test_what_need_not_arrive_has_a_frame_only(event: ServerEvent) -> None:
    outgoing = ready(event)
    assert outgoing.record is None
    assert outgoing.frame is not None
    assert outgoing.frame.partial == isinstance(event, SpeechPartial)


def test_a_longer_speech_may_take_longer() -> None:
    short, long = ready(speak("c1", "x" * 10)), ready(speak("c2", "x" * 1_000))
    assert long.limit - short.limit == pytest.approx(990 * Limits().speech_seconds_per_char)
    assert short.limit > Limits().speech_timeout


def test_a_limit_from_the_store_is_no_shorter_than_the_first_one() -> None:
    encoder = make_delivery()
    for event in (speak("c1", "x" * 400), set_state("c2", "idle")):
        (outgoing,) = encoder.make_ready([event], "t1")
        assert outgoing.record is not None
        assert encoder.limit(outgoing.record) >= outgoing.limit


async def test_every_event_has_an_id_of_its_own_and_leaves_in_order() -> None:
    encoder, wire = make_delivery(), Wire()
    encoder.outbox.attach(wire)
    events: list[ServerEvent] = [
        set_state("c1", "thinking"),
        SpeechPartial("a"),
        SpeechFinal("a"),
        set_state("c2", "idle"),
    ]
    encoder.send(encoder.make_ready(events, "t1"))
    kinds = [event["type"] for event in wire.events()]
    assert kinds == ["tool.call", "assistant.speech.partial", "assistant.speech.final", "tool.call"]
    assert len(set(wire.ids())) == 4
    encoder.outbox.close()
