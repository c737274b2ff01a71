"""The contract of a session store; the test module of each engine subclasses it.

A subclass has the fixture ``store``.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from copy import deepcopy
from dataclasses import replace
from typing import Protocol, cast

import msgspec
import pytest

from conductor.errors import Conflict, Duplicate, Fenced, Rollback, TooManySessions
from conductor.messages import AssistantMessage, Message, Note, ToolCall, ToolResult, UserMessage
from conductor.rate_limit import ANONYMOUS
from conductor.stores.admin import SessionAdmin, SessionInfo, StoredSessions
from conductor.stores.base import (
    MAX_SEEN,
    AckOutbound,
    Amendment,
    AppendLog,
    CallRecord,
    Claim,
    FinishCall,
    ForgetCall,
    OpenCall,
    Operation,
    OutboundRecord,
    PutOutbound,
    RememberInbound,
    SessionKey,
    SessionState,
    SessionStore,
    SetField,
    TrimLog,
)
from conductor.stores.memory import MemoryStore
from conductor.stores.records import SNAPSHOT_BYTES, SNAPSHOT_COMMITS, with_state

KEY = SessionKey("subject", "s-1")
HISTORY: list[Message] = [
    UserMessage("What is 日本's 🎉 time?\x00"),
    AssistantMessage("Let me look.", (ToolCall("c-1", "clock", "{"),), '[{"a":1}]', "anthropic"),
    ToolResult("c-1", '{"success":true}', is_error=True),
    AssistantMessage("It is noon."),
    Note("An agent is done."),
]


def call(call_id: str = "c-1", result: ToolResult | None = None) -> CallRecord:
    return CallRecord(call_id, "agent.status", "turn-1", "device", "read", 1_772_366_400_123, result)


def outbound(event_id: str = "evt-1") -> OutboundRecord:
    frame = msgspec.Raw('{"text":"日本 \\" 🎉"}'.encode())
    return OutboundRecord(event_id, "speak", "c-9", "turn-1", 1_772_366_400_123, frame, "write")


EVERYTHING: list[Operation] = [
    AppendLog(UserMessage("more")),
    AppendLog(Amendment(3, "It is")),
    TrimLog(1),
    OpenCall(call("c-2")),
    RememberInbound("in-2"),
    PutOutbound(outbound("evt-2")),
    AckOutbound("evt-1"),
    SetField("locale", "en-US"),
]
"""Nearly every operation, after the commit of `filled`."""


def contents(state: SessionState) -> object:
    """Make a state comparable, order included; a frame is compared by its bytes."""
    return (
        list(state.log),
        state.log_start,
        dict(state.calls),
        list(state.seen),
        [
            (key, msgspec.structs.astuple(value)[:5], bytes(value.frame))
            for key, value in state.outbound.items()
        ],
        dict(state.fields),
    )


async def stored(store: SessionStore, key: SessionKey = KEY) -> SessionState:
    """Read the state by a claim, which fences the previous one."""
    return (await store.claim(key)).state


async def filled(store: SessionStore) -> Claim:
    """Claim a session that has something of everything."""
    claim = await store.claim(KEY)
    operations: list[Operation] = [AppendLog(message) for message in HISTORY]
    operations += [OpenCall(call()), RememberInbound("in-1"), PutOutbound(outbound()), SetField("a", "b")]
    await store.commit(claim, "commit-0", operations)
    return claim


class StoreContract:
    """The tests; a subclass has a fixture ``store``."""

    # -- claims

    async def test_a_new_session_is_empty_and_its_first_claim_is_the_first(self, store: SessionStore) -> None:
        claim = await store.claim(KEY)
        assert (claim.key, claim.epoch, claim.revision) == (KEY, 1, 0)
        assert contents(claim.state) == contents(SessionState())

    async def test_each_claim_counts_up_and_has_a_token_of_its_own(self, store: SessionStore) -> None:
        claims = [await store.claim(KEY) for _ in range(5)]
        assert [claim.epoch for claim in claims] == [1, 2, 3, 4, 5]
        assert len({claim.token for claim in claims}) == 5

    async def test_a_claim_has_the_stored_state(self, store: SessionStore) -> None:
        await filled(store)
        claim = await store.claim(KEY)
        state = claim.state
        assert state.log == HISTORY
        assert state.calls == {"c-1": call()}
        assert list(state.seen) == ["in-1"]
        assert [bytes(record.frame) for record in state.outbound.values()] == [bytes(outbound().frame)]
        assert state.outbound["evt-1"].effect == "write"
        assert state.fields == {"a": "b"}
        assert (claim.epoch, claim.revision) == (2, 1)

    async def test_a_claims_state_belongs_to_the_claimant(self, store: SessionStore) -> None:
        claim = await filled(store)
        first = await store.claim(KEY)
        for state in (claim.state, first.state):
            state.log.clear()
            state.calls.clear()
            state.seen.clear()
            state.outbound.clear()
            state.fields.clear()
        state = await stored(store)
        assert state.log and state.calls and state.seen and state.outbound and state.fields

    async def test_a_session_belongs_to_its_subject(self, store: SessionStore) -> None:
        await filled(store)
        for key in (SessionKey("other", "s-1"), SessionKey("subject", "s-2"), SessionKey("subjects", "-1")):
            claim = await store.claim(key)
            assert claim.epoch == 1 and not claim.state.log

    async def test_a_claim_does_not_fence_other_sessions(self, store: SessionStore) -> None:
        claim = await store.claim(KEY)
        await store.claim(SessionKey("subject", "s-2"))
        await store.commit(claim, "commit-1", [SetField("a", "b")])

    # -- fencing

    @pytest.mark.parametrize("epochs", [1, 3])
    async def test_a_later_claim_fences_all_earlier_ones(self, store: SessionStore, epochs: int) -> None:
        claims = [await filled(store), *[await store.claim(KEY) for _ in range(epochs)]]
        for old in claims[:-1]:
            with pytest.raises(Fenced):
                await store.commit(old, "commit-old", [SetField("a", "changed")])
        await store.commit(claims[-1], "commit-new", [SetField("c", "d")])
        assert (await stored(store)).fields == {"a": "b", "c": "d"}

    async def test_a_token_that_was_made_up_is_fenced(self, store: SessionStore) -> None:
        claim = await filled(store)
        with pytest.raises(Fenced):
            await store.commit(replace(claim, token=""), "commit-1", [SetField("a", "c")])

    async def test_a_fenced_claim_is_refused_even_its_last_commit_id(self, store: SessionStore) -> None:
        claim = await filled(store)
        await store.claim(KEY)
        with pytest.raises(Fenced):
            await store.commit(claim, "commit-0", [])

    async def test_of_claims_made_at_once_exactly_one_may_write(self, store: SessionStore) -> None:
        claims = await asyncio.wait_for(asyncio.gather(*(store.claim(KEY) for _ in range(8))), 5)
        commits = 0
        for number, claim in enumerate(claims):
            try:
                await store.commit(claim, f"commit-{number}", [AppendLog(UserMessage("x"))])
                commits += 1
            except Fenced:
                pass
        assert commits == 1 and sorted(claim.epoch for claim in claims) == list(range(1, 9))

    # -- revisions and commit ids

    async def test_each_commit_moves_the_revision_by_one(self, store: SessionStore) -> None:
        claim = await store.claim(KEY)
        for number in range(1, 4):
            await store.commit(claim, f"commit-{number}", [SetField("n", str(number))])
            assert claim.revision == number
        assert (await store.claim(KEY)).revision == 3

    @pytest.mark.parametrize("by", [-1, 1, 5])
    async def test_another_revision_than_the_sessions_is_a_conflict_or_a_rollback(
        self, store: SessionStore, by: int
    ) -> None:
        claim = await filled(store)
        wrong = replace(claim, revision=claim.revision + by)
        with pytest.raises(Rollback if by > 0 else Conflict):
            await store.commit(wrong, "commit-1", [SetField("a", "changed")])
        assert (await stored(store)).fields == {"a": "b"}

    async def test_a_retry_with_the_same_commit_id_changes_nothing_and_is_fine(
        self, store: SessionStore
    ) -> None:
        claim = await filled(store)
        stale = deepcopy(claim)  # the reply to the commit was lost: the revision is the old one
        operations: list[Operation] = [AppendLog(UserMessage("once")), RememberInbound("in-9")]
        await store.commit(claim, "commit-1", operations)
        for _ in range(3):
            await store.commit(stale, "commit-1", operations)
        assert stale.revision == claim.revision == 2
        await store.commit(stale, "commit-2", [AppendLog(UserMessage("next"))])
        assert (await stored(store)).log[-2:] == [UserMessage("once"), UserMessage("next")]

    # -- all or nothing

    @pytest.mark.parametrize("at", [0, 4, len(EVERYTHING)])
    @pytest.mark.parametrize(
        "bad", [RememberInbound("in-1"), OpenCall(call()), FinishCall("none", ToolResult("none", "x"))]
    )
    async def test_a_commit_with_a_duplicate_applies_nothing(
        self, store: SessionStore, bad: Operation, at: int
    ) -> None:
        claim = await filled(store)
        before = contents((await self._reclaim(store, claim)).state)
        operations = [*EVERYTHING[:at], bad, *EVERYTHING[at:]]
        with pytest.raises(Duplicate):
            await store.commit(claim, "commit-1", operations)
        assert claim.revision == 1
        fresh = await self._reclaim(store, claim)
        assert contents(fresh.state) == before and fresh.revision == 1
        await store.commit(claim, "commit-2", EVERYTHING)

    @staticmethod
    async def _reclaim(store: SessionStore, claim: Claim) -> Claim:
        """Read the state by a claim, and give its token to ``claim``."""
        fresh = await store.claim(KEY)
        claim.token, claim.epoch = fresh.token, fresh.epoch
        return fresh

    async def test_a_refused_commit_id_may_be_used_again(self, store: SessionStore) -> None:
        claim = await filled(store)
        with pytest.raises(Duplicate):
            await store.commit(claim, "commit-1", [RememberInbound("in-1")])
        await store.commit(claim, "commit-1", [RememberInbound("in-2")])
        assert list((await stored(store)).seen) == ["in-1", "in-2"]

    # -- duplicates

    DUPLICATES: list[tuple[list[Operation], list[Operation]]] = [
        ([], [RememberInbound("in-1")]),
        ([], [RememberInbound("in-2"), RememberInbound("in-2")]),
        ([], [OpenCall(call())]),
        ([], [OpenCall(call("c-2")), OpenCall(call("c-2"))]),
        ([FinishCall("c-1", ToolResult("c-1", "x"))], [OpenCall(call())]),
        ([FinishCall("c-1", ToolResult("c-1", "x"))], [FinishCall("c-1", ToolResult("c-1", "y"))]),
        ([], [FinishCall("c-1", ToolResult("c-1", "x")), FinishCall("c-1", ToolResult("c-1", "y"))]),
        ([ForgetCall("c-1")], [FinishCall("c-1", ToolResult("c-1", "x"))]),
        ([], [ForgetCall("c-1"), FinishCall("c-1", ToolResult("c-1", "x"))]),
        ([OpenCall(call("c-2", ToolResult("c-2", "x")))], [FinishCall("c-2", ToolResult("c-2", "y"))]),
        ([], [FinishCall("never-opened", ToolResult("never-opened", "x"))]),
    ]

    @pytest.mark.parametrize(("before", "repeated"), DUPLICATES)
    async def test_a_second_record_is_a_duplicate(
        self, store: SessionStore, before: list[Operation], repeated: list[Operation]
    ) -> None:
        claim = await filled(store)
        await store.commit(claim, "commit-1", before)
        before_commit = contents((await self._reclaim(store, claim)).state)
        with pytest.raises(Duplicate):
            await store.commit(claim, "commit-2", repeated)
        assert contents(await stored(store)) == before_commit

    async def test_a_call_may_be_opened_and_finished_in_one_commit(self, store: SessionStore) -> None:
        claim = await store.claim(KEY)
        result = ToolResult("c-1", "x")
        await store.commit(claim, "commit-1", [OpenCall(call()), FinishCall("c-1", result)])
        assert (await stored(store)).calls == {"c-1": call(result=result)}

    async def test_a_duplicate_is_noticed_by_the_next_owner_too(self, store: SessionStore) -> None:
        await filled(store)
        claim = await store.claim(KEY)
        for operation in (RememberInbound("in-1"), OpenCall(call())):
            with pytest.raises(Duplicate):
                await store.commit(claim, "commit-1", [operation])

    # -- the log

    async def test_an_amendment_changes_the_text_and_nothing_else(self, store: SessionStore) -> None:
        claim = await filled(store)
        await store.commit(claim, "commit-1", [AppendLog(Amendment(1, "Let me …"))])
        expected = [*HISTORY]
        expected[1] = AssistantMessage("Let me …", (ToolCall("c-1", "clock", "{"),), '[{"a":1}]', "anthropic")
        state = await stored(store)
        assert state.log == expected and state.log_end == len(HISTORY)

    @pytest.mark.parametrize("position", [-2, -1, 0, 2, 4, 5, 99])
    async def test_an_amendment_of_no_message_of_the_assistant_does_nothing(
        self, store: SessionStore, position: int
    ) -> None:
        claim = await filled(store)
        operations: list[Operation] = [SetField("x", "y"), AppendLog(Amendment(position, "changed"))]
        await store.commit(claim, "commit-1", [*operations, SetField("z", "y")])
        state = await stored(store)
        assert state.log == HISTORY and {"x", "z"} <= set(state.fields)

    async def test_positions_stay_the_same_when_the_log_is_trimmed(self, store: SessionStore) -> None:
        claim = await filled(store)
        await store.commit(claim, "commit-1", [TrimLog(2)])
        amendments = [Amendment(3, "It is"), Amendment(1, "x"), Amendment(0, "x")]
        await store.commit(claim, "commit-2", [AppendLog(amendment) for amendment in amendments])
        await store.commit(claim, "commit-3", [AppendLog(UserMessage("more"))])
        state = await stored(store)
        assert (state.log_start, state.log_end) == (2, 6)
        assert state.log == [HISTORY[2], AssistantMessage("It is"), HISTORY[4], UserMessage("more")]

    async def test_the_whole_log_may_be_trimmed(self, store: SessionStore) -> None:
        claim = await filled(store)
        await store.commit(claim, "commit-1", [TrimLog(5), AppendLog(AssistantMessage("new"))])
        await store.commit(claim, "commit-2", [AppendLog(Amendment(5, "newer"))])
        state = await stored(store)
        assert (state.log, state.log_start) == ([AssistantMessage("newer")], 5)

    async def test_operations_of_a_commit_follow_each_other(self, store: SessionStore) -> None:
        claim = await store.claim(KEY)
        operations: list[Operation] = [
            AppendLog(AssistantMessage("one")),
            AppendLog(Amendment(0, "two")),
            AppendLog(Amendment(0, "three")),
            SetField("a", "1"),
            SetField("a", "2"),
            PutOutbound(outbound()),
            AckOutbound("evt-1"),
        ]
        await store.commit(claim, "commit-1", operations)
        state = await stored(store)
        assert state.log == [AssistantMessage("three")] and state.fields == {"a": "2"} and not state.outbound

    # -- snapshots

    async def test_a_long_session_comes_back_as_it_was(self, store: SessionStore) -> None:
        claim = await filled(store)
        for number in range(2 * SNAPSHOT_COMMITS + 3):
            message, inbound = AppendLog(UserMessage(str(number))), RememberInbound(f"in-x{number}")
            await store.commit(claim, f"commit-{number}x", [message, inbound, TrimLog(number)])
        assert claim.commits < SNAPSHOT_COMMITS
        fresh = await store.claim(KEY)
        assert contents(fresh.state) == contents(claim.state)
        assert (fresh.revision, fresh.commits) == (claim.revision, claim.commits)
        await store.commit(fresh, "commit-after", [SetField("a", "c")])
        assert (await stored(store)).fields == {"a": "c"}

    async def test_large_commits_are_soon_replaced_by_a_snapshot(self, store: SessionStore) -> None:
        claim = await filled(store)
        for number in range(12):
            await store.commit(claim, f"commit-{number}x", [SetField("large", str(number) * 100_000)])
            assert claim.size < SNAPSHOT_BYTES + 200_000 or claim.size == 0
        assert claim.commits < 5
        assert contents(await stored(store)) == contents(claim.state)

    async def test_a_state_continues_only_the_states_whose_last_commit_it_has(
        self, store: SessionStore
    ) -> None:
        claim = await filled(store)
        early = claim.state.copy()
        await store.commit(claim, "commit-1", [SetField("a", "c")])
        assert claim.state.continues(early) and not early.continues(claim.state)
        later = await store.claim(KEY)
        assert claim.state.continues(later.state)
        await store.commit(later, "commit-2", [])
        assert not claim.state.continues(later.state) and later.state.continues(claim.state)
        assert claim.state.continues(SessionState())

    async def test_a_claim_continues_from_a_state_that_the_store_has_lost(self, store: SessionStore) -> None:
        claim = await filled(store)
        state_before = SessionState([UserMessage("x"), AssistantMessage("y")], 7, fields={"c": "d"})
        state_before.advance([PutOutbound(outbound("evt-9")), OpenCall(call("c-9"))], claim.token, 5)
        claim = with_state(await store.claim(KEY), state_before)
        await store.commit(claim, "commit-1", [SetField("e", "f")])
        assert claim.revision == 2
        state = await stored(store)
        assert (state.log_start, state.fields) == (7, {"c": "d", "e": "f"})
        assert contents(state) == contents(claim.state)

    # -- calls, events, ids, fields

    async def test_a_result_is_kept_with_its_call_until_it_is_forgotten(self, store: SessionStore) -> None:
        claim = await filled(store)
        result = ToolResult("c-1", '{"日":"本"}', is_error=True)
        await store.commit(claim, "commit-1", [FinishCall("c-1", result)])
        claim = await store.claim(KEY)
        assert claim.state.calls == {"c-1": call(result=result)}
        await store.commit(claim, "commit-2", [ForgetCall("c-1"), ForgetCall("c-1"), ForgetCall("none")])
        assert (await stored(store)).calls == {}

    async def test_events_stay_in_order_until_they_are_acknowledged(self, store: SessionStore) -> None:
        claim = await store.claim(KEY)
        names = [f"evt-{number:x}" for number in range(20, 0, -1)]
        await store.commit(claim, "commit-1", [PutOutbound(outbound(name)) for name in names])
        await store.commit(
            claim, "commit-2", [AckOutbound(names[3]), AckOutbound("none"), AckOutbound(names[0])]
        )
        del names[3], names[0]
        assert list((await stored(store)).outbound) == names

    async def test_the_last_inbound_ids_are_remembered_and_no_more(self, store: SessionStore) -> None:
        claim = await store.claim(KEY)
        ids = [f"in-{number}" for number in range(MAX_SEEN)]
        await store.commit(claim, "commit-1", [RememberInbound(event_id) for event_id in ids])
        with pytest.raises(Duplicate):
            await store.commit(claim, "commit-2", [RememberInbound("in-0")])
        await store.commit(claim, "commit-3", [RememberInbound("in-new"), RememberInbound("in-newer")])
        claim = await store.claim(KEY)
        assert list(claim.state.seen) == [*ids[2:], "in-new", "in-newer"]
        await store.commit(claim, "commit-4", [RememberInbound("in-0")])

    async def test_a_field_is_set_changed_and_dropped(self, store: SessionStore) -> None:
        claim = await store.claim(KEY)
        await store.commit(
            claim, "commit-1", [SetField("a", "1"), SetField("b", "ü\n🎉"), SetField("c", "3")]
        )
        await store.commit(claim, "commit-2", [SetField("a", "2"), SetField("c", ""), SetField("none", "")])
        assert (await stored(store)).fields == {"a": "2", "b": "ü\n🎉"}

    # -- the end

    async def test_a_fenced_claim_releases_nothing(self, store: SessionStore) -> None:
        old = await filled(store)
        claim = await store.claim(KEY)
        await store.release(old)
        await store.commit(claim, "commit-1", [SetField("c", "d")])
        assert (await stored(store)).log == HISTORY

    async def test_a_released_claim_may_not_write(self, store: SessionStore) -> None:
        claim = await filled(store)
        await store.release(claim)
        await store.release(claim)
        with pytest.raises(Fenced) as caught:
            await store.commit(claim, "commit-1", [SetField("a", "c")])
        assert caught.value.gone


class ExpiryContract:
    """What a store must do that forgets sessions after a time.

    A subclass has the fixtures ``brief``, such a store, and ``wait``, which lets all end that ends by itself.
    """

    GRANTS = SessionKey("subject", "$grants")

    async def test_the_servers_own_records_outlive_every_session(
        self, brief: SessionStore, wait: Callable[[], Awaitable[None]]
    ) -> None:
        grants = await brief.claim(self.GRANTS)
        await brief.commit(grants, "commit-1", [SetField("grants", "all")])
        await brief.commit(grants, "commit-1", [SetField("grants", "all")])  # a retry
        await filled(brief)
        await wait()
        fresh = await brief.claim(KEY)
        assert fresh.epoch == 1 and not fresh.state.log
        record = await brief.claim(self.GRANTS)
        assert (record.epoch, record.state.fields) == (2, {"grants": "all"})
        await wait()
        record = await brief.claim(self.GRANTS)
        assert (record.epoch, record.state.fields) == (3, {"grants": "all"})


class SessionLimitContract:
    """What a store must do for subjects that open session after session.

    A subclass has the fixture ``few``: a store that keeps two sessions of a subject.
    """

    async def test_a_new_session_beyond_the_limit_of_a_subject_is_refused(self, few: SessionStore) -> None:
        keys = [SessionKey("subject", f"s-{number}") for number in range(2)]
        for key in keys:
            await few.commit(await few.claim(key), "commit-1", [SetField("a", "b")])
        refused = SessionKey("subject", "s-2")
        for _ in range(2):
            with pytest.raises(TooManySessions, match="2 sessions of this token"):
                await few.claim(refused)
        for key in keys:
            assert (await few.claim(key)).state.fields == {"a": "b"}
        for key in (SessionKey("another", "s-2"), SessionKey("subject", "$grants")):
            assert (await few.claim(key)).epoch == 1

    async def test_a_refusal_costs_no_other_claim_of_the_same_moment(self, few: SessionStore) -> None:
        keys = [SessionKey("subject", f"s-{number}") for number in range(6)]
        other_keys = [SessionKey(f"subject-{number}", "s-1") for number in range(6)]
        claims = await asyncio.gather(*(few.claim(key) for key in keys + other_keys), return_exceptions=True)
        refused = [isinstance(claim, TooManySessions) for claim in claims]
        assert sum(refused[:6]) == 4 and not any(refused[6:])

    async def test_anonymous_sessions_are_not_limited(self, few: SessionStore) -> None:
        for number in range(5):
            assert (await few.claim(SessionKey(ANONYMOUS, f"s-{number}"))).epoch == 1

    async def test_a_deleted_session_makes_room(self, few: SessionStore) -> None:
        claims = [await few.claim(SessionKey("subject", f"s-{number}")) for number in range(2)]
        if isinstance(few, MemoryStore):
            await few.release(claims[0])
        else:
            await cast(DurableStore, few).delete("subject", "s-0")
        assert (await few.claim(SessionKey("subject", "s-2"))).epoch == 1


class DurableStore(SessionStore, StoredSessions, Protocol):
    """A store that outlives its process."""


class AdminContract:
    """The operator's operations. A subclass has the fixture ``store``, an empty durable store."""

    KEYS = [SessionKey(subject, f"s-{number}") for subject in ("a", "a/b", "b*", "bc") for number in range(3)]

    @pytest.fixture
    def admin(self, store: DurableStore) -> SessionAdmin:
        return SessionAdmin(store)

    async def fill(self, store: DurableStore) -> None:
        for key in reversed(self.KEYS):
            await store.commit(await store.claim(key), "commit-1", [SetField("name", key.session_id)])

    @staticmethod
    def keys(infos: list[SessionInfo]) -> list[SessionKey]:
        return [SessionKey(info.subject, info.session_id) for info in infos]

    async def test_sessions_are_listed_by_subject_and_id(
        self, store: DurableStore, admin: SessionAdmin
    ) -> None:
        assert await admin.sessions() == []
        await self.fill(store)
        assert self.keys(await admin.sessions()) == self.KEYS
        for subject in ("a", "a/b", "b*", "b", "?"):
            expected = [key for key in self.KEYS if key.subject == subject]
            assert self.keys(await admin.sessions(subject)) == expected

    @pytest.mark.parametrize("limit", [1, 5, 12])
    async def test_pages_follow_each_other(
        self, store: DurableStore, admin: SessionAdmin, limit: int
    ) -> None:
        await self.fill(store)
        keys: list[SessionKey] = []
        while page := await admin.sessions(after=keys[-1] if keys else None, limit=limit):
            assert len(page) <= limit
            keys += self.keys(page)
        assert keys == self.KEYS

    async def test_the_subjects_with_a_session_of_an_id_are_listed(
        self, store: DurableStore, admin: SessionAdmin
    ) -> None:
        await self.fill(store)
        await store.claim(SessionKey("c", "s-*"))
        assert await admin.subjects("s-1") == ["a", "a/b", "b*", "bc"]
        assert await admin.subjects("s-*") == ["c"]
        assert await admin.subjects("s-%") == []

    async def test_a_session_is_described_and_shown_without_fencing_its_owner(
        self, store: DurableStore, admin: SessionAdmin
    ) -> None:
        claim = await filled(store)
        await store.commit(claim, "commit-1", [TrimLog(3)])
        (info,) = await admin.sessions()
        assert (info.subject, info.session_id, info.epoch, info.revision) == ("subject", "s-1", 1, 2)
        assert (info.messages, info.calls, info.outbound, info.owned) == (2, 1, 1, True)
        assert abs(info.updated - time.time()) < 60 and 300 < info.size < 3_000
        document = await admin.show(KEY)
        assert document is not None and json.loads(json.dumps(document)) == document
        log = [(entry["position"], entry["type"]) for entry in document["log"]]
        assert log == [(3, "assistant"), (4, "note")]
        assert (document["seen"], document["fields"]) == (["in-1"], {"a": "b"})
        assert document["outbound_records"][0]["frame"] == {"text": '日本 " 🎉'}
        await store.commit(claim, "commit-2", [SetField("a", "c")])
        await store.release(claim)
        assert not (await admin.sessions())[0].owned
        assert await admin.show(SessionKey("subject", "another")) is None

    async def test_all_sessions_or_those_of_a_subject_are_exported(
        self, store: DurableStore, admin: SessionAdmin
    ) -> None:
        await self.fill(store)
        exported = [(session["subject"], session["fields"]["name"]) async for session in admin.export()]
        assert exported == [(key.subject, key.session_id) for key in self.KEYS]
        assert len([session async for session in admin.export("b*")]) == 3

    async def test_a_deleted_session_is_gone_and_its_owner_is_fenced(
        self, store: DurableStore, admin: SessionAdmin
    ) -> None:
        claim = await filled(store)
        assert [await admin.delete("subject", "s-1") for _ in range(2)] == [1, 0]
        assert await admin.show(KEY) is None and await admin.sessions() == []
        with pytest.raises(Fenced) as caught:
            await store.commit(claim, "commit-1", [SetField("a", "c")])
        assert caught.value.gone
        fresh = await store.claim(KEY)
        assert fresh.epoch == 1 and not fresh.state.log

    async def test_the_sessions_of_one_subject_are_deleted(
        self, store: DurableStore, admin: SessionAdmin
    ) -> None:
        await self.fill(store)
        assert [await admin.delete("b*") for _ in range(2)] == [3, 0]
        assert {info.subject for info in await admin.sessions()} == {"a", "a/b", "bc"}
