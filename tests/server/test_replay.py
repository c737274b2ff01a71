"""The records of a session over HTTP, for the page: content and access."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from websockets.datastructures import Headers

from conductor.app import make_services, running
from conductor.conversation import records as r
from conductor.conversation.replay import moments, plain_moment
from conductor.errors import StoreUnavailable
from conductor.identity import ANONYMOUS
from conductor.plugins.auth.tokens import TokenAuthenticator
from conductor.server.auth import Handshake
from conductor.server.listener import Listener
from conductor.settings import load_settings
from conductor.stores.base import SessionKey, SessionLog, Stored
from conductor.stores.memory import MemoryStore
from tests.models import ScriptedProvider
from tests.server.wires import get, http

TOKEN, OTHER = "a-token-of-a-person", "a-token-of-another"
AT = 1_772_366_400_123
PATH = "/replay.json?session=talk-1"


@asynccontextmanager
async def served(store: SessionLog | None = None, **values: Any) -> AsyncIterator[Listener]:
    """Run a server."""
    loaded = load_settings(None, port=0, **values)
    services = make_services(loaded, ScriptedProvider([]))
    async with running(loaded, services if store is None else replace(services, store=store)) as listener:
        yield listener


async def subject_of(token: str) -> str:
    handshake = Handshake("/", Headers(Authorization=f"Bearer {token}"))
    principal = await TokenAuthenticator([token]).authenticate(handshake)
    assert principal is not None
    return principal.id


async def talk(listener: Listener, subject: str, session_id: str = "talk-1") -> Stored:
    """Store a session of a turn and an acknowledgement."""
    store, key = listener.services.store, SessionKey(subject, session_id)
    claim = await store.claim(key)
    records = (
        r.Claimed(claim.token),
        r.TurnStarted(cause="transcript", limit_ms=30_000, event_id="in-1", text="Hello."),
    )
    await store.append(claim, "commit-1", r.encode(r.Commit(claim=claim.token, at=AT, records=records)))
    end = r.Commit(claim=claim.token, at=AT + 5, records=(r.TurnEnded(reason="answered"),), acked=("evt-1",))
    await store.append(claim, "commit-2", r.encode(end))
    stored = await store.read(key)
    assert stored is not None
    return stored


async def read(listener: Listener, path: str, *headers: str) -> tuple[int, Any]:
    """Ask; returns the status and the content, as JSON after a success."""
    status, answer = await http(listener.port, get(path, *headers))
    body = answer.partition("\r\n\r\n")[2]
    return status, json.loads(body) if status == 200 else body


def bearer(token: str) -> str:
    return f"Authorization: Bearer {token}"


async def test_it_gives_the_output_of_the_command() -> None:
    async with served() as listener:
        stored = await talk(listener, ANONYMOUS)
        lines = [plain_moment(moment) for moment in moments(stored.commits(), stored.meta.revision)]
        plain = json.loads(json.dumps(lines))
        assert [line["name"] for line in plain] == ["Claimed", "TurnStarted", "Acknowledged", "TurnEnded"]
        status, steps = await read(listener, PATH)
        assert status == 200
        assert steps == [{name: line[name] for name in line if name != "state"} for line in plain]
        # The states are read one by one: all of them may take megabytes.
        for number in (1, 2, 3):
            of_number = [line for line in plain if line["number"] == number]
            assert await read(listener, f"{PATH}&number={number}") == (200, of_number)
        assert await read(listener, f"{PATH}&number=x") == (200, [])


async def test_another_token_does_not_read_it() -> None:
    async with served(auth_tokens=(TOKEN, OTHER)) as listener:
        await talk(listener, await subject_of(TOKEN))
        assert (await read(listener, PATH, bearer(TOKEN)))[0] == 200
        assert (await read(listener, PATH, bearer(OTHER)))[0] == 404
        assert (await read(listener, PATH, bearer("wrong")))[0] == 401
        assert (await read(listener, PATH))[0] == 401


async def test_other_records_are_not_found() -> None:
    async with served() as listener:
        await talk(listener, ANONYMOUS, "$grants")  # the server's own
        assert (await read(listener, "/replay.json?session=$grants"))[0] == 404
        assert (await read(listener, "/replay.json"))[0] == 404
    async with served(web="off") as listener:
        await talk(listener, ANONYMOUS)
        status, text = await read(listener, PATH)
        assert status == 404 and "Connect a WebSocket" in text


@pytest.mark.parametrize("headers", [("Origin: http://evil.test",), ()])
async def test_a_page_of_another_host_may_not_read_it(headers: tuple[str, ...]) -> None:
    async with served() as listener:
        await talk(listener, ANONYMOUS)
        host = "localhost:8080" if headers else "evil.test"  # without Origin: DNS rebinding
        request = f"GET {PATH} HTTP/1.1\r\nHost: {host}\r\n" + "".join(f"{line}\r\n" for line in headers)
        assert (await http(listener.port, f"{request}\r\n"))[0] == 403


class AwayStore(MemoryStore):
    """A store that cannot be read."""

    async def read(self, key: SessionKey) -> Stored | None:
        raise StoreUnavailable("The session store cannot be reached.")


async def test_a_store_that_is_away_is_a_sentence() -> None:
    async with served(store=AwayStore()) as listener:
        assert await read(listener, PATH) == (503, "The session store cannot be reached.\n")
