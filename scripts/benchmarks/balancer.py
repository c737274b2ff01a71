"""A TCP balancer in this process: round robin over the nodes that are ready, and no stickiness."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar, cast

from benchmarks.nodes import readiness

Address = tuple[str, int]

EVERY_S = 0.2
"""How often each node is asked ``/readyz``."""
ANSWER_S = 1.0
"""A node that does not answer that for so long is dead."""
CONNECT_S = 1.0
_NAME = re.compile(rb"GET /ws\?client=([\w-]+) ")
_RESET = struct.pack("ii", 1, 0)


class Target(Protocol):
    """What a connection may be forwarded to."""

    @property
    def address(self) -> Address: ...


N = TypeVar("N", bound=Target)


class _End(asyncio.Protocol):
    """One end of a link; ``other`` is slowed down while this one takes nothing."""

    def __init__(
        self,
        received: Callable[[bytes], None],
        lost: Callable[[], None],
        made: Callable[[], object] = lambda: None,
    ) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _End | None = None
        self._received = received
        self._lost = lost
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._made()

    def data_received(self, data: bytes) -> None:
        self._received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def write(self, data: bytes) -> None:
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


class Link(Generic[N]):
    """A client's connection, joined with one to ``node``.

    A client may name itself in its path, ``/ws?client=NAME``. ``served`` is set once the node has sent
    ``session.started``. A link that its client has left is an orphan: the node's end stays open, and what
    comes out of it from `listen` on is kept in ``after``. ``opened_at`` is in the loop's time.
    """

    def __init__(self, switch: Switch[N]) -> None:
        self.name = ""
        self.node: N | None = None
        self.opened_at = asyncio.get_running_loop().time()
        self.ended = False
        self.served = False
        self.after: bytearray | None = None
        self.near = _End(self._from_client, self._near_lost, lambda: switch.join(self))
        self._far = _End(self._from_node, self._far_lost)
        self.near.other, self._far.other = self._far, self.near
        self._switch = switch
        self._orphan = False
        self._early = bytearray()
        self._budget: int | None = None

    async def join(self, node: N) -> None:
        """Connect to a node. Raises OSError."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_S):
            await loop.create_connection(lambda: self._far, *node.address)
        self.node = node
        if self.ended:
            self._far.close(reset=True)
            return
        self._forward(bytes(self._early), self._far)

    def cut_after(self, count: int) -> None:
        """Reset both ends after so many more bytes, of both directions together."""
        self._budget = count

    def leave(self) -> None:
        """Cut the client's end only: the node shall not notice yet."""
        self._orphan = True
        self._end()
        self.near.close(reset=True)

    def listen(self) -> None:
        """Keep what the node says to a client that has left."""
        self.after = bytearray()

    def cut(self) -> None:
        """Reset both ends."""
        self._end()
        self.near.close(reset=True)
        self._far.close(reset=True)

    def _end(self) -> None:
        if not self.ended:
            self.ended = True
            self._switch.on_end(self.name)

    def _from_client(self, data: bytes) -> None:
        if self.node is not None:
            self._forward(data, self._far)
        else:
            self._early += data
        if not self.name and (found := _NAME.match(data)):
            self.name = found[1].decode()
            self._switch.latest[self.name] = self

    def _from_node(self, data: bytes) -> None:
        if self._orphan:
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
            self.cut()

    def _near_lost(self) -> None:
        self._end()
        self._switch.links.discard(self)
        if not self._orphan:
            self._far.close(reset=False)

    def _far_lost(self) -> None:
        self.near.close(reset=False)


class Switch(Generic[N]):
    """Forwards what connects to ``port`` of loopback (0: any) to the ``ready`` nodes in turn.

    A client for whom there is no node is closed at once, and may come again. ``latest`` is each client's last
    link, by its name; ``on_end`` is told that name when a link has ended.
    """

    def __init__(self, ready: Callable[[], Sequence[N]], port: int = 0) -> None:
        self.port = port
        self.links: set[Link[N]] = set()
        self.latest: dict[str, Link[N]] = {}
        self.on_end: Callable[[str], None] = lambda name: None
        self._ready = ready
        self._turn = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"ws://127.0.0.1:{self.port}/ws"

    async def start(self) -> None:
        """Listen. Raises OSError if the port is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, "127.0.0.1", self.port, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Listen no more and cut everything."""
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

    def _accept(self) -> asyncio.Protocol:
        link = Link(self)
        self.links.add(link)
        return link.near

    def join(self, link: Link[N]) -> None:
        """Connect a link that has been accepted with a node."""
        self._spawn(self._join(link))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _join(self, link: Link[N]) -> None:
        for _ in self._ready():
            ready = self._ready()
            if not ready:
                break
            node = ready[self._turn % len(ready)]
            self._turn += 1
            try:
                await link.join(node)
                return
            except ConnectionRefusedError:
                self._found(node, 0)
            except (OSError, TimeoutError):
                self._found(node, None)
        link.cut()

    def _found(self, node: N, status: int | None) -> None:
        """Take note of what `readiness` says of a node, or of that it cannot be reached."""


@dataclass(eq=False)
class _Node:
    """A node, as the balancer sees it: 200 is ready, None is dead, and others get no new connection."""

    address: Address
    status: int | None = None


class Balancer(Switch[_Node]):
    """A switch to ``nodes`` that asks whether they are ready; they may change meanwhile.

    A dead node's connections are cut. One that answers, but is not ready, keeps those it has, and so does one
    that refuses new ones: it may be draining.
    """

    def __init__(
        self,
        nodes: Iterable[Address],
        port: int = 0,
        *,
        every_s: float = EVERY_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        super().__init__(lambda: [node for node in self._nodes.values() if node.status == 200], port)
        self._nodes = {address: _Node(address) for address in nodes}
        self._every_s, self._answer_s = every_s, answer_s
        self._checks: dict[Address, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    def connections(self, node: Address) -> int:
        """Count the connections that a node has through here."""
        return len(self.links_of(self._nodes[node]))

    async def start(self) -> None:
        """Listen, and look at the nodes from now on. Raises OSError if the port is taken."""
        await super().start()
        for node in self._nodes.values():
            self._checks[node.address] = self._spawn(self._check(node))

    def add(self, address: Address) -> None:
        """Forward to one more node, once it is ready."""
        self._nodes[address] = node = _Node(address)
        self._checks[address] = self._spawn(self._check(node))

    async def remove(self, address: Address) -> None:
        """Forget a node, and cut its connections."""
        check = self._checks.pop(address)
        check.cancel()
        await asyncio.wait([check], timeout=2 * self._answer_s)
        self.cut(address)
        del self._nodes[address]

    def cut(self, address: Address) -> None:
        """Reset the connections of a node, whatever its state: both sides lose them at once."""
        for link in self.links_of(self._nodes[address]):
            link.cut()

    async def wait_ready(self, count: int | None = None, timeout_s: float = 20.0) -> None:
        """Wait until exactly so many nodes are ready; all without ``count``. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while len(self._ready()) != (len(self._nodes) if count is None else count):
                self._changed.clear()
                await self._changed.wait()

    async def _check(self, node: _Node) -> None:
        while True:
            self._found(node, await readiness(*node.address, self._answer_s))
            await asyncio.sleep(self._every_s)

    def _found(self, node: _Node, status: int | None) -> None:
        if status is None:
            self.cut(node.address)
        if status != node.status:
            node.status = status
            self._changed.set()
