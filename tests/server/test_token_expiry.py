"""A token that ends while its client is connected: notice, renewal on the open socket, and the close."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest
from structlog.testing import capture_logs
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from conductor.app import make_services, running
from conductor.client import DEFAULT_CAPABILITIES, Lost, Reconnect
from conductor.client import connect as client_of
from conductor.plugins.auth.jwt import LEEWAY_S, PROGRAM_SCOPE, JwtAuthenticator
from conductor.server.expiry import NOTICE_S
from conductor.server.listener import Listener
from conductor.server.websocket import Socket
from conductor.settings import load_settings
from tests.app import App
from tests.hasty import hasten
from tests.server.test_jwt import AUDIENCE, ISSUER, Provider, token
from tests.server.wires import WAIT

# Seconds that the first token of each test has left.
LEFT_S = 1.5


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    settings = load_settings(None, port=0, model_provider="demo", auth_tokens=("a-token-of-the-start",))
    async with running(settings, make_services(settings)) as listener:
        listener.access.authenticator = JwtAuthenticator(ISSUER, AUDIENCE, Provider("RS256").read)
        yield listener


def short_token(**claims: str) -> str:
    return token(exp=time.time() + LEFT_S - LEEWAY_S, **claims)


def phone(listener: Listener, text: str) -> App:
    url = f"ws://127.0.0.1:{listener.port}/ws?token={text}"
    return App(url, session_id="s-1", start_fields={"capabilities": ["goaway"]}, wait_s=WAIT)


async def test_a_client_is_told_and_closed_when_its_token_ends(listener: Listener) -> None:
    async with phone(listener, short_token()) as app:
        goaway = await app.until("session.goaway")
        assert goaway["payload"]["reason"] == "token_expires"
        assert 0 < goaway["payload"]["timeLeftMs"] <= 1000 * min(LEFT_S, NOTICE_S)
        hasten(LEFT_S)
        await app.closed.wait()
        assert app.close_code == 1008


async def test_a_new_token_of_the_same_person_keeps_the_connection(listener: Listener) -> None:
    async with phone(listener, short_token()) as app:
        goaway = await app.until("session.goaway")
        app.send("session.update", {"token": token(exp=time.time() + 30 - LEEWAY_S)})
        later = await app.until("session.goaway", since=app.log.index(goaway) + 1)
        assert 1000 * LEFT_S < later["payload"]["timeLeftMs"] <= 30_000
        await app.ask("say hello")
        assert not app.closed.is_set() and app.errors() == []


async def test_the_python_library_renews_its_token(listener: Listener) -> None:
    url, told, lost = f"ws://127.0.0.1:{listener.port}/ws", asyncio.Event(), asyncio.Event()
    new, names = token(exp=time.time() + 600), [*DEFAULT_CAPABILITIES, "goaway"]
    async with client_of(url, token=short_token(), capabilities=names, reconnect=Reconnect()) as client:
        client.on("session.goaway", lambda _: told.set())
        client.on(Lost, lambda _: lost.set())
        await asyncio.wait_for(told.wait(), WAIT)
        await client.renew(new)
        assert (await (await client.say("say hello"))).text  # by now the server has read it
        hasten(LEFT_S)
        assert (await (await client.say("say hello"))).text
        assert not lost.is_set() and client.token == new  # of later connections, too


REFUSED: dict[str, Callable[[], str]] = {
    "another person": lambda: token(sub="mallory"),
    "not valid": lambda: token(aud="mail"),
    "no text of a header": lambda: "€\n",
}


@pytest.mark.parametrize("reason", REFUSED)
async def test_another_token_changes_nothing(listener: Listener, reason: str) -> None:
    with capture_logs() as lines:
        async with phone(listener, short_token()) as app:
            await app.until("session.goaway")
            app.send("session.update", {"token": REFUSED[reason]()})
            error = await app.until("error")
            assert error["payload"]["code"] == "unauthorized"
            hasten(LEFT_S)
            await app.closed.wait()
            assert app.close_code == 1008
    refusals = [line["event"] for line in lines if line["log_level"] in ("warning", "error")]
    assert refusals == ["request refused"] and "€" not in str(lines)


async def test_a_program_of_mcp_is_cut_when_its_token_ends(listener: Listener) -> None:
    url = f"ws://127.0.0.1:{listener.port}/mcp?token={short_token(scope=PROGRAM_SCOPE)}"

    async def serve(socket: Socket) -> None:
        await socket.wait_closed()

    listener.sockets["/mcp"] = lambda socket, path: serve(socket)
    listener.subprotocols.append(Subprotocol("mcp"))
    async with asyncio.timeout(WAIT), connect(url, subprotocols=[Subprotocol("mcp")]) as socket:
        hasten(LEFT_S)
        with pytest.raises(ConnectionClosed):
            await socket.recv()
