"""The library's connection with what was added: many texts at once, binary marked, messages never ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.protocol import State

from conductor.events.codec import BINARY_MARK
from conductor.models.base import TextDelta
from conductor.server.access import Refusals
from conductor.server.websocket import Handshakes, Socket
from conductor.settings import Limits
from tests.app import App
from tests.end_to_end.conftest import serving
from tests.links import WebSocket
from tests.models import ScriptedProvider
from tests.server.wires import WAIT, until

BIG = b"x" * 1_000_000


@dataclass
class Ends:
    """Both ends of one connection."""

    server: Socket
    client: ClientConnection

    async def sent(self, count: int) -> list[str | bytes]:
        """Read so many messages at the client's end."""
        async with asyncio.timeout(WAIT):
            return [await self.client.recv() for _ in range(count)]

    async def taken(self) -> bytes:
        """Read one message at the server's end."""
        return await asyncio.wait_for(self.server.recv(decode=False), WAIT)


@asynccontextmanager
async def connected(**limits: Any) -> AsyncIterator[Ends]:
    """Connect; the options are fields of `Limits`."""
    arrived: asyncio.Queue[Socket] = asyncio.Queue()
    over = asyncio.Event()

    async def handle(socket: ServerConnection) -> None:
        assert isinstance(socket, Socket)
        arrived.put_nowait(socket)
        await over.wait()

    options: dict[str, Any] = {"compression": None, "ping_interval": None, "close_timeout": 0.2}
    options["create_connection"] = partial(
        Socket, limits=Limits(**limits), handshakes=Handshakes(10, 1_000_000, Refusals())
    )
    async with serve(handle, "127.0.0.1", 0, **options) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        client = await connect(
            f"ws://127.0.0.1:{port}", proxy=None, max_queue=1, max_size=None, ping_interval=None
        )
        try:
            yield Ends(await asyncio.wait_for(arrived.get(), WAIT), client)
        finally:
            over.set()
            client.transport.abort()


def fragment(
    client: ClientConnection | WebSocket, data: bytes, *, first: bool, fin: bool, binary: bool = False
) -> None:
    """Send one frame of a message."""
    if not first:
        client.protocol.send_continuation(data, fin)
    elif binary:
        client.protocol.send_binary(data, fin)
    else:
        client.protocol.send_text(data, fin)
    client.transport.write(b"".join(client.protocol.data_to_send()))


# -- many texts at once


async def test_many_texts_arrive_as_so_many_messages_in_their_order() -> None:
    async with connected() as ends:
        texts = ["", "a", "ü" * 100, "x" * 70_000, *map(str, range(500))]
        await ends.server.send_texts([text.encode() for text in texts], WAIT)
        assert await ends.sent(len(texts)) == texts


async def test_texts_keep_their_order_with_what_is_sent_one_by_one() -> None:
    async with connected() as ends:
        await ends.server.send("1")
        await ends.server.send_texts([b"2", b"3"], WAIT)
        await ends.server.send("4")
        await ends.server.send_texts(iter([b"5"]), WAIT)
        assert await ends.sent(5) == ["1", "2", "3", "4", "5"]


async def test_no_texts_are_no_message() -> None:
    async with connected() as ends:
        await ends.server.send_texts([], WAIT)
        await ends.server.send_texts([b"next"], WAIT)
        assert await ends.sent(1) == ["next"]


async def test_a_peer_that_makes_no_room_in_time_is_a_timeout() -> None:
    async with connected() as ends:
        ends.client.transport.pause_reading()
        started = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(WAIT):
                while True:
                    await ends.server.send_texts([BIG] * 8, 0.1)
        assert asyncio.get_running_loop().time() - started < WAIT / 2


async def test_a_peer_that_makes_room_late_but_in_time_gets_everything() -> None:
    async with connected() as ends:
        ends.client.transport.pause_reading()
        sending = asyncio.create_task(ends.server.send_texts([BIG] * 8, WAIT))
        await until(lambda: bool(ends.server.paused))
        assert not sending.done()
        ends.client.transport.resume_reading()
        assert [len(message) for message in await ends.sent(8)] == [len(BIG)] * 8
        await asyncio.wait_for(sending, WAIT)


async def test_a_connection_that_has_closed_says_so() -> None:
    async with connected() as ends:
        await asyncio.wait_for(ends.client.close(4000, "bye"), WAIT)
        with pytest.raises(ConnectionClosed) as caught:
            await asyncio.wait_for(ends.server.send_texts([b"x"], WAIT), WAIT)
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 4000


async def test_a_connection_that_was_lost_says_so() -> None:
    async with connected() as ends:
        ends.client.transport.abort()
        await asyncio.wait_for(ends.server.wait_closed(), WAIT)
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(ends.server.send_texts([b"x"], WAIT), WAIT)


# -- binary


async def test_a_binary_message_arrives_marked_and_a_text_as_it_is() -> None:
    async with connected() as ends:
        for message in ("text", b"bytes", "", b"", "text"):
            await ends.client.send(message)
        got = [await ends.taken() for _ in range(5)]
        assert got == [b"text", BINARY_MARK + b"bytes", b"", BINARY_MARK, b"text"]


async def test_a_binary_message_in_fragments_is_marked_once() -> None:
    async with connected() as ends:
        fragment(ends.client, b"one", first=True, fin=False, binary=True)
        fragment(ends.client, b"two", first=False, fin=False)
        fragment(ends.client, b"three", first=False, fin=True)
        fragment(ends.client, b"text", first=True, fin=True)
        assert await ends.taken() == BINARY_MARK + b"onetwothree"
        assert await ends.taken() == b"text"


def test_no_event_can_begin_with_the_mark() -> None:
    with pytest.raises(ValueError):
        json.loads(BINARY_MARK + b"{}")


# -- messages in fragments


async def test_a_message_that_is_never_completed_loses_its_connection() -> None:
    async with connected(message_timeout=0.05) as ends:
        fragment(ends.client, b"a", first=True, fin=False)
        await asyncio.wait_for(ends.server.wait_closed(), WAIT)
        assert ends.server.close_code == 1006


async def test_a_message_in_fragments_may_have_pings_in_between() -> None:
    async with connected() as ends:
        fragment(ends.client, b"a", first=True, fin=False)
        await asyncio.wait_for(await ends.client.ping(), WAIT)
        fragment(ends.client, b"b", first=False, fin=False)
        await asyncio.wait_for(await ends.client.ping(), WAIT)
        fragment(ends.client, b"c", first=False, fin=True)
        assert await ends.taken() == b"abc"


async def test_a_ping_in_between_gives_a_message_no_more_time() -> None:
    async with connected(message_timeout=0.05) as ends:
        fragment(ends.client, b"a", first=True, fin=False)
        with pytest.raises(ConnectionClosed):
            async with asyncio.timeout(WAIT):
                while True:
                    await (await ends.client.ping())


async def test_what_is_sent_in_one_frame_needs_no_time() -> None:
    async with connected(message_timeout=0.0) as ends:
        for _ in range(20):
            await ends.client.send("whole")
            assert await ends.taken() == b"whole"
        await asyncio.wait_for(await ends.client.ping(), WAIT)


# -- tiny frames without end


async def test_frames_of_any_kind_without_end_lose_their_connection_and_hold_nobody() -> None:
    provider = ScriptedProvider(lambda _: [TextDelta("Quick.")])
    async with serving(provider) as served, served.phone("s-2") as other, served.phone() as phone:
        frames = Frame(Opcode.PING, b"").serialize(mask=True) * 20_000
        phone.socket.transport.write(frames)
        await other.ask("hi")
        await asyncio.wait_for(phone.closed.wait(), WAIT)
        await other.ask("hi again")
        assert other.finals() == ["Quick."] * 2


async def test_fragments_of_a_byte_without_end_lose_their_connection() -> None:
    async with connected() as ends:
        ends.client.protocol.send_text(b"x", False)
        for _ in range(5_000):
            ends.client.protocol.send_continuation(b"x", False)
        ends.client.transport.write(b"".join(ends.client.protocol.data_to_send()))
        with pytest.raises(ConnectionClosed):
            await ends.taken()


async def test_more_frames_than_the_burst_are_too_many_and_those_before_are_taken() -> None:
    async with connected(wire_frames_per_second=0.001, wire_frames_burst=5.0) as ends:
        for _ in range(5):
            await ends.client.send("x")
            assert await ends.taken() == b"x"
        await ends.client.send("x")
        with pytest.raises(ConnectionClosed):
            await ends.taken()


async def test_a_peer_that_reads_no_pongs_is_cut() -> None:
    async with connected(wire_frames_burst=1e9, max_unsent_bytes=100_000) as ends:
        ends.client.transport.pause_reading()
        pings = Frame(Opcode.PING, b"x" * 125).serialize(mask=True) * 1_000
        async with asyncio.timeout(WAIT):
            while not ends.server.transport.is_closing():
                ends.client.transport.write(pings)
                await asyncio.sleep(0)
            await ends.server.wait_closed()


async def test_a_message_of_many_bytes_in_small_pieces_is_taken() -> None:
    async with connected() as ends:
        piece = b"x" * 1_000
        fragment(ends.client, piece, first=True, fin=False)
        for _ in range(998):
            fragment(ends.client, piece, first=False, fin=False)
        fragment(ends.client, piece, first=False, fin=True)
        assert await ends.taken() == piece * 1_000


async def ping(phone: App, times: int) -> None:
    """Wait for so many more pings of the session."""
    for _ in range(times):
        await phone.until("session.ping", since=len(phone.log))


async def test_a_message_that_is_never_completed_cuts_the_connection_and_not_the_session() -> None:
    provider = ScriptedProvider([[TextDelta("Hi.")]])
    async with serving(provider, ping_interval=0.02, message_timeout=0.1) as served:
        async with served.phone("s-2") as other, served.phone() as phone:
            session = next(s for s in served.listener.registry.sessions if s.key.session_id == "s-1")
            fragment(phone.socket, b'{"id"', first=True, fin=False)
            await asyncio.wait_for(phone.closed.wait(), WAIT)
            assert phone.close_code == 1006
            await phone.open()
            assert session in served.listener.registry.sessions
            assert phone.log[-1]["payload"].get("resumed", True) is True
            await phone.ask("hi")
            assert phone.finals() == ["Hi."]
            assert not other.closed.is_set()


async def test_a_fragment_now_and_then_does_not_keep_a_message_open() -> None:
    async with serving(ScriptedProvider([]), ping_interval=0.02, message_timeout=0.1) as served:
        async with served.phone() as phone:
            closed = asyncio.create_task(phone.closed.wait())
            fragment(phone.socket, b"[", first=True, fin=False)
            async with asyncio.timeout(WAIT):
                # The connection ends before the phone has read that it did.
                while phone.socket.protocol.state is State.OPEN:
                    fragment(phone.socket, b"1,", first=False, fin=False)
                    await asyncio.wait([closed], timeout=0.02)
                await closed
            assert phone.close_code == 1006


async def test_a_message_that_is_completed_in_time_cuts_nothing() -> None:
    provider = ScriptedProvider([[TextDelta("Hi.")]])
    async with serving(provider, ping_interval=0.02, message_timeout=0.1) as served:
        async with served.phone() as phone:
            event = b'{"id":"f-1","type":"user.audio.transcript.final","timestamp":"t","sessionId":"s-1",'
            fragment(phone.socket, event, first=True, fin=False)
            await ping(phone, 1)
            fragment(phone.socket, b'"payload":{"text":"hi"}}', first=False, fin=True)
            await phone.idle()
            await ping(phone, 8)  # longer than the limit
            assert phone.finals() == ["Hi."] and not phone.closed.is_set()


async def test_many_small_messages_in_one_write_arrive_in_order() -> None:
    async with connected(wire_frames_burst=3_000.0) as ends:
        for number in range(3_000):
            ends.client.protocol.send_text(b"%d" % number)
        ends.client.transport.write(b"".join(ends.client.protocol.data_to_send()))
        for number in range(3_000):
            assert await ends.taken() == b"%d" % number


async def test_a_message_of_many_slices_arrives_whole_and_what_follows_it_too() -> None:
    async with connected() as ends:
        ends.client.protocol.send_text(BIG)
        ends.client.protocol.send_text(b"after")
        ends.client.transport.write(b"".join(ends.client.protocol.data_to_send()))
        assert await ends.taken() == BIG
        assert await ends.taken() == b"after"


async def test_what_was_sent_before_a_clean_end_is_read_to_its_end() -> None:
    async with connected() as ends:
        for number in range(1_000):
            ends.client.protocol.send_text(b"%d" % number)
        ends.client.protocol.send_close(1000)
        ends.client.transport.write(b"".join(ends.client.protocol.data_to_send()))
        for number in range(1_000):
            assert await ends.taken() == b"%d" % number
        with pytest.raises(ConnectionClosed):
            await ends.taken()
