"""The JavaScript library of a server in a page of another origin: examples/browser.html."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.system.web.browser import serving, visiting

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Examples(SimpleHTTPRequestHandler):
    """A folder over HTTP."""

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


@contextmanager
def web_server() -> Iterator[str]:
    """Serve the folder of the examples; gives the origin."""
    handler = partial(Examples, directory=str(ROOT / "examples"))
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


async def test_a_page_of_an_origin_that_is_not_allowed_gets_the_library_alone(browser: Any) -> None:
    with web_server() as origin:
        async with serving() as address, visiting(browser) as user:
            async with user.page.expect_event("console", lambda line: "403" in line.text):
                await user.page.goto(f"{origin}/browser.html?server={address.rstrip('/')}")
            await user.page.wait_for_function("document.title === 'connecting'")
            server = address.rstrip("/")
            for path, is_readable in (("/", 0), ("/main.js", 0), ("/page.json", 0), ("/conductor.js", 1)):
                fetched = f"fetch('{server}{path}').then(() => 1, () => 0)"
                assert await user.page.evaluate(fetched) == is_readable, path
            user.problems.clear()  # the browser tells each of these
