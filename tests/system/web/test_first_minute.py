"""The page in a browser: a newcomer's first minute, and what the page says in words."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.system.web.browser import MEDIA, PageUser, serving, visiting
from tests.system.web.states import Line
from tests.system.web.test_talk import LAMP, NOTE, tap

pytestmark = pytest.mark.asyncio(loop_scope="module")

WIDTHS = [(1280, 800), (390, 844), (844, 390)]


@pytest.mark.parametrize(("width", "height"), WIDTHS)
async def test_the_first_screen_says_what_this_is_and_what_the_tools_act_on(
    user: PageUser, width: int, height: int
) -> None:
    await user.page.set_viewport_size({"width": width, "height": height})
    sentence = await user.page.locator("#what").bounding_box()
    assert 0 <= sentence["y"] and sentence["y"] + sentence["height"] <= height / 2
    assert (await user.page.inner_text("#what")).count(".") == 1
    await user.page.get_by_role("heading", name="On this page: lamps and notes").wait_for()
    await user.say(NOTE)
    await user.page.locator(".card").wait_for()
    shown = "document.querySelector('#notes').scrollHeight <= document.querySelector('#notes').clientHeight"
    assert await user.page.evaluate(shown)
    for part in ("#room-heading", "#lamps", "#notes"):
        assert await user.page.locator(part).is_visible()
    assert not await user.page.is_visible("#what")


async def test_suggestions_stay_until_the_third_turn_also_over_a_reload(user: PageUser) -> None:
    suggestion = user.page.get_by_role("button", name="What is 17% of 2,340?")
    for number in ("one", "two"):
        await user.ask(f"say {number}", number)
        await suggestion.wait_for()
    await user.page.reload()
    await user.connected()
    await suggestion.click()
    await suggestion.wait_for(state="hidden")
    await user.answer("397.8")
    await user.page.reload()
    await user.connected()
    assert not await suggestion.is_visible()


async def test_the_conversation_grows_from_the_top(user: PageUser) -> None:
    await user.ask("say hello", "hello")
    log = await user.page.locator("#conversation").bounding_box()
    first = await user.page.locator(".message").first.bounding_box()
    assert first["y"] - log["y"] < 20


async def test_a_call_shows_its_result_without_a_click(user: PageUser) -> None:
    await user.ask("what is 17% of 2340?", "397.8")
    summary = user.page.locator(".call summary")
    await summary.first.get_by_text("397.8").wait_for()  # of the server's own tool, from its records
    assert "0 ms" not in (await summary.first.inner_text()).split()
    await user.say(LAMP)
    await user.page.get_by_role("button", name="Allow once").click()
    await user.answer("The lamp in the hall is on.")
    assert "The lamp in the hall is on." in await summary.last.inner_text()
    assert await user.page.locator(".call[open]").count() == 0


async def test_a_lamp_that_is_on_lights_its_room(user: PageUser) -> None:
    def light(room: str) -> Any:
        opacity = "(light) => Number(getComputedStyle(light).opacity)"
        return user.page.locator(f"#lamps [data-room={room}] .light").evaluate(opacity)

    await user.say(LAMP)
    await user.page.get_by_role("button", name="Allow once").click()
    await user.answer("The lamp in the hall is on.")
    await user.page.evaluate("Promise.all(document.getAnimations().map((motion) => motion.finished))")
    assert await light("hall") > 0.5
    assert await light("office") == 0
    assert await user.axe() == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("not-allowed", "Allow it beside the address"),
        ("audio-capture", "finds no microphone"),
        ("odd", "(odd)"),
    ],
)
async def test_a_browser_that_refuses_the_microphone_is_quoted_in_words(
    browser: Any, address: str, error: str, words: str
) -> None:
    async with visiting(browser) as user:
        await user.page.add_init_script(MEDIA)
        await user.open(address)
        await tap(user)
        failure = f'Object.assign(new Event("error"), {{ error: "{error}" }})'
        await user.page.evaluate(f"recognitions[0].dispatchEvent({failure})")
        await user.page.evaluate('recognitions[0].dispatchEvent(new Event("end"))')
        await user.state("idle")
        note = await user.page.inner_text("#media-note")
        assert words in note and "not-allowed" not in note


async def test_words_and_decisions_while_the_server_is_away_are_sent_when_it_is_back(browser: Any) -> None:
    async with serving() as address, visiting(browser) as user:
        line = Line()
        await user.page.route_web_socket("**/ws", line.lead)
        await user.page.clock.install()
        await user.open(address)
        await user.say(LAMP)
        await user.page.locator(".card").wait_for()
        await line.cut(user)
        await user.page.clock.run_for(60_000)  # by then the pauses between tries have their full length
        await user.page.get_by_text("The server is away.").wait_for()
        assert await user.axe() == []
        await user.page.clock.pause_at(await user.page.evaluate("Date.now() + 100"))  # no try of its own
        await user.page.get_by_role("button", name="Allow once").dispatch_event("click")
        await user.page.get_by_text("Your answer will be sent when the server is back.").wait_for()
        line.is_up = True
        await user.page.get_by_role("button", name="Try now").dispatch_event("click")
        await user.connected()
        await user.page.clock.resume()
        await user.answer("The lamp in the hall is on.")
        assert not await user.page.is_visible("#away")
        await line.cut(user)
        await user.say("say hello")
        assert "Will be sent" in await user.page.locator(".message.user").last.inner_text()
        line.is_up = True
        await user.answer("hello")
        assert "Will be sent" not in await user.page.locator(".message.user").last.inner_text()
        user.problems.clear()  # the browser's line about the check of the token


async def test_a_cost_that_is_not_known_is_said_in_words(user: PageUser) -> None:
    await user.page.click("#who")
    await user.page.get_by_text(re.compile("None known: the server has no prices")).wait_for()


LIT = "[...(CSS.highlights.get('conductor-spoken') ?? [])].map(String).join()"


async def test_words_are_lit_as_they_are_spoken(browser: Any, address: str) -> None:
    async with visiting(browser) as user:
        await user.page.add_init_script(MEDIA)
        await user.open(address)
        await tap(user)
        await user.page.evaluate("recognitions[0].hear('say good morning to all of you', true)")
        await user.state("speaking")
        await user.page.locator(".message.assistant:not(.partial)").wait_for()
        boundary = "Object.assign(new Event('boundary'), { charIndex })"
        at = f"(charIndex) => speechSynthesis.current.dispatchEvent({boundary})"
        for index, words in ((0, "good"), (5, "good morning"), (13, "good morning to")):
            await user.page.evaluate(at, index)
            assert await user.page.evaluate(LIT) == words
        await user.page.evaluate("speechSynthesis.cancel()")
        await user.state("listening")  # the turn is over
        assert await user.page.evaluate(LIT) == ""
