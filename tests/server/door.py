"""One address in front of several nodes; a test can cut its connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from tests.server.nodes import Node

WELCOME = 2
"""The first pieces from a node: the answer to the upgrade, and ``session.started``."""


class Door:
    """Forwards clients to the node ``to``, and can cut all of them, now or soon."""

    def __init__(self, to: Node) -> None:
        self.to = to
        self._remaining: int | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Admit clients during the block; yields the URL."""
        async with asyncio.TaskGroup() as passing:
            listener = await asyncio.start_server(
                lambda reader, writer: passing.create_task(self._lead(reader, writer)), "127.0.0.1", 0
            )
            try:
                yield f"ws://127.0.0.1:{listener.sockets[0].getsockname()[1]}/ws"
            finally:
                listener.close()
                self.cut()

    def cut(self) -> None:
        """Lose all connections with the data on their way."""
        self._remaining = None
        for writer in self._writers:
            writer.transport.abort()

    def cut_after(self, pieces: int) -> None:
        """Cut after this number of further pieces from a node to admitted clients."""
        self._remaining = pieces

    def calm(self) -> None:
        """Stop cutting connections."""
        self._remaining = None

    def _count(self) -> None:
        if self._remaining is not None:
            self._remaining -= 1
            if self._remaining <= 0:
                self.cut()

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with self._ending(writer):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.to.listener.port)
            with self._ending(far_writer):
                async with asyncio.TaskGroup() as copying:
                    copying.create_task(self._pass(reader, far_writer))
                    copying.create_task(self._pass(far_reader, writer, self._count))

    @contextmanager
    def _ending(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        self._writers.add(writer)
        try:
            yield
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        count: Callable[[], None] = lambda: None,
    ) -> None:
        pieces = 0
        try:
            while data := await reader.read(65_536):
                pieces += 1
                if pieces > WELCOME:
                    count()
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            writer.close()
