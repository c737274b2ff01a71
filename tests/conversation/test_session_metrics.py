"""Figures of turns: counted by cause and end, with the times that were reached."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import CollectorRegistry, generate_latest

from conductor.conversation.session_metrics import SessionMetrics
from conductor.models.base import TextDelta
from tests.conversation.helpers import make_services, stage


async def test_turns_are_counted_as_they_end() -> None:
    registry = CollectorRegistry()
    services = make_services([[TextDelta("Hello.")], [TextDelta("One "), 5.0, TextDelta("two.")]])
    one = await stage(replace(services, session_metrics=SessionMetrics(registry)))
    one.app.say("hello")
    await one.quiet()
    one.app.say("count")
    await one.app.until("assistant.speech.partial", since=len(one.app.log))
    one.app.interrupt()
    await one.quiet()
    found = generate_latest(registry).decode()
    assert 'conductor_turns_total{cause="transcript",end="answered"} 1.0' in found
    assert 'conductor_turns_total{cause="transcript",end="interrupted"} 1.0' in found
    assert "conductor_turn_first_token_seconds_count 2.0" in found
    assert "conductor_turn_first_partial_seconds_count 2.0" in found
    assert "conductor_turn_first_speech_seconds_count 1.0" in found
    assert 'conductor_session_starts_total{result="new"} 1.0' in found
    one.app.connect(one.session)
    await one.quiet()
    assert 'conductor_session_starts_total{result="resumed"} 1.0' in generate_latest(registry).decode()
