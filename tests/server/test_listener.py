"""The listener: HTTP requests and the shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from conductor.app import make_services
from conductor.errors import SettingsError
from conductor.models.base import TextDelta
from conductor.plugins.auth.tokens import TokenAuthenticator
from conductor.server.listener import Listener
from conductor.settings import Limits, load_settings
from tests.app import App
from tests.conftest import IOS_CATALOG
from tests.hasty import SHORT_S, hasten
from tests.models import ScriptedProvider
from tests.server.wires import WAIT, WiredStore, ask, get, http, until, upgrade


@asynccontextmanager
async def listening(
    provider: ScriptedProvider | None = None, store: WiredStore | None = None, **limits: Any
) -> AsyncIterator[Listener]:
    """Run a listener that a test may also stop."""
    services = make_services(
        load_settings(None, device_tools_file=IOS_CATALOG), provider or ScriptedProvider([])
    )
    limits = {"close_timeout": 1.0, **limits}
    services = replace(services, limits=replace(services.limits, **limits))
    listener = Listener(replace(services, store=store) if store else services, TokenAuthenticator([]))
    await listener.start("127.0.0.1", 0)
    try:
        yield listener
    finally:
        await asyncio.wait_for(listener.stop(drain_s=0), WAIT)


def phone_for(listener: Listener, session_id: str = "s-1", **options: Any) -> App:
    return App(f"ws://127.0.0.1:{listener.port}/ws", session_id, **options)


# -- HTTP


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/healthz", 200, "ok"),
        ("/readyz", 200, "ready"),
        ("/readyz?verbose=1", 200, "ready"),
        ("/", 404, "Connect a WebSocket to /ws."),
        ("/ws/", 404, "Connect"),
        ("/wss", 404, "Connect"),
        ("/healthz/x", 404, "Connect"),
        ("//[x", 404, "Connect"),
        ("http://[x/ws", 404, "Connect"),
    ],
)
async def test_a_plain_request_is_answered_by_its_path(path: str, status: int, text: str) -> None:
    async with listening() as listener:
        got, answer = await http(listener.port, get(path))
        assert got == status and text in answer
        assert "Cache-Control: no-store" in answer


def test_pings_are_frequent_enough_for_the_shipped_client() -> None:
    assert 15 <= Limits().ping_interval <= 20


async def test_an_upgrade_is_for_ws_alone_uncompressed_and_names_no_library() -> None:
    async with listening() as listener:
        assert (await http(listener.port, upgrade("/other")))[0] == 404
        assert (await http(listener.port, get("/ws")))[0] == 426
        status, answer = await http(
            listener.port, upgrade("/ws", "Sec-WebSocket-Extensions: permessage-deflate")
        )
        assert status == 101 and "permessage-deflate" not in answer
        assert [line for line in answer.splitlines() if line.startswith("Server:")] == ["Server: conductor"]


# -- addresses


@pytest.mark.parametrize("host", ["203.0.113.7", "a" * 70, "a..b"])
async def test_an_address_that_cannot_be_bound_is_one_sentence(host: str) -> None:
    with pytest.raises(SettingsError) as caught:
        await _start(host, 0)
    assert str(caught.value).startswith(f"HOST: {host} is not a") and "\n" not in str(caught.value)


async def _start(host: str, port: int) -> None:
    listener = Listener(make_services(load_settings(None), ScriptedProvider([])), TokenAuthenticator([]))
    try:
        async with asyncio.timeout(WAIT):
            await listener.start(host, port)
    finally:
        await listener.stop(drain_s=0)


# -- the shutdown


async def test_a_stopping_server_is_healthy_and_not_ready() -> None:
    go_on = asyncio.Event()
    provider = ScriptedProvider([[go_on, TextDelta("Done.")]])
    async with listening(provider) as listener:
        # The listening socket closes with the first step, so these clients connect before.
        early = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(3)]
        async with phone_for(listener) as phone:
            phone.say("go")
            await asyncio.wait_for(provider.record(0).started.wait(), WAIT)
            stopping = asyncio.create_task(listener.stop())
            statuses = []
            for (reader, writer), request in zip(
                early, [get("/healthz"), get("/readyz"), upgrade()], strict=True
            ):
                statuses.append((await ask(reader, writer, request))[0])
                writer.close()
            assert statuses == [200, 503, 503]
            with pytest.raises(OSError):
                await connect(f"ws://127.0.0.1:{listener.port}/ws", proxy=None)
            go_on.set()
            await asyncio.wait_for(stopping, WAIT)


async def test_a_client_that_ignores_the_close_does_not_delay_the_stop() -> None:
    async with listening(close_timeout=SHORT_S) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(upgrade().encode())
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT)
        await until(lambda: listener.connections == 1)
        hasten()
        await asyncio.wait_for(listener.stop(), WAIT)
        assert listener.connections == 0
        writer.close()


async def test_a_client_that_does_not_read_does_not_delay_the_stop() -> None:
    provider = ScriptedProvider([[TextDelta("x" * 1_000_000), asyncio.Event()]])
    async with listening(
        provider, close_timeout=SHORT_S, send_timeout=60.0, partial_interval=0.0
    ) as listener:
        socket_ = await connect(
            f"ws://127.0.0.1:{listener.port}/ws", proxy=None, max_queue=1, max_size=None, ping_interval=None
        )
        await socket_.send(
            '{"id":"1","type":"user.audio.transcript.final","timestamp":"t","sessionId":"s","payload":{"text":"x"}}'
        )
        await asyncio.wait_for(provider.record(0).started.wait(), WAIT)
        socket_.transport.pause_reading()
        for _ in range(20):
            session = listener.registry.sessions[0]
            assert session.outbox.transport is not None
            session.outbox.transport.send(_frame(1_000_000))
        hasten()
        await asyncio.wait_for(listener.stop(drain_s=0.01), WAIT)
        assert listener.connections == 0
        socket_.transport.abort()


def _frame(size: int) -> Any:
    from conductor.session.transport import Frame

    return Frame(b"x" * size)


async def test_a_stopped_server_has_closed_silent_connections_and_accepts_no_more() -> None:
    async with listening() as listener:
        silent = phone_for(listener, "s-2")
        await silent.open(start=False)
        for _ in range(2):
            await asyncio.wait_for(listener.stop(), WAIT)
        await asyncio.wait_for(silent.closed.wait(), WAIT)
        assert silent.close_code == 1012 and len(listener.registry) == 0
        with pytest.raises((OSError, InvalidStatus)):
            await connect(silent.url, proxy=None)
