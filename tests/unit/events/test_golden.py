"""The exact bytes of each event of the server, apart from id and timestamp.

A difference from a file in ``golden/`` is a change of the protocol, which may break the shipped client.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conductor.events.envelope import Payload, encode_event
from conductor.events.server import (
    ApprovalRequest,
    ApprovalResolved,
    Diagnostic,
    ErrorEvent,
    EventAck,
    ListedTool,
    OutputResume,
    RejectedTool,
    Segment,
    SessionGoaway,
    SessionPing,
    SessionStarted,
    SpeechFinal,
    SpeechPartial,
    SttHints,
    ToolActivity,
    ToolCallEvent,
    ToolCancel,
    ToolLate,
    ToolsChanged,
    ToolsListed,
    TurnEndedEvent,
    TurnHint,
    TurnMetrics,
    append_message,
    set_state,
    speak,
)
from tests.unit.events.events import SERVER

GOLDEN = Path(__file__).with_name("golden")
ID = "evt_00000000000000000000000000000001"
STAMP = "2026-03-01T12:00:00.000Z"
TEXT = 'He said "hi" / \\ \n\t ünïcode 日本 🎉 \u2028\u0007'

EVENTS: dict[str, Payload] = {
    "session.started": SessionStarted(session_id="s-1", resumed=False),
    "session.started.resumed": SessionStarted(session_id="s-1", resumed=True),
    "session.started.tools": SessionStarted(
        session_id="s-1",
        resumed=False,
        capabilities=["tools"],
        accepted_tools=["add_task"],
        rejected_tools=[RejectedTool("calculator", "the name is taken")],
    ),
    "session.started.nothing-accepted": SessionStarted(
        session_id="s-1", resumed=False, capabilities=[], accepted_tools=[], rejected_tools=[]
    ),
    "session.started.new": SessionStarted(
        session_id="s-1", resumed=False, capabilities=["resume"], reason="new"
    ),
    "session.started.not-kept": SessionStarted(
        session_id="s-1",
        resumed=False,
        capabilities=["resume"],
        reason="not_kept",
        resend=[],
        drop=["call_1", "call_2"],
    ),
    "session.started.resume": SessionStarted(
        session_id="s-1",
        resumed=True,
        capabilities=["resume", "tools"],
        accepted_tools=["add_task"],
        rejected_tools=[],
        resend=["call_1"],
        drop=[],
    ),
    "event.ack": EventAck(["cevt_3", "ios-42"]),
    "assistant.speech.partial": SpeechPartial(TEXT),
    "assistant.speech.partial.segments": SpeechPartial("Hello", "speech_1"),
    "assistant.speech.final": SpeechFinal(TEXT),
    "tool.call": ToolCallEvent("call_1", "agent.status", '{"id":"a-77"}'),
    "tool.call.lease": ToolCallEvent("call_1", "agent.status", '{"id":"a-77"}', 30_000),
    "tool.call.set-state": set_state("call_1", "thinking"),
    "tool.call.append-user": append_message("call_1", "user", TEXT),
    "tool.call.append-assistant": append_message("call_1", "assistant", "Hello."),
    "tool.call.speak": speak("call_1", TEXT),
    "tool.call.speak.segment": speak("call_1", "Hello.", Segment("speech_1", 0, last=False)),
    "tool.call.append-segments": append_message("call_1", "assistant", "Hello.", "speech_1"),
    "error": ErrorEvent(code="internal_error", message="The server made a mistake."),
    "error.all": ErrorEvent(
        code="rate_limited", message="Too many.", event_id="e-1", call_id="call_1", retry_after_ms=1500
    ),
    "tools.changed": ToolsChanged(["add_task"], [RejectedTool("x y", "not a name")]),
    "tools.listed": ToolsListed(
        tools=[
            ListedTool(
                name="calculator",
                title="Calculator",
                source="builtin",
                risk="safe",
                decision="allow",
                reason="It is safe.",
                input_schema={"type": "object"},
            ),
            ListedTool(
                name="lamp.switch",
                title="lamp.switch",
                source="device",
                risk="medium",
                decision="ask",
                reason="It changes something.",
                input_schema={},
            ),
        ],
        model="home",
        prompt_name="voice",
        prompt="You talk with a person.",
        models=["home", "cloud"],
    ),
    "tool.cancel": ToolCancel("call_1", "barge_in"),
    "tool.late.context": ToolLate("call_1", "context"),
    "tool.late.turn": ToolLate("call_1", "turn"),
    "tool.activity.started": ToolActivity(
        call_id="call_1", name="files.read", source="mcp:files", status="started", display="reading"
    ),
    "tool.activity.finished": ToolActivity(
        call_id="call_1",
        name="calculator",
        source="builtin",
        status="finished",
        error_type="none",
        execution_time_ms=2,
        data_size_bytes=21,
        display="calculator: done, 21 bytes, 2 ms",
    ),
    "approval.request": ApprovalRequest(
        approval_id="appr_1",
        batch_id="batch_1",
        call_id="call_1",
        name="notes.write",
        arguments={"text": TEXT, "lines": [1, 2.5, True, None], "more": {"a": {}}},
        arguments_digest="0" * 64,
        risk="high",
        reasons=("It cannot be undone.",),
        prompt="May I write notes?",
        scopes=("once", "session"),
        expires_at="2026-03-01T12:10:00.000Z",
    ),
    "approval.request.bare": ApprovalRequest(
        approval_id="appr_1",
        batch_id="batch_1",
        call_id="call_1",
        name="notes.list",
        arguments={},
        arguments_digest="0" * 64,
        risk="medium",
        reasons=[],
        prompt="",
        scopes=["once"],
        expires_at=STAMP,
    ),
    "approval.resolved": ApprovalResolved("appr_1", "allowed"),
    "approval.resolved.refused": ApprovalResolved("appr_1", "refused", "The arguments have changed."),
    "diagnostic": Diagnostic("warning", "unknown_event", "The type 'user.audo' is not known.", "e-1"),
    "diagnostic.start": Diagnostic("info", "unknown_capability", "This server has no capability 'x'."),
    "audio.output.resume": OutputResume("speech_1"),
    "turn.ended": TurnEndedEvent("turn_1", "ios-42", "answered"),
    "stt.hints": SttHints(["yes", "no", "Café Zoë"]),
    "turn.hint": TurnHint(complete=False),
    "turn.metrics": TurnMetrics(
        turn_id="turn_1",
        tool_ms=48,
        input_tokens=812,
        output_tokens=34,
        interrupted=False,
        first_token_ms=310,
        cost=0.0003,
    ),
    "session.goaway": SessionGoaway(25_000, "service restart"),
    "session.ping": SessionPing(),
}


def frame_of(payload: Payload) -> bytes:
    """Write an event whose id and timestamp are known."""
    frame = encode_event(ID, "s-1", payload)
    stamp = json.loads(frame)["timestamp"]
    return frame.replace(stamp.encode(), STAMP.encode(), 1)


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_is_encoded_to_its_golden_bytes(name: str) -> None:
    assert frame_of(EVENTS[name]) + b"\n" == (GOLDEN / f"{name}.json").read_bytes()


def test_every_event_of_the_server_has_a_golden_file_and_no_file_is_left_over() -> None:
    assert {event.TYPE for event in EVENTS.values()} == set(SERVER)
    assert {path.stem for path in GOLDEN.iterdir()} == set(EVENTS)
