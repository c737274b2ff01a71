"""Figures of turns: counted by cause and end, with the times that were reached."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import CollectorRegistry, generate_latest

from conductor.models.base import TextDelta
from conductor.observers.turns import SessionMetrics, TurnObservers
from tests.session.helpers import make_services, open_stage, run


def test_turns_are_counted_as_they_end() -> None:
    run(count_turns())


async def count_turns() -> None:
    registry = CollectorRegistry()
    services = make_services([[TextDelta("Hello.")], [TextDelta("One "), 5.0, TextDelta("two.")]])
    stage = await open_stage(replace(services, observers=TurnObservers(SessionMetrics(registry))))
    stage.app.say("hello")
    await stage.quiet()
    stage.app.say("count")
    await stage.app.until("assistant.speech.partial", since=len(stage.app.log))
    stage.app.interrupt()
    await stage.quiet()
    text = generate_latest(registry).decode()
    assert 'conductor_turns_total{cause="transcript",end="answered"} 1.0' in text
    assert 'conductor_turns_total{cause="transcript",end="interrupted"} 1.0' in text
    assert "conductor_turn_first_token_seconds_count 2.0" in text
    assert "conductor_turn_first_partial_seconds_count 2.0" in text
    assert "conductor_turn_first_speech_seconds_count 1.0" in text
    assert 'conductor_session_starts_total{result="new"} 1.0' in text
    await stage.app.connect(stage.session)
    await stage.quiet()
    assert 'conductor_session_starts_total{result="resumed"} 1.0' in generate_latest(registry).decode()
