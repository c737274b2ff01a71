"""Every engine keeps the contract of `conductor.stores.base`, also when replies are lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from copy import deepcopy
from dataclasses import replace

import pytest

from conductor.errors import Conflict, Fenced, Rollback, StoreError, TooManySessions
from conductor.rate_limit import ANONYMOUS
from conductor.stores.base import SessionKey, SessionLog
from tests.stores.engines import FIRST, KEY, Engine, commits, filled

TTL_S = 0.5
KEYS = [SessionKey(subject, f"s-{number}") for subject in ("a", "a/b", "b*", "bc") for number in range(3)]
GRANTS = SessionKey("subject", "$grants")


@pytest.fixture
async def store(engine: Engine) -> AsyncIterator[SessionLog]:
    async with engine.opened() as store:
        yield store


@pytest.fixture
async def few(engine: Engine) -> AsyncIterator[SessionLog]:
    """Open a store that keeps two sessions of a subject."""
    async with engine.opened(max_sessions=2) as store:
        yield store


@pytest.fixture
async def brief(engine: Engine) -> AsyncIterator[SessionLog]:
    """Open a store whose sessions expire soon."""
    if not engine.durable:
        pytest.skip("sessions in memory end when they are released")
    async with engine.opened(session_ttl=TTL_S) as store:
        yield store


async def expiry() -> None:
    """Wait until every session of ``brief`` has expired."""
    await asyncio.sleep(TTL_S + 0.1)


# -- claims


async def test_a_new_session_is_empty_and_its_first_claim_is_the_first(store: SessionLog) -> None:
    claim = await store.claim(KEY)
    assert (claim.key, claim.epoch, claim.revision, list(claim.commits)) == (KEY, 1, 0, [])


async def test_each_claim_counts_up_and_has_a_token_of_its_own(store: SessionLog) -> None:
    claims = [await store.claim(KEY) for _ in range(5)]
    assert [claim.epoch for claim in claims] == [1, 2, 3, 4, 5]
    assert len({claim.token for claim in claims}) == 5


async def test_a_claim_has_the_commits_in_order_and_byte_for_byte(store: SessionLog) -> None:
    claim = await store.claim(KEY)
    data = [
        bytes(range(256)),
        b"",
        "日本".encode(),
        b"x" * 300_000,
        *(b"%d" % number for number in range(12)),
    ]
    for number, commit in enumerate(data, 1):
        await store.append(claim, f"commit-{number}", commit)
        assert claim.revision == number
    fresh = await store.claim(KEY)
    assert (list(fresh.commits), fresh.revision, fresh.epoch) == (data, len(data), 2)


async def test_a_session_belongs_to_its_subject(store: SessionLog) -> None:
    await filled(store)
    for key in (SessionKey("other", "s-1"), SessionKey("subject", "s-2"), SessionKey("subjects", "-1")):
        claim = await store.claim(key)
        assert claim.epoch == 1 and not claim.commits


async def test_a_claim_does_not_fence_other_sessions(store: SessionLog) -> None:
    claim = await store.claim(KEY)
    await store.claim(SessionKey("subject", "s-2"))
    await store.append(claim, "commit-1", b"1")


# -- fencing


@pytest.mark.parametrize("epochs", [1, 3])
async def test_a_later_claim_fences_all_earlier_ones(store: SessionLog, epochs: int) -> None:
    claims = [await filled(store), *[await store.claim(KEY) for _ in range(epochs)]]
    for old in claims[:-1]:
        for snapshot in (False, True):
            with pytest.raises(Fenced) as caught:
                await store.append(old, "commit-old", b"old", snapshot=snapshot)
            assert not caught.value.gone
    await store.append(claims[-1], "commit-new", b"new")
    assert await commits(store) == [FIRST, b"new"]


async def test_a_token_that_was_made_up_is_fenced(store: SessionLog) -> None:
    claim = await filled(store)
    for token in ("", "x", "1.x", "node-1:x"):
        with pytest.raises(Fenced):
            await store.append(replace(claim, token=token), "commit-1", b"1")


async def test_a_fenced_claim_is_refused_even_its_last_commit_id(store: SessionLog) -> None:
    claim = await filled(store)
    await store.claim(KEY)
    with pytest.raises(Fenced):
        await store.append(claim, "commit-0", FIRST)


async def test_of_claims_made_at_once_exactly_one_may_write(store: SessionLog) -> None:
    claims = await asyncio.wait_for(asyncio.gather(*(store.claim(KEY) for _ in range(8))), 5)
    appends = (store.append(claim, f"commit-{number}", b"x") for number, claim in enumerate(claims))
    outcomes = await asyncio.gather(*appends, return_exceptions=True)
    assert sum(isinstance(outcome, Fenced) for outcome in outcomes) == 7 and outcomes.count(None) == 1
    assert sorted(claim.epoch for claim in claims) == list(range(1, 9))


# -- revisions, and replies that are lost


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("by", [-1, 1, 5])
async def test_another_revision_than_the_sessions_is_a_conflict_or_a_rollback(
    store: SessionLog, by: int, snapshot: bool
) -> None:
    claim = await filled(store)
    wrong = replace(claim, revision=claim.revision + by)
    with pytest.raises(Rollback if by > 0 else Conflict) as caught:
        await store.append(wrong, "commit-1", b"1", snapshot=snapshot)
    assert getattr(caught.value, "revision", 1) == 1 and wrong.revision == 1 + by
    assert await commits(store) == [FIRST]


@pytest.mark.parametrize("snapshot", [False, True])
async def test_a_repeated_commit_id_records_nothing(store: SessionLog, snapshot: bool) -> None:
    claim = await filled(store)
    stale = deepcopy(claim)  # the reply to the commit was lost: the revision is the old one
    await store.append(claim, "commit-1", b"1", snapshot=snapshot)
    for _ in range(3):
        await store.append(stale, "commit-1", b"1", snapshot=snapshot)
    assert stale.revision == claim.revision == 2
    await store.append(stale, "commit-2", b"2")
    assert await commits(store) == [*([] if snapshot else [FIRST]), b"1", b"2"]


async def test_another_commit_after_a_lost_reply_is_a_conflict(store: SessionLog) -> None:
    claim = await filled(store)
    stale = deepcopy(claim)
    await store.append(claim, "commit-1", b"1")
    with pytest.raises(Conflict) as caught:
        await store.append(stale, "commit-2", b"2")
    assert (caught.value.revision, stale.revision) == (2, 1)
    assert await commits(store) == [FIRST, b"1"]


async def test_a_claim_after_a_lost_reply_is_a_claim_like_any_other(store: SessionLog) -> None:
    lost = asyncio.ensure_future(store.claim(KEY))
    await asyncio.sleep(0)
    lost.cancel()
    claim = await store.claim(KEY)
    await store.append(claim, "commit-1", b"1")
    assert await commits(store) == [b"1"]


# -- snapshots


async def test_a_snapshot_replaces_all_earlier_commits(store: SessionLog) -> None:
    claim = await filled(store)
    for number in range(1, 25):
        await store.append(claim, f"commit-{number}", b"%d" % number, snapshot=number in (5, 20))
    fresh = await store.claim(KEY)
    assert fresh.revision == claim.revision == 25
    assert list(fresh.commits) == [b"%d" % number for number in range(20, 25)]
    await store.append(fresh, "commit-25", b"25", snapshot=True)
    assert await commits(store) == [b"25"]


async def test_a_refused_snapshot_replaces_nothing(store: SessionLog) -> None:
    claim = await filled(store)
    with pytest.raises(Conflict):
        await store.append(replace(claim, revision=0), "commit-1", b"1", snapshot=True)
    await store.append(claim, "commit-2", b"2")
    assert await commits(store) == [FIRST, b"2"]


# -- release


async def test_a_fenced_claim_releases_nothing(store: SessionLog) -> None:
    old = await filled(store)
    claim = await store.claim(KEY)
    await store.release(old)
    await store.append(claim, "commit-1", b"1")
    assert await commits(store) == [FIRST, b"1"]


async def test_a_released_claim_may_not_write(store: SessionLog) -> None:
    claim = await filled(store)
    await store.release(claim)
    await store.release(claim)
    with pytest.raises(Fenced) as caught:
        await store.append(claim, "commit-1", b"1")
    assert caught.value.gone


async def test_a_released_session_stays_unless_it_is_in_memory(engine: Engine, store: SessionLog) -> None:
    await store.release(await filled(store))
    claim = await store.claim(KEY)
    assert claim.epoch == (2 if engine.durable else 1) and store.durable == engine.durable
    assert list(claim.commits) == ([FIRST] if engine.durable else [])


# -- the operator's operations


async def fill(store: SessionLog) -> None:
    """Store one commit in each session of ``KEYS``."""
    for key in reversed(KEYS):
        await filled(store, key)


async def test_sessions_are_listed_by_subject_and_id(store: SessionLog) -> None:
    assert await store.keys(None, None, None, 100) == []
    await fill(store)
    assert await store.keys(None, None, None, 100) == KEYS
    for subject in ("a", "a/b", "b*", "b", "?", "%"):
        assert await store.keys(subject, None, None, 100) == [key for key in KEYS if key.subject == subject]
    assert await store.keys(None, "s-1", None, 100) == KEYS[1::3]
    assert await store.keys("bc", "s-1", None, 100) == [SessionKey("bc", "s-1")]
    assert await store.keys(None, "s-*", None, 100) == []


@pytest.mark.parametrize("limit", [1, 5, 12])
async def test_pages_follow_each_other(store: SessionLog, limit: int) -> None:
    await fill(store)
    keys: list[SessionKey] = []
    while page := await store.keys(None, None, keys[-1] if keys else None, limit):
        assert len(page) <= limit
        keys += page
    assert keys == KEYS


async def test_a_session_is_read_without_fencing_its_owner(engine: Engine, store: SessionLog) -> None:
    claim = await filled(store)
    stored = await store.read(KEY)
    assert stored is not None and stored.commits() == [FIRST]
    meta = stored.meta
    assert (meta.token, meta.epoch, meta.revision) == (claim.token, 1, 1)
    assert abs(meta.updated - time.time()) < 60
    await store.append(claim, "commit-1", b"1")
    assert stored.commits() == [FIRST]
    assert await store.read(SessionKey("subject", "another")) is None
    await store.release(claim)
    released = await store.read(KEY)
    assert released is None or (released.meta.token == "" and engine.durable)


async def test_a_deleted_session_is_gone_and_its_owner_is_fenced(store: SessionLog) -> None:
    claim = await filled(store)
    assert [await store.delete("subject", "s-1") for _ in range(2)] == [1, 0]
    assert await store.read(KEY) is None
    for commit_id in ("commit-0", "commit-1"):
        with pytest.raises(Fenced) as caught:
            await store.append(claim, commit_id, b"1")
        assert caught.value.gone
    fresh = await store.claim(KEY)
    assert (fresh.epoch, fresh.revision, list(fresh.commits)) == (1, 0, [])
    with pytest.raises(Fenced):
        await store.append(claim, "commit-0", b"1")
    await store.append(fresh, "commit-1", b"new")


async def test_the_sessions_of_one_subject_are_deleted(store: SessionLog) -> None:
    await fill(store)
    assert [await store.delete("b*") for _ in range(2)] == [3, 0]
    left = [key for key in KEYS if await store.read(key) is not None]
    assert left == [key for key in KEYS if key.subject != "b*"]
    assert set(left) <= set(await store.keys(None, None, None, 100)) <= set(KEYS)


# -- expiry


async def test_the_servers_own_records_outlive_every_session(brief: SessionLog) -> None:
    grants = await brief.claim(GRANTS)
    for _ in range(2):
        await brief.append(grants, "commit-1", b"all")
    await filled(brief)
    await expiry()
    fresh = await brief.claim(KEY)
    assert fresh.epoch == 1 and not fresh.commits
    assert await commits(brief, GRANTS) == [b"all"]
    await expiry()
    record = await brief.claim(GRANTS)
    assert (record.epoch, list(record.commits)) == (3, [b"all"])


async def test_the_owner_of_an_expired_session_may_not_write(brief: SessionLog) -> None:
    claim = await filled(brief)
    await expiry()
    await brief.claim(KEY)
    with pytest.raises(StoreError):
        await brief.append(claim, "commit-1", b"1")
    assert await commits(brief) == []


# -- the limit of a subject


async def test_a_new_session_beyond_the_limit_of_a_subject_is_refused(few: SessionLog) -> None:
    keys = [SessionKey("subject", f"s-{number}") for number in range(2)]
    for key in keys:
        await filled(few, key)
    for _ in range(2):
        with pytest.raises(TooManySessions, match="2 sessions of this token"):
            await few.claim(SessionKey("subject", "s-2"))
    for key in keys:
        assert await commits(few, key) == [FIRST]
    for key in (SessionKey("another", "s-2"), GRANTS):
        assert (await few.claim(key)).epoch == 1


async def test_a_refusal_costs_no_other_claim_of_the_same_moment(few: SessionLog) -> None:
    keys = [SessionKey("subject", f"s-{number}") for number in range(6)]
    other_keys = [SessionKey(f"subject-{number}", "s-1") for number in range(6)]
    claims = await asyncio.gather(*(few.claim(key) for key in keys + other_keys), return_exceptions=True)
    refused = [isinstance(claim, TooManySessions) for claim in claims]
    assert sum(refused[:6]) == 4 and not any(refused[6:])


async def test_anonymous_sessions_are_not_limited(few: SessionLog) -> None:
    for number in range(5):
        assert (await few.claim(SessionKey(ANONYMOUS, f"s-{number}"))).epoch == 1


async def test_a_deleted_session_makes_room(few: SessionLog) -> None:
    for number in range(2):
        await filled(few, SessionKey("subject", f"s-{number}"))
    await few.delete("subject", "s-0")
    assert (await few.claim(SessionKey("subject", "s-2"))).epoch == 1


# -- the end


async def test_a_store_may_be_closed_twice(engine: Engine) -> None:
    async with engine.opened() as store:
        await filled(store)
        await store.aclose()
