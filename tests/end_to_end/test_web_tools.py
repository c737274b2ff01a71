"""A turn with a tool of tools.toml and a search: the key is redacted, and a later change asks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from conductor.app import make_services, running
from conductor.messages import ToolCall, ToolResult
from conductor.models.base import ModelRequest, TextDelta
from conductor.models.scripted import Script, ScriptedProvider
from conductor.settings import load_settings
from tests.end_to_end.phone import WAIT, Phone
from tests.end_to_end.test_approvals import begin, decide, of_type
from tests.stand_ins.searxng import searxng
from tests.tools.web_site import site

TOOLS = """
[[tool]]
name = "light.set"
description = "Set the light."
method = "POST"
url = "{url}"
headers = {{X-Key = "${{LIGHT_KEY}}"}}
risk = "safe"
untrusted = false
allow = ["127.0.0.0/8"]
input_schema = {{type = "object", properties = {{level = {{type = "integer"}}}}, required = ["level"]}}
"""
KEY = "key-of-the-light-1234"


async def test_a_search_and_then_a_change_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHT_KEY", KEY)
    calls = iter(
        [("light.set", '{"level": 1}'), ("web_search", '{"query": "x"}'), ("light.set", '{"level": 2}')]
    )

    def reply(request: ModelRequest) -> Script:
        name, arguments = next(calls, ("", ""))
        return [ToolCall("c", name, arguments)] if name else [TextDelta("Done.")]

    provider = ScriptedProvider(reply)
    async with site(searxng()) as engine, site(lambda r: {"seen": r.headers["X-Key"]}) as light:
        (tmp_path / "tools.toml").write_text(TOOLS.format(url=light.url("/light")))
        settings = load_settings(
            None, port=0, http_tools_file=tmp_path / "tools.toml", web_search=engine.url("")
        )
        services = make_services(settings, provider)
        async with running(settings, services) as listener, asyncio.timeout(WAIT):
            async with Phone(f"ws://127.0.0.1:{listener.port}/ws") as phone:
                await begin(phone, "approval")
                await phone.say("light, then news")
                search = await phone.until(of_type("approval.request", name="web_search"))
                assert [one[3] for one in light.asked] == ['{"level": 1}']  # safe: it did not ask
                await decide(phone, search, "allow")
                change = await phone.until(of_type("approval.request", name="light.set"))
                assert len(light.asked) == 1
                resolved = await decide(phone, change, "deny")
                await phone.idle(since=phone.log.index(resolved))
    results = [one for one in provider.requests[-1].messages if isinstance(one, ToolResult)]
    assert "[REDACTED" in results[0].content and KEY not in results[0].content
    assert '"number":8' in results[1].content and "e.example/7" in results[1].content
