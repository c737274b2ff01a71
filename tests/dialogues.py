"""What the tests of tools and approvals share: declared tools, and a person who is asked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.app import App, Tool
from tests.models import AnthropicService, Call, Reply
from tests.serving import provider_for, serving
from tests.shapes import Event


def declared(name: str, *, properties: dict[str, Any] | None = None, **annotations: bool) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties or {"path": {"type": "string"}}}
    return {"name": name, "description": f"{name}.", "inputSchema": schema, "annotations": annotations}


def extended(tool: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Declare a tool with fields that MCP does not have."""
    return {**tool, "_meta": {"conductor": fields}}


LIMIT_MS = 60
LOOK = declared("look", readOnlyHint=True)
MOVE = declared("move_file", destructiveHint=False)
DELETE = declared("delete_file", destructiveHint=True)
SAVE = extended(declared("save_note"), approval="never")
TOOLS = [LOOK, MOVE, DELETE]
SLOW_SAVE = extended(declared("save_note"), approval="never", timeoutMs=LIMIT_MS)
DEVICE = {"look": lambda a: "seen", "move_file": lambda a: "moved", "delete_file": lambda a: "deleted"}


def call(name: str, path: str = "a") -> Call:
    return Call(name, {"path": path})


def calls(*pairs: tuple[str, str]) -> Reply:
    """Make a reply that calls tools, each by its name and path."""
    return Reply(calls=tuple(call(name, path) for name, path in pairs))


@asynccontextmanager
async def talking(
    claude: AnthropicService,
    *capabilities: str,
    tools: list[dict[str, Any]] | None = None,
    device: Mapping[str, Tool] | None = None,
    acknowledge: Any = lambda name: True,
    **limits: Any,
) -> AsyncIterator[App]:
    """Run a server and an app with declared ``tools``, which ``device`` runs."""
    async with serving(provider_for(claude), **limits) as served:
        async with served.phone(tools=device, acknowledge=acknowledge) as phone:
            await begin(phone, *capabilities, tools=tools)
            yield phone


async def begin(phone: App, *capabilities: str, tools: list[dict[str, Any]] | None = None) -> None:
    """Declare the tools in a second ``session.start``."""
    since = len(phone.log)
    phone.send("session.start", {"capabilities": ["tools", *capabilities], "tools": tools or TOOLS})
    await phone.until("session.started", since=since)


async def decide(phone: App, request: Event, decision: str, **fields: Any) -> Event:
    """Decide on a card; gives the server's answer."""
    since = len(phone.log)
    phone.decide_card(request, decision, **fields)
    approval_id = request["payload"]["approvalId"]
    return await phone.until("approval.resolved", approvalId=approval_id, since=since)


async def ask_deciding(phone: App, text: str, decision: str = "allow", **fields: Any) -> Event:
    """Say something that leads to one card, decide on it, and wait for the end of the turn."""
    since = len(phone.log)
    phone.say(text)
    request = await phone.until("approval.request", since=since)
    await decide(phone, request, decision, **fields)
    await phone.idle(since=since)
    return request


async def ask_aloud(phone: App, text: str, *answers: str) -> None:
    """Say something that leads to spoken questions, answer each, and wait for the end of the turn."""
    since = len(phone.log)
    phone.say(text)
    for answer in answers:
        prompt = await phone.until("tts.speak", since=since)
        opened = await phone.until("state idle", since=prompt)
        since = phone.log.index(opened) + 1
        phone.say(answer)
    final = await phone.until("assistant.speech.final", since=since)
    await phone.until("state idle", since=final)


def cards(phone: App) -> list[Event]:
    """List the cards."""
    return phone.events("approval.request")


def prompts(phone: App) -> list[str]:
    """List the spoken questions."""
    return [text for text in phone.speeches() if "May I " in text]


def results_of(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Read the tool results of a request's last message, in order."""
    blocks = request["messages"][-1]["content"]
    return [json.loads(text_of(block)) for block in blocks if block["type"] == "tool_result"]


def text_of(block: dict[str, Any]) -> str:
    content = block["content"]
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


def last_text(request: dict[str, Any]) -> str:
    """Read the text that a request ends with."""
    content = request["messages"][-1]["content"]
    if isinstance(content, str):
        return content
    return "\n".join(block["text"] for block in content if block["type"] == "text")


def fails_with(text: str) -> Any:
    def tool(_: dict[str, Any]) -> str:
        raise RuntimeError(text)

    return tool


async def update(phone: App, tools: list[Any]) -> Event:
    """Declare other tools."""
    since = len(phone.log)
    phone.send("session.update", {"tools": tools})
    return await phone.until("tools.changed", since=since)


def call_id(event: Event) -> str:
    return str(event["payload"]["callId"])
