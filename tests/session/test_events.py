"""The events of a record: a table of shapes, and the promises of their ids."""

from __future__ import annotations

import msgspec
import pytest

from conductor.conversation import records as r
from conductor.conversation.state import Conversation, LateCall, Notice, Profile
from tests.session.pure import (
    CARDS,
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
    shapes,
)
from tests.shapes import PLAIN_TURN

SEGMENTS = Profile(("segments",))
TURN = fold(STARTED)
CARD_TURN = fold(r.ProfileDeclared(CARDS), STARTED)
SILENT: list[r.Record] = [
    r.Claimed("b"),
    r.Released(),
    r.ProfileDeclared(VOICE),
    r.CallsWithheld(("e",)),
    r.FieldSet("a", "1"),
    r.InputQueued("e", "hi"),
    r.EventHandled("e"),
    r.NoticeTaken("e", Notice("n")),
    r.HistoryTrimmed(1),
    r.ReplyBroken(),
    r.PromptHeard("q1"),
    r.PromptCut("q1", "e", NOW),
    r.SpeechCut("s", "One"),
]
FINAL = ["assistant.speech.final", "append assistant"]
SPOKEN = ["state speaking", "tts.speak"]
LATE = LateCall("c1", "device.do", "write", NOW + 9)

TABLE: list[tuple[str, Conversation, tuple[r.Record, ...], list[str]]] = [
    (
        "a plain turn",
        fold(),
        (STARTED, replied(text="Yes.", speech_text="Yes."), r.TurnEnded("answered")),
        PLAIN_TURN,
    ),
    ("a turn about notices", fold(), (r.TurnStarted("news", 9),), []),
    ("a shown state", fold(), (r.StateShown("idle"),), ["state idle"]),
    ("a reply without sound", TURN, (replied(text="```x```"),), FINAL),
    ("a device call", TURN, (replied(device()),), ["device.do"]),
    ("words and a call", TURN, (replied(device(), text="I do it."),), [*FINAL, "device.do"]),
    (
        "words aloud and a call of the server",
        TURN,
        (replied(local(), text="I add.", speech_text="I add."),),
        [*FINAL, *SPOKEN, "state thinking"],
    ),
    (
        "calls with activity",
        CARD_TURN,
        (replied(device(), local("c2")),),
        ["device.do", "tool.activity", "tool.activity"],
    ),
    ("a gated call", TURN, (replied(device(consent="needed")),), []),
    (
        "a held call",
        fold(replied(device(consent="held")), state=TURN),
        (r.CallReleased("c1"),),
        ["device.do"],
    ),
    ("a result", fold(replied(device()), state=TURN), (finished(),), []),
    ("a result with activity", fold(replied(device()), state=CARD_TURN), (finished(),), ["tool.activity"]),
    (
        "a time-out",
        fold(replied(device()), state=CARD_TURN),
        (finished(reason="tool_result_timeout", late=LATE),),
        ["tool.cancel", "tool.activity"],
    ),
    ("a segment", TURN, (r.SegmentSpoken("One. ", "One."),), SPOKEN),
    (
        "a second segment",
        fold(r.SegmentSpoken("One. ", "One."), state=TURN),
        (r.SegmentSpoken("Two. ", "Two."),),
        ["tts.speak"],
    ),
    ("a segment without sound", TURN, (r.SegmentSpoken("- ", ""),), []),
    (
        "the rest of segments",
        fold(r.SegmentSpoken("One. ", "One."), state=TURN),
        (replied(text="One. Two.", speech_text="Two."),),
        [*FINAL, "tts.speak"],
    ),
    ("a broken reply", fold(r.SegmentSpoken("One. ", "One."), state=TURN), (r.ReplyBroken("One."),), FINAL),
    (
        "a bridge",
        fold(replied(local()), state=TURN),
        (r.BridgeSpoken("One moment."),),
        [*SPOKEN, "state thinking"],
    ),
    ("an end", TURN, (r.TurnEnded("answered"),), ["state idle"]),
    ("an end that another turn follows", TURN, (r.TurnEnded("interrupted", follows=True),), []),
    (
        "an end that cancels",
        fold(replied(device()), state=CARD_TURN),
        (r.TurnEnded("timed_out", cancelled=("c1",)),),
        ["tool.cancel", "state idle"],
    ),
    (
        "an apology",
        TURN,
        (r.TurnEnded("failed", error="turn_timeout", apology="Sorry.", speech_text="Sorry."),),
        ["error", *FINAL, *SPOKEN, "state idle"],
    ),
    ("a failure in silence", TURN, (r.TurnEnded("failed", error="turn_timeout"),), ["error", "state idle"]),
    (
        "cards",
        fold(replied(device(consent="needed")), state=CARD_TURN),
        (r.QuestionsAsked((question(card=True),)),),
        ["approval.request", "state idle"],
    ),
    (
        "a spoken question",
        fold(replied(device(consent="needed")), r.QuestionsAsked((question(),)), state=TURN),
        (r.PromptSpoken("q1", "May I?"),),
        ["append assistant", *SPOKEN, "state idle"],
    ),
    ("a spoken question that is over", TURN, (r.PromptSpoken("q1", "May I?"),), []),
    (
        "an unclear answer",
        asking(question()),
        (r.AnswerUnclear("q1", "e", "hm", counts=True),),
        ["append user"],
    ),
    (
        "an unclear answer to a card",
        asking(question(), profile=CARDS),
        (r.AnswerUnclear("q1", "e", "hm", counts=False),),
        ["append user", "state idle"],
    ),
    (
        "a spoken yes",
        asking(question()),
        (r.QuestionDecided("q1", "c1", "allowed", text="yes"),),
        ["append user", "state thinking", "device.do"],
    ),
    (
        "a tap",
        asking(question(), profile=CARDS),
        (r.QuestionDecided("q1", "c1", "allowed"),),
        ["approval.resolved", "state thinking", "device.do", "tool.activity"],
    ),
    (
        "a tap beside another card",
        asking(question(), question(2, "c2"), profile=CARDS),
        (r.QuestionDecided("q1", "c1", "denied"),),
        ["approval.resolved"],
    ),
    (
        "an expiry",
        asking(question(), profile=CARDS),
        (r.QuestionDecided("q1", "c1", "expired"),),
        ["approval.resolved"],
    ),
    (
        "a superseded card",
        asking(question(), profile=CARDS),
        (r.TurnEnded("interrupted", superseded=("q1",)),),
        ["approval.resolved", "state idle"],
    ),
    (
        "a late result",
        fold(replied(device()), finished(late=LATE), state=CARD_TURN),
        (r.LateFinished("c1", Notice("n", late=True), starts_turn=True),),
        ["tool.late"],
    ),
]


@pytest.mark.parametrize(
    ("state", "records", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_a_record_is_shown(state: Conversation, records: tuple[r.Record, ...], expected: list[str]) -> None:
    assert shapes(events_of(state, *records)) == expected


@pytest.mark.parametrize("record", SILENT, ids=lambda record: type(record).__name__)
def test_a_record_that_only_the_server_needs_is_not_shown(record: r.Record) -> None:
    for state in (fold(), TURN, asking(question()), asking(question(), profile=CARDS)):
        assert events_of(state, record) == []


def test_the_same_record_always_has_the_same_events() -> None:
    for _, state, records, _ in TABLE:
        assert events_of(state, *records) == events_of(state, *records)


def test_ids_of_a_claim_are_in_the_order_of_the_wire() -> None:
    for _, state, records, _ in TABLE:
        places = [int(event.id.rpartition("_")[2], 16) for event in events_of(state, *records)]
        assert places == sorted(set(places)), [event.id for event in events_of(state, *records)]


def test_an_id_holds_the_claim_and_no_more_of_its_token() -> None:
    (event,) = events_of(fold(), r.StateShown("idle"))
    assert event.id.startswith("evt_claim_") and "token" not in event.id


def test_the_segments_of_a_reply_share_an_id_with_its_message() -> None:
    state = fold(r.ProfileDeclared(SEGMENTS), STARTED, r.SegmentSpoken("One. ", "One."))
    events = events_of(state, replied(text="One. Two.", speech_text="Two."))
    speech, message = ([e for e in events if e.kind == kind][0] for kind in ("speak", "message"))
    segment = msgspec.json.decode(msgspec.json.decode(speech.payload)["arguments"])
    arguments = msgspec.json.decode(msgspec.json.decode(message.payload)["arguments"])
    assert segment["speechId"] == arguments["messageId"] == next(iter(state.speeches.values())).reply_id
    assert (segment["segment"], segment["last"]) == (1, True)
