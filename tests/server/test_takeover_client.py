"""The client library between two nodes: each transcript is answered and each write runs once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from conductor.client import Client, connect
from conductor.events.server import SessionStarted
from conductor.messages import ToolCall, ToolResult, UserMessage
from conductor.models.base import ModelRequest, TextDelta
from tests.app import WAIT
from tests.conversation.helpers import faults
from tests.models import Script
from tests.server.door import Door
from tests.server.nodes import KEY, Node, Shelf, calm, stored_log, two_nodes, words

ADD = {"name": "notes.add", "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}}
TOOLS = [{**ADD, "_meta": {"conductor": {"approval": "never"}}}]


def note(request: ModelRequest) -> Script:
    """Record the text, and return the outcome."""
    last = request.messages[-1]
    if isinstance(last, ToolResult):
        return [TextDelta(f"{words(request)[-1]}: {json.loads(last.content)['data']}")]
    return [ToolCall("c-1", "notes.add", json.dumps({"text": words(request)[-1]}))]


class Notes:
    """The app's write tool: it counts its runs, and answers after a release."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.started = asyncio.Event()
        self.let = asyncio.Event()

    async def add(self, arguments: dict[str, Any]) -> str:
        self.ran.append(arguments["text"])
        self.started.set()
        await self.let.wait()
        return f"written {len(self.ran)}"


@asynccontextmanager
async def client_at(node: Node, notes: Notes, **options: Any) -> AsyncIterator[tuple[Client, Door]]:
    """Connect a client through a door to this node."""
    door = Door(node)
    async with door.open() as url:
        handlers = {"notes.add": notes.add}
        async with connect(url, KEY.session_id, tools=TOOLS, handlers=handlers, **options) as client:
            yield client, door


async def comes_back(client: Client, door: Door, to: Node) -> SessionStarted:
    """Lose the network and reconnect to another node."""
    client.drop()
    door.to = to
    return await client.reconnect()


async def test_a_write_runs_once_while_its_client_moves_there_and_back(shelf: Shelf) -> None:
    notes = Notes()
    async with two_nodes(shelf, note, note) as (a, b), client_at(a, notes) as (client, door):
        turn = await client.say("milk")
        await asyncio.wait_for(notes.started.wait(), WAIT)
        assert (await comes_back(client, door, b)).resumed
        assert (await comes_back(client, door, a)).resumed
        notes.let.set()
        result = await turn.wait(WAIT)
        assert result.finals == ("milk: written 1",) and notes.ran == ["milk"]
        assert (await (await client.say("eggs")).wait(WAIT)).text == "eggs: written 2"
        await calm(a)
        assert not b.provider.requests
    await no_fault_in(shelf, ["milk", "eggs"])


async def no_fault_in(shelf: Shelf, texts: list[str]) -> None:
    """Check the stored session: it is valid, has each text once, and no unknown result."""
    log = await stored_log(shelf)
    assert faults(log) == []
    assert [message.text for message in log if isinstance(message, UserMessage)] == texts
    results = [json.loads(message.content) for message in log if isinstance(message, ToolResult)]
    assert [message["error_type"] for message in results] == ["none"] * len(results)
