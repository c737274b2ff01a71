"""The viewer of all sessions: with a key, by keyboard, and without barriers."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from conductor.app import make_services, running
from conductor.plugins.models.demo import DemoProvider
from conductor.settings import load_settings
from tests.server.api import API_KEYS, KEYS
from tests.system.web.browser import PageUser, visiting

pytestmark = pytest.mark.asyncio(loop_scope="module")
LAMP = "Switch on the lamp in the hall"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def address() -> AsyncIterator[str]:
    """Run a server with the HTTP API."""
    settings = load_settings(None, port=0, api_keys=API_KEYS)
    async with running(settings, make_services(settings, DemoProvider(pace_s=0.005))) as listener:
        yield f"http://127.0.0.1:{listener.port}/"


async def talk(user: PageUser) -> str:
    """Have a session with a call that was allowed on its card; gives its id."""
    await user.ask("what is 17% of 2340?", "397.8")
    await user.say(LAMP)
    await user.page.get_by_role("button", name="Allow once").click()
    await user.answer("The lamp in the hall is on.")
    return await user.session()


async def enter(viewer: PageUser, address: str, key: str) -> None:
    await viewer.page.goto(f"{address}sessions")
    await viewer.page.locator("#token-dialog[open]").wait_for()
    assert await viewer.axe() == []
    await viewer.page.keyboard.type(key)  # the field has the focus
    await viewer.page.keyboard.press("Enter")


@pytest.mark.parametrize("width", [1280, 390])
async def test_a_session_is_read_by_keyboard(browser: Any, user: PageUser, address: str, width: int) -> None:
    session = await talk(user)
    async with visiting(browser) as viewer:
        page = viewer.page
        await page.set_viewport_size({"width": width, "height": 780})
        await enter(viewer, address, KEYS["read"])
        entry = page.locator("#sessions button", has_text=session)
        await entry.wait_for()
        assert await viewer.axe() == []
        await entry.focus()
        await page.keyboard.press("Enter")
        lamp = page.locator("#overview .tool", has_text="lamp")
        await lamp.wait_for()
        assert "allowed by card" in await lamp.inner_text()
        overview = await page.inner_text("#overview")
        assert LAMP in overview and "The lamp in the hall is on." in overview and "Cost" in overview
        await lamp.locator("summary").focus()
        await page.keyboard.press("Enter")
        assert '"hall"' in await lamp.locator("pre").inner_text()
        assert await viewer.axe() == []
        await page.locator("#tab-overview").focus()
        await page.keyboard.press("ArrowRight")
        turns = page.locator("#events .turn")
        assert [text.partition(": ")[2] for text in await turns.all_inner_texts()][-1] == LAMP
        assert await page.locator("#events .type", has_text="approval.request").count() == 1
        assert await viewer.axe() == []
        await page.keyboard.press("ArrowRight")
        await page.locator("#record h2", has_text="State").wait_for()
        chosen = page.locator("#records [aria-selected=true]")
        last = await chosen.inner_text()
        await page.locator("#records").focus()
        await page.keyboard.press("ArrowUp")
        assert await chosen.inner_text() != last
        await page.locator("#record .changed").first.wait_for()
        assert await viewer.axe() == []
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        assert KEYS["read"] not in page.url and viewer.hosts == {address.split("/")[2]}


async def test_a_key_that_is_refused_is_asked_for_again(browser: Any, address: str) -> None:
    async with visiting(browser) as viewer:
        await enter(viewer, address, "no-key-of-this-server")
        await viewer.page.locator("#token-problem:not(:empty)").wait_for()
        assert await viewer.page.evaluate("sessionStorage.length") == 0
        viewer.problems = [text for text in viewer.problems if "401" not in text]  # the browser's own line


async def test_texts_of_a_session_are_shown_as_text_and_the_list_is_filtered(
    browser: Any, user: PageUser, address: str
) -> None:
    hostile = """<img src="x" onerror="window.ran = 1"></button>"""
    await user.ask(f"say {hostile}", hostile)
    session = await user.session()
    async with visiting(browser) as viewer:
        page = viewer.page
        await enter(viewer, address, KEYS["read"])
        await page.locator("#sessions button", has_text=session).click()
        await page.locator("#overview", has_text=hostile).wait_for()
        await page.locator("#tab-overview").press("ArrowRight")
        await page.locator("#events .turn").first.wait_for()
        assert await page.locator("img[src=x]").count() == 0
        assert await page.evaluate("window.ran") is None
        entry, note = page.locator("#sessions button", has_text=session), page.locator("#note")
        assert f"say {hostile}" == await entry.locator("strong").inner_text()  # the first words
        await note.get_by_text(re.compile(r"\d sessions?: [\d,]+ tokens, no known cost")).wait_for()
        for field, value, shown in (
            ("tool", "lamp", False),
            ("tool", "", True),
            ("since", "2100-01-01", False),
            ("since", "2001-01-01", True),
            ("until", "2001-01-01", False),
            ("until", "", True),
            ("person", "nobody", False),
            ("person", "", True),
        ):
            await page.locator(f"#{field}").fill(value)
            await page.keyboard.press("Enter")
            await entry.wait_for(state="visible" if shown else "detached")
        await page.locator("#failed").check()
        await page.locator("#search button").click()
        await entry.wait_for(state="detached")
        await note.get_by_text("No sessions").wait_for()
