"""What ended is freed at once: a session or a connection that waits for the garbage collector is a leak."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import pytest
from websockets.asyncio.server import ServerConnection

from conductor.stores.health import HealthCheckedStore
from tests.dialogues import DEVICE, LOOK, MOVE, ask_aloud, ask_deciding, begin, calls
from tests.models import AnthropicService, HttpFailure, Reply
from tests.server.api import backend
from tests.server.nodes import Shelf, calm, two_nodes
from tests.server.wires import until
from tests.serving import Served, provider_for, serving

Scenario: TypeAlias = Callable[[Served, AnthropicService, str], Awaitable[Any]]
OURS = ("conductor.", "websockets.server", "websockets.asyncio")


@contextmanager
def freed_at_once() -> Iterator[None]:
    """Fail if the block leaves objects of our classes that only the garbage collector frees."""
    gc.freeze()  # what is there already is not looked at
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield
        gc.collect()
        kinds = map(type, gc.garbage)
        ours = Counter(kind.__qualname__ for kind in kinds if kind.__module__.startswith(OURS))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not ours


async def says_hello(served: Served, claude: AnthropicService, name: str) -> None:
    claude.play(Reply("Hello."))
    async with served.phone(name) as phone:
        await phone.ask("Hello.")


async def uses_tools(served: Served, claude: AnthropicService, name: str) -> None:
    claude.play(calls(("look", "a"), ("look", "b")), Reply("Seen."))
    async with served.phone(name, tools=DEVICE) as phone:
        await begin(phone, "resume", "segments", "metrics", tools=[LOOK])
        await phone.ask("Look.")


async def decides_on_a_card(served: Served, claude: AnthropicService, name: str) -> None:
    claude.play(calls(("move_file", "a")), Reply("Moved."))
    async with served.phone(name, tools=DEVICE) as phone:
        await begin(phone, "approval", tools=[MOVE])
        await ask_deciding(phone, "Move it.")


async def answers_a_spoken_question(served: Served, claude: AnthropicService, name: str) -> None:
    claude.play(calls(("move_file", "a")), Reply("Moved."))
    async with served.phone(name, tools=DEVICE) as phone:
        await begin(phone, tools=[MOVE])
        await ask_aloud(phone, "Move it.", "yes")


async def interrupts(served: Served, claude: AnthropicService, name: str) -> None:
    claude.play(Reply("A long story.", hold=asyncio.Event()))
    async with served.phone(name) as phone:
        phone.say("Tell me a story.")
        await phone.until("state thinking")
        phone.interrupt()
        await phone.idle()


async def loses_its_network(served: Served, claude: AnthropicService, name: str) -> None:
    claude.play(Reply("Hello."))
    phone = served.phone(name)
    await phone.open()
    phone.say("Hello.")
    await phone.until("state thinking")
    phone.socket.cut()
    await phone.close()


async def returns_on_another_connection(served: Served, claude: AnthropicService, name: str) -> None:
    claude.play(Reply("Hello."))
    async with served.phone(name) as first, served.phone(name) as second:
        await second.ask("Hello.")
        await first.close()


async def hears_of_a_failure(served: Served, claude: AnthropicService, name: str) -> None:
    claude.play(HttpFailure(400, "invalid_request_error", "No."))
    async with served.phone(name) as phone:
        await phone.ask("Hello.")


async def sends_odd_events(served: Served, claude: AnthropicService, name: str) -> None:
    async with served.phone(name) as phone:
        phone.link.write(b"{")  # type: ignore[union-attr] # it is open
        phone.send("session.start", {"capabilities": ["diagnostics", "inspect"], "tools": [{}]})
        await phone.until("error")


@pytest.mark.parametrize(
    "scenario",
    [
        says_hello,
        uses_tools,
        decides_on_a_card,
        answers_a_spoken_question,
        interrupts,
        loses_its_network,
        returns_on_another_connection,
        hears_of_a_failure,
        sends_odd_events,
    ],
)
async def test_a_session_that_ended_is_freed(scenario: Scenario, claude: AnthropicService) -> None:
    async with serving(provider_for(claude), session_grace=0.0) as served:

        async def play(name: str) -> None:
            await scenario(served, claude, name)
            await served.empty()
            await until(lambda: not len(served.listener.registry))
            await served.listener.registry.end("nobody")  # it waits for sessions that end already

        await play("s-1")  # what a first use makes is kept
        with freed_at_once():
            await play("s-2")


async def test_a_connection_that_is_served_keeps_no_headers_of_its_handshake(
    claude: AnthropicService,
) -> None:
    async with serving(provider_for(claude)) as served, served.phone("s-1"):
        (connection,) = vars(served.listener)["_connections"]
        socket: ServerConnection = vars(connection)["_socket"]
        assert socket.request is not None and not socket.request.headers
        assert socket.response is None


async def test_a_session_that_moved_to_another_node_is_freed(file_shelf: Shelf) -> None:
    async with two_nodes(file_shelf) as (a, b):

        async def move() -> None:
            async with a.phone() as old, b.phone() as new:
                await old.ask("one")
                await calm(a)
                await new.ask("two")
                old.interrupt()
                await a.until_lost()
            for each in (a, b):
                await each.empty()
                await each.listener.registry.end("anonymous")

        await move()
        with freed_at_once():
            await move()


async def test_a_request_of_the_backend_is_freed() -> None:
    async with backend() as served:

        async def ask() -> None:
            for path in ("/v1/sessions", "/v1/sessions/nobody", "/v1/sessions?limit=0"):
                await served.ask("GET", path)

        await ask()
        with freed_at_once():
            await ask()


async def test_what_was_read_of_people_is_freed_when_they_leave(claude: AnthropicService) -> None:
    tokens = tuple(f"the-token-of-person-{number}" for number in range(5))
    async with serving(provider_for(claude), tokens=tokens, session_grace=0.0) as served:
        store, records = served.listener.services.store, served.listener.services.subject_records
        assert records is not None and isinstance(store, HealthCheckedStore)
        for token in tokens:
            claude.play(Reply("Hello."))
            async with served.phone(token, headers={"Authorization": f"Bearer {token}"}) as phone:
                await phone.ask("Hello.")
                assert len(records.subjects) == 1
        await until(lambda: not len(served.listener.registry))
        await served.listener.registry.end("nobody")
        assert not records.subjects and not len(vars(store.inner)["_counts"])
