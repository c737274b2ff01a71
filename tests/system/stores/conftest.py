"""Redis stores that end with their test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

import pytest

from conductor.plugins.stores.redis import RedisStore

StoreMaker: TypeAlias = Callable[..., RedisStore]


@pytest.fixture
async def make_store() -> AsyncIterator[StoreMaker]:
    """Make Redis stores by URL and options; they are closed after the test."""
    async with AsyncExitStack() as stack:

        def make(url: str, **options: Any) -> RedisStore:
            store = RedisStore(url, **options)
            stack.push_async_callback(store.aclose)
            return store

        yield make
