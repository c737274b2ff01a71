"""MCP over streamable HTTP: the client's transport, and the meaning of a status for a call.

Importing the HTTP client takes a while: import this module in a function.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx2
from mcp.client.streamable_http import streamable_http_client

from conductor.events.unreadable import repaired
from conductor.plugins.http_client import AiohttpTransport, CertificateError, ForbiddenAddressError
from conductor.plugins.mcp.streams import CURRENT_CALL, MAX_MESSAGE_BYTES, McpCall, is_dense
from conductor.tools.outcomes import fate_of_status

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

# Seconds of silence after which a request is given up: longer than any tool's own limit, which ends its call.
READ_S = 3_660.0
_EVENT_END = re.compile(rb"\n\r?\n|\r\r")
_REDIRECTS = frozenset({301, 302, 307, 308})

# The package logs an error with a traceback even for an answer that comes while the connection is closed. A
# failure that counts is the outcome of its call, or the reason for which the server is down.
logging.getLogger("mcp.client.streamable_http").setLevel(logging.CRITICAL)


@asynccontextmanager
async def http_streams(
    url: str,
    headers: Mapping[str, str],
    auth: httpx2.Auth | None,
    *,
    use_proxy: bool = True,
    permits: Callable[[str], bool] | None = None,
) -> AsyncGenerator[TransportStreams, None]:
    """Make the streams of a client; the result of a request is noted in its `McpCall`.

    ``permits`` tells of an IP address whether a request, also of the login, may reach it.
    """
    async with (
        httpx2.AsyncClient(
            headers={**headers, "Accept-Encoding": "identity"},
            auth=auth,
            timeout=httpx2.Timeout(30, read=READ_S),
            transport=_Transport(trust_env=use_proxy, permits=permits, resends=False, reports_sent=True),
            trust_env=False,
        ) as http_client,
        streamable_http_client(url, http_client=http_client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
    ):
        yield streams


class _Transport(AiohttpTransport):
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        # The requests of a login are not messages to the server.
        is_message = request.method == "POST" and "text/event-stream" in request.headers.get("Accept", "")
        call = CURRENT_CALL.get() if is_message else None
        call = None if call is None or call.is_accepted else call
        if call is not None:
            call.is_sent = False
            request.extensions["on_sent"] = call.note_sent
        try:
            response = await super().handle_async_request(request)
        except httpx2.ConnectError as error:
            if call is not None:
                call.refusal = "it could not be reached"
            reason = "no connection"
            if isinstance(error, ForbiddenAddressError):
                reason = "address not permitted"
            elif isinstance(error, CertificateError):
                reason = f"its certificate is not valid ({error})"
            raise httpx2.ConnectError(f"{request.url.host} cannot be reached: {reason}") from None
        if call is not None:
            _note_status(call, response.status_code, has_session="mcp-session-id" in request.headers)
        response.stream = _Bounded(response)
        return response


def _note_status(call: McpCall, status: int, *, has_session: bool) -> None:
    call.is_accepted = 200 <= status < 300
    is_refused = fate_of_status(status) == "not_run" or status in _REDIRECTS
    call.refusal = f"HTTP {status}" if is_refused else ""
    call.session_lost = status == 404 and has_session


class _Bounded(httpx2.AsyncByteStream):
    # Raises for a body that is compressed, too long, or has too many values; the package limits events.
    def __init__(self, response: httpx2.Response) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._stream = response.stream
        self._is_plain = response.headers.get("Content-Encoding", "identity") == "identity"
        self._is_event_stream = response.headers.get("Content-Type", "").startswith("text/event-stream")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if not self._is_plain:
            raise httpx2.StreamError("The answer is compressed, although identity was requested.")
        body, start = bytearray(), 0
        async for chunk in self._stream:
            body += chunk
            if len(body) > MAX_MESSAGE_BYTES:
                raise httpx2.StreamError("The answer is longer than 4 MiB.")
            # Only the new chunk is searched for the end of an event: linear time.
            ends = [match.end() for match in _EVENT_END.finditer(body, max(0, start - 3))]
            if self._is_event_stream and ends:
                yield _whole(body[: ends[-1]])
                del body[: ends[-1]]
            start = len(body)
        yield _whole(body)

    async def aclose(self) -> None:
        await self._stream.aclose()


def _whole(body: bytearray) -> bytes:
    if is_dense(body):
        raise httpx2.StreamError("The answer has more than 50,000 values.")
    return repaired(bytes(body))
