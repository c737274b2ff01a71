"""One-time tokens: used once, by whom they are for, in time, among several processes and after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from websockets.datastructures import Headers
from websockets.exceptions import InvalidStatus

from conductor.commands.reload import reload
from conductor.models.base import TextDelta
from conductor.plugins.auth.one_time import OneTimeTokens
from conductor.plugins.stores.redis import RedisStore
from conductor.server.access import Client
from conductor.server.auth import Handshake, person_id
from conductor.stores.memory import MemoryStore
from tests.server.api import Backend, backend
from tests.server.test_replay import bearer
from tests.server.wires import WAIT, get, http, until, upgrade
from tests.services.redis_server import RedisServer

HELLO = [TextDelta("Good morning.")]
BOTH: dict[str, Any] = {"auth": ("one_time", "tokens"), "auth_tokens": ("a-token-of-a-client",)}
ANNA = {"issuer": "https://id.example", "id": "anna"}


async def token_of(served: Backend, **body: Any) -> str:
    names = {**ANNA, **body}
    answer = await served.ask("POST", "/v1/tokens", names, key="admin")
    assert answer.status == 200 and answer.body["person"] == person_id(names["issuer"], names["id"])
    return str(answer.body["token"])


async def connect(served: Backend, token: str) -> int:
    return (await http(served.listener.port, upgrade("/ws", bearer(token), "Connection: Upgrade")))[0]


async def test_a_token_connects_its_person_once() -> None:
    async with backend([HELLO], **BOTH) as served:
        token = await token_of(served)
        async with served.phone(headers={"Authorization": f"Bearer {token}"}) as phone:
            await phone.ask("Hello.")
            (session,) = (await served.ask("GET", "/v1/sessions")).body["sessions"]
            named = (await served.ask("GET", "/v1/people?issuer=https://id.example&id=anna")).body
            assert session["person"] == named["person"]
        with pytest.raises(InvalidStatus):
            await served.phone(headers={"Authorization": f"Bearer {token}"}).open()
        assert await connect(served, "once-invented") == 401
        assert await connect(served, "a-token-of-a-client") == 101


async def test_it_works_once_among_workers_and_after_a_restart(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "session_store_url": f"sqlite:///{tmp_path}/s.db",
        **BOTH,
    }
    async with backend(**values) as served:
        tokens = [await token_of(served) for _ in range(2)]
        async with backend(**values) as other:
            both = await asyncio.gather(connect(served, tokens[0]), connect(other, tokens[0]))
            assert sorted(both) == [101, 401]
            assert (await other.ask("GET", "/v1/sessions")).body["sessions"] == []
    async with backend(**values) as restarted:
        assert [await connect(restarted, token) for token in tokens] == [401, 101]


async def test_an_expired_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with backend(**BOTH) as served:
        token = await token_of(served, seconds=10)
        monkeypatch.setattr("conductor.plugins.auth.one_time.time.time", lambda: 4e9)
        assert await connect(served, token) == 401


async def test_an_unused_token_is_deleted_at_its_end() -> None:
    store = MemoryStore()
    await OneTimeTokens(store).make("person-1", None, 0.01)
    assert len(store) == 1
    await until(lambda: not len(store))


async def test_a_connection_is_not_renewed_by_a_token_that_connects() -> None:
    async with backend(**BOTH) as served:
        token = await token_of(served)
        client = Client(person_id("https://id.example", "anna"), expires=4e9)
        assert await served.listener.access.renew(client, token) is None
        assert await connect(served, token) == 101


async def test_a_token_of_a_session_opens_no_other() -> None:
    async with backend(**BOTH) as served:
        headers = {"Authorization": f"Bearer {await token_of(served, session='s-1')}"}
        phone = served.phone("s-2", headers=headers)
        await phone.open(start=False)
        phone.start()
        await phone.until("error", code="session_mismatch")
        phone.session_id = "s-1"
        phone.start()
        await phone.until("session.started")
        await phone.close()
        sessions = (await served.ask("GET", "/v1/sessions")).body["sessions"]
        assert [item["id"] for item in sessions] == ["s-1"]
        path = "/replay.json?session=s-2"
        token = await token_of(served, session="s-1")
        assert (await http(served.listener.port, get(path, bearer(token))))[0] == 401
        await until(lambda: not served.listener.connections)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"person": "p", "id": "x"},
        {"person": "anonymous"},
        {"person": "$grants"},
        {"person": "person-1", "seconds": 9},
        {"person": "person-1", "seconds": 7201},
        {"person": "person-1", "session": "a b"},
    ],
)
async def test_a_token_without_a_person_or_for_too_long_is_refused(body: dict[str, Any]) -> None:
    async with backend(**BOTH) as served:
        assert (await served.ask("POST", "/v1/tokens", body)).status == 400
        assert (await served.ask("POST", "/v1/tokens", {"person": "p"}, key="say")).status == 403


async def test_without_the_authenticator_there_are_no_tokens() -> None:
    async with backend() as served:
        answer = await served.ask("POST", "/v1/tokens", ANNA)
        assert answer.status == 400 and "one_time" in answer.body["error"]["message"]


async def test_a_server_may_admit_by_one_time_tokens_only() -> None:
    async with backend(auth=("one_time",)) as served:
        assert await connect(served, "a-token-of-a-client") == 401
        assert await connect(served, await token_of(served)) == 101


async def test_a_refusal_for_another_reason_does_not_use_the_token_up() -> None:
    async with backend(limits={"max_connections_per_subject": 1}, **BOTH) as served:
        tokens = [await token_of(served) for _ in range(2)]
        async with served.phone(headers={"Authorization": f"Bearer {tokens[0]}"}):
            assert await connect(served, tokens[1]) == 429
            origin = upgrade("/ws", bearer(tokens[1]), "Connection: Upgrade", "Origin: https://evil.example")
            assert (await http(served.listener.port, origin))[0] == 403
        await until(lambda: not served.listener.connections)
        assert await connect(served, tokens[1]) == 101


async def test_a_limit_holds_while_tokens_are_used_up_at_once(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    async with backend(session_store_url=store, limits={"max_connections": 1}, **BOTH) as served:
        tokens = [await token_of(served, id=str(number)) for number in range(3)]
        statuses = await asyncio.gather(*(connect(served, token) for token in tokens))
        assert sorted(statuses) == [101, 503, 503]
        await until(lambda: not served.listener.connections)
        assert await connect(served, tokens[statuses.index(503)]) == 101


async def test_who_connected_with_a_one_time_token_stays_only_while_it_is_an_authenticator() -> None:
    async with backend([HELLO], **BOTH) as served:
        phone = served.phone(headers={"Authorization": f"Bearer {await token_of(served)}"})
        await phone.open()
        reload(served.settings, served.services, served.listener, lambda: served.settings)
        await phone.ask("Hello.")
        alone = served.settings.model_copy(update={"auth": ("tokens",)})
        reload(served.settings, served.services, served.listener, lambda: alone)
        await asyncio.wait_for(phone.closed.wait(), WAIT)
        assert phone.close_code == 1008


async def test_a_page_of_sessions_behind_many_tokens_is_not_empty() -> None:
    async with (
        backend([HELLO], **BOTH) as served,
        served.phone(headers={"Authorization": "Bearer a-token-of-a-client"}) as phone,
    ):
        await phone.ask("Hello.")
        for _ in range(7):
            await token_of(served)
        answer = (await served.ask("GET", "/v1/sessions?limit=2")).body
        assert [session["id"] for session in answer["sessions"]] == ["s-1"]


async def test_a_used_token_leaves_nothing_for_long(redis: RedisServer) -> None:
    store = RedisStore(redis.url, prefix="tokens")
    await store.open()
    try:
        tokens = OneTimeTokens(store)
        token, _ = await tokens.make("anna", None, 600.0)
        principal = await tokens.authenticate(Handshake("/ws", Headers(Authorization=f"Bearer {token}")))
        assert principal is not None and principal.redeem is not None and await principal.redeem()
        async with Redis.from_url(redis.url) as direct:
            left = [await direct.pttl(key) async for key in direct.scan_iter("tokens:*")]
        assert all(0 < milliseconds <= 60_000 for milliseconds in left)
    finally:
        await store.aclose()
