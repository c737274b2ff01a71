"""One port for all servers: which of them answers is decided by each request, also of a proxy's."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from conductor.app import make_services, running
from conductor.plugins.api import service
from conductor.settings import load_settings, program_token
from tests.models import ScriptedProvider
from tests.server.api import API_KEYS, KEYS
from tests.server.wires import WAIT, get, http, upgrade

TOKEN, ADMIN = "the-token-of-a-client", "the-token-of-the-operator"
KEY = f"Authorization: Bearer {KEYS['all']}"
BEARER = f"Authorization: Bearer {TOKEN}"
PROGRAM = f"Authorization: Bearer {program_token(TOKEN)}"


def post(path: str, body: str, *headers: str) -> str:
    """Write a request with a body."""
    length = f"Content-Length: {len(body)}"
    head = get(path, "Content-Type: application/json", length, *headers).removeprefix("GET")
    return f"POST{head}{body}"


PING = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"})
REQUESTS = {
    "health": (get("/healthz"), 200),
    "readiness": (get("/readyz"), 200),
    "head": (get("/readyz").replace("GET", "HEAD", 1), 200),
    "page": (get("/"), 200),
    "viewer": (get("/sessions"), 200),
    "script": (get("/conductor.js"), 200),
    "records": (get("/replay.json?session=s-1", BEARER), 404),
    "metrics": (get("/metrics", f"Authorization: Bearer {ADMIN}"), 200),
    "nothing": (get("/nothing"), 404),
    "sessions": (get("/v1/sessions", KEY), 200),
    "keyless": (get("/v1/none"), 404),
    "wrong method": (post("/v1/sessions", "{}", KEY), 405),
    "wrong body": (post("/v1/tokens", "{", KEY), 400),
    "odd expectation": (post("/v1/tokens", "{}", KEY, "Expect: the-unexpected"), 417),
    "program": (post("/mcp", PING, PROGRAM, "Accept: application/json, text/event-stream"), 400),
    "program without token": (post("/mcp", PING), 401),
    "no HTTP": ("GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\nbad name: \0\r\n\r\n", 400),
    "socket": (upgrade("/ws", BEARER), 101),
    "socket of a program": (upgrade("/mcp", PROGRAM, "Sec-WebSocket-Protocol: mcp"), 101),
    "socket without token": (upgrade("/ws"), 401),
    "no socket": (upgrade("/v1/sessions", KEY), 404),
}
OPENED = {name for name, (_, status) in REQUESTS.items() if status == 101}


@asynccontextmanager
async def serving(**limits: Any) -> AsyncIterator[int]:
    """Run a server with the page, the API, MCP and metrics; yields its port."""
    settings = load_settings(
        None, port=0, api_keys=API_KEYS, auth_tokens=TOKEN, admin_token=ADMIN, mcp_server=True
    )
    services = make_services(settings, ScriptedProvider([]))
    services = replace(services, limits=replace(services.limits, **limits))
    async with running(settings, services) as listener:
        await listener.ready.wait()  # `/readyz` says 503 until then
        yield listener.port


async def statuses(port: int, requests: Sequence[str]) -> list[int]:
    """Send requests as a proxy does, on one connection while the server keeps it; gives their statuses."""
    found: list[int] = []
    kept: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    for number, request in enumerate(requests, 1):
        reader, writer = kept or await asyncio.open_connection("127.0.0.1", port)
        writer.write(request.encode("latin-1"))
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        found.append(int(head.split()[1]))
        length = re.search(r"content-length: (\d+)", head, re.I)
        if length is not None and not request.startswith("HEAD"):
            await reader.readexactly(int(length[1]))
        is_kept = not re.search(r"^HTTP/1\.0|connection: (close|upgrade)", head, re.I)
        is_kept = is_kept and number < len(requests)
        kept = (reader, writer) if is_kept else None
        if not is_kept:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
    return found


PAIRS = [pair for pair in product(REQUESTS, repeat=2) if pair[0] not in OPENED]


async def test_every_request_after_every_other_is_answered_by_its_own_server() -> None:
    answered: dict[Any, Any] = {}
    async with serving() as port, asyncio.timeout(4 * WAIT):
        for pair in PAIRS:
            answered[pair] = await statuses(port, [REQUESTS[name][0] for name in pair])
    assert answered == {pair: [REQUESTS[name][1] for name in pair] for pair in PAIRS}
    assert len(PAIRS) >= 300


@pytest.mark.parametrize("first", ["sessions", "keyless", "wrong body", "no HTTP", "program"])
async def test_a_request_behind_another_one_on_its_connection_is_not_answered(first: str) -> None:
    async with serving() as port, asyncio.timeout(WAIT):
        for second in REQUESTS.keys() - {"no HTTP"}:  # it is parsed with the first one
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write((REQUESTS[first][0] + REQUESTS[second][0]).encode("latin-1"))
            answer = (await reader.read()).decode()
            assert answer.count("HTTP/1.") == 1 and int(answer.split()[1]) == REQUESTS[first][1], second
            writer.close()


@pytest.mark.parametrize("path", ["/v1/tokens", "/mcp"])
async def test_a_request_that_is_no_http_gets_neither_its_text_nor_versions_back(path: str) -> None:
    async with serving() as port:
        for line in (
            "x-secret-of-mine \0: 1",
            "Content-Length: x-secret-of-mine",
            "Transfer-Encoding: x-secret",
        ):
            status, answer = await http(port, post(path, "", line))
            assert status == 400 and "x-secret" not in answer and "ython" not in answer, line
            assert "Server: conductor" in answer


@pytest.mark.parametrize(("path", "authorization"), [("/v1/tokens", KEY), ("/mcp", PROGRAM)])
async def test_an_unfinished_body_ends_its_connection_with_408(
    path: str, authorization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "REQUEST_S", 0.1)
    async with serving(message_timeout=0.1) as port:
        begun = asyncio.get_running_loop().time()
        status, answer = await http(port, post(path, "{", authorization).replace("h: 1", "h: 1000"))
        assert status == 408 and "Connection: close" in answer
        # `http` reads to the end of the connection: the library would await the rest for 10 s.
        assert asyncio.get_running_loop().time() - begun < 5.0
