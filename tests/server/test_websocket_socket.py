"""The WebSocket connection: batched texts, marked binary messages, incomplete messages, floods of frames."""

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

from conductor.events.codec import BINARY_MARK
from conductor.models.base import TextDelta
from conductor.server.refusals import Refusals
from conductor.server.websocket import Handshakes, Socket
from conductor.settings import Limits
from tests.hasty import SHORT_S, hasten
from tests.links import WebSocket
from tests.models import ScriptedProvider
from tests.server.wires import WAIT
from tests.serving import serving

BIG = b"x" * 1_000_000


@dataclass
class Ends:
    """Both ends of one connection."""

    server: Socket
    client: ClientConnection

    async def received(self, count: int) -> list[str | bytes]:
        """Read this number of messages at the client's end."""
        async with asyncio.timeout(WAIT):
            return [await self.client.recv() for _ in range(count)]

    async def receive(self) -> bytes:
        """Read one message at the server's end."""
        return await asyncio.wait_for(self.server.next_message(), WAIT)


@asynccontextmanager
async def connected(**limits: Any) -> AsyncIterator[Ends]:
    """Connect; the options are fields of `Limits`."""
    arrived: asyncio.Queue[Socket] = asyncio.Queue()
    finished = asyncio.Event()

    async def handle(socket: ServerConnection) -> None:
        assert isinstance(socket, Socket)
        arrived.put_nowait(socket)
        await finished.wait()

    options: dict[str, Any] = {
        "compression": None,
        "ping_interval": None,
        "close_timeout": 0.2,
        "max_queue": 1,
    }
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
            finished.set()
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


async def test_texts_of_one_write_arrive_as_messages_in_order() -> None:
    async with connected() as ends:
        texts = ["", "a", "ü" * 100, "x" * 70_000, *map(str, range(500))]
        await ends.server.send_texts([text.encode() for text in texts], WAIT)
        assert await ends.received(len(texts)) == texts


async def test_sending_on_a_closed_connection_raises() -> None:
    async with connected() as ends:
        await asyncio.wait_for(ends.client.close(4000, "bye"), WAIT)
        with pytest.raises(ConnectionClosed) as caught:
            await asyncio.wait_for(ends.server.send_texts([b"x"], WAIT), WAIT)
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 4000


# -- binary


async def test_a_binary_message_is_marked_and_a_text_is_not() -> None:
    async with connected() as ends:
        for message in ("text", b"bytes", "", b"", "text"):
            await ends.client.send(message)
        messages = [await ends.receive() for _ in range(5)]
        assert messages == [b"text", BINARY_MARK + b"bytes", b"", BINARY_MARK, b"text"]


async def test_a_binary_message_in_fragments_is_marked_once() -> None:
    async with connected() as ends:
        fragment(ends.client, b"one", first=True, fin=False, binary=True)
        fragment(ends.client, b"two", first=False, fin=False)
        fragment(ends.client, b"three", first=False, fin=True)
        fragment(ends.client, b"text", first=True, fin=True)
        assert await ends.receive() == BINARY_MARK + b"onetwothree"
        assert await ends.receive() == b"text"


def test_no_event_can_begin_with_the_mark() -> None:
    with pytest.raises(ValueError):
        json.loads(BINARY_MARK + b"{}")


# -- pings


async def test_a_pong_is_read_behind_events_within_bounds() -> None:
    async with connected(alive_timeout=SHORT_S) as ends:
        for _ in range(2):
            for _ in range(20):
                await ends.client.send("event")
            assert await ends.server.is_alive()
            assert [await ends.receive() for _ in range(20)] == [b"event"] * 20
        for _ in range(5):
            fragment(ends.client, BIG, first=True, fin=True)
        hasten()
        assert not await ends.server.is_alive(), "its pong is behind too many bytes"
        assert [await ends.receive() for _ in range(5)] == [BIG] * 5


# -- messages in fragments


async def test_a_ping_does_not_extend_the_time_of_a_message() -> None:
    async with connected(message_timeout=SHORT_S) as ends:
        fragment(ends.client, b"a", first=True, fin=False)
        hasten()
        with pytest.raises(ConnectionClosed):
            async with asyncio.timeout(WAIT):
                while True:
                    await (await ends.client.ping())


async def test_a_message_in_one_frame_has_no_deadline() -> None:
    async with connected(message_timeout=0.0) as ends:
        for _ in range(20):
            await ends.client.send("whole")
            assert await ends.receive() == b"whole"
        await asyncio.wait_for(await ends.client.ping(), WAIT)


# -- tiny frames without end


async def test_a_flood_of_pings_is_cut_and_does_not_delay_other_clients() -> None:
    provider = ScriptedProvider(lambda _: [TextDelta("Quick.")])
    async with serving(provider) as served, served.phone("s-2") as calm, served.phone() as phone:
        frames = Frame(Opcode.PING, b"").serialize(mask=True) * 20_000
        phone.socket.transport.write(frames)
        await calm.ask("hi")
        await asyncio.wait_for(phone.closed.wait(), WAIT)
        await calm.ask("hi again")
        assert calm.finals() == ["Quick."] * 2


async def test_a_peer_that_reads_no_pongs_is_cut() -> None:
    async with connected(wire_frames_burst=1e9, max_unsent_bytes=100_000) as ends:
        ends.client.transport.pause_reading()
        pings = Frame(Opcode.PING, b"x" * 125).serialize(mask=True) * 1_000
        async with asyncio.timeout(WAIT):
            while not ends.server.transport.is_closing():
                ends.client.transport.write(pings)
                await asyncio.sleep(0)
            await ends.server.wait_closed()


async def test_a_long_message_in_many_fragments_is_accepted() -> None:
    async with connected() as ends:
        piece = b"x" * 1_000
        fragment(ends.client, piece, first=True, fin=False)
        for _ in range(998):
            fragment(ends.client, piece, first=False, fin=False)
        fragment(ends.client, piece, first=False, fin=True)
        assert await ends.receive() == piece * 1_000


async def test_an_incomplete_message_cuts_the_connection_and_not_the_session() -> None:
    provider = ScriptedProvider([[TextDelta("Hi.")]])
    async with serving(provider, message_timeout=SHORT_S) as served:
        async with served.phone("s-2") as calm, served.phone() as phone:
            session = next(s for s in served.listener.registry.sessions if s.key.session_id == "s-1")
            fragment(phone.socket, b'{"id"', first=True, fin=False)
            hasten()
            await asyncio.wait_for(phone.closed.wait(), WAIT)
            assert phone.close_code == 1006
            await phone.open()
            assert session in served.listener.registry.sessions
            assert phone.log[-1]["payload"].get("resumed", True) is True
            await phone.ask("hi")
            assert phone.finals() == ["Hi."]
            assert not calm.closed.is_set()
