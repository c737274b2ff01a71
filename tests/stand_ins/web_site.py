"""A small web site on loopback, a port that makes connections wait, and a resolver for tests."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult


@dataclass
class Site:
    """The requests of a site (method, path with query, headers, body), and its port."""

    port: int = 0
    asked: list[tuple[str, str, dict[str, str], str]] = field(default_factory=list)

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


@asynccontextmanager
async def site(answer: Callable[[web.Request], Any] = lambda request: {"ok": True}) -> AsyncIterator[Site]:
    """Serve JSON, or the responses that ``answer`` makes."""
    running = Site()

    async def handle(request: web.Request) -> web.StreamResponse:
        running.asked.append((request.method, request.path_qs, dict(request.headers), await request.text()))
        response = answer(request)
        if hasattr(response, "__await__"):
            response = await response
        if isinstance(response, web.StreamResponse):
            return response
        return web.Response(text=json.dumps(response), content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        running.port = int(runner.addresses[0][1])
        yield running
    finally:
        await runner.cleanup()


@contextmanager
def full_port(port: int = 0) -> Iterator[int]:
    """Listen with a full queue: further connections to the port that is yielded wait."""
    with socket.socket() as full, ExitStack() as others:
        full.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        full.bind(("127.0.0.1", port))
        full.listen(0)
        for _ in range(3):
            other = others.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        yield full.getsockname()[1]


class Names(AbstractResolver):
    """Resolves each name to its next address, and keeps to the last one."""

    def __init__(self, **addresses: list[str]) -> None:
        self.addresses = {name.replace("_", "."): list(sequence) for name, sequence in addresses.items()}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        answers = self.addresses[host]
        address = answers.pop(0) if len(answers) > 1 else answers[0]
        kind = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=0)]

    async def close(self) -> None:
        """Nothing is open."""
