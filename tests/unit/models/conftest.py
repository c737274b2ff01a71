"""Tests of the router and of retries run in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.session.helpers import VirtualLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Choose the event loop of a test by its file."""
    if item.path.stem in ("test_retry", "test_router"):
        return {"virtual": VirtualLoop}
    return {"real": asyncio.new_event_loop}
