"""The page in a browser: a conversation, cards, interruptions, and connections that end."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.system.web.browser import MEDIA, PageUser, serving, visiting

pytestmark = pytest.mark.asyncio(loop_scope="module")

LAMP = 'call lamp.switch with {"room":"hall","on":true}'
NOTE = 'call note.delete with {"title":"Milk"}'
TOKEN = "a-token-for-the-page"

LOUD = """new Promise((resolve) => {
  const level = () => parseFloat(getComputedStyle(microphone).getPropertyValue("--level"));
  const look = () => (level() > 0 ? resolve() : requestAnimationFrame(look));
  look();
})"""


async def test_a_first_visit_shows_instructions_and_asks_no_other_host(user: PageUser) -> None:
    assert await user.page.title() == "Conductor"
    assert await user.page.inner_text("#connection") == "Connected"
    await user.page.get_by_role("button", name="Switch on the lamp in the hall").click()
    await user.page.get_by_role("button", name="Allow once").click()
    await user.answer("The lamp in the hall is on.")
    assert len(user.hosts) == 1


async def test_each_suggestion_is_understood_by_the_demo(user: PageUser) -> None:
    answers = {
        "What is 17% of 2,340?": "397.8",
        "Switch on the lamp in the hall": "The lamp in the hall is on.",
        "Delete the note Milk": "Milk",
    }
    buttons = user.page.locator("#suggestions button")
    assert sorted(await buttons.all_inner_texts()) == sorted(answers)
    for words, answer in answers.items():
        await buttons.get_by_text(words, exact=True).click()
        if not answer[0].isdigit():  # it asks first
            await user.page.get_by_role("button", name=re.compile("^Allow")).first.click()
        await user.answer(answer)
        assert "demo model" not in await user.page.locator(".message.assistant").last.inner_text()


async def test_a_turn_by_typing_shows_the_words_the_tools_and_the_answer(user: PageUser) -> None:
    await user.ask("what is 17% of 2340?", "397.8")
    assert await user.page.locator(".message").all_inner_texts() == [
        "what is 17% of 2340?",
        "17% of 2340 is 397.8.",
    ]
    call = user.page.locator(".call")
    assert "Calculator" in await call.inner_text()
    await call.locator("summary").click()
    # The server's own calls are read from its records.
    await call.locator("dd", has_text="17% of 2340").last.wait_for()
    assert '"result": "397.8"' in await call.inner_text()
    assert "No question was needed" in await call.inner_text()
    button = await user.page.locator("#microphone").bounding_box()
    assert button["width"] == button["height"] >= 80
    await user.tab("turn")
    bars = await user.page.locator("#waterfall .name").all_inner_texts()
    assert bars[0] == "All of it" and {"Taken by the server", "calculator", "Reply is written"} <= set(bars)
    assert bars.count("Waiting for the model") == 2  # before the tool and after it


async def test_a_card_is_edited_and_allowed(user: PageUser) -> None:
    await user.say(LAMP)
    card = user.page.locator(".card")
    await card.wait_for()
    await user.state("asking")
    assert await card.locator("h2").inner_text() == "Switch the lamp in the hall"
    text = await card.inner_text()
    for part in ("lamp.switch", "Medium risk", "hall", "true", "It changes something.", "left"):
        assert part in text
    await card.get_by_role("button", name="Edit").click()
    await card.get_by_label("room *").select_option("office")
    await card.get_by_label("on *").uncheck()
    await card.get_by_role("button", name="Run with these").click()
    await user.answer("The lamp in the office is off.")
    assert await card.count() == 0
    calls = [call for call in await user.received("tool.call") if call["name"] == "lamp.switch"]
    assert [json.loads(call["arguments"]) for call in calls] == [{"room": "office", "on": False}]
    await user.page.locator(".call summary").click()
    await user.page.get_by_text("You changed the arguments and allowed it").wait_for()
    assert await user.page.locator(".call del").all_inner_texts() == ["hall", "true"]
    assert await user.page.locator(".call ins").all_inner_texts() == ["office", "false"]


async def test_the_lamps_and_notes_follow_the_calls_and_stay_over_a_reload(user: PageUser) -> None:
    hall = user.page.locator("#lamps li", has_text="Hall")
    assert "is off" in await hall.inner_text()
    await user.say(LAMP)
    await user.page.get_by_role("button", name="Allow once").click()
    await user.answer("The lamp in the hall is on.")
    await user.say(NOTE)
    await user.page.get_by_role("button", name="Allow once").click()
    await user.answer("The note Milk is deleted.")
    for _ in range(2):
        assert "is on" in await hall.inner_text()
        assert "Milk" not in await user.page.inner_text("#notes")
        lines = await user.page.locator(".call summary").all_inner_texts()
        assert ["Lamp switch" in lines[0], "Note delete" in lines[1]] == [True, True]
        await user.page.locator(".call summary").last.click()
        await user.page.get_by_text("You allowed it once, on the card").wait_for()
        await user.page.reload()
        await user.connected()
    await user.page.click("#new-session")
    assert "is off" in await hall.inner_text() and "Milk" in await user.page.inner_text("#notes")
    assert await user.page.locator(".call").count() == 0


async def test_a_tool_that_fails_says_so(user: PageUser) -> None:
    await user.say('call note.delete with {"title":"Bread"}')
    await user.page.get_by_role("button", name="Allow once").click()
    await user.answer("There is no note Bread")
    assert "failed" in await user.page.inner_text(".call")


async def test_a_card_leaves_the_last_sentence_in_sight(user: PageUser) -> None:
    await user.page.set_viewport_size({"width": 390, "height": 700})
    for text in ("say one", "say two", "say three", "say four"):
        await user.ask(text, text.removeprefix("say "))
    await user.say(NOTE)
    await user.page.locator(".card").wait_for()
    await user.page.locator(".message.user").last.wait_for()
    # The button in the middle shrinks before all is in its place.
    await user.page.evaluate("Promise.all(document.getAnimations().map((motion) => motion.finished))")
    top = (await user.page.locator(".card").bounding_box())["y"]
    for last in (".message.user", ".call"):
        box = await user.page.locator(last).last.bounding_box()
        assert 0 < box["y"] and box["y"] + box["height"] <= top


async def test_a_call_allowed_for_the_session_is_not_asked_about_again(user: PageUser) -> None:
    await user.say(LAMP)
    await user.page.get_by_role("button", name="For this session").click()
    await user.answer("The lamp in the hall is on.")
    await user.say(LAMP)
    await user.page.locator(".message.assistant", has_text="The lamp in the hall is on.").nth(1).wait_for()
    assert len(await user.received("approval.request")) == 1


async def test_a_call_of_high_risk_is_denied_with_words(user: PageUser) -> None:
    await user.say(NOTE)
    card = user.page.locator(".card.high")
    await card.get_by_text("High risk").wait_for()
    assert await card.locator("h2").inner_text() == "Delete the note Milk"
    assert "It cannot be undone." in await card.inner_text()
    await card.get_by_label("Why not, for the model").fill("I still need it")
    await user.page.keyboard.press("Enter")
    await user.answer("I left it")
    assert await card.count() == 0
    response = (await user.outgoing("approval.response"))[0]
    assert (response["decision"], response["message"]) == ("deny", "I still need it")
    assert [call for call in await user.received("tool.call") if call["name"] == "note.delete"] == []
    await user.page.reload()
    await user.page.locator(".call", has_text="denied: “I still need it”").wait_for()


async def test_one_click_denies_a_call(user: PageUser) -> None:
    await user.say(LAMP)
    await user.page.get_by_role("button", name="Deny").click()
    await user.answer("I left it")
    assert "message" not in (await user.outgoing("approval.response"))[0]
    await user.page.locator(".call summary").click()
    await user.page.locator(".call").get_by_text("You denied it").wait_for()


async def test_escape_stops_a_reply_that_is_being_written(user: PageUser) -> None:
    await user.say("count to 1000")
    await user.page.locator(".message.partial", has_text="12").wait_for()
    await user.page.keyboard.press("Escape")
    await user.state("idle")
    assert await user.page.locator(".message.cut").count() == 1
    assert len(await user.outgoing("audio.output.interrupted")) == 1
    await user.ask("say hello", "hello")
    drawn = await user.page.locator(".message").all_inner_texts()
    await user.page.reload()
    await user.page.locator(".message", has_text="hello").last.wait_for()
    assert await user.page.locator(".message").all_inner_texts() == drawn and len(drawn) == 4
    assert await user.page.locator(".message.cut").count() == 1


async def test_a_tool_under_way_survives_a_cut_socket_and_runs_once(user: PageUser) -> None:
    await declare(user, "door.open", '{"door":"open"}', delay=1_500)
    await user.say("call door.open")
    await user.page.locator("#events .type", has_text="tool.activity").first.wait_for()
    await user.tab("faults")
    await user.page.click("#fault-cut")
    await user.answer("Door open answered: door is open.")
    calls = [call for call in await user.received("tool.call") if call["name"] == "door.open"]
    assert len({call["callId"] for call in calls}) == 1
    assert (await user.received("session.started"))[-1]["resumed"] is True


async def test_a_tool_cut_off_by_a_reload_is_reported_as_unknown(user: PageUser) -> None:
    await declare(user, "door.open", '{"door":"open"}', delay=60_000)
    await user.say("call door.open")
    await user.page.locator("#events .type", has_text="tool.activity").first.wait_for()
    await user.tab("faults")
    await user.page.click("#fault-reload")
    await user.answer("I don't know whether that happened")
    (broken_off,) = await user.sent("tool.cancelled")
    assert broken_off["effect"] == "partial"
    assert await user.sent("tool.started") == []  # it does not run again


async def test_the_quickstarts_own_tool_is_asked_about_and_runs(user: PageUser) -> None:
    await user.tab("tools")
    await user.page.click("#declare > summary")
    await user.page.get_by_role("button", name="Declare").click()
    await user.page.locator(".tool summary", has_text="door.open").wait_for()
    await user.say("Open the front door")
    card = user.page.locator(".card")
    await card.get_by_text("door.open").wait_for()
    assert await card.locator("dd").all_inner_texts() == ["front"]
    await card.get_by_role("button", name="Allow once").click()
    await user.answer("Door open answered: door is open.")


async def declare(user: PageUser, name: str, result: str, delay: int) -> None:
    await user.tab("tools")
    await user.page.click("#declare > summary")
    await user.page.get_by_label("Name *").fill(name)
    await user.page.get_by_label("Schema of its arguments").fill('{"type":"object"}')
    await user.page.locator("#declaration select").select_option("read-only")
    await user.page.get_by_label("Its answer, each time").fill(result)
    await user.page.get_by_label("It takes, in milliseconds").fill(str(delay))
    await user.page.get_by_role("button", name="Declare").click()
    tool = user.page.locator(".tool summary", has_text=name)
    await tool.get_by_text("read-only · safe · runs at once · offered to the model").wait_for()
    await user.tab("timeline")


async def test_held_results_arrive_when_released(user: PageUser) -> None:
    await declare(user, "door.open", '{"door":"open"}', delay=0)
    await user.tab("faults")
    await user.page.click("#fault-refuse")
    await user.say("call door.open")
    await user.tab("timeline")
    await user.page.locator("#events .summary", has_text="door.open").first.wait_for()
    await user.state("thinking")
    await user.tab("faults")
    await user.page.click("#fault-refuse")
    await user.answer("door is open")


async def test_a_reload_keeps_the_session_and_its_words(user: PageUser) -> None:
    await user.ask("say hello", "hello")
    session = await user.session()
    await user.page.reload()
    await user.connected()
    assert await user.session() == session
    assert await user.page.locator(".message").all_inner_texts() == ["say hello", "hello"]
    await user.ask("what did I just say?", "You said: say hello")
    await user.page.click("#new-session")
    await user.connected()
    assert await user.session() != session
    assert await user.page.locator(".message").count() == 0


async def test_the_token_is_asked_for_once_and_kept_in_the_tab(browser: Any) -> None:
    async with serving(TOKEN) as address, visiting(browser) as user:
        await user.page.goto(address)
        await user.page.get_by_label("Token", exact=True).fill("wrong")
        await user.page.keyboard.press("Enter")
        await user.page.get_by_text("The server does not know this token.").wait_for()
        await user.page.get_by_label("Token", exact=True).fill(TOKEN)
        await user.page.keyboard.press("Enter")
        await user.connected()
        await user.page.reload()
        await user.connected()
        assert TOKEN not in user.page.url
        assert await user.page.evaluate("JSON.stringify(localStorage)") == "{}"
        user.problems.clear()  # the browser's line about the status 401
    async with serving(TOKEN) as address, visiting(browser) as user:
        await user.open(f"{address}#token={TOKEN}")
        assert user.page.url == address
        user.problems.clear()


async def tap(user: PageUser) -> None:
    """Press the round button for an instant, which a loaded machine cannot do by two events."""
    await user.page.locator("#microphone").evaluate("(button) => button.click()")


@asynccontextmanager
async def hearing_a_voice(browser: Any, address: str) -> AsyncIterator[PageUser]:
    """Open the page hands-free, and let it say good morning."""
    async with visiting(browser) as user:
        await user.page.add_init_script(MEDIA)
        await user.open(address)
        await tap(user)  # a tap: hands-free
        await user.state("listening")
        assert await user.page.get_attribute("#microphone", "aria-pressed") == "true"
        await user.page.evaluate("recognitions[0].hear('say good', false)")
        assert await user.page.inner_text(".message.user.partial") == "say good"
        await user.page.evaluate("recognitions[0].hear('say good morning to all of you', true)")
        await user.state("speaking")
        assert await user.page.evaluate("spoken") == ["good morning to all of you"]
        yield user


# How a browser pauses: it does, it ends the speech, or it goes on.
WAYS = {
    "pauses": ("", ["good morning to all of you"]),
    "ends": (
        "speechSynthesis.pausing = (speech) => speech.dispatchEvent(new Event('end'))",
        ["good morning to all of you", "ing to all of you"],
    ),
    "goes on": (
        "speechSynthesis.pausing = (speech) => setTimeout(() =>"
        " speech.dispatchEvent(Object.assign(new Event('boundary'), { charIndex: 13 })))",
        ["good morning to all of you", "ing to all of you"],
    ),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_mere_mhm_pauses_the_voice_and_lets_it_go_on(browser: Any, address: str, way: str) -> None:
    script, spoken = WAYS[way]
    async with hearing_a_voice(browser, address) as user:
        await user.page.evaluate(f"{script or 0}; 0")
        await user.page.evaluate("recognitions[0].hear('mm', false)")
        await user.state("listening")
        await user.page.evaluate("recognitions[0].hear('mhm', true)")
        await user.state("speaking")
        assert await user.page.evaluate("pauses") == ["pause", "resume"]
        assert await user.page.evaluate("spoken") == spoken
        assert (await user.outgoing("audio.output.paused"))[0]["spokenText"] == "good morn"
        assert await user.page.locator(".message").all_inner_texts() == [
            "say good morning to all of you",
            "good morning to all of you",
        ]
        await user.page.evaluate("speechSynthesis.cancel()")
        await user.state("listening")


async def test_words_over_a_paused_voice_stop_it(browser: Any, address: str) -> None:
    async with hearing_a_voice(browser, address) as user:
        await user.page.evaluate("recognitions[0].hear('say something', false)")
        await user.state("listening")
        # These are words of its own speech, but the voice is silent.
        await user.page.evaluate("recognitions[0].hear('say good morning to all', true)")
        await user.page.locator(".message.assistant").nth(1).wait_for()
        await user.state("speaking")
        assert await user.page.evaluate("spoken") == ["good morning to all of you", "good morning to all"]
        assert await user.page.evaluate("pauses") == ["pause", "resume"]
        assert await user.outgoing("audio.output.interrupted") == []


async def test_speech_input_pauses_the_voice_and_a_tap_interrupts_it(browser: Any, address: str) -> None:
    async with hearing_a_voice(browser, address) as user:
        # Its own voice comes back by the microphone, and does not count.
        await user.page.evaluate("recognitions[0].hear('good morning', false)")
        await user.state("speaking")
        await user.page.evaluate("recognitions[0].hear('stop please', false)")
        await user.state("listening")
        assert (await user.outgoing("audio.output.paused"))[0]["spokenText"] == "good morn"
        await user.page.evaluate("recognitions[0].hear('say bye', true)")
        await user.state("speaking")
        await tap(user)  # interrupts, and goes on listening
        await user.state("listening")
        assert len(await user.outgoing("audio.output.interrupted")) == 1
        await tap(user)
        await user.state("idle")
        assert await user.page.get_attribute("#microphone", "aria-pressed") == "false"


async def test_a_card_is_answered_by_voice_hands_free(browser: Any, address: str) -> None:
    async with visiting(browser) as user:
        await user.page.add_init_script(MEDIA)
        await user.open(address)
        await tap(user)
        await user.page.evaluate(f"recognitions[0].hear({LAMP!r}, true)")
        await user.state("asking")  # although the microphone is open
        # A yes counts for a card that was seen before.
        await user.page.get_by_text(re.compile(r"9:\d\d left")).wait_for()
        await user.page.evaluate("recognitions[0].hear('yes, go ahead', true)")
        await user.state("speaking")
        await user.page.locator(".call summary").click()
        await user.page.get_by_text("Allowed by voice, or on another screen").wait_for()


async def test_words_said_while_the_button_is_held_are_one_utterance(browser: Any, address: str) -> None:
    async with visiting(browser) as user:
        await user.page.add_init_script(MEDIA)
        await user.open(address)
        await user.page.focus("#microphone")
        await user.page.keyboard.down("Space")
        await user.state("listening")
        await user.page.evaluate("recognitions[0].hear('say this', true)")
        await user.page.evaluate("recognitions[0].hear('and', false)")
        assert await user.page.inner_text(".message.user.partial") == "say this and"
        await user.page.evaluate("recognitions[0].hear('and that', true)")
        await user.page.keyboard.up("Space")
        await user.state("speaking")
        assert await user.page.evaluate("spoken") == ["this and that"]
        await user.page.evaluate("speechSynthesis.cancel()")
        await user.answer("this and that")
        assert await user.page.evaluate("recognitions.length") == 1


async def test_the_ring_shows_the_level_of_the_chosen_microphone(browser: Any, address: str) -> None:
    async with visiting(browser) as user:
        await user.page.add_init_script(MEDIA)
        await user.open(address)
        await tap(user)
        await user.page.evaluate(LOUD)  # the browser's fake microphone beeps
        await tap(user)
        await user.state("idle")
        await user.page.get_by_label("Microphone and voice").click()
        await user.page.locator("#input option").nth(1).wait_for(state="attached")
        await user.page.get_by_label("Microphone", exact=True).select_option(index=1)
        await user.page.keyboard.press("Escape")
        assert not await user.page.get_by_label("Read answers aloud").is_visible()
        await tap(user)
        await user.state("listening")
        assert await user.page.evaluate("recognitions.at(-1).track.kind") == "audio"


async def test_two_halves_of_a_sentence_are_one_message(user: PageUser) -> None:
    await user.say("say good morning and")
    await user.page.locator(".message.user.partial", has_text="good morning and").wait_for()
    await user.say("good night")
    await user.answer("good night")
    assert await user.page.locator(".message.user").all_inner_texts() == ["say good morning and good night"]


# As soon as the page shows a half sentence, its rest is said.
HALVES = """(() => {
  const conversation = document.querySelector("#conversation");
  const goOn = (_, observer) => {
    if (!conversation.querySelector(".message.user.partial")) return;
    observer.disconnect();
    recognitions[0].hear("hall", true);
  };
  new MutationObserver(goOn).observe(conversation, { subtree: true, childList: true, attributes: true });
  recognitions[0].hear("Switch on the lamp in the", true);
})()"""


async def test_half_a_sentence_is_grey_until_its_rest_is_said(browser: Any, address: str) -> None:
    async with visiting(browser) as user:
        await user.page.add_init_script(MEDIA)
        await user.open(address)
        await tap(user)
        await user.page.evaluate(HALVES)
        await user.page.locator(".card").get_by_text("Switch the lamp in the hall").wait_for()
        assert await user.page.locator(".message").all_inner_texts() == ["Switch on the lamp in the hall"]
