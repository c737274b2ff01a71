"""A session that continues in another process after a crash: nothing is lost or repeated."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from conductor.conversation.phrases import FAILURES
from conductor.events import client
from conductor.messages import AssistantMessage, Note, ToolResult, UserMessage
from conductor.models.base import ModelRequest, TextDelta
from conductor.session.services import Services
from conductor.session.session import Session
from tests.models import Script
from tests.session.helpers import (
    SPOKEN,
    App,
    Disk,
    LocalTools,
    SlowStore,
    at_rest,
    call,
    die,
    later,
    make_services,
    open_session,
    steps,
    tool,
)
from tests.shapes import Event


async def join(services: Services, app: App) -> Session:
    """Go on with the session in a process, and connect the app to it."""
    session = await open_session(services)
    await app.connect(session)
    return session


async def test_a_turn_is_attempted_at_most_twice() -> None:
    store, attempts = SlowStore(), 0

    def reply(request: ModelRequest) -> Script:
        nonlocal attempts
        attempts += 1
        return [asyncio.Event()]

    services, app = make_services(reply, store=store), App(store=store)
    session = await join(services, app)
    app.say("go")
    await app.until("append user")
    for expected in (1, 2):
        await steps(20)
        assert attempts == expected
        die(session, app)
        session = await join(services, app)
    await at_rest(session)
    assert attempts == 2
    assert app.finals() == [FAILURES["model_provider_failed"]]
    assert app.states()[-1] == "idle"


def do_again(request: ModelRequest) -> Script:
    """Make the same call for each transcript; then reply with the number of unknown results."""
    if isinstance(request.messages[-1], ToolResult):
        outcomes = [json.loads(item.content) for item in request.messages if isinstance(item, ToolResult)]
        return [TextDelta(f"Unknown: {[item['error_type'] for item in outcomes].count('unknown')}.")]
    return [call("device.do", '{"x":1}')]


def reasons(event: Event) -> str:
    return " ".join(event["payload"]["reasons"])


async def test_a_late_result_reaches_the_next_process() -> None:
    store = SlowStore()

    def reply(request: ModelRequest) -> Script:
        if isinstance(request.messages[-1], Note):
            return [TextDelta("It was done.")]
        return do_again(request)

    services = make_services(reply, store=store)
    app = App(lambda name, call_id: None if name == "device.do" else SPOKEN, store)
    session = await join(services, app)
    app.say("go")
    call = await app.until("device.do")
    await app.until("assistant.speech.final")
    await at_rest(session)
    die(session, app)
    session = await join(services, app)
    app.result(call["payload"]["callId"], "heron")
    await at_rest(session)
    assert app.finals() == ["Unknown: 1.", "It was done."]


@pytest.mark.parametrize("name", ["device.do", "local.write"])
async def test_the_next_process_asks_before_it_repeats_a_running_call_of_its_round(
    name: str,
) -> None:
    """The device's call is recorded as unknown already, the other one was running when its process died."""
    store, local = SlowStore(), LocalTools()

    def reply(request: ModelRequest) -> Script:
        wait = [call("local.wait")] if isinstance(request.messages[-1], UserMessage) else []
        return [call(name, '{"x":1}'), *wait]

    do = tool("device.do", effect="write", approval="never", timeout_s=5.0)
    services = replace(make_services(reply, store=store, toolsets=[local]), catalog=[do])
    app = App(lambda name, call_id: None if name == "device.do" else SPOKEN, store)
    app.capabilities = ["approval"]
    session = await join(services, app)
    app.say("go")
    await later(6)
    die(session, app)
    local.go.set()
    session = await join(services, app)
    assert "may have happened" in reasons(await app.until("approval.request"))
    assert app.shapes().count("device.do") <= 1 and "local.write" not in local.ran


async def test_an_interruption_after_a_takeover_truncates_the_reply() -> None:
    store = SlowStore()
    services = make_services([[TextDelta("One two three four.")]], store=store)
    app = App(lambda name, call_id: None if name == "tts.speak" else SPOKEN, store)
    session = await join(services, app)
    app.say("go")
    await app.until("tts.speak")
    await steps(30)
    die(session, app)
    session = await join(services, app)
    app.interrupt(spokenText="One two")
    await steps(50)
    (reply_text,) = [item.text for item in session.state.log if isinstance(item, AssistantMessage)]
    assert reply_text.startswith("One two [")


# -- turns that go on elsewhere


@pytest.mark.parametrize("bound", [{"max_calls_per_turn": 2}, {"max_tool_rounds": 2}])
async def test_the_limits_of_a_turn_hold_across_processes(bound: dict[str, Any]) -> None:
    store, local = SlowStore(), LocalTools()

    def reply(request: ModelRequest) -> Script:
        if request.tool_choice == "none":
            return [TextDelta("Enough.")]
        results = sum(isinstance(item, ToolResult) for item in request.messages)
        return [call("local.wait" if results == 1 else "local.sum")]

    services = make_services(reply, store=store, toolsets=[local], **bound)
    app = App(store=store)
    session = await join(services, app)
    app.say("go")
    await local.started.wait()
    while local.ran != ["local.sum"]:
        await steps(1)
    await steps(30)
    die(session, app)
    local.go.set()
    session = await join(services, app)
    await at_rest(session)
    assert app.error_codes() == ["tool_round_limit_exceeded"]
    assert app.finals() == ["Enough."]
    assert local.ran == ["local.sum", "local.wait"]


async def test_an_orderly_stop_does_not_count_as_an_attempt() -> None:
    store, hold = Disk(), asyncio.Event()
    services, app = make_services(lambda _: [hold, TextDelta("Done.")], store=store), App(store=store)
    session = await join(services, app)
    app.say("go")
    for _ in range(3):
        await later(1)
        await session.close()
        session = await join(services, app)
    hold.set()
    await at_rest(session)
    assert app.error_codes() == [] and app.finals() == ["Done."]


async def test_progress_resets_the_attempts_of_a_turn() -> None:
    store = SlowStore()
    hangs: Script = [asyncio.Event()]
    scripts = [hangs, [call("device.look")], hangs, [TextDelta("Done.")]]
    services, app = make_services(scripts, store=store), App(store=store)
    session = await join(services, app)
    app.say("go")
    for _ in range(2):
        await later(1)
        die(session, app)
        session = await join(services, app)
    await at_rest(session)
    assert app.error_codes() == [] and app.finals() == ["Done."]


# -- questions


def move(request: ModelRequest) -> Script:
    """Ask for one call that a person must allow, and then say how it went."""
    last = request.messages[-1]
    if not isinstance(last, ToolResult):
        return [call("device.move", '{"x":1}')]
    return [TextDelta("Moved." if not last.is_error else "Not moved.")]


async def at_calm(session: Session) -> None:
    """Wait until all started commits are recorded."""
    for _ in range(1_000):
        await steps(5)
        if len(session.tasks) == 1:  # the turn's
            return
    raise AssertionError("it does not come to rest")


def read_and_move(request: ModelRequest) -> Script:
    """Read untrusted text, then make a call that needs an approval."""
    reads = not isinstance(request.messages[-1], ToolResult)
    return [call("device.look", "{}")] if reads else move(ModelRequest("", request.messages[:1]))


async def test_a_question_still_warns_of_untrusted_text_in_the_next_process() -> None:
    store = SlowStore()
    look = tool("device.look", effect="read", risk="safe", untrusted=True)
    services = make_services(read_and_move, store=store)
    services, app = replace(services, catalog=[look, tool("device.move", risk="medium")]), App(store=store)
    session = await join(services, app)
    app.say("go")
    while len(app.speeches()) < 1:
        await later(0.01)
    await at_calm(session)
    die(session, app)
    session = await join(services, app)
    while len(app.speeches()) < 2:
        await later(0.01)
    assert ["strangers" in reply_text for reply_text in app.speeches()] == [True, True]


async def test_a_tool_redefined_before_the_takeover_does_not_run() -> None:
    store = SlowStore()
    services = replace(make_services(move, store=store), catalog=[tool("device.move", risk="medium")])
    app = App(store=store)
    app.capabilities = ["approval"]
    session = await join(services, app)
    app.say("go")
    request = (await app.until("approval.request"))["payload"]
    await at_calm(session)
    die(session, app)
    services = replace(services, catalog=[tool("device.move", risk="medium", timeout_s=1.0)])
    session = await join(services, app)
    app.line.say(
        client.ApprovalResponse(
            approval_id=request["approvalId"], arguments_digest=request["argumentsDigest"], decision="allow"
        )
    )
    await at_rest(session)
    assert app.finals() == ["Not moved."]
    assert "device.move" not in app.shapes()
