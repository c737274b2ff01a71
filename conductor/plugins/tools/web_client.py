"""HTTP requests of tools, to permitted addresses only, by the process's HTTP client."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx2
from aiohttp.abc import AbstractResolver

from conductor.plugins.addresses import Network, may_connect
from conductor.plugins.http_client import CertificateError, ForbiddenAddressError, HttpClient
from conductor.tools.outcomes import Fate, fate_of_status

# For services that the operator configures.
EVERYWHERE: Sequence[Network] = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))
MAX_REDIRECTS = 5
# Each connection serves one request, so that its address is checked each time.
_HEADERS = {"Accept-Encoding": "identity", "Connection": "close"}
# Compressed although no compression was requested, and their first bytes.
_COMPRESSED = ("gzip", "x-gzip", "deflate")
_GZIP = b"\x1f\x8b"
_EITHER = zlib.MAX_WBITS + 32  # gzip or zlib, by the header
# Charsets of the web. Of Python's other codecs some take quadratic time, such as punycode.
_CHARSET = re.compile(r"(?:utf|us-ascii|ascii|iso|latin|windows|cp|koi8|shift|euc|gb|big5|mac)[\w-]*\Z", re.I)


# Where a page names its charset, and the bytes in which browsers look for it.
_META = re.compile(rb"""<meta[^>]{1,200}charset\s*=\s*["']?\s*([a-z0-9_-]{2,40})""", re.IGNORECASE)
_META_BYTES = 1_024


class WebError(Exception):
    """A request that failed; the message is for the model.

    ``was_sent``: the service may have acted on it. ``status``: the service answered, and only its answer's
    body cannot be read.
    """

    def __init__(self, message: str, *, was_sent: bool, status: int | None = None) -> None:
        super().__init__(message)
        self.was_sent = was_sent
        self.status = status

    @property
    def fate(self) -> Fate:
        """Return whether the request was carried out."""
        if self.status is not None:
            return fate_of_status(self.status)
        return "unknown" if self.was_sent else "not_run"


@dataclass(slots=True)
class _Exchange:
    """What has happened of a request: a byte was sent, also of one before a redirect; it was answered."""

    was_sent: bool = False
    status: int | None = None

    def sent(self) -> None:
        self.was_sent = True

    def failed(self, message: str) -> WebError:
        return WebError(message, was_sent=self.was_sent, status=self.status)


@dataclass(frozen=True, slots=True)
class WebResponse:
    """A response. ``url`` is that after redirects, ``charset`` the header's; ``cut``: the body is longer."""

    status: int
    url: str
    content_type: str
    charset: str
    body: bytes
    cut: bool

    @property
    def text(self) -> str:
        """The body as text; bytes that are not in the charset are replaced."""
        charset = self.charset
        if not charset and "html" in self.content_type and (named := _META.search(self.body[:_META_BYTES])):
            charset = named[1].decode()
        try:
            return self.body.decode(charset if _CHARSET.match(charset) else "utf-8", "replace")
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

    The address is checked when a connection opens, so a name cannot change in between. There is no proxy, no
    cookie and no second try. Raises `WebError`.
    """
    client = HttpClient(
        trust_env=False,
        permits=lambda address: may_connect(address, allowed),
        resolver=resolver,
        resends=False,
        reports_sent=True,
    )
    origin: tuple[str, str, int | None] | None = None
    exchange = _Exchange()
    try:
        async with asyncio.timeout(timeout_s), client:
            for _ in range(MAX_REDIRECTS + 1):
                target = parse_url(url)
                origin = origin or _origin(target)
                if same_host and _origin(target) != origin:
                    raise exchange.failed(f"It redirects to another host, {target.host}.")
                request = httpx2.Request(
                    method,
                    target,
                    headers={**_HEADERS, **(headers or {})},
                    content=body,
                    extensions={"on_sent": exchange.sent},
                )
                response = await _send(client, request, max_bytes, exchange)
                if isinstance(response, WebResponse):
                    return response
                url = str(target.join(response.headers["Location"]))
                if response.status_code == 303 or (response.status_code in (301, 302) and method == "POST"):
                    method, body = "GET", None
    except WebError as error:
        error.was_sent = error.was_sent or exchange.was_sent  # of the address of a redirect
        raise
    except TimeoutError:
        raise exchange.failed("It did not answer in time.") from None
    except httpx2.InvalidURL:  # of a redirect
        raise exchange.failed("It redirects to an invalid address.") from None
    raise exchange.failed(f"It redirects more than {MAX_REDIRECTS} times.")


def parse_url(url: str) -> httpx2.URL:
    """Read a URL. Raises `WebError` if it is not http or https, or holds credentials."""
    try:
        target = httpx2.URL(url)
        is_valid = target.scheme in ("http", "https") and bool(target.host) and (target.port or 80) < 65_536
    except (httpx2.InvalidURL, UnicodeError):  # of a host's letters
        is_valid = False
    if not is_valid:
        raise WebError("The address must begin with https:// or http:// and a host.", was_sent=False)
    if target.userinfo:
        raise WebError("The address contains a user name or a password.", was_sent=False)
    return target


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _unpacked(content: bytearray, max_bytes: int) -> bytearray:
    """Unpack the first ``max_bytes`` of gzip or zlib data. Raises `zlib.error`."""
    unpacker = zlib.decompressobj(wbits=_EITHER)
    data = unpacker.decompress(content, max_bytes)
    if not data and content and not unpacker.eof:
        raise zlib.error("the data has no beginning")
    return bytearray(data)


async def _send(
    client: HttpClient, request: httpx2.Request, max_bytes: int, exchange: _Exchange
) -> WebResponse | httpx2.Response:
    """Make one request. A redirect is returned as it is."""
    try:
        response = await client.transport.handle_async_request(request)
        async with contextlib.aclosing(response):
            if response.has_redirect_location:
                return response
            exchange.status = response.status_code
            encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
            if encoding not in ("identity", *_COMPRESSED):
                raise exchange.failed("The server sent a compressed answer, which is not supported.")
            content = bytearray()
            async for chunk in response.aiter_raw():
                content += chunk
                if len(content) > max_bytes:
                    break
            # The client takes the header away from an error's answer.
            if encoding in _COMPRESSED or (response.status_code >= 300 and content.startswith(_GZIP)):
                content = _unpacked(content, max_bytes + 1)
    except ForbiddenAddressError:
        raise exchange.failed(f"{request.url.host} cannot be reached: its address is not public.") from None
    except CertificateError as error:
        reason = f"its certificate is not valid ({error})"
        raise exchange.failed(f"{request.url.host} cannot be reached: {reason}.") from None
    except httpx2.ConnectError:
        raise exchange.failed(f"{request.url.host} cannot be reached: no connection.") from None
    except httpx2.TimeoutException:
        raise exchange.failed("It did not answer in time.") from None
    except zlib.error:
        raise exchange.failed("The server's compressed answer cannot be read.") from None
    except (httpx2.TransportError, ValueError) as error:
        raise exchange.failed(f"The request failed: {type(error).__name__}.") from None
    return WebResponse(
        response.status_code,
        str(request.url),
        response.headers.get("Content-Type", "application/octet-stream").partition(";")[0].strip().lower(),
        response.charset_encoding or "",
        bytes(content[:max_bytes]),
        cut=len(content) > max_bytes,
    )
