"""Admitted and refused clients, and the log of refusals."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from websockets.datastructures import Headers
from websockets.http11 import Request

from conductor.identity import ANONYMOUS
from conductor.plugins.auth.tokens import TokenAuthenticator
from conductor.server.access import Access, Client, Refusal
from conductor.server.refusals import Refusals
from conductor.settings import Limits
from tests.models import AnthropicService, ScriptedProvider
from tests.server.wires import get, http, until, upgrade
from tests.serving import configured, serving

TOKEN = "correct-horse-battery-staple"
PROXY = "127.0.0.1"


def access(*tokens: str, proxies: tuple[str, ...] = ()) -> Access:
    networks = [ipaddress.ip_network(proxy) for proxy in proxies]
    return Access(TokenAuthenticator(tokens), (), networks, Limits())


def request(*headers: tuple[str, str]) -> Request:
    return Request("/ws", Headers(list(headers)))


# -- a proxy before a server that trusts this machine


@pytest.mark.parametrize(
    "header",
    [
        ("X-Forwarded-For", "198.51.100.7"),
        ("Via", "1.1 proxy"),
    ],
)
async def test_a_server_without_tokens_refuses_requests_of_unknown_proxies(
    header: tuple[str, str],
) -> None:
    name, value = header
    refused = await access().decide(request(header), PROXY)
    assert isinstance(refused, Refusal)
    assert refused.status == 403 and "AUTH_TOKENS" in refused.text and "TRUSTED_PROXIES" in refused.text
    async with serving(ScriptedProvider([])) as served:
        with capture_logs() as captured:
            status, answer = await http(served.listener.port, upgrade("/ws", f"{name}: {value}"))
        assert status == 403 and "AUTH_TOKENS" in answer
        assert [(line["event"], line["reason"]) for line in captured] == [
            ("request refused", "proxy without tokens")
        ]
        assert (await http(served.listener.port, get("/healthz", f"{name}: {value}")))[0] == 200


async def test_a_forwarded_request_needs_a_token_or_a_trusted_proxy() -> None:
    forwarded = ("X-Forwarded-For", "198.51.100.7")
    bearer = ("Authorization", f"Bearer {TOKEN}")
    client = await access(TOKEN).decide(request(forwarded, bearer), PROXY)
    assert isinstance(client, Client) and client.address == "", "the address is not reliable"
    trusting = access(proxies=(PROXY,))
    admitted = Client(ANONYMOUS, address="198.51.100.7", is_forwarded=True, role="any")
    assert await trusting.decide(request(forwarded), PROXY) == admitted
    assert await access().decide(request(), PROXY) == Client(ANONYMOUS, role="any")


# -- pages


@pytest.mark.parametrize("auth", ["tokens", "header", "none"])
async def test_a_page_may_connect_to_its_own_host_and_port_and_no_page_of_another_port(
    claude: AnthropicService, tmp_path: Path, auth: str
) -> None:
    values: dict[str, Any] = {
        "tokens": {"auth_tokens": TOKEN},
        "header": {"auth": "header", "trusted_proxies": PROXY},
        "none": {},
    }[auth]
    proof = {"tokens": f"Authorization: Bearer {TOKEN}", "header": "X-User: ada", "none": "X-No: proof"}[auth]
    host = "localhost" if auth == "none" else "voice.example.com"
    async with configured(claude, tmp_path, **values) as served:

        async def answer(origin: str) -> int:
            text = upgrade("/ws", proof, f"Origin: {origin}").replace("Host: localhost", f"Host: {host}")
            return (await http(served.listener.port, text))[0]

        assert await answer(f"https://{host}") == 101
        for origin in ("http://localhost:5173", "http://127.0.0.1:1", f"http://{host}:5173"):
            assert await answer(origin) == 403, origin
    async with configured(claude, tmp_path, **values, allowed_origins="http://localhost:5173") as served:
        assert await answer("http://localhost:5173") == 101
        assert await answer(f"https://{host}") == 101
        assert await answer("http://localhost:5174") == 403


@pytest.mark.parametrize("header", ["Origin: http://localhost\r\nOrigin: http://evil.com", "Host: other"])
async def test_a_repeated_header_is_refused(header: str) -> None:
    async with serving(ScriptedProvider([])) as served:
        status, _ = await http(served.listener.port, upgrade("/ws", header))
        assert status in (400, 403)


# -- the log


async def test_the_first_refusal_is_logged_and_further_ones_are_counted() -> None:
    refusals = Refusals(period=0.01)
    with capture_logs() as captured:
        for address in ("198.51.100.7", "198.51.100.7", "203.0.113.9"):
            refusals.count("wrong token", address)
        assert [line["source"] for line in captured] == ["198.51.100.7", "203.0.113.9"]
        await until(lambda: len(captured) == 3)
    assert captured[2] == {
        "event": "requests refused",
        "log_level": "warning",
        "reason": "wrong token",
        "source": "198.51.100.7",
        "count": 2,
    }


async def test_many_addresses_do_not_fill_the_log() -> None:
    refusals = Refusals()
    with capture_logs() as captured:
        for number in range(10_000):
            refusals.count("wrong token", f"2001:db8::{number:x}")
        refusals.close()
    assert len(captured) <= 102
    assert captured[-1]["count"] == 10_000 - 100


@pytest.mark.parametrize(
    ("request_text", "status", "reason"),
    [
        (upgrade(), 401, "no token"),
        (upgrade(f"/ws?token={TOKEN}x"), 401, "wrong token"),
        (upgrade("/ws", "Origin: https://evil.example"), 403, "origin"),  # with and without a token
        (upgrade(f"/ws?token={TOKEN}", "Origin: https://evil.example"), 403, "origin"),
    ],
)
async def test_a_refusal_is_logged_with_its_reason_and_without_the_token(
    request_text: str, status: int, reason: str
) -> None:
    async with serving(ScriptedProvider([]), tokens=(TOKEN,)) as served:
        with capture_logs() as captured:
            assert (await http(served.listener.port, request_text))[0] == status
    (line,) = [line for line in captured if line["event"] == "request refused"]
    assert (line["reason"], line["source"]) == (reason, "127.0.0.1")
    assert line.get("origin") == ("https://evil.example" if reason == "origin" else None)
    assert TOKEN not in str(captured)


@pytest.mark.parametrize("proof", ["X-User: ada", "X-No: proof"])
async def test_refusals_of_a_header_are_counted(claude: AnthropicService, tmp_path: Path, proof: str) -> None:
    with capture_logs() as captured:
        async with configured(
            claude, tmp_path, auth="header", trusted_proxies="10.0.0.0/8", log_level="info"
        ) as served:
            for _ in range(20):
                assert (await http(served.listener.port, upgrade("/ws", proof)))[0] == 401
    lines = [line for line in captured if "refused" in line["event"]]
    firsts = [line["reason"] for line in lines if "count" not in line]
    assert firsts == ["header not from a trusted proxy", "no token"][proof != "X-User: ada" :]
    assert lines[-1]["count"] == 20 and len(lines) <= 4


async def test_connections_beyond_a_tokens_limit_are_logged() -> None:
    bearer = f"Authorization: Bearer {TOKEN}"
    async with serving(ScriptedProvider([]), tokens=(TOKEN,), max_connections_per_subject=0) as served:
        with capture_logs() as captured:
            for _ in range(3):
                assert (await http(served.listener.port, upgrade("/ws", bearer)))[0] == 429
            await served.listener.stop()
    refusals = [(line["event"], line["reason"], line.get("count")) for line in captured if "reason" in line]
    assert refusals == [
        ("request refused", "MAX_CONNECTIONS_PER_SUBJECT", None),
        ("requests refused", "MAX_CONNECTIONS_PER_SUBJECT", 3),
    ]
