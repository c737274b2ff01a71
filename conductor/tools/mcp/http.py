"""MCP over streamable HTTP: the client's transport, and what a status says about a call."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from conductor.tools.base import PersonQuestion
from conductor.tools.mcp.inbound import MAX_MESSAGE_BYTES, is_dense

if TYPE_CHECKING:
    from httpx2 import Auth, Request, Response
    from mcp.client._transport import TransportStreams

Ask: TypeAlias = Callable[[PersonQuestion], Awaitable[Mapping[str, Any] | None]]

_EVENT_END = re.compile(rb"\n\r?\n|\r\r")
_REDIRECTS = frozenset({301, 302, 307, 308})


@dataclass(slots=True)
class McpCall:
    """A call under way; ``ask`` asks the person.

    ``refusal`` says why nothing was run; it is empty where something may have been. ``session_lost``: the
    server has forgotten the session. ``is_accepted``: the server took the call, so what becomes of a later
    message of it, such as the person's answer, says nothing about whether it ran.
    """

    ask: Ask | None = None
    refusal: str = ""
    session_lost: bool = False
    is_accepted: bool = False


CURRENT_CALL: ContextVar[McpCall | None] = ContextVar("call", default=None)
"""The call that this task makes."""


@asynccontextmanager
async def http_streams(
    url: str, headers: Mapping[str, str], auth: Auth | None, *, use_proxy: bool
) -> AsyncGenerator[TransportStreams, None]:
    """Make the streams of a client; what becomes of a request is noted in its `McpCall`."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    async def bound(response: Response) -> None:
        _note_status(response)
        response.stream = Bounded(response)

    def sparse(body: bytearray) -> bytes:
        if is_dense(bytes(body)):
            raise httpx2.StreamError("The answer has more than 50,000 values.")
        return bytes(body)

    class Bounded(httpx2.AsyncByteStream):
        """A body that is an error if it is compressed or too long; the package bounds events."""

        def __init__(self, response: Response) -> None:
            self._stream = response.stream
            self._is_plain = response.headers.get("Content-Encoding", "identity") == "identity"
            self._is_endless = response.headers.get("Content-Type", "").startswith("text/event-stream")

        async def __aiter__(self) -> AsyncIterator[bytes]:
            assert isinstance(self._stream, httpx2.AsyncByteStream)
            if not self._is_plain:
                raise httpx2.StreamError("The answer is compressed, though that was not asked for.")
            body = bytearray()
            async for chunk in self._stream:
                body += chunk
                if len(body) > MAX_MESSAGE_BYTES + len(chunk):
                    raise httpx2.StreamError("The answer is longer than 4 MiB.")
                # The chunk in which an event ends; to look for that in all of it would take quadratic time.
                if self._is_endless and _EVENT_END.search(body, max(0, len(body) - len(chunk) - 3)):
                    yield sparse(body)
                    body = bytearray()
            if len(body) > MAX_MESSAGE_BYTES:
                raise httpx2.StreamError("The answer is longer than 4 MiB.")
            yield sparse(body)

        async def aclose(self) -> None:
            assert isinstance(self._stream, httpx2.AsyncByteStream)
            await self._stream.aclose()

    async with (
        httpx2.AsyncClient(
            headers={**headers, "Accept-Encoding": "identity"},
            auth=auth,
            timeout=httpx2.Timeout(30, read=300),
            trust_env=use_proxy,
            event_hooks={"request": [_note_request], "response": [bound]},
        ) as http_client,
        streamable_http_client(url, http_client=http_client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
    ):
        yield streams


def _call(request: Request) -> McpCall | None:
    # A login's requests are no messages to the server.
    is_message = request.method == "POST" and "text/event-stream" in request.headers.get("Accept", "")
    call = CURRENT_CALL.get() if is_message else None
    return None if call is None or call.is_accepted else call


async def _note_request(request: Request) -> None:
    call = _call(request)
    if call is None:
        return
    call.refusal = "it could not be reached"

    async def trace(event: str, info: Mapping[str, Any]) -> None:
        if event.endswith("send_request_headers.started"):
            call.refusal = ""

    request.extensions["trace"] = trace


def _note_status(response: Response) -> None:
    call = _call(response.request)
    if call is None:
        return
    status = response.status_code
    call.is_accepted = 200 <= status < 300
    if 400 <= status < 500 or status == 503 or status in _REDIRECTS:
        call.refusal = f"HTTP {status}"
    call.session_lost = status == 404 and "mcp-session-id" in response.request.headers
