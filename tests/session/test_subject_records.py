"""Records of subjects, which hold lasting grants, with several processes."""

from __future__ import annotations

import asyncio
import random

import pytest

from conductor.conversation.records import Commit, FieldSet, encode
from conductor.errors import Conflict, Fenced, StoreError, StoreUnavailable
from conductor.session.fields import RECORD_ID, SubjectRecords
from conductor.session.gate import GRANTS as FIELD
from conductor.session.gate import MAX_GRANTS, decode_grants, with_grant
from conductor.stores.base import SessionKey, SessionLog
from conductor.stores.memory import MemoryStore
from conductor.tools.rules import Rule, encode_rules
from tests.session.helpers import SlowStore, steps


def rule(name: str) -> Rule:
    return Rule(effect="allow", tool=name, scope="always")


async def add(records: SubjectRecords, subject: str, granted: Rule) -> None:
    """Keep a grant, as a session does."""
    await records.update(subject, FIELD, lambda text: with_grant(text, granted, subject))


def rules(records: SubjectRecords, subject: str) -> list[Rule]:
    return list(decode_grants(records.get(subject, FIELD), subject))


async def write(store: SessionLog, subject: str, text: str) -> None:
    """Write a person's grants as another process."""
    claim = await store.claim(SessionKey(subject, RECORD_ID))
    await store.append(
        claim, "other", encode(Commit(claim=claim.token, at=0, records=(FieldSet(FIELD, text),)))
    )


async def test_a_record_is_loaded_by_another_process() -> None:
    store = MemoryStore()
    first, second = SubjectRecords(store), SubjectRecords(store)
    await add(first, "ann", rule("lamp.dim"))
    assert rules(second, "ann") == []  # it has not looked yet
    await second.load("ann")
    assert rules(first, "ann") == rules(second, "ann") == [rule("lamp.dim")]


async def test_a_grant_is_its_persons_alone() -> None:
    records = SubjectRecords(MemoryStore())
    await add(records, "ann", rule("lamp.dim"))
    await records.load("bob")
    assert rules(records, "bob") == []
    assert rules(records, "nobody") == []


async def test_two_processes_that_write_in_turn_keep_both_grants() -> None:
    store = MemoryStore()
    first, second = SubjectRecords(store), SubjectRecords(store)
    for number in range(6):
        await add(first if number % 2 else second, "ann", rule(f"t{number}"))
    await first.load("ann")
    assert [granted.tool for granted in rules(first, "ann")] == [f"t{number}" for number in range(6)]


@pytest.mark.parametrize("seed", [1, 2, 3, 5, 8, 13])
async def test_two_concurrent_processes_keep_both_grants(seed: int) -> None:
    rng = random.Random(seed)
    store = MemoryStore()
    stores = [SlowStore(lambda: rng.randint(0, 4), lambda: rng.randint(0, 4)) for _ in range(2)]
    for slow in stores:
        slow.inner = store
    first, second = (SubjectRecords(slow) for slow in stores)
    await asyncio.gather(add(first, "ann", rule("one")), add(second, "ann", rule("other")))
    reader = SubjectRecords(store)
    await reader.load("ann")
    assert {granted.tool for granted in rules(reader, "ann")} == {"one", "other"}, f"seed {seed}"


@pytest.mark.parametrize("error", [Fenced("taken over"), Conflict("behind")])
async def test_a_fenced_writer_retries_with_the_current_record(error: StoreError) -> None:
    inner = MemoryStore()
    failures = iter([error])
    store = SlowStore(fail=lambda operations: next(failures, None))
    store.inner = inner
    await write(inner, "ann", encode_rules([rule("there.before")]))
    records = SubjectRecords(store)
    await add(records, "ann", rule("lamp.dim"))
    assert [granted.tool for granted in rules(records, "ann")] == ["there.before", "lamp.dim"]


@pytest.mark.parametrize(("error", "tries"), [(Fenced("taken over"), 5), (StoreUnavailable("away"), 1)])
async def test_an_unrecorded_grant_allows_nothing(error: StoreError, tries: int) -> None:
    tried = 0

    def fail(commit: Commit) -> StoreError:
        nonlocal tried
        tried += 1
        return error

    records = SubjectRecords(SlowStore(fail=fail))
    with pytest.raises(StoreUnavailable):
        await add(records, "ann", rule("lamp.dim"))
    assert (tried, rules(records, "ann")) == (tries, [])


@pytest.mark.parametrize(
    "text", ["{", "[1]", '{"tool":"*"}', '[{"effect":"allow"}]', "[" * 100_000, "null", "\x00"]
)
async def test_an_unreadable_record_grants_nothing(text: str) -> None:
    store = MemoryStore()
    await write(store, "ann", text)
    records = SubjectRecords(store)
    await records.load("ann")
    assert rules(records, "ann") == []
    await add(records, "ann", rule("lamp.dim"))  # and it can be written over
    assert [granted.tool for granted in rules(records, "ann")] == ["lamp.dim"]


def test_one_invalid_rule_invalidates_the_record() -> None:
    good = encode_rules([rule("lamp.dim")])
    assert decode_grants(good, "ann") == (rule("lamp.dim"),)
    assert decode_grants(f'{good[:-1]},{{"effect":"allow"}}]', "ann") == ()


def test_a_grant_is_stored_once_and_the_oldest_are_dropped() -> None:
    text = ""
    for number in range(MAX_GRANTS + 5):
        text = with_grant(text, rule(f"t{number}"), "ann")
    grants = decode_grants(with_grant(text, rule("t100"), "ann"), "ann")
    assert len(grants) == MAX_GRANTS
    assert grants[0] == rule("t5")
    assert grants[-1] == rule("t100")


async def test_loading_during_an_update_loses_no_grant() -> None:
    store = SlowStore()
    records = SubjectRecords(store)
    store.hold = asyncio.Event()
    adding = asyncio.ensure_future(add(records, "ann", rule("lamp.dim")))
    await steps(5)
    loading = asyncio.ensure_future(records.load("ann"))  # as a second session of the person does
    await steps(5)
    store.hold.set()
    await asyncio.gather(adding, loading)
    assert [granted.tool for granted in rules(records, "ann")] == ["lamp.dim"]
