"""Declarations of a client, and repeated starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from conductor.conversation.client_profile import ClientProfile
from conductor.events.client import SessionStart
from conductor.events.server import CAPABILITIES
from conductor.messages import ToolCall
from conductor.tools.base import ToolOutcome
from conductor.tools.device import PendingCalls
from conductor.tools.executor import ApprovalNeeded, PreparedCall
from conductor.tools.rules import Rule
from tests.conversation.helpers import CATALOG, LocalTools, make_services

LAMP: dict[str, Any] = {
    "name": "lamp.dim",
    "inputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True},
    "_meta": {"conductor": {"timeoutMs": 1500}},
}
DOOR: dict[str, Any] = {"name": "door.open", "inputSchema": {"type": "object"}}


def make_profile() -> ClientProfile:
    return ClientProfile(make_services(toolsets=[LocalTools()]), "s-1", PendingCalls())


def names(profile: ClientProfile) -> set[str]:
    return {definition.name for definition in profile.executor.definitions}


LOCAL = {spec.name for spec in LocalTools().specs()}


def test_a_client_without_declarations_has_the_catalogs_tools() -> None:
    profile = make_profile()
    assert profile.start(SessionStart()) is None
    assert names(profile) == LOCAL | {spec.name for spec in CATALOG}
    assert profile.declared == []


def test_declared_tools_take_the_catalogs_place() -> None:
    profile = make_profile()
    assert profile.start(SessionStart(capabilities=["tools"], tools=[LAMP])) == []
    assert names(profile) == LOCAL | {"lamp.dim"}
    assert profile.capabilities == ("tools",)
    terms = profile.limits_for("lamp.dim")
    assert (terms.limit, terms.effect) == (1.5, "read")


def test_the_capabilities_of_this_version_are_accepted_in_its_own_order() -> None:
    profile = make_profile()
    for requested, accepted in (
        (["telepathy", *reversed(list(CAPABILITIES)), "resume"], list(CAPABILITIES)),
        (["late", "approval", "late"], ["approval", "late"]),
        ([], []),
    ):
        profile.start(SessionStart(capabilities=requested))
        assert list(profile.capabilities) == accepted


@pytest.mark.parametrize(("capabilities", "timeout_ms"), [([], None), (["lease"], 600_000)])
def test_a_client_with_a_lease_gets_the_time_limits_of_calls(
    capabilities: list[str], timeout_ms: int | None
) -> None:
    profile = make_profile()
    profile.start(SessionStart(capabilities=capabilities))
    prepared = profile.executor.prepare(ToolCall("c1", "device.pick", '{"x":"7"}'))
    assert isinstance(prepared, PreparedCall)
    event = profile.tool_call(prepared)
    assert (event.call_id, event.name, event.arguments) == ("c1", "device.pick", '{"x":7}')
    assert event.timeout_ms == timeout_ms


def test_the_operators_rules_and_the_persons_grants_decide_for_every_tool() -> None:
    services = replace(make_services(), rules=(Rule("deny", "device.pick"), Rule("ask", "device.look")))
    granted: list[Rule] = []
    profile = ClientProfile(services, "s-1", PendingCalls(), lambda: granted)
    profile.declare([{**DOOR, "name": name} for name in ("device.pick", "device.look", "door.open")])

    def kind(name: str) -> type:
        return type(profile.executor.prepare(ToolCall("c1", name, "{}")))

    assert "device.pick" not in names(profile)
    assert (kind("device.look"), kind("door.open")) == (ApprovalNeeded, ApprovalNeeded)
    granted.append(Rule("allow", "*"))
    assert (kind("device.look"), kind("door.open")) == (ApprovalNeeded, PreparedCall)
    profile.reload(replace(services, rules=()))
    assert (kind("device.pick"), kind("device.look")) == (PreparedCall, PreparedCall)


def test_a_new_declaration_does_not_reset_a_tools_rate_limit() -> None:
    profile = ClientProfile(make_services(calls_per_minute=2.0), "s-1", PendingCalls())
    kinds = []
    for _ in range(3):
        profile.declare([LAMP])
        kinds.append(type(profile.executor.prepare(ToolCall("c1", "lamp.dim", "{}"))))
    assert kinds == [PreparedCall, PreparedCall, ToolOutcome]


def test_tools_without_the_capability_are_not_taken() -> None:
    profile = make_profile()
    assert profile.start(SessionStart(tools=[LAMP])) is None
    assert "lamp.dim" not in names(profile)


def test_a_declared_tool_cannot_take_the_name_of_the_servers_own_or_of_the_interface() -> None:
    profile = make_profile()
    bad = [{**LAMP, "name": name} for name in ("local.sum", "convo.setState", "tts.speak")]
    rejected = profile.start(SessionStart(capabilities=["tools"], tools=[*bad, LAMP, "nonsense"]))
    assert rejected is not None
    assert len(rejected) == 4
    assert profile.declared == ["lamp.dim"]
    spec = profile.executor.spec("local.sum")
    assert spec is not None
    assert spec.source == "builtin"


def test_a_new_declaration_replaces_the_tools() -> None:
    profile = make_profile()
    profile.start(SessionStart(capabilities=["tools"], tools=[LAMP]))
    profile.declare([{**LAMP, "name": "door.lock"}])
    assert profile.declared == ["door.lock"]
    profile.declare([])
    assert names(profile) == LOCAL


def test_a_repeated_start_keeps_omitted_values() -> None:
    profile = make_profile()
    profile.start(
        SessionStart(
            locale="de-CH",
            time_zone="Europe/Zurich",
            instructions="Be formal about herons.",
            capabilities=["tools"],
            tools=[LAMP],
        )
    )
    prompt = profile.system_prompt
    profile.start(SessionStart(capabilities=["tools"]))
    assert profile.system_prompt == prompt
    assert "herons" in prompt
    assert profile.declared == ["lamp.dim"]
    context = profile.context("c1")
    assert (context.session_id, context.call_id) == ("s-1", "c1")
    assert (context.locale, context.time_zone) == ("de-CH", "Europe/Zurich")


def test_instructions_can_be_taken_back() -> None:
    profile = make_profile()
    profile.start(SessionStart(instructions="Be formal about herons."))
    profile.start(SessionStart(instructions=""))
    assert "herons" not in profile.system_prompt


def test_the_github_token_is_not_stored() -> None:
    profile = make_profile()
    profile.start(SessionStart(github_token="ghp_not_to_be_found"))
    assert "ghp_not_to_be_found" not in repr(vars(profile))
    assert "ghp_not_to_be_found" not in profile.system_prompt
