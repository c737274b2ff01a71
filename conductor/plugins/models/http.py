"""A pool of HTTP connections to a model service, and the raw bytes of its streamed replies.

aiohttp is used directly: httpx2 takes twice the CPU, and an SDK's methods more.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx2
import msgspec
import structlog
from aiohttp.abc import AbstractResolver
from yarl import URL

from conductor.errors import ModelError
from conductor.models.base import Finished, ModelEvent, Sign, StreamDecoder, TextDelta
from conductor.models.failures import EmptyReply, failure, from_status, read_problem

# Connections to one service: one for each reply at a time.
MAX_CONNECTIONS = 1000
# Seconds that an idle connection is kept.
KEEP_ALIVE_S = 60.0
# Seconds to open a connection.
CONNECT_TIMEOUT_S = 10.0
# Seconds to read the remainder of a response; then its connection is closed.
DRAIN_S = 1.0
_HEADERS = {"content-type": "application/json", "accept": "text/event-stream", "accept-encoding": "identity"}
_STREAMS = ("text/event-stream", "application/vnd.amazon.eventstream")
# Some services answer a streaming request in one piece.
_JSON = "application/json"
# Of an error's body.
MAX_ERROR_BYTES = 64 * 1024
# Of a reply's stream and text: 64,000 tokens, the highest limit, at 250 bytes each.
MAX_REPLY_BYTES = 16 * 1024 * 1024
MAX_REPLY_CHARS = 1024 * 1024
# Seconds to read a small document.
DOCUMENT_S = 2.0
# Comments, Anthropic's ping events, and chunks without choices.
_KEEPS_ALIVE = re.compile(
    rb'(?:[ \r\n]+|:[^\n]*\n|event: ?ping\r?\n|data: ?\{"type": ?"ping"\}\r?\n'
    rb'|data: ?\{[^\n]*"choices": ?\[\][^\n]*\n)+'
)
_BROKEN = (aiohttp.ClientError, OSError, RuntimeError)
"""Errors of a lost connection. aiohttp raises RuntimeError after the pool was closed."""

_LOCAL = [
    ipaddress.ip_network(network)
    for network in (
        *("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"),
        *("::1/128", "fc00::/7", "fe80::/10"),
    )
]

log = structlog.get_logger(__name__)


class ReplyStream:
    """An open response stream. ``events`` are those of the last bytes.

    ``silence_s`` bounds the time between bytes, keep-alives aside; ``silent_at`` is the end of the first such
    time, by the loop's clock.
    """

    def __init__(
        self, response: aiohttp.ClientResponse, decoder: StreamDecoder, silence_s: float, silent_at: float
    ) -> None:
        self.events: list[ModelEvent] = []
        self.decoder = decoder
        self._response = response
        self._silence_s = silence_s
        self._silent_at = silent_at
        self._has_news = False  # of the last bytes
        self._error: ModelError | None = None
        self._bytes = self._chars = 0

    async def read(self) -> None:
        """Read until there are events. Raises `ModelError` if the stream ends, fails or falls silent."""
        self.events = []
        if self._error is not None:
            raise self._error
        while not self.events:
            try:
                chunk = await self._chunk()
            except TimeoutError:
                raise failure("timeout") from None
            except _BROKEN:
                raise failure("connection") from None
            self._bytes += len(chunk)
            self._decode(chunk)

    async def _chunk(self) -> bytes:
        if self._has_news:  # the socket's own limit is enough
            chunk = await self._response.content.readany()
        else:
            async with asyncio.timeout_at(self._silent_at):
                chunk = await self._response.content.readany()
        was_news, self._has_news = self._has_news, not _KEEPS_ALIVE.fullmatch(chunk)
        if was_news and not self._has_news:
            self._silent_at = asyncio.get_running_loop().time() + self._silence_s
        return chunk

    def _decode(self, chunk: bytes) -> None:
        """Decode some bytes; the next `read` raises an error after the decoded events."""
        try:
            for event in self.decoder.feed(chunk) if chunk else self.decoder.end():
                self.events.append(event)
                if not isinstance(event, Finished):
                    self._chars += len(event.text if isinstance(event, TextDelta) else event.arguments)
        except ModelError as error:
            if not chunk and error.reason == "connection" and self._response.content_type == _JSON:
                error = _no_stream()
            if not self._bytes and error.reason == "connection":
                error = EmptyReply("connection", "The model service sent an empty reply.")
            if not self.events:
                raise error from None
            self._error = error
        if self._bytes > MAX_REPLY_BYTES or self._chars > MAX_REPLY_CHARS:
            raise ModelError("protocol", "The model service's reply is too long.")

    @property
    def is_drained(self) -> bool:
        """Whether the response was read to its end and its connection is back in the pool."""
        return self._response.content.at_eof()

    async def drain(self) -> None:
        """Read the remainder of a finished response."""
        with contextlib.suppress(*_BROKEN):  # a TimeoutError is an OSError
            async with asyncio.timeout(DRAIN_S):
                while await self._response.content.readany():
                    pass

    def close(self) -> None:
        """Close the response, and its connection unless the response has ended."""
        self._response.close()


class _NotLocalError(OSError):
    pass


def is_local(address: str) -> bool:
    """Tell whether an IP address is a loopback, private or link-local one."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    ip = getattr(ip, "ipv4_mapped", None) or ip
    return any(ip in network for network in _LOCAL if network.version == ip.version)


def _local_socket(info: aiohttp.AddrInfoType) -> socket.socket:
    # Called for each address before the connection, whether a name was resolved or not.
    family, kind, protocol, _, address = info
    if not is_local(str(address[0])):
        raise _NotLocalError("not a local address")
    return socket.socket(family, kind, protocol)


class HttpPool:
    """The connections to one service; the parameters are those of `ReplyStreamer`.

    ``resolver`` replaces the system's, without a cache.
    """

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        *,
        sign: Sign | None = None,
        trust_env: bool,
        local_only: bool = False,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._sign = sign
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=MAX_CONNECTIONS,
                keepalive_timeout=KEEP_ALIVE_S,
                # The operating system's certificates.
                ssl=httpx2.create_ssl_context(trust_env=trust_env),
                resolver=resolver,
                use_dns_cache=resolver is None,
                socket_factory=_local_socket if local_only else None,
            ),
            headers={**_HEADERS, **headers},
            cookie_jar=aiohttp.DummyCookieJar(),
            # Few bytes may become gigabytes; compression was not requested.
            auto_decompress=False,
        )
        # aiohttp would look for a proxy at each request, in a thread. A proxy hides the address behind it, so
        # LOCAL_ONLY uses no proxy.
        self._proxy = _proxy_of(self._base_url) if trust_env and not local_only else None

    async def open(
        self,
        path: str,
        body: bytes,
        decoder: StreamDecoder,
        silence_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> ReplyStream:
        """Post the body and read until the first events; ``silence_s`` bounds that, and later silences.

        Raises `ModelError`.
        """
        silent_at = asyncio.get_running_loop().time() + silence_s
        try:
            async with asyncio.timeout(silence_s):
                response = await self._post(path, body, silence_s, headers or {})
        except TimeoutError:
            raise failure("timeout") from None
        reply = ReplyStream(response, decoder, silence_s, silent_at)
        try:
            # The page of a proxy or a portal has status 200 too.
            if response.content_type not in (*_STREAMS, _JSON):
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
        self, path: str, body: bytes, silence_s: float, headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=min(CONNECT_TIMEOUT_S, silence_s), sock_read=silence_s
        )
        url = URL(self._base_url + path)
        # A redirect would take the API key to another host.
        send = partial(
            self._session.post,
            url,
            data=body,
            headers={**headers, **(await self._sign(str(url), body) if self._sign is not None else {})},
            proxy=self._proxy,
            timeout=timeout,
            allow_redirects=False,
        )
        try:
            try:
                response = await send()
            except aiohttp.ClientConnectorError:
                raise
            # The service may have closed an idle connection, as llama.cpp does after each reply.
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                response = await send()
            if 200 <= response.status < 300:
                return response
            text = await _start_of(response)
        except TimeoutError:
            raise failure("timeout") from None
        except _BROKEN as error:
            if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, _NotLocalError):
                raise ModelError("protocol", "LOCAL_ONLY is set, and the model is not local.") from None
            raise failure("connection") from None
        names = ("request-id", "x-request-id", "x-amzn-requestid")
        request_id = next((response.headers[name] for name in names if name in response.headers), None)
        log.info("model answered", status=response.status, request_id=request_id)
        raise from_status(response.status, read_problem(text), response.headers)

    async def read_json(self, path: str) -> Any:
        """Get a small JSON document; None without one."""
        timeout = aiohttp.ClientTimeout(total=DOCUMENT_S)
        try:
            async with self._session.get(
                URL(self._base_url + path), proxy=self._proxy, timeout=timeout, allow_redirects=False
            ) as response:
                text = b""
                while len(text) < MAX_REPLY_CHARS and (piece := await response.content.readany()):
                    text += piece
                return msgspec.json.decode(text)
        except (*_BROKEN, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    async def aclose(self) -> None:
        """Close all connections."""
        await self._session.close()


async def _start_of(response: aiohttp.ClientResponse) -> bytes:
    """Read the start of an error's body and close the response."""
    text = b""
    try:
        while len(text) < MAX_ERROR_BYTES and (piece := await response.content.readany()):
            text += piece
    finally:
        response.close()
    return text[:MAX_ERROR_BYTES]


def _no_stream() -> ModelError:
    return ModelError("protocol", "The server at the model service's address sent no stream.")


def _proxy_of(base_url: str) -> str | None:
    url = urlsplit(base_url)
    return None if proxy_bypass(url.netloc) else getproxies().get(url.scheme)
