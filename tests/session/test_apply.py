"""The state that records make: `apply` as a table, and its promises for any records in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest
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
    Summary,
    UnknownCall,
)
from conductor.events.server import EndReason
from conductor.messages import AssistantMessage, Note, ToolResult, UserMessage
from tests.session.helpers import faults
from tests.session.pure import (
    CARDS,
    CLAIM,
    NOW,
    STARTED,
    VOICE,
    asking,
    device,
    finished,
    fold,
    local,
    question,
    replied,
)

ENDED = r.TurnEnded("answered")
LATE = LateCall("c1", "device.do", "write", NOW + 1_000)
SPEECH = fold(STARTED, replied(text="One two.", speech_text="One two."), ENDED)


def last_speech(state: Conversation) -> str:
    return next(reversed(state.speeches))


TABLE: list[tuple[str, Conversation, tuple[r.Record, ...], Callable[[Any], object], object]] = [
    ("a claim", Conversation(), (r.Claimed("b"),), lambda s: (s.claim, len(s.claim_times)), ("b", 2)),
    ("a release", Conversation(), (r.Released(),), lambda s: s.released, True),
    ("a claim after a release", fold(r.Released()), (r.Claimed("b"),), lambda s: s.released, False),
    ("a declaration", Conversation(), (r.ProfileDeclared(CARDS),), lambda s: s.profile, CARDS),
    ("a field", Conversation(), (r.FieldSet("a", "1"),), lambda s: s.fields, {"a": "1"}),
    ("an empty field", fold(r.FieldSet("a", "1")), (r.FieldSet("a", ""),), lambda s: s.fields, {}),
    (
        "an input",
        Conversation(),
        (r.InputQueued("e", "hi"),),
        lambda s: (s.queue[0].text, [*s.handled_ids]),
        ("hi", ["e"]),
    ),
    ("an event", Conversation(), (r.EventHandled("e"),), lambda s: [*s.handled_ids], ["e"]),
    (
        "a turn",
        Conversation(),
        (STARTED,),
        lambda s: (s.log, [*s.handled_ids]),
        ([UserMessage("go")], ["words-1"]),
    ),
    ("a turn from the queue", fold(r.InputQueued("words-1", "go")), (STARTED,), lambda s: s.queue, []),
    (
        "a summary",
        fold(STARTED, ENDED),
        (r.TurnStarted("transcript", 9, trim=1, summary=Summary("s")),),
        lambda s: (s.log, s.log_start, s.summary),
        ([], 1, Summary("s")),
    ),
    (
        "a program's turn",
        Conversation(),
        (r.TurnStarted("request", 9, tool="x"),),
        lambda s: type(s.log[0]),
        Note,
    ),
    ("a reply", fold(STARTED), (replied(text="Yes."),), lambda s: s.log[-1].text, "Yes."),
    (
        "a call",
        fold(STARTED),
        (replied(device()),),
        lambda s: (s.calls[0].started_at, s.calls[0].claim),
        (NOW, CLAIM),
    ),
    ("a gated call", fold(STARTED), (replied(device(consent="needed")),), lambda s: s.calls[0].started_at, 0),
    (
        "a held call",
        fold(STARTED, replied(device(consent="held"))),
        (r.CallReleased("c1"),),
        lambda s: (s.calls[0].consent, s.calls[0].started_at, s.calls[0].claim),
        ("free", NOW, CLAIM),
    ),
    (
        "a result",
        fold(STARTED, replied(device(), device("c2"))),
        (finished(),),
        lambda s: (s.calls[0].is_open, len(s.log)),
        (False, 2),
    ),
    (
        "the last result",
        fold(STARTED, replied(device())),
        (finished(),),
        lambda s: (list(s.calls), type(s.log[-1]), s.turn.rounds),
        ([], ToolResult, 1),
    ),
    (
        "results in another order",
        fold(STARTED, replied(device(), device("c2"))),
        (finished("c2"), finished()),
        lambda s: [m.call_id for m in s.log[2:]],
        ["c1", "c2"],
    ),
    (
        "a second result",
        fold(STARTED, replied(device(), device("c2")), finished()),
        (finished(late=LATE),),
        lambda s: s.late_calls,
        {},
    ),
    ("an action", fold(STARTED, replied(device())), (finished(),), lambda s: s.turn.actions, ["device.do"]),
    ("a read is no action", fold(STARTED, replied(local())), (finished(),), lambda s: s.turn.actions, []),
    (
        "a job is no action yet",
        fold(STARTED, replied(device())),
        (finished(reason="accepted"),),
        lambda s: s.turn.actions,
        [],
    ),
    (
        "a late call",
        fold(STARTED, replied(device())),
        (finished(late=LATE),),
        lambda s: [*s.late_calls],
        ["c1"],
    ),
    (
        "an unknown call",
        fold(STARTED, replied(device())),
        (finished(unknown=UnknownCall("d", NOW)),),
        lambda s: [*s.unknown_calls],
        ["c1"],
    ),
    (
        "a late result",
        fold(STARTED, replied(device()), finished(late=LATE, unknown=UnknownCall("d", NOW + 9))),
        (r.LateFinished("c1", Notice("done", NOW, late=True), True),),
        lambda s: (s.late_calls, s.unknown_calls, len(s.notices)),
        ({}, {}, 1),
    ),
    (
        "a late job",
        fold(STARTED, replied(device()), finished(late=LATE)),
        (r.JobAccepted(msgspec.structs.replace(LATE, job=True)),),
        lambda s: s.late_calls["c1"].job,
        True,
    ),
    (
        "a late result among many notices",
        fold(
            r.NoticeTaken("", Notice("late", late=True)),
            *(r.NoticeTaken("", Notice(f"n{n}")) for n in range(16)),
        ),
        (r.NoticeTaken("", Notice("last")),),
        lambda s: (len(s.notices), s.notices[0].text, s.notices[1].text, s.notices[-1].text),
        (16, "late", "n2", "last"),
    ),
    ("an end", fold(STARTED), (ENDED,), lambda s: s.turn, None),
    (
        "an end with open calls",
        fold(STARTED, replied(device())),
        (r.TurnEnded("interrupted", results=(finished(),)),),
        lambda s: (s.turn, faults(s.log)),
        (None, []),
    ),
    (
        "an end in a reply",
        fold(STARTED),
        (r.TurnEnded("interrupted", text="One"),),
        lambda s: s.log[-1].text,
        "One",
    ),
    (
        "an apology",
        fold(STARTED),
        (r.TurnEnded("failed", text="One", apology="Sorry.", speech_text="Sorry."),),
        lambda s: (s.log[-1].text, len(s.speeches)),
        ("One Sorry.", 1),
    ),
    (
        "a segment",
        fold(STARTED),
        (r.SegmentSpoken("One. ", "One."),),
        lambda s: (s.turn.reply_text, s.turn.segments, len(s.log)),
        ("One. ", 1, 1),
    ),
    (
        "a reply of segments",
        fold(STARTED, r.SegmentSpoken("One. ", "One.")),
        (replied(text="One. Two.", speech_text="Two."),),
        lambda s: ([x.position for x in s.speeches.values()], len({x.reply_id for x in s.speeches.values()})),
        ([1, 1], 1),
    ),
    (
        "a broken reply",
        fold(STARTED, r.SegmentSpoken("One. ", "One.")),
        (r.ReplyBroken("One."),),
        lambda s: (s.turn.reply_text, s.turn.retries, len(s.log)),
        ("", 1, 3),
    ),
    ("a lost reply", fold(STARTED), (r.ReplyBroken("One.", by_takeover=True),), lambda s: s.turn.retries, 0),
    (
        "a trim",
        fold(STARTED, replied(text="Yes.")),
        (r.HistoryTrimmed(1),),
        lambda s: (s.log_start, len(s.log)),
        (1, 1),
    ),
    (
        "cards",
        fold(r.ProfileDeclared(CARDS), STARTED, replied(device(consent="needed"))),
        (r.QuestionsAsked((question(card=True),)),),
        lambda s: (s.focus.id, s.calls[0].consent),
        ("q1", "asked"),
    ),
    (
        "withdrawn cards",
        asking(question(), profile=CARDS),
        (r.ProfileDeclared(VOICE),),
        lambda s: (s.focus.card, any(e.kind == "approval" for e in s.outbound.values())),
        (False, False),
    ),
    ("a heard prompt", asking(question()), (r.PromptHeard("q1"),), lambda s: s.focus.presented_at, NOW),
    (
        "a cut prompt",
        fold(r.PromptHeard("q1"), state=asking(question())),
        (r.PromptCut("q1", "e", NOW + 5),),
        lambda s: (s.focus.presented_at, s.focus.repeat_at, s.speeches),
        (0, NOW + 5, {}),
    ),
    (
        "an unclear answer",
        asking(question()),
        (r.AnswerUnclear("q1", "e", "hm", counts=True),),
        lambda s: (s.focus.unclear, "e" in s.handled_ids),
        (1, True),
    ),
    (
        "a yes",
        asking(question()),
        (r.QuestionDecided("q1", "c1", "allowed"),),
        lambda s: (s.questions, s.calls[0].consent, s.calls[0].started_at),
        ({}, "given", NOW),
    ),
    (
        "an edit",
        asking(question()),
        (r.QuestionDecided("q1", "c1", "edited", arguments='{"x":1}', digest="d"),),
        lambda s: (s.calls[0].arguments, s.calls[0].digest),
        ('{"x":1}', "d"),
    ),
    (
        "a no",
        asking(question()),
        (r.QuestionDecided("q1", "c1", "denied"),),
        lambda s: (s.calls[0].consent, s.turn.denied, s.decided),
        ("denied", ["digest c1"], {"q1": "denied"}),
    ),
    (
        "a grant",
        asking(question()),
        (r.QuestionDecided("q1", "c1", "allowed", grants="all"),),
        lambda s: s.grants,
        "all",
    ),
    (
        "a cut speech",
        SPEECH,
        (r.SpeechCut(last_speech(SPEECH), "One [cut]"),),
        lambda s: (s.log[-1].text, s.speeches),
        ("One [cut]", {}),
    ),
]


@pytest.mark.parametrize(
    ("state", "records", "look", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_a_record_changes_the_state(
    state: Conversation, records: tuple[r.Record, ...], look: Callable[[Any], object], expected: object
) -> None:
    assert look(fold(*records, state=state)) == expected


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
    st.builds(r.HistoryTrimmed, st.integers(0, 9)),
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


def test_every_record_can_be_applied_to_nothing() -> None:
    kinds = {type(record) for _, _, records, *_ in TABLE for record in records}
    kinds |= {r.CallsWithheld, r.StateShown, r.NoticeTaken, r.BridgeSpoken, r.PromptSpoken}
    kinds |= {r.SessionOpened, r.SessionClosed, r.DeviceWanted}
    assert kinds == set(get_args(r.Record))
    for _, _, records, *_ in TABLE:
        assert isinstance(fold(*records).revision, int)


def test_messages_of_a_reply_stand_before_their_results() -> None:
    state = fold(STARTED, replied(device(), text="I do it."), finished())
    assert [type(item) for item in state.log] == [UserMessage, AssistantMessage, ToolResult]
