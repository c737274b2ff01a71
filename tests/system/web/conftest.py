"""One browser and one server for all tests of a module, and a tab for each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.system.web.browser import PageUser, chromium, serving, visiting


@pytest.fixture(autouse=True)
def no_settings_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a developer's own tokens out of the tests."""
    monkeypatch.delenv("AUTH_TOKENS", raising=False)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser() -> AsyncIterator[Any]:
    """Run the browser."""
    async with chromium() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def address() -> AsyncIterator[str]:
    """Run a server with the demo model; each tab has a session of its own."""
    async with serving() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def user(browser: Any, address: str) -> AsyncIterator[PageUser]:
    """Have the page open."""
    async with visiting(browser) as visitor:
        await visitor.open(address)
        yield visitor
