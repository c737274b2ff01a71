"""Requests to a model service over HTTP, and the raw bytes of its streamed replies."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import httpx2
import msgspec
import structlog

from conductor.errors import ModelError
from conductor.models.base import Finished, ModelEvent, StreamDecoder, TextDelta
from conductor.models.failures import failure
from conductor.plugins.http_client import CertificateError, ForbiddenAddressError, HttpClient, RawBody
from conductor.plugins.models.service_errors import EmptyReply, from_status, read_problem

Send: TypeAlias = Callable[[str, bytes | None, Mapping[str, str], httpx2.Timeout], Awaitable[httpx2.Response]]
"""Sends a request as `Service.send` does."""

# Seconds to open a connection.
CONNECT_TIMEOUT_S = 10.0
# Seconds to read the remainder of a response; then its connection is closed.
DRAIN_S = 1.0
HEADERS = {"content-type": "application/json", "accept": "text/event-stream", "accept-encoding": "identity"}
_STREAMS = ("text/event-stream", "application/vnd.amazon.eventstream")
# Some services answer a streaming request in one piece.
_JSON = "application/json"
# Of a reply's stream and text: 64,000 tokens, the highest limit, at 250 bytes each.
MAX_REPLY_BYTES = 16 * 1024 * 1024
MAX_REPLY_CHARS = 1024 * 1024
# Of a service's error in the log, and of the shortest key.
_QUOTED_CHARS = 200
_KEY_CHARS = 6
# Seconds to read a small document.
DOCUMENT_S = 2.0
# Comments, Anthropic's ping events, and chunks without choices.
_KEEPS_ALIVE = re.compile(
    rb'(?:[ \r\n]+|:[^\r\n]*[\r\n]|event: ?ping[\r\n]|data: ?\{"type": ?"ping"\}[\r\n]'
    rb'|data: ?\{[^\r\n]*"choices": ?\[\][^\r\n]*[\r\n])+'
)
log = structlog.get_logger(__name__)


class ReplyStream:
    """An open response stream. ``events`` come from the last bytes.

    ``silence_s`` bounds the time between bytes, keep-alives aside; ``silent_at`` is the end of the first such
    time, by the loop's clock.
    """

    def __init__(
        self, response: httpx2.Response, decoder: StreamDecoder, silence_s: float, silent_at: float
    ) -> None:
        self.events: list[ModelEvent] = []
        self.decoder = decoder
        self._response = response
        self._body: RawBody = response.extensions["body"]
        self._silence_s = silence_s
        self._silent_at = silent_at
        self._has_news = False  # of the last bytes
        self._bytes = self._chars = 0

    async def read(self) -> None:
        """Read until there are events. Raises `ModelError` if the stream ends, fails or falls silent."""
        self.events = []
        while not self.events:
            try:
                chunk = await self._chunk()
            except TimeoutError:
                raise failure("timeout") from None
            except httpx2.TransportError as error:
                raise _failure_of(error) from None
            self._bytes += len(chunk)
            self._decode(chunk)

    async def _chunk(self) -> bytes:
        if self._has_news:  # the socket's own limit is enough
            chunk = await self._body.read()
        else:
            async with asyncio.timeout_at(self._silent_at):
                chunk = await self._body.read()
        was_news, self._has_news = self._has_news, not _KEEPS_ALIVE.fullmatch(chunk)
        if was_news and not self._has_news:
            self._silent_at = asyncio.get_running_loop().time() + self._silence_s
        return chunk

    def _decode(self, chunk: bytes) -> None:
        try:
            self.events = list(self.decoder.feed(chunk) if chunk else self.decoder.end())
        except ModelError as error:
            if not chunk and error.reason == "connection" and _content_type(self._response) == _JSON:
                raise _no_stream() from None
            if not self._bytes and error.reason == "connection":
                raise EmptyReply("connection", "The model service sent an empty reply.") from None
            raise
        for event in self.events:
            if not isinstance(event, Finished):
                self._chars += len(event.text if isinstance(event, TextDelta) else event.arguments)
        if self._bytes > MAX_REPLY_BYTES or self._chars > MAX_REPLY_CHARS:
            raise ModelError("protocol", "The model service's reply is too long.")

    @property
    def is_drained(self) -> bool:
        """Whether the response was read to its end and its connection is back in the pool."""
        return self._body.is_at_end

    async def drain(self) -> None:
        """Read the remainder of a finished response."""
        with contextlib.suppress(httpx2.TransportError, TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while await self._body.read():
                    pass

    def close(self) -> None:
        """Close the response, and its connection unless the response has ended."""
        self._body.close()


class Service:
    """Sends requests to the service at ``base_url``; every request has the ``headers`` and the ``auth``."""

    def __init__(
        self, client: HttpClient, base_url: str, headers: Mapping[str, str], auth: httpx2.Auth | None = None
    ) -> None:
        self._client = client
        self._base_url = base_url.rstrip("/")
        self._headers = {**headers, **HEADERS}
        self._auth = auth
        self._url = lru_cache(maxsize=16)(httpx2.URL)

    async def send(
        self, path: str, body: bytes | None, headers: Mapping[str, str], timeout: httpx2.Timeout
    ) -> httpx2.Response:
        """Post a body, or get a document without one. Raises `httpx2.TransportError`."""
        request = httpx2.Request(
            "GET" if body is None else "POST",
            self._url(self._base_url + path),
            headers={**self._headers, **headers} if headers else self._headers,
            content=body,
            extensions={"timeout": timeout.as_dict()},
        )
        if self._auth is None:
            return await self._client.transport.handle_async_request(request)
        return await self._client.send(request, stream=True, auth=self._auth)


async def open_reply(
    send: Send,
    path: str,
    body: bytes,
    decoder: StreamDecoder,
    *,
    silence_s: float,
    headers: Mapping[str, str],
) -> ReplyStream:
    """Post the body and read until the first events; ``silence_s`` bounds that, and later silences.

    Raises `ModelError`.
    """
    silent_at = asyncio.get_running_loop().time() + silence_s
    try:
        async with asyncio.timeout(silence_s):
            response = await _post(send, path, body, silence_s, headers)
    except TimeoutError:
        raise failure("timeout") from None
    reply = ReplyStream(response, decoder, silence_s, silent_at)
    try:
        # The page of a proxy or a portal has status 200 too.
        if _content_type(response) not in (*_STREAMS, _JSON):
            raise _no_stream()
        if response.headers.get("content-encoding", "identity") != "identity":
            raise ModelError("protocol", "The model service compressed its reply without request.")
        await reply.read()
    # Also after a barge-in: only a close stops the request at the service.
    except BaseException:
        reply.close()
        raise
    return reply


async def _post(
    send: Send, path: str, body: bytes, silence_s: float, headers: Mapping[str, str]
) -> httpx2.Response:
    timeout = httpx2.Timeout(connect=min(CONNECT_TIMEOUT_S, silence_s), read=silence_s, write=None, pool=None)
    try:
        response = await send(path, body, headers, timeout)
        if response.is_success:
            return response
        try:
            text = await response.aread()
        finally:
            await response.aclose()
    except ForbiddenAddressError:
        raise ModelError("protocol", "LOCAL_ONLY is set, and the model is not local.") from None
    except httpx2.TransportError as error:
        raise _failure_of(error) from None
    names = ("request-id", "x-request-id", "x-amzn-requestid")
    request_id = next((response.headers[name] for name in names if name in response.headers), None)
    answer = _without_keys(text.decode(errors="replace"), response.request)[:_QUOTED_CHARS]
    log.info("model answered", status=response.status_code, request_id=request_id, answer=answer)
    raise from_status(response.status_code, read_problem(text), response.headers)


def _without_keys(text: str, request: httpx2.Request) -> str:
    """Remove the values of a request's headers, keys among them, which some services quote."""
    for word in " ".join(request.headers.values()).split():
        if len(word) >= _KEY_CHARS:
            text = text.replace(word, "[REDACTED]")
    return text


async def read_json(send: Send, path: str) -> Any:
    """Get a small JSON document; None without one."""
    text = b""
    try:
        async with asyncio.timeout(DOCUMENT_S):
            response = await send(path, None, {}, httpx2.Timeout(DOCUMENT_S))
            try:
                async for piece in response.extensions["body"]:
                    text += piece
                    if len(text) >= MAX_REPLY_CHARS:
                        break
            finally:
                await response.aclose()
        return msgspec.json.decode(text)
    except (httpx2.TransportError, TimeoutError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _content_type(response: httpx2.Response) -> str:
    return str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()


def _failure_of(error: httpx2.TransportError) -> ModelError:
    if isinstance(error, CertificateError):
        return ModelError("connection", f"The certificate of the model service is not valid ({error}).")
    return failure("timeout" if isinstance(error, httpx2.TimeoutException) else "connection")


def _no_stream() -> ModelError:
    return ModelError("protocol", "The server at the model service's address sent no stream.")
