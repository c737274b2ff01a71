"""Turns that the server starts by itself: an agent has ended."""

from __future__ import annotations

from typing import Any

from tests.models import AnthropicService, Call, Reply
from tests.serving import provider_for, serving


async def test_tools_that_change_while_a_turn_runs_are_shown_to_the_model_in_the_next_turn(
    claude: AnthropicService,
) -> None:
    def tool(name: str) -> dict[str, Any]:
        hints = {"_meta": {"conductor": {"approval": "never"}}}
        return {"name": name, "inputSchema": {"type": "object"}, **hints}

    claude.replies += [Reply(calls=(Call("lamp_one", {}),), thinking="Hm."), Reply(text="Done.")]
    fields = {"capabilities": ["tools"], "tools": [tool("lamp.one")]}
    async with serving(provider_for(claude)) as served, served.phone(start_fields=fields) as phone:
        phone.say("light, please")
        call = await phone.until("lamp.one")
        phone.send("session.update", {"tools": [tool("lamp.two")]})
        await phone.until("tools.changed")
        phone.result(call["payload"]["callId"], "on")
        await phone.idle(since=phone.log.index(call))
        await phone.ask("and now?")
    first, second, third = claude.requests
    assert first["tools"] == second["tools"] != third["tools"]
    assert second["messages"][1]["content"][0]["type"] == "thinking"
    assert "lamp_two" in [tool["name"] for tool in third["tools"]]
