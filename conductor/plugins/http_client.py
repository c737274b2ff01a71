"""The HTTP client of all services: httpx2 over aiohttp, which takes half the CPU of httpx2's own transport.

Importing aiohttp takes up to half a second: import this module in a function.
"""

from __future__ import annotations

import io
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx2
from aiohttp.abc import AbstractResolver
from yarl import URL

from conductor.settings import is_loopback

# Connections: one for each reply at a time.
MAX_CONNECTIONS = 1000
# Seconds that an idle connection is kept.
KEEP_ALIVE_S = 60.0
# Bytes of a request above which aiohttp warns.
_LONG_BODY = 1 << 20
# Of an error's body.
MAX_ERROR_BYTES = 64 * 1024


@lru_cache(maxsize=256)
def _url(text: str) -> URL:
    return URL(text, encoded=True)  # as it was signed


class ForbiddenAddressError(httpx2.ConnectError):
    """The client's ``permits`` refuses the address."""


class CertificateError(httpx2.ConnectError):
    """The service's certificate is not valid; the text is the reason."""


class _ForbiddenAddress(OSError):
    pass


def _permitted_socket(permits: Callable[[str], bool], info: aiohttp.AddrInfoType) -> socket.socket:
    # Called for each address before the connection, whether a name was resolved or not.
    family, kind, protocol, _, address = info
    if not permits(str(address[0])):
        raise _ForbiddenAddress("not a permitted address")
    return socket.socket(family, kind, protocol)


class AiohttpTransport(httpx2.AsyncBaseTransport):
    """Sends httpx2's requests through aiohttp's pool.

    Bodies are neither decompressed nor longer than `MAX_ERROR_BYTES` if the status is an error. The
    response's extension ``body`` is its `RawBody`. A request on a connection that the service closed
    meanwhile is sent once more if the client ``resends``. With ``trust_env`` the environment's proxy and
    certificate variables apply, no proxy to loopback. With ``permits`` a connection is opened only to an IP
    address for which it is true, and never through a proxy. ``resolver`` replaces the system's, without a
    cache. With ``reports_sent`` a request's extension ``on_sent``, a function, is called before its first
    byte is sent.
    """

    def __init__(
        self,
        *,
        trust_env: bool = True,
        permits: Callable[[str], bool] | None = None,
        resolver: AbstractResolver | None = None,
        resends: bool = True,
        reports_sent: bool = False,
    ) -> None:
        self._resends = resends
        self._traces = [_sent_trace()] if reports_sent else []
        # aiohttp would look for a proxy at each request, in a thread. A proxy hides the address behind it.
        self._proxy = lru_cache(maxsize=256)(_proxy_of) if trust_env and permits is None else lambda _: None
        self._ssl = _certificates(trust_env)
        self._connector_options: dict[str, Any] = {
            "resolver": resolver,
            "use_dns_cache": resolver is None,
            "socket_factory": partial(_permitted_socket, permits) if permits else None,
        }
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; its body must be bytes. Raises `httpx2.TransportError`."""
        if self._is_closed:
            raise httpx2.ConnectError("the client is closed")
        url = _url(str(request.url))
        limits = request.extensions.get("timeout", {})
        content = request.content
        send = partial(
            self._started().request,
            request.method,
            url,
            headers=[(name.decode("ascii"), value.decode("latin-1")) for name, value in request.headers.raw],
            proxy=self._proxy(url.origin()),
            timeout=aiohttp.ClientTimeout(
                total=None,
                connect=limits.get("pool"),
                sock_connect=limits.get("connect"),
                sock_read=limits.get("read"),
            ),
            allow_redirects=False,
            trace_request_ctx=request.extensions.get("on_sent"),
        )
        with _mapped_errors():
            try:
                response = await send(data=_body(content))
            except (aiohttp.ClientConnectorError, TimeoutError):
                raise
            # The service may have closed an idle connection, as llama.cpp does after each reply.
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if not self._resends:
                    raise
                response = await send(data=_body(content))
        is_error = response.status >= 300
        headers = httpx2.Headers(response.raw_headers)
        if is_error:
            headers.pop("content-encoding", None)
        body = RawBody(response, MAX_ERROR_BYTES if is_error else None)
        return httpx2.Response(
            response.status, headers=headers, stream=body, request=request, extensions={"body": body}
        )

    def _started(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=MAX_CONNECTIONS,
                    keepalive_timeout=KEEP_ALIVE_S,
                    ssl=self._ssl,
                    **self._connector_options,
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                trace_configs=self._traces,
                # Few bytes may become gigabytes; compression was not requested.
                auto_decompress=False,
                skip_auto_headers=("Accept-Encoding", "Content-Type"),
            )
        return self._session

    async def aclose(self) -> None:
        """Close all connections."""
        self._is_closed = True
        if self._session is not None:
            await self._session.close()


def _sent_trace() -> aiohttp.TraceConfig:
    async def note(session: object, context: Any, params: object) -> None:
        if context.trace_request_ctx is not None:
            context.trace_request_ctx()

    trace = aiohttp.TraceConfig()
    trace.on_request_headers_sent.append(note)
    return trace


def _body(content: bytes) -> bytes | io.BytesIO | None:
    # aiohttp writes a long body, such as one with images, in pieces only from a file.
    return io.BytesIO(content) if len(content) > _LONG_BODY else content or None


class HttpClient(httpx2.AsyncClient):
    """A client without redirects and cookies; the parameters as in `AiohttpTransport`.

    A request given to its ``transport`` needs less CPU than one by `httpx2.AsyncClient.send`.
    """

    def __init__(self, **options: Any) -> None:
        self.transport = AiohttpTransport(**options)
        jar = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
        super().__init__(transport=self.transport, cookies=jar, follow_redirects=False, trust_env=False)


class RawBody(httpx2.AsyncByteStream):
    """The raw bytes of a response as they arrive, at most ``limit``."""

    def __init__(self, response: aiohttp.ClientResponse, limit: int | None = None) -> None:
        self._response = response
        self._limit = limit

    async def read(self) -> bytes:
        """Return the bytes that have arrived, after a wait if there are none; empty at the end."""
        with _mapped_errors():
            return await self._response.content.readany()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._limit
        while (left is None or left > 0) and (chunk := await self.read()):
            if left is not None:
                chunk = chunk[:left]
                left -= len(chunk)
            yield chunk

    @property
    def is_at_end(self) -> bool:
        """Whether all was read, so that the connection is back in the pool."""
        return self._response.content.at_eof()

    def close(self) -> None:
        """Close the response, and its connection unless the response has ended."""
        self._response.close()

    async def aclose(self) -> None:
        """Do as `close`."""
        self.close()


@lru_cache(maxsize=2)
def _certificates(trust_env: bool) -> ssl.SSLContext:
    # Those that the operating system trusts; the context takes 20 ms.
    return httpx2.create_ssl_context(trust_env=trust_env)


@contextmanager
def _mapped_errors() -> Iterator[None]:
    try:
        yield
    except aiohttp.ClientConnectorCertificateError as error:
        invalid = error.certificate_error
        reason = getattr(invalid, "verify_message", "") or type(invalid).__name__
        raise CertificateError(reason) from error
    except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
        # A refused connection is no timeout, whatever class it has.
        cause = getattr(error, "os_error", None)
        kind = ForbiddenAddressError if isinstance(cause, _ForbiddenAddress) else httpx2.ConnectError
        raise kind(str(error)) from error
    except TimeoutError as error:
        raise httpx2.ReadTimeout(str(error)) from error
    # aiohttp raises RuntimeError after the pool was closed.
    except (aiohttp.ClientError, OSError, RuntimeError) as error:
        raise httpx2.NetworkError(str(error)) from error


def _proxy_of(origin: URL) -> str | None:
    if is_loopback(origin.host or ""):
        return None  # a proxy's loopback is another machine
    return None if proxy_bypass(origin.authority) else getproxies().get(origin.scheme)
