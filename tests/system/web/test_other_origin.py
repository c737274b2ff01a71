"""The JavaScript libraries in pages of another origin: two examples, docs/clients/elements.md."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.system.web.browser import MEDIA, serving, visiting

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Folder(SimpleHTTPRequestHandler):
    """A folder over HTTP."""

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


@contextmanager
def web_server(folder: Path = ROOT / "examples") -> Iterator[str]:
    """Serve a folder; gives the origin."""
    handler = partial(Folder, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


async def test_a_page_of_another_origin_imports_the_library_and_switches_its_lamp(browser: Any) -> None:
    with web_server() as origin:
        async with serving(origins=(origin,)) as address, visiting(browser) as user:
            await user.page.goto(f"{origin}/browser.html?server={address.rstrip('/')}")
            await user.page.click("form button")
            await user.page.get_by_text("Say yes or no").wait_for()
            await user.page.get_by_role("button", name="Allow").click()
            await user.page.locator("#answer", has_text="The lamp in the hall is on.").wait_for()
            assert await user.page.inner_text("#lamp") == "The lamp in the hall is on."
            assert not await user.page.is_visible("#card")


async def test_a_page_with_a_voice_in_front_switches_its_lamp_after_a_spoken_yes(browser: Any) -> None:
    with web_server() as origin:
        async with serving(origins=(origin,)) as address, visiting(browser) as user:
            await user.page.goto(f"{origin}/voice.html?server={address.rstrip('/')}")

            async def say(words: str, then: str) -> None:
                await user.page.get_by_label("What you say").fill(words)
                await user.page.keyboard.press("Enter")
                await user.page.locator("#talk li", has_text=then).wait_for()

            await say("hello", "voice: I am here.")
            await say("Switch on the lamp in the hall", "Say yes or no")
            assert await user.page.is_visible("#card")
            await say("yes", "voice: The lamp in the hall is on.")
            assert await user.page.inner_text("#lamp") == "The lamp in the hall is on."
            assert not await user.page.is_visible("#card")
            said = await user.page.locator("#talk li").all_inner_texts()
            assert said.count("person: Switch on the lamp in the hall") == 1


async def test_a_page_of_an_origin_that_is_not_allowed_gets_the_library_alone(browser: Any) -> None:
    with web_server() as origin:
        async with serving() as address, visiting(browser) as user:
            async with user.page.expect_event("console", lambda line: "403" in line.text):
                await user.page.goto(f"{origin}/browser.html?server={address.rstrip('/')}")
            await user.page.wait_for_function("document.title === 'closed'")
            server = address.rstrip("/")
            for path, is_readable in (
                ("/", 0),
                ("/main.js", 0),
                ("/page.json", 0),
                ("/conductor-elements.js", 1),
            ):
                fetched = f"fetch('{server}{path}').then(() => 1, () => 0)"
                assert await user.page.evaluate(fetched) == is_readable, path
            user.problems.clear()  # the browser tells each of these


SAY = """async (server) => {
  const { connect } = await import(`${server}/conductor.js`);
  const errors = [];
  const url = `${server.replace("http", "ws")}/ws`;
  const client = connect({ url, token: "a-token-of-this-test", onError: (error) => errors.push(error) });
  const [first, second] = [await client.say("hello"), await client.say("and again")];
  const started = await client.started.catch(({ message }) => message);
  await client.close();
  return { errors, started, endings: [first.ending, second.ending], told: [first.errors, second.errors] };
}"""


@pytest.mark.parametrize("token", [None, "a-token-of-this-test"])
async def test_words_on_a_page_that_may_not_connect_end_with_the_reason(
    browser: Any, token: str | None
) -> None:
    with web_server() as origin:
        async with serving(token) as address, visiting(browser) as user:
            await user.page.goto(f"{origin}/")
            said = await user.page.evaluate(SAY, address.rstrip("/"))
            message = "This origin is not allowed: the server's ALLOWED_ORIGINS does not have it."
            error = {"code": "unauthorized", "message": message}
            assert said["endings"] == ["closed", "closed"] and said["told"] == [[error], [error]]
            assert (said["errors"], said["started"]) == ([error], message)
            user.problems.clear()  # the browser tells each of these


async def test_the_page_of_the_elements_document_runs(browser: Any, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "clients" / "elements.md").read_text(encoding="utf-8")
    (page,) = re.findall(r"^```html\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert page.count("\n") <= 35
    with web_server(tmp_path) as origin:
        async with serving(origins=(origin,)) as address, visiting(browser) as user:
            server = address.removeprefix("http://").rstrip("/")
            (tmp_path / "index.html").write_text(page.replace("127.0.0.1:8080", server), encoding="utf-8")
            (tmp_path / "favicon.ico").touch()  # browsers ask for it
            await user.page.add_init_script(MEDIA)
            await user.page.goto(f"{origin}/index.html")
            await user.page.get_by_label("What you say").fill("switch on the lamp")
            await user.page.keyboard.press("Enter")
            card = user.page.locator("conductor-card")
            await card.get_by_text("It changes something.").wait_for()
            assert await user.axe() == []
            assert await user.page.get_by_label("What you say").input_value() == ""
            await card.get_by_role("button", name="Allow once").click()
            await user.page.get_by_text("The lamp is on.", exact=True).first.wait_for()
            await card.wait_for(state="detached")
            # By voice, with the button tapped.
            await user.page.get_by_role("button", name="Talk").evaluate("(button) => button.click()")
            await user.page.evaluate("recognitions[0].hear('say good morning', true)")
            await user.page.locator(".message.assistant", has_text="good morning").wait_for()
            said = await user.page.locator(".message.user").all_inner_texts()
            assert said == ["switch on the lamp", "say good morning"]
