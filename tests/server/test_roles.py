"""A token has one role: an app's opens ``/ws`` and the page, a program's ``/mcp``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from conductor.server.access import MCP_PATH
from conductor.settings import program_token
from tests.conftest import Main
from tests.dialogues import MOVE, begin, call, decide
from tests.models import AnthropicService, Reply
from tests.server.test_jwt import AUDIENCE, ISSUER, jwks
from tests.server.test_jwt import token as jwt_token
from tests.server.wires import get, http, upgrade
from tests.serving import Configured, configured

TOKEN = "correct-horse-battery-staple"
KEY = "the-key-of-the-backend"
OPENS = {"app": (101, 403, 404), "program": (403, 101, 403)}
"""The answers of ``/ws``, ``/mcp`` and ``/replay.json`` by role."""


async def answers(server: Configured, *headers: str) -> tuple[int, ...]:
    port, protocol = server.listener.port, "Sec-WebSocket-Protocol: mcp"
    requests = (
        upgrade("/ws", *headers),
        upgrade(MCP_PATH, protocol, *headers),
        get("/replay.json", *headers),
    )
    return tuple([(await http(port, request))[0] for request in requests])


def bearer(token: str) -> str:
    return f"Authorization: Bearer {token}"


async def test_a_static_token_and_the_one_of_its_programs(claude: AnthropicService, tmp_path: Path) -> None:
    async with configured(claude, tmp_path, mcp_server=True, auth_tokens=TOKEN) as server:
        assert await answers(server, bearer(TOKEN)) == OPENS["app"]
        assert await answers(server, bearer(program_token(TOKEN))) == OPENS["program"]
        assert await answers(server, bearer(program_token(program_token(TOKEN)))) == (401, 401, 401)
        async with httpx2.AsyncClient(trust_env=False) as client:
            url = f"http://127.0.0.1:{server.listener.port}{MCP_PATH}"
            refused = await client.post(url, json={}, headers={"Authorization": f"Bearer {TOKEN}"})
        assert refused.status_code == 403 and "conductor mcp token" in refused.text


def test_the_tokens_of_programs_are_printed(conductor: Main) -> None:
    code, _, error = conductor("mcp", "token")
    assert code == 2 and "AUTH_TOKENS is empty" in error
    code, out, _ = conductor("mcp", "token", AUTH_TOKENS=f"{TOKEN},another-token-of-bob")
    assert code == 0
    assert out.splitlines() == [program_token(TOKEN), program_token("another-token-of-bob")]
    assert TOKEN not in out


@pytest.mark.parametrize(
    ("scope", "role"), [("mcp", "program"), ("openid mcp", "program"), ("openid", "app")]
)
async def test_an_identity_provider_names_programs_by_a_scope(
    claude: AnthropicService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str, role: str
) -> None:
    (tmp_path / "keys.json").write_bytes(jwks("EdDSA"))
    for name, value in (("ISSUER", ISSUER), ("AUDIENCE", AUDIENCE), ("KEYS", str(tmp_path / "keys.json"))):
        monkeypatch.setenv(f"JWT_{name}", value)
    async with configured(claude, tmp_path, mcp_server=True, auth="jwt") as server:
        assert await answers(server, bearer(jwt_token("EdDSA", scope=scope))) == OPENS[role]


@pytest.mark.parametrize(("role", "header"), [("program", "X-Role: program"), ("app", "X-Role: person")])
async def test_a_proxy_names_programs_by_a_header(
    claude: AnthropicService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str, header: str
) -> None:
    monkeypatch.setenv("AUTH_ROLE_HEADER", "X-Role")
    values: dict[str, Any] = {"auth": "header", "trusted_proxies": "127.0.0.1"}
    async with configured(claude, tmp_path, mcp_server=True, **values) as server:
        assert await answers(server, "X-User: ada", header) == OPENS[role]


@pytest.mark.parametrize("role", OPENS)
async def test_the_backend_makes_a_token_for_a_role(
    claude: AnthropicService, tmp_path: Path, role: str
) -> None:
    values: dict[str, Any] = {"auth": "one_time", "api_keys": f"backend:{KEY}:admin"}
    async with (
        configured(claude, tmp_path, mcp_server=True, **values) as server,
        httpx2.AsyncClient(trust_env=False, headers={"Authorization": f"Bearer {KEY}"}) as client,
    ):
        statuses = []
        for path in ("/ws", MCP_PATH):
            url = f"http://127.0.0.1:{server.listener.port}/v1/tokens"
            made = (await client.post(url, json={"id": "ada", "role": role})).json()["token"]
            request = upgrade(path, bearer(made), "Sec-WebSocket-Protocol: mcp")
            statuses.append((await http(server.listener.port, request))[0])
        assert tuple(statuses) == OPENS[role][:2]


async def test_a_connection_cannot_be_renewed_with_the_token_of_a_program(
    claude: AnthropicService, tmp_path: Path
) -> None:
    async with configured(claude, tmp_path, auth_tokens=TOKEN) as server:
        async with server.phone(headers={"Authorization": f"Bearer {TOKEN}"}) as phone:
            phone.send("session.update", {"token": program_token(TOKEN)})
            assert (await phone.until("error"))["payload"]["code"] == "unauthorized"


async def test_always_without_tokens_is_for_no_other_device(claude: AnthropicService, tmp_path: Path) -> None:
    moves = Reply(calls=(call("move_file"),))
    async with configured(claude, tmp_path, mcp_server=True) as server:
        # A program of this machine that plays an app, declares the phone's tool, and answers for the person.
        async with server.phone("of-a-program", tools={"move_file": lambda a: "moved"}) as program:
            await begin(program, "approval", tools=[MOVE])
            claude.replies += [moves, Reply(text="Moved.")]
            program.say("move it")
            card = await program.until("approval.request")
            assert card["payload"]["scopes"] == ["once", "session"]
            await decide(program, card, "allow", scope="always")
            await program.idle()
        async with server.phone("of-the-phone", tools={"move_file": lambda a: "moved"}) as phone:
            await begin(phone, "approval", tools=[MOVE])
            claude.replies += [moves, Reply(text="No.")]
            phone.say("move it")
            card = await phone.until("approval.request")
            await decide(phone, card, "deny")
            await phone.idle()
            assert phone.runs == []
