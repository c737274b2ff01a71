"""Automatic reconnecting: delays, repeated events, and giving up."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from conductor.client import (
    CannotConnect,
    Client,
    ClientError,
    ClientLimits,
    ConnectionLost,
    GaveUp,
    Lost,
    Reconnect,
    Reconnected,
    StartRefused,
    TryFailed,
    WaitTimeout,
    connect,
)
from conductor.events.server import ErrorEvent
from tests.server.client.extended import play, soon, tool_results
from tests.stand_ins.scripted_server import LIMIT_S, Peer, Script, plain_turns, scripted_server

AT_ONCE = Reconnect(first_s=0, most_s=0)


class EventLog:
    """Records the events of a client's connection."""

    def __init__(self, client: Client) -> None:
        self.events: list[Any] = []
        self._changed = asyncio.Event()
        for kind in (Lost, TryFailed, Reconnected, GaveUp):
            client.on(kind, self._note)

    def _note(self, event: Any) -> None:
        self.events.append(event)
        self._changed.set()

    @property
    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]

    async def wait(self, kind: type[Any], count: int = 1) -> None:
        async with asyncio.timeout(LIMIT_S):
            while sum(isinstance(event, kind) for event in self.events) < count:
                self._changed.clear()
                await self._changed.wait()


# -- the policy


def test_delays_grow_to_the_maximum() -> None:
    policy = Reconnect(first_s=0.5, most_s=15, jitter=0)
    error = ConnectionLost("gone")
    delays = [policy.delay_s(number, error) for number in (1, 2, 3, 4, 5, 6, 7, 10**9)]
    assert delays == [0.5, 1, 2, 4, 8, 15, 15, 15]


def test_jitter_shortens_each_delay() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 -- shown where the test fails
    policy = Reconnect(first_s=4, most_s=4, jitter=0.5, random=random.Random(seed).random)
    delays = [policy.delay_s(1, ConnectionLost("gone")) for _ in range(100)]
    assert all(2 < delay <= 4 for delay in delays)
    assert len(set(delays)) > 1


def test_the_servers_delay_counts_up_to_the_maximum() -> None:
    policy = Reconnect(first_s=1, most_s=15, jitter=0)

    def after(retry_after_ms: int) -> float:
        refused = StartRefused(
            ErrorEvent(code="rate_limited", message="Later.", retry_after_ms=retry_after_ms)
        )
        return policy.delay_s(1, refused)

    assert [after(500), after(9_000), after(10**9)] == [1, 9, 15]


@pytest.mark.parametrize(
    "values",
    [{"first_s": -1}, {"most_s": 0.1}, {"jitter": 2}, {"tries": -1}],
)
def test_invalid_policies_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        Reconnect(**values)


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (CannotConnect("no", status=401), True),
        (CannotConnect("no", status=403), True),
        (CannotConnect("no", status=503), False),
        (CannotConnect("no"), False),
        (StartRefused(ErrorEvent(code="unauthorized", message="No.")), True),
        (StartRefused(ErrorEvent(code="store_unavailable", message="Later.")), False),
        (ConnectionLost("taken", close_code=4409), True),
        (ConnectionLost("restart", close_code=1012), False),
        (WaitTimeout("slow"), False),
    ],
)
def test_some_errors_are_final(error: ClientError, final: bool) -> None:
    assert error.is_final is final


# -- reconnecting


async def test_a_lost_connection_is_restored_after_the_delays_of_the_policy() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def refuses(peer: Peer) -> None:
        await peer.receive("session.start")
        await peer.send("error", {"code": "store_unavailable", "message": "Later."})

    policy = Reconnect(first_s=1, most_s=3, jitter=0, sleep=sleep)
    async with (
        scripted_server(plain_turns, refuses, refuses, plain_turns) as server,
        connect(server.url, "s-1", reconnect=policy) as client,
    ):
        events: list[Any] = []
        client.on("*", events.append)
        log = EventLog(client)
        client.drop()
        await log.wait(Reconnected)
        assert client.connected
        assert (await (await client.say("hello")).wait(LIMIT_S)).ok
    assert log.kinds == ["Lost", "TryFailed", "TryFailed", "Reconnected"]
    assert not any(isinstance(event, Lost | Reconnected) for event in events)
    assert [event.number for event in log.events if isinstance(event, TryFailed)] == [1, 2]
    assert waits == [1, 2, 3]
    starts = [event for event in server.heard if event["type"] == "session.start"]
    assert {start["sessionId"] for start in starts} == {"s-1"}


async def test_the_first_connection_is_tried_once() -> None:
    async with scripted_server() as server:
        url = server.url
    client = connect(url, reconnect=AT_ONCE)
    with pytest.raises(CannotConnect):
        await client.start()
    with pytest.raises(ConnectionLost):
        await client.say("hello")
    await client.close()


@pytest.mark.parametrize("closes", [True, False], ids=["taken", "unauthorized"])
async def test_a_final_error_gives_up(closes: bool) -> None:
    async def first(peer: Peer) -> None:
        await peer.start()
        await peer.receive("user.audio.transcript.final")
        await peer.connection.close(4409 if closes else 1012)

    async def refuses(peer: Peer) -> None:
        start = await peer.receive("session.start")
        await peer.send("error", {"code": "unauthorized", "message": "No.", "eventId": start["id"]})

    async with scripted_server(first, refuses) as server, connect(server.url, reconnect=AT_ONCE) as client:
        log = EventLog(client)
        turn = await client.say("hello")
        await log.wait(GaveUp)
        error = log.events[-1].error
        with pytest.raises(ConnectionLost, match="given up"):
            await turn.wait(LIMIT_S)
        with pytest.raises(ConnectionLost):
            await client.say("hello?")
    assert isinstance(error, ConnectionLost if closes else StartRefused)
    assert log.kinds == (["Lost", "GaveUp"] if closes else ["Lost", "TryFailed", "GaveUp"])
    assert len(server.peers) == (1 if closes else 2)


async def test_tries_are_bounded_and_the_app_can_reconnect() -> None:
    async def refuses(peer: Peer) -> None:
        await peer.receive("session.start")
        await peer.connection.close(1011)

    policy = Reconnect(first_s=0, most_s=0, tries=2)
    scripts: list[Script] = [plain_turns, refuses, refuses, plain_turns]
    async with scripted_server(*scripts) as server, connect(server.url, reconnect=policy) as client:
        log = EventLog(client)
        client.drop()
        await log.wait(GaveUp)
        assert len(server.peers) == 3
        await client.reconnect()
        client.drop()
        await log.wait(Reconnected)
        assert (await (await client.say("hello")).wait(LIMIT_S)).ok


async def test_short_connections_count_as_failures() -> None:
    async def brief(peer: Peer) -> None:
        await peer.start()
        await peer.connection.close(1011)

    policy = Reconnect(first_s=0, most_s=0, tries=3, steady_s=3_600)
    async with scripted_server(brief) as server, connect(server.url, reconnect=policy) as client:
        log = EventLog(client)
        await log.wait(GaveUp)
        assert isinstance(log.events[-1].error, ConnectionLost)
    assert len(server.peers) == 4


async def test_a_steady_connection_resets_the_tries() -> None:
    policy = Reconnect(first_s=0, most_s=0, tries=1, steady_s=0)
    async with scripted_server() as server, connect(server.url, reconnect=policy) as client:
        log = EventLog(client)
        for count in (1, 2, 3):
            client.drop()
            await log.wait(Reconnected, count)


async def test_after_an_outage_the_delays_begin_anew_and_grow_with_brief_connections() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def refuses(peer: Peer) -> None:
        await peer.receive("session.start")
        await peer.connection.close(1011)

    async def brief(peer: Peer) -> None:
        await peer.start()
        await peer.connection.close(1011)

    policy = Reconnect(first_s=1, most_s=60, jitter=0, sleep=sleep)
    scripts: list[Script] = [brief, refuses, refuses, refuses, brief, brief, plain_turns]
    async with scripted_server(*scripts) as server, connect(server.url, reconnect=policy) as client:
        log = EventLog(client)
        await log.wait(Reconnected, 3)
        assert (await (await client.say("hello")).wait(LIMIT_S)).ok
    assert waits == [1, 2, 4, 8, 2, 4]


@pytest.mark.parametrize("retry_after_ms", [None, 1])
async def test_words_are_tried_at_once_unless_the_server_named_the_time(retry_after_ms: int | None) -> None:
    waiting = asyncio.Event()

    async def sleep(_seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    async def refuses(peer: Peer) -> None:
        await peer.receive("session.start")
        error = {"code": "rate_limited", "message": "Later.", "retryAfterMs": retry_after_ms}
        await peer.send("error", error)

    async with (
        scripted_server(plain_turns, refuses, plain_turns) as server,
        connect(server.url, reconnect=Reconnect(sleep=sleep)) as client,
    ):
        client.drop()
        await soon(waiting)
        waiting.clear()
        first = await client.say("hello")
        await soon(waiting)
        second = await client.say("hello again")
        if retry_after_ms is None:
            assert (await first.wait(LIMIT_S)).ok and (await second.wait(LIMIT_S)).ok
        else:
            await client.close()
            assert len(server.peers) == 2


async def test_a_reconnect_on_demand_ends_the_retries() -> None:
    waiting, go_on = asyncio.Event(), asyncio.Event()

    async def sleep(_seconds: float) -> None:
        waiting.set()
        await go_on.wait()

    policy = Reconnect(sleep=sleep)
    async with scripted_server() as server, connect(server.url, reconnect=policy) as client:
        log = EventLog(client)
        client.drop()
        await soon(waiting)
        await client.reconnect()
        go_on.set()
        await log.wait(Reconnected)
        assert len(server.peers) == 2


async def test_close_ends_a_delay() -> None:
    waiting = asyncio.Event()

    async def sleep(_seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    async with scripted_server() as server:
        async with connect(server.url, reconnect=Reconnect(sleep=sleep)) as client:
            client.drop()
            async with asyncio.timeout(LIMIT_S):
                await waiting.wait()
                await client.close()
        assert len(server.peers) == 1


async def test_a_client_closed_at_any_step_of_its_start_accepts_nothing_and_has_no_socket() -> None:
    async with scripted_server() as server:
        for steps in range(40):
            client = connect(server.url, reconnect=Reconnect())
            starting = asyncio.create_task(client.start())
            for _ in range(steps):
                await asyncio.sleep(0)
            await client.close()
            await asyncio.gather(starting, return_exceptions=True)
            with pytest.raises(ConnectionLost):
                await client.say("hello")
        async with asyncio.timeout(LIMIT_S):
            for peer in server.peers:
                await peer.connection.wait_closed()


async def test_a_closed_client_opens_no_socket() -> None:
    async with scripted_server() as server:
        async with connect(server.url) as client:
            pass
    with pytest.raises(ConnectionLost):  # not `CannotConnect`
        await client.start()


@pytest.mark.parametrize("kind", [Lost, GaveUp])
async def test_a_callback_may_close_its_client(kind: type[Lost] | type[GaveUp]) -> None:
    async def close(_event: object) -> None:
        closing.set()
        await client.close()

    closing = asyncio.Event()
    policy = Reconnect(tries=0)
    async with scripted_server(plain_turns) as server:
        client = connect(server.url, reconnect=policy)
        await client.start()
        client.on(kind, close)
        turn = await client.say("hello")
        client.drop()
        async with asyncio.timeout(LIMIT_S):
            await closing.wait()
            await client.close()
        with pytest.raises(ConnectionLost):
            await turn.wait(LIMIT_S)


# -- repeated events


async def test_transcripts_wait_for_a_connection_in_order_and_within_bounds() -> None:
    waiting, go_on = asyncio.Event(), asyncio.Event()

    async def sleep(_seconds: float) -> None:
        waiting.set()
        await go_on.wait()

    limits = ClientLimits(unsent=2)
    policy = Reconnect(sleep=sleep)
    async with (
        scripted_server() as server,
        connect(server.url, reconnect=policy, limits=limits) as client,
    ):
        client.drop()
        await soon(waiting)
        turns = [await client.say("one"), await client.say("two")]
        with pytest.raises(ConnectionLost):
            await client.say("three")
        go_on.set()
        assert [(await turn.wait(LIMIT_S)).text for turn in turns] == ["You said: one", "You said: two"]


async def test_a_text_that_exceeds_a_frame_is_an_error() -> None:
    async with scripted_server() as server, connect(server.url) as client:
        with pytest.raises(ValueError, match="the limit is 1048576"):
            await client.say("x" * 2**20)
        with pytest.raises(ValueError, match="surrogates"):
            await client.say("\ud800")
        assert not client.busy
        assert (await (await client.say("hello")).wait(LIMIT_S)).ok


async def test_an_unconfirmed_result_is_sent_again_under_its_id() -> None:
    async def first(peer: Peer) -> None:
        await peer.result(await peer.call("notes.add", {}, "evt_add"))
        # A later event of the server is no confirmation.
        await peer.send("session.ping", {})
        await peer.arrived()

    async def second(peer: Peer) -> None:
        await peer.result("call_evt_add")

    runs: list[Any] = []
    server, _ = await play(first, second, handlers={"notes.add": runs.append})
    ids = [event_id for event_id, _ in tool_results(server)]
    assert len(ids) == 2 and ids[0] == ids[1]
    assert len(runs) == 1
    # Without ``resume`` its return is the confirmation of a transcript.
    assert server.types_heard().count("user.audio.transcript.final") == 1


# -- a first start that is retried


async def test_a_start_that_failed_is_retried_and_transcripts_wait_for_it() -> None:
    async def away(peer: Peer) -> None:
        await peer.receive("session.start")
        peer.connection.transport.abort()

    async with scripted_server(away, away, plain_turns) as server:
        client = connect(server.url, reconnect=AT_ONCE)
        log = EventLog(client)
        with pytest.raises(ConnectionLost) as failure:
            await client.start()
        client.keep_trying(failure.value)
        client.keep_trying(failure.value)  # is one retry
        turn = await (await client.say("hello")).wait(LIMIT_S)
        assert turn.text == "You said: hello"
        assert log.kinds == ["TryFailed", "Reconnected"] and len(server.peers) == 3
        client.drop()
        await log.wait(Reconnected, 2)
        await client.close()


async def test_a_start_is_not_retried_where_that_is_pointless() -> None:
    error = CannotConnect("The server is away.")
    closed = connect("ws://127.0.0.1:1/ws", reconnect=AT_ONCE)
    await closed.close()
    for client in (connect("ws://127.0.0.1:1/ws"), closed):
        with pytest.raises(CannotConnect):
            client.keep_trying(error)
    final = CannotConnect("The token is not accepted.", status=401)
    with pytest.raises(CannotConnect):
        connect("ws://127.0.0.1:1/ws", reconnect=AT_ONCE).keep_trying(final)
