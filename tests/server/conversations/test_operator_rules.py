"""Rules of the operator deny, ask and allow calls, and are reloaded while the server runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from conductor.commands.reload import watch_policies
from tests.dialogues import (
    DEVICE,
    ask_deciding,
    begin,
    calls,
    cards,
    decide,
    results_of,
)
from tests.models import AnthropicService, Reply
from tests.server.wires import WAIT, until
from tests.serving import Configured, configured, write_rules


async def test_rules_deny_ask_and_allow_by_their_arguments(claude: AnthropicService, tmp_path: Path) -> None:
    write_rules(
        tmp_path,
        {"effect": "allow", "tool": "move_*", "args": {"path": {"under": "notes"}}},
        {"effect": "ask", "tool": "look", "args": {"path": {"glob": "*.key"}}},
        {"effect": "deny", "tool": "*", "source": "device", "args": {"path": {"glob": "*secrets/*"}}},
    )
    claude.replies += [
        calls(("move_file", "notes/a"), ("look", "."), ("look", "./secrets/x"), ("look", "my.key")),
        calls(("move_file", "notes/../b")),
        Reply(text="Done."),
    ]
    async with configured(claude, tmp_path) as server, server.phone(tools=DEVICE) as phone:
        await begin(phone, "approval")
        since = len(phone.log)
        phone.say("do all that")
        by_rule = await phone.until("approval.request", name="look")
        assert by_rule["payload"]["arguments"] == {"path": "my.key"}
        assert any("rules ask first" in reason for reason in by_rule["payload"]["reasons"])
        assert sorted(phone.runs) == [("look", {"path": "."}), ("move_file", {"path": "notes/a"})]
        await decide(phone, by_rule, "allow")
        climbing = await phone.until("approval.request", name="move_file")
        assert climbing["payload"]["arguments"] == {"path": "notes/../b"}
        await decide(phone, climbing, "deny")
        await phone.idle(since=since)
        assert len(cards(phone)) == 2 and len(phone.runs) == 3
    first = results_of(claude.requests[-2])
    assert [result["error_type"] for result in first] == ["none", "none", "permission_denied", "none"]
    assert "rules forbid it" in first[2]["error_message"]


async def test_reloaded_rules_hold_for_open_sessions(claude: AnthropicService, tmp_path: Path) -> None:
    claude.default = lambda request: (
        calls(("look", "."))
        if isinstance(last := request["messages"][-1]["content"], str) or last[-1]["type"] == "text"
        else Reply(text="Well.")
    )
    async with configured(claude, tmp_path) as server, server.phone(tools=DEVICE) as phone:
        await begin(phone, "approval")
        await phone.ask("look")
        assert len(phone.runs) == 1
        write_rules(tmp_path, {"effect": "ask", "tool": "look"})
        server.reload()
        await ask_deciding(phone, "look")
        write_rules(tmp_path, {"effect": "no such effect", "tool": "look"})
        server.reload()  # a mistake changes nothing
        await ask_deciding(phone, "look")
        assert len(phone.runs) == 3
        write_rules(tmp_path, {"effect": "deny", "tool": "look"})
        server.reload()
        await phone.ask("look")
        assert results_of(claude.requests[-1])[0]["error_type"] == "not_found"
        (tmp_path / "policies.json").write_text("{")
        server.reload()
        await phone.ask("look")
        assert results_of(claude.requests[-1])[0]["error_type"] == "not_found", "it is denied as before"
        write_rules(tmp_path)
        server.reload()
        await phone.ask("look")
        assert len(phone.runs) == 4 and len(cards(phone)) == 2


@asynccontextmanager
async def watched(server: Configured) -> AsyncIterator[None]:
    """Have the server look after its rules file, as often as it can."""
    watching = asyncio.create_task(watch_policies(server.settings, server.listener, every=0))
    try:
        yield
    finally:
        watching.cancel()


async def test_a_running_server_takes_changed_rules_up_by_itself(
    claude: AnthropicService, tmp_path: Path
) -> None:
    claude.replies += [calls(("look", ".")), Reply(text="Seen."), calls(("look", ".")), Reply(text="No.")]
    async with configured(claude, tmp_path) as server, server.phone(tools=DEVICE) as phone, watched(server):
        await begin(phone, "approval")
        await phone.ask("look")
        assert len(phone.runs) == 1
        write_rules(tmp_path, {"effect": "ask", "tool": "look"})
        await until(lambda: len(server.listener.services.policies.rules) == 1)
        await ask_deciding(phone, "look", "deny")
        write_rules(tmp_path)
        await until(lambda: not server.listener.services.policies.rules)


async def test_misspelt_tools_in_rules_and_in_allowed_tools_are_logged_at_the_start(
    claude: AnthropicService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rules(tmp_path, {"effect": "deny", "tool": "agent.cancle"})
    output = ""
    async with configured(claude, tmp_path, allowed_tools=("agent.stauts",)) as server, watched(server):
        async with asyncio.timeout(WAIT):
            while not all(name in output for name in ("agent.cancle", "agent.stauts")):
                await asyncio.sleep(0)
                output += capsys.readouterr().out
