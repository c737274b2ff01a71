"""What a session store of any package has to pass; docs/plugins.md shows its use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from copy import deepcopy
from dataclasses import replace
from typing import Any, TypeAlias

import pytest
import pytest_asyncio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from conductor.errors import Conflict, Fenced, Rollback, StoreError, TooManySessions
from conductor.identity import ANONYMOUS
from conductor.stores.base import Attachments, Claim, SessionKey, SessionLog, StoreOptions

MakeStore: TypeAlias = Callable[[StoreOptions], SessionLog]
"""Makes a store that is empty and not open yet."""

KEY = SessionKey("subject", "s-1")
FIRST = b"first \x00\xff\r\n"
"""The first commit of `filled`."""
TTL_S = 0.5
KEYS = [SessionKey(subject, f"s-{number}") for subject in ("a", "a/b", "b*", "bc") for number in range(3)]
GRANTS = SessionKey("subject", "$grants")


async def filled(store: SessionLog, key: SessionKey = KEY) -> Claim:
    """Claim a session that has one commit."""
    claim = await store.claim(key)
    await store.append(claim, "commit-0", FIRST)
    return claim


async def commits(store: SessionLog, key: SessionKey = KEY) -> list[bytes]:
    """Read a session's commits by a claim, which fences the previous one."""
    return list((await store.claim(key)).commits)


async def fill(store: SessionLog) -> None:
    """Store one commit in each session of ``KEYS``."""
    for key in reversed(KEYS):
        await filled(store, key)


async def expiry() -> None:
    """Wait until every session of ``brief`` has expired."""
    await asyncio.sleep(TTL_S + 0.1)


class History(RuleBasedStateMachine):
    """Claims, appends, retries, releases and deletions of one session."""

    def __init__(self, store: SessionLog) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.store = store
        self.run(store.open())
        self.claims: list[Claim] = []
        self.forget()
        self.commits = 0

    def forget(self) -> None:
        """Expect no session."""
        self.expected: list[bytes] = []
        self.epoch = self.revision = 0
        self.is_owned = False
        self.last: tuple[str, bytes, bool] | None = None
        self.before: Claim | None = None

    def teardown(self) -> None:
        self.run(self.store.aclose())
        self.loop.close()

    def run(self, awaitable: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(awaitable, 60))

    @initialize()
    def first_claim(self) -> None:
        self.claim()

    @rule()
    def claim(self) -> None:
        claim = self.run(self.store.claim(KEY))
        self.epoch += 1
        assert (claim.epoch, claim.revision, list(claim.commits)) == (
            self.epoch,
            self.revision,
            self.expected,
        )
        self.claims.append(claim)
        self.is_owned = True

    @rule(
        data=st.binary(max_size=20),
        snapshot=st.booleans(),
        which=st.sampled_from([-1, -1, -1, -2]),
        by=st.sampled_from([0, 0, 0, -1, 1]),
    )
    def append(self, data: bytes, snapshot: bool, which: int, by: int) -> None:
        if len(self.claims) < -which:
            return
        self.commits += 1
        commit = (f"commit-{self.commits}", data, snapshot)
        claim = self.claims[which]
        expected: type[StoreError] | None = {-1: Conflict, 0: None, 1: Rollback}[by]
        if which != -1 or not self.is_owned:
            expected = Fenced
        before = deepcopy(claim)
        target = replace(claim, revision=claim.revision + by) if by else claim
        try:
            self.run(self.store.append(target, *commit[:2], snapshot=snapshot))
        except StoreError as error:
            assert type(error) is expected
            return
        assert expected is None
        self.expected = [data] if snapshot else [*self.expected, data]
        self.revision += 1
        self.last, self.before = commit, before
        assert claim.revision == self.revision

    @precondition(lambda self: self.is_owned and self.last is not None)
    @rule(behind=st.booleans())
    def retry(self, behind: bool) -> None:
        """Repeat the last commit; ``behind``: its reply was lost."""
        assert self.last is not None and self.before is not None
        claim = deepcopy(self.before) if behind else self.claims[-1]
        claim.token = self.claims[-1].token
        commit_id, data, snapshot = self.last
        self.run(self.store.append(claim, commit_id, data, snapshot=snapshot))
        assert claim.revision == self.revision

    @rule()
    def read(self) -> None:
        stored = self.run(self.store.read(KEY))
        assert (stored is None) == (self.epoch == 0)
        if stored is not None:
            assert (stored.commits(), bool(stored.meta.token)) == (self.expected, self.is_owned)

    @precondition(lambda self: len(self.claims) > 1)
    @rule()
    def release_a_fenced_claim(self) -> None:
        self.run(self.store.release(self.claims[-2]))

    @rule()
    def release(self) -> None:
        self.run(self.store.release(self.claims[-1]))
        if self.is_owned and not self.store.durable:
            self.forget()
        self.is_owned = False

    @rule()
    def delete(self) -> None:
        assert self.run(self.store.delete(KEY.subject)) == (self.epoch > 0)
        self.forget()


class StoreContract:
    """The tests. A subclass whose name begins with ``Test`` gives the fixture ``make``, a `MakeStore`."""

    @pytest.fixture
    def make(self) -> MakeStore:
        raise NotImplementedError("the subclass makes the store")

    @pytest_asyncio.fixture
    async def store(self, make: MakeStore) -> AsyncIterator[SessionLog]:
        async with aclosing(make(StoreOptions())) as store:
            await store.open()
            yield store

    @pytest_asyncio.fixture
    async def few(self, make: MakeStore) -> AsyncIterator[SessionLog]:
        """Open a store that keeps two sessions of a subject."""
        async with aclosing(make(StoreOptions(max_sessions=2))) as store:
            await store.open()
            yield store

    @pytest_asyncio.fixture
    async def brief(self, make: MakeStore) -> AsyncIterator[SessionLog]:
        """Open a store whose sessions expire soon."""
        async with aclosing(make(StoreOptions(session_ttl_s=TTL_S))) as store:
            if not store.durable:
                pytest.skip("sessions in memory end when they are released")
            await store.open()
            yield store

    async def test_warnings_are_sentences(self, store: SessionLog) -> None:
        assert all(isinstance(warning, str) for warning in await store.warnings())

    # -- claims

    async def test_a_new_session_is_empty_and_its_first_claim_is_the_first(self, store: SessionLog) -> None:
        claim = await store.claim(KEY)
        assert (claim.key, claim.epoch, claim.revision, list(claim.commits)) == (KEY, 1, 0, [])

    async def test_each_claim_counts_up_and_has_a_token_of_its_own(self, store: SessionLog) -> None:
        claims = [await store.claim(KEY) for _ in range(5)]
        assert [claim.epoch for claim in claims] == [1, 2, 3, 4, 5]
        assert len({claim.token for claim in claims}) == 5

    async def test_a_claim_has_the_commits_in_order_and_byte_for_byte(self, store: SessionLog) -> None:
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

    async def test_a_session_belongs_to_its_subject(self, store: SessionLog) -> None:
        await filled(store)
        for key in (SessionKey("other", "s-1"), SessionKey("subject", "s-2"), SessionKey("subjects", "-1")):
            claim = await store.claim(key)
            assert claim.epoch == 1 and not claim.commits

    async def test_a_claim_does_not_fence_other_sessions(self, store: SessionLog) -> None:
        claim = await store.claim(KEY)
        await store.claim(SessionKey("subject", "s-2"))
        await store.append(claim, "commit-1", b"1")

    # -- fencing

    @pytest.mark.parametrize("epochs", [1, 3])
    async def test_a_later_claim_fences_all_earlier_ones(self, store: SessionLog, epochs: int) -> None:
        claims = [await filled(store), *[await store.claim(KEY) for _ in range(epochs)]]
        for old in claims[:-1]:
            for snapshot in (False, True):
                with pytest.raises(Fenced) as caught:
                    await store.append(old, "commit-old", b"old", snapshot=snapshot)
                assert not caught.value.gone
        await store.append(claims[-1], "commit-new", b"new")
        assert await commits(store) == [FIRST, b"new"]

    async def test_a_token_that_was_made_up_is_fenced(self, store: SessionLog) -> None:
        claim = await filled(store)
        for token in ("", "x", "1.x", "node-1:x"):
            with pytest.raises(Fenced):
                await store.append(replace(claim, token=token), "commit-1", b"1")

    async def test_a_fenced_claim_is_refused_even_its_last_commit_id(self, store: SessionLog) -> None:
        claim = await filled(store)
        await store.claim(KEY)
        with pytest.raises(Fenced):
            await store.append(claim, "commit-0", FIRST)

    async def test_of_claims_made_at_once_exactly_one_may_write(self, store: SessionLog) -> None:
        claims = await asyncio.wait_for(asyncio.gather(*(store.claim(KEY) for _ in range(8))), 5)
        appends = (store.append(claim, f"commit-{number}", b"x") for number, claim in enumerate(claims))
        outcomes = await asyncio.gather(*appends, return_exceptions=True)
        assert sum(isinstance(outcome, Fenced) for outcome in outcomes) == 7 and outcomes.count(None) == 1
        assert sorted(claim.epoch for claim in claims) == list(range(1, 9))

    # -- revisions, and replies that are lost

    @pytest.mark.parametrize("snapshot", [False, True])
    @pytest.mark.parametrize("by", [-1, 1, 5])
    async def test_another_revision_than_the_sessions_is_a_conflict_or_a_rollback(
        self, store: SessionLog, by: int, snapshot: bool
    ) -> None:
        claim = await filled(store)
        wrong = replace(claim, revision=claim.revision + by)
        with pytest.raises(Rollback if by > 0 else Conflict) as caught:
            await store.append(wrong, "commit-1", b"1", snapshot=snapshot)
        assert getattr(caught.value, "revision", 1) == 1 and wrong.revision == 1 + by
        assert await commits(store) == [FIRST]

    @pytest.mark.parametrize("snapshot", [False, True])
    async def test_a_repeated_commit_id_records_nothing(self, store: SessionLog, snapshot: bool) -> None:
        claim = await filled(store)
        stale = deepcopy(claim)  # the reply to the commit was lost: the revision is the old one
        await store.append(claim, "commit-1", b"1", snapshot=snapshot)
        for _ in range(3):
            await store.append(stale, "commit-1", b"1", snapshot=snapshot)
        assert stale.revision == claim.revision == 2
        await store.append(stale, "commit-2", b"2")
        assert await commits(store) == [*([] if snapshot else [FIRST]), b"1", b"2"]

    async def test_a_claim_after_a_lost_reply_is_a_claim_like_any_other(self, store: SessionLog) -> None:
        unanswered = asyncio.ensure_future(store.claim(KEY))
        await asyncio.sleep(0)
        unanswered.cancel()
        claim = await store.claim(KEY)
        try:
            await store.append(claim, "commit-1", b"1")
        except Fenced:  # the unanswered claim travelled on another connection, and arrived after this one
            claim = await store.claim(KEY)
            await store.append(claim, "commit-1", b"1")
        assert await commits(store) == [b"1"]

    # -- snapshots

    async def test_a_snapshot_replaces_all_earlier_commits(self, store: SessionLog) -> None:
        claim = await filled(store)
        for number in range(1, 25):
            await store.append(claim, f"commit-{number}", b"%d" % number, snapshot=number in (5, 20))
        fresh = await store.claim(KEY)
        assert fresh.revision == claim.revision == 25
        assert list(fresh.commits) == [b"%d" % number for number in range(20, 25)]
        await store.append(fresh, "commit-25", b"25", snapshot=True)
        assert await commits(store) == [b"25"]

    # -- attachments

    async def test_attachments_are_stored_with_their_commit_until_one_drops_them(
        self, store: SessionLog
    ) -> None:
        claim = await store.claim(KEY)
        long = bytes(range(256)) * 4_096
        await store.append(claim, "commit-1", b"1", attachments=Attachments({"a": long, "b": b""}))
        assert await store.read_attachments(KEY, ["b", "a", "c"]) == {"a": long, "b": b""}
        claim = await store.claim(KEY)
        assert list(claim.commits) == [b"1"]
        await store.append(
            claim, "commit-2", b"2", snapshot=True, attachments=Attachments({"c": b"c"}, ["b"])
        )
        await store.append(claim, "commit-3", b"3", attachments=Attachments({"a": b"new"}, ["gone"]))
        assert await store.read_attachments(KEY, ["a", "b", "c"]) == {"a": b"new", "c": b"c"}
        assert await store.read_attachments(KEY, []) == {}

    async def test_a_refused_commit_changes_no_attachments(self, store: SessionLog) -> None:
        former = await filled(store)
        claim = await store.claim(KEY)
        await store.append(claim, "commit-1", b"1", attachments=Attachments({"a": b"a"}))
        other = Attachments({"a": b"other", "b": b"b"}, ["a"])
        behind, ahead = (replace(claim, revision=claim.revision + by) for by in (-1, 1))
        for refused, error in ((former, Fenced), (behind, Conflict), (ahead, Rollback)):
            with pytest.raises(error):
                await store.append(refused, "commit-2", b"2", attachments=other)
        await store.append(claim, "commit-1", b"1", attachments=other)  # a repetition
        assert await store.read_attachments(KEY, ["a", "b"]) == {"a": b"a"}

    async def test_attachments_belong_to_their_session_and_go_with_it(self, store: SessionLog) -> None:
        keys = [KEY, SessionKey("other", "s-1"), SessionKey("subject", "s-2")]
        for key in keys:
            await store.append(
                await store.claim(key), "commit-1", b"1", attachments=Attachments({"a": key.subject.encode()})
            )
        assert await store.read_attachments(keys[1], ["a"]) == {"a": b"other"}
        await store.delete("subject", "s-1")
        claim = await store.claim(KEY)
        await store.append(claim, "commit-1", b"1")
        assert await store.read_attachments(KEY, ["a"]) == {}
        assert await store.read_attachments(keys[2], ["a"]) == {"a": b"subject"}

    # -- release

    async def test_a_fenced_claim_releases_nothing(self, store: SessionLog) -> None:
        old = await filled(store)
        claim = await store.claim(KEY)
        await store.release(old)
        await store.append(claim, "commit-1", b"1")
        assert await commits(store) == [FIRST, b"1"]

    async def test_a_released_claim_may_not_write(self, store: SessionLog) -> None:
        claim = await filled(store)
        await store.release(claim)
        await store.release(claim)
        with pytest.raises(Fenced) as caught:
            await store.append(claim, "commit-1", b"1")
        assert caught.value.gone

    async def test_a_released_session_stays_unless_it_is_in_memory(self, store: SessionLog) -> None:
        await store.release(await filled(store))
        claim = await store.claim(KEY)
        assert claim.epoch == (2 if store.durable else 1)
        assert list(claim.commits) == ([FIRST] if store.durable else [])

    # -- the operator's operations

    async def test_sessions_are_listed_by_subject_and_id(self, store: SessionLog) -> None:
        assert await store.keys(None, None, None, 100) == []
        await fill(store)
        assert await store.keys(None, None, None, 100) == KEYS
        for subject in ("a", "a/b", "b*", "b", "?", "%"):
            assert await store.keys(subject, None, None, 100) == [
                key for key in KEYS if key.subject == subject
            ]
        assert await store.keys(None, "s-1", None, 100) == KEYS[1::3]
        assert await store.keys("bc", "s-1", None, 100) == [SessionKey("bc", "s-1")]
        assert await store.keys(None, "s-*", None, 100) == []
        assert await store.keys(None, None, None, 100, time.time() - 60) == KEYS
        assert await store.keys(None, None, None, 100, time.time() + 60) == []

    @pytest.mark.parametrize("limit", [1, 5, 12])
    async def test_pages_follow_each_other(self, store: SessionLog, limit: int) -> None:
        await fill(store)
        keys: list[SessionKey] = []
        while page := await store.keys(None, None, keys[-1] if keys else None, limit):
            assert len(page) <= limit
            keys += page
        assert keys == KEYS

    async def test_a_session_is_read_without_fencing_its_owner(self, store: SessionLog) -> None:
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
        assert released is None or (released.meta.token == "" and store.durable)

    async def test_a_deleted_session_is_gone_and_its_owner_is_fenced(self, store: SessionLog) -> None:
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

    async def test_the_sessions_of_one_subject_are_deleted(self, store: SessionLog) -> None:
        await fill(store)
        assert [await store.delete("b*") for _ in range(2)] == [3, 0]
        remaining = [key for key in KEYS if await store.read(key) is not None]
        assert remaining == [key for key in KEYS if key.subject != "b*"]
        assert set(remaining) <= set(await store.keys(None, None, None, 100)) <= set(KEYS)

    # -- expiry

    async def test_the_servers_own_records_outlive_every_session(self, brief: SessionLog) -> None:
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

    async def test_the_owner_of_an_expired_session_may_not_write(self, brief: SessionLog) -> None:
        claim = await filled(brief)
        await expiry()
        await brief.claim(KEY)
        with pytest.raises(StoreError):
            await brief.append(claim, "commit-1", b"1")
        assert await commits(brief) == []

    async def test_attachments_expire_with_their_session(self, brief: SessionLog) -> None:
        claim = await filled(brief)
        await brief.append(claim, "commit-1", b"1", attachments=Attachments({"a": b"a"}))
        await expiry()
        claim = await brief.claim(KEY)
        await brief.append(claim, "commit-1", b"1")
        assert await brief.read_attachments(KEY, ["a"]) == {}

    # -- the limit of a subject

    async def test_a_new_session_beyond_the_limit_of_a_subject_is_refused(self, few: SessionLog) -> None:
        keys = [SessionKey("subject", f"s-{number}") for number in range(2)]
        for key in keys:
            await filled(few, key)
        for _ in range(2):
            with pytest.raises(TooManySessions, match="2 sessions of this person"):
                await few.claim(SessionKey("subject", "s-2"))
        for key in keys:
            assert await commits(few, key) == [FIRST]
        for key in (SessionKey("another", "s-2"), GRANTS):
            assert (await few.claim(key)).epoch == 1

    async def test_a_refusal_costs_no_other_claim_of_the_same_moment(self, few: SessionLog) -> None:
        keys = [SessionKey("subject", f"s-{number}") for number in range(6)]
        other_keys = [SessionKey(f"subject-{number}", "s-1") for number in range(6)]
        claims = await asyncio.gather(*(few.claim(key) for key in keys + other_keys), return_exceptions=True)
        refused = [isinstance(claim, TooManySessions) for claim in claims]
        assert sum(refused[:6]) == 4 and not any(refused[6:])

    async def test_anonymous_sessions_are_not_limited(self, few: SessionLog) -> None:
        for number in range(5):
            assert (await few.claim(SessionKey(ANONYMOUS, f"s-{number}"))).epoch == 1

    async def test_a_deleted_session_makes_room(self, few: SessionLog) -> None:
        for number in range(2):
            await filled(few, SessionKey("subject", f"s-{number}"))
        await few.delete("subject", "s-0")
        assert (await few.claim(SessionKey("subject", "s-2"))).epoch == 1

    # -- the end

    async def test_a_store_may_be_closed_twice(self, store: SessionLog) -> None:
        await filled(store)
        await store.aclose()

    async def test_random_histories_are_those_of_a_list(self, make: MakeStore) -> None:
        await asyncio.to_thread(
            run_state_machine_as_test,
            lambda: History(make(StoreOptions())),  # type: ignore[arg-type] # any callable that makes one
            settings=settings(max_examples=15, stateful_step_count=30, deadline=None),
        )
