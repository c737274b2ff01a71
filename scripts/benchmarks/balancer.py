"""A TCP balancer in this process: round robin over the nodes that are ready, and no stickiness."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Self

from benchmarks.process import readiness

Address = tuple[str, int]

EVERY_S = 0.2
"""How often each node is asked ``/readyz``."""
ANSWER_S = 1.0
"""A node that does not answer that for so long is dead."""
CONNECT_S = 1.0
CHUNK = 65_536


class _Target:
    """A node, as the balancer sees it: 200 is ready, None is dead, and others get no new connection."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.status: int | None = None
        self.connections: set[_Forward] = set()


class _Forward:
    """One connection of a client, and the one to a node that it is joined with."""

    def __init__(self, *writers: asyncio.StreamWriter) -> None:
        self._writers = writers

    def cut(self) -> None:
        """Reset both sides."""
        for writer in self._writers:
            writer.transport.abort()


class Balancer:
    """Forwards what connects to ``port`` of loopback (0: any) to ``nodes``, which may change meanwhile.

    A dead node's connections are cut. One that answers, but is not ready, keeps those it has, and so does one
    that refuses new ones: it may be draining. A client for whom there is no node is closed at once, and may
    come again.
    """

    def __init__(
        self,
        nodes: Iterable[Address],
        port: int = 0,
        *,
        every_s: float = EVERY_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        self.port = port
        self._targets = {address: _Target(address) for address in nodes}
        self._every_s, self._answer_s = every_s, answer_s
        self._turn = 0
        self._server: asyncio.Server | None = None
        self._checks: dict[Address, asyncio.Task[None]] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"ws://127.0.0.1:{self.port}/ws"

    @property
    def ready(self) -> list[Address]:
        """The nodes that get new connections."""
        return [address for address, target in self._targets.items() if target.status == 200]

    def connections(self, node: Address) -> int:
        """Count the connections that a node has through here."""
        return len(self._targets[node].connections)

    async def start(self) -> None:
        """Listen, and look at the nodes from now on. Raises OSError if the port is taken."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, limit=CHUNK)
        self.port = self._server.sockets[0].getsockname()[1]
        for address in self._targets:
            self._watch(address)

    async def stop(self) -> None:
        """Listen no more and cut everything."""
        assert self._server is not None
        self._server.close()
        for address in self._targets:
            self.cut(address)
        tasks = [*self._checks.values(), *self._serving]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=2 * CONNECT_S)
        await asyncio.wait_for(self._server.wait_closed(), 2 * CONNECT_S)

    def add(self, node: Address) -> None:
        """Forward to one more node, once it is ready."""
        self._targets[node] = _Target(node)
        self._watch(node)

    async def remove(self, node: Address) -> None:
        """Forget a node, and cut its connections."""
        check = self._checks.pop(node)
        check.cancel()
        await asyncio.wait([check], timeout=2 * self._answer_s)
        self.cut(node)
        del self._targets[node]

    def cut(self, node: Address) -> None:
        """Reset the connections of a node, whatever its state: both sides lose them at once."""
        for connection in list(self._targets[node].connections):
            connection.cut()

    async def wait_ready(self, count: int | None = None, timeout_s: float = 20.0) -> None:
        """Wait until exactly so many nodes are ready; all without ``count``. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while len(self.ready) != (len(self._targets) if count is None else count):
                self._changed.clear()
                await self._changed.wait()

    # -- the nodes

    def _watch(self, address: Address) -> None:
        self._checks[address] = asyncio.create_task(self._check(self._targets[address]))

    async def _check(self, target: _Target) -> None:
        while True:
            self._becomes(target, await readiness(*target.address, self._answer_s))
            await asyncio.sleep(self._every_s)

    def _becomes(self, target: _Target, status: int | None) -> None:
        if status is None:
            for connection in list(target.connections):
                connection.cut()
        if status != target.status:
            target.status = status
            self._changed.set()

    # -- the connections

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            target, node_reader, node_writer = await self._connect()
        except BaseException as error:
            writer.transport.abort()
            if isinstance(error, ConnectionError):
                return
            raise
        forward = _Forward(writer, node_writer)
        target.connections.add(forward)
        pipes = [
            asyncio.create_task(_pipe(reader, node_writer)),
            asyncio.create_task(_pipe(node_reader, writer)),
        ]
        try:
            # Whichever side ends, ends both: what came from it is on its way by then.
            await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pipe in pipes:
                pipe.cancel()
            target.connections.discard(forward)
            for end in (writer, node_writer):
                end.close()
            await asyncio.wait(pipes, timeout=CONNECT_S)

    async def _connect(self) -> tuple[_Target, asyncio.StreamReader, asyncio.StreamWriter]:
        """Take the next node that is ready and can be reached. Raises ConnectionError without one."""
        for _ in range(len(self._targets)):
            ready = [target for target in self._targets.values() if target.status == 200]
            if not ready:
                break
            target = ready[self._turn % len(ready)]
            self._turn += 1
            try:
                async with asyncio.timeout(CONNECT_S):
                    return target, *await asyncio.open_connection(*target.address, limit=CHUNK)
            except ConnectionRefusedError:
                self._becomes(target, 0)
            except (OSError, TimeoutError):
                self._becomes(target, None)
        raise ConnectionError("no node is ready")


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the one side ends or the other is gone."""
    with contextlib.suppress(OSError):
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
            await writer.drain()
