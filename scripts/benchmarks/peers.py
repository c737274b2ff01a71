"""Hostile peers, in a process of their own: ``python -m benchmarks.peers HOST PORT SECONDS KIND=COUNT …``.

When all are connected it prints, as one line of JSON, the local ports of each kind; then they misbehave.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import count, repeat
from typing import TypeAlias

from benchmarks.client import CONTINUATION, FIN, PING, TEXT, Phone, frame
from benchmarks.stall_inputs import FIXED, PATHS, Scene, frame_text

RECEIVE_BUFFER = 4_096
"""Small, so that who does not read is noticed."""


class Peer(Phone):
    """Reads what comes and forgets it, but answers pings: a peer is to be bad in one way only."""

    def text(self, data: bytes) -> None:
        pass

    @property
    def port(self) -> int:
        """Its own port, by which the server's side knows it."""
        assert self.transport is not None
        return int(self.transport.get_extra_info("sockname")[1])

    def stop_reading(self) -> None:
        assert self.transport is not None
        self.transport.pause_reading()

    async def flood(self, messages: Iterator[bytes]) -> None:
        """Start the session and send frames as fast as the server takes them."""
        self.event("session.start", "{}")
        for data in messages:
            self.write(data)
            await self.drain()


# -- the kinds


async def never_reads(peer: Peer) -> None:
    """Ask for long answers, below the server's rate, and read none of them."""
    peer.stop_reading()
    peer.event("session.start", '{"capabilities":["tools"]}')
    tools = ",".join(f'{{"name":"a tool that is refused {n}"}}' for n in range(200))
    while True:
        peer.event("session.update", f'{{"tools":[{tools}]}}')
        await peer.drain()
        await asyncio.sleep(1)


async def vanishes(peer: Peer) -> None:
    """Start a turn, then be gone: nothing more is read, sent or closed, and no ping is answered."""
    peer.stop_reading()
    peer.event("session.start", "{}")
    peer.say("go")


async def floods(peer: Peer) -> None:
    """Send events as fast as the server takes them."""
    kind, payload = "user.audio.transcript.partial", '{"text":"what is"}'
    await peer.flood(b"".join(frame(peer.encoded(kind, payload)) for _ in range(50)) for _ in count())


async def dribbles(peer: Peer) -> None:
    """Send one message in fragments of a byte each, fifty a second, and never its end."""
    peer.event("session.start", "{}")
    peer.write(frame(b"{", TEXT))
    while True:
        peer.write(frame(b" ", CONTINUATION))
        await peer.drain()
        await asyncio.sleep(0.02)


async def shreds(peer: Peer) -> None:
    """Send messages in fragments of a byte each, as fast as the server takes them."""
    await peer.flood(
        repeat(frame(b"{", TEXT) + frame(b" ", CONTINUATION) * 1_000 + frame(b"}", FIN | CONTINUATION))
    )


async def pings(peer: Peer) -> None:
    """Send pings as fast as the server takes them, and read none of the pongs."""
    peer.stop_reading()
    await peer.flood(repeat(frame(b"x" * 125, FIN | PING) * 100))


async def burdens(peer: Peer) -> None:
    """Send events that are dear to parse (`fuzz.dear_payloads`), as fast as the server takes them."""
    payload = '{"x":[' + ",".join(["1e308"] * 10_000) + "]}"
    await peer.flood(frame(peer.encoded("app.telemetry", payload)) for _ in count())


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


class Player(Peer):
    """Declares what the scene of its ``kind`` does, and answers calls and questions with what that has."""

    def __init__(self, session_id: str, kind: str) -> None:
        super().__init__(session_id)
        self.kind = kind
        self._scene = scene_of(kind)

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


async def plays(peer: Peer) -> None:
    """Have turns that play the scene of a `Player`."""
    assert isinstance(peer, Player)
    peer.start()
    while not peer.closed:
        peer.say(peer.kind)  # which tells the model's stand-in what to call
        await asyncio.sleep(TURN_EVERY_S)


Kind: TypeAlias = Callable[[Peer], Awaitable[None]]
KINDS: dict[str, Kind] = {
    **{kind.__name__: kind for kind in (never_reads, vanishes, floods, dribbles, shreds, pings, burdens)},
    **dict.fromkeys(SCENES, plays),
}


async def _misbehave(kind: Kind, peer: Peer) -> None:
    try:
        await kind(peer)
    except OSError:
        pass  # the server has ended it, which is what it should do


async def _run(host: str, port: int, seconds: float, counts: dict[str, int]) -> None:
    peers: dict[str, list[Peer]] = {}
    for name, wanted in counts.items():
        peers[name] = those = [
            Player(f"{name}-{n}", name) if name in SCENES else Peer(f"{name}-{n}") for n in range(wanted)
        ]
        for peer in those:
            await peer.connect(host, port, receive_buffer=RECEIVE_BUFFER)
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
