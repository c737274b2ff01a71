"""Rules of safety at moments at which something else changes: a takeover, a reload, an expiry, a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from conductor.conversation import records as r
from conductor.conversation.consent import decided, tapped
from conductor.conversation.receive import receive
from conductor.errors import StoreError, StoreUnavailable
from conductor.events import client
from conductor.models.base import TextDelta
from conductor.session import programs
from conductor.session.inbound import handle
from conductor.tools.base import CallContext, PersonQuestion, ToolSpec
from conductor.tools.outcomes import ToolOutcome, failed, succeeded
from tests.conversation.build import CARDS, NOW, asking, events_of, question, view
from tests.models import Script
from tests.session.helpers import (
    App,
    Disk,
    LocalTools,
    SlowStore,
    call,
    die,
    inbound,
    later,
    make_services,
    now_ms,
    open_session,
    open_stage,
    steps,
    tool,
)
from tests.session.test_approvals_questions import ALL, CATALOG, TWO, scene

FORM = PersonQuestion("mail", "Which?", {"type": "object", "properties": {"x": {"type": "string"}}})


class Writes(LocalTools):
    """A tool of the server that changes something, described by ``text``."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def specs(self) -> tuple[ToolSpec, ...]:
        schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
        return (
            ToolSpec(
                name="local.write",
                description=self.text,
                input_schema=schema,
                source="builtin",
                effect="write",
            ),
        )

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        self.ran.append(self.text)
        return succeeded("ok")


async def test_a_takeover_runs_no_write_again_before_its_claim_is_recorded() -> None:
    store, local = Disk(), LocalTools()
    services = make_services([[call("local.write")], [TextDelta("Well.")]], store=store, toolsets=[local])
    session = await open_session(services)
    app = App(None, store)
    await app.connect(session)
    app.say("go")
    await local.started.wait()
    die(session, app)
    await steps(20)
    second = LocalTools()
    second.go.set()
    store.hold = asyncio.Event()
    session = await open_session(replace(services, toolsets=[second]))
    await steps(5)
    await handle(session, inbound(client.ToolResultEvent("call_x", "{}", None)), app.open_line(session))
    await steps(50)
    assert second.ran == []
    store.hold.set()
    await later(5)
    assert second.ran == []


async def test_a_call_whose_result_cannot_be_recorded_runs_once() -> None:
    class Odd(LocalTools):
        async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
            self.ran.append(name)
            return failed("io_error", "no file \udc80")

    local = Odd()
    await open_stage(make_services([[call("local.write")], [TextDelta("Well.")]], toolsets=[local]), say="go")
    await later(5)
    assert len(local.ran) == 1


async def test_a_grant_allows_no_other_question_whose_tool_has_changed() -> None:
    async with scene(TWO, capabilities=ALL) as on:
        await on.card(2)
        changed = replace(CATALOG[2], approval="never", description="Something else.")
        on.stage.session.reload(replace(on.stage.services, catalog=(CATALOG[0], CATALOG[1], changed)))
        on.decide(await on.card(1), "allow", scope="session")
        await later(5)
        assert "device.copy" not in on.ran
        on.decide(await on.card(2), "deny")
        await on.over()


async def test_an_approved_call_runs_under_the_approved_definition_or_not_at_all() -> None:
    store, draft, delete = SlowStore(), Writes("Save a draft."), Writes("Delete everything.")
    replies: list[Script] = [[call("local.write", '{"x":1}')], [TextDelta("Well.")]]
    services = make_services(replies, store=store, toolsets=[draft])
    async with scene(services=services, capabilities=ALL) as on:
        card = await on.card()
        store.hold = asyncio.Event()
        on.decide(card, "allow")
        await later(1)
        on.stage.session.reload(replace(on.stage.services, toolsets=[delete]))
        store.hold.set()
        await on.over()
        assert delete.ran == []


async def test_a_held_write_keeps_the_definition_that_was_judged() -> None:
    catalog = (*CATALOG[:2], tool("device.do", effect="write", approval="never"))
    stage = await open_stage(replace(make_services(), catalog=catalog))
    session = stage.session
    spec = session.gate.executor.spec("device.do")
    assert spec is not None
    calls = [call("device.move"), call("device.do"), call("device.look")]
    preparing = asyncio.create_task(session.gate.prepare(calls, is_whole=True))
    await steps(2)
    changed = (*CATALOG[:2], replace(catalog[2], description="Something else."))
    session.reload(replace(session.services, catalog=changed))
    prepared = (await preparing)[1]
    assert prepared.consent == "held" and prepared.fingerprint == spec.fingerprint


async def test_a_form_ends_with_its_tool() -> None:
    class Asks(LocalTools):
        async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
            self.asking = asyncio.ensure_future(context.ask(FORM))
            await asyncio.sleep(1)
            return failed("io_error", "connection lost")

    replies: list[Script] = [[call("local.sum")], [TextDelta("Sorry.")]]
    stage = await open_stage(make_services(replies, toolsets=[Asks()], approval_timeout=30.0))
    session = stage.session
    start = client.SessionStart(capabilities=["approval"])
    await session.clients.start(start, stage.app.line, resumed=False)
    stage.app.say("go")
    await later(20)
    assert not session.state.questions
    count = session.state.record_count
    await later(15)
    assert session.state.record_count - count < 10


def test_only_a_call_that_was_sent_can_be_cancelled_or_accepted() -> None:
    state = asking(question(), profile=CARDS)
    for event in (client.ToolCancelled("c1", "none"), client.ToolAccepted("c1", "job")):
        assert receive(view(state), "", event) == []


def test_a_tap_after_the_expiry_allows_nothing() -> None:
    state = asking(question(), profile=CARDS)
    reply = tapped(
        view(state, now=NOW + 601_000),
        client.Decision(approval_id="q1", arguments_digest="digest c1", decision="allow"),
    )
    assert isinstance(reply, list)
    outcomes = [record.outcome for record in reply if isinstance(record, r.QuestionDecided)]
    assert outcomes == ["expired"]


def test_each_event_of_a_large_record_has_an_id_of_its_own() -> None:
    state = asking(*(question(number, f"c{number}") for number in range(1, 101)), profile=CARDS)
    end = r.TurnEnded(
        reason="timed_out",
        error="turn_timeout",
        apology="Sorry.",
        speech_text="Sorry.",
        superseded=tuple(state.questions),
    )
    ids = [event.id for event in events_of(state, end)]
    assert len(ids) == len(set(ids)) > 100


async def test_an_early_yes_whose_question_expires_starts_no_turn() -> None:
    store = SlowStore()
    replies: list[Script] = [
        [call("device.move", '{"x":1}')],
        [3.0, TextDelta("Well.")],
        [TextDelta("New turn.")],
    ]
    services = make_services(replies, store=store, heard_window=3.0)
    async with scene(services=services) as on:
        await on.prompt()
        session = on.stage.session
        on.app.say("yes please")
        await steps(30)
        focus = session.state.focus
        assert focus is not None
        await later((focus.presented_at + session.conduct.window_ms - now_ms()) / 1000 - 0.1)
        store.hold = asyncio.Event()
        expiring = asyncio.create_task(
            session.commits.decide(lambda: decided(session.view, focus, "expired"))
        )
        await later(0.3)
        store.hold.set()
        store.hold = None
        await later(10)
        await expiring
        assert sum(isinstance(record, r.TurnStarted) for record in store.records) == 1


async def test_a_program_is_answered_although_its_turn_is_recorded_late() -> None:
    failures: list[StoreError] = [StoreUnavailable("away")]

    def fail(commit: r.Commit) -> StoreError | None:
        starts = any(isinstance(record, r.TurnStarted) for record in commit.records)
        return failures.pop() if starts and failures else None

    stage = await open_stage(make_services(store=SlowStore(fail=fail), toolsets=[LocalTools()]))
    async with asyncio.timeout(300):
        result = await programs.request(stage.session, "local.sum", '{"x":2}')
    assert not result.is_error


async def test_a_program_that_waits_is_answered_at_the_end() -> None:
    stage = await open_stage(
        make_services([[TextDelta("Hello."), 5.0]], toolsets=[LocalTools()]), say="hello"
    )
    await later(1)
    request = asyncio.create_task(programs.request(stage.session, "local.sum", "{}"))
    await later(1)
    stage.session.drain(10)
    await later(20)
    await stage.session.close()
    assert (await asyncio.wait_for(request, 5)).is_error
