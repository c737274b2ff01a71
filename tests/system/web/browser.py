"""A headless Chromium that Playwright drives, and the page of a server in it.

Both may be missing on a machine: then the tests are skipped and say so. ``.ci/run`` installs them and sets
``CI_REQUIRE_BROWSER=1``, with which a skip is a failure.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from conductor.app import make_services
from conductor.plugins.auth.tokens import TokenAuthenticator
from conductor.plugins.models.demo import DemoProvider
from conductor.plugins.page import serve
from conductor.server.listener import Listener
from conductor.settings import load_settings

AXE = Path(__file__).resolve().parents[3] / "build" / "clients" / "node_modules" / "axe-core" / "axe.min.js"
WAIT_MS = 60_000
SIZE = {"width": 1280, "height": 800}

# The speech services of a browser: a test sets the recognised text and ends the voice.
MEDIA = """
window.recognitions = [];
class Recognition extends EventTarget {
  start(track) { this.track = track; recognitions.push(this); }
  stop() { this.dispatchEvent(new Event("end")); }
  abort() { this.stop(); }
  hear(transcript, isFinal) {
    const results = [Object.assign([{ transcript }], { isFinal })];
    this.dispatchEvent(Object.assign(new Event("result"), { resultIndex: 0, results }));
  }
}
window.SpeechRecognition = window.webkitSpeechRecognition = Recognition;
window.spoken = [];
window.pauses = [];
Object.defineProperty(window, "speechSynthesis", { value: {
  speak(utterance) {
    spoken.push(utterance.text);
    utterance.dispatchEvent(Object.assign(new Event("boundary"), { charIndex: 9 }));
    this.current = utterance;
  },
  cancel() { this.current?.dispatchEvent(new Event("end")); },
  pause() { pauses.push("pause"); this.pausing?.(this.current); },
  resume() { pauses.push("resume"); },
  getVoices() { return []; },
} });
window.SpeechSynthesisUtterance = class extends EventTarget {
  constructor(text) { super(); this.text = text; }
};
"""

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


def missing(program: str) -> NoReturn:
    """Skip, or fail where the browser is required."""
    reason = f"{program} is not on this machine; .ci/run installs it"
    if os.environ.get("CI_REQUIRE_BROWSER") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@asynccontextmanager
async def chromium() -> AsyncIterator[Any]:
    """Run the browser."""
    try:
        from playwright.async_api import async_playwright
    except ImportError:
        missing("Playwright")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        missing("chromium")
    # As root it refuses to run with its sandbox.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    options += ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=options)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def serving(
    token: str | None = None, models: Path | None = None, origins: Sequence[str] = ()
) -> AsyncIterator[str]:
    """Run a server with the demo model, or ``models``, and the page; gives the page's address.

    Pages of ``origins`` may connect, too.
    """
    tokens = (token,) if token else ()
    values: dict[str, Any] = {"auth_tokens": tokens} if tokens else {}
    values |= {"config_dir": models.parent} if models else {}
    settings = load_settings(None, session_rate_limit_per_min=1_000, **values)
    services = make_services(settings, None if models else DemoProvider(pace_s=0.005))
    listener = Listener(services, TokenAuthenticator(tokens), origins)
    serve(listener, settings)
    await listener.start("127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listener.port}/"
    finally:
        await listener.stop(drain_s=0)


class PageUser:
    """One who uses the page; ``problems`` are the page's errors, refused content among them."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.problems: list[str] = []
        self.hosts: set[str] = set()
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", self._take_line)
        page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))

    def _take_line(self, message: Any) -> None:
        if message.type == "error":
            self.problems.append(message.text)

    async def open(self, address: str) -> None:
        await self.page.goto(address)
        await self.connected()

    async def connected(self) -> None:
        await self.page.wait_for_selector('#connection[data-connection="open"]')

    async def say(self, text: str) -> None:
        await self.page.fill("#words", text)
        await self.page.press("#words", "Enter")

    async def answer(self, text: str) -> None:
        """Wait for an answer that holds the text, and for the end of the turn."""
        await self.page.locator(".message.assistant:not(.partial)", has_text=text).last.wait_for()
        await self.state("idle")

    async def ask(self, text: str, answer: str) -> None:
        await self.say(text)
        await self.answer(answer)

    async def state(self, name: str) -> None:
        await self.page.wait_for_selector(f'#stage[data-state="{name}"]')

    async def session(self) -> str:
        """Give the session's id, as the page shows it beside the model."""
        return str(await self.page.locator("#facts dd").last.text_content())

    async def tab(self, name: str) -> None:
        await self.view("inspect")
        await self.page.click(f"#tab-{name}")

    async def view(self, name: str) -> None:
        """Show ``talk`` or ``inspect``."""
        await self.page.click(f"[data-show={name}]")

    async def events(self) -> list[dict[str, Any]]:
        """Export the timeline; each has ``at``, ``direction`` and ``event``."""
        await self.tab("timeline")
        async with self.page.expect_download() as download:
            await self.page.click("#export")
        return _read_lines(await (await download.value).path())

    async def outgoing(self, kind: str) -> list[dict[str, Any]]:
        """List the payloads of the page's events of a type."""
        events = (event for event in await self.events() if event["direction"] == "out")
        return [event["event"]["payload"] for event in events if event["event"]["type"] == kind]

    async def received(self, kind: str) -> list[dict[str, Any]]:
        """List the payloads of the server's events of a type, since the page was loaded."""
        return await self._payloads("in", kind)

    async def sent(self, kind: str) -> list[dict[str, Any]]:
        """List the payloads of the page's events of a type, since the page was loaded."""
        return await self._payloads("out", kind)

    async def _payloads(self, direction: str, kind: str) -> list[dict[str, Any]]:
        events = (event["event"] for event in await self.events() if event["direction"] == direction)
        return [event["payload"] for event in events if event["type"] == kind]

    async def resize(self, width: int, height: int) -> None:
        await self.page.set_viewport_size({"width": width, "height": height})
        await self.settled()

    async def settled(self) -> None:
        """Wait until all is in its place: the round button shrinks and grows."""
        motions = "document.getAnimations().filter((motion) => motion instanceof CSSTransition)"
        await self.page.evaluate(f"Promise.allSettled({motions}.map((motion) => motion.finished))")

    async def out_of_reach(self, selector: str) -> list[str]:
        """List the elements that a pointer does not reach."""
        unreached: list[str] = await self.page.evaluate(OUT_OF_REACH, selector)
        return unreached

    async def axe(self, *rules: str) -> list[str]:
        """Look for barriers, by default of any kind; gives a line for each."""
        if not AXE.exists():
            missing("Node's package axe-core")
        await self.page.evaluate(f"window.axe ?? (() => {{{AXE.read_text(encoding='utf-8')}}})()")
        options = {"runOnly": rules} if rules else {}
        report = await self.page.evaluate("(options) => axe.run(options)", options)
        return [
            f"{violation['id']}: {violation['help']}: {[node['html'][:120] for node in violation['nodes']]}"
            for violation in report["violations"]
        ]


def _read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@asynccontextmanager
async def visiting(browser: Any, **options: Any) -> AsyncIterator[PageUser]:
    """Open a tab with nothing kept from others; afterwards it must have had no problem."""
    context = await browser.new_context(viewport=SIZE, **options)
    try:
        user = PageUser(await context.new_page())
        yield user
        assert user.problems == [], user.problems
    finally:
        await context.close()
