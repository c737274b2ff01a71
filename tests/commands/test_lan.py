"""Serving a phone in the same network: the address, the token, and the QR code that a camera has to read."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path

import pytest
import segno

from conductor.commands import lan
from conductor.errors import SettingsError
from tests.app import App
from tests.test_cli import START, process

URL = "ws://192.168.178.123:8080/ws?token=AbCdEfGhIjKlMnOpQrStUvWxYz012345"

FINDER = [
    "#######",
    "#     #",
    "# ### #",
    "# ### #",
    "# ### #",
    "#     #",
    "#######",
]
"""The pattern in three corners of a QR code (ISO/IEC 18004, "Finder pattern"), dark as ``#``."""


# -- the address


@pytest.mark.parametrize(
    "address",
    [
        "192.168.0.1",
        "192.168.255.254",
        "10.0.0.1",
        "10.255.1.2",
        "172.16.0.1",
        "172.31.255.1",
        "169.254.7.7",
        "fd00::5",
    ],
)
def test_an_address_of_a_local_network_is_good(address: str) -> None:
    assert lan.private(address) == address


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8",
        "172.15.0.1",
        "172.32.0.1",
        "192.169.0.1",
        "11.0.0.1",
        "100.64.0.1",
        "127.0.0.1",
        "0.0.0.0",
        "::1",
        "::",
        "2600::1",
    ],
)
def test_an_address_that_strangers_reach_or_no_phone_is_refused_in_a_sentence(address: str) -> None:
    with pytest.raises(SettingsError) as caught:
        lan.private(address)
    assert address in str(caught.value) and "\n" not in str(caught.value)


def address_here() -> str | None:
    """Give this machine's address in a local network, if it is in one."""
    try:
        return lan.lan_address()
    except SettingsError:
        return None


def test_the_address_of_this_machine_is_private_or_there_is_none() -> None:
    address = address_here()
    assert address is None or lan.private(address) == address


def test_the_phones_address_has_all_that_it_needs() -> None:
    assert lan.phone_url("10.0.0.7", 8080, "t-o_k") == "ws://10.0.0.7:8080/ws?token=t-o_k"


# -- the token


def test_each_token_is_another_one_long_enough_and_fit_for_an_address() -> None:
    tokens = {lan.new_token() for _ in range(1_000)}
    assert len(tokens) == 1_000
    for token in tokens:
        assert re.fullmatch(r"[A-Za-z0-9_-]{32}", token), "192 bits, six a character"


def test_every_bit_of_a_token_changes() -> None:
    """Each place takes most of the 64 characters; 1,000 draws hardly ever leave one of them out."""
    tokens = [lan.new_token() for _ in range(1_000)]
    for place in zip(*tokens, strict=True):
        assert len(set(place)) > 58


# -- the code


def modules(drawing: str) -> list[str]:
    """Read a drawing of half blocks, light on dark, into rows of modules, dark as ``#``."""
    halves = {" ": "##", "\u2580": " #", "\u2584": "# ", "\u2588": "  "}
    rows: list[str] = []
    for line in drawing.splitlines():
        pairs = [halves[char] for char in line]
        rows += ["".join(pair[half] for pair in pairs) for half in (0, 1)]
    return rows


def inside(drawing: str, border: int = 2) -> list[str]:
    """Give the modules within the border."""
    rows = modules(drawing)
    side = len(rows[0])
    return [row[border : side - border] for row in rows[border : side - border]]


def test_a_code_is_a_square_with_a_light_border() -> None:
    rows = modules(lan.qr_code(URL))
    side = len(rows[0])
    assert {len(row) for row in rows} == {side}
    assert side <= len(rows) <= side + 1, "two rows of modules a line"
    assert (side - 4 - 17) % 4 == 0, "a size that QR codes have"
    for row in [*rows[:2], *rows[side - 2 : side]]:
        assert set(row) == {" "}
    for row in rows[:side]:
        assert row[:2] == "  " == row[-2:]


def test_a_code_has_its_finder_patterns_in_three_corners() -> None:
    code = inside(lan.qr_code(URL))
    assert [row[:7] for row in code[:7]] == FINDER
    assert [row[-7:] for row in code[:7]] == FINDER
    assert [row[:7] for row in code[-7:]] == FINDER
    assert [row[-7:] for row in code[-7:]] != FINDER
    assert code[6][8:-8] == ("# " * len(code))[: len(code) - 16], "the timing pattern"


def test_a_code_is_of_the_text_and_of_nothing_else() -> None:
    code = inside(lan.qr_code(URL))
    matrix = segno.make(URL, error="l").matrix
    assert code == ["".join("#" if module else " " for module in row) for row in matrix]
    assert inside(lan.qr_code(URL + "x")) != code


@pytest.mark.parametrize("host", ["10.0.0.1", "192.168.178.123", "[fd00:1234:5678:9abc:def0:1234:5678:9abc]"])
def test_a_code_fits_into_a_terminal(host: str) -> None:
    drawing = lan.qr_code(lan.phone_url(host, 65_535, lan.new_token()))
    lines = drawing.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 60
    assert "\x1b" not in drawing, "it is also printed where nobody interprets colours"


# -- the command


async def test_a_server_for_the_phone_says_where_it_is_and_lets_only_the_phone_in(tmp_path: Path) -> None:
    address = address_here()
    if address is None:
        pytest.skip("this machine is in no local network")
    async with process(tmp_path, "--lan", "--port", "0", "--provider", "demo") as started:
        assert started.stderr is not None
        lines: list[str] = []
        while not (lines and lines[-1] == "" and len(lines) > 8):
            line = await asyncio.wait_for(started.stderr.readline(), START)
            assert line, f"it ended: {lines}"
            lines.append(line.decode().rstrip("\n"))
        found = re.fullmatch(r"  connect   (ws://(.+):(\d+)/ws)\?token=([\w-]{32})", lines[4])
        assert found, lines[4]
        url, host, port, token = found.groups()
        assert host == address
        assert lines[1] == f"  open      http://{host}:{port}/"
        assert lines[5].endswith(f" talk --host {host} --port {port} --token={token}")
        assert "\n".join(lines[7:-1]) + "\n" == lan.qr_code(f"http://{host}:{port}/#token={token}")
        with pytest.raises(Exception, match="401"):
            await App(url).open()
        async with App(f"{url}?token={token}") as phone:
            await phone.ask("say hello")
            assert len(phone.finals()) == 1
        with pytest.raises(OSError):
            await asyncio.wait_for(asyncio.open_connection("127.0.0.1", int(port)), START)
        started.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(started.wait(), START) == 0
        rest = (await asyncio.wait_for(started.stderr.read(), START)).decode()
        assert token not in rest and "Traceback" not in rest
