"""Pauses of a speech in time: what waits for them, and how long."""

from __future__ import annotations

from typing import Any

from conductor.events import client
from conductor.events.client import TranscriptPartial
from conductor.models.base import TextDelta
from tests.models import Script
from tests.session.helpers import App, Stage, later, make_services, open_session, steps

ONE: Script = [TextDelta("One.")]
CAPABILITIES = ("pause", "resume")


async def speaking(*replies: Script, **limits: Any) -> Stage:
    """Open a session whose app plays its first speech until the test ends it."""
    services = make_services(replies or [ONE], **limits)
    session = await open_session(services)
    app = App(lambda name, call_id: None if name == "tts.speak" else "{}")
    app.capabilities = CAPABILITIES
    await app.connect(session)
    app.say("count")
    await app.until("tts.speak")
    await steps(50)
    return Stage(session, app, services)


def pause(stage: Stage) -> None:
    stage.app.pause(spokenText="On")


async def test_a_speech_goes_on_two_seconds_after_its_pause() -> None:
    stage = await speaking()
    pause(stage)
    await later(1.9)
    assert stage.app.events("audio.output.resume") == []
    await later(0.2)
    assert len(stage.app.events("audio.output.resume")) == 1


async def test_a_speech_goes_on_two_seconds_after_the_last_partial() -> None:
    stage = await speaking()
    pause(stage)
    for _ in range(5):
        await later(1.5)
        stage.app.line.say(TranscriptPartial("I would"))
    await later(1.9)
    assert stage.app.events("audio.output.resume") == []
    await later(0.2)
    assert len(stage.app.events("audio.output.resume")) == 1


async def test_the_time_limit_of_a_speech_stands_while_it_is_paused() -> None:
    stage = await speaking(speech_timeout=10.0, speech_seconds_per_char=0.0)
    await later(8)
    pause(stage)
    for _ in range(5):
        await later(1.5)
        stage.app.line.say(TranscriptPartial("I would"))
    await later(2.1)
    assert len(stage.app.events("audio.output.resume")) == 1
    assert stage.session.outbox.speaking is not None, "it may go on for as long as before"
    await later(9.5)
    assert stage.session.outbox.speaking is not None
    await later(1)
    assert stage.session.outbox.speaking is None


async def test_no_news_are_told_in_a_pause() -> None:
    stage = await speaking(ONE, [TextDelta("The agent has ended.")], speech_timeout=1.0)
    pause(stage)
    stage.app.agent_done("a-1")
    for _ in range(3):
        await later(1.9)
        stage.app.line.say(TranscriptPartial("I would"))
    assert len(stage.provider.requests) == 1
    await later(20)
    assert len(stage.provider.requests) == 2


async def test_a_new_connection_has_two_seconds_for_the_words_that_were_lost() -> None:
    stage = await speaking()
    pause(stage)
    await steps(50)
    stage.app.line.cut()
    await later(30)
    assert stage.session.state.pause is not None, "there is no client to tell"
    await stage.app.connect(stage.session, answer=([], []))
    await later(1.9)
    assert stage.app.events("audio.output.resume") == []
    await later(0.2)
    assert len(stage.app.events("audio.output.resume")) == 1


async def test_words_that_are_refused_leave_the_speech_paused_for_two_seconds() -> None:
    stage = await speaking(turns_per_minute=1.0)
    pause(stage)
    stage.app.say("and what else?")
    await later(1.9)
    assert stage.app.error_codes() == ["rate_limited"]
    assert stage.app.events("audio.output.resume") == []
    await later(0.2)
    assert len(stage.app.events("audio.output.resume")) == 1


async def test_the_end_of_a_speech_that_came_after_its_pause_changes_nothing() -> None:
    stage = await speaking(ONE, [TextDelta("Two.")])
    speech_id = stage.app.events("tts.speak")[0]["payload"]["callId"]
    pause(stage)
    stage.app.result(speech_id, "{}")
    await steps(50)
    stage.app.line.say(client.TranscriptFinal("what?"))
    await stage.app.until("tts.speak", since=len(stage.app.log))
    heard = [message for message in stage.session.state.log if "interrupted" in getattr(message, "text", "")]
    assert len(heard) == 1
