"""The page in each state, at each size, in light and dark: barriers, reach, and the keyboard."""

from __future__ import annotations

from typing import Any

import pytest

from tests.system.web.browser import PageUser, visiting
from tests.system.web.states import LAMP, NOTE, SCHEMES, SIZES, STATES, SUM, arrive

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOP = ["who", "new-session", "Talk", "Inspect"]
SUGGESTIONS = ["Switch on the lamp in the hall", SUM, NOTE]
END = ["microphone", "Microphone and voice", "words", "send"]
CARD = ["Arguments", "Allow once", "For this session", "Edit", "Deny", "Why not, for the model"]
# The elements on the way from the page's start to its end.
TAB_ORDER = {
    "idle": [*TOP, "microphone", "Microphone and voice", *SUGGESTIONS, "words", "send"],
    "speaking": [*TOP, "conversation", "Calculator", *SUGGESTIONS, "stop", *END],
    "card": [*TOP, "conversation", "Calculator", "Note delete", *CARD, *END],
    "away": [*TOP, "conversation", "Lamp switch", *SUGGESTIONS, "try-now", "stop", *END],
    "five": [
        *TOP,
        "conversation",
        "Calculator",
        "Lamp switch",
        "Note delete",
        "Get current time",
        "Lamp switch",
        *END,
    ],
}
FOCUSED = """() => {
  const element = document.activeElement;
  const { outlineStyle, outlineWidth } = getComputedStyle(element);
  const { left, top, right, bottom } = element.getBoundingClientRect();
  const inSight = right > 0 && bottom > 0 && left < innerWidth && top < innerHeight;
  const name = element.id || element.ariaLabel || (element.querySelector(".name") ?? element).textContent;
  return { name, ring: outlineStyle !== "none" && parseFloat(outlineWidth) >= 2, inSight };
}"""


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("state", STATES)
async def test_there_are_no_barriers_in_any_state(
    browser: Any, address: str, state: str, scheme: str
) -> None:
    async with visiting(browser, color_scheme=scheme) as user:
        await STATES[state](user, await arrive(user, address))
        for size in SIZES:
            await user.resize(*size)
            assert await user.axe() == [], size
        user.problems.clear()  # the browser's lines about a server that is away


@pytest.mark.parametrize("state", STATES)
async def test_the_keyboard_reaches_all_in_the_order_of_sight(browser: Any, address: str, state: str) -> None:
    async with visiting(browser) as user:
        await STATES[state](user, await arrive(user, address))
        await user.page.mouse.click(1, 1)  # the keyboard starts from here
        reached = []
        for _ in TAB_ORDER[state]:
            await user.page.keyboard.press("Tab")
            focused = await user.page.evaluate(FOCUSED)
            assert focused["ring"] and focused["inSight"], focused
            reached.append(focused["name"])
        assert reached == TAB_ORDER[state]
        user.problems.clear()


@pytest.mark.parametrize("width", [1280, 844, 390])
@pytest.mark.parametrize("state", STATES)
async def test_nothing_to_press_is_cut_off_at_any_height(
    browser: Any, address: str, state: str, width: int
) -> None:
    async with visiting(browser) as user:
        await STATES[state](user, await arrive(user, address))
        pressed = "#composer, #microphone, #views button, #away:not([hidden]) button, .card, .card button"
        pressed += ", #what, #suggestions button" if state == "idle" else ""
        cut = {}
        for height in range(380 if width > 600 else 660, 1000, 20):
            await user.resize(width, height)
            if missed := await user.out_of_reach(pressed):
                cut[height] = missed
        assert cut == {}
        user.problems.clear()


async def test_a_card_is_a_dialog_that_says_what_it_is_about(user: PageUser) -> None:
    await user.say(NOTE)
    card = user.page.get_by_role("alertdialog", name="Delete the note Milk")
    await card.wait_for()
    await user.page.wait_for_function("document.activeElement.matches('conductor-card')")
    described = "(card) => card.ariaDescribedByElements.map((element) => element.textContent)"
    assert await card.evaluate(described) == ["High risk", "It cannot be undone."]


async def test_escape_leaves_the_fields_of_a_card_and_decides_nothing(user: PageUser) -> None:
    await user.say(NOTE)
    await user.page.get_by_role("button", name="Edit").press("Enter")
    await user.page.get_by_label("title *").fill("Bread")
    await user.page.keyboard.press("Escape")
    await user.page.get_by_role("button", name="Edit").wait_for()
    assert await user.page.evaluate("document.activeElement.textContent") == "Edit"
    await user.page.keyboard.press("Escape")
    assert await user.page.locator(".card[data-answered]").count() == 0
    assert await user.outgoing("approval.response") == []


@pytest.mark.parametrize("width", [390, 320])
async def test_suggestions_below_an_answer_take_one_line(user: PageUser, width: int) -> None:
    await user.ask("say hello", "hello")
    await user.resize(width, 844)
    for button in await user.page.locator("#suggestions button").all():
        assert (await button.bounding_box())["height"] < 45


async def test_the_colour_of_a_card_tells_its_risk(user: PageUser) -> None:
    colours = []
    for words in ("What do you see?", LAMP, NOTE):
        await user.say(words)
        risk = user.page.locator(".card .risk")
        colours.append(
            (await risk.inner_text(), await risk.evaluate("(text) => getComputedStyle(text).color"))
        )
        assert await user.axe("color-contrast") == []
        await user.page.get_by_role("button", name="Deny").click()
        await user.answer("I left it")
        await user.page.locator(".card").wait_for(state="detached")
    assert [risk for risk, _ in colours] == ["Safe", "Medium risk", "High risk"]
    assert len({colour for _, colour in colours}) == 3
