"""The device's tools: the list, and calls that wait for an answer."""

from __future__ import annotations

import asyncio

import pytest

from conductor.tools.base import CallContext, ToolSpec, failed, succeeded
from conductor.tools.device import DeviceToolset, PendingCalls

WAIT = 5.0
SPEC = ToolSpec("agent.status", "Tell an agent's state.", {"type": "object"})


def test_the_specs_are_copied() -> None:
    specs = [SPEC]
    toolset = DeviceToolset(specs, PendingCalls())
    specs.clear()
    assert list(toolset.specs()) == [SPEC]
    assert list(DeviceToolset([], PendingCalls()).specs()) == []


async def test_a_call_waits_for_the_answer_to_its_own_id() -> None:
    pending = PendingCalls()
    toolset = DeviceToolset([SPEC], pending)
    pending.expect("c-1")
    pending.expect("c-2")
    calling = asyncio.create_task(toolset.call(SPEC.name, {}, CallContext("s-1", "c-1")))
    await asyncio.wait([calling], timeout=0)
    pending.answer("c-2", succeeded("another"))
    await asyncio.wait([calling], timeout=0)
    assert not calling.done()
    outcome = failed("internal_error", "It broke.")
    pending.answer("c-1", outcome)
    assert await asyncio.wait_for(calling, WAIT) is outcome


async def test_an_answer_that_overtakes_the_call_is_used() -> None:
    pending = PendingCalls()
    pending.expect("c-1")
    pending.answer("c-1", succeeded("early"))
    toolset = DeviceToolset([SPEC], pending)
    outcome = await asyncio.wait_for(toolset.call(SPEC.name, {}, CallContext("s-1", "c-1")), WAIT)
    assert outcome.data == "early"


async def test_an_answer_wakes_its_waiter() -> None:
    pending = PendingCalls()
    pending.expect("c-1")
    waiting = asyncio.create_task(pending.wait("c-1"))
    outcome = succeeded("x")
    assert pending.answer("c-1", outcome) is True
    assert await asyncio.wait_for(waiting, WAIT) is outcome
    assert len(pending) == 0


async def test_a_repeated_answer_is_ignored() -> None:
    pending = PendingCalls()
    pending.expect("c-1")
    assert pending.answer("c-1", succeeded("first"))
    assert pending.answer("c-1", succeeded("second")) is False
    assert (await asyncio.wait_for(pending.wait("c-1"), WAIT)).data == "first"


async def test_an_unknown_or_late_answer_is_ignored() -> None:
    pending = PendingCalls()
    assert pending.answer("c-1", succeeded("x")) is False
    pending.expect("c-1")
    pending.forget("c-1")
    assert pending.answer("c-1", succeeded("x")) is False and len(pending) == 0


async def test_a_cancelled_wait_is_forgotten() -> None:
    pending = PendingCalls()
    pending.expect("c-1")
    waiting = asyncio.create_task(pending.wait("c-1"))
    await asyncio.wait([waiting], timeout=0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, WAIT)
    assert len(pending) == 0 and pending.answer("c-1", succeeded("x")) is False


async def test_forgetting_a_call_cancels_its_waiter() -> None:
    pending = PendingCalls()
    pending.expect("c-1")
    waiting = asyncio.create_task(pending.wait("c-1"))
    await asyncio.wait([waiting], timeout=0)
    pending.forget("c-1")
    pending.forget("c-1")
    await asyncio.wait([waiting], timeout=WAIT)
    assert waiting.cancelled()


async def test_an_unexpected_call_cannot_be_awaited() -> None:
    with pytest.raises(KeyError):
        await PendingCalls().wait("c-1")
