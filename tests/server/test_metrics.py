"""``/metrics`` over HTTP: access and content."""

from __future__ import annotations

import hmac
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs
from websockets.datastructures import Headers

from conductor.app import make_services, running
from conductor.commands.reload import reload
from conductor.errors import SettingsError
from conductor.models.base import TextDelta
from conductor.plugins.mcp.toolset import McpToolset
from conductor.plugins.metrics import MetricsEndpoint, check_admin_token
from conductor.server.listener import Listener
from conductor.session.services import Services
from conductor.settings import Settings, load_settings
from conductor.version import __version__
from tests.app import App
from tests.models import ScriptedProvider
from tests.server.wires import get, http, until, upgrade

TOKEN = "the-operators-own-token"
CLIENT = "a-token-of-a-client"
WRONG = "hunter2-hunter2"
METRICS = "/metrics"
BEARER = f"Authorization: Bearer {TOKEN}"


class Running:
    """A server and its parts."""

    def __init__(self, settings: Settings, services: Services, listener: Listener) -> None:
        self.settings = settings
        self.services = services
        self.listener = listener
        self.port = listener.port

    async def metrics(self) -> Callable[..., float]:
        """Scrape; returns a function from a sample's name and labels to its value."""
        status, answer = await http(self.port, get(METRICS, BEARER))
        assert status == 200 and TOKEN not in answer
        head = answer.partition("\r\n\r\n")[0].splitlines()
        assert {"Cache-Control: no-store", "Content-Type: text/plain; version=0.0.4; charset=utf-8"} <= {
            *head
        }
        families = text_string_to_metric_families(answer.partition("\r\n\r\n")[2])
        samples = [
            (sample.name, sample.labels, sample.value) for family in families for sample in family.samples
        ]

        def find(name: str, **labels: str) -> float:
            (value,) = [value for *key, value in samples if key == [name, labels]]
            return float(value)

        return find


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[Running]:
    """Run a server as the application does, by default with the operator's token."""
    values = {"admin_token": TOKEN, "auth_tokens": (CLIENT,), "port": 0, **settings}
    loaded = load_settings(None, **values)
    services = make_services(loaded, ScriptedProvider([[TextDelta("Hello.")]]))
    async with running(loaded, services) as listener:
        yield Running(loaded, services, listener)


# -- access


async def test_without_an_admin_token_there_are_no_metrics() -> None:
    async with served(admin_token=None) as server:
        for headers in ((), (BEARER,), ("Origin: https://evil.example",)):
            status, answer = await http(server.port, get(METRICS, *headers))
            assert status == 404 and answer.endswith("Connect a WebSocket to /ws.\n")


REFUSED = {
    "nothing": get(METRICS),
    "a wrong token": get(METRICS, f"Authorization: Bearer {WRONG}"),
    "a client's token": get(METRICS, f"Authorization: Bearer {CLIENT}"),
    "the beginning of the token": get(METRICS, f"Authorization: Bearer {TOKEN[:-1]}"),
    "another scheme": get(METRICS, f"Authorization: Basic {TOKEN}"),
    "two tokens": get(METRICS, BEARER, f"Authorization: Bearer {WRONG}"),
    "the token in the query": get(f"{METRICS}?token={TOKEN}"),
    "the token as a subprotocol": get(METRICS, f"Sec-WebSocket-Protocol: bearer.{TOKEN}"),
    "bytes that are no ASCII": get(METRICS, "Authorization: Bearer \xff\xfe"),
    "an upgrade": upgrade(METRICS, f"Sec-WebSocket-Protocol: conductor.v1, bearer.{TOKEN}"),
}


async def test_other_requests_are_refused_with_401_and_the_token_opens_no_conversation() -> None:
    # Each server refuses ten wrong tokens a minute before it answers 429.
    async with served() as server:
        for name, request_text in REFUSED.items():
            status, answer = await http(server.port, request_text)
            assert status == 401, name
            assert "WWW-Authenticate: Bearer" in answer.splitlines()
            assert "sessions" not in answer and TOKEN not in answer
        assert (await http(server.port, upgrade("/ws", BEARER)))[0] == 401


@pytest.mark.parametrize("origin", ["https://evil.example", "http://localhost:8080", "null", ""])
@pytest.mark.parametrize("token", [TOKEN, WRONG])
async def test_a_page_in_a_browser_may_not_read_it(origin: str, token: str) -> None:
    async with served(allowed_origins=("https://evil.example",)) as server:
        request = get(METRICS, f"Authorization: Bearer {token}", f"Origin: {origin}")
        status, answer = await http(server.port, request)
        assert status == 403 and "sessions" not in answer and "Access-Control" not in answer


async def test_tokens_are_compared_as_hashes_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    compare_digest = hmac.compare_digest

    def compare(left_digest: bytes, right_digest: bytes) -> bool:
        compared.append((left_digest, right_digest))
        return compare_digest(left_digest, right_digest)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    async with served() as server:
        admin = MetricsEndpoint(TOKEN, server.listener)
    for token in (TOKEN, WRONG, "x"):
        assert (admin.refusal(Headers({"Authorization": f"Bearer {token}"})) is None) is (token == TOKEN)
    assert [(len(left_digest), len(right_digest)) for left_digest, right_digest in compared] == [(32, 32)] * 3
    assert TOKEN not in repr(vars(admin))


def test_the_operators_token_must_not_be_a_clients_token() -> None:
    with pytest.raises(SettingsError, match=r"^ADMIN_TOKEN is one of AUTH_TOKENS; .*\.$") as caught:
        check_admin_token(CLIENT, [CLIENT])
    assert CLIENT not in str(caught.value)


@pytest.mark.parametrize("token", ["schlüssel", "a\tb", "a\nb"])
def test_a_token_that_does_not_fit_a_header_is_refused(token: str) -> None:
    with pytest.raises(SettingsError, match=r"^ADMIN_TOKEN ") as caught:
        check_admin_token(token, ())
    assert token not in str(caught.value)


# -- guessed tokens


async def test_wrong_tokens_are_ten_a_minute_and_the_right_one_still_works() -> None:
    wrong, right = get(METRICS, f"Authorization: Bearer {WRONG}"), get(METRICS, BEARER)
    async with served() as server:
        assert [(await http(server.port, wrong))[0] for _ in range(12)] == [401] * 10 + [429] * 2
        assert "Retry-After: 60" in (await http(server.port, wrong))[1].splitlines()
        assert (await http(server.port, right))[0] == 200
        assert (await http(server.port, get("/healthz")))[0] == 200


async def test_each_reliable_address_has_its_own_limit_of_wrong_tokens() -> None:
    def guess(address: str) -> str:
        return get(METRICS, f"Authorization: Bearer {WRONG}", f"X-Forwarded-For: {address}")

    async with served(trusted_proxies="127.0.0.1") as server:
        for _ in range(12):
            await http(server.port, guess("198.51.100.7"))
        assert (await http(server.port, guess("198.51.100.7")))[0] == 429
        assert (await http(server.port, guess("203.0.113.9")))[0] == 401


async def test_no_token_is_logged() -> None:
    with capture_logs() as captured:
        async with served() as server:
            for token in (TOKEN, WRONG, CLIENT):
                await http(server.port, get(f"{METRICS}?token={token}", f"Authorization: Bearer {token}"))
    assert [(line["reason"], line.get("count")) for line in captured if "refused" in line["event"]] == [
        ("/metrics 401", None),
        ("/metrics 401", 2),
    ]
    assert not any(token in str(captured) for token in (TOKEN, WRONG, CLIENT))


# -- content


async def test_mcp_servers_are_up_or_not(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"gone": {"command": str(tmp_path / "nothing")}}}))
    async with served(config_dir=config.parent) as server:
        await until(lambda: mcp_state(server) == "down")
        find = await server.metrics()
        assert (find("conductor_mcp_server_up", server="gone"), find("conductor_mcp_connections")) == (0, 0)


def mcp_state(server: Running) -> str:
    (state,) = (
        connection.state
        for toolset in server.services.toolsets
        if isinstance(toolset, McpToolset)
        for connection in toolset.connections
    )
    return state


async def test_metrics_are_those_of_the_tools_and_of_the_process() -> None:
    spawn = {"tool": "agent.spawn", "source": "device"}
    async with served() as server:
        reload(server.settings, server.services, server.listener)  # which they outlive
        server.services.metrics.count_call("agent.spawn", "device", "none", 0.25)
        async with App(f"ws://127.0.0.1:{server.port}/ws?token={CLIENT}", "s-1") as phone:
            await phone.ask("hello")
            value = await server.metrics()
    assert value("conductor_tool_calls_total", **spawn, error_type="none") == 1
    assert value("conductor_tool_run_seconds_bucket", **spawn, le="0.25") == 1
    assert value("conductor_sessions") == value("conductor_connections") == 1
    assert value("conductor_uptime_seconds") >= 0
    assert value("conductor_policy_rules") == value("conductor_policy_problem") == 0
    assert value("conductor_info", version=__version__) == 1
