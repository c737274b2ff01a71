"""The page on short screens. Each test leaves its pictures in build/short-screens."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.conftest import ROOT
from tests.system.web.browser import PageUser, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

PICTURES = ROOT / "build" / "short-screens"
SIZES = [(844, 390), (667, 375), (640, 400), (1280, 600), (320, 568), (390, 667), (390, 844)]
TOKEN = "a-token-for-the-page"
QUESTIONS = {
    "medium": ('call lamp.switch with {"room":"hall","on":true}', "Always"),
    "high": ('call note.delete with {"title":"Milk"}', "Always, these arguments only"),
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def address() -> AsyncIterator[str]:
    """Run a server with tokens: only a known person may say always, the longest button."""
    async with serving(TOKEN) as running:
        yield f"{running}#token={TOKEN}"


async def picture(user: PageUser, name: str) -> None:
    await user.settled()
    PICTURES.mkdir(parents=True, exist_ok=True)
    await user.page.screenshot(path=str(PICTURES / f"{name}.png"))


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("risk", QUESTIONS)
async def test_every_button_of_a_card_is_in_reach_on_a_short_screen(
    user: PageUser, width: int, height: int, risk: str
) -> None:
    await user.page.set_viewport_size({"width": width, "height": height})
    await picture(user, f"{width}x{height}-first")
    assert await user.out_of_reach("#what, #composer, #microphone, #suggestions button, #views button") == []
    await user.ask("say good morning", "good morning")
    await picture(user, f"{width}x{height}-talk")
    assert await user.out_of_reach("#composer, #microphone, .message, #views button") == []
    question, always = QUESTIONS[risk]
    await user.say(question)
    await user.page.locator(".card").wait_for()
    await user.page.locator(".message.user").last.wait_for()
    await picture(user, f"{width}x{height}-{risk}")
    buttons = await user.page.locator(".card button").all_inner_texts()
    assert buttons == ["Allow once", "For this session", always, "Edit", "Deny"]
    assert await user.out_of_reach(".card, .card button, .card input, #composer, #views button") == []
    assert await user.out_of_reach("#room-heading, #lamps li, #notes li") == []
    sentence = await user.page.locator(".message.user").last.bounding_box()
    assert sentence["y"] >= (await user.page.locator("#conversation").bounding_box())["y"]
    card = await user.page.locator(".card").bounding_box()
    assert sentence["y"] + sentence["height"] <= card["y"] or sentence["x"] + sentence["width"] <= card["x"]
    await user.page.get_by_role("button", name="Deny").click()
    await user.answer("I left it")
    user.problems.clear()  # the browser's line about the status 401, before the page has sent the token
