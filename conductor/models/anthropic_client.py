"""Requests to the Messages API through the official SDK, and the raw bytes that come back.

The SDK does authentication, requests and errors over its aiohttp transport. `anthropic_stream` decodes the
stream, because the SDK's own event objects cost ten times as much for each token. Importing this module
imports the SDK.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import anthropic
import httpx2
import msgspec
import structlog

from conductor.errors import ModelError
from conductor.models.anthropic_stream import ReplyDecoder, failure, from_status
from conductor.models.base import ModelEvent
from conductor.models.tool_names import ToolNameMap

# Seconds to open a connection.
CONNECT_TIMEOUT_S = 10.0
# Seconds to read the rest of a response; then its connection is given up.
DRAIN_S = 1.0
_HEADERS = {"content-type": "application/json", "accept": "text/event-stream", "accept-encoding": "identity"}
_BROKEN = (httpx2.RequestError, aiohttp.ClientError, OSError, RuntimeError)
"""Errors of a lost connection. aiohttp raises RuntimeError("Connection closed.") if this side closed it."""

log = structlog.get_logger(__name__)


class ReplyStream:
    """An open response stream. ``events`` are those of the last bytes."""

    def __init__(self, response: httpx2.Response, names: ToolNameMap) -> None:
        self.events: list[ModelEvent] = []
        self.decoder = ReplyDecoder(names)
        self._response = response
        self._chunks: AsyncIterator[bytes] = response.aiter_bytes()

    async def read(self) -> None:
        """Read until there are events. Raises `ModelError` if the stream ends, fails or falls silent."""
        self.events = []
        # A chunk may end in the middle of an event.
        while not self.events:
            self.events = self.decoder.feed(await self._next_chunk())

    async def _next_chunk(self) -> bytes:
        try:
            return await anext(self._chunks)
        except StopAsyncIteration:
            raise ModelError(
                "connection", "The model service ended its answer before it was complete."
            ) from None
        except httpx2.TimeoutException:
            raise failure("timeout") from None
        except _BROKEN:
            raise failure("connection") from None

    async def drain(self) -> None:
        """Read the rest of a finished response, which usually has arrived already; then close."""
        with contextlib.suppress(TimeoutError, httpx2.HTTPError, OSError, RuntimeError):
            async with asyncio.timeout(DRAIN_S):
                async for _ in self._chunks:
                    pass
        await self._response.aclose()

    async def aclose(self) -> None:
        """Close the response; its connection is closed unless the response has ended."""
        await self._response.aclose()


class MessagesClient:
    """A connection pool to the service; `conductor.models.anthropic` explains the parameters."""

    def __init__(
        self, api_key: str, base_url: str, *, pool_size: int, keep_alive_s: float, trust_env: bool
    ) -> None:
        limits = httpx2.Limits(
            max_connections=pool_size, max_keepalive_connections=pool_size, keepalive_expiry=keep_alive_s
        )
        # The SDK's aiohttp transport costs less CPU a token than httpx2's own (models, "The seam").
        # No redirects: one to another host would take the API key along.
        self._http = anthropic.DefaultAioHttpClient(
            limits=limits, trust_env=trust_env, follow_redirects=False
        )
        self._sdk = anthropic.AsyncAnthropic(
            api_key=api_key, base_url=base_url, open_telemetry=False, http_client=self._http
        )
        self._url = self._sdk.base_url.join("v1/messages")
        given = {name: value for name, value in self._sdk.default_headers.items() if isinstance(value, str)}
        self._headers = httpx2.Headers(given)
        self._headers.update(_HEADERS)

    async def open(self, body: bytes, names: ToolNameMap, silence_s: float) -> ReplyStream:
        """Send the request and read until the first events.

        ``silence_s`` bounds the time between two bytes, now and later. Raises `ModelError`.
        """
        try:
            async with asyncio.timeout(silence_s):
                response = await self._send(body, silence_s)
        except TimeoutError:
            raise failure("timeout") from None
        reply = ReplyStream(response, names)
        try:
            # A proxy's or a portal's page comes with status 200, too.
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                raise failure("protocol")
            await reply.read()
        # Cancelled here by a barge-in: only a close stops the request at the service.
        except BaseException:
            await reply.aclose()
            raise
        return reply

    async def _send(self, body: bytes, silence_s: float) -> httpx2.Response:
        # The SDK's own HTTP client, address, credentials and headers, put together once. The SDK's methods
        # repeat that for each request and walk the whole body, which took as long as all the rest.
        timeout = {"connect": min(CONNECT_TIMEOUT_S, silence_s), "read": silence_s}
        request = httpx2.Request(
            "POST", self._url, headers=self._headers, content=body, extensions={"timeout": timeout}
        )
        try:
            response = await self._http.send(request, stream=True)
            if response.is_success:
                return response
            await response.aread()
        except httpx2.TimeoutException:
            raise failure("timeout") from None
        except _BROKEN:
            raise failure("connection") from None
        request_id = response.headers.get("request-id")
        log.info("anthropic.status", status=response.status_code, request_id=request_id)
        raise from_status(response.status_code, _message_of(response), response.headers)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._sdk.close()


class _Problem(msgspec.Struct):
    message: str = ""


class _Failure(msgspec.Struct):
    error: _Problem


def _message_of(response: httpx2.Response) -> str:
    # The service's words only decide which kind of failure it is; they are never shown.
    try:
        return msgspec.json.decode(response.content, type=_Failure).error.message
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
