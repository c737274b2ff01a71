"""The replay to a client that reconnects, and its order."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
import pytest

from conductor.events import client
from conductor.messages import ToolResult
from conductor.models.base import TextDelta
from conductor.session.inbound import handle, learn
from conductor.session.session import Session
from conductor.stores.memory import MemoryStore
from tests.models import Script
from tests.session.helpers import (
    SPOKEN,
    App,
    SlowStore,
    Stage,
    call,
    die,
    inbound,
    later,
    make_services,
    open_session,
    open_stage,
)
from tests.shapes import PLAIN_TURN, Event, shape_of


def deaf_to_speech(name: str, call_id: str) -> str | None:
    """Acknowledge all calls except speeches."""
    return None if name == "tts.speak" else SPOKEN


@pytest.mark.parametrize("moves", [False, True])
async def test_a_relaunched_app_gets_the_speaking_state_before_the_speech(moves: bool) -> None:
    stage = await open_stage(
        make_services([[TextDelta("Sure.")]], store=SlowStore()), deaf_to_speech, say="hi"
    )
    await stage.settled()
    ids = [e["id"] for e in stage.app.log if shape_of(e) in ("state speaking", "tts.speak")]
    stage.app.line.cut()
    if moves:  # to another process
        stage.session = await open_session(stage.services)
    since = len(stage.app.log)
    stage.app.relaunch()
    stage.app.reply = lambda name, call_id: SPOKEN
    await stage.app.connect(stage.session)
    await stage.quiet()
    assert stage.app.shapes(since)[-3:] == ["state speaking", "tts.speak", "state idle"]
    assert [e["id"] for e in stage.app.log][-3:-1] == ids


@pytest.mark.parametrize("moves", [False, True])
async def test_a_speech_whose_answer_was_lost_does_not_hold_up_an_idle_session(moves: bool) -> None:
    script = [[TextDelta("One.")], [TextDelta("Two.")]]
    stage = await open_stage(make_services(script, store=SlowStore()), deaf_to_speech, say="hi")
    await stage.settled()
    stage.app.reply = lambda name, call_id: None
    stage.app.say("and?")
    await stage.settled()
    stage.app.line.cut()  # all its answers are lost, and an app does not answer an event again
    if moves:  # to another process
        stage.session = await open_session(stage.services)
    since, at = len(stage.app.log), asyncio.get_running_loop().time()
    stage.app.reply = lambda name, call_id: SPOKEN
    await stage.app.connect(stage.session)
    await stage.app.until("tts.speak", since=since)
    await stage.app.until("state idle", since=since)
    assert asyncio.get_running_loop().time() - at < 1


async def test_a_restored_speech_has_the_time_limit_of_its_text() -> None:
    services = make_services([[TextDelta("One.")]], store=SlowStore())
    stage = await open_stage(services, deaf_to_speech, say="hi")
    await stage.settled()
    moved = await open_session(services)
    at = asyncio.get_running_loop().time()
    stage.app.relaunch()
    stage.app.reply = lambda name, call_id: None
    await stage.app.connect(moved)
    await moved.settled()
    limits = services.limits
    speech = limits.speech_timeout + limits.speech_seconds_per_char * len('{"text":"One."}')
    assert asyncio.get_running_loop().time() - at < speech + 4 * limits.ui_timeout + 1


@pytest.mark.parametrize("store", [MemoryStore, SlowStore])
async def test_the_idle_of_a_resume_precedes_the_turn_of_a_resent_transcript(
    store: type[MemoryStore] | type[SlowStore],
) -> None:
    stage = await open_stage(make_services([[TextDelta("Sure.")]], store=store()))
    stage.app.line.cut()
    since = len(stage.app.log)
    line = stage.app.open_line(stage.session)
    await stage.session.clients.start(client.SessionStart(), line, resumed=True)
    await handle(stage.session, inbound(client.TranscriptFinal("hi")), line)
    await stage.quiet()
    assert stage.app.shapes(since) == ["session.started", "state idle", *PLAIN_TURN]


async def test_the_idle_of_a_resume_precedes_notices() -> None:
    stage = await open_stage(make_services([[TextDelta("It is done.")]]))
    stage.app.line.say(client.TranscriptPartial("he"))
    await later(10)
    stage.app.line.cut()
    await handle(
        stage.session, inbound(client.AgentCompleted(agent_id="a-1", status="FINISHED")), stage.app.line
    )
    since = len(stage.app.log)
    await stage.app.connect(stage.session)
    await stage.quiet()
    assert stage.app.shapes(since) == ["session.started", "state idle", *PLAIN_TURN[2:]]


# -- the capability `resume`


async def test_results_of_ui_calls_are_acknowledged_together() -> None:
    stage = await open_stage(make_services([[TextDelta("Sure.")]] * 2))
    stage.app.capabilities = ["resume"]
    stage.app.line.cut()
    line = await stage.app.connect(stage.session)
    await later(1)
    for number in (1, 2):
        stage.app.say("hi", id=f"words-{number}")
        await stage.quiet()
        await later(1)
    acks = [e["payload"]["eventIds"] for e in stage.app.log if e["type"] == "event.ack"]
    assert [len(ids) for ids in acks] == [1, 1, 6, 1, 6]  # idle, then twice: the words, their UI calls
    assert [ids[0] for ids in acks[1::2]] == ["words-1", "words-2"]
    assert set(line.sent_ids) == {event_id for ids in acks for event_id in ids}


class Witness(App):
    """An app with speeches of some ``seconds``; ``early`` are results that were acknowledged unrecorded."""

    def __init__(self, store: SlowStore, seconds: float) -> None:
        super().__init__(self.play, store)
        self.seconds = seconds
        self.early: list[Event] = []

    async def play(self, name: str, call_id: str) -> str:
        if name == "tts.speak" and self.seconds:
            await later(self.seconds)
        return SPOKEN

    def receive(self, data: bytes) -> None:
        event, store = msgspec.json.decode(data), self.store
        if event["type"] == "event.ack" and store is not None:
            kept = (self.outbox.get(event_id, {}) for event_id in event["payload"]["eventIds"])
            owed = {outbound.call_id for outbound in store.stored().outbound.values()}
            self.early += [sent for sent in kept if sent and sent["payload"].get("callId") in owed]
        super().receive(data)


async def opened(app: App, session: Session, *capabilities: str) -> None:
    app.capabilities = capabilities
    app.start_fields["capabilities"] = capabilities
    await app.connect(session)


@pytest.mark.parametrize("seconds", [0.0, 2.0], ids=["at once", "played"])
@pytest.mark.parametrize("extra", [(), ("segments",), ("pause",)])
async def test_results_of_ui_calls_are_acknowledged_once_they_are_recorded(
    extra: tuple[str, ...], seconds: float
) -> None:
    store = SlowStore()
    services = make_services([[TextDelta("One two three. Four five six. Seven.")]] * 2, store=store)
    session, app = await open_session(services), Witness(store, seconds)
    await opened(app, session, "resume", *extra)
    stage = Stage(session, app, services)
    await stage.ask("hi")
    await later(1)
    commits = len(store.commits)
    await stage.ask("and?")
    await later(1)
    assert app.early == [] and app.outbox == {}
    # The words, the reply (and its first sentence), and one for the results that came after it.
    assert len(store.commits) - commits == (4 if "segments" in extra else 3)


@pytest.mark.parametrize("extra", ["segments", "pause"])
async def test_a_speech_that_was_over_when_its_process_died_holds_up_no_other_one(extra: str) -> None:
    store = SlowStore()
    services = make_services([[TextDelta("One.")], [TextDelta("Two.")], [TextDelta("Three.")]], store=store)
    session, app = await open_session(services), App(deaf_to_speech, store)
    await opened(app, session, "resume", extra)
    for words, text in ("one", "One."), ("two", "Two."):
        app.say(words)
        await app.until("assistant.speech.final", text=text)
        await later(1)
    first = (await app.until("tts.speak"))["payload"]["callId"]
    app.result(first, SPOKEN)
    await later(1)  # the second speech is being played
    die(session, app)
    session, app.reply = await open_session(services), lambda name, call_id: SPOKEN
    resume = client.Resume(last_event_id=app.log[-1]["id"])
    answer = await learn(session, client.SessionStart(capabilities=[*app.capabilities], resume=resume))
    await app.connect(session, answer=answer)
    second = app.events("tts.speak")[1]["payload"]["callId"]
    app.result(second, SPOKEN)
    app.say("three")
    await later(1)
    assert app.speeches() == ["One.", "Two.", "Three."]


async def test_a_resume_with_many_old_results_is_bounded() -> None:
    scripts: list[Script] = [[TextDelta("I look."), call("device.look")], [TextDelta("There it is.")]]
    stage = await open_stage(
        make_services(scripts), lambda name, _: None if name == "device.look" else SPOKEN, say="look"
    )
    look = (await stage.app.until("device.look"))["payload"]["callId"]
    stage.app.line.cut()
    ui_results = [client.ToolResultEvent(f"shown-{number}", SPOKEN) for number in range(600)]
    resume = client.Resume(done=[*ui_results, client.ToolResultEvent(look, "a lamp")])
    answer = await learn(stage.session, client.SessionStart(capabilities=["resume"], resume=resume))
    assert answer is not None and answer[0] == [] and look not in answer[1]
    assert len(answer[1]) == client.MAX_RESUMED
    await stage.app.connect(stage.session)
    await stage.quiet()
    assert stage.app.finals()[-1] == "There it is."


@pytest.mark.parametrize("payload", [{"result": "a lamp"}, {"result": {"on": True}}, {"error": "it is dark"}])
async def test_a_result_in_a_resume_is_the_one_that_an_event_would_give(payload: dict[str, Any]) -> None:
    given = []
    for resumes in (False, True):
        scripts: list[Script] = [[call("device.look")], [TextDelta("There it is.")]]
        stage = await open_stage(
            make_services(scripts), lambda name, _: None if name == "device.look" else SPOKEN, say="look"
        )
        look = (await stage.app.until("device.look"))["payload"]["callId"]
        result = {"callId": look, **payload}
        if resumes:
            stage.app.line.cut()
            start = {"capabilities": ["resume"], "resume": {"done": [result]}}
            answer = await learn(stage.session, msgspec.convert(start, client.SessionStart))
            assert answer == ([], [])
            await stage.app.connect(stage.session)
        else:
            stage.app.send("tool.result", result)
        await stage.quiet()
        (logged,) = (m for m in stage.provider.requests[1].messages if isinstance(m, ToolResult))
        given.append(re.sub(r'"timestamp":\d+', "", logged.content))
    assert given[0] == given[1]


async def test_a_resume_neither_requests_nor_drops_ui_calls() -> None:
    stage = await open_stage(make_services([[TextDelta("Sure.")]]), deaf_to_speech, say="hi")
    speech = (await stage.app.until("tts.speak"))["payload"]["callId"]
    stage.app.line.cut()
    resume = client.Resume(done=[client.ToolResultEvent(speech)], pending=[speech])
    answer = await learn(stage.session, client.SessionStart(capabilities=["resume"], resume=resume))
    assert answer == ([], [])
