"""Limits of connections and of the rate of events."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from conductor.messages import ToolCall, ToolResult
from conductor.models.base import TextDelta
from tests.app import App
from tests.hasty import SHORT_S, hasten
from tests.models import AnthropicService, ScriptedProvider
from tests.server.wires import WAIT, get, http, until, upgrade
from tests.serving import Served, configured, serving

TOKENS = ("first-token", "second-token")


async def open_socket(served: Served, token: str | None = None) -> ClientConnection:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return await asyncio.wait_for(connect(served.url, proxy=None, additional_headers=headers), WAIT)


async def refused(served: Served, token: str | None = None) -> int:
    """Try to connect; returns the status of the refusal."""
    with pytest.raises(InvalidStatus) as caught:
        await open_socket(served, token)
    return caught.value.response.status_code


# -- the number of connections


async def test_a_full_server_refuses_connections_until_one_closes() -> None:
    # Without tokens the limit of a token does not apply.
    async with serving(ScriptedProvider([]), max_connections=3, max_connections_per_subject=1) as served:
        sockets = [await open_socket(served) for _ in range(3)]
        await until(lambda: served.listener.connections == 3)
        status, answer = await http(served.listener.port, upgrade())
        assert status == 503 and "Too many connections." in answer
        assert (await http(served.listener.port, get("/healthz")))[0] == 200
        await sockets.pop().close()
        await until(lambda: served.listener.connections == 2)
        sockets.append(await open_socket(served))
        for socket in sockets:
            await socket.close()


async def test_simultaneous_connections_are_counted() -> None:
    async with serving(ScriptedProvider([]), max_connections=3) as served:
        opened = await asyncio.gather(*(open_socket(served) for _ in range(20)), return_exceptions=True)
        sockets = [socket for socket in opened if isinstance(socket, ClientConnection)]
        refusals = [error for error in opened if isinstance(error, InvalidStatus)]
        assert (len(sockets), len(refusals)) == (3, 17)
        assert {error.response.status_code for error in refusals} == {503}
        for socket in sockets:
            await socket.close()


async def test_a_token_has_a_limit_of_connections_of_its_own() -> None:
    async with serving(ScriptedProvider([]), tokens=TOKENS, max_connections_per_subject=2) as served:
        sockets = [await open_socket(served, TOKENS[0]) for _ in range(2)]
        await until(lambda: served.listener.connections == 2)
        assert await refused(served, TOKENS[0]) == 429
        sockets += [await open_socket(served, TOKENS[1]) for _ in range(2)]
        await until(lambda: served.listener.connections == 4)
        assert await refused(served, TOKENS[1]) == 429
        await sockets.pop(0).close()
        await until(lambda: served.listener.connections == 3)
        sockets.append(await open_socket(served, TOKENS[0]))
        for socket in sockets:
            await socket.close()


async def test_an_address_behind_a_trusted_proxy_has_a_limit_of_connections_of_its_own(
    claude: AnthropicService, tmp_path: Path
) -> None:
    limits = {"trusted_proxies": "127.0.0.1", "max_connections_per_address": 1}
    async with configured(claude, tmp_path, **limits) as served:

        async def connects(address: str) -> int:
            return (await http(served.listener.port, upgrade("/ws", f"X-Forwarded-For: {address}")))[0]

        headers = {"X-Forwarded-For": "198.51.100.7"}
        socket = await connect(served.url, proxy=None, additional_headers=headers)
        assert [await connects(address) for address in ("198.51.100.7", "203.0.113.9")] == [429, 101]
        await socket.close()
        await until(lambda: served.listener.connections == 0)
        assert await connects("198.51.100.7") == 101


# -- the first event


async def test_a_silent_client_is_closed() -> None:
    async with serving(ScriptedProvider([]), first_event_timeout=SHORT_S) as served:
        socket = await open_socket(served)
        hasten()
        await asyncio.wait_for(socket.wait_closed(), WAIT)
        assert socket.close_code == 1008
        await until(lambda: served.listener.connections == 0)
        assert len(served.listener.registry) == 0


async def test_a_client_may_be_silent_after_its_first_event() -> None:
    async with serving(ScriptedProvider([]), first_event_timeout=SHORT_S, ping_interval=SHORT_S) as served:
        async with served.phone() as phone:
            hasten(12 * SHORT_S)
            for _ in range(10):
                await phone.until("session.ping", since=len(phone.log))
            assert not phone.closed.is_set()


# -- the rate of events


async def flood(phone: App) -> None:
    """Send endlessly."""
    while not phone.closed.is_set():
        phone.send("user.audio.transcript.partial", {"text": "and"})
        await phone.socket.drained()


async def test_a_flood_gets_one_error_then_a_close_while_other_clients_are_served() -> None:
    provider = ScriptedProvider(lambda _: [TextDelta("Quick.")])
    limits: dict[str, Any] = {
        "frames_per_second": 4.0,
        "frames_burst": 20.0,
        "flood_timeout": 0.6,
        "close_timeout": 0.5,
    }
    async with serving(provider, **limits) as served:
        async with served.phone("s-2") as calm, served.phone() as phone:
            flooding = asyncio.create_task(flood(phone))
            error = await phone.until("error")
            for _ in range(3):
                await calm.ask("hi")
            assert not phone.closed.is_set(), "the calm one was served while the flood went on"
            await asyncio.wait_for(phone.closed.wait(), WAIT)
            await asyncio.wait_for(flooding, WAIT)
            assert phone.close_code == 1008
            (payload,) = phone.errors()
            assert payload == error["payload"] and payload["code"] == "rate_limited"
            assert 1 <= payload["retryAfterMs"] <= 250
            assert calm.finals() == ["Quick."] * 3 and calm.errors() == []
            assert not calm.closed.is_set()
            await phone.open()
            assert len(served.listener.registry.sessions) == 2, "its session survives"


def test_a_flood_gets_one_error_then_a_close_on_uvloop() -> None:
    """Uvloop's clock and timers count whole milliseconds."""
    uvloop = pytest.importorskip("uvloop", reason="this platform has no uvloop")

    async def flooded() -> tuple[int | None, list[str]]:
        limits: dict[str, Any] = {"frames_per_second": 7.0, "frames_burst": 20.0, "flood_timeout": 0.6}
        async with serving(ScriptedProvider([]), close_timeout=0.5, **limits) as served:
            async with served.phone() as phone:
                await asyncio.wait_for(flood(phone), WAIT)
                await asyncio.wait_for(phone.closed.wait(), WAIT)
                return phone.close_code, [error["code"] for error in phone.errors()]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(flooded()) == (1008, ["rate_limited"])


async def test_a_short_burst_loses_no_event() -> None:
    provider = ScriptedProvider([[TextDelta("Hi.")]])
    async with serving(provider, frames_per_second=50.0, frames_burst=3.0) as served:
        async with served.phone() as phone:
            for _ in range(20):
                phone.send("user.audio.transcript.partial", {"text": "h"})
            await phone.ask("hi")
            assert phone.finals() == ["Hi."] and not phone.closed.is_set()
            assert {error["code"] for error in phone.errors()} == {"rate_limited"}
            assert all("eventId" not in error for error in phone.errors()), "no event was refused"


async def test_a_large_frame_counts_as_several() -> None:
    limits: dict[str, Any] = {"frames_per_second": 1.0, "frames_burst": 5.0, "close_timeout": 0.5}
    async with serving(ScriptedProvider([]), **limits) as served, served.phone() as phone:
        phone.send("user.audio.transcript.partial", {"text": "x" * 45_000})  # which counts as three
        phone.send("user.audio.transcript.partial", {"text": "x" * 25_000})  # as two: one too many
        error = await phone.until("error")
        assert error["payload"]["code"] == "rate_limited"
        hasten()  # it waits before it reads the close


def status_call(number: int) -> ToolCall:
    return ToolCall(f"c-{number}", "agent.status", f'{{"id":"a-{number}"}}')


async def test_expected_results_do_not_count() -> None:
    """Each connection would wait five seconds for its place."""
    rounds = [[status_call(10 * part + n) for n in range(5)] for part in range(4)]
    provider = ScriptedProvider([*rounds, [TextDelta("All of them run.")]])
    limits: dict[str, Any] = {"frames_per_second": 0.2, "frames_burst": 3.0, "close_timeout": 0.5}
    async with serving(provider, **limits) as served:
        async with served.phone(tools={"agent.status": lambda a: "runs"}) as phone:
            await phone.ask("how are they?")
            assert phone.finals() == ["All of them run."] and phone.errors() == []
            assert len(phone.runs) == 20
    results = [m for m in provider.requests[-1].messages if isinstance(m, ToolResult)]
    assert len(results) == 20 and not any(result.is_error for result in results)


async def test_repeated_results_of_a_call_count() -> None:
    provider = ScriptedProvider([[status_call(1)], [TextDelta("It runs.")]])
    limits: dict[str, Any] = {"frames_per_second": 1.0, "frames_burst": 4.0, "flood_cost": 1.0}
    async with serving(provider, close_timeout=0.5, **limits) as served:
        async with served.phone(tools={"agent.status": lambda a: "runs"}) as phone:
            await phone.ask("how is it?")
            call = next(e for e in phone.log if e["payload"].get("name") == "agent.status")
            assert phone.errors() == []
            for _ in range(5):
                phone.result(call["payload"]["callId"], "runs")
            error = await phone.until("error")
            assert error["payload"]["code"] == "rate_limited"
            hasten(4 * SHORT_S)  # it waits before it reads the close
