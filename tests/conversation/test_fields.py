"""Fields of tools in a session: no update is lost, and the session's own fields are out of reach."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from conductor.conversation.approvals import FIELD as QUESTIONS
from conductor.conversation.commit import Committer
from conductor.conversation.fields import PREFIX, Fields
from conductor.conversation.grants import FIELD as GRANTS
from conductor.errors import StoreUnavailable
from conductor.stores.base import SetField
from tests.conversation.helpers import KEY, SlowStore, randomly_slow, steps
from tests.conversation.test_commit import make_committer

SEEDS = [1, 2, 3, 5, 8]


def adding(word: str) -> Callable[[str | None], str]:
    return lambda text: f"{text or ''}{word} "


async def make_fields(store: SlowStore) -> tuple[Fields, Committer]:
    committer, _, _ = await make_committer(store)
    return Fields(committer), committer


@pytest.mark.parametrize("seed", SEEDS)
async def test_updates_at_the_same_time_lose_nothing(seed: int) -> None:
    store = randomly_slow(random.Random(seed))
    fields, _ = await make_fields(store)
    words = [f"w{number}" for number in range(20)]
    await asyncio.gather(*(fields.update("tasks", adding(word)) for word in words))
    assert (fields.get("tasks") or "").split() == words
    claim = await store.claim(KEY)
    assert claim.state.fields == {f"{PREFIX}tasks": fields.get("tasks")}


async def test_a_field_is_read_as_it_was_last_committed() -> None:
    store = SlowStore()
    fields, _ = await make_fields(store)
    await fields.update("tasks", adding("one"))
    store.hold = asyncio.Event()
    update = asyncio.ensure_future(fields.update("tasks", adding("two")))
    await steps(20)
    assert fields.get("tasks") == "one "
    store.hold.set()
    await update
    assert fields.get("tasks") == "one two "


async def test_a_failed_update_changes_nothing() -> None:
    failures = iter([None, StoreUnavailable("away")])
    fields, _ = await make_fields(SlowStore(fail=lambda operations: next(failures, None)))

    def mistaken(text: str | None) -> str:
        raise ValueError(text)

    await fields.update("tasks", adding("one"))
    with pytest.raises(StoreUnavailable):
        await fields.update("tasks", adding("two"))
    with pytest.raises(ValueError, match="one"):
        await fields.update("tasks", mistaken)
    await fields.update("tasks", adding("three"))
    assert fields.get("tasks") == "one three "


async def test_an_empty_text_drops_the_field() -> None:
    fields, committer = await make_fields(SlowStore())
    await fields.update("tasks", adding("one"))
    await fields.update("tasks", lambda text: "")
    assert fields.get("tasks") is None
    assert committer.state.fields == {}


@pytest.mark.parametrize("name", [GRANTS, QUESTIONS])
async def test_no_tool_can_access_the_sessions_own_fields(name: str) -> None:
    fields, committer = await make_fields(SlowStore())
    await committer.commit([SetField(name, "the session's")])
    assert fields.get(name) is None
    await fields.update(name, lambda text: "a tool's")
    assert committer.state.fields[name] == "the session's"
    assert fields.get(name) == "a tool's"
