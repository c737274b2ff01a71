"""Hostile peers, in a separate process: ``python -m benchmarks.peers HOST PORT SECONDS KIND=COUNT …``.

When all are connected, it prints a line. Then they misbehave.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import count, islice, repeat
from typing import Any, TypeAlias

from websockets.frames import Frame, Opcode

from tests.app import App
from tests.links import WebSocket

RECEIVE_BUFFER = 4_096
"""Small: the server soon notices a peer that does not read."""


def frame(data: bytes, opcode: Opcode = Opcode.TEXT, *, fin: bool = True) -> bytes:
    """Write one frame of a WebSocket."""
    return Frame(opcode, data, fin).serialize(mask=True)


class Peer(App):
    """Drops the server's events, but answers pings: each kind of peer misbehaves in one way only."""

    def receive(self, data: bytes) -> None:
        pass

    async def connect(self, host: str, port: int) -> None:
        """Connect with a small receive buffer."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (host, port))
        self.attach(await WebSocket(self.receive).open(f"ws://{host}:{port}/ws", sock=sock))

    def frames(self, event_type: str, payload: Any) -> Iterator[bytes]:
        """Make frames of an event without end, each under a new id."""
        event = {"type": event_type, "timestamp": "t", "sessionId": self.session_id, "payload": payload}
        text = json.dumps(event).encode()
        for number in count():
            yield frame(b'{"id":"e-%d",%s' % (number, text[1:]))

    async def flood(self, messages: Iterator[bytes]) -> None:
        """Start the session, and send bytes as fast as the server takes them."""
        self.start()
        for data in messages:
            if self.closed.is_set():
                return
            self.socket.transport.write(data)
            await self.socket.drained()


# -- the kinds


async def never_reads(peer: Peer) -> None:
    """Ask for long answers, below the server's rate limit, and do not read them."""
    peer.socket.transport.pause_reading()
    peer.send("session.start", {"capabilities": ["tools"]})
    tools = [{"name": f"a tool that is refused {number}"} for number in range(200)]
    while not peer.closed.is_set():
        peer.send("session.update", {"tools": tools})
        await peer.socket.drained()
        await asyncio.sleep(1)


async def vanishes(peer: Peer) -> None:
    """Start a turn and vanish: no frame is read or sent, and no ping is answered."""
    peer.socket.transport.pause_reading()
    peer.start()
    peer.say("go")


async def floods(peer: Peer) -> None:
    """Send events as fast as the server takes them."""
    frames = peer.frames("user.audio.transcript.partial", {"text": "what is"})
    await peer.flood(b"".join(islice(frames, 50)) for _ in count())


async def dribbles(peer: Peer) -> None:
    """Send one message in fragments of one byte, fifty a second, and never its end."""
    peer.start()
    peer.socket.transport.write(frame(b"{", fin=False))
    while not peer.closed.is_set():
        peer.socket.transport.write(frame(b" ", Opcode.CONT, fin=False))
        await peer.socket.drained()
        await asyncio.sleep(0.02)


async def shreds(peer: Peer) -> None:
    """Send messages in fragments of one byte, as fast as the server takes them."""
    middle = frame(b" ", Opcode.CONT, fin=False) * 1_000
    await peer.flood(repeat(frame(b"{", fin=False) + middle + frame(b"}", Opcode.CONT)))


async def pings(peer: Peer) -> None:
    """Send pings as fast as the server takes them, and read no pong."""
    peer.socket.transport.pause_reading()
    await peer.flood(repeat(frame(b"x" * 125, Opcode.PING) * 100))


async def burdens(peer: Peer) -> None:
    """Send events that are expensive to parse, as fast as the server takes them."""
    await peer.flood(peer.frames("app.telemetry", {"x": [1e308] * 10_000}))


Kind: TypeAlias = Callable[[Peer], Awaitable[None]]
KINDS: dict[str, Kind] = {
    kind.__name__: kind for kind in (never_reads, vanishes, floods, dribbles, shreds, pings, burdens)
}


async def _run(host: str, port: int, seconds: float, counts: dict[str, int]) -> None:
    peers = {
        kind: [Peer(session_id=f"{kind}-{number}") for number in range(total)]
        for kind, total in counts.items()
    }
    for peer in (peer for group in peers.values() for peer in group):
        await peer.connect(host, port)
    print("connected", flush=True)
    # With two cores, the peers share the load's core: the talkers' work goes first.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    tasks = [asyncio.ensure_future(KINDS[kind](peer)) for kind, group in peers.items() for peer in group]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=5)


def main(arguments: Sequence[str]) -> None:
    """Connect, misbehave for that many seconds, and end."""
    host, port, seconds, *kinds = arguments
    counts = {name: int(total) for name, _, total in (kind.partition("=") for kind in kinds)}
    asyncio.run(_run(host, int(port), float(seconds), counts))


if __name__ == "__main__":
    main(sys.argv[1:])
