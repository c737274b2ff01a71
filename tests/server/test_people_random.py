"""People of two tenants act at random on one server: no history, memory, rate or budget reaches another."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import msgspec
import pytest

from conductor.app import make_services, running
from conductor.messages import ToolCall, ToolResult, UserMessage
from conductor.models.base import Finished, ModelRequest, TextDelta, Usage
from conductor.settings import load_settings
from conductor.tools.rules import Rule
from tests.app import App
from tests.models import Script, ScriptedProvider
from tests.server.wires import WAIT

PEOPLE = (("shop", "ada"), ("shop", "bob"), ("bank", "ada"))
PERSON_TOKENS, TENANT_TOKENS, REPLY_TOKENS = 80, 140, 10
ACTIONS = 40


@dataclass
class World:
    """The server's address, its model, which finds leaks, and the tokens that each may still use."""

    url: str = ""
    leaks: list[str] = field(default_factory=list)
    spent: Counter[str] = field(default_factory=Counter)

    def reply(self, request: ModelRequest) -> Script:
        """Answer, remember a secret if asked, and look for secrets of others."""
        words = next(m.text for m in reversed(request.messages) if isinstance(m, UserMessage))
        owner = words.split(" ")[0]
        secrets = re.findall(r"secret of (\w+/\w+)", f"{request.system}{request.messages}")
        self.leaks += [f"{owner} sees {secret}" for secret in secrets if secret != owner]
        for name in (owner, owner.split("/")[0]):
            self.spent[name] += REPLY_TOKENS
        usage = Usage(REPLY_TOKENS)
        if "remember" in words and not isinstance(request.messages[-1], ToolResult):
            arguments = msgspec.json.encode({"text": words.partition("remember ")[2]}).decode()
            return [ToolCall("c", "remember", arguments), Finished("tool_use", usage)]
        return [TextDelta("Yes."), Finished("end_turn", usage)]

    def is_spent(self, tenant: str, name: str) -> bool:
        """Tell whether the next request is beyond a budget."""
        return self.spent[f"{tenant}/{name}"] >= PERSON_TOKENS or self.spent[tenant] >= TENANT_TOKENS

    def phone(self, tenant: str, name: str, session_id: str) -> App:
        """Connect a person behind the proxy."""
        return App(self.url, session_id, headers={"X-User": name, "X-Tenant": tenant}, wait_s=4 * WAIT)


@asynccontextmanager
async def world(monkeypatch: pytest.MonkeyPatch, **limits: int) -> AsyncIterator[World]:
    monkeypatch.setenv("AUTH_TENANT_HEADER", "X-Tenant")
    values = {"port": 0, "auth": "header", "trusted_proxies": "127.0.0.1", "memory": True, **limits}
    settings = load_settings(None, session_rate_limit_per_min=1_000_000, **values)
    state = World()
    services = make_services(settings, ScriptedProvider(state.reply))
    services = replace(services, rules=[Rule("allow", tool="remember")])
    async with running(settings, services) as listener:
        state.url = f"ws://127.0.0.1:{listener.port}/ws"
        yield state


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_three_people_of_two_tenants_share_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance, refused, turns = random.Random(seed), 0, Counter[str]()
    limits = {"daily_token_budget": PERSON_TOKENS, "tenant_daily_token_budget": TENANT_TOKENS}
    async with world(monkeypatch, **limits) as state:
        for number in range(ACTIONS):
            tenant, name = chance.choice(PEOPLE)
            owner, secret = f"{tenant}/{name}", f"secret of {tenant}/{name} {number}"
            turns[owner] += 1
            words = f"{owner} {'remember' if turns[owner] == 1 else 'hello,'} {secret}"
            async with state.phone(tenant, name, f"s-{turns[owner]}") as app:
                must_fail = state.is_spent(tenant, name)
                await app.ask(words)
                codes = [error["code"] for error in app.errors()]
                fails = must_fail or "Yes." not in app.finals()
                assert codes == ["rate_limited"] * fails, (seed, number)
                assert not codes or state.is_spent(tenant, name), (seed, number)
                refused += bool(codes)
    assert state.leaks == [] and refused, seed
    for tenant, name in PEOPLE:
        assert state.spent[f"{tenant}/{name}"] <= PERSON_TOKENS and state.spent[tenant] <= TENANT_TOKENS


async def test_fifty_people_at_once_have_limits_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch, subject_turns_per_min=2, max_connections_per_subject=1) as state:

        async def act(name: str) -> list[str]:
            async with state.phone("shop", name, "s-1") as app:
                for number in range(3):
                    await app.ask(f"shop/{name} hello, secret of shop/{name} {number}")
                assert app.finals() == ["Yes."] * 2
                return [str(error["code"]) for error in app.errors()]

        errors = await asyncio.gather(*(act(f"p{number}") for number in range(50)))
    assert errors == [["rate_limited"]] * 50 and state.leaks == []
