"""The app's backend of the tests that is told by webhooks: an HTTP server that checks each signature."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from standardwebhooks.webhooks import Webhook

from tests.server.wires import WAIT, until

SECRET = "whsec_" + base64.b64encode(b"the-secret-of-the-tests!").decode()


@dataclass
class Receiver:
    """Takes webhooks, and answers with ``status``; with 400 where the body has the text ``refuses``."""

    url: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    tries: int = 0
    status: int = 204
    refuses: str = ""
    hangs: asyncio.Event | None = None

    async def take(self, request: web.Request) -> web.Response:
        body = await request.text()
        self.tries += 1
        if self.hangs is not None:
            await self.hangs.wait()
        if self.refuses and self.refuses in body:
            return web.Response(status=400)
        if self.status >= 300:
            return web.Response(status=self.status, text="x" * 100_000)
        event: dict[str, Any] = Webhook(SECRET).verify(body, dict(request.headers))
        self.events.append(event)
        self.ids.append(request.headers["webhook-id"])
        return web.Response(status=self.status)

    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    async def until(self, *types: str, among: Callable[[str], bool] = lambda _: True) -> dict[str, Any]:
        """Wait until the events are exactly these; returns the data of the last one."""
        await until(lambda: len(self.events) >= len(types))
        assert [kind for kind in self.types() if among(kind)] == list(types)
        data: dict[str, Any] = self.events[-1]["data"]
        return data

    def file(self, folder: Path, **values: Any) -> Path:
        """Write a ``webhooks.toml`` for this receiver."""
        path = folder / "webhooks.toml"
        values = {"url": self.url, "secret": SECRET, **values}
        path.write_text("".join(f"{name} = {value!r}\n" for name, value in values.items()))
        return path


@asynccontextmanager
async def receiving(port: int = 0, receiver: Receiver | None = None) -> AsyncIterator[Receiver]:
    """Run a receiver."""
    receiver = receiver or Receiver()
    application = web.Application()
    application.router.add_post("/hook", receiver.take)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    try:
        yield receiver
    finally:
        if receiver.hangs is not None:
            receiver.hangs.set()
        async with asyncio.timeout(WAIT):
            await runner.cleanup()
