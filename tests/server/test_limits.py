"""How many may connect, and how fast they may send: nobody's flood is another client's trouble."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from conductor.messages import ToolCall, ToolResult
from conductor.models.base import TextDelta
from tests.app import App
from tests.end_to_end.conftest import Served, serving
from tests.models import ScriptedProvider
from tests.server.wires import WAIT, get, http, until, upgrade

TOKENS = ("first-token", "second-token")


async def open_socket(served: Served, token: str | None = None) -> ClientConnection:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return await asyncio.wait_for(connect(served.url, proxy=None, additional_headers=headers), WAIT)


async def refused(served: Served, token: str | None = None) -> int:
    """Try to connect; give the status of the refusal."""
    with pytest.raises(InvalidStatus) as caught:
        await open_socket(served, token)
    return caught.value.response.status_code


# -- how many connect


async def test_more_connections_than_the_server_takes_are_refused_until_one_has_gone() -> None:
    async with serving(ScriptedProvider([]), max_connections=3) as served:
        sockets = [await open_socket(served) for _ in range(3)]
        await until(lambda: served.listener.connections == 3)
        assert await refused(served) == 503
        assert served.listener.connections == 3
        await sockets.pop().close()
        await until(lambda: served.listener.connections == 2)
        sockets.append(await open_socket(served))
        for socket in sockets:
            await socket.close()


async def test_connections_that_come_at_the_same_time_are_counted_too() -> None:
    async with serving(ScriptedProvider([]), max_connections=3) as served:
        opened = await asyncio.gather(*(open_socket(served) for _ in range(20)), return_exceptions=True)
        sockets = [each for each in opened if isinstance(each, ClientConnection)]
        refusals = [each for each in opened if isinstance(each, InvalidStatus)]
        assert (len(sockets), len(refusals)) == (3, 17)
        assert {each.response.status_code for each in refusals} == {503}
        for socket in sockets:
            await socket.close()


async def test_a_full_server_still_says_how_it_is() -> None:
    async with serving(ScriptedProvider([]), max_connections=1) as served:
        socket = await open_socket(served)
        await until(lambda: served.listener.connections == 1)
        status, answer = await http(served.listener.port, upgrade())
        assert status == 503 and "Too many connections." in answer
        assert (await http(served.listener.port, get("/healthz")))[0] == 200
        await socket.close()


async def test_more_connections_than_a_token_may_have_are_refused_and_another_token_is_not() -> None:
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


async def test_a_wrong_token_uses_up_nobodys_connections() -> None:
    async with serving(ScriptedProvider([]), tokens=TOKENS, max_connections_per_subject=1) as served:
        for _ in range(3):
            assert await refused(served, "wrong") == 401
        await (await open_socket(served, TOKENS[0])).close()


async def test_without_tokens_everybody_is_not_one_person() -> None:
    async with serving(ScriptedProvider([]), max_connections_per_subject=1) as served:
        sockets = [await open_socket(served) for _ in range(4)]
        await until(lambda: served.listener.connections == 4)
        for socket in sockets:
            await socket.close()


# -- the first event


async def test_a_client_that_never_says_anything_is_closed() -> None:
    async with serving(ScriptedProvider([]), first_event_timeout=0.05) as served:
        socket = await open_socket(served)
        await asyncio.wait_for(socket.wait_closed(), WAIT)
        assert socket.close_code == 1008
        await until(lambda: served.listener.connections == 0)
        assert len(served.listener.registry) == 0


async def test_pings_are_no_first_event() -> None:
    async with serving(ScriptedProvider([]), first_event_timeout=0.05) as served:
        socket = await open_socket(served)
        with pytest.raises(ConnectionClosed):
            async with asyncio.timeout(WAIT):
                while True:
                    await (await socket.ping())
        assert socket.close_code == 1008


async def test_a_client_that_has_said_something_may_be_silent_for_longer() -> None:
    async with serving(ScriptedProvider([]), first_event_timeout=0.1, ping_interval=0.02) as served:
        async with served.phone() as phone:
            for _ in range(10):
                await phone.until("session.ping", since=len(phone.log))
            assert not phone.closed.is_set()


# -- how fast they send


async def flood(phone: App) -> None:
    """Send without end."""
    while not phone.closed.is_set():
        phone.send("user.audio.transcript.partial", {"text": "and"})
        await phone.socket.drained()


async def test_a_flood_is_told_once_then_closed_and_another_client_is_served_meanwhile() -> None:
    provider = ScriptedProvider(lambda _: [TextDelta("Quick.")])
    limits: dict[str, Any] = {
        "frames_per_second": 4.0,
        "frames_burst": 20.0,
        "flood_timeout": 0.6,
        "close_timeout": 0.5,
    }
    async with serving(provider, **limits) as served:
        async with served.phone("s-2") as other, served.phone() as phone:
            flooding = asyncio.create_task(flood(phone))
            error = await phone.until("error")
            for _ in range(3):
                await other.ask("hi")
            assert not phone.closed.is_set(), "the other one was served while the flood went on"
            await asyncio.wait_for(phone.closed.wait(), WAIT)
            await asyncio.wait_for(flooding, WAIT)
            assert phone.close_code == 1008
            (told,) = phone.errors()
            assert told == error["payload"] and told["code"] == "rate_limited"
            assert 1 <= told["retryAfterMs"] <= 250
            assert other.finals() == ["Quick."] * 3 and other.errors() == []
            assert not other.closed.is_set()


def test_a_flood_is_told_once_and_closed_on_the_loop_that_users_run_too() -> None:
    """Its clock and its timers are in whole milliseconds."""
    uvloop = pytest.importorskip("uvloop", reason="there is none for this platform")

    async def flooded() -> tuple[int | None, list[str]]:
        limits: dict[str, Any] = {"frames_per_second": 7.0, "frames_burst": 20.0, "flood_timeout": 0.6}
        async with serving(ScriptedProvider([]), close_timeout=0.5, **limits) as served:
            async with served.phone() as phone:
                await asyncio.wait_for(flood(phone), WAIT)
                await asyncio.wait_for(phone.closed.wait(), WAIT)
                return phone.close_code, [error["code"] for error in phone.errors()]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(flooded()) == (1008, ["rate_limited"])


async def test_the_session_of_a_flood_survives() -> None:
    provider = ScriptedProvider([[TextDelta("Hi.")]])
    limits: dict[str, Any] = {
        "frames_per_second": 4.0,
        "frames_burst": 20.0,
        "flood_timeout": 0.3,
        "close_timeout": 0.5,
    }
    async with serving(provider, **limits) as served, served.phone() as phone:
        (session,) = served.listener.registry.sessions
        await asyncio.wait_for(flood(phone), WAIT)
        await asyncio.wait_for(phone.closed.wait(), WAIT)
        await phone.open()
        assert served.listener.registry.sessions == [session]
        since = len(phone.log)
        await phone.ask("hi")
        assert phone.finals() == ["Hi."] and phone.errors(since) == []


async def test_who_is_too_fast_for_a_moment_loses_nothing() -> None:
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


def status_call(number: int) -> ToolCall:
    return ToolCall(f"c-{number}", "agent.status", f'{{"id":"a-{number}"}}')


async def test_results_that_were_asked_for_do_not_count() -> None:
    """Each of them would have to wait five seconds for its place."""
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


async def test_large_results_that_were_asked_for_do_not_count() -> None:
    rounds = [[status_call(number)] for number in range(4)]
    provider = ScriptedProvider([*rounds, [TextDelta("Long ones.")]])
    limits: dict[str, Any] = {"frames_per_second": 0.2, "frames_burst": 7.0, "close_timeout": 0.5}
    async with serving(provider, **limits) as served:
        async with served.phone(
            tools={"agent.status": lambda a: "x" * 90_000}
        ) as phone:  # each counts as five
            await phone.ask("how are they?")
            assert phone.finals() == ["Long ones."] and phone.errors() == []


async def test_results_that_nobody_asked_for_count() -> None:
    limits: dict[str, Any] = {"frames_per_second": 1.0, "frames_burst": 3.0, "flood_cost": 1.0}
    async with serving(ScriptedProvider([]), close_timeout=0.5, **limits) as served, served.phone() as phone:
        for number in range(4):
            phone.result(f"no-such-call-{number}", "x")
        error = await phone.until("error")
        assert error["payload"]["code"] == "rate_limited" and error["payload"]["retryAfterMs"] <= 1_000


async def test_the_answer_to_one_call_is_given_back_once() -> None:
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
