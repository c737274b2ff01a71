"""The device's answers, in time, late, repeated or never, while commits really take time."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence

import pytest

from conductor.errors import StoreError, StoreUnavailable
from conductor.messages import Note, ToolResult
from conductor.models.base import TextDelta
from conductor.models.scripted import Script
from conductor.stores.base import OpenCall, Operation
from tests.conversation.helpers import (
    SPOKEN,
    SlowStore,
    Stage,
    call,
    faults,
    later,
    loose_ends,
    make_services,
    randomly_slow,
    run,
    stage,
    steps,
)

ONE_CALL: list[Script] = [[call("device.do")], [TextDelta("Done.")], [TextDelta("Next.")]]


def silent_tools(name: str, call_id: str) -> str | None:
    """Acknowledge the interface; leave tools to the test."""
    return SPOKEN if name.startswith(("convo.", "tts.")) else None


def results(one: Stage) -> list[dict[str, object]]:
    return [json.loads(m.content) for m in one.session.messages if isinstance(m, ToolResult)]


def notes(one: Stage) -> list[str]:
    return [m.text for m in one.session.messages if isinstance(m, Note)]


async def device_call(one: Stage, name: str = "device.do") -> str:
    event = await one.app.until(name)
    return str(event["payload"]["callId"])


def told(one: Stage, marker: str) -> bool:
    """Whether the model was, or will be, told of a result: by its call's result, or by a note."""
    return any(r["data"] == marker for r in results(one)) or any(marker in text for text in notes(one))


@pytest.mark.parametrize("seed", [3, 5, 8, 13])
def test_a_result_reaches_the_model_once(seed: int) -> None:
    async def scenario() -> None:
        one = await stage(make_services(ONE_CALL, store=randomly_slow(random.Random(seed))), silent_tools)
        one.app.say("go")
        call_id = await device_call(one)
        one.app.result(call_id, "heron")
        one.app.result(call_id, "again")
        await one.quiet()
        (result,) = results(one)
        assert (result["success"], result["data"]) == (True, "heron")
        assert notes(one) == []
        assert loose_ends(one.session) == {}
        await one.close()

    run(scenario())


def test_a_call_without_an_answer_is_unknown_at_its_limit_and_its_late_result_is_told() -> None:
    async def scenario() -> None:
        one = await stage(make_services(ONE_CALL, tool_timeout=30.0), silent_tools)
        loop = asyncio.get_running_loop()
        one.app.say("go")
        call_id = await device_call(one)
        begun = loop.time()
        await one.app.until("assistant.speech.final")
        assert loop.time() - begun == pytest.approx(30.0)
        (result,) = results(one)
        assert result["error_type"] == "unknown"
        one.app.result(call_id, "heron")
        one.app.result(call_id, "twice")
        await one.quiet()
        one.app.say("and?")
        await one.quiet()
        (note,) = notes(one)
        assert "heron" in note
        await one.close()

    run(scenario())


def test_a_late_result_is_too_late_after_ten_minutes() -> None:
    async def scenario() -> None:
        one = await stage(make_services(ONE_CALL), silent_tools)
        one.app.say("go")
        call_id = await device_call(one)
        await one.quiet()
        await later(601)
        one.app.result(call_id, "heron")
        one.app.say("and?")
        await one.quiet()
        assert notes(one) == []
        await one.close()

    run(scenario())


@pytest.mark.parametrize("name", ["device.look", "device.do"])
def test_a_result_after_an_interruption_is_told_in_the_next_turn(name: str) -> None:
    async def scenario() -> None:
        one = await stage(make_services([[call(name)], [TextDelta("Next.")]]), silent_tools)
        one.app.say("go")
        call_id = await device_call(one, name)
        one.app.interrupt()
        await one.settled()
        one.app.result(call_id, "heron")
        one.app.say("and?")
        await one.quiet()
        assert any("heron" in text for text in notes(one))
        assert faults(one.session.messages) == []
        await one.close()

    run(scenario())


def test_a_call_whose_turn_was_stopped_is_not_replayed() -> None:
    async def scenario() -> None:
        one = await stage(make_services([[call("device.look")]]), silent_tools)
        one.app.say("go")
        await device_call(one, "device.look")
        one.app.interrupt()
        await one.settled()
        assert one.app.line is not None
        one.app.line.hang_up()
        since = len(one.app.raw)
        one.app.connect(one.session)
        await steps(10)
        assert "device.look" not in [e["payload"].get("name") for e in one.app.raw[since:]]
        await one.close()

    run(scenario())


async def held_expiry(one: Stage, store: SlowStore) -> str:
    """Let a call's limit pass while commits are held, so that its time-out waits to be recorded."""
    one.app.say("go")
    call_id = await device_call(one)
    await steps(20)
    store.hold = asyncio.Event()
    await later(31)
    return call_id


def test_a_result_that_comes_while_the_time_out_is_committed_is_told_later() -> None:
    async def scenario() -> None:
        store = SlowStore()
        one = await stage(make_services(ONE_CALL, store=store), silent_tools)
        call_id = await held_expiry(one, store)
        one.app.result(call_id, "heron")
        await steps(10)
        assert store.hold is not None
        store.hold.set()
        await one.quiet()
        one.app.say("and?")
        await one.quiet()
        assert told(one, "heron")
        await one.close()

    run(scenario())


def test_a_time_out_that_comes_while_the_result_is_committed_changes_nothing() -> None:
    async def scenario() -> None:
        store = SlowStore()
        one = await stage(make_services(ONE_CALL, store=store), silent_tools)
        one.app.say("go")
        call_id = await device_call(one)
        await steps(20)
        store.hold = asyncio.Event()
        one.app.result(call_id, "heron")
        await later(31)
        store.hold.set()
        await one.quiet()
        (result,) = results(one)
        assert result["data"] == "heron"
        one.app.say("and?")
        await one.quiet()
        assert notes(one) == []
        await one.close()

    run(scenario())


def test_a_result_that_is_being_committed_when_the_turn_ends_is_told() -> None:
    async def scenario() -> None:
        store = SlowStore()
        one = await stage(make_services(ONE_CALL, store=store), silent_tools)
        one.app.say("go")
        call_id = await device_call(one)
        await steps(20)
        store.hold = asyncio.Event()
        one.app.result(call_id, "heron")
        await steps(5)
        assert one.session._turns._turn is not None
        one.session._turns._turn.stop("timed_out")  # as the turn's clock does
        await steps(5)
        store.hold.set()
        await one.quiet()
        one.app.say("and?")
        await one.quiet()
        assert told(one, "heron")
        assert faults(one.session.messages) == []
        await one.close()

    run(scenario())


def test_a_result_that_comes_while_the_turns_end_is_committed_is_told() -> None:
    async def scenario() -> None:
        store = SlowStore()
        one = await stage(make_services(ONE_CALL, store=store), silent_tools)
        one.app.say("go")
        call_id = await device_call(one)
        await steps(20)
        assert one.session._turns._turn is not None
        store.hold = asyncio.Event()
        one.session._turns._turn.stop("timed_out")
        await steps(5)
        one.app.result(call_id, "heron")
        await steps(5)
        store.hold.set()
        await one.quiet()
        one.app.say("and?")
        await one.quiet()
        assert told(one, "heron")
        await one.close()

    run(scenario())


def test_a_time_out_that_finds_its_turn_over_keeps_the_call_as_late() -> None:
    async def scenario() -> None:
        store = SlowStore()
        one = await stage(make_services(ONE_CALL, store=store), silent_tools)
        one.app.say("go")
        call_id = await device_call(one)
        await steps(20)
        assert one.session._turns._turn is not None
        store.hold = asyncio.Event()
        one.session._turns._turn.stop("timed_out")
        await steps(5)  # the turn's end is being committed, without a result of the call
        one.session._tasks.spawn(one.session._device.time_out(call_id))  # as the call's limit does
        await steps(5)
        store.hold.set()
        await one.quiet()
        one.app.result(call_id, "heron")
        one.app.say("and?")
        await one.quiet()
        assert told(one, "heron")
        await one.close()

    run(scenario())


def test_a_result_that_could_not_be_recorded_still_reaches_the_model() -> None:
    async def scenario() -> None:
        store = SlowStore()
        one = await stage(make_services(ONE_CALL, store=store), silent_tools)
        one.app.say("go")
        call_id = await device_call(one)
        await steps(20)
        failures = iter([StoreUnavailable("away")])
        store.fail = lambda operations: next(failures, None)
        one.app.result(call_id, "heron")
        await one.quiet()
        one.app.say("and?")
        await one.quiet()
        assert told(one, "heron")
        await one.close()

    run(scenario())


def test_a_time_out_that_could_not_be_recorded_still_ends_the_wait() -> None:
    async def scenario() -> None:
        store = SlowStore()
        one = await stage(make_services(ONE_CALL, store=store), silent_tools)
        one.app.say("go")
        await device_call(one)
        await steps(20)
        failures = iter([StoreUnavailable("away")])
        store.fail = lambda operations: next(failures, None)
        await one.quiet()
        (result,) = results(one)
        assert result["error_type"] == "unknown"
        assert one.app.finals() == ["Done."]
        await one.close()

    run(scenario())


def test_a_result_that_overtakes_a_time_out_which_was_not_recorded_does_not_fail_the_turn() -> None:
    async def scenario() -> None:
        store = SlowStore()
        one = await stage(make_services(ONE_CALL, store=store), silent_tools)
        call_id = await held_expiry(one, store)
        failures = iter([StoreUnavailable("away")])
        store.fail = lambda operations: next(failures, None)
        assert store.hold is not None
        hold, store.hold = store.hold, asyncio.Event()
        one.app.result(call_id, "heron")  # waits behind the time-out's commit
        await steps(5)
        hold.set()
        await steps(5)
        store.hold.set()
        await one.quiet()
        assert one.app.errors() == []
        assert one.app.finals() == ["Done."]
        await one.close()

    run(scenario())


def test_tools_declared_anew_while_a_call_is_committed_do_not_fail_the_turn() -> None:
    async def scenario() -> None:
        store = SlowStore()
        hold = asyncio.Event()
        scripts: list[Script] = [[hold, call("device.do")], [TextDelta("Done.")]]
        one = await stage(make_services(scripts, store=store))
        one.app.say("go")
        await steps(20)
        store.hold = asyncio.Event()
        one.app.agent_done("a-1")  # a commit that the round's must wait for
        await steps(5)
        hold.set()
        await steps(5)
        one.session._profile.declare([])  # as session.update does, which waits for no commit
        store.hold.set()
        await one.app.until("assistant.speech.final")
        assert one.app.errors() == []
        await one.close()

    run(scenario())


@pytest.mark.parametrize("how", ["stopped", "not recorded"])
def test_no_future_is_left_of_a_call_that_was_never_waited_for(how: str) -> None:
    async def scenario() -> None:
        store = SlowStore()
        one = await stage(make_services(ONE_CALL, store=store), silent_tools)

        def fail(operations: Sequence[Operation]) -> StoreError | None:
            opens = any(isinstance(o, OpenCall) for o in operations)
            if opens and how == "stopped" and one.session._turns._turn is not None:
                one.session._turns._turn.stop("interrupted")
            return StoreUnavailable("away") if opens and how == "not recorded" else None

        store.fail = fail
        one.app.say("go")
        await one.settled()
        assert len(one.session._device._pending) == 0
        await one.close()

    run(scenario())
