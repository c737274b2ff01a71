"""The page on short screens. Each test leaves its pictures in build/short-screens."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT
from tests.system.web.browser import PageUser

pytestmark = pytest.mark.asyncio(loop_scope="module")

PICTURES = ROOT / "build" / "short-screens"
SIZES = [(844, 390), (667, 375), (640, 400), (1280, 600), (320, 568)]
QUESTIONS = {
    "medium": 'call lamp.switch with {"room":"hall","on":true}',
    "high": 'call note.delete with {"title":"Milk"}',
}
# The elements that the pointer does not reach at their middle and near their corners: they are outside of the
# screen, cut off, or beneath another.
OUT_OF_REACH = """(selector) => [...document.querySelectorAll(selector)].filter((element) => {
  const { left, top, right, bottom } = element.getBoundingClientRect();
  const [width, height] = [right - left, bottom - top];
  return ![[0.5, 0.5], [0.15, 0.15], [0.85, 0.15], [0.15, 0.85], [0.85, 0.85]].every(([x, y]) => {
    const hit = document.elementFromPoint(left + x * width, top + y * height);
    return hit && element.contains(hit);
  });
}).map((element) => element.id || element.textContent)"""


async def picture(user: PageUser, name: str) -> None:
    # The button in the middle shrinks before all is in its place.
    motions = "document.getAnimations().filter((motion) => motion instanceof CSSTransition)"
    await user.page.evaluate(f"Promise.all({motions}.map((motion) => motion.finished))")
    PICTURES.mkdir(parents=True, exist_ok=True)
    await user.page.screenshot(path=str(PICTURES / f"{name}.png"))


async def out_of_reach(user: PageUser, selector: str) -> list[str]:
    unreached: list[str] = await user.page.evaluate(OUT_OF_REACH, selector)
    return unreached


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("risk", QUESTIONS)
async def test_every_button_of_a_card_is_in_reach_on_a_short_screen(
    user: PageUser, width: int, height: int, risk: str
) -> None:
    await user.page.set_viewport_size({"width": width, "height": height})
    await picture(user, f"{width}x{height}-first")
    assert await out_of_reach(user, "#composer, #microphone, #suggestions button, #views button") == []
    await user.ask("say good morning", "good morning")
    await picture(user, f"{width}x{height}-talk")
    assert await out_of_reach(user, "#composer, #microphone, .message, #views button") == []
    await user.say(QUESTIONS[risk])
    await user.page.locator(".card").wait_for()
    await user.page.locator(".message.user").last.wait_for()
    await picture(user, f"{width}x{height}-{risk}")
    buttons = await user.page.locator(".card button").all_inner_texts()
    assert buttons[0] == "Allow once" and buttons[-2:] == ["Edit", "Deny"] and len(buttons) == 5
    assert await out_of_reach(user, ".card, .card button, .card input, #composer, #views button") == []
    sentence = await user.page.locator(".message.user").last.bounding_box()
    assert sentence["y"] >= (await user.page.locator("#conversation").bounding_box())["y"]
    card = await user.page.locator(".card").bounding_box()
    assert sentence["y"] + sentence["height"] <= card["y"] or sentence["x"] + sentence["width"] <= card["x"]
    await user.page.get_by_role("button", name="Deny").click()
    await user.answer("I left it")
