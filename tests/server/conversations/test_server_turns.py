"""Turns that the server starts by itself: an agent has ended."""

from __future__ import annotations

from typing import Any

from tests.app import App
from tests.dialogues import last_text
from tests.models import AnthropicService, Call, Reply
from tests.serving import provider_for, serving
from tests.shapes import PLAIN_TURN

NARRATION = PLAIN_TURN[2:]  # no "thinking", no appended user message


def end_agent(phone: App, agent: str, **more: Any) -> None:
    phone.send("agent.completed", {"agentId": agent, "status": "finished", **more})


async def test_an_agent_that_has_ended_is_narrated(claude: AnthropicService) -> None:
    claude.replies.append(Reply(text="Your agent is done."))
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        end_agent(phone, "a-1", summary="Fixed the typo in the README.")
        await phone.idle()
        assert phone.shapes(1) == NARRATION
        assert phone.speeches() == ["Your agent is done."]
    assert "Fixed the typo" in last_text(claude.requests[-1])


async def test_tools_that_the_client_declares_replace_the_catalog(claude: AnthropicService) -> None:
    torch = {
        "name": "torch.set",
        "description": "Switch the torch.",
        "inputSchema": {
            "type": "object",
            "properties": {"on": {"type": "boolean"}},
            "required": ["on"],
            "additionalProperties": False,
        },
        "_meta": {"conductor": {"approval": "never"}},
    }
    fields = {"capabilities": ["tools", "telepathy"], "tools": [torch, {"name": "tts.speak"}, 7]}
    claude.replies += [Reply(calls=(Call("torch_set", {"on": "true"}),)), Reply(text="There is light.")]
    async with serving(provider_for(claude)) as served:
        phone = served.phone(start_fields=fields, tools={"torch.set": lambda a: "on"})
        async with phone:
            started = phone.log[0]["payload"]
            assert started["capabilities"] == ["tools"]
            assert started["acceptedTools"] == ["torch.set"]
            assert len(started["rejectedTools"]) == 2
            await phone.ask("make light")
            assert phone.runs == [("torch.set", {"on": True})]
    names = [tool["name"] for tool in claude.requests[-1]["tools"]]
    assert "torch_set" in names
    assert "agent_spawn" not in names


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
