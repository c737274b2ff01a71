"""The state that the next process of a session restores: calls, notices, questions, times."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from conductor.conversation.services import Services
from conductor.conversation.session import Session
from conductor.events import client
from conductor.messages import Note, ToolResult, UserMessage
from conductor.models.base import ModelRequest, TextDelta
from conductor.stores.base import Claim, SessionKey
from tests.conversation.helpers import (
    SPOKEN,
    App,
    Disk,
    LocalTools,
    SlowStore,
    at_every_step,
    at_rest,
    call,
    die,
    later,
    make_services,
    open_session,
    steps,
    tool,
)
from tests.models import Script

Answer = Callable[[str, str], str | None | Awaitable[str | None]]


def silent_tools(name: str, call_id: str) -> str | None:
    """Acknowledge the interface; leave tools to the test."""
    return SPOKEN if name.startswith(("convo.", "tts.")) else None


class Life:
    """A session and its app, over the processes that the session lives in."""

    def __init__(self, services: Services, session: Session, app: App) -> None:
        self.services = services
        self.session = session
        self.app = app

    @classmethod
    async def begins(
        cls, services: Services, answer: Answer = silent_tools, capabilities: Sequence[str] = ()
    ) -> Life:
        store = services.store
        session = await open_session(services)
        app = App(answer, store if isinstance(store, SlowStore) else None)
        app.capabilities = capabilities
        app.connect(session)
        return cls(services, session, app)

    async def goes_on(self, services: Services | None = None, *, relaunched: bool = False) -> int:
        """Lose the process, and be taken over by the next one; gives where the app's log began then."""
        die(self.session, self.app)
        return await self.is_taken_over(services, relaunched=relaunched)

    async def is_taken_over(self, services: Services | None = None, *, relaunched: bool = False) -> int:
        self.services = services or self.services
        if relaunched:
            self.app.relaunch()
        since = len(self.app.log)
        self.session = await open_session(self.services)
        self.app.connect(self.session, resumed=True)
        return since

    def say(self, event: client.ClientEvent) -> None:
        assert self.app.line is not None
        self.app.line.say(event)

    def notes(self) -> list[str]:
        return [item.text for item in self.session.messages if isinstance(item, Note)]

    def outcomes(self) -> list[str]:
        results = [item for item in self.session.messages if isinstance(item, ToolResult)]
        return [json.loads(item.content)["error_type"] for item in results]

    def resolved(self) -> list[tuple[str, str]]:
        payloads = [e["payload"] for e in self.app.log if e["type"] == "approval.resolved"]
        return [(item["approvalId"], item["outcome"]) for item in payloads]

    async def card(self) -> dict[str, Any]:
        payload: dict[str, Any] = (await self.app.until("approval.request"))["payload"]
        return payload

    async def ends(self) -> None:
        await self.session.close()
        await self.app.close()


def one_call(name: str) -> Callable[[ModelRequest], Script]:
    """Make a model that calls a tool once for each transcript, then repeats the result."""

    def reply(request: ModelRequest) -> Script:
        last = request.messages[-1]
        if isinstance(last, UserMessage):
            return [call(name, '{"x":1}')]
        return [TextDelta("There is news." if isinstance(last, Note) else "Well.")]

    return reply


# -- calls


async def test_an_answered_call_is_not_sent_again() -> None:
    local = LocalTools()
    scripts: list[Script] = [[call("device.look"), call("local.wait")], [TextDelta("Well.")]]
    stage = await Life.begins(
        make_services(scripts, store=SlowStore(), toolsets=[local]), lambda name, call_id: SPOKEN
    )
    stage.app.say("go")
    await stage.app.until("device.look")
    await later(1)
    await stage.goes_on(relaunched=True)
    local.go.set()
    await at_rest(stage.session)
    assert stage.app.shapes().count("device.look") == 1
    assert stage.app.finals() == ["Well."]
    await stage.ends()


async def test_an_allowed_read_is_not_run_again() -> None:
    local = LocalTools()
    services = make_services([[call("local.ask")], [TextDelta("Well.")]], store=SlowStore())
    services = replace(services, toolsets=[Asking(local)])
    stage = await Life.begins(services, capabilities=["approval"])
    stage.app.say("go")
    card = await stage.card()
    stage.say(client.ApprovalResponse(card["approvalId"], card["argumentsDigest"], "allow"))
    await local.started.wait()
    await later(1)
    await stage.goes_on()
    local.go.set()
    await at_rest(stage.session)
    assert local.ran == []
    assert stage.app.finals() == ["Well."]
    await stage.ends()


class Asking(LocalTools):
    """`LocalTools`, and a tool that reads and needs an approval."""

    def __init__(self, local: LocalTools) -> None:
        super().__init__(local.go, local.started, local.ran)

    def specs(self) -> Sequence[Any]:
        return (tool("local.ask", source="builtin", effect="read", risk="high"),)


async def test_a_call_of_a_removed_tool_is_unknown() -> None:
    local = LocalTools()
    services = make_services(
        [[call("local.write")], [TextDelta("Well.")]], store=SlowStore(), toolsets=[local]
    )
    stage = await Life.begins(services)
    stage.app.say("go")
    await local.started.wait()
    await later(1)
    await stage.goes_on(replace(services, toolsets=()))
    await at_rest(stage.session)
    assert stage.outcomes() == ["unknown"]
    await stage.ends()


class Away(Disk):
    """A store whose sessions are taken over after some seconds, as far as their records tell."""

    away = 0.0

    async def claim(self, key: SessionKey) -> Claim:
        claim = await super().claim(key)
        for event_id, record in claim.state.outbound.items():
            created = record.created_ms - round(self.away * 1000)
            claim.state.outbound[event_id] = msgspec.structs.replace(record, created_ms=created)
        return claim


async def test_the_time_of_a_call_in_the_previous_process_counts() -> None:
    store = Away()
    stage = await Life.begins(make_services(one_call("device.look"), store=store, tool_timeout=30.0))
    stage.app.say("go")
    await stage.app.until("device.look")
    await steps(30)
    store.away = 25.0
    before = asyncio.get_running_loop().time()
    await stage.goes_on()
    await stage.app.until("assistant.speech.final")
    assert asyncio.get_running_loop().time() - before == pytest.approx(5.0, abs=0.5)
    await stage.ends()


# -- late results


@pytest.mark.parametrize("how", ["result", "cancelled"])
async def test_a_late_result_during_another_turn_reaches_the_next_process(how: str) -> None:
    hold = asyncio.Event()

    def reply(request: ModelRequest) -> Script:
        last = request.messages[-1]
        if isinstance(last, UserMessage) and last.text == "go":
            return [call("device.do")]
        return [hold, TextDelta("Well.")] if isinstance(last, UserMessage) else [TextDelta("No answer.")]

    stage = await Life.begins(
        make_services(reply, store=SlowStore(), tool_timeout=5.0), capabilities=["cancel"]
    )
    stage.app.say("go")
    call_id = (await stage.app.until("device.do"))["payload"]["callId"]
    await stage.app.until("assistant.speech.final")
    await at_rest(stage.session)
    stage.app.say("another thing")
    await later(1)
    if how == "result":
        stage.app.result(call_id, "heron")
    else:
        stage.say(client.ToolCancelled(call_id, "partial", "heron"))
    await steps(50)
    await stage.goes_on()
    hold.set()
    await at_rest(stage.session)
    stage.app.say("and?")
    await later(1)
    (note,) = stage.notes()
    assert "heron" in note
    await stage.ends()


async def test_delivered_notices_are_not_delivered_again() -> None:
    hold = asyncio.Event()

    def reply(request: ModelRequest) -> Script:
        if isinstance(request.messages[-1], UserMessage):
            return [call("device.do")]
        is_note = isinstance(request.messages[-1], Note)
        return [hold, TextDelta("A heron.")] if is_note else [TextDelta("No answer.")]

    stage = await Life.begins(make_services(reply, store=SlowStore(), tool_timeout=5.0))
    stage.app.say("go")
    call_id = (await stage.app.until("device.do"))["payload"]["callId"]
    await stage.app.until("assistant.speech.final")
    await at_rest(stage.session)
    stage.app.result(call_id, "heron")
    await later(5)
    await stage.goes_on()
    hold.set()
    await at_rest(stage.session)
    assert len(stage.notes()) == 1
    assert stage.app.finals() == ["No answer.", "A heron."]
    await stage.ends()


async def test_notices_that_waited_for_a_speech_start_a_turn() -> None:
    def deaf(name: str, call_id: str) -> str | None:
        return SPOKEN if name.startswith("convo.") else None

    stage = await Life.begins(make_services(one_call("device.do"), store=SlowStore(), tool_timeout=5.0), deaf)
    stage.app.say("go")
    call_id = (await stage.app.until("device.do"))["payload"]["callId"]
    speech = (await stage.app.until("tts.speak"))["payload"]["callId"]
    await later(1)
    stage.app.result(call_id, "heron")
    await later(1)
    assert stage.app.finals() == ["Well."]
    await stage.goes_on()
    await later(1)
    stage.app.result(speech, SPOKEN)
    await later(5)
    assert stage.app.finals() == ["Well.", "There is news."]
    await stage.ends()


JOB = ["async", "late"]


async def test_a_call_accepted_as_a_job_after_its_turn_stays_a_job() -> None:
    stage = await Life.begins(
        make_services(one_call("device.do"), store=SlowStore(), tool_timeout=5.0), capabilities=JOB
    )
    stage.app.say("go")
    call_id = (await stage.app.until("device.do"))["payload"]["callId"]
    await stage.app.until("assistant.speech.final")
    await at_rest(stage.session)
    stage.say(client.ToolAccepted(call_id, "job-7"))
    await steps(20)
    await stage.goes_on()
    await later(3600)
    stage.app.result(call_id, "heron")
    await later(5)
    assert stage.app.finals() == ["Well.", "There is news."]
    await stage.ends()


async def test_the_result_of_a_job_during_a_turn_starts_the_next_turn() -> None:
    hold = asyncio.Event()

    def reply(request: ModelRequest) -> Script:
        last = request.messages[-1]
        if isinstance(last, UserMessage) and last.text == "wait":
            return [hold, TextDelta("Waited.")]
        return one_call("device.do")(request)

    stage = await Life.begins(make_services(reply, store=SlowStore()), capabilities=JOB)
    stage.app.say("go")
    call_id = (await stage.app.until("device.do"))["payload"]["callId"]
    stage.say(client.ToolAccepted(call_id, "job-7"))
    await at_rest(stage.session)
    await stage.goes_on()
    await later(1)
    stage.app.say("wait")
    await later(1)
    stage.app.result(call_id, "heron")
    await later(1)
    hold.set()
    await at_rest(stage.session)
    assert stage.app.finals() == ["Well.", "Waited.", "There is news."]
    await stage.ends()


# -- a process that stops in good order


async def test_a_stopping_server_leaves_waiting_transcripts_to_the_next_one() -> None:
    hold = asyncio.Event()

    def reply(request: ModelRequest) -> Script:
        text = [item.text for item in request.messages if isinstance(item, UserMessage)][-1]
        return [hold, TextDelta("One.")] if text == "one" else [TextDelta("Two.")]

    stage = await Life.begins(make_services(reply, store=Disk(), mode="queue"))
    stage.app.say("one")
    await later(1)
    stage.app.say("two")
    await later(1)
    stage.session.drain()
    hold.set()
    await stage.session.settled()
    assert stage.app.finals() == ["One."]
    await stage.session.close()
    await stage.is_taken_over()
    await at_rest(stage.session)
    assert stage.app.finals() == ["One.", "Two."]
    await stage.ends()


async def test_acknowledgements_just_before_a_stop_are_recorded() -> None:
    stage = await Life.begins(make_services([[TextDelta("Hello.")]], store=Disk()))
    stage.app.say("hi")
    await stage.app.until("state idle", since=3)
    await steps(50)
    await stage.session.close()
    since = await stage.is_taken_over(relaunched=True)
    await at_rest(stage.session)
    assert stage.app.shapes(since) == ["session.started", "state idle"]
    await stage.ends()


# -- questions

CARDS = ["approval"]
MOVE = [tool("device.move", risk="medium")]


async def asked(store: SlowStore, capabilities: Sequence[str] = CARDS, **limits: Any) -> Life:
    """Let a session come to a question, and all of it be recorded."""
    services = replace(make_services(one_call("device.move"), store=store, **limits), catalog=MOVE)
    stage = await Life.begins(services, capabilities=capabilities)
    stage.app.say("go")
    await later(1)
    return stage


async def test_a_card_is_replayed_with_its_id() -> None:
    stage = await asked(SlowStore())
    await stage.goes_on()
    await later(1)
    cards = [e["id"] for e in stage.app.raw if e["type"] == "approval.request"]
    assert len(cards) == 2 and len(set(cards)) == 1
    await stage.ends()


async def test_a_restored_question_keeps_its_expiry() -> None:
    stage = await asked(SlowStore(), approval_timeout=600.0)
    limits = replace(stage.services.limits, approval_timeout=5.0)
    await stage.goes_on(replace(stage.services, limits=limits))
    await later(500)
    assert stage.resolved() == []
    await later(120)
    assert [outcome for _, outcome in stage.resolved()] == ["expired"]
    await stage.ends()


async def test_a_recorded_decision_is_answered_by_the_next_process() -> None:
    store = SlowStore()
    stage = await asked(store)
    card = await stage.card()
    store.hold_answer = asyncio.Event()  # it is recorded, and the process dies before it knows so
    stage.say(client.ApprovalResponse(card["approvalId"], card["argumentsDigest"], "deny"))
    await later(1)
    store.hold_answer = None
    assert stage.resolved() == []
    await stage.goes_on()
    await at_rest(stage.session)
    assert stage.resolved() == [(card["approvalId"], "denied")]
    await stage.ends()


def test_a_superseded_question_is_reported_after_a_crash_at_any_step() -> None:
    async def scenario(after: int) -> bool:
        stage = await asked(SlowStore(lambda: 1, lambda: 3))
        card = await stage.card()
        stage.app.say("what is the weather like in Oslo tomorrow", id="words-2")
        await steps(after)
        over = stage.resolved() != []
        await stage.goes_on()
        stage.app.say("what is the weather like in Oslo tomorrow", id="words-2")  # it may not have arrived
        await later(5)
        assert (card["approvalId"], "superseded") in stage.resolved()
        await stage.ends()
        return over

    at_every_step(scenario)


async def test_a_decision_about_an_unknown_question_is_superseded() -> None:
    item = await Life.begins(make_services(store=SlowStore()), capabilities=CARDS)
    await item.goes_on()
    item.say(client.ApprovalResponse("appr_before", "digest", "allow"))
    await later(1)
    assert item.resolved() == [("appr_before", "superseded")]
    await item.ends()
