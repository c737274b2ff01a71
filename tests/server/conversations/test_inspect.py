"""The capability ``inspect``: the tools of a session, each with the decision on a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conductor.settings import load_settings
from tests.app import App
from tests.dialogues import DELETE, LOOK, begin
from tests.models import AnthropicService
from tests.serving import configured, write_rules

TOKEN = "correct-horse-battery-staple"


async def listed(phone: App) -> dict[str, Any]:
    """Ask for the tools; gives the payload of the answer."""
    since = len(phone.log)
    phone.send("tools.list", {})
    payload: dict[str, Any] = (await phone.until("tools.listed", since=since))["payload"]
    return payload


def by_name(payload: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {tool["name"]: tool for tool in payload["tools"]}


async def test_the_tools_of_all_sources_are_listed_with_their_schemas(
    claude: AnthropicService, tmp_path: Path
) -> None:
    async with configured(claude, tmp_path) as server, server.phone() as phone:
        await begin(phone, "inspect", tools=[{**LOOK, "title": "Look around"}, DELETE])
        payload = await listed(phone)
    tools = by_name(payload)
    assert {tool["source"] for tool in payload["tools"]} == {"builtin", "device"}
    assert tools["look"] == {
        "name": "look",
        "title": "Look around",
        "source": "device",
        "risk": "safe",
        "decision": "allow",
        "reason": "It is safe.",
        "inputSchema": LOOK["inputSchema"],
    }
    assert (tools["delete_file"]["title"], tools["delete_file"]["decision"]) == ("delete_file", "ask")
    assert (payload["model"], payload["promptName"], payload["models"]) == ("anthropic", "voice", [])
    assert "voice" in payload["prompt"] and len(payload["promptVersion"]) == 12


async def test_a_reload_of_the_rules_shows_in_the_next_list(claude: AnthropicService, tmp_path: Path) -> None:
    async with configured(claude, tmp_path) as server, server.phone() as phone:
        await begin(phone, "inspect")
        assert by_name(await listed(phone))["calculator"]["decision"] == "allow"
        write_rules(tmp_path, {"effect": "deny", "tool": "calculator"})
        server.reload()
        assert by_name(await listed(phone))["calculator"]["decision"] == "disabled"


@pytest.mark.parametrize(
    ("values", "inspectors"),
    [
        ({}, "local"),
        ({"host": "192.0.2.7"}, "off"),
        ({"host": "192.0.2.7", "inspect": "on"}, "on"),
        ({"trusted_proxies": "10.0.0.0/8"}, "off"),
        ({"inspect": "off"}, "off"),
    ],
)
def test_clients_may_inspect_on_loopback_or_as_the_operator_says(
    values: dict[str, Any], inspectors: str
) -> None:
    assert load_settings(None, **values).inspectors == inspectors


# https://developer.mozilla.org/docs/Web/HTTP/Reference/Headers, and the headers of Cloudflare, Fastly,
# Fly.io, Envoy and the ingress of Kubernetes.
FORWARDED = (
    *("X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port", "X-Forwarded-Server"),
    *("Forwarded", "x-real-ip", "Via", "CF-Connecting-IP", "True-Client-IP", "Fastly-Client-IP"),
    *("Fly-Client-IP", "X-Client-IP", "X-Cluster-Client-IP", "X-Original-Forwarded-For"),
    "X-Envoy-External-Address",
)


@pytest.mark.parametrize("header", FORWARDED)
async def test_a_client_behind_a_proxy_of_this_machine_is_not_local(
    claude: AnthropicService, tmp_path: Path, header: str
) -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    forwarded = {**bearer, header: "198.51.100.7"}
    async with configured(claude, tmp_path, auth_tokens=TOKEN) as server:
        async with server.phone(headers=forwarded) as phone:
            await begin(phone, "inspect", "diagnostics")
            assert "inspect" not in phone.events("session.started")[-1]["payload"]["capabilities"]
            phone.send("tools.list", {})
            await phone.until("diagnostic", code="missing_capability")
        async with server.phone("s-2", headers=bearer) as phone:
            await begin(phone, "inspect", "diagnostics")
            await listed(phone)
        # The session keeps the capability of its local client.
        phone = server.phone("s-2", headers=forwarded)
        await phone.open(start=False)
        phone.send("tools.list", {})
        await phone.until("diagnostic", code="missing_capability")
        assert phone.events("tools.listed") == []
        await phone.close()


async def test_the_operator_can_allow_it_behind_a_proxy(claude: AnthropicService, tmp_path: Path) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "X-Forwarded-For": "198.51.100.7"}
    async with configured(claude, tmp_path, auth_tokens=TOKEN, inspect="on") as server:
        async with server.phone(headers=headers) as phone:
            await begin(phone, "inspect")
            await listed(phone)


async def test_the_operator_can_withhold_the_capability(claude: AnthropicService, tmp_path: Path) -> None:
    async with configured(claude, tmp_path, inspect="off") as server, server.phone() as phone:
        await begin(phone, "inspect", "diagnostics")
        assert "inspect" not in phone.events("session.started")[-1]["payload"]["capabilities"]
        phone.send("tools.list", {})
        refused = await phone.until("diagnostic", code="missing_capability")
        assert "tools.list" in refused["payload"]["message"]
        assert phone.events("tools.listed") == []
