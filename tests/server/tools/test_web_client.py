"""Requests of tools: nothing reaches an address that is not public; sizes and times are bounded."""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import ssl
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from conductor.plugins.tools.web_client import WebError, fetch
from tests.hasty import SHORT_S, hasten
from tests.server.wires import WAIT
from tests.stand_ins.web_site import Names, site


def moved(location: str, status: int = 302) -> web.Response:
    return web.Response(status=status, headers={"Location": location})


def self_signed(folder: Path) -> Path:
    """Write a certificate that nobody signed, with its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + timedelta(days=1))
    pem, none = serialization.Encoding.PEM, serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, none)
    path = folder / "server.pem"
    path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(pem) + private)
    return path


HERE = [ipaddress.ip_network("127.0.0.0/8")]


ADDRESSES = """\
127.0.0.1:{port}/ 127.1:{port}/ 2130706433:{port}/ 0x7f000001:{port}/ 0177.0.0.1:{port}/
127.000.000.001:{port}/ localhost:{port}/ localhost.:{port}/ [::1]:{port}/ [::ffff:127.0.0.1]:{port}/
[::127.0.0.1]:{port}/
[64:ff9b::7f00:1]:{port}/ [2002:7f00:1::]:{port}/ [fe80::1]:{port}/ 10.0.0.1:{port}/ 100.64.0.1/ 224.0.0.1/
169.254.169.254/latest/meta-data/ user:password@example.com/ example.com:pw@127.0.0.1:{port}/
127.0.0.1:{port}\\@example.com/ \uff11\uff12\uff17.\uff10.\uff10.\uff11:{port}/ /path 127.0.0.1:0/
example.com:99999/ xn--a-.example.com/"""
URLS = [f"http://{address}" for address in ADDRESSES.split()]


@pytest.mark.parametrize(
    "url", [*URLS, "file:///etc/passwd", "//127.0.0.1:{port}/", "javascript:alert(1)", ""]
)
async def test_nothing_reaches_an_address_that_is_not_public(url: str) -> None:
    async with site() as server, asyncio.timeout(WAIT):
        with pytest.raises(WebError) as caught:
            await fetch("GET", url.replace("{port}", str(server.port)), timeout_s=5.0)
        assert server.asked == []
        assert not caught.value.was_sent


@pytest.mark.parametrize("same_host", [True, False])
async def test_a_name_that_resolves_to_a_local_address_is_refused(same_host: bool) -> None:
    names = Names(evil_example=["127.0.0.1"], six_example=["::ffff:127.0.0.1"])
    async with site() as server:
        for name in ("evil.example", "six.example"):
            with pytest.raises(WebError, match="not public"):
                await fetch("GET", server.url(host=name), same_host=same_host, resolver=names)
        assert server.asked == []


async def test_a_name_that_resolves_to_a_new_address_is_checked_again() -> None:
    # The address of the first lookup is allowed, the address of the redirect is not.
    names = Names(rebind_example=["127.0.0.1", "169.254.169.254"])
    async with site(lambda request: moved("/again")) as server:
        with pytest.raises(WebError, match="not public"):
            await fetch("GET", server.url(host="rebind.example"), resolver=names, allowed=HERE)
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("location", "same_host"),
    [
        ("http://169.254.169.254/", True),
        ("http://other.example/", True),
        ("https://127.0.0.1/", True),
        ("//other.example/", True),
        ("file:///x", True),
        ("http://[::1]:1/", False),
    ],
)
async def test_a_redirect_to_elsewhere_is_not_followed(location: str, same_host: bool) -> None:
    names = Names(other_example=["127.0.0.1"])
    async with site(lambda request: moved(location)) as server:
        with pytest.raises(WebError) as caught:
            await fetch("GET", server.url(), allowed=HERE, resolver=names, same_host=same_host)
        assert len(server.asked) == 1
        assert caught.value.was_sent, "the first service may have acted"


async def test_redirects_end() -> None:
    async with site(lambda request: moved("/again")) as server:
        with pytest.raises(WebError, match="more than 5 times"):
            await fetch("GET", server.url(), allowed=HERE)
        assert len(server.asked) == 6


async def test_a_form_that_was_sent_is_not_sent_again_after_a_redirect() -> None:
    def answer(request: web.Request) -> Any:
        return moved("/done", 303) if request.path == "/" else {"done": True}

    async with site(answer) as server:
        await fetch("POST", server.url(), body=b"{}", allowed=HERE)
        assert [(method, body) for method, _, _, body in server.asked] == [("POST", "{}"), ("GET", "")]


async def test_a_long_a_slow_and_a_compressed_answer_are_limited() -> None:
    asked = asyncio.Event()

    async def answer(request: web.Request) -> Any:
        if request.path == "/slow":
            asked.set()
            await asyncio.Event().wait()
        if request.path == "/bomb":
            return web.Response(body=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})
        return web.Response(body=b"x" * 100_000)

    async with site(answer) as server:
        response = await fetch("GET", server.url(), max_bytes=1_000, allowed=HERE)
        assert (len(response.body), response.cut) == (1_000, True)
        with pytest.raises(WebError, match="in time") as caught:
            slow = asyncio.create_task(fetch("GET", server.url("/slow"), timeout_s=SHORT_S, allowed=HERE))
            await asyncio.wait_for(asked.wait(), WAIT)
            hasten()
            await slow
        assert caught.value.was_sent
        with pytest.raises(WebError, match="compressed"):
            await fetch("GET", server.url("/bomb"), allowed=HERE)


@pytest.mark.parametrize(
    ("encoding", "pack", "status"),
    [("gzip", gzip.compress, 200), ("gzip", gzip.compress, 500), ("deflate", zlib.compress, 200)],
)
async def test_a_compressed_answer_is_unpacked_up_to_its_limit(
    encoding: str, pack: Callable[[bytes], bytes], status: int
) -> None:
    bomb = pack(bytes(50_000_000))

    async def answer(request: web.Request) -> Any:
        body = bomb if request.path == "/bomb" else pack("drei Äpfel".encode())
        return web.Response(status=status, body=body, headers={"Content-Encoding": encoding})

    async with site(answer) as server:
        assert (await fetch("GET", server.url(), allowed=HERE)).text == "drei Äpfel"
        response = await fetch("GET", server.url("/bomb"), max_bytes=10_000, allowed=HERE)
        assert (response.body, response.cut) == (bytes(10_000), True)


async def test_a_certificate_that_is_not_valid_is_named(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(self_signed(tmp_path))
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(
            WebError, match=r"its certificate is not valid \(self[- ]signed certificate\)"
        ) as caught:
            await fetch("POST", f"https://127.0.0.1:{port}/", allowed=HERE)
        assert not caught.value.was_sent


@pytest.mark.parametrize("charset", ["punycode", "idna", "undefined", "hex", "no-such", "unicode_escape"])
async def test_an_unusual_charset_is_read_as_utf8(charset: str) -> None:
    def answer(request: web.Request) -> Any:
        return web.Response(body=b"a-\xc3\xb6", headers={"Content-Type": f"text/plain; charset={charset}"})

    async with site(answer) as server:
        assert (await fetch("GET", server.url(), allowed=HERE)).text == "a-ö"


async def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site() as proxy, site() as server:
        monkeypatch.setenv("http_proxy", proxy.url())
        monkeypatch.setenv("HTTP_PROXY", proxy.url())
        await fetch("GET", server.url(), allowed=HERE)
        assert (len(server.asked), proxy.asked) == (1, [])


async def test_a_server_that_hangs_up_may_have_acted() -> None:
    async def hang_up(request: web.Request) -> Any:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with site(hang_up) as server:
        with pytest.raises(WebError) as caught:
            await fetch("POST", server.url(), body=b"{}", allowed=HERE)
        assert caught.value.was_sent


@pytest.mark.parametrize(
    "head",
    ['<meta charset="windows-1251">', '<meta http-equiv="x" content="text/html; charset=windows-1251">'],
)
async def test_a_page_may_name_its_charset_itself(head: str) -> None:
    body = f"<html><head>{head}</head><body>Привет</body></html>".encode("cp1251")

    def answer(request: web.Request) -> Any:
        return web.Response(body=body, headers={"Content-Type": "text/html"})

    async with site(answer) as server:
        assert "Привет" in (await fetch("GET", server.url(), allowed=HERE)).text
