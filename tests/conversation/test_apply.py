"""The promises of `apply` for any records in any order."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from conductor.conversation import records as r
from conductor.conversation.apply import MAX_HANDLED, MAX_OUTBOUND, advance
from conductor.conversation.ledger import replay
from conductor.conversation.state import (
    MAX_NOTICES,
    Cause,
    Conversation,
    LateCall,
    Notice,
    Profile,
)
from conductor.events.server import EndReason
from conductor.messages import AssistantMessage, ToolResult, UserMessage
from tests.conversation.build import (
    CARDS,
    CLAIM,
    NOW,
    STARTED,
    VOICE,
    asking,
    device,
    events_of,
    finished,
    fold,
    local,
    question,
    replied,
)

LATE = LateCall("c1", "device.do", "write", NOW + 1_000)


def test_the_clock_of_a_turn_stands_while_a_person_decides() -> None:
    state = asking(question())
    assert state.turn is not None and state.turn.running_since == 0
    state = fold(r.QuestionDecided("q1", "c1", "allowed"), at=NOW + 5_000, state=state)
    assert state.turn is not None and state.turn.running_since == NOW + 5_000
    assert state.turn.left_ms == 120_000


def test_the_clock_of_a_turn_stands_while_no_process_owns_it() -> None:
    state = fold(STARTED)
    state = fold(r.StateShown("thinking"), at=NOW + 1_000, state=state)
    state = fold(r.Claimed("b"), at=NOW + 60_000, state=state)
    assert state.turn is not None
    assert (state.turn.left_ms, state.turn.running_since, state.turn.attempts) == (120_000, NOW + 60_000, 2)


def test_the_tables_of_a_state_are_bounded() -> None:
    state = Conversation()
    for number in range(1_000):
        advance(state, r.Commit(CLAIM, NOW, (r.EventHandled(f"e{number}"), r.StateShown("idle"))))
        advance(
            state, r.Commit(CLAIM, NOW, (r.NoticeTaken("", Notice(f"n{number}")), r.Claimed(f"c{number}")))
        )
    assert (len(state.handled_ids), len(state.outbound), len(state.notices)) == (
        MAX_HANDLED,
        MAX_OUTBOUND,
        MAX_NOTICES,
    )
    assert len(state.claim_times) < 20 and len(state.claims) < 20


# -- any records in any order

IDS = st.sampled_from(["c1", "c2", "q1", "q2", "nobody"])
CAUSES: st.SearchStrategy[Cause] = st.sampled_from(["transcript", "news", "request"])
REASONS: st.SearchStrategy[EndReason] = st.sampled_from(["answered", "interrupted", "failed"])
CALLS = st.sampled_from(
    [(), (device(),), (device(), device("c2")), (local(),), (device(consent="needed"), local("c2"))]
)
RECORDS: st.SearchStrategy[r.Record] = st.one_of(
    st.sampled_from(
        [r.Claimed("a"), r.Claimed("b"), r.Released(), r.ProfileDeclared(VOICE), r.StateShown("idle")]
    ),
    st.sampled_from(
        [r.ProfileDeclared(VOICE), r.ProfileDeclared(CARDS), r.ProfileDeclared(Profile(("segments",)))]
    ),
    st.sampled_from(
        [r.InputQueued("e1", "hi"), r.EventHandled("e2"), r.NoticeTaken("e3", Notice("n", NOW + 9))]
    ),
    CAUSES.map(lambda c: r.TurnStarted(c, 9, text="go")),
    st.sampled_from(
        [r.SegmentSpoken("One. ", "One."), r.BridgeSpoken("Wait."), r.ReplyBroken("One."), r.ReplyBroken()]
    ),
    st.builds(replied, text=st.sampled_from(["", "One. Two."]), speech_text=st.sampled_from(["", "Two."])),
    CALLS.map(lambda calls: replied(*calls)),
    st.builds(finished, IDS, late=st.sampled_from([None, LATE])),
    REASONS.map(lambda reason: r.TurnEnded(reason, superseded=("q1",))),
    st.builds(
        lambda a, b: r.QuestionsAsked((question(1, a, card=b), question(2, "c2", card=b))), IDS, st.booleans()
    ),
    st.builds(r.PromptSpoken, IDS, st.just("May I?")),
    st.builds(r.PromptHeard, IDS),
    st.builds(r.PromptCut, IDS, st.just("e4"), st.just(NOW)),
    st.builds(r.AnswerUnclear, IDS, st.just("e5"), st.just("hm"), st.booleans()),
    st.builds(r.QuestionDecided, IDS, IDS, st.sampled_from(["allowed", "denied", "expired", "edited"])),
    st.builds(r.SpeechCut, IDS, st.just("One [cut]")),
    st.builds(r.LateFinished, IDS, st.just(Notice("late", NOW, late=True)), st.booleans()),
    st.builds(r.ReplyBroken, st.just("")),
    st.just(r.CallsWithheld(("evt_1",))),
)


@given(st.lists(RECORDS, max_size=40))
def test_any_records_can_be_applied_and_replayed(records: list[r.Record]) -> None:
    commits = [r.Commit(CLAIM, NOW + number, (record,)) for number, record in enumerate(records)]
    state = Conversation()
    ids = [event.id for commit in commits for event in advance(state, commit)]
    assert len(ids) == len(set(ids)), "one id, two events"
    assert replay([r.encode(commit) for commit in commits]) == state


@given(st.lists(RECORDS, max_size=40), st.integers(0, 40))
def test_a_snapshot_says_all(records: list[r.Record], cut: int) -> None:
    commits = [r.Commit(CLAIM, NOW + number, (record,)) for number, record in enumerate(records)]
    before = replay([r.encode(commit) for commit in commits[:cut]])
    after = [r.encode(commit) for commit in commits[cut:]]
    if after:
        after[0] = r.encode(msgspec.structs.replace(commits[cut], state=before))
        assert replay(after) == replay([r.encode(commit) for commit in commits])


def test_messages_of_a_reply_stand_before_their_results() -> None:
    state = fold(STARTED, replied(device(), text="I do it."), finished())
    assert [type(item) for item in state.log] == [UserMessage, AssistantMessage, ToolResult]


def test_an_id_holds_the_claim_and_no_more_of_its_token() -> None:
    (event,) = events_of(fold(), r.StateShown("idle"))
    assert event.id.startswith("evt_claim_") and "token" not in event.id


def test_of_too_many_notices_late_results_stay() -> None:
    notices = [r.NoticeTaken("", Notice(f"n{number}")) for number in range(MAX_NOTICES + 1)]
    state = fold(r.NoticeTaken("", Notice("late", late=True)), *notices)
    assert [notice.text for notice in state.notices][:2] == ["late", "n2"]
    assert len(state.notices) == MAX_NOTICES


def test_an_empty_value_removes_a_field() -> None:
    assert fold(r.FieldSet("a", "1"), r.FieldSet("b", "2"), r.FieldSet("a", "")).fields == {"b": "2"}
