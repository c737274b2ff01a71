"""A store whose replies are lost: recorded commits are recognized and not repeated."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest

from conductor.conversation.ledger import replay
from conductor.conversation.records import EventHandled
from conductor.conversation.session import Session
from conductor.conversation.state import Conversation
from conductor.errors import StoreUnavailable
from conductor.messages import Note, ToolCall, ToolResult, UserMessage
from conductor.models.base import ModelRequest, TextDelta
from conductor.plugins.stores.sqlite import SqliteStore
from conductor.stores.base import Claim, SessionKey
from conductor.stores.memory import MemoryStore
from tests.models import Script
from tests.server.nodes import KEY, LosesReplies, Shelf, calm, echo, node
from tests.server.wires import until
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


async def test_a_resuming_client_may_return_after_its_session_is_lost(
    file_shelf: Shelf,
) -> None:
    async with node(file_shelf.make(), echo) as served:
        async with served.phone(start_fields={"capabilities": ["resume"]}) as phone:
            await phone.ask("one")
            await calm(served)
            assert isinstance(served.store, SqliteStore)
            await served.store.delete(KEY.subject, KEY.session_id)
            since = len(phone.log)
            phone.say("two")
            await phone.until("assistant.speech.final", since=since)
            assert phone.close_code != 4409


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
        await session.decide(lambda: [EventHandled(event_id)])

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
