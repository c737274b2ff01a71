"""The app's backend of the tests: a server with API keys, and requests to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from conductor.app import make_services, running
from conductor.server.listener import Listener
from conductor.session.fields import SubjectRecords
from conductor.session.services import Services
from conductor.settings import Settings, load_settings
from conductor.stores.base import SessionLog
from tests.app import App
from tests.conftest import IOS_CATALOG
from tests.models import ScriptedProvider
from tests.server.wires import WAIT, until

KEYS = {name: f"{name}-key-of-the-backend" for name in ("read", "say", "approve", "admin", "all")}
API_KEYS = tuple(
    f"{name}:{key}:{'read+say+approve+admin' if name == 'all' else name}" for name, key in KEYS.items()
)


@dataclass
class Answer:
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def code(self) -> str:
        return str(self.body["error"]["code"])


@dataclass
class Backend:
    """A server with the API, and requests to it."""

    listener: Listener
    provider: ScriptedProvider
    settings: Settings
    services: Services

    def phone(self, session_id: str = "s-1", **options: Any) -> App:
        return App(f"ws://127.0.0.1:{self.listener.port}/ws", session_id, **options)

    async def ask(
        self, method: str, path: str, body: Any = None, *, key: str | None = "all", **headers: str
    ) -> Answer:
        """Send a request; ``key`` is a name of `KEYS`, or a key."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(data)}"]
        if key is not None:
            lines.append(f"Authorization: Bearer {KEYS.get(key, key)}")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return await self.send("\r\n".join([*lines, "", ""]).encode() + data)

    async def send(self, request: bytes) -> Answer:
        """Send bytes on a connection, which ends with the answer."""
        async with asyncio.timeout(WAIT):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.listener.port)
            writer.write(request)
            head, _, data = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        return Answer(int(first.split()[1]), headers, json.loads(data) if data else None)

    async def released(self) -> None:
        """Wait until no session is held here."""
        registry = self.listener.registry
        await until(lambda: not len(registry))
        await registry.end("nobody")  # it waits for sessions that end already


@asynccontextmanager
async def backend(
    replies: Any = (), store: SessionLog | None = None, limits: Mapping[str, Any] | None = None, **values: Any
) -> AsyncIterator[Backend]:
    """Run a server with `API_KEYS`; ``values`` are settings."""
    values = {"port": 0, "api_keys": API_KEYS, "device_tools_file": IOS_CATALOG, **values}
    settings = load_settings(None, **values)
    provider = ScriptedProvider(replies)
    services = make_services(settings, provider)
    more = {"open_microphone": 0.0, "turns_per_minute": 1e6, **(limits or {})}
    services = replace(services, limits=replace(services.limits, **more))
    if store is not None:
        services = replace(services, store=store, subject_records=SubjectRecords(store))
    async with running(settings, services) as listener:
        yield Backend(listener, provider, settings, services)
