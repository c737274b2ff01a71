"""The client library between two nodes: what its person said is answered, and what it did is done once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from conductor.client import Client, Reconnect, Reconnected, connect
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
    """Write down what was said, and tell what came of it."""
    last = request.messages[-1]
    if isinstance(last, ToolResult):
        return [TextDelta(f"{words(request)[-1]}: {json.loads(last.content)['data']}")]
    return [ToolCall("c-1", "notes.add", json.dumps({"text": words(request)[-1]}))]


class Notes:
    """The app's tool that writes: it says how often it ran, and answers when it is let."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.begun = asyncio.Event()
        self.let = asyncio.Event()

    async def add(self, arguments: dict[str, Any]) -> str:
        self.ran.append(arguments["text"])
        self.begun.set()
        await self.let.wait()
        return f"written {len(self.ran)}"


@asynccontextmanager
async def client_at(node: Node, notes: Notes, **options: Any) -> AsyncIterator[tuple[Client, Door]]:
    """Connect a client by a door that leads to this node first."""
    door = Door(node)
    async with door.open() as url:
        handlers = {"notes.add": notes.add}
        async with connect(url, KEY.session_id, tools=TOOLS, handlers=handlers, **options) as client:
            yield client, door


async def comes_back(client: Client, door: Door, to: Node) -> SessionStarted:
    """Lose the network and come back by another node."""
    client.drop()
    door.to = to
    return await client.reconnect()


@pytest.mark.parametrize("resume", [True, False])
async def test_a_write_that_runs_while_its_client_goes_there_and_back_runs_once_and_its_result_counts(
    shelf: Shelf, resume: bool
) -> None:
    notes = Notes()
    async with two_nodes(shelf, note, note) as (a, b), client_at(a, notes, resume=resume) as (client, door):
        turn = await client.say("milk")
        await asyncio.wait_for(notes.begun.wait(), WAIT)
        assert (await comes_back(client, door, b)).resumed
        assert (await comes_back(client, door, a)).resumed
        notes.let.set()
        result = await turn.wait(WAIT)
        assert result.finals == ("milk: written 1",) and notes.ran == ["milk"]
        assert (await (await client.say("eggs")).wait(WAIT)).text == "eggs: written 2"
        await calm(a)
        assert not b.provider.requests
    await no_fault_in(shelf, ["milk", "eggs"])


@pytest.mark.parametrize("resume", [True, False])
async def test_a_result_that_came_while_there_was_no_connection_is_told_to_the_other_node(
    shelf: Shelf, resume: bool
) -> None:
    notes = Notes()
    async with two_nodes(shelf, note, note) as (a, b), client_at(a, notes, resume=resume) as (client, door):
        turn = await client.say("milk")
        await asyncio.wait_for(notes.begun.wait(), WAIT)
        client.drop()
        notes.let.set()
        door.to = b
        assert (await client.reconnect()).resumed
        result = await turn.wait(WAIT)
        assert result.finals == ("milk: written 1",) and notes.ran == ["milk"]
        assert (await comes_back(client, door, a)).resumed
        assert (await (await client.say("eggs")).wait(WAIT)).text == "eggs: written 2"
        await calm(a)
        assert len(a.provider.requests) == 3 and len(b.provider.requests) == 1
    await no_fault_in(shelf, ["milk", "eggs"])


async def test_a_client_that_reconnects_by_itself_goes_on_in_mid_turn_wherever_the_door_leads(
    shelf: Shelf,
) -> None:
    notes, back = Notes(), asyncio.Event()
    again = Reconnect(first_s=0.0)
    async with two_nodes(shelf, note, note) as (a, b), client_at(a, notes, reconnect=again) as (client, door):
        client.on(Reconnected.TYPE, lambda _: back.set())
        turn = await client.say("milk")
        await asyncio.wait_for(notes.begun.wait(), WAIT)
        for node in (b, a, b):
            back.clear()
            door.to = node
            door.cut()
            await asyncio.wait_for(back.wait(), WAIT)
        notes.let.set()
        assert (await turn.wait(WAIT)).finals == ("milk: written 1",) and notes.ran == ["milk"]
        await calm(b)
    await no_fault_in(shelf, ["milk"])


async def test_a_reply_that_was_cut_in_the_middle_is_given_once_by_the_other_node(shelf: Shelf) -> None:
    hold = asyncio.Event()

    def slow(request: ModelRequest) -> Script:
        return [TextDelta("One, "), hold, TextDelta("and never more.")]

    def whole(request: ModelRequest) -> Script:
        return [TextDelta("One, two.")]

    async with two_nodes(shelf, slow, whole) as (a, b), client_at(a, Notes()) as (client, door):
        turn = await client.say("count")
        await asyncio.wait_for(a.provider.record(0).started.wait(), WAIT)
        assert (await comes_back(client, door, b)).resumed
        result = await turn.wait(WAIT)
        assert result.finals == ("One, two.",) and result.ok
        hold.set()
        await a.lost()
        await calm(b)
    await no_fault_in(shelf, ["count"])


async def no_fault_in(shelf: Shelf, said: list[str]) -> None:
    """Check what is kept: it is valid, has each word once, and no result that is unknown."""
    log = await stored_log(shelf)
    assert faults(log) == []
    assert [one.text for one in log if isinstance(one, UserMessage)] == said
    results = [json.loads(one.content) for one in log if isinstance(one, ToolResult)]
    assert [one["error_type"] for one in results] == ["none"] * len(results)
