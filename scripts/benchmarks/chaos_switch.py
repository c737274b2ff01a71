"""The wires between clients and nodes: a balancer that knows whose connection is whose, and can cut them.

A client names itself in its path, ``/ws?client=NAME``.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self, cast

from benchmarks.chaos_nodes import ChaosNode

_NAME = re.compile(rb"GET /ws\?client=([\w-]+) ")
_RESET = struct.pack("ii", 1, 0)
_EVENT = re.compile(rb'{"id":"([\w-]+)","type":"([a-z.]+)"')
_CALLED = re.compile(rb'"callId":"([\w-]+)","name":"([\w.]+)"')


class _End(asyncio.Protocol):
    """One end of a link."""

    def __init__(self, received: Callable[[bytes], None], lost: Callable[[], None]) -> None:
        self.transport: asyncio.Transport | None = None
        self._received = received
        self._lost = lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Hand on."""
        self._received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell."""
        self._lost()

    def write(self, data: bytes) -> None:
        """Write, unless it is closing."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def close(self, *, reset: bool) -> None:
        """Close, after what is queued or at once."""
        if self.transport is None:
            return
        if not reset:
            self.transport.close()
            return
        sock = self.transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()


class Link:
    """A client's connection through the switch.

    ``served`` is set once the node has sent an event. A link whose node was frozen when its client left is an
    *orphan*: the node's end stays open, and what comes out of it from `listen` on is kept in ``after``.
    Times are the loop's.
    """

    def __init__(self, switch: Switch) -> None:
        self.name = ""
        self.node: ChaosNode | None = None
        self.opened_at = asyncio.get_running_loop().time()
        self.ended_at: float | None = None
        self.served = False
        self.orphan = False
        self.after: bytearray | None = None
        self.near = _End(self._from_client, self._client_lost)
        self._far = _End(self._from_node, self._node_lost)
        self._switch = switch
        self._early = bytearray()
        self._connecting: asyncio.Task[None] | None = None
        self._budget: int | None = None

    def cut_after(self, count: int) -> None:
        """Reset both ends after so many more bytes, of both directions together."""
        self._budget = count

    def leave(self) -> None:
        """Cut the client's end only: the node shall not notice yet."""
        self.orphan = True
        self._end()
        self.near.close(reset=True)

    def listen(self) -> None:
        """Keep what the node says to a client that has left."""
        self.after = bytearray()

    def close(self) -> None:
        """Reset both ends."""
        self._end()
        self.near.close(reset=True)
        self._far.close(reset=True)

    def _end(self) -> None:
        if self.ended_at is None:
            self.ended_at = asyncio.get_running_loop().time()
            self._switch.on_end(self.name)

    def _from_client(self, data: bytes) -> None:
        if self._far.transport is not None:
            self._forward(data, self._far)
            return
        self._early += data
        found = _NAME.match(self._early)
        if found and self._connecting is None:
            self.name = found[1].decode()
            self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        node = self._switch.choose()
        if node is None:
            self.close()
            return
        try:
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(2):
                await loop.create_connection(lambda: self._far, "127.0.0.1", node.port)
        except (OSError, TimeoutError):
            self.close()
            return
        self.node = node
        if self.ended_at is not None:
            self._far.close(reset=True)
            return
        self._switch.latest[self.name] = self
        self._forward(bytes(self._early), self._far)

    def _from_node(self, data: bytes) -> None:
        if self.orphan:
            if self.after is not None:
                self.after += data
            return
        self.served = self.served or b'"session.started"' in data
        self._forward(data, self.near)

    def _forward(self, data: bytes, end: _End) -> None:
        if self._budget is None:
            end.write(data)
            return
        end.write(data[: self._budget])
        self._budget -= len(data)
        if self._budget <= 0:
            self.close()

    def _client_lost(self) -> None:
        self._end()
        self._switch.links.discard(self)
        if not self.orphan:
            self._far.close(reset=False)

    def _node_lost(self) -> None:
        self.near.close(reset=False)


class Switch:
    """Listens on ``port`` of loopback, and gives each connection to the next node that is up.

    ``on_end`` is told of a connection that has ended, by the client's name.
    """

    def __init__(self, nodes: Sequence[ChaosNode]) -> None:
        self.nodes = nodes
        self.port = 0
        self.links: set[Link] = set()
        self.latest: dict[str, Link] = {}
        self.on_end: Callable[[str], None] = lambda name: None
        self._server: asyncio.Server | None = None
        self._turn = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.get_running_loop().create_server(
            self._accept, "127.0.0.1", 0, backlog=512
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for link in list(self.links):
            link.close()

    def choose(self) -> ChaosNode | None:
        """Give the next node that is up."""
        up = [node for node in self.nodes if node.state == "up"]
        self._turn += 1
        return up[self._turn % len(up)] if up else None

    def node_of(self, name: str) -> ChaosNode | None:
        """Give the node that serves a client, if one does."""
        link = self.latest.get(name)
        return None if link is None or link.ended_at is not None else link.node

    def links_of(self, node: ChaosNode) -> list[Link]:
        """List the connections of a node that stand."""
        return [link for link in self.links if link.node is node and link.ended_at is None]

    def _accept(self) -> asyncio.Protocol:
        link = Link(self)
        self.links.add(link)
        return link.near


@dataclass(frozen=True)
class Said:
    """An event among a node's bytes; ``call_id`` and ``name`` are a call's."""

    event_id: str
    type: str
    call_id: str
    name: str


def events_of(data: bytes) -> list[Said]:
    """List the events in a node's bytes, which need not begin or end with one."""
    found = list(_EVENT.finditer(data))
    ends = [*(match.start() for match in found[1:]), len(data)][: len(found)]
    said = []
    for match, end in zip(found, ends, strict=True):
        called = _CALLED.search(data, match.end(), end)
        call = (called[1].decode(), called[2].decode()) if called else ("", "")
        said.append(Said(match[1].decode(), match[2].decode(), *call))
    return said
