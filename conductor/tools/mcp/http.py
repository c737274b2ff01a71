"""MCP over streamable HTTP: the client's transport, and what a status says about a call."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from conductor.tools.base import PersonQuestion

if TYPE_CHECKING:
    from httpx2 import Auth, Request, Response
    from mcp.client._transport import TransportStreams

Ask: TypeAlias = Callable[[PersonQuestion], Awaitable[Mapping[str, Any] | None]]

_REDIRECTS = frozenset({301, 302, 307, 308})


@dataclass(slots=True)
class McpCall:
    """A call under way; ``ask`` asks the person.

    ``refusal`` says why nothing was run; it is empty where something may have been. ``session_lost``: the
    server has forgotten the session.
    """

    ask: Ask | None = None
    refusal: str = ""
    session_lost: bool = False


CURRENT_CALL: ContextVar[McpCall | None] = ContextVar("call", default=None)
"""The call that this task makes."""


@asynccontextmanager
async def http_streams(
    url: str, headers: Mapping[str, str], auth: Auth | None, *, use_proxy: bool
) -> AsyncGenerator[TransportStreams, None]:
    """Make the streams of a client; what becomes of a request is noted in its `McpCall`."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    async with (
        httpx2.AsyncClient(
            headers=dict(headers),
            auth=auth,
            timeout=httpx2.Timeout(30, read=300),
            trust_env=use_proxy,
            event_hooks={"request": [_note_request], "response": [_note_status]},
        ) as http_client,
        streamable_http_client(url, http_client=http_client) as streams,
    ):
        yield streams


def _call(request: Request) -> McpCall | None:
    # A login's requests are no messages to the server.
    is_message = request.method == "POST" and "text/event-stream" in request.headers.get("Accept", "")
    return CURRENT_CALL.get() if is_message else None


async def _note_request(request: Request) -> None:
    call = _call(request)
    if call is None:
        return
    call.refusal = "it could not be reached"

    async def trace(event: str, info: Mapping[str, Any]) -> None:
        if event.endswith("send_request_headers.started"):
            call.refusal = ""

    request.extensions["trace"] = trace


async def _note_status(response: Response) -> None:
    call = _call(response.request)
    if call is None:
        return
    status = response.status_code
    if 400 <= status < 500 or status == 503 or status in _REDIRECTS:
        call.refusal = f"HTTP {status}"
    call.session_lost = status == 404 and "mcp-session-id" in response.request.headers
