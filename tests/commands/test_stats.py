"""``conductor stats``: what it prints of a real server, and one sentence for every mistake."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from conductor import __version__
from conductor.app import make_services, running
from conductor.commands import stats
from conductor.errors import SettingsError
from conductor.models.base import Usage
from conductor.models.scripted import ScriptedProvider
from conductor.settings import load_settings
from conductor.tools.metrics import ToolMetrics
from tests.server.wires import WAIT

TOKEN = "the-operators-own-token"
WRONG = "hunter2-hunter2"
# The largest error of a quantile, as a share of its value.
ERROR = 0.251
ANSWER = {"version": "1", "uptime_s": 1.0, "sessions": 0, "connections": 0, **ToolMetrics().snapshot()}


@asynccontextmanager
async def served(token: str | None = TOKEN) -> AsyncIterator[tuple[str, ToolMetrics]]:
    """Run a server; give its address, and the figures that it answers."""
    settings = load_settings(None, admin_token=token, port=0)
    services = make_services(settings, ScriptedProvider([]))
    async with running(settings, services) as listener:
        yield f"http://127.0.0.1:{listener.port}", services.metrics


@asynccontextmanager
async def answering(answer: bytes | None) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Run something that is no Conductor; give its address and what it was asked. None never answers."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        if answer is None:
            await reader.read()
        else:
            writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


async def run(
    url: str,
    *options: str,
    token: str | None = TOKEN,
    timeout_s: float = WAIT,
    out: io.StringIO | None = None,
) -> str:
    """Run the command, which blocks, beside the server; give what it wrote."""
    parser = argparse.ArgumentParser()
    stats.add_arguments(parser)
    given = ["--url", url, *options] if token is None else ["--url", url, "--token", token, *options]
    out = out or io.StringIO()
    code = await asyncio.wait_for(
        asyncio.to_thread(stats.run, parser.parse_args(given), out, timeout_s), WAIT
    )
    assert code == 0
    return out.getvalue()


async def mistake(url: str, *options: str, **more: Any) -> str:
    """Run a command that ends with a mistake; give its one sentence."""
    out = io.StringIO()
    with pytest.raises(SettingsError) as caught:
        await run(url, *options, out=out, **more)
    said = str(caught.value)
    assert out.getvalue() == "" and said.endswith(".") and said.isprintable()
    assert TOKEN not in said and WRONG not in said
    return said


def use(figures: ToolMetrics) -> None:
    """Count what a day might bring."""
    for _ in range(3):
        figures.called("agent.spawn", "device", "none", 0.25)
    figures.called("agent.spawn", "device", "unknown", 30.0)
    figures.called("agent.spawn", "device", "permission_denied", None)
    figures.called("agent.spawn", "device", "unknown", 30.0)
    figures.called("calculator", "builtin", "none", 0.0005)
    for _ in range(4):
        figures.asked("agent.spawn", "device")
    figures.decided("agent.spawn", "device", "allowed", 2.0)
    figures.decided("agent.spawn", "device", "allowed", 2.0)
    figures.decided("agent.spawn", "device", "denied", 2.0)
    figures.decided("agent.spawn", "device", "expired", 600.0)


# -- what it prints


async def test_the_figures_are_a_table() -> None:
    async with served() as (url, figures):
        use(figures)
        lines = (await run(url)).splitlines()
    facts = rf"Conductor {re.escape(__version__)}, up \d+ s, sessions 0, connections 0"
    assert re.fullmatch(facts, lines[0])
    assert lines[1] == f"Tools since {figures.since}"
    head, spawn, calculator, total = (line.split() for line in lines[3:])
    assert head == "tool source calls ok % p50 ms p99 ms asked allowed denied expired decide s errors".split()
    assert spawn[:4] == ["agent.spawn", "device", "6", "50.0"]
    assert float(spawn[4]) == pytest.approx(250, rel=ERROR)
    assert float(spawn[5]) == pytest.approx(30_000, rel=ERROR)
    assert spawn[6:10] == ["4", "2", "1", "1"] and float(spawn[10]) == pytest.approx(2, rel=ERROR)
    assert spawn[11:] == ["unknown", "2,", "permission_denied", "1"]
    assert calculator[:4] == ["calculator", "builtin", "1", "100.0"]
    assert calculator[6:] == ["0", "0", "0", "0", "-", "-"]
    assert total[:5] == ["total", "7", "57.1", "-", "-"] and total[5:9] == ["4", "2", "1", "1"]


async def test_the_columns_stand_under_each_other() -> None:
    async with served() as (url, figures):
        use(figures)
        table = (await run(url)).splitlines()[3:]
    for column in ("calls", "ok %", "asked", "expired"):
        end = table[0].index(column) + len(column)
        assert all(line[end - 1] != " " and line[end] == " " for line in table), column


async def test_without_a_call_there_is_no_table() -> None:
    async with served() as (url, figures):
        assert (await run(url)).splitlines()[1:] == [f"No tool was called since {figures.since}."]


async def test_the_models_tokens_and_money_are_a_table() -> None:
    services = make_services(load_settings(None, admin_token=TOKEN, port=0), ScriptedProvider([]))
    services.model_metrics.used("s-1", "home", Usage(1000, 50, 200, 30), 0.0125)
    services.model_metrics.used("s-1", "home", Usage(1000, 50), 0.01)
    async with running(
        services=services, settings=load_settings(None, admin_token=TOKEN, port=0)
    ) as listener:
        url = f"http://127.0.0.1:{listener.port}"
        lines = (await run(url)).splitlines()
        (row,) = json.loads(await run(url, "--json"))["models"]
    assert lines[3].startswith("Models since ")
    assert [line.split() for line in lines[5:]] == [
        ["model", "subject", "replies", "input", "output", "cached", "cached%", "cost"],
        ["home", "s-1", "2", "2030", "100", "200", "9", "0.0225"],
    ]
    assert row["cache_write"] == 30
    exported = generate_latest(services.metrics.registry).decode()
    assert 'conductor_model_tokens_total{kind="output",profile="home"} 100.0' in exported
    assert 'conductor_model_cost_total{profile="home"} 0.0225' in exported


async def test_json_is_all_that_the_server_says() -> None:
    async with served() as (url, figures):
        use(figures)
        printed = json.loads(await run(url, "--json"))
        assert printed.pop("uptime_s") >= 0
        policies = {"rules": 0, "problem": ""}
        facts = {
            "version": __version__,
            "sessions": 0,
            "connections": 0,
            "mcp": {"connections": 0, "servers": {}},
            "policies": policies,
            "models": [],
        }
        assert printed == {**facts, **figures.snapshot()}


@pytest.mark.parametrize("options", [(), ("--json",)])
async def test_a_name_that_a_client_made_up_does_not_steer_the_terminal(options: tuple[str, ...]) -> None:
    async with served() as (url, figures):
        figures.called("\x1b[2Jgone\x07\u202e\nnew line", "device", "none", 0.1)
        printed = await run(url, *options)
    assert all(char.isprintable() or char == "\n" for char in printed)
    assert options or "?[2Jgone???new line" in printed


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3_599, "59 min"),
        (3_600, "1 h 0 min"),
        (1e6, "11 d 13 h"),
    ],
)
def test_how_long_it_is_up_is_in_words(seconds: float, text: str) -> None:
    assert stats.duration(seconds) == text


# -- how it asks


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("http://host:8080", "http://host:8080/admin/stats"),
        ("http://host:8080/", "http://host:8080/admin/stats"),
        ("ws://host:8080/ws", "http://host:8080/admin/stats"),
        ("ws://host:8080/ws?token=x#y", "http://host:8080/admin/stats"),
        ("wss://host/voice/ws/", "https://host/voice/admin/stats"),
        ("https://[::1]:8443", "https://[::1]:8443/admin/stats"),
        ("http://host/admin/stats", "http://host/admin/stats"),
    ],
)
def test_any_address_of_the_server_does(url: str, asked: str) -> None:
    assert stats.address(url) == asked


async def test_the_address_of_the_websocket_does() -> None:
    async with served() as (url, _):
        assert (await run(f"{url.replace('http', 'ws')}/ws")).startswith("Conductor ")


async def test_the_token_of_the_settings_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMIN_TOKEN", TOKEN)
    async with served() as (url, _):
        assert (await run(url, token=None)).startswith("Conductor ")
        assert "refused the token" in await mistake(url, token=WRONG)


async def test_the_token_of_the_env_file_is_used(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"ADMIN_TOKEN={TOKEN}\n")
    async with served() as (url, _):
        assert (await run(url, token=None)).startswith("Conductor ")


async def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as (url, _), answering(b"HTTP/1.1 502 Bad Gateway\r\n\r\n") as (proxy, asked):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        assert (await run(url)).startswith("Conductor ") and asked == []


# -- mistakes


def http(status: str, body: bytes = b"", *headers: str) -> bytes:
    """Write an answer."""
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""])
    return head.encode() + body


async def test_without_a_token_there_is_nothing_to_ask_with() -> None:
    async with answering(http("200 OK")) as (url, asked):
        assert await mistake(url, token=None) == (
            "The operator's token is needed: set ADMIN_TOKEN, or give --token."
        )
        assert asked == []


@pytest.mark.parametrize("token", ["schlüssel", "a\r\nX: y", "a\x00b"])
async def test_a_token_that_no_header_carries_is_not_sent(token: str) -> None:
    async with answering(http("200 OK")) as (url, asked):
        said = await mistake(url, token=token)
        assert "no header can carry" in said and token not in said and asked == []


async def test_a_wrong_token_is_refused() -> None:
    async with served() as (url, _):
        assert await mistake(url, token=WRONG) == (
            f"{url}/admin/stats refused the token: look at ADMIN_TOKEN here and there."
        )


async def test_too_many_wrong_tokens_say_when_to_come_back() -> None:
    async with served() as (url, _):
        for _ in range(10):
            await mistake(url, token=WRONG)
        said = await mistake(url, token=WRONG)
        assert "too many wrong tokens: try again in " in said and said.endswith(" s.")


async def test_a_server_without_an_admin_token_has_no_figures() -> None:
    async with served(token=None) as (url, _):
        assert "runs without ADMIN_TOKEN" in await mistake(url)


async def test_nobody_there_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    assert await mistake(url) == f"Cannot reach {url}/admin/stats: connection refused."


def test_an_answer_that_only_trickles_is_not_waited_for() -> None:
    class Trickle:
        """Each of its bytes comes in time."""

        def iter_raw(self) -> Iterator[bytes]:
            while True:
                yield b" "

    with pytest.raises(SettingsError, match="did not answer"):
        stats.body(Trickle(), "http://host", timeout_s=0.001)


async def test_a_server_that_never_answers_is_not_waited_for() -> None:
    async with answering(None) as (url, _):
        assert await mistake(url, timeout_s=0.05) == f"{url}/admin/stats did not answer within 0.05 s."


async def test_a_redirect_is_not_followed() -> None:
    async with answering(http("200 OK")) as (elsewhere, asked):
        async with answering(http("302 Found", b"", f"Location: {elsewhere}/")) as (url, _):
            assert "answered 302" in await mistake(url)
        assert asked == []


def without(name: str) -> bytes:
    return json.dumps({key: value for key, value in ANSWER.items() if key != name}).encode()


STRANGE: dict[str, Callable[[], bytes]] = {
    "a web page": lambda: http("200 OK", b"<html></html>"),
    "nothing": lambda: http("200 OK"),
    "other JSON": lambda: http("200 OK", b"[]"),
    "figures without totals": lambda: http("200 OK", without("totals")),
    "figures of text": lambda: http("200 OK", json.dumps({**ANSWER, "sessions": "1"}).encode()),
    "no Unicode": lambda: http("200 OK", b'{"version":"\xff"}'),
    "depth": lambda: http("200 OK", b'{"x":' + b"[" * 100_000),
    "too much": lambda: http("200 OK", b" " * stats.MAX_ANSWER_BYTES + json.dumps(ANSWER).encode()),
    "an answer cut short": lambda: b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
    "no HTTP": lambda: b"220 mail.example ESMTP\r\n",
    "a closed connection": lambda: b"",
}


@pytest.mark.parametrize("what", STRANGE)
async def test_no_answer_of_conductors_is(what: str) -> None:
    async with answering(STRANGE[what]()) as (url, _):
        assert await mistake(url) == f"{url}/admin/stats gave no answer of Conductor's: look at --url."


async def test_what_a_stranger_says_is_not_repeated() -> None:
    answer = http("429 Too Many", b"\x1b[2J", "Retry-After: \x1b[2J")
    async with answering(answer) as (url, _):
        assert (await mistake(url)).isprintable()
    async with answering(http("500 \x1b[2J", b"")) as (url, _):
        assert (await mistake(url)).isprintable()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:8080",
        "ftp://host",
        "http://",
        "http://host:99999",
        "http://[::1",
        "http://host:0",
        "http://a b",
        "http://a..b",
        f"http://{'a' * 70}",
    ],
)
async def test_what_is_no_address_is_one_sentence(url: str) -> None:
    assert (await mistake(url)).startswith("--url is no address: ")


async def test_an_address_holds_no_password() -> None:
    assert await mistake(f"http://me:{WRONG}@host") == "--url must hold no user name and no password."
