"""Hostile peers, in a process of their own: ``python -m benchmarks.peers HOST PORT SECONDS KIND=COUNT …``.

When all are connected it prints, as one line of JSON, the local ports of each kind; then they misbehave.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from benchmarks.client import Phone
from benchmarks.stall_inputs import FIXED, PATHS, Scene, frame_text

UPGRADE = (
    "GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
TEXT, CONTINUATION, PING, PONG, FIN = 0x1, 0x0, 0x9, 0xA, 0x80
PING_HEAD = bytes((FIN | PING, 4))
"""How the library's own pings begin: four random bytes follow. No text of the server's has such bytes."""


def frame(data: bytes, head: int = FIN | TEXT) -> bytes:
    """Write a WebSocket frame with a mask of zeros."""
    size = len(data)
    if size < 126:
        return bytes((head, 0x80 | size)) + b"\0\0\0\0" + data
    return bytes((head, 0xFE)) + size.to_bytes(2, "big") + b"\0\0\0\0" + data


class Peer:
    """A connection that sends what it likes; ``number`` counts its events."""

    def __init__(self, name: str, connection: socket.socket) -> None:
        self.name = name
        self._socket = connection
        self._number = 0

    @property
    def port(self) -> int:
        """Its own port, by which the server's side knows it."""
        return int(self._socket.getsockname()[1])

    def event(self, event_type: str, payload: str) -> bytes:
        """Write an event."""
        self._number += 1
        return frame(
            f'{{"id":"{self.name}-{self._number}","type":"{event_type}","timestamp":"t",'
            f'"sessionId":"{self.name}","protocolVersion":1,"payload":{payload}}}'.encode()
        )

    async def send(self, data: bytes) -> None:
        """Send bytes; waits for as long as the server takes none."""
        await asyncio.get_running_loop().sock_sendall(self._socket, data)
        await asyncio.sleep(0)  # `sock_sendall` does not let others run if there is room

    async def give_to(self, protocol: asyncio.Protocol) -> None:
        """Let a protocol have the connection from now on."""
        await asyncio.get_running_loop().create_connection(lambda: protocol, sock=self._socket)

    async def discard(self) -> None:
        """Read all that comes and forget it, but answer pings: a peer is to be bad in one way only."""
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(self._socket, 65_536):
            at = data.find(PING_HEAD)
            if at >= 0:
                await self.send(frame(data[at + 2 : at + 6], FIN | PONG))


async def connect(name: str, host: str, port: int) -> Peer:
    """Connect and upgrade. The receive buffer is small, so that who does not read is noticed."""
    loop = asyncio.get_running_loop()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.setblocking(False)
    await loop.sock_connect(connection, (host, port))
    await loop.sock_sendall(connection, UPGRADE.encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        more = await loop.sock_recv(connection, 1)  # not a byte of what follows
        if not more:
            raise ConnectionError(f"not upgraded: {answer!r}")
        answer += more
    if b" 101 " not in answer:
        raise ConnectionError(f"not upgraded: {answer!r}")
    return Peer(name, connection)


# -- the kinds


async def never_reads(peer: Peer) -> None:
    """Ask for long answers, below the server's rate, and read none of them."""
    await peer.send(peer.event("session.start", '{"capabilities":["tools"]}'))
    tools = ",".join(f'{{"name":"a tool that is refused {n}"}}' for n in range(200))
    while True:
        await peer.send(peer.event("session.update", f'{{"tools":[{tools}]}}'))
        await asyncio.sleep(1)


async def vanishes(peer: Peer) -> None:
    """Start a turn, then be gone: nothing more is read, sent or closed, and no ping is answered."""
    await peer.send(
        peer.event("session.start", "{}") + peer.event("user.audio.transcript.final", '{"text":"go"}')
    )


async def floods(peer: Peer) -> None:
    """Send events as fast as the server takes them, and read what comes."""
    reading = asyncio.create_task(peer.discard())
    try:
        await peer.send(peer.event("session.start", "{}"))
        while True:
            events = (peer.event("user.audio.transcript.partial", '{"text":"what is"}') for _ in range(50))
            await peer.send(b"".join(events))
    finally:
        reading.cancel()


async def dribbles(peer: Peer) -> None:
    """Send one message in fragments of a byte each, fifty a second, and never its end."""
    reading = asyncio.create_task(peer.discard())
    try:
        await peer.send(peer.event("session.start", "{}"))
        await peer.send(frame(b"{", TEXT))
        while True:
            await peer.send(frame(b" ", CONTINUATION))
            await asyncio.sleep(0.02)
    finally:
        reading.cancel()


async def shreds(peer: Peer) -> None:
    """Send messages in fragments of a byte each, as fast as the server takes them."""
    reading = asyncio.create_task(peer.discard())
    try:
        await peer.send(peer.event("session.start", "{}"))
        message = b"".join((frame(b"{", TEXT), frame(b" ", CONTINUATION) * 1_000, frame(b"}", FIN)))
        while True:
            await peer.send(message)
    finally:
        reading.cancel()


async def pings(peer: Peer) -> None:
    """Send pings as fast as the server takes them, and read none of the pongs."""
    await peer.send(peer.event("session.start", "{}"))
    many = frame(b"x" * 125, FIN | PING) * 100
    while True:
        await peer.send(many)


async def burdens(peer: Peer) -> None:
    """Send events that are dear to parse (`fuzz.dear_payloads`), as fast as the server takes them."""
    reading = asyncio.create_task(peer.discard())
    try:
        await peer.send(peer.event("session.start", "{}"))
        while True:
            await peer.send(peer.event("app.telemetry", '{"x":[' + ",".join(["1e308"] * 10_000) + "]}"))
    finally:
        reading.cancel()


SCENES = {
    "misspells": "misspelt arguments among 900 names",
    "edits": "thirty edits",
    "leaks": "jwt=:",
    "repeats": "counted repeats",
    "combines": "combining marks",
}
"""Kinds that play an input which once held the loop for seconds, by its name in `FIXED`."""
TURN_EVERY_S = 2.0
"""As often as a session may have turns if nothing is configured."""


def scene_of(kind: str) -> Scene:
    """Give what a kind of `SCENES` plays."""
    path, data = FIXED[SCENES[kind]]
    return PATHS[path].scene(data)


class _Player(Phone):
    """Declares what its scene does, and answers calls and questions with what the scene has for them."""

    def __init__(self, session_id: str, scene: Scene) -> None:
        super().__init__(session_id)
        self.opened.set_result(None)
        self._scene = scene

    def start(self) -> None:
        self.event("session.start", frame_text(self._scene.start))

    def text(self, data: bytes) -> None:
        event = json.loads(data)
        payload = event["payload"]
        if event["type"] == "tool.call":
            outcome = self._scene.outcome if payload["name"] == "device.do" else {"result": "{}"}
            self.event("tool.result", frame_text({"callId": payload["callId"], **outcome}))
        elif event["type"] == "approval.request":
            of = {"approvalId": payload["approvalId"], "argumentsDigest": payload["argumentsDigest"]}
            edits = [{**of, "decision": "edit", "editedArguments": edit} for edit in self._scene.edits]
            for _ in range(10):
                self.event("approval.response", frame_text({"decisions": edits}))
            self.event("approval.response", frame_text({**of, "decision": "deny"}))


def _playing(kind: str) -> Kind:
    async def play(peer: Peer) -> None:
        player = _Player(peer.name, scene_of(kind))
        await peer.give_to(player)
        player.start()
        while not player.closed:
            player.say(kind)  # which tells the model's stand-in what to call
            await asyncio.sleep(TURN_EVERY_S)

    return play


Kind: TypeAlias = Callable[[Peer], Awaitable[None]]
KINDS: dict[str, Kind] = {
    **{kind.__name__: kind for kind in (never_reads, vanishes, floods, dribbles, shreds, pings, burdens)},
    **{kind: _playing(kind) for kind in SCENES},
}


async def _misbehave(kind: Kind, peer: Peer) -> None:
    try:
        await kind(peer)
    except OSError:
        pass  # the server has ended it, which is what it should do


async def _run(host: str, port: int, seconds: float, counts: dict[str, int]) -> None:
    peers: dict[str, list[Peer]] = {}
    for name, count in counts.items():
        peers[name] = [await connect(f"{name}-{number}", host, port) for number in range(count)]
    print(json.dumps({name: [peer.port for peer in those] for name, those in peers.items()}), flush=True)
    tasks = [
        asyncio.create_task(_misbehave(KINDS[name], peer)) for name, those in peers.items() for peer in those
    ]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=5)


def main(arguments: Sequence[str]) -> None:
    """Connect, misbehave for so many seconds, and end, whatever the server does."""
    host, port, seconds, *kinds = arguments
    # The peers share the load's core where there are two: whatever the talkers have to do goes first.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    counts = {name: int(count) for name, _, count in (kind.partition("=") for kind in kinds)}
    asyncio.run(_run(host, int(port), float(seconds), counts))


if __name__ == "__main__":
    main(sys.argv[1:])
