"""The device's tools: what is listed, and a call that is its answer."""

from __future__ import annotations

import asyncio

from conductor.tools.base import CallContext, ToolSpec, failed, succeeded
from conductor.tools.device import DeviceToolset, PendingCalls

WAIT = 5.0
SPEC = ToolSpec("agent.status", "Tell an agent's state.", {"type": "object"})


def test_the_tools_offered_are_those_given() -> None:
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
