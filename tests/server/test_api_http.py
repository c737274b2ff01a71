"""The HTTP layer of the API: one port with the WebSockets, keys, scopes, bodies, errors."""

from __future__ import annotations

import asyncio
import datetime
import re
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from conductor.commands.reload import reload
from conductor.errors import SettingsError
from conductor.messages import ToolCall
from conductor.models.base import Finished, TextDelta, Usage
from conductor.plugins.api.keys import read_keys
from conductor.settings import load_settings
from tests.server.api import KEYS, Backend, backend
from tests.server.test_replay import AwayStore
from tests.server.wires import get, http, upgrade

HELLO = [TextDelta("Good morning.")]


async def test_requests_and_sockets_share_the_port() -> None:
    async with backend([HELLO]) as served, served.phone() as phone:
        await phone.ask("Hello.")
        answer = await served.ask("GET", "/v1/sessions")
        assert answer.status == 200 and [item["id"] for item in answer.body["sessions"]] == ["s-1"]
        assert answer.headers["Cache-Control"] == "no-store" and answer.headers["Server"] == "conductor"
        assert (await served.ask("GET", "/v1/sessions/s-1")).status == 200


@pytest.mark.parametrize("path", ["/v11/sessions", "/v", "/v1x", "/other?x=/v1/"])
async def test_other_paths_are_the_websockets(path: str) -> None:
    async with backend() as served:
        status, answer = await http(served.listener.port, get(path))
        assert status == 404 and "Connect a WebSocket" in answer


async def test_a_target_in_pieces_finds_its_protocol() -> None:
    async with backend() as served:
        key = f"Authorization: Bearer {KEYS['read']}"
        for request, status in ((get("/v1/sessions", key, "Connection: close"), 200), (upgrade(), 101)):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.listener.port)
            for part in (request[:1], request[1:6], request[6:9], request[9:]):
                writer.write(part.encode())
                await writer.drain()
                await asyncio.sleep(0)
            assert int((await reader.readline()).split()[1]) == status
            writer.close()


async def test_a_connection_without_an_accepted_key_is_cut() -> None:
    async with backend(limits={"handshake_timeout": 0.05}) as served:
        assert (await served.ask("GET", "/v1/sessions")).status == 200
        for first in (b"", b"GET /v1", b"GET /v1/sessions HTTP/1.1\r\nHost: x\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.listener.port)
            writer.write(first)
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
        assert (await served.ask("GET", "/v1/sessions")).status == 200


def test_it_runs_on_the_event_loop_of_the_program() -> None:
    async def run() -> None:
        async with backend([HELLO]) as served, served.phone() as phone:
            await phone.ask("Hello.")
            for path in ("/v1/sessions", "/v1/sessions/s-1"):
                assert (await served.ask("GET", path)).status == 200

    uvloop.run(run())


async def test_without_keys_there_is_no_api() -> None:
    async with backend(api_keys=()) as served:
        status, answer = await http(served.listener.port, get("/v1/sessions"))
        assert status == 404 and "Connect a WebSocket" in answer


# -- keys


async def test_a_wrong_key_is_refused_and_limited_and_locks_nobody_out() -> None:
    async with backend() as served:
        for key in (None, "wrong", KEYS["read"][:-1]):
            answer = await served.ask("GET", "/v1/sessions", key=key)
            assert answer.status == 401 and answer.code == "unauthorized"
        statuses = [(await served.ask("GET", "/v1/sessions", key="wrong")).status for _ in range(9)]
        assert statuses == [401] * 7 + [429] * 2
        assert (await served.ask("GET", "/v1/sessions", key="read")).status == 200


async def test_a_key_without_the_scope_is_refused() -> None:
    async with backend() as served:
        answer = await served.ask("GET", "/v1/sessions", key="say")
        assert answer.status == 403 and "scope read" in answer.body["error"]["message"]


async def test_a_reload_takes_changed_keys() -> None:
    async with backend() as served:
        changed = (f"new:{KEYS['say']}-longer:read",)
        edited = served.settings.model_copy(update={"api_keys": changed})
        reload(served.settings, served.services, served.listener, lambda: edited)
        assert (await served.ask("GET", "/v1/sessions", key="all")).status == 401
        assert (await served.ask("GET", "/v1/sessions", key=f"{KEYS['say']}-longer")).status == 200


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("shop", "must be name:key:scope+scope"),
        ("shop:a-long-enough-key-123:read+write", "must be name"),
        (":a-long-enough-key-123:read", "must be name"),
        ("shop:short:read", "16 random"),
        ("a:a-long-enough-key-123:read,a:another-long-enough-key:say", "one name"),
        ("a:a-long-enough-key-123:read,b:a-long-enough-key-123:say", "one key"),
        ("a:the-token-of-a-client:read", "AUTH_TOKENS"),
    ],
)
def test_a_mistake_in_the_keys_is_a_sentence_that_quotes_none(entry: str, reason: str) -> None:
    settings = load_settings(None, api_keys=entry, auth_tokens="the-token-of-a-client")
    with pytest.raises(SettingsError, match=re.escape(reason)) as refused:
        read_keys(settings)
    assert "long-enough" not in str(refused.value) and "short" not in str(refused.value)
    assert "long-enough" not in repr(settings)


# -- requests


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1", 404, "not_found"),
        ("GET", "/v1/nothing", 404, "not_found"),
        ("PUT", "/v1/sessions", 405, "method_not_allowed"),
        ("GET", "/v1/sessions?limit=0", 400, "invalid_request"),
        ("GET", "/v1/sessions?limit=many", 400, "invalid_request"),
        ("GET", "/v1/sessions?pages=2", 400, "invalid_request"),
        ("GET", "/v1/sessions?after=%00", 400, "invalid_request"),
        ("GET", "/v1/sessions/$grants", 404, "not_found"),
        ("GET", "/v1/sessions/nobody", 404, "not_found"),
    ],
)
async def test_a_request_that_fails_is_answered_in_json(
    method: str, path: str, status: int, code: str
) -> None:
    async with backend() as served:
        answer = await served.ask(method, path)
        assert (answer.status, answer.code) == (status, code)


async def test_bytes_that_are_no_http_are_refused_and_the_server_lives() -> None:
    async with backend() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.listener.port)
        writer.write(b"GET /v1/sessions HTTP/9\r\n\x00\r\n\r\n")
        assert b" 400 " in await reader.readline()
        writer.close()
        assert (await served.ask("GET", "/v1/sessions")).status == 200


async def test_a_store_that_is_away_is_told() -> None:
    async with backend(store=AwayStore()) as served:
        answer = await served.ask("GET", "/v1/sessions/s-1?person=anna")
        assert (answer.status, answer.code) == (503, "store_unavailable")


# -- sessions


async def listed(served: Backend, query: str) -> list[str]:
    """Read all pages of a list."""
    ids: list[str] = []
    after = ""
    while True:
        answer = await served.ask("GET", f"/v1/sessions?limit=2{query}{after}")
        assert answer.status == 200 and len(answer.body["sessions"]) <= 2
        ids += [item["id"] for item in answer.body["sessions"]]
        if answer.body["next"] is None:
            return ids
        after = f"&after={answer.body['next']}"


async def test_pages_give_each_session_once_by_person_and_open_or_not(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/sessions.db"  # in memory a session without a client ends
    async with backend(session_store_url=store, limits={"session_grace": 0.0}) as served:
        for number in range(5):
            async with served.phone(f"s-{number}"):
                pass
        await served.released()
        async with served.phone("s-5"):
            assert await listed(served, "") == [f"s-{number}" for number in range(6)]
            assert await listed(served, "&person=anonymous") == [f"s-{number}" for number in range(6)]
            assert await listed(served, "&person=nobody") == []
            assert await listed(served, "&open=true") == ["s-5"]
            assert await listed(served, "&open=false") == [f"s-{number}" for number in range(5)]


async def test_a_list_tells_sessions_apart_and_is_filtered_by_day_tool_and_failure() -> None:
    price = Finished("end_turn", Usage(7, 3), cost=0.5)
    broken = [ToolCall("c-1", "calculator", '{"expression": "1/"}')]
    async with backend([broken, [*HELLO, price], [*HELLO, price]]) as served:
        async with served.phone("s-1") as first, served.phone("s-2") as second:
            await first.ask("Divide. " * 40)
            await second.ask("Hello.")
            one, two = (await served.ask("GET", "/v1/sessions")).body["sessions"]
            assert (two["title"], two["tools"], two["failures"], two["cost"]) == ("Hello.", [], 0, 0.5)
            assert one["title"] == ("Divide. " * 40)[:120]
            assert (one["tools"], one["failures"]) == (["calculator"], 1)
            assert await listed(served, "&tool=CALC") == await listed(served, "&failed=true") == ["s-1"]
            assert await listed(served, "&failed=false") == ["s-2"]
            today = datetime.datetime.now(datetime.UTC).date()
            tomorrow, yesterday = (today + datetime.timedelta(days=days) for days in (1, -1))
            assert await listed(served, f"&since={yesterday}&until={tomorrow}") == ["s-1", "s-2"]
            assert await listed(served, f"&since={tomorrow}") == []
            assert await listed(served, f"&until={yesterday}") == []
            assert (await served.ask("GET", "/v1/sessions?since=monday")).status == 400


async def test_a_session_shows_its_history_and_its_records() -> None:
    reply = [*HELLO, Finished("end_turn", Usage(7, 3), cost=0.5)]
    async with backend([reply, reply]) as served, served.phone() as phone:
        await phone.ask("Hello.")
        answer = await served.ask("GET", "/v1/sessions/s-1", key="read")
        assert [answer.body[name] for name in ("inputTokens", "outputTokens", "cost")] == [7, 3, 0.5]
        assert answer.status == 200 and answer.body["person"] == "anonymous" and answer.body["open"]
        texts = [(message["role"], message["text"]) for message in answer.body["history"]]
        assert texts == [("user", "Hello."), ("assistant", "Good morning.")]
        records = (await served.ask("GET", "/v1/sessions/s-1/records?person=anonymous")).body
        assert [step["name"] for step in records][-3:] == ["TurnStarted", "ReplyLogged", "TurnEnded"]
        number = records[-1]["number"]
        steps = (await served.ask("GET", f"/v1/sessions/s-1/records?number={number}")).body
        assert [step["number"] for step in steps] == [number] and steps[0]["state"]["log"]
        assert (await served.ask("GET", "/v1/sessions/s-1?person=nobody")).status == 404
