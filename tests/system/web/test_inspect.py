"""The page in a browser: its timeline, hostile texts, and accessibility."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from conductor.rehearse.script import load
from tests.conftest import Main
from tests.system.web.browser import PageUser, serving, visiting

pytestmark = pytest.mark.asyncio(loop_scope="module")

LAMP = 'call lamp.switch with {"room":"hall","on":true}'
MARKUP = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
BIDI = "delete\u202eecin\u2066 all"
"""A name that would be read backwards."""


async def test_the_timeline_is_filtered_paused_and_exported(user: PageUser) -> None:
    await user.ask("say hello", "hello")
    await user.tab("timeline")
    await user.page.fill("#filter", "transcript")
    rows = user.page.locator("#events .type")
    assert await rows.all_text_contents() == ["user.audio.transcript.final"]
    events = await user.events()
    assert [(event["direction"], event["event"]["payload"]["text"]) for event in events] == [
        ("out", "say hello")
    ]
    await user.page.fill("#filter", "")
    await user.page.click("#pause")
    before = await rows.count()
    await user.ask("say again", "again")
    assert await rows.count() == before
    assert "since the pause" in await user.page.inner_text("#timeline-note")
    await user.page.click("#pause")
    assert await rows.count() > before
    note = await user.page.inner_text("#timeline-note")
    shown, of, total = note.split()[:3]
    assert of == "of" and int(shown) < int(total)  # without pings, acks and UI calls
    await user.page.check("#pings")
    assert int((await user.page.inner_text("#timeline-note")).removesuffix(" events")) >= int(total)
    await user.page.uncheck("#pings")
    titles = user.page.locator("#events .turn")
    assert await titles.all_inner_texts() == ["Connection", "1: say hello", "2: say again"]
    await rows.last.click()
    assert '"protocolVersion": 1' in await user.page.locator("#events pre").inner_text()


async def test_a_run_of_partials_is_one_row_with_a_count(user: PageUser) -> None:
    await user.ask("count to 300", "300.")
    await user.tab("timeline")
    partials = user.page.locator("#events li li", has_text="assistant.speech.partial")
    assert await partials.count() == 1
    events = await user.received("assistant.speech.partial")
    assert await partials.locator(".count").inner_text() == f"× {len(events)}"
    await partials.click()
    assert events[-1]["text"][-20:] in await partials.locator("pre").inner_text()


async def test_latency_is_a_chart_and_the_figures_of_a_turn_are_sentences(user: PageUser) -> None:
    for number in range(2):
        await user.ask(f"say {number}", str(number))
    await user.tab("turn")
    await user.page.get_by_text("at the median of 2 turns").wait_for()
    assert await user.page.locator(".chart i").count() == 2
    text = await user.page.inner_text("#waterfall")
    assert "The first sentence was sent to be spoken after" in text and "tokens and wrote" in text
    await user.page.reload()
    await user.page.get_by_text("at the median of 2 turns").wait_for(state="attached")


async def look_at_all(user: PageUser, *rules: str) -> None:
    await user.ask("what is 17% of 2340?", "397.8")
    await user.say(LAMP)
    await user.page.locator(".card").wait_for()
    await user.tab("tools")
    for details in await user.page.locator("#tools summary").all():
        await details.click()
    assert await user.axe(*rules) == []
    await user.page.get_by_role("button", name="Edit").click()
    await user.tab("turn")
    assert await user.axe(*rules) == []


async def test_there_are_no_barriers(user: PageUser) -> None:
    assert await user.axe() == []
    await look_at_all(user)
    await user.tab("faults")
    assert await user.axe() == []
    await open_replay(user)
    assert await user.axe() == []


async def open_replay(user: PageUser) -> None:
    """Open the tab, and wait for the record that is shown first: the last one."""
    await user.tab("replay")
    await user.page.locator("#record h2", has_text="State").wait_for()


async def test_a_session_is_stepped_through_by_keyboard(user: PageUser) -> None:
    records = user.page.get_by_role("listbox", name="Records")
    chosen, part = records.locator("[aria-selected=true]"), user.page.locator("#record details")

    async def press(key: str, *, until: str) -> None:
        # Acknowledgements lie between the records as it happens.
        for _ in range(await records.locator("[role=option]").count()):
            await user.page.keyboard.press(key)
            if until in await chosen.inner_text():
                return
        raise AssertionError(f"{key} does not lead to {until}")

    await user.ask("say hello", "hello")
    await open_replay(user)
    assert "TurnEnded" in await chosen.inner_text()
    await records.focus()
    await press("ArrowUp", until="ReplyLogged")
    await part.filter(has_text="assistant.speech.final").locator("summary").click()
    assert '"text": "hello"' in await part.locator("pre").inner_text()
    await user.page.get_by_role("button", name="Previous").focus()
    await press("Enter", until="TurnStarted")
    await user.page.locator("#record .changed", has_text="log1 item, changed").wait_for()
    assert await records.get_attribute("aria-activedescendant") == await chosen.get_attribute("id")
    await user.page.get_by_role("button", name="Next").focus()
    await press("Space", until="ReplyLogged")
    await records.focus()
    await press("Home", until="Claimed")
    await press("ArrowLeft", until="Claimed")  # the list is empty before
    await press("End", until="TurnEnded")
    # What comes later is there after a press of the button.
    count = await records.locator("[role=option]").count()
    await user.ask("say again", "again")
    await user.page.get_by_role("button", name="Read again").click()
    await user.page.locator(f"#record-{count}").wait_for()
    await user.page.click("#new-session")
    assert await records.locator("[role=option]").count() == 0


async def test_what_happened_is_copied_as_a_rehearsal_that_passes(
    browser: Any, address: str, conductor: Main, tmp_path: Path
) -> None:
    async with visiting(browser, permissions=["clipboard-read", "clipboard-write"]) as user:
        await user.open(address)
        await user.ask("what is 17% of 2340?", "397.8")
        await user.say("Switch on the lamp in the hall")
        await user.page.get_by_role("button", name="For this session").click()
        await user.answer("The lamp in the hall is on.")
        await user.say("Delete the note Milk")
        await user.page.get_by_role("button", name="Deny").click()
        await user.answer("I left it")
        await user.tab("timeline")
        await user.page.get_by_role("button", name="Copy as rehearsal").click()
        await user.page.get_by_text("conductor rehearse run FILE.yaml").wait_for()
        text = await user.page.evaluate("navigator.clipboard.readText()")
    file = tmp_path / "copied.yaml"
    file.write_text(text, encoding="utf-8")
    copy = load(file)
    assert [step.say for step in copy.steps] == [
        "what is 17% of 2340?",
        "Switch on the lamp in the hall",
        "Delete the note Milk",
    ]
    assert [list(step.expect.approvals or ()) for step in copy.steps] == [[], ["allowed"], ["denied"]]
    code, out, err = await asyncio.to_thread(conductor, "rehearse", "run", str(file), "--model", "demo")
    assert (code, err) == (0, ""), out


async def test_there_is_enough_contrast_in_the_dark(browser: Any, address: str) -> None:
    async with visiting(browser, color_scheme="dark") as user:
        await user.open(address)
        await look_at_all(user, "color-contrast")


async def test_the_question_for_a_token_has_no_barriers(browser: Any) -> None:
    async with serving("t") as address, visiting(browser) as user:
        await user.page.goto(address)
        await user.page.locator("#token-dialog[open]").wait_for()
        assert await user.axe() == []


async def test_the_page_can_be_used_by_keyboard(user: PageUser) -> None:
    async def focused() -> str:
        return str(
            await user.page.evaluate("document.activeElement.id || document.activeElement.textContent")
        )

    async def tab_to(name: str) -> None:
        for _ in range(40):
            await user.page.keyboard.press("Tab")
            if await focused() == name:
                return
        raise AssertionError(f"{name} is not reached; the focus is on {await focused()}")

    await tab_to("words")
    await user.page.keyboard.type(LAMP)
    await user.page.keyboard.press("Enter")
    await user.page.locator(".card").wait_for()
    await tab_to("Allow once")  # the card has the focus
    await user.page.keyboard.press("Enter")
    await user.answer("The lamp in the hall is on.")
    await tab_to("Inspect")
    await user.page.keyboard.press("Enter")
    await tab_to("tab-timeline")
    await user.page.keyboard.press("ArrowRight")
    assert await focused() == "tab-turn" and await user.page.is_visible("#waterfall")
    await user.page.keyboard.press("End")
    assert await focused() == "tab-replay"
    await user.page.keyboard.press("ArrowLeft")
    assert await focused() == "tab-faults"
    await tab_to("fault-slow")
    await user.page.keyboard.press("Space")
    assert await user.page.get_attribute("#fault-slow", "aria-pressed") == "true"


async def test_it_fits_into_320_pixels(user: PageUser) -> None:
    await user.page.set_viewport_size({"width": 320, "height": 640})
    assert await user.axe() == []
    await user.say(LAMP)
    await user.page.locator(".card").wait_for()
    views = await user.page.locator("#views").bounding_box()
    composer = await user.page.locator("#composer").bounding_box()
    assert composer["y"] + composer["height"] <= views["y"] <= 640 - views["height"]  # all is on the screen
    await user.tab("tools")
    await user.page.locator(".tool", has_text="note.delete").locator("summary").click()
    await user.page.get_by_role("button", name="Try it").click()
    assert await user.page.input_value("#words") == 'call note.delete with {"title":"…"}'
    for tab in ("timeline", "turn", "tools", "faults", "replay"):
        await user.tab(tab)
        assert await user.page.evaluate("document.documentElement.scrollWidth") <= 320, tab
        out = await user.page.evaluate(
            "[...document.querySelectorAll('main button, main input, main textarea')]"
            ".filter((one) => one.checkVisibility() && one.getBoundingClientRect().right > 320.5)"
            ".map((one) => one.outerHTML)"
        )
        assert out == [], tab


class FakeServer:
    """A server of the page's WebSocket that sends a test's frames. ``refusal``: its answer to any start."""

    def __init__(self, refusal: str | None = None) -> None:
        self._refusal = refusal
        self._ids = itertools.count(1)
        self._socket: Any = None

    async def serve(self, socket: Any) -> None:
        self._socket = socket
        socket.on_message(self._answer)

    def _answer(self, message: str) -> None:
        event = json.loads(message)
        self._session = event["sessionId"]
        if self._refusal is not None:
            self.send("error", {"code": self._refusal, "message": "No.", "eventId": event["id"]})
        elif event["type"] == "session.start":
            self.send("session.started", {"sessionId": self._session, "resumed": False, "reason": "new"})

    def send(self, kind: str, payload: dict[str, Any]) -> None:
        event = {
            "id": f"evt-{next(self._ids)}",
            "type": kind,
            "timestamp": "2026-03-01T12:00:00.000Z",
            "sessionId": self._session,
            "protocolVersion": 1,
            "payload": payload,
        }
        self._socket.send(json.dumps(event))

    def call(self, name: str, **arguments: Any) -> None:
        payload = {"callId": f"call-{next(self._ids)}", "name": name, "arguments": json.dumps(arguments)}
        self.send("tool.call", payload)


async def test_hostile_texts_are_shown_as_text(browser: Any, address: str) -> None:
    async with visiting(browser) as user:
        server = FakeServer()
        await user.page.route_web_socket("**/ws", server.serve)
        await user.open(address)
        server.send("assistant.speech.partial", {"text": MARKUP})
        await user.page.locator(".message.partial", has_text="<script>").wait_for()
        server.call("convo.appendMessage", role="assistant", text=MARKUP + BIDI)
        server.call("convo.appendMessage", role="user", text="x" * 1_000_000)
        server.send("error", {"code": "internal_error", "message": MARKUP})
        activity = {"callId": "c", "name": MARKUP, "source": MARKUP, "status": "finished", "display": MARKUP}
        server.send("tool.activity", activity)
        server.send(MARKUP, {"text": MARKUP, "__proto__": {"polluted": True}})
        request = {
            "approvalId": MARKUP,
            "batchId": "b",
            "callId": "c",
            "name": BIDI,
            "arguments": {MARKUP: MARKUP, "__proto__": BIDI, "long": ["y" * 1_000_000]},
            "argumentsDigest": "0" * 64,
            "risk": MARKUP,
            "reasons": [MARKUP],
            "prompt": MARKUP,
            "scopes": ["once", MARKUP],
            "expiresAt": "not a time",
        }
        server.send("approval.request", request)
        card = user.page.locator(".card")
        await card.wait_for()
        text = await card.inner_text()
        assert MARKUP in text and "⟨U+202E⟩" in text and "\u202e" not in text
        await card.get_by_role("button", name="Edit").click()
        for tab in ("turn", "tools", "timeline"):
            await user.tab(tab)
        assert MARKUP in await user.page.locator(".message.assistant").inner_text()
        assert len(await user.page.locator(".message.user").inner_text()) < 30_000
        await user.page.locator("#events .type", has_text="approval.request").click()
        assert len(await user.page.locator("#events pre").inner_text()) < 30_000
        assert await user.page.evaluate("({}).polluted") is None
        assert await user.page.locator("main img, main script").count() == 0
        assert await user.page.title() == "Conductor"
