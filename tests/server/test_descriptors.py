"""File descriptors and the limit of incomplete handshakes."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from conductor.server.address import connections_within, descriptor_limit, raise_descriptor_limit
from conductor.server.refusals import Refusals
from conductor.server.websocket import Handshakes
from tests.hasty import SHORT_S, hasten
from tests.models import ScriptedProvider
from tests.server.test_websocket_socket import connected
from tests.server.wires import WAIT, ask, upgrade
from tests.serving import Served, serving

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def silent(served: Served, count: int) -> AsyncIterator[list[Streams]]:
    """Open this number of connections in turn, and send nothing."""
    opened: list[Streams] = []
    try:
        for _ in range(count):
            opened.append(await asyncio.open_connection("127.0.0.1", served.listener.port))
        yield opened
    finally:
        for _, writer in opened:
            writer.transport.abort()


async def closed(streams: Streams) -> None:
    """Wait until the server has closed a connection without an answer."""
    try:
        assert await asyncio.wait_for(streams[0].read(), WAIT) == b""
    except ConnectionError:
        pass


async def test_over_the_limit_of_handshakes_the_oldest_is_cut() -> None:
    with capture_logs() as captured:
        async with serving(ScriptedProvider([]), max_handshakes=3) as served, silent(served, 5) as sockets:
            for streams in sockets[:2]:
                await closed(streams)
            async with served.phone() as phone:
                assert phone.shapes() == ["session.started"]
            assert (await ask(*sockets[4], upgrade()))[0] == 101, "the newest are still there"
    reasons = [
        (line["event"], line.get("count")) for line in captured if "handshakes" in line.get("reason", "")
    ]
    assert reasons == [("request refused", None), ("requests refused", 3)]


async def test_a_complete_handshake_does_not_count() -> None:
    async with serving(ScriptedProvider([]), max_handshakes=1) as served:
        async with served.phone("s-1") as first, served.phone("s-2"), served.phone("s-3"):
            assert not first.closed.is_set()


async def test_single_bytes_do_not_extend_the_time_of_a_handshake() -> None:
    async with (
        serving(ScriptedProvider([]), handshake_timeout=SHORT_S) as served,
        silent(served, 1) as sockets,
    ):
        reader, writer = sockets[0]
        hasten()
        ended = asyncio.create_task(closed((reader, writer)))
        for letter in upgrade()[:-2]:
            writer.write(letter.encode())
            await asyncio.wait([ended], timeout=0.001)
            if ended.done():
                break
        await ended


async def test_a_connection_on_one_of_the_last_descriptors_is_cut() -> None:
    with capture_logs() as captured:
        async with connected() as ends:
            Handshakes(10, 3, Refusals()).add(ends.server.transport)
            assert ends.server.transport.is_closing()
    assert [(line["event"], line["reason"]) for line in captured] == [
        ("request refused", "out of file descriptors (ulimit -n)")
    ]


def test_the_limit_is_raised_to_the_hard_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard))
    try:
        assert raise_descriptor_limit() == descriptor_limit() == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("descriptors", "most"), [(20_000, 13_290), (1_024, 640), (256, 128), (10, 1)])
def test_a_third_of_the_descriptors_is_left_to_handshakes_and_models(descriptors: int, most: int) -> None:
    assert connections_within(descriptors) == most
