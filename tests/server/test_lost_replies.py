"""A store whose replies are lost: recorded commits are recognized and not repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from conductor.client import Reconnect, connect
from conductor.conversation.phrases import FAILURES
from conductor.conversation.records import EventHandled
from conductor.conversation.replay import replay
from conductor.conversation.state import Conversation
from conductor.errors import StoreUnavailable
from conductor.messages import Note, ToolCall, ToolResult, UserMessage
from conductor.models.base import ModelRequest, TextDelta
from conductor.plugins.stores.sqlite import SqliteStore
from conductor.session.session import Session
from conductor.stores.base import Claim, SessionKey
from conductor.stores.memory import MemoryStore
from tests.hasty import hasten
from tests.models import Script
from tests.server.nodes import KEY, LosesReplies, Node, Shelf, calm, echo, node
from tests.server.wires import WAIT, until
from tests.session import helpers
from tests.shapes import Event

FINISHED = {"agentId": "a", "status": "FINISHED"}


def status(request: ModelRequest) -> Script:
    """Look the agent up, and report whether it saw a heron."""
    last = request.messages[-1]
    if isinstance(last, ToolResult):
        return [TextDelta(f"It said {'heron' in last.content}.")]
    return [ToolCall("c-1", "agent.status", '{"id":"a"}')]


def is_final(text: str) -> Callable[[Event], bool]:
    return lambda e: bool(e["type"] == "assistant.speech.final" and e["payload"]["text"] == text)


@pytest.mark.parametrize("number", range(12))
async def test_a_session_continues_after_a_lost_reply(file_shelf: Shelf, number: int) -> None:
    def replies(request: ModelRequest) -> Script:
        if isinstance(request.messages[-1], UserMessage):
            return [TextDelta("I look."), ToolCall("c-1", "agent.status", '{"id":"a"}')]
        return [TextDelta("It runs.")]

    store = LosesReplies(file_shelf.make())
    async with node(store, replies) as served:
        phone = served.phone(tools={"agent.status": lambda _: '{"status":"running"}'})
        async with phone:
            store.lose(number)
            phone.say("how is it?")
            hasten()  # the pause before the commit is tried again
            final = await phone.until(is_final("It runs."))
            await phone.idle(since=phone.log.index(final))
            assert phone.finals().count("It runs.") == 1
            assert len([s for s in phone.shapes() if s == "append user"]) <= 1
            assert len(phone.runs) == 1
            log = list(served.listener.registry.sessions[0].state.log)
            assert [m.text for m in log if isinstance(m, UserMessage)] == ["how is it?"]
            assert len([m for m in log if isinstance(m, ToolResult)]) == 1
            for _ in range(2):
                since = len(phone.log)
                phone.say("and now?")
                final = await phone.until(is_final("It runs."), since=since)
                await phone.idle(since=phone.log.index(final))
            assert store.lost_replies == 1


@pytest.mark.parametrize("capabilities", [[], ["resume"]])
async def test_a_result_for_a_stale_session_is_not_lost(file_shelf: Shelf, capabilities: list[str]) -> None:
    store = LosesReplies(file_shelf.make())
    async with node(store, status, tool_timeout=60.0) as served:
        async with served.phone(start_fields={"capabilities": capabilities}) as phone:
            phone.say("how is it?")
            call = await phone.until("agent.status")
            store.lose()
            phone.send("agent.completed", FINISHED)
            await until(lambda: store.lost_replies == 1)
            phone.result(call["payload"]["callId"], '"heron"')
            await phone.until("assistant.speech.final")
            assert phone.finals() == ["It said True."]


# -- a session that another process deletes


async def delete(served: Node) -> None:
    """Delete the session, as another process does."""
    assert isinstance(served.store, SqliteStore)
    await served.store.delete(KEY.subject, KEY.session_id)


@pytest.mark.parametrize("capabilities", [[], ["resume"]])
async def test_a_client_whose_session_was_deleted_is_closed_and_starts_again(
    file_shelf: Shelf, capabilities: list[str]
) -> None:
    async with node(file_shelf.make(), echo) as served:
        phone = served.phone(start_fields={"capabilities": capabilities})
        async with phone:
            await phone.ask("one")
            await calm(served)
            await delete(served)
            since = len(phone.log)
            event_id = phone.say("two")
            await asyncio.wait_for(phone.closed.wait(), WAIT)
            assert phone.close_code == 1012
            # An app with ``resume`` says its words again by itself.
            refused = [("store_unavailable", event_id)] if not capabilities else []
            assert [(error["code"], error["eventId"]) for error in phone.errors(since)] == refused
            assert phone.shapes(since) == ["error", "state idle"] * len(refused)
        async with phone:
            since = len(phone.log)
            if not capabilities:
                phone.say("two")
            await phone.until("assistant.speech.final", since=since)
            assert phone.finals(since) == ["Heard two."]


async def test_a_turn_whose_session_is_deleted_ends_with_words(file_shelf: Shelf) -> None:
    async with node(file_shelf.make(), status) as served:
        phone = served.phone(start_fields={"capabilities": ["turns"]})
        async with phone:
            event_id = phone.say("how is it?")
            call = await phone.until("agent.status")
            await delete(served)
            since = len(phone.log)
            phone.result(call["payload"]["callId"], '"heron"')
            end = (await phone.until("turn.ended", since=since))["payload"]
            await asyncio.wait_for(phone.closed.wait(), WAIT)
            assert phone.close_code == 1012
            assert phone.finals(since) == [FAILURES["store_unavailable"]]
            assert phone.shapes(since)[-2:] == ["state idle", "turn.ended"]
            assert (end["eventId"], end["reason"]) == (event_id, "failed")


async def test_the_own_client_goes_on_with_its_tools_after_its_session_was_deleted(
    file_shelf: Shelf,
) -> None:
    reads = {"readOnlyHint": True}
    tools = [{"name": "agent.status", "inputSchema": {"type": "object"}, "annotations": reads}]
    runs: list[Any] = []
    async with node(file_shelf.make(), status) as served:
        handlers, soon = {"agent.status": runs.append}, Reconnect(first_s=0.0)
        client = connect(served.url, "s-1", tools=tools, handlers=handlers, reconnect=soon)
        async with client:
            await (await client.say("how is it?"))
            await delete(served)
            turn = await (await client.say("and now?"))
            assert turn.text == "It said False." and len(runs) == 2


class UnansweredClaim(MemoryStore):
    """A store that can go back in time, and leaves a claim without an answer where it is told so.

    ``applied`` says whether that claim counts all the same.
    """

    def __init__(self, *, applied: bool) -> None:
        super().__init__()
        self.applied = applied
        self.unanswered = False

    async def claim(self, key: SessionKey) -> Claim:
        if not self.unanswered:
            return await super().claim(key)
        self.unanswered = False
        if self.applied:
            await super().claim(key)
        raise StoreUnavailable("The reply was lost.")


@pytest.mark.parametrize("applied", [True, False])
async def test_a_failed_claim_does_not_lose_recovered_commits(applied: bool) -> None:
    store = UnansweredClaim(applied=applied)
    services = helpers.make_services(store=store)
    session = Session(services, store, await store.claim(KEY), Conversation())

    async def commit(event_id: str) -> None:
        await session.commits.decide(lambda: [EventHandled(event_id)])

    earlier = deepcopy(store._sessions)
    await commit("one")
    store._sessions = earlier
    store.unanswered = True
    with pytest.raises(StoreUnavailable):
        await commit("two")
    await commit("three")
    assert list(session.state.handled_ids) == ["one", "three"]
    assert list(replay((await store.claim(KEY)).commits).handled_ids) == ["one", "three"]


# -- notices


def news(request: ModelRequest) -> Script:
    """Answer with the notice, if there is one."""
    return [TextDelta("An agent has finished." if isinstance(request.messages[-1], Note) else "Well.")]
