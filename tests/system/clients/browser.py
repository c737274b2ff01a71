"""A browser without a window, and the web server of the page that it opens."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from tests.system.clients.conversation import QUESTION, RESULT_LENGTH
from tests.system.clients.programs import CLIENTS, STARTING, program, started

STRANGER = "voice.example"
"""A name that resolves to this machine, in this browser only."""


class Page:
    """The page's own web server; it keeps the page's report."""

    def __init__(self) -> None:
        self.origin = ""
        self.questions: list[str] = []
        self._result: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    async def _take(self, request: web.Request) -> web.Response:
        if not self._result.done():
            self._result.set_result(await request.json())
        return web.Response()

    async def _file(self, request: web.Request) -> web.FileResponse:
        self.questions.append(request.path)
        return web.FileResponse(CLIENTS / request.path.lstrip("/"))

    @asynccontextmanager
    async def served(self) -> AsyncIterator[Page]:
        """Serve the page on loopback."""
        application = web.Application()
        application.router.add_get("/page.html", self._file)
        application.router.add_get("/conversation.js", self._file)
        application.router.add_post("/result", self._take)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.origin = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield self
        finally:
            await runner.cleanup()

    async def visit(
        self, profile: Path, url: str, *, token: str = "", name: str = "127.0.0.1"
    ) -> dict[str, Any]:
        """Have a browser open the page, under a host's ``name``, and hold the conversation with ``url``."""
        fields = {"url": url, "session": "s-page", "text": QUESTION, "length": str(RESULT_LENGTH)}
        address = (
            f"{self.origin.replace('127.0.0.1', name)}/page.html?{urlencode({**fields, 'token': token})}"
        )
        log = profile / "log"
        with log.open("wb") as output:
            async with started(browser(profile, address), output) as process:
                exit_task = asyncio.create_task(process.wait())
                waiting: list[asyncio.Future[Any]] = [self._result, exit_task]
                await asyncio.wait(waiting, timeout=STARTING, return_when="FIRST_COMPLETED")
                exit_task.cancel()
        assert self._result.done(), f"no report; it asked for {self.questions}: {log.read_text()[-2000:]}"
        return self._result.result()


def browser(profile: Path, address: str) -> list[str]:
    """Write the command of a headless browser that connects to the page and the server only."""
    flags = "--headless --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    flags += " --disable-component-update --disable-sync"
    if os.geteuid() == 0:
        flags += " --no-sandbox"  # it refuses to run as root otherwise
    chromium = program("chromium", "chromium-browser", "google-chrome")
    options = [
        "--remote-debugging-port=0",  # with it, it stays until it is ended instead of leaving on its own
        f"--host-resolver-rules=MAP {STRANGER} 127.0.0.1",
        f"--user-data-dir={profile}",
    ]
    return [chromium, *flags.split(), *options, address]
