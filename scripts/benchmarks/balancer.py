"""A TCP balancer in this process: round robin over the nodes that are ready, without stickiness."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, Self, TypeVar

Address = tuple[str, int]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

CONNECT_S = 1.0
CHUNK = 65_536
_NAME = re.compile(rb"GET /ws\?client=([\w-]+) ")
_RESET = struct.pack("ii", 1, 0)


class Target(Protocol):
    """The target of a connection."""

    @property
    def address(self) -> Address: ...


N = TypeVar("N", bound=Target)


class Link(Generic[N]):
    """A client's connection, joined with one to ``node``.

    A client may name itself in its path, ``/ws?client=NAME``. ``served`` is set once the node has sent
    ``session.started``. A link that its client has left is an orphan: the node's end stays open, and what
    comes out of it from `listen` on is kept in ``after``. ``opened_at`` is in the loop's time.
    """

    def __init__(self, switch: Switch[N], near: asyncio.StreamWriter) -> None:
        self.name = ""
        self.node: N | None = None
        self.opened_at = asyncio.get_running_loop().time()
        self.ended = False
        self.served = False
        self.after: bytearray | None = None
        self._switch = switch
        self._near = near
        self._far: asyncio.StreamWriter | None = None
        self._orphan = False
        self._budget: int | None = None

    async def serve(self, reader: asyncio.StreamReader, node: N, far: Streams) -> None:
        """Forward bytes until one side ends. That ends both sides, except of an orphan."""
        far_reader, self._far = far
        self.node = node
        ups = asyncio.create_task(self._pipe(reader, self._far, self._from_client))
        downs = asyncio.create_task(self._pipe(far_reader, self._near, self._from_node))
        try:
            await asyncio.wait([ups, downs], return_when=asyncio.FIRST_COMPLETED)
            if self._orphan:
                await downs
        finally:
            self._end()
            for pipe in (ups, downs):
                pipe.cancel()
            for end in (self._near, self._far):
                end.close()
            await asyncio.wait([ups, downs], timeout=CONNECT_S)

    def cut_after(self, count: int) -> None:
        """Reset both ends after ``count`` more bytes, of both directions together."""
        self._budget = count

    def leave(self) -> None:
        """Cut the client's end only; the node does not notice yet."""
        self._orphan = True
        self._end()
        _reset(self._near)

    def listen(self) -> None:
        """Keep the node's bytes for a client that has left."""
        self.after = bytearray()

    def cut(self) -> None:
        """Reset both ends."""
        self._end()
        _reset(self._near)
        if self._far is not None:
            _reset(self._far)

    def _end(self) -> None:
        self._switch.links.discard(self)
        if not self.ended:
            self.ended = True
            self._switch.on_end(self.name)

    async def _pipe(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, look: Callable[[bytes], bool]
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                if not look(data):
                    continue
                writer.write(data if self._budget is None else data[: self._budget])
                if self._budget is not None:
                    self._budget -= len(data)
                    if self._budget <= 0:
                        self.cut()
                await writer.drain()

    def _from_client(self, data: bytes) -> bool:
        if not self.name and (match := _NAME.match(data)):
            self.name = match[1].decode()
            self._switch.latest[self.name] = self
        return True

    def _from_node(self, data: bytes) -> bool:
        """Look at a node's bytes; False keeps them from the client."""
        if self._orphan and self.after is not None:
            self.after += data
        self.served = self.served or b'"session.started"' in data
        return not self._orphan


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


class Switch(Generic[N]):
    """Forwards connections to ``port`` of loopback, within ``async with``, to the ``ready`` nodes in turn.

    Without a ready node a client is closed at once. ``latest``: a client's name -> its last link. ``on_end``
    gets the name when a link has ended.
    """

    def __init__(self, ready: Callable[[], Sequence[N]]) -> None:
        self.port = 0
        self.links: set[Link[N]] = set()
        self.latest: dict[str, Link[N]] = {}
        self.on_end: Callable[[str], None] = lambda name: None
        self._ready = ready
        self._turn = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"ws://127.0.0.1:{self.port}/ws"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for link in list(self.links):
            link.cut()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2 * CONNECT_S)
        await asyncio.wait_for(self._server.wait_closed(), 2 * CONNECT_S)

    def node_of(self, name: str) -> N | None:
        """Give the node that serves a client, if one does."""
        link = self.latest.get(name)
        return None if link is None or link.ended else link.node

    def links_of(self, node: N) -> list[Link[N]]:
        """List the connections of a node that stand."""
        return [link for link in self.links if link.node is node and not link.ended]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(self, writer)
        self.links.add(link)
        task = asyncio.create_task(self._serve(link, reader))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, link: Link[N], reader: asyncio.StreamReader) -> None:
        for _ in self._ready():
            ready = self._ready()
            if not ready:
                break
            node = ready[self._turn % len(ready)]
            self._turn += 1
            try:
                async with asyncio.timeout(CONNECT_S):
                    far = await asyncio.open_connection(*node.address)
            except (OSError, TimeoutError):
                continue
            if link.ended or reader.at_eof():
                link.cut()
                _reset(far[1])
            else:
                await link.serve(reader, node, far)
            return
        link.cut()
