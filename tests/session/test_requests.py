"""Calls that a program of the person makes: by the same rules, recorded, and without a word."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from conductor.messages import AssistantMessage, Note, ToolResult
from conductor.models.base import TextDelta
from conductor.session import programs
from conductor.session.programs import MAX_REQUESTS
from tests.session.helpers import Disk, LocalTools, faults, later, make_services, open_stage, steps, tool


def outcome(result: ToolResult) -> dict[str, Any]:
    outcome_of_call: dict[str, Any] = json.loads(result.content)
    return outcome_of_call


async def test_a_device_call_of_a_program_is_silent() -> None:
    stage = await open_stage(make_services(), lambda name, arguments: f"{name} done")
    result = outcome(await programs.request(stage.session, "device.do", '{"x":1}'))
    assert (result["success"], result["data"]) == (True, "device.do done")
    assert stage.app.speeches() == [] and stage.app.finals() == [] and stage.provider.requests == []
    assert stage.app.states()[-1] == "idle"
    note, call, logged = stage.session.state.log
    assert isinstance(note, Note) and "device.do" in note.text
    assert isinstance(call, AssistantMessage) and isinstance(logged, ToolResult)
    assert faults(stage.session.state.log) == []


async def test_server_calls_and_invalid_calls_have_results() -> None:
    stage = await open_stage(make_services(toolsets=[LocalTools()]))
    assert outcome(await programs.request(stage.session, "local.sum", '{"x":2}'))["data"] == {
        "ran": "local.sum",
        "x": 2,
    }
    wrong = outcome(await programs.request(stage.session, "local.sum", '{"x":"no"}'))
    assert wrong["error_type"] == "validation_failed"
    assert outcome(await programs.request(stage.session, "no.such", "{}"))["error_type"] == "not_found"
    assert outcome(await programs.request(stage.session, "local.sum", "{"))["error_type"] == "parse_error"


async def test_a_call_waits_for_the_running_turn_and_a_transcript_stops_it() -> None:
    local = LocalTools()
    services = make_services([[TextDelta("Hello."), 5.0], [TextDelta("Yes?")]], toolsets=[local])
    stage = await open_stage(services, say="hello")
    await later(1)
    request = asyncio.create_task(programs.request(stage.session, "local.write", "{}"))
    await later(1)
    assert not local.started.is_set()
    await local.started.wait()
    stage.app.say("are you there")
    result = outcome(await request)
    assert result["error_type"] == "unknown"
    await stage.quiet()
    assert stage.app.finals() == ["Hello.", "Yes?"]
    assert faults(stage.session.state.log) == []


async def test_a_call_that_is_cancelled_ends() -> None:
    local = LocalTools()
    stage = await open_stage(make_services([[TextDelta("Fine.")]], toolsets=[local]))
    request = asyncio.create_task(programs.request(stage.session, "local.wait", "{}"))
    waiting = asyncio.create_task(programs.request(stage.session, "local.sum", "{}"))
    await local.started.wait()
    waiting.cancel()
    request.cancel()
    await stage.quiet()
    assert not stage.session.busy and local.ran == []
    await stage.ask("well")
    assert stage.app.finals() == ["Fine."]


@pytest.mark.parametrize(("words", "success"), [("yes please", True), ("no", False)])
async def test_a_gated_call_asks_the_person(words: str, success: bool) -> None:
    services = replace(make_services(), catalog=(tool("device.move", effect="write"),))
    stage = await open_stage(services, lambda name, arguments: "moved")
    request = asyncio.create_task(programs.request(stage.session, "device.move", '{"x":1}'))
    await stage.app.until("tts.speak")
    stage.app.say(words)
    assert outcome(await request)["success"] is success
    await stage.quiet()
    assert stage.provider.requests == []


async def test_too_many_calls_are_refused() -> None:
    local = LocalTools()
    stage = await open_stage(make_services(toolsets=[local]))
    first = asyncio.create_task(programs.request(stage.session, "local.wait", "{}"))
    await local.started.wait()
    requests = [
        asyncio.create_task(programs.request(stage.session, "local.sum", "{}")) for _ in range(MAX_REQUESTS)
    ]
    await steps(3)
    assert outcome(await programs.request(stage.session, "local.sum", "{}"))["error_type"] == "rate_limited"
    local.go.set()
    assert all(outcome(result)["success"] for result in await asyncio.gather(first, *requests))


async def test_the_next_process_ends_the_call_without_asking_the_model() -> None:
    store, local = Disk(), LocalTools()
    services = make_services(store=store, toolsets=[local])
    stage = await open_stage(services)
    request = asyncio.create_task(programs.request(stage.session, "local.write", "{}"))
    await local.started.wait()
    next_stage = await open_stage(services)  # claims the session
    await next_stage.quiet()
    assert next_stage.provider.requests == [] and next_stage.app.speeches() == []
    assert "unknown" in str(next_stage.session.state.log[-1])
    request.cancel()
