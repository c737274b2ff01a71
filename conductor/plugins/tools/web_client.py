"""HTTP requests of tools, to permitted addresses only, by the process's HTTP client."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx2
from aiohttp.abc import AbstractResolver

from conductor.plugins.addresses import Network, may_connect
from conductor.plugins.http_client import ForbiddenAddressError, HttpClient

# For services that the operator configures.
EVERYWHERE: Sequence[Network] = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))
MAX_REDIRECTS = 5
# Each connection serves one request, so that its address is checked each time.
_HEADERS = {"Accept-Encoding": "identity", "Connection": "close"}
# Charsets of the web. Of Python's other codecs some take quadratic time, such as punycode.
_CHARSET = re.compile(r"(?:utf|us-ascii|ascii|iso|latin|windows|cp|koi8|shift|euc|gb|big5|mac)[\w-]*\Z", re.I)


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

    The address is checked when a connection opens, so a name cannot change in between. There is no proxy, no
    cookie and no second try. Raises `WebError`.
    """
    client = HttpClient(
        trust_env=False,
        permits=lambda address: may_connect(address, allowed),
        resolver=resolver,
        resends=False,
    )
    origin: tuple[str, str, int | None] | None = None
    was_redirected = False
    try:
        async with asyncio.timeout(timeout_s), client:
            for _ in range(MAX_REDIRECTS + 1):
                target = parse_url(url)
                origin = origin or _origin(target)
                if same_host and _origin(target) != origin:
                    raise WebError(f"It redirects to another host, {target.host}.", was_sent=True)
                request = httpx2.Request(
                    method, target, headers={**_HEADERS, **(headers or {})}, content=body
                )
                response = await _send(client, request, max_bytes)
                if isinstance(response, WebResponse):
                    return response
                was_redirected = True
                url = str(target.join(response.headers["Location"]))
                if response.status_code == 303 or (response.status_code in (301, 302) and method == "POST"):
                    method, body = "GET", None
    except WebError as error:
        error.was_sent = error.was_sent or was_redirected
        raise
    except TimeoutError:
        raise WebError("It did not answer in time.", was_sent=True) from None
    except httpx2.InvalidURL:  # of a redirect
        raise WebError("It redirects to an invalid address.", was_sent=True) from None
    raise WebError(f"It redirects more than {MAX_REDIRECTS} times.", was_sent=True)


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


async def _send(client: HttpClient, request: httpx2.Request, max_bytes: int) -> WebResponse | httpx2.Response:
    """Make one request. A redirect is returned as it is."""
    try:
        response = await client.transport.handle_async_request(request)
        async with contextlib.aclosing(response):
            if response.has_redirect_location:
                return response
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise WebError("The server sent a compressed answer, which is not supported.", was_sent=True)
            content = bytearray()
            async for chunk in response.aiter_raw():
                content += chunk
                if len(content) > max_bytes:
                    break
    except ForbiddenAddressError:
        message = f"{request.url.host} cannot be reached: its address is not public."
        raise WebError(message, was_sent=False) from None
    except httpx2.ConnectError:
        raise WebError(f"{request.url.host} cannot be reached: no connection.", was_sent=False) from None
    except httpx2.TimeoutException:
        raise WebError("It did not answer in time.", was_sent=True) from None
    except (httpx2.TransportError, ValueError) as error:
        raise WebError(f"The request failed: {type(error).__name__}.", was_sent=True) from None
    return WebResponse(
        response.status_code,
        str(request.url),
        response.headers.get("Content-Type", "application/octet-stream").partition(";")[0].strip().lower(),
        response.charset_encoding or "utf-8",
        bytes(content[:max_bytes]),
        cut=len(content) > max_bytes,
    )
