"""MCP over HTTP: limits of requests, sessions and rates, by person."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from conductor.plugins.auth.tokens import TokenAuthenticator
from conductor.server.auth import Authenticator, Handshake, Principal
from conductor.settings import program_token
from tests.hasty import SHORT_S, hasten
from tests.server.wires import WAIT, get, http, until
from tests.system.mcp.test_toolset import program, use
from tests.system.test_mcp_server import Running, over_http, running, text_of

ANN, BOB = "the-token-of-ann", "the-token-of-bob"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
HEADER = (
    f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:1\r\nAuthorization: Bearer {program_token(ANN)}\r\n"
    "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
)
UNFINISHED = f"{HEADER}Content-Length: 1000\r\n\r\n{{"


class Program:
    """A program with a token; ``session`` is the id of its MCP session, if it has one."""

    def __init__(self, server: Running, token: str, client: httpx2.AsyncClient, query: str = "") -> None:
        self.url = f"http://127.0.0.1:{server.http}/mcp{query}"
        self.client = client
        self.session = ""
        self._token = token

    def headers(self) -> dict[str, str]:
        headers = {
            "Authorization": f"Bearer {program_token(self._token)}",
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
        }
        return headers | ({"Mcp-Session-Id": self.session} if self.session else {})

    async def post(self, method: str = "tools/list", **params: Any) -> int:
        message = {"jsonrpc": "2.0", "id": 2, "method": method, "params": params}
        return (await self.client.post(self.url, json=message, headers=self.headers())).status_code

    async def initialize(self) -> httpx2.Response:
        self.session = ""
        answer = await self.client.post(self.url, json=INITIALIZE, headers=self.headers())
        self.session = answer.headers.get("mcp-session-id", "")
        return answer

    async def end(self) -> None:
        await self.client.delete(self.url, headers=self.headers())

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        """Keep the session's stream open; returns the status."""
        async with self.client.stream("GET", self.url, headers=self.headers()) as answer:
            yield answer.status_code


@asynccontextmanager
async def programs(server: Running, *tokens: str) -> AsyncIterator[list[Program]]:
    async with httpx2.AsyncClient(trust_env=False, timeout=WAIT) as client:
        yield [Program(server, token, client) for token in tokens]


@asynccontextmanager
async def sockets(server: Running, text: str, count: int = 1) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Open connections in turn, and send ``text`` on each."""
    async with AsyncExitStack() as stack:
        readers = []
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.http)
            stack.callback(writer.close)
            writer.write(text.encode())
            readers.append(reader)
        yield readers


async def closed(reader: asyncio.StreamReader) -> bytes:
    """Wait until the server has closed a connection; returns the status line, if there is an answer."""
    try:
        return (await asyncio.wait_for(reader.read(), WAIT)).partition(b"\r\n")[0]
    except ConnectionError:
        return b""


# -- connections


@pytest.mark.parametrize("text", ["", HEADER, UNFINISHED])
async def test_an_incomplete_request_is_cut_in_spite_of_single_bytes(text: str) -> None:
    async with running(ANN, handshake_timeout=SHORT_S, message_timeout=SHORT_S) as server:
        hasten()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.http)
        ended = asyncio.create_task(closed(reader))
        writer.write(text.encode())
        while not ended.done():
            writer.write(b"x" if text else b"")
            await asyncio.wait([ended], timeout=0.001)
        assert await ended in (b"", b"HTTP/1.1 408 Request Timeout")  # lost if a byte came after the close
        writer.transport.abort()


async def test_incomplete_requests_leave_room_for_websockets() -> None:
    async with running(ANN, max_handshakes=3) as server, sockets(server, HEADER, 5) as readers:
        for reader in readers[:2]:
            assert await closed(reader) == b""
        async with server.phone(headers={"Authorization": f"Bearer {ANN}"}) as phone:
            assert phone.shapes() == ["session.started"]


async def test_connections_of_a_person_count_for_http_and_websockets_together() -> None:
    async with (
        running(ANN, BOB, max_connections_per_subject=2) as server,
        programs(server, ANN, BOB) as (ann, bob),
        sockets(server, UNFINISHED) as (_,),
        server.phone(headers={"Authorization": f"Bearer {ANN}"}),
    ):
        await until(lambda: server.listener.connections == 1)
        statuses = [await ann.post()]
        while statuses[-1] != 429:  # the unfinished request may not have been read yet
            statuses.append(await ann.post())
        assert (await bob.initialize()).status_code == 200
        assert (await http(server.listener.port, get("/healthz")))[0] == 200


async def test_a_body_over_the_limit_is_refused() -> None:
    async with running(ANN, hard_event_bytes=2_000) as server, programs(server, ANN) as (ann,):
        assert await ann.post(text="x" * 2_000) == 413
        assert (await ann.initialize()).status_code == 200


async def test_a_body_of_too_many_values_is_refused() -> None:
    async with running(ANN) as server, programs(server, ANN) as (ann,):
        assert await ann.post(values=[0] * 60_000) == 413


@pytest.mark.parametrize("revision", ["2025-06-18", "2026-07-28"])
async def test_a_connection_lost_within_a_body_logs_nothing(
    revision: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(ANN) as server:
        header = UNFINISHED.replace("Content-Length", f"MCP-Protocol-Version: {revision}\r\nContent-Length")
        header = header.replace("Content-Type", "Accept: application/json, text/event-stream\r\nContent-Type")
        async with sockets(server, header):
            await until(lambda: server.listener.access.connections == 1)
        await until(lambda: server.listener.access.connections == 0)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


# -- sessions


async def test_over_a_persons_limit_no_session_opens_until_another_ends() -> None:
    async with (
        running(ANN, BOB, max_sessions_per_subject=2) as server,
        programs(server, ANN, ANN, ANN, BOB) as (first, second, third, bobs),
    ):
        statuses = [(await program.initialize()).status_code for program in (first, second, third, bobs)]
        assert statuses == [200, 200, 429, 200]
        async with over_http(server, ANN) as modern:  # has no session
            assert modern.protocol_version.startswith("2026")
        await first.end()
        while (await third.initialize()).status_code == 429:
            pass
        assert [await program.post() for program in (first, second, third)] == [404, 200, 200]


async def test_sessions_that_open_at_once_share_the_limit() -> None:
    async with (
        running(ANN, max_sessions_per_subject=3) as server,
        programs(server, *[ANN] * 8) as all_of_them,
    ):
        answers = await asyncio.gather(*(program.initialize() for program in all_of_them))
        assert sorted(answer.status_code for answer in answers) == [200] * 3 + [429] * 5
        open_ones = [program for program in all_of_them if program.session]
        await open_ones[0].end()
        closed = next(program for program in all_of_them if not program.session)
        while (await closed.initialize()).status_code == 429:
            pass


async def test_a_session_belongs_to_one_person() -> None:
    async with running(ANN, BOB) as server, programs(server, ANN, BOB) as (ann, bob):
        await ann.initialize()
        bob.session = ann.session
        assert await bob.post() == 404
        await bob.end()
        assert await ann.post() == 200


@pytest.mark.parametrize("end", ["by its program", "unused"])
async def test_an_ended_session_gets_no_changes(end: str) -> None:
    async with running(ANN, idle_s=SHORT_S if end == "unused" else WAIT) as server:
        async with httpx2.AsyncClient(trust_env=False) as client:
            program = Program(server, ANN, client, "?session=of-some-name")
            await program.initialize()
            assert await program.post() == 200
            assert server.endpoint.watchers == 1
            if end == "by its program":
                await program.end()
            hasten()
            await until(lambda: server.endpoint.watchers == 0)


async def test_a_closed_websocket_gets_no_changes() -> None:
    async with running() as server:
        url = f"ws://127.0.0.1:{server.listener.port}/mcp?session=of-some-name"
        async with connect(url, subprotocols=[Subprotocol("mcp")], proxy=None) as socket:
            for message in (
                INITIALIZE,
                {"jsonrpc": "2.0", "method": "notifications/initialized"},
                {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
            ):
                await socket.send(json.dumps(message))
            await until(lambda: server.endpoint.watchers == 1)
        await until(lambda: server.endpoint.watchers == 0)


async def test_persons_do_not_share_an_mcp_server_of_scope_session() -> None:
    async with (
        use(program(scope="session")) as scoped,
        running(ANN, BOB, toolsets=[scoped.toolset]) as server,
        over_http(server, ANN) as first,
        over_http(server, BOB) as bobs,
        over_http(server, ANN) as second,
    ):
        ann, bob, ann_again = [
            text_of(await client.call_tool("s.pid", {})) for client in (first, bobs, second)
        ]
        assert ann == ann_again != bob


# -- floods

SLOW: dict[str, Any] = {"frames_per_second": 20.0, "frames_burst": 10.0, "flood_timeout": 0.3}


async def test_a_persons_flood_does_not_affect_another_person(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with running(ANN, BOB, **SLOW) as server, programs(server, ANN, BOB) as (ann, bob):

        async def flood() -> None:
            while await ann.post("ping") != 429:
                pass

        await asyncio.gather(*(flood() for _ in range(20)))
        assert (await bob.initialize()).status_code == 200
    assert capsys.readouterr().out.count("MCP client exceeds the message rate") == 1


async def test_a_flood_over_a_websocket_closes_it() -> None:
    # Without the limit on frames, which would close the connection first.
    async with running(**SLOW, wire_frames_burst=1e6, close_timeout=SHORT_S) as server:
        url = f"ws://127.0.0.1:{server.listener.port}/mcp"
        async with connect(url, subprotocols=[Subprotocol("mcp")], proxy=None) as socket:
            with pytest.raises(ConnectionClosed):
                while True:
                    await socket.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}))
                    await asyncio.sleep(0)  # the server runs in the same loop
        assert socket.close_code == 1008


# -- the end of a token


async def ended(stream: AsyncIterator[str]) -> None:
    with suppress(httpx2.HTTPError):
        async for _ in stream:
            pass


async def test_the_stream_of_a_removed_token_is_cut() -> None:
    async with running(ANN, BOB) as server, programs(server, ANN, BOB) as (ann, bob):
        for program in (ann, bob):
            await program.initialize()
        async with (
            ann.client.stream("GET", ann.url, headers=ann.headers()) as of_ann,
            bob.client.stream("GET", bob.url, headers=bob.headers()) as of_bob,
        ):
            assert server.listener.authenticate(TokenAuthenticator((BOB,))) == 1
            await asyncio.wait_for(ended(of_ann.aiter_text()), WAIT)
            assert await ann.post() == 401
            assert await bob.post() == 200 and not of_bob.is_closed


async def test_the_stream_of_a_token_that_ends_is_cut() -> None:
    class Short(Authenticator):
        async def authenticate(self, handshake: Handshake) -> Principal | None:
            return Principal("person-a", expires=time.time() + 0.3, role="program")

    async with running(ANN) as server, programs(server, ANN) as (ann,):
        server.listener.access.authenticator = Short()
        await ann.initialize()
        async with ann.client.stream("GET", ann.url, headers=ann.headers()) as stream:
            await asyncio.wait_for(ended(stream.aiter_text()), WAIT)


# -- the shutdown


async def test_a_stop_with_open_streams_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncExitStack() as stack:
        async with running(ANN, close_timeout=SHORT_S) as server:
            (ann,) = await stack.enter_async_context(programs(server, ANN))
            await ann.initialize()
            await stack.enter_async_context(ann.listening())
            for text in (HEADER, UNFINISHED):
                await stack.enter_async_context(sockets(server, text))
            await stack.enter_async_context(server.phone(headers={"Authorization": f"Bearer {ANN}"}))
            hasten(4 * SHORT_S)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


async def test_http_announces_that_the_list_may_change() -> None:
    async with running(ANN) as server, programs(server, ANN) as (ann,):
        assert '"listChanged":true' in (await ann.initialize()).text
