"""People act at random on one server, with signed tokens: nothing of one reaches another."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conductor.app import make_services, running
from conductor.messages import ToolCall, ToolResult, UserMessage
from conductor.models.base import Finished, ModelRequest, TextDelta, Usage
from conductor.settings import load_settings
from tests.app import App
from tests.models import Script, ScriptedProvider
from tests.server.test_jwt import AUDIENCE, ISSUER, jwks, token
from tests.server.wires import WAIT
from tests.shapes import Event

PEOPLE = ("ada", "bob", "eve")
PERSON_TOKENS, REPLY_TOKENS = 240, 10
ACTIONS = 60
CALLS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "remember": ("remember", ("text",)),
    "remind": ("schedule_task", ("text",)),
    "note": ("notes_create", ("title", "text")),
    "reminders": ("list_scheduled_tasks", ()),
    "notes": ("notes_search", ()),
}
"""The tool of a word, and its arguments that have the secret."""
RULED = ["remind", "note"]
READS = ("list_scheduled_tasks", "notes_search")


@dataclass
class World:
    """The server's address, its model, which finds leaks, and the tokens that each may still use.

    ``changes`` are calls that need consent, by person and tool, ``cards`` the questions about them, and
    ``own`` what a person read of their own.
    """

    url: str = ""
    leaks: list[str] = field(default_factory=list)
    spent: Counter[str] = field(default_factory=Counter)
    changes: Counter[tuple[str, str]] = field(default_factory=Counter)
    cards: Counter[tuple[str, str]] = field(default_factory=Counter)
    own: Counter[str] = field(default_factory=Counter)

    def reply(self, request: ModelRequest) -> Script:
        """Answer, make the call that the words ask for, and look for secrets of others."""
        words = next(m.text for m in reversed(request.messages) if isinstance(m, UserMessage))
        owner, verb, secret = words.split(" ", 2)
        secrets = re.findall(r"secret of (\w+)", f"{request.system}{request.messages}")
        self.leaks += [f"{owner} sees {other}" for other in secrets if other != owner]
        self.spent[owner] += REPLY_TOKENS
        usage, last = Usage(REPLY_TOKENS), request.messages[-1]
        if isinstance(last, ToolResult):
            self.own[verb] += f"secret of {owner}" in last.content
        elif verb in CALLS:
            tool, names = CALLS[verb]
            arguments: dict[str, Any] = dict.fromkeys(names, secret)
            if verb == "remind":
                arguments["in_minutes"] = 60
            if tool not in READS:
                self.changes[owner, tool] += 1
            return [ToolCall("c", tool, msgspec.json.encode(arguments).decode()), Finished("tool_use", usage)]
        return [TextDelta("Yes."), Finished("end_turn", usage)]

    def is_spent(self, name: str) -> bool:
        """Return whether the next request is beyond the budget."""
        return self.spent[name] >= PERSON_TOKENS

    def phone(self, name: str, session_id: str) -> Phone:
        """Connect a person with a token of the identity provider."""
        return Phone(self, name, token("EdDSA", sub=name), session_id)


class Phone(App):
    """Allows each tool once and for all."""

    def __init__(self, state: World, owner: str, bearer: str, session_id: str) -> None:
        headers = {"Authorization": f"Bearer {bearer}"}
        start = {"capabilities": ["approval"]}
        super().__init__(state.url, session_id, headers=headers, start_fields=start, wait_s=4 * WAIT)
        self._state = state
        self._owner = owner

    async def handle(self, event: Event) -> None:
        if event["type"] == "approval.request":
            self._state.cards[self._owner, event["payload"]["name"]] += 1
            self.send("approval.shown", {"approvalId": event["payload"]["approvalId"]})
            self.decide_card(event, "allow", scope="always")
        else:
            await super().handle(event)


@asynccontextmanager
async def world(monkeypatch: pytest.MonkeyPatch, folder: Path, **limits: int) -> AsyncIterator[World]:
    keys, notes = folder / "keys.json", folder / "notes"
    keys.write_bytes(jwks("EdDSA"))
    notes.mkdir()
    for name, value in (("ISSUER", ISSUER), ("AUDIENCE", AUDIENCE), ("KEYS", keys)):
        monkeypatch.setenv(f"JWT_{name}", str(value))
    values = {"port": 0, "auth": "jwt", "memory": True, "notes_dir": notes, **limits}
    settings = load_settings(None, session_rate_limit_per_min=1_000_000, **values)
    state = World()
    async with running(settings, make_services(settings, ScriptedProvider(state.reply))) as listener:
        state.url = f"ws://127.0.0.1:{listener.port}/ws"
        yield state


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.extended) for seed in (2, 3))])
async def test_three_people_share_nothing(seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chance, refused, turns = random.Random(seed), 0, Counter[str]()
    async with world(monkeypatch, tmp_path, daily_token_budget=PERSON_TOKENS) as state:
        for number in range(ACTIONS):
            owner = chance.choice(PEOPLE)
            secret = f"secret of {owner} {number}"
            turns[owner] += 1
            # What is remembered is a stranger's text to the gate: then each change is asked about.
            verbs = RULED if number < ACTIONS // 4 else [*CALLS, "hello,"]
            words = f"{owner} {chance.choice(verbs)} {secret}"
            async with state.phone(owner, f"s-{turns[owner]}") as app:
                must_fail = state.is_spent(owner)
                await app.ask(words)
                codes = [error["code"] for error in app.errors()]
                fails = must_fail or "Yes." not in app.finals()
                assert codes == ["rate_limited"] * fails, (seed, number)
                assert not codes or state.is_spent(owner), (seed, number)
                refused += bool(codes)
    assert state.leaks == [] and refused, seed
    assert state.cards.keys() == state.changes.keys(), f"{seed}: a rule of one person allows no other"
    assert state.cards.total() < state.changes.total(), f"{seed}: it allows that person"
    assert state.own["notes"] + state.own["reminders"], f"{seed}: people find what is their own"
    assert max(state.spent.values()) <= PERSON_TOKENS


async def test_fifty_people_at_once_have_limits_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limits = {"subject_turns_per_min": 2, "max_connections_per_subject": 1}
    async with world(monkeypatch, tmp_path, **limits) as state:

        async def act(name: str) -> list[str]:
            async with state.phone(name, "s-1") as app:
                for number in range(3):
                    await app.ask(f"{name} hello, secret of {name} {number}")
                assert app.finals() == ["Yes."] * 2
                return [str(error["code"]) for error in app.errors()]

        errors = await asyncio.gather(*(act(f"p{number}") for number in range(50)))
    assert errors == [["rate_limited"]] * 50 and state.leaks == []
