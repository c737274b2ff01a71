"""MCP over streamable HTTP: the client's transport, and the meaning of a status for a call."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from conductor.plugins.mcp.streams import MAX_MESSAGE_BYTES, is_dense
from conductor.tools.base import PersonQuestion

if TYPE_CHECKING:
    from httpx2 import Auth, Request, Response
    from mcp.client._transport import TransportStreams

Ask: TypeAlias = Callable[[PersonQuestion], Awaitable[Mapping[str, Any] | None]]

_EVENT_END = re.compile(rb"\n\r?\n|\r\r")
_REDIRECTS = frozenset({301, 302, 307, 308})


@dataclass(slots=True)
class McpCall:
    """A call in progress; ``ask`` asks the person.

    ``refusal`` is the reason that the call did not run; empty if it may have run. ``session_lost``: the
    server no longer has the session. ``is_accepted``: the server accepted the call, so a failure of a later
    message, such as the person's answer, does not mean that the call did not run.
    """

    ask: Ask | None = None
    refusal: str = ""
    session_lost: bool = False
    is_accepted: bool = False


CURRENT_CALL: ContextVar[McpCall | None] = ContextVar("call", default=None)
"""The call of the current task."""


@asynccontextmanager
async def http_streams(
    url: str, headers: Mapping[str, str], auth: Auth | None, *, use_proxy: bool
) -> AsyncGenerator[TransportStreams, None]:
    """Make the streams of a client; the result of a request is noted in its `McpCall`."""
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
        """A body that raises if it is compressed or too long; the package limits events."""

        def __init__(self, response: Response) -> None:
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            self._stream = response.stream
            self._is_plain = response.headers.get("Content-Encoding", "identity") == "identity"
            self._is_event_stream = response.headers.get("Content-Type", "").startswith("text/event-stream")

        async def __aiter__(self) -> AsyncIterator[bytes]:
            if not self._is_plain:
                raise httpx2.StreamError("The answer is compressed, although identity was requested.")
            body = bytearray()
            async for chunk in self._stream:
                body += chunk
                if len(body) > MAX_MESSAGE_BYTES + len(chunk):
                    raise httpx2.StreamError("The answer is longer than 4 MiB.")
                # Only the new chunk is searched for the end of an event: linear time.
                if self._is_event_stream and _EVENT_END.search(body, max(0, len(body) - len(chunk) - 3)):
                    yield sparse(body)
                    body = bytearray()
            if len(body) > MAX_MESSAGE_BYTES:
                raise httpx2.StreamError("The answer is longer than 4 MiB.")
            yield sparse(body)

        async def aclose(self) -> None:
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
    # The requests of a login are not messages to the server.
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
