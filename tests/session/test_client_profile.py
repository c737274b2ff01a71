"""Declarations of a client, and repeated starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from conductor.events import client
from conductor.events.client import SessionStart
from conductor.events.server import CAPABILITIES
from conductor.messages import ToolCall
from conductor.session.loop import context_of
from conductor.session.services import Services
from conductor.stores.memory import MemoryStore
from conductor.tools.base import no_answer
from conductor.tools.policies import Policies
from conductor.tools.rules import Rule, encode_rules
from tests.session.helpers import (
    CATALOG,
    Disk,
    LocalTools,
    Stage,
    call,
    make_services,
    open_session,
    open_stage,
    steps,
)

LAMP: dict[str, Any] = {
    "name": "lamp.dim",
    "inputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True},
    "_meta": {"conductor": {"timeoutMs": 1500}},
}
DOOR: dict[str, Any] = {"name": "door.open", "inputSchema": {"type": "object"}}


LOCAL = {spec.name for spec in LocalTools().specs()}


async def make_client(services: Services | None = None) -> Stage:
    return await open_stage(services or make_services(toolsets=[LocalTools()]))


async def start(stage: Stage, event: SessionStart) -> dict[str, Any]:
    """Send ``session.start``; returns the payload of the answer."""
    since = len(stage.app.log)
    await stage.session.clients.start(event, stage.app.line, resumed=True)
    (started,) = stage.app.events("session.started", since)
    payload: dict[str, Any] = started["payload"]
    return payload


async def declare(stage: Stage, tools: list[Any]) -> dict[str, Any]:
    """Send ``session.update``; returns the payload of the answer."""
    since = len(stage.app.log)
    stage.app.line.say(client.SessionUpdate(tools))
    await stage.app.until("tools.changed", since=since)
    (changed,) = stage.app.events("tools.changed", since)
    payload: dict[str, Any] = changed["payload"]
    return payload


def names(stage: Stage) -> set[str]:
    return {definition.name for definition in stage.session.gate.executor.definitions}


async def consent(stage: Stage, name: str, **fields: Any) -> str:
    """Have the gate decide about a call: it is free, or needs a yes; else the type of its error."""
    calls = [ToolCall("c1", name, fields.pop("arguments", "{}"))]
    (prepared,) = await stage.session.gate.prepare(calls, is_whole=True)
    return prepared.consent if prepared.result is None else "refused"


async def test_a_client_without_declarations_has_the_catalogs_tools() -> None:
    stage = await make_client()
    assert "acceptedTools" not in await start(stage, SessionStart())
    assert names(stage) == LOCAL | {spec.name for spec in CATALOG}
    assert stage.session.gate.declared == []


async def test_declared_tools_take_the_catalogs_place() -> None:
    stage = await make_client()
    started = await start(stage, SessionStart(capabilities=["tools"], tools=[LAMP]))
    assert started["acceptedTools"] == ["lamp.dim"] and not started.get("rejectedTools")
    assert names(stage) == LOCAL | {"lamp.dim"}
    (prepared,) = await stage.session.gate.prepare([call("lamp.dim")], is_whole=True)
    assert (prepared.limit_ms, prepared.effect, prepared.source) == (1_500, "read", "device")


@pytest.mark.parametrize(
    ("requested", "accepted"),
    [
        (["telepathy", *reversed(list(CAPABILITIES)), "resume"], list(CAPABILITIES)),
        (["late", "approval", "late"], ["approval", "late"]),
        ([], []),
    ],
)
async def test_the_capabilities_of_this_version_are_accepted_in_its_own_order(
    requested: list[str], accepted: list[str]
) -> None:
    stage = await make_client(replace(make_services(), inspect="on"))
    started = await start(stage, SessionStart(capabilities=requested))
    assert list(stage.session.state.profile.capabilities) == accepted
    assert started.get("capabilities", []) == accepted


async def test_the_operators_rules_and_the_persons_grants_decide_for_every_tool() -> None:
    services = make_services()
    ruled = replace(
        services,
        policies=Policies((Rule(effect="deny", tool="device.pick"), Rule(effect="ask", tool="device.look"))),
    )
    stage = await make_client(ruled)
    tools = [{**DOOR, "name": name} for name in ("device.pick", "device.look", "door.open")]
    await start(stage, SessionStart(capabilities=["tools"], tools=tools))
    assert "device.pick" not in names(stage)
    assert [await consent(stage, name) for name in ("device.look", "door.open")] == ["needed", "needed"]
    stage.session.state.grants = encode_rules([Rule(effect="allow", tool="*")])
    assert [await consent(stage, name) for name in ("device.look", "door.open")] == ["needed", "free"]
    stage.session.reload(replace(services, policies=Policies()))
    assert [await consent(stage, name) for name in ("device.pick", "device.look")] == ["free", "free"]


@pytest.mark.parametrize("moves", [False, True])
async def test_tools_that_are_declared_again_are_read_once(moves: bool) -> None:
    stage = await make_client(make_services(toolsets=[LocalTools()], store=Disk()))
    tools = [LAMP, {"name": "broken"}]
    first = await start(stage, SessionStart(capabilities=["tools"], tools=tools))
    if moves:  # to another process
        stage.app.line.cut()
        stage.session = await open_session(stage.services)
        await stage.app.connect(stage.session)
    executor = stage.session.gate.executor
    again = await start(stage, SessionStart(capabilities=["tools"], tools=[dict(tool) for tool in tools]))
    assert stage.session.gate.executor is executor
    assert await stage.session.gate.read(tools) is None
    assert (again["acceptedTools"], again["rejectedTools"]) == (["lamp.dim"], first["rejectedTools"])
    assert [rejected["name"] for rejected in again["rejectedTools"]] == ["broken"]


async def test_a_hint_that_is_corrected_from_a_number_is_read_again() -> None:
    stage = await make_client()
    wrong = {**LAMP, "annotations": {"readOnlyHint": 1}}  # which Python takes for True
    refused = await start(stage, SessionStart(capabilities=["tools"], tools=[wrong]))
    accepted = await start(stage, SessionStart(capabilities=["tools"], tools=[LAMP]))
    assert (refused["acceptedTools"], accepted["acceptedTools"]) == ([], ["lamp.dim"])


async def test_a_name_that_the_server_has_taken_since_is_refused_in_the_next_declaration() -> None:
    services = make_services()
    stage = await make_client(services)
    tools = [{**DOOR, "name": "local.sum"}]
    before = await start(stage, SessionStart(capabilities=["tools"], tools=tools))
    stage.session.reload(replace(services, toolsets=[LocalTools()]))
    after = await start(stage, SessionStart(capabilities=["tools"], tools=tools))
    assert (before["acceptedTools"], after["acceptedTools"]) == (["local.sum"], [])


async def test_a_tool_cannot_be_called_more_often_after_a_new_declaration() -> None:
    stage = await make_client(make_services(calls_per_minute=2.0))
    await start(stage, SessionStart(capabilities=["tools"], tools=[LAMP]))
    consents = []
    for _ in range(3):
        await declare(stage, [LAMP])
        consents.append(await consent(stage, "lamp.dim"))
    assert consents == ["free", "free", "refused"]


async def test_tools_without_the_capability_are_not_taken() -> None:
    stage = await make_client()
    assert "acceptedTools" not in await start(stage, SessionStart(tools=[LAMP]))
    assert "lamp.dim" not in names(stage)


async def test_a_declared_tool_cannot_take_the_name_of_the_servers_own_or_of_the_interface() -> None:
    stage = await make_client()
    bad = [{**LAMP, "name": name} for name in ("local.sum", "convo.setState", "tts.speak")]
    started = await start(stage, SessionStart(capabilities=["tools"], tools=[*bad, LAMP, "nonsense"]))
    assert len(started["rejectedTools"]) == 4
    assert started["acceptedTools"] == ["lamp.dim"]
    spec = stage.session.gate.executor.spec("local.sum")
    assert spec is not None and spec.source == "builtin"


async def test_a_new_declaration_replaces_and_an_empty_one_leaves_no_tools() -> None:
    stage = await make_client()
    await start(stage, SessionStart(capabilities=["tools"], tools=[LAMP]))
    assert (await declare(stage, [{**LAMP, "name": "door.lock"}]))["acceptedTools"] == ["door.lock"]
    await declare(stage, [])
    assert names(stage) == LOCAL


async def test_a_repeated_start_keeps_absent_fields() -> None:
    stage = await make_client()
    event = SessionStart(
        locale="de-CH",
        time_zone="Europe/Zurich",
        instructions="Be formal about herons.",
        capabilities=["tools"],
        tools=[LAMP],
    )
    await start(stage, event)
    prompt = stage.session.gate.system_prompt
    await start(stage, SessionStart(capabilities=["tools"]))
    assert stage.session.gate.system_prompt == prompt
    assert "herons" in prompt
    assert stage.session.gate.declared == ["lamp.dim"]
    context = context_of(stage.session, "c1", no_answer)
    assert (context.session_id, context.call_id) == ("s-1", "c1")
    assert (context.locale, context.time_zone) == ("de-CH", "Europe/Zurich")


async def test_instructions_can_be_taken_back() -> None:
    stage = await make_client()
    await start(stage, SessionStart(instructions="Be formal about herons."))
    await start(stage, SessionStart(instructions=""))
    assert "herons" not in stage.session.gate.system_prompt


async def test_the_github_token_is_kept_nowhere() -> None:
    store = MemoryStore()
    stage = await make_client(make_services(store=store))
    await start(stage, SessionStart(github_token="ghp_not_to_be_found"))
    await steps(5)
    claim = await store.claim(stage.session.key)
    assert b"ghp_not_to_be_found" not in b"".join(claim.commits)
    assert "ghp_not_to_be_found" not in stage.session.gate.system_prompt
