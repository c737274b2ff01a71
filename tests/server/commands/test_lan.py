"""``serve --lan``: the address, the token and the QR code."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from pathlib import Path

import pytest

from conductor.commands import banner
from conductor.errors import SettingsError
from tests.app import App
from tests.server.test_cli import START, process


@pytest.mark.parametrize(
    "address",
    ["192.168.0.1", "10.255.1.2", "172.16.0.1", "172.31.255.1", "169.254.7.7", "fd00::5"],
)
def test_an_address_of_a_local_network_is_accepted(address: str) -> None:
    assert banner.private_address(address) == address


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "172.15.0.1", "172.32.0.1", "100.64.0.1", "127.0.0.1", "0.0.0.0", "::1", "::", "2600::1"],
)
def test_a_public_or_local_only_address_is_refused(address: str) -> None:
    with pytest.raises(SettingsError) as caught:
        banner.private_address(address)
    assert address in str(caught.value) and "\n" not in str(caught.value)


def own_address() -> str | None:
    """Return this machine's address in a local network, if it has one."""
    try:
        return banner.lan_address()
    except SettingsError:
        return None


@pytest.mark.parametrize("host", ["10.0.0.1", "192.168.178.123", "[fd00:1234:5678:9abc:def0:1234:5678:9abc]"])
def test_a_code_fits_into_a_terminal(host: str) -> None:
    drawing = banner.qr_code(f"ws://{host}:65535/ws?token={'x' * 32}")
    lines = drawing.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 60
    assert "\x1b" not in drawing, "the output may not support colours"


def test_without_its_package_a_line_stands_in_place_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "segno", None)
    assert banner.qr_code("ws://x") == "For a QR code here: pip install 'conductor-voice[terminal]'\n"


async def test_a_server_for_a_phone_prints_its_address_and_accepts_only_its_token(tmp_path: Path) -> None:
    address = own_address()
    if address is None:
        pytest.skip("this machine is in no local network")
    async with process(tmp_path, "--lan", "--port", "0", "--provider", "demo") as started:
        assert started.stderr is not None
        lines: list[str] = []
        while not (lines and lines[-1] == "" and len(lines) > 8):
            line = await asyncio.wait_for(started.stderr.readline(), START)
            assert line, f"it ended: {lines}"
            lines.append(line.decode().rstrip("\n"))
        match = re.fullmatch(r"  connect   (ws://(.+):(\d+)/ws)\?token=([\w-]{32})", lines[4])
        assert match, lines[4]
        url, host, port, token = match.groups()
        assert host == address
        assert lines[1] == f"  open      http://{host}:{port}/"
        assert lines[5].endswith(f" talk --host {host} --port {port} --token={token}")
        assert "\n".join(lines[7:-1]) + "\n" == banner.qr_code(f"http://{host}:{port}/#token={token}")
        with pytest.raises(Exception, match="401"):
            await App(url).open()
        async with App(f"{url}?token={token}") as phone:
            await phone.ask("say hello")
            assert len(phone.finals()) == 1
        with pytest.raises(OSError):
            await asyncio.wait_for(asyncio.open_connection("127.0.0.1", int(port)), START)
        started.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(started.wait(), START) == 0
        output = (await asyncio.wait_for(started.stderr.read(), START)).decode()
        assert token not in output and "Traceback" not in output
