"""The device's answers, in time, late, repeated or never, while commits really take time."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from dataclasses import replace
from types import FrameType
from typing import Any, Literal

import pytest

from conductor.conversation.records import Commit, ReplyLogged
from conductor.conversation.steps import next_step
from conductor.errors import StoreError, StoreUnavailable
from conductor.events import client
from conductor.messages import Note, ToolResult
from conductor.models.base import ModelRequest, TextDelta
from conductor.session.inbound import learn
from conductor.session.services import Services
from conductor.settings import Limits
from conductor.tools.base import ToolSpec
from tests.models import Script
from tests.session.helpers import (
    SPOKEN,
    TURN_S,
    SlowStore,
    Stage,
    at_rest,
    call,
    faults,
    jump,
    later,
    loose_ends,
    make_services,
    open_stage,
    randomly_slow,
    steps,
    tool,
)
from tests.shapes import PLAIN_TURN

SERVERS_TURN = PLAIN_TURN[2:]
"""A turn of the server's own has no "thinking" and no words of a person."""
ONE_CALL: list[Script] = [
    [call("device.do")],
    [TextDelta("Done.")],
    [TextDelta("Next.")],
    [TextDelta("After that.")],
]


def silent_tools(name: str, call_id: str) -> str | None:
    """Acknowledge the interface; leave tools to the test."""
    return SPOKEN if name.startswith(("convo.", "tts.")) else None


def results(stage: Stage) -> list[dict[str, object]]:
    return [json.loads(m.content) for m in stage.session.state.log if isinstance(m, ToolResult)]


def notes(stage: Stage) -> list[str]:
    return [m.text for m in stage.session.state.log if isinstance(m, Note)]


async def device_call(stage: Stage, name: str = "device.do") -> str:
    event = await stage.app.until(name)
    return str(event["payload"]["callId"])


async def calling(services: Services, *capabilities: str, name: str = "device.do") -> tuple[Stage, str]:
    """Say "go" to a session whose model then calls the device; gives the stage and the call's id."""
    stage = await open_stage(services, silent_tools)
    if capabilities:
        await declare(stage, *capabilities)
    stage.app.say("go")
    return stage, await device_call(stage, name)


def reaches_model(stage: Stage, marker: str) -> bool:
    """Whether the model was, or will be, told of a result: by its call's result, or by a note."""
    return any(r["data"] == marker for r in results(stage)) or any(marker in text for text in notes(stage))


@pytest.mark.parametrize("seed", [3, 5, 8, 13])
async def test_a_result_reaches_the_model_once(seed: int) -> None:
    stage = await open_stage(
        make_services(ONE_CALL, store=randomly_slow(random.Random(seed))), silent_tools, say="go"
    )
    call_id = await device_call(stage)
    stage.app.result(call_id, "heron")
    stage.app.result(call_id, "again")
    await stage.quiet()
    (result,) = results(stage)
    assert (result["success"], result["data"]) == (True, "heron")
    assert notes(stage) == []
    assert loose_ends(stage.session) == {}


async def test_a_call_without_an_answer_is_unknown_at_its_limit_and_its_late_result_is_told() -> None:
    stage = await open_stage(make_services(ONE_CALL, tool_timeout=30.0), silent_tools)
    loop = asyncio.get_running_loop()
    stage.app.say("go")
    call_id = await device_call(stage)
    start = loop.time()
    await stage.app.until("assistant.speech.final")
    assert loop.time() - start == pytest.approx(30.0)
    (result,) = results(stage)
    assert result["error_type"] == "unknown"
    stage.app.result(call_id, "heron")
    stage.app.result(call_id, "twice")
    await stage.quiet()
    await stage.ask("and?")
    (note,) = notes(stage)
    assert "heron" in note
    assert stage.app.speeches() == ["Done.", "Next.", "After that."]


async def test_a_call_behind_others_has_its_limit_from_their_acknowledgement_on() -> None:
    over: list[float] = []

    async def acknowledge(name: str, call_id: str) -> str | None:
        if name == "convo.appendMessage" and not over:
            await later(1.0)
            over.append(asyncio.get_running_loop().time())
        return silent_tools(name, call_id)

    stage = await open_stage(make_services(ONE_CALL, tool_timeout=2.0), acknowledge)
    stage.app.say("go")
    await stage.app.until("assistant.speech.final")
    assert asyncio.get_running_loop().time() - over[0] == pytest.approx(2.0)


async def test_an_acknowledgement_computes_no_step() -> None:
    stage = await open_stage(make_services([[TextDelta("Well.")]]), lambda name, call_id: None)
    stage.app.say("go")
    await later(1)
    calls = [event["payload"]["callId"] for event in stage.app.log if event["type"] == "tool.call"]
    computed: list[str] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is next_step.__code__:
            computed.append(event)

    sys.setprofile(profile)
    try:
        for call_id in calls:
            stage.app.result(call_id, SPOKEN)
            await later(0.1)
    finally:
        sys.setprofile(None)
    assert len(calls) == 6 and not stage.session.outbox.outstanding and computed == []


async def test_the_late_results_of_two_calls_of_one_tool_are_told_apart() -> None:
    both = [call("device.do", '{"x":1}'), call("device.do", '{"x":2}')]
    stage = await open_stage(make_services([both, *ONE_CALL[1:]], tool_timeout=30.0), silent_tools)
    stage.app.say("go")
    await stage.app.until("assistant.speech.final")
    ids = [event["payload"]["callId"] for event in stage.app.events("device.do")]
    for call_id, bird in zip(ids, ("heron", "wren"), strict=True):
        stage.app.result(call_id, bird)
    await stage.quiet()
    await stage.ask("and?")
    told = " ".join(notes(stage))
    assert 'device.do with {"x":1}: ' in told and 'device.do with {"x":2}: ' in told
    assert told.index('"x":1') < told.index("heron") < told.index('"x":2') < told.index("wren")


async def test_a_late_result_is_acknowledged_once_it_is_recorded() -> None:
    store = SlowStore()
    stage, call_id = await calling(make_services(ONE_CALL, store=store, tool_timeout=30.0), "resume")
    await stage.app.until("assistant.speech.final")
    await stage.quiet()
    store.hold = asyncio.Event()
    say(stage, client.ToolResultEvent(call_id, "heron"))
    await later(5)
    assert not acknowledged(stage)
    store.hold.set()
    await stage.quiet()
    assert acknowledged(stage)


async def test_a_late_result_is_too_late_after_ten_minutes() -> None:
    stage, call_id = await calling(make_services(ONE_CALL))
    await stage.quiet()
    await later(601)
    stage.app.result(call_id, "heron")
    await stage.ask("and?")
    assert notes(stage) == []


async def held_expiry(stage: Stage, store: SlowStore) -> str:
    """Let a call's limit pass while commits are held, so that its time-out waits to be recorded."""
    stage.app.say("go")
    call_id = await device_call(stage)
    await steps(20)
    store.hold = asyncio.Event()
    await later(31)
    return call_id


@pytest.mark.parametrize("result_at", [0, 1, 2])
@pytest.mark.parametrize(
    "others",
    [
        ("time-out", "interruption"),
        ("end of the turn", "time-out"),
        ("failure", "time-out"),
        ("failure", "end of the turn"),
    ],
)
async def test_a_result_reaches_the_model_whatever_waits_for_the_store_with_it(
    others: tuple[str, ...], result_at: int
) -> None:
    store = SlowStore()
    turn_timeout = TURN_S if "end of the turn" in others else Limits().turn_timeout
    stage, call_id = await calling(make_services(ONE_CALL, store=store, turn_timeout=turn_timeout))
    await steps(20)
    store.hold, failures = asyncio.Event(), iter([StoreUnavailable("away")])
    for what in (*others[:result_at], "result", *others[result_at:]):
        if what == "result":
            stage.app.result(call_id, "heron")
        elif what == "failure":
            store.fail = lambda _: next(failures, None)
        elif what == "interruption":
            stage.app.interrupt()
        else:
            jump(TURN_S if what == "end of the turn" else Limits().tool_timeout)
        await steps(10)
    store.hold.set()
    await stage.quiet()
    await stage.ask("and?")
    assert reaches_model(stage, "heron")
    assert faults(stage.session.state.log) == []


async def test_a_time_out_that_comes_while_the_result_is_committed_changes_nothing() -> None:
    store = SlowStore()
    stage, call_id = await calling(make_services(ONE_CALL, store=store))
    await steps(20)
    store.hold = asyncio.Event()
    stage.app.result(call_id, "heron")
    await later(31)
    store.hold.set()
    await stage.quiet()
    (result,) = results(stage)
    assert result["data"] == "heron"
    await stage.ask("and?")
    assert notes(stage) == []


async def test_a_result_whose_time_is_over_while_it_waits_for_the_store_counts() -> None:
    store = SlowStore()
    stage, call_id = await calling(make_services(ONE_CALL, store=store, tool_timeout=30.0))
    await later(29)
    store.hold = asyncio.Event()
    failures = iter([StoreUnavailable("away")])
    store.fail = lambda operations: next(failures, None)
    stage.app.result(call_id, "heron")
    await later(2)
    store.hold.set()  # it fails, and who waits for it records it
    await stage.quiet()
    (result,) = results(stage)
    assert (result["success"], result["data"]) == (True, "heron")
    assert loose_ends(stage.session) == {}


async def test_a_call_has_more_time_when_the_process_stood_still() -> None:
    stage, call_id = await calling(make_services(ONE_CALL, tool_timeout=30.0))
    await later(20)
    jump(15)
    await later(4)
    stage.app.result(call_id, "heron")
    await stage.quiet()
    (result,) = results(stage)
    assert (result["success"], result["data"]) == (True, "heron")


async def test_a_result_that_overtakes_a_time_out_which_was_not_recorded_does_not_fail_the_turn() -> None:
    store = SlowStore()
    stage = await open_stage(make_services(ONE_CALL, store=store), silent_tools)
    call_id = await held_expiry(stage, store)
    failures = iter([StoreUnavailable("away")])
    store.fail = lambda operations: next(failures, None)
    assert store.hold is not None
    hold, store.hold = store.hold, asyncio.Event()
    stage.app.result(call_id, "heron")  # waits behind the time-out's commit
    await steps(5)
    hold.set()
    await steps(5)
    store.hold.set()
    await stage.quiet()
    assert stage.app.error_codes() == []
    assert stage.app.finals() == ["Done."]


async def test_a_declaration_while_a_call_is_committed_does_not_fail_the_turn() -> None:
    store = SlowStore()
    hold = asyncio.Event()
    scripts: list[Script] = [[hold, call("device.do")], [TextDelta("Done.")]]
    stage = await open_stage(make_services(scripts, store=store), say="go")
    await steps(20)
    store.hold = asyncio.Event()
    stage.app.agent_done("a-1")  # a commit that the round's must wait for
    await steps(5)
    hold.set()
    await steps(5)
    say(stage, client.SessionUpdate([]))
    await steps(5)
    store.hold.set()
    await stage.app.until("assistant.speech.final")
    assert stage.app.error_codes() == []


@pytest.mark.parametrize("how", ["stopped", "not recorded"])
async def test_no_future_is_left_of_a_call_that_was_never_waited_for(how: str) -> None:
    store = SlowStore(lambda: 5, lambda: 5)
    stage = await open_stage(make_services(ONE_CALL, store=store, turn_timeout=TURN_S), silent_tools)

    def fail(commit: Commit) -> StoreError | None:
        opens = any(isinstance(record, ReplyLogged) and record.calls for record in commit.records)
        if opens and how == "stopped":
            jump(TURN_S)
        return StoreUnavailable("away") if opens and how == "not recorded" else None

    store.fail = fail
    stage.app.say("go")
    await stage.app.until("append user")
    await at_rest(stage.session)
    assert loose_ends(stage.session) == {}


async def test_a_turn_that_is_stopped_while_its_last_result_is_recorded_keeps_it() -> None:
    store = SlowStore()
    stage, call_id = await calling(make_services(ONE_CALL, store=store), "activity")
    store.hold_answer = asyncio.Event()
    stage.app.result(call_id, "heron")
    await steps(10)
    stage.app.interrupt()
    await steps(10)
    store.hold_answer.set()
    await stage.quiet()
    (result,) = results(stage)
    assert result["data"] == "heron" and faults(stage.session.state.log) == []
    assert [item["status"] for item in payloads(stage, "tool.activity")] == ["started", "finished"]


async def test_a_result_that_comes_while_its_turn_is_closed_is_logged_once() -> None:
    store = SlowStore()
    scripts: list[Script] = [[call("device.do"), call("device.look")], [TextDelta("Next.")]]
    stage = await open_stage(
        make_services(scripts, store=store, turn_timeout=TURN_S, tool_timeout=2 * TURN_S), silent_tools
    )
    await declare(stage, "activity")
    stage.app.say("go")
    write_call, read_call = await device_call(stage), await device_call(stage, "device.look")
    stage.app.result(read_call, "a heron")
    await steps(20)
    store.hold = asyncio.Event()
    stage.app.agent_done("a-1")  # a commit that the others wait for
    await steps(5)
    jump(TURN_S)
    await steps(5)
    stage.app.result(write_call, "written")
    await steps(5)
    store.hold.set()
    await stage.quiet()
    assert faults(stage.session.state.log) == [] and len(results(stage)) == 2
    assert reaches_model(stage, "written")
    ended = [item["callId"] for item in payloads(stage, "tool.activity") if item["status"] == "finished"]
    assert sorted(ended) == sorted([write_call, read_call])


# -- what a late result brings about


def with_tools(services: Services, *specs: ToolSpec) -> Services:
    return replace(services, catalog=specs)


async def declare(stage: Stage, *capabilities: str) -> None:
    """Have the app declare its capabilities."""
    await stage.session.clients.start(
        client.SessionStart(capabilities=list(capabilities)), stage.app.line, resumed=False
    )


def say(stage: Stage, event: client.ClientEvent) -> None:
    stage.app.line.say(event)


def acknowledged(stage: Stage) -> bool:
    """Whether the app was told that the last event it sent is recorded."""
    event_ids = [event_id for payload in payloads(stage, "event.ack") for event_id in payload["eventIds"]]
    return stage.app.line.sent_ids[-1] in event_ids


def payloads(stage: Stage, event_type: str) -> list[dict[str, Any]]:
    return [event["payload"] for event in stage.app.log if event["type"] == event_type]


@pytest.mark.parametrize("name", ["device.look", "device.do"])
async def test_the_late_result_of_a_call_that_timed_out_begins_a_turn_of_its_own(name: str) -> None:
    scripts: list[Script] = [[call(name)], [TextDelta("No answer.")], [TextDelta("A heron.")]]
    stage, call_id = await calling(make_services(scripts), "late", name=name)
    await stage.quiet()
    since = len(stage.app.log)
    stage.app.result(call_id, "heron")
    await stage.quiet()
    assert stage.app.shapes(since) == ["tool.late", *SERVERS_TURN]
    assert stage.app.speeches() == ["No answer.", "A heron."]
    assert payloads(stage, "tool.late") == [{"callId": call_id, "deliveredAs": "turn"}]
    (note,) = notes(stage)
    assert name in note and "heron" in note
    assert faults(stage.session.state.log) == []
    assert len(stage.provider.requests) == 3


@pytest.mark.parametrize(("name", "own_turn"), [("device.look", False), ("device.do", True)])
async def test_after_an_interruption_a_write_is_told_at_once_and_a_read_with_the_next_turn(
    name: str, own_turn: bool
) -> None:
    scripts: list[Script] = [[call(name)], [TextDelta("One.")], [TextDelta("Two.")]]
    stage, call_id = await calling(make_services(scripts), "late", name=name)
    stage.app.interrupt()
    await stage.settled()
    stage.app.result(call_id, "heron")
    await stage.quiet()
    await later(100)
    assert stage.app.speeches() == (["One."] if own_turn else [])
    await stage.ask("and?")
    assert len(stage.app.speeches()) == (2 if own_turn else 1)
    assert [late["deliveredAs"] for late in payloads(stage, "tool.late")] == [
        "turn" if own_turn else "context"
    ]
    assert len([text for text in notes(stage) if "heron" in text]) == 1
    assert faults(stage.session.state.log) == []


async def test_a_result_that_comes_late_during_another_turn_is_told_with_the_next_one() -> None:
    hold = asyncio.Event()
    scripts: list[Script] = [
        [call("device.do")],
        [TextDelta("No answer.")],
        [hold, TextDelta("Two.")],
        [TextDelta("Three.")],
    ]
    stage, call_id = await calling(make_services(scripts), "late")
    await stage.quiet()
    stage.app.say("something else")
    await steps(20)
    assert stage.session.busy
    stage.app.result(call_id, "heron")
    await steps(20)
    hold.set()
    await stage.quiet()
    await later(100)
    assert payloads(stage, "tool.late") == [{"callId": call_id, "deliveredAs": "context"}]
    assert stage.app.speeches() == ["No answer.", "Two."], "no turn of its own"
    assert notes(stage) == []
    await stage.ask("and?")
    assert any("heron" in text for text in notes(stage))


async def test_a_turn_for_a_late_result_waits_for_the_floor_and_goes_with_the_words_of_the_person() -> None:
    scripts: list[Script] = [[call("device.do")], [TextDelta("No answer.")], [TextDelta("Both.")]]
    stage, call_id = await calling(make_services(scripts))
    await stage.quiet()
    say(stage, client.TranscriptPartial("and"))
    stage.app.result(call_id, "heron")
    await later(2.0)
    assert not stage.session.busy
    await stage.ask("and now?")
    await later(100)
    assert stage.app.speeches() == ["No answer.", "Both."]
    assert len(notes(stage)) == 1


async def test_after_its_late_result_an_identical_call_is_not_asked_about() -> None:
    scripts: list[Script] = [
        [call("device.do")],
        [TextDelta("No answer.")],
        [TextDelta("It is done.")],
        [call("device.do")],
        [TextDelta("Again.")],
    ]
    answers = iter([None, SPOKEN])

    def answer(name: str, call_id: str) -> str | None:
        return next(answers) if name == "device.do" else SPOKEN

    stage = await open_stage(make_services(scripts), answer)
    await declare(stage, "approval")
    stage.app.say("go")
    call_id = await device_call(stage)
    await stage.quiet()
    stage.app.result(call_id, "heron")
    await stage.quiet()
    await stage.ask("once more")
    assert payloads(stage, "approval.request") == []
    assert stage.app.speeches()[-1] == "Again."


# -- what is noted about the arguments

COERCED: list[Script] = [[call("device.do", '{"x":"7"}')], [TextDelta("Done.")]]


def noted(stage: Stage) -> object:
    (result,) = results(stage)
    metadata = result["metadata"]
    assert isinstance(metadata, dict)
    return metadata.get("notes")


@pytest.mark.parametrize("how", ["in time", "not recorded", "never", "interrupted"])
async def test_the_model_reads_how_arguments_were_corrected_however_the_call_ends(
    how: str,
) -> None:
    store = SlowStore()
    stage, call_id = await calling(make_services(COERCED, store=store))
    await steps(20)
    if how == "not recorded":
        failures = iter([StoreUnavailable("away")])
        store.fail = lambda operations: next(failures, None)
    if how in ("in time", "not recorded"):
        stage.app.result(call_id, "heron")
    if how == "interrupted":
        stage.app.interrupt()
    await stage.quiet()
    assert noted(stage) == ['x: "7" was read as 7']


# -- calls that go on as jobs

JOB: list[Script] = [[call("device.do")], [TextDelta("It has begun.")], [TextDelta("It is finished.")]]


async def test_an_accepted_call_frees_the_turn_and_its_result_has_a_turn_hours_later() -> None:
    stage, call_id = await calling(make_services(JOB), "async", "late")
    say(stage, client.ToolAccepted(call_id, "job-7"))
    await stage.quiet()
    (result,) = results(stage)
    assert (result["success"], result["data"]) == (True, {"status": "accepted", "jobId": "job-7"})
    assert stage.app.speeches() == ["It has begun."]
    await later(5 * 3600)
    stage.app.result(call_id, "heron")
    await stage.quiet()
    assert stage.app.speeches() == ["It has begun.", "It is finished."]
    assert payloads(stage, "tool.late") == [{"callId": call_id, "deliveredAs": "turn"}]
    assert loose_ends(stage.session) == {}


async def test_a_call_that_is_accepted_after_its_time_limit_is_a_job() -> None:
    stage, call_id = await calling(make_services(JOB), "async", "late")
    await stage.quiet()
    assert [result["error_type"] for result in results(stage)] == ["unknown"]
    say(stage, client.ToolAccepted(call_id, "job-7"))
    await later(5 * 3600)
    stage.app.result(call_id, "heron")
    await stage.quiet()
    assert stage.app.speeches() == ["It has begun.", "It is finished."]
    assert payloads(stage, "tool.late") == [{"callId": call_id, "deliveredAs": "turn"}]


async def test_without_the_capability_a_call_is_not_accepted() -> None:
    stage = await open_stage(make_services(JOB), silent_tools, say="go")
    say(stage, client.ToolAccepted(await device_call(stage), "job-7"))
    await stage.quiet()
    assert [result["error_type"] for result in results(stage)] == ["unknown"]


@pytest.mark.parametrize("delay", range(12))
async def test_the_result_of_a_job_that_is_accepted_while_its_turn_ends_is_not_lost(delay: int) -> None:
    store = SlowStore(lambda: 2, lambda: 2)
    stage, call_id = await calling(make_services(JOB, store=store), "async", "late")
    await steps(20)
    stage.app.interrupt()
    await steps(delay)
    say(stage, client.ToolAccepted(call_id, "job-7"))
    await stage.settled()
    await stage.quiet()
    await later(300)
    stage.app.result(call_id, "heron")
    await stage.quiet()
    await stage.ask("and?")
    assert reaches_model(stage, "heron")
    assert len(payloads(stage, "tool.late")) == 1


# -- calls that are cancelled

STOPPABLE = tool("device.do", effect="write", approval="never", on_interrupt="cancel")
KEPT = tool("device.do", effect="write", approval="never", on_interrupt="keep")


@pytest.mark.parametrize(
    ("spec", "capabilities", "is_sent"),
    [(STOPPABLE, ["cancel"], True), (KEPT, ["cancel"], False), (STOPPABLE, [], False)],
)
async def test_an_interruption_cancels_the_calls_that_are_to_be_cancelled(
    spec: ToolSpec, capabilities: list[str], is_sent: bool
) -> None:
    stage, call_id = await calling(with_tools(make_services(ONE_CALL), spec), *capabilities)
    stage.app.interrupt()
    await stage.settled()
    expected = [{"callId": call_id, "reason": "barge_in"}] if is_sent else []
    assert payloads(stage, "tool.cancel") == expected
    assert [result["error_type"] for result in results(stage)] == ["unknown"]


async def test_a_call_that_no_socket_had_is_not_cancelled_there() -> None:
    stage = await open_stage(with_tools(make_services(ONE_CALL), STOPPABLE), silent_tools, slow=True)
    await declare(stage, "cancel")
    stage.app.line.flush()
    stage.app.say("go")
    await steps(20)
    assert b"device.do" in stage.app.line.queue[-1].data
    stage.app.interrupt()
    await stage.settled()
    stage.app.line.flush()
    assert payloads(stage, "tool.cancel") == []
    assert "device.do" not in stage.app.shapes()
    assert [result["error_type"] for result in results(stage)] == ["cancelled"]


async def test_a_late_call_that_no_socket_had_is_not_sent_any_more() -> None:
    stage = await open_stage(make_services(ONE_CALL), silent_tools, slow=True)
    line = stage.app.line
    stage.app.say("go")
    await steps(20)
    assert b"device.do" in line.queue[-1].data
    for _ in range(1_000):
        if results(stage):
            break
        await later(0.5)
    assert '"reason":"device_not_connected"' in json.dumps(results(stage), separators=(",", ":"))
    line.slow = False
    line.flush()
    await stage.quiet()
    assert "device.do" not in stage.app.shapes()


@pytest.mark.parametrize(
    ("effect", "success", "error_type"),
    [("none", False, "cancelled"), ("partial", False, "cancelled"), ("complete", True, "none")],
)
async def test_a_device_that_cancels_in_time_says_how_far_it_got(
    effect: Literal["none", "partial", "complete"], success: bool, error_type: str
) -> None:
    stage = await open_stage(make_services(ONE_CALL), silent_tools)
    await declare(stage, "cancel")
    stage.app.say("go")
    say(stage, client.ToolCancelled(await device_call(stage), effect, "two of three"))
    await stage.quiet()
    (result,) = results(stage)
    assert (result["success"], result["error_type"]) == (success, error_type)
    words = json.dumps(result)
    assert ("two of three" in words) == (effect != "none")
    assert ("Nothing was done" in words) == (effect == "none")
    assert loose_ends(stage.session) == {}


@pytest.mark.parametrize("effect", ["none", "partial", "complete"])
async def test_the_late_report_of_an_interrupted_call_is_told(
    effect: Literal["none", "partial", "complete"],
) -> None:
    scripts: list[Script] = [[call("device.do")], [TextDelta("I see.")], [TextDelta("Next.")]]
    stage, call_id = await calling(with_tools(make_services(scripts), STOPPABLE), "cancel")
    stage.app.interrupt()
    await stage.settled()
    say(stage, client.ToolCancelled(call_id, effect, "two of three"))
    await stage.quiet()
    assert told_late(stage) == (effect != "none")


@pytest.mark.parametrize("is_late", [False, True], ids=["in time", "after an interruption"])
@pytest.mark.parametrize("effect", ["none", "partial"])
async def test_a_write_that_was_done_in_part_is_not_repeated_without_a_question(
    effect: Literal["none", "partial"], is_late: bool
) -> None:
    def replies(request: ModelRequest) -> Script:
        last = request.messages[-1]
        return [TextDelta("I see.")] if is_late and isinstance(last, Note) else [call("device.do")]

    stage, call_id = await calling(with_tools(make_services(replies), STOPPABLE), "cancel", "approval")
    if is_late:
        stage.app.interrupt()
        await stage.settled()
    say(stage, client.ToolCancelled(call_id, effect))
    if is_late:
        await stage.quiet()
        stage.app.say("again")
    await later(5)
    asked, ran = payloads(stage, "approval.request"), stage.app.shapes().count("device.do")
    assert (len(asked), ran) == ((1, 1) if effect == "partial" else (0, 2))
    assert not asked or "may have happened" in str(asked[0]["reasons"])


def told_late(stage: Stage) -> bool:
    return any("two of three" in text for text in notes(stage))


async def test_a_call_that_timed_out_is_cancelled_at_the_device() -> None:
    stage, call_id = await calling(make_services(ONE_CALL), "cancel")
    await stage.quiet()
    assert payloads(stage, "tool.cancel") == [{"callId": call_id, "reason": "timeout"}]


# -- signs of life


@pytest.mark.parametrize(("capabilities", "seconds"), [(["lease"], 25.0 * 4 + 30.0), ([], 30.0)])
async def test_the_limit_counts_the_silence_since_the_last_sign_of_life(
    capabilities: list[str], seconds: float
) -> None:
    over: list[float] = []

    def replies(request: ModelRequest) -> Script:
        if not isinstance(request.messages[-1], ToolResult):
            return [call("device.do")]
        over.append(asyncio.get_running_loop().time())
        return [TextDelta("Well.")]

    services = make_services(replies, tool_timeout=30.0, turn_timeout=900.0)
    stage = await open_stage(services, silent_tools)
    await declare(stage, *capabilities)
    stage.app.say("go")
    event = await stage.app.until("device.do")
    call_id, start = event["payload"]["callId"], asyncio.get_running_loop().time()
    assert event["payload"].get("timeoutMs") == (30_000 if capabilities else None)
    signs: list[client.ClientEvent] = [
        client.ToolStarted(call_id),
        *[client.ToolProgress(call_id, "on it")] * 3,
    ]
    for sign in signs:
        await later(25.0)
        say(stage, sign)
    await stage.quiet()
    (result,) = results(stage)
    assert result["error_type"] == "unknown"
    assert over[0] - start == pytest.approx(seconds)


@pytest.mark.parametrize("same", [True, False])
async def test_a_write_is_sent_again_only_to_a_client_that_resumes(same: bool) -> None:
    stage = await open_stage(make_services(ONE_CALL, tool_timeout=5.0), silent_tools)
    stage.app.capabilities = ["resume"]
    await stage.app.connect(stage.session)
    stage.app.say("go")
    call_id = await device_call(stage)
    stage.app.line.cut()
    stage.app.relaunch()
    state = client.Resume(stage.app.log[0]["id"]) if same else None
    resume_answer = await learn(stage.session, client.SessionStart(capabilities=["resume"], resume=state))
    since = len(stage.app.log)
    await stage.app.connect(stage.session, answer=resume_answer)
    await later(1)
    assert stage.app.shapes(since).count("device.do") == same
    if same:
        stage.app.result(call_id, "done")
    await stage.quiet()
    assert [r["error_type"] for r in results(stage)] == ["none" if same else "unknown"]
