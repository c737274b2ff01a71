"""Every asynchronous test of a conversation runs in virtual time, and has its sessions closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from tests.session.helpers import VirtualLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Name the event loop of the tests in this folder."""
    return {"virtual": VirtualLoop}


@pytest.fixture(autouse=True)
async def ending() -> AsyncIterator[None]:
    yield
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualLoop):
        await loop.end()
