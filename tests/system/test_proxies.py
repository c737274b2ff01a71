"""HAProxy, nginx and Caddy in front of a server, with the files of docs/deploy.md.

Without a proxy its test is skipped. ``.ci/run`` installs them and sets ``CI_REQUIRE_PROXIES=1``, with which a
skip is a failure.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import product
from pathlib import Path

import pytest

from conductor.app import make_services, running
from conductor.client import connect
from conductor.plugins.models.demo import DemoProvider
from conductor.server.listener import Listener
from conductor.settings import load_settings
from tests.app import App
from tests.conftest import ROOT
from tests.server.test_one_port import KEY, OPENED, REQUESTS, TOKEN, serving, statuses
from tests.server.wires import WAIT, get
from tests.services.ports import free_port
from tests.stand_ins.programs import program
from tests.system.clients.programs import started

PATHS = os.pathsep.join((os.defpath, "/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/local/bin"))
# A proxy refuses the other two by itself.
PASSED = {name: REQUESTS[name] for name in REQUESTS.keys() - {"no HTTP", "odd expectation"}}
NGINX = """\
daemon off;
pid {folder}/pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {file}
}}
"""


def documented(name: str, *replacements: tuple[str, str]) -> str:
    """Read a proxy's file of the document, and replace its addresses and its certificate."""
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    match = re.search(rf"{name}[^`]*(?:`[^`\n]*`[^`]*)*```\n(.*?)```", page, re.DOTALL)
    assert match
    file = match[1]
    for pattern, text in replacements:
        file, count = re.subn(pattern, text, file, flags=re.MULTILINE)
        assert count, pattern
    return file


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate of localhost; gives its file, and its key's."""
    openssl, key, path = (
        program("PROXIES", "openssl", path=PATHS),
        folder / "key.pem",
        folder / "localhost.pem",
    )
    make = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    make += ["-keyout", str(key), "-out", str(path), "-days", "2", "-subj", "/CN=localhost"]
    make += ["-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(make, check=True, capture_output=True, timeout=WAIT, stdin=subprocess.DEVNULL)
    return path, key


def command_with_tls(name: str, folder: Path, port: int, server: int) -> list[str]:
    """Write the file of a proxy as it stands in the document, but for addresses and certificate."""
    executable, config = program("PROXIES", name, path=PATHS), folder / "config"
    to_server = (r"127\.0\.0\.1:8080", f"127.0.0.1:{server}")
    path, key = certificate(folder)
    match name:
        case "caddy":
            site = (r"^voice\.example\.com \{", f"https://localhost:{port} {{\ntls {path} {key}")
            options = "{\nadmin off\nauto_https disable_redirects\n}\n"
            config.write_text(options + documented("Caddy", to_server, site))
            return [executable, "run", "--adapter", "caddyfile", "--config", str(config)]
        case "nginx":
            own = [(r"443 ssl", f"127.0.0.1:{port} ssl"), (r"voice\.example\.com;", "localhost;")]
            own += [(r"/etc/ssl/voice\S+crt", str(path)), (r"/etc/ssl/private/\S+key", str(key))]
            config.write_text(NGINX.format(folder=folder, file=documented("nginx", to_server, *own)))
            return [executable, "-p", str(folder), "-c", str(config)]
        case _:
            both = folder / "both.pem"
            both.write_text(path.read_text() + key.read_text())
            own = [(r":443 ssl crt \S+", f"127.0.0.1:{port} ssl crt {both}")]
            config.write_text(documented("HAProxy", to_server, *own))
            return [executable, "-db", "-f", str(config)]


def command(name: str, folder: Path, port: int, server: int) -> list[str]:
    """Write the file of a proxy that listens on a port; gives the command that runs it."""
    executable, config = program("PROXIES", name, path=PATHS), folder / "config"
    to_server = (r"127\.0\.0\.1:8080", f"127.0.0.1:{server}")
    match name:
        case "caddy":
            site = (r"^voice\.example\.com", f"http://localhost:{port}")
            config.write_text(f"{{\nadmin off\n}}\n{documented('Caddy', to_server, site)}")
            return [executable, "run", "--adapter", "caddyfile", "--config", str(config)]
        case "nginx":
            plain = [(r"443 ssl", f"127.0.0.1:{port}"), (r"^ *ssl_\w+ .*\n", "")]
            config.write_text(NGINX.format(folder=folder, file=documented("nginx", to_server, *plain)))
            return [executable, "-p", str(folder), "-c", str(config)]
        case _:
            plain = [(r":443 ssl crt \S+", f"127.0.0.1:{port}")]
            config.write_text(documented("HAProxy", to_server, *plain))
            return [executable, "-db", "-f", str(config)]


def add_server(config: Path, first: str, other: str) -> None:
    """Add the address of another server to a proxy's file, as the document says."""

    def add(line: re.Match[str]) -> str:
        if "reverse_proxy" in line[0]:
            return line[0].replace(first, f"{first} {other}")
        return f"{line[0]}\n{line[0].replace(first, other).replace(' one ', ' two ')}"

    file, count = re.subn(rf"^.*{re.escape(first)}.*$", add, config.read_text(), flags=re.MULTILINE)
    assert count == 1
    config.write_text(file)


@asynccontextmanager
async def proxied(name: str, folder: Path, server: int, *others: int) -> AsyncIterator[int]:
    """Run a proxy in front of servers' ports; yields the port of the proxy once it passes requests."""
    port = free_port()
    run = command(name, folder, port, server)
    for other in others:
        add_server(folder / "config", f"127.0.0.1:{server}", f"127.0.0.1:{other}")
    async with started(run, environment={"HOME": str(folder), "XDG_DATA_HOME": str(folder)}):
        async with asyncio.timeout(2 * WAIT):
            while True:
                try:
                    if await statuses(port, [get("/readyz")]) == [200]:
                        break
                except OSError:
                    await asyncio.sleep(0.05)  # another process: there is nothing to wait on
        yield port


@pytest.mark.extended
@pytest.mark.parametrize("name", ["haproxy", "nginx", "caddy"])
async def test_a_pooling_proxy_gets_every_request_answered_by_its_own_server(
    name: str, tmp_path: Path
) -> None:
    async with serving() as server, proxied(name, tmp_path, server) as port, asyncio.timeout(8 * WAIT):
        for pair in product(PASSED, repeat=2):
            if pair[0] not in OPENED:
                found = await statuses(port, [PASSED[each][0] for each in pair])
                assert found == [PASSED[each][1] for each in pair], pair


@pytest.mark.extended
@pytest.mark.parametrize("name", ["haproxy", "nginx", "caddy"])
async def test_apps_connect_and_talk_through_a_proxy_beside_requests_of_the_api(
    name: str, tmp_path: Path
) -> None:
    async with serving() as server, proxied(name, tmp_path, server) as port, asyncio.timeout(8 * WAIT):
        for number in range(12):
            assert await statuses(port, [get("/v1/sessions", KEY), get("/v1/none")]) == [200, 404]
            url, headers = f"ws://localhost:{port}/ws", {"Authorization": f"Bearer {TOKEN}"}
            async with App(url, f"s-{number}", headers=headers) as app:
                await app.ask("Hello.")
                assert await statuses(port, [get("/sessions"), get("/v1/sessions", KEY)]) == [200, 200]


@pytest.mark.extended
@pytest.mark.parametrize("name", ["haproxy", "nginx", "caddy"])
async def test_an_app_talks_through_tls_by_the_file_of_the_document(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    async with serving() as server, asyncio.timeout(8 * WAIT):
        run = command_with_tls(name, tmp_path, port, server)
        trusted = str(tmp_path / "localhost.pem")
        monkeypatch.setenv("SSL_CERT_FILE", trusted)
        context = ssl.create_default_context(cafile=trusted)
        async with started(run, environment={"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}):
            while True:
                try:
                    _, writer = await asyncio.open_connection("localhost", port, ssl=context)
                    writer.close()
                    break
                except OSError:
                    await asyncio.sleep(0.05)  # another process: there is nothing to wait on
            async with connect(f"wss://localhost:{port}/ws", token=TOKEN) as client:
                assert (await (await client.say("Hello."))).text


@asynccontextmanager
async def node(port: int) -> AsyncIterator[Listener]:
    settings = load_settings(None, port=port, auth_tokens=TOKEN)
    async with running(settings, make_services(settings, DemoProvider(0.0))) as listener:
        await listener.ready.wait()
        yield listener


@pytest.mark.extended
@pytest.mark.parametrize("name", ["haproxy", "nginx", "caddy"])
async def test_nodes_restart_one_after_the_other_and_no_connection_fails(name: str, tmp_path: Path) -> None:
    async def talks() -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with App(f"ws://localhost:{port}/ws", "s-1", headers=headers) as app:
            await app.ask("what is 6 times 7?")

    ports = (free_port(), free_port())
    async with AsyncExitStack() as first, AsyncExitStack() as second, asyncio.timeout(8 * WAIT):
        await first.enter_async_context(node(ports[0]))
        await second.enter_async_context(node(ports[1]))
        async with proxied(name, tmp_path, *ports) as port:
            await first.aclose()
            for _ in range(8):
                await talks()
            again = await first.enter_async_context(node(ports[0]))
            # nginx does not ask whether it is back.
            while name != "nginx" and not again.registry.sessions:
                await talks()
            await second.aclose()
            for _ in range(4):
                await talks()
