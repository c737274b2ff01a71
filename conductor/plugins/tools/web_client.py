"""HTTP requests of tools, to permitted addresses only; importing this module imports aiohttp."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urljoin, urlsplit

import aiohttp
import httpx2
from aiohttp.abc import AbstractResolver
from yarl import URL

from conductor.tools.addresses import Network, may_connect

# For services that the operator configures.
EVERYWHERE: Sequence[Network] = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))
MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# Charsets of the web. Of Python's other codecs some take quadratic time, such as punycode.
_CHARSET = re.compile(r"(?:utf|us-ascii|ascii|iso|latin|windows|cp|koi8|shift|euc|gb|big5|mac)[\w-]*\Z", re.I)
_CHUNK = 16_384


class WebError(Exception):
    """A request that failed; the message is for the model. ``was_sent``: the service may have acted on it."""

    def __init__(self, message: str, *, was_sent: bool) -> None:
        super().__init__(message)
        self.was_sent = was_sent


@dataclass(frozen=True, slots=True)
class WebResponse:
    """A response. ``url`` is that after redirects; ``cut``: the body is longer."""

    status: int
    url: str
    content_type: str
    charset: str
    body: bytes
    cut: bool

    @property
    def text(self) -> str:
        """The body as text; bytes that are not in the charset are replaced."""
        try:
            return self.body.decode(self.charset if _CHARSET.match(self.charset) else "utf-8", "replace")
        except LookupError:
            return self.body.decode("utf-8", "replace")


async def fetch(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    timeout_s: float = 20.0,
    max_bytes: int = 1_048_576,
    same_host: bool = True,
    allowed: Sequence[Network] = (),
    resolver: AbstractResolver | None = None,
) -> WebResponse:
    """Make a request and follow its redirects, with ``same_host`` to the same origin only.

    The address is checked when a connection opens, so a name cannot change in between. There is no proxy and
    no cookie. Raises `WebError`.
    """

    def permitted(info: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, address = info
        if not may_connect(str(address[0]), allowed):
            raise _ForbiddenError("its address is not public")
        return socket.socket(family, kind, protocol)

    connector = aiohttp.TCPConnector(
        ssl=_certificates(),
        resolver=resolver,
        use_dns_cache=False,
        socket_factory=permitted,
        force_close=True,
    )
    session = aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )
    origin = None
    try:
        async with asyncio.timeout(timeout_s), session:
            for _ in range(MAX_REDIRECTS + 1):
                target = parse_url(url)
                origin = origin or target.origin()
                if same_host and target.origin() != origin:
                    raise WebError(f"It redirects to another host, {target.host}.", was_sent=True)
                response = await _request(session, method, target, headers or {}, body, max_bytes)
                if isinstance(response, WebResponse):
                    return response
                url = urljoin(str(target), response.location)
                if response.status == 303 or (response.status in (301, 302) and method == "POST"):
                    method, body = "GET", None
    except TimeoutError:
        raise WebError("It did not answer in time.", was_sent=True) from None
    raise WebError(f"It redirects more than {MAX_REDIRECTS} times.", was_sent=True)


def parse_url(url: str) -> URL:
    """Read a URL. Raises `WebError` if it is not http or https, or holds credentials."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise WebError("The address must begin with https:// or http:// and a host.", was_sent=False)
    if parts.username is not None or parts.password is not None:
        raise WebError("The address contains a user name or a password.", was_sent=False)
    try:
        target = URL(url)
    except ValueError:
        target = URL()
    # The connection uses this parser's result; it must agree with the first parser.
    if target.scheme != parts.scheme or not target.host or target.user is not None:
        raise WebError("The address has an invalid host.", was_sent=False)
    return target


class _ForbiddenError(OSError):
    pass


@dataclass(frozen=True, slots=True)
class _Redirect:
    status: int
    location: str


async def _request(
    session: aiohttp.ClientSession,
    method: str,
    url: URL,
    headers: Mapping[str, str],
    body: bytes | None,
    max_bytes: int,
) -> WebResponse | _Redirect:
    try:
        async with session.request(
            method,
            url,
            headers={"Accept-Encoding": "identity", **headers},
            data=body,
            allow_redirects=False,
        ) as response:
            location = response.headers.get("Location")
            if response.status in _REDIRECTS and location is not None:
                return _Redirect(response.status, location)
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise WebError("The server sent a compressed answer, which is not supported.", was_sent=True)
            content = bytearray()
            while len(content) <= max_bytes and (chunk := await response.content.read(_CHUNK)):
                content += chunk
            return WebResponse(
                response.status,
                str(url),
                response.content_type,
                response.charset or "utf-8",
                bytes(content[:max_bytes]),
                cut=len(content) > max_bytes,
            )
    except (aiohttp.ClientConnectorError, _ForbiddenError) as error:
        cause = getattr(error, "os_error", error)
        reason = "its address is not public" if isinstance(cause, _ForbiddenError) else "no connection"
        raise WebError(f"{url.host} cannot be reached: {reason}.", was_sent=False) from None
    except TimeoutError:
        raise WebError("It did not answer in time.", was_sent=True) from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        was_sent = not isinstance(error, aiohttp.InvalidURL)
        raise WebError(f"The request failed: {type(error).__name__}.", was_sent=was_sent) from None


@lru_cache(maxsize=1)
def _certificates() -> ssl.SSLContext:
    # The certificates that the operating system trusts; making it takes 20 ms.
    return httpx2.create_ssl_context(trust_env=False)
