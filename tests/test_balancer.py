"""The balancer and the nodes that scripts start, and the controls of chaos."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT, environment
from tests.server.wires import WAIT
from tests.test_cli import START

sys.path.append(str(ROOT / "scripts"))

from benchmarks.balancer import Balancer
from benchmarks.nodes import DidNotStart, Node

EVERY_S = 0.01
ANSWER_S = 1.0


class StandIn:
    """A node that answers ``/readyz`` with ``status``; on other connections it sends its name and echoes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.status: int | None = 200
        """None: it takes the question and does not answer, as a frozen process would."""
        self.polled = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)

    @property
    def address(self) -> tuple[str, int]:
        assert self._server is not None
        return "127.0.0.1", self._server.sockets[0].getsockname()[1]

    def drain(self) -> None:
        """Take no more connections, as a server does that is about to stop."""
        assert self._server is not None
        self._server.close()

    def die(self) -> None:
        """Lose the port and all connections, as a killed process would."""
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            first = await reader.read(4_096)
            if first.startswith(b"GET /readyz "):
                self.polled.set()
                if self.status is None:
                    await reader.read()
                else:
                    writer.write(f"HTTP/1.1 {self.status} As told\r\n\r\n".encode())
                return
            writer.write(f"{self.name}\n".encode())
            while first:
                writer.write(first)
                await writer.drain()
                first = await reader.read(65_536)
        except ConnectionError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()


class Client:
    """One connection through a balancer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def close(self) -> None:
        self.writer.transport.abort()

    async def hello(self) -> str:
        """Say something; the name of who answered, or nothing."""
        self.writer.write(b"hello\n")
        name = await self._line()
        assert not name or await self._line() == "hello"
        return name

    async def echo(self, text: str) -> str:
        self.writer.write(f"{text}\n".encode())
        return await self._line()

    async def _line(self) -> str:
        try:
            return (await asyncio.wait_for(self.reader.readline(), WAIT)).decode().rstrip("\n")
        except ConnectionError:
            return ""


@asynccontextmanager
async def balanced(
    *names: str,
) -> AsyncIterator[tuple[Balancer, dict[str, StandIn], Callable[[], Awaitable[Client]]]]:
    """Run a balancer before stand-ins, all of them ready; the last value connects through it."""
    nodes = {name: StandIn(name) for name in names}
    async with AsyncExitStack() as stack:
        for node in nodes.values():
            await node.start()
            stack.callback(node.die)
        addresses = [node.address for node in nodes.values()]
        balancer = await stack.enter_async_context(Balancer(addresses, every_s=EVERY_S, answer_s=ANSWER_S))
        await balancer.wait_ready(timeout_s=WAIT)

        async def connect() -> Client:
            reader, writer = await asyncio.open_connection("127.0.0.1", balancer.port)
            client = Client(reader, writer)
            stack.callback(client.close)
            return client

        yield balancer, nodes, connect


async def test_a_node_that_is_not_ready_gets_no_new_connection_and_keeps_its_own() -> None:
    async with balanced("a", "b") as (balancer, nodes, connect):
        clients = {await client.hello(): client for client in (await connect(), await connect())}
        nodes["a"].status = 503
        await balancer.wait_ready(1, WAIT)
        assert [await (await connect()).hello() for _ in range(3)] == ["b", "b", "b"]
        assert await clients["a"].echo("still there") == "still there"
        nodes["a"].status = 200
        await balancer.wait_ready(2, WAIT)
        assert {await (await connect()).hello() for _ in range(2)} == {"a", "b"}


async def test_a_node_that_died_loses_its_connections_and_new_ones_go_elsewhere_at_once() -> None:
    async with balanced("a", "b") as (balancer, nodes, connect):
        clients = {await client.hello(): client for client in (await connect(), await connect())}
        port = nodes["a"].address[1]
        nodes["a"].die()
        # The balancer has not polled it since; a connection to it goes to another node.
        assert [await (await connect()).hello() for _ in range(2)] == ["b", "b"]
        assert await clients["a"].echo("still there?") == ""
        await balancer.wait_ready(1, WAIT)
        await nodes["a"].start(port)
        await balancer.wait_ready(2, WAIT)
        assert {await (await connect()).hello() for _ in range(2)} == {"a", "b"}


async def test_every_byte_arrives_in_both_directions() -> None:
    async with balanced("a") as (_, _, connect):
        client = await connect()
        assert await client.hello() == "a"
        data = random.Random(7).randbytes(2_000_000)
        client.writer.write(data)
        assert await asyncio.wait_for(client.reader.readexactly(len(data)), WAIT) == data


# -- nodes


async def test_a_node_is_frozen_killed_and_started_again_where_it_was(tmp_path: Path) -> None:
    node = Node("node-1", tmp_path, "--provider", "demo")
    try:
        await node.start()
        first = node.pid
        assert await node.ready(WAIT)
        node.freeze()
        assert not await node.ready(ANSWER_S) and node.runs
        node.thaw()
        await node.wait_ready(START)
        await node.kill()
        assert not await node.ready(ANSWER_S)
        await node.start()
        assert await node.ready(WAIT) and node.pid != first
        assert node.log.read_text().count(f"connect   {node.url}") == 2
    finally:
        node.freeze()  # one that is frozen ends in good order all the same
        await node.stop()
    assert "stopping" in node.log.read_text()


async def test_a_node_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(DidNotStart, match="MODEL_PROVIDER 'parrot' is unknown"):
        await Node("node-1", tmp_path, "--provider", "parrot").start()


def test_the_controls_of_chaos_still_find_the_parts_that_they_break() -> None:
    code = "from benchmarks.chaos_nodes import CONTROLS; [control() for control in CONTROLS.values()]"
    variables = environment(PYTHONPATH=f"{ROOT}:{ROOT / 'scripts'}")
    run = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
