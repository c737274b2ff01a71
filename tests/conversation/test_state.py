"""What a state says of itself, as tables."""

from __future__ import annotations

import pytest

from conductor.conversation import records as r
from conductor.conversation.state import Call, Conversation, Notice, Question
from conductor.messages import UserMessage
from tests.conversation.build import CARDS, STARTED, asking, device, finished, fold, local, question, replied

NEW = Conversation()
ROUND = fold(STARTED, replied(device("c1"), device("c2")), finished("c1"))

IS_NEW: list[tuple[str, Conversation, bool]] = [
    ("nothing", NEW, True),
    ("claims", fold(r.Claimed("token.2:other")), True),
    ("a notice that waits", fold(r.NoticeTaken("", Notice(text="n"))), True),
    ("a turn", fold(STARTED), False),
    ("an event", fold(r.EventHandled("e1")), False),
    ("a history", Conversation(log=[UserMessage("hi")]), False),
    ("a field", fold(r.FieldSet("a", "1")), False),
    ("a state on the screen", fold(r.StateShown("idle")), False),
    ("a client", fold(r.ProfileDeclared(CARDS)), False),
]


@pytest.mark.parametrize(("state", "is_new"), [row[1:] for row in IS_NEW], ids=[row[0] for row in IS_NEW])
def test_a_session_is_new_until_something_is_recorded(state: Conversation, is_new: bool) -> None:
    assert state.is_new is is_new


OPEN_CALLS: list[tuple[str, Conversation, str, Call | None]] = [
    ("no turn", NEW, "c1", None),
    ("no such call", ROUND, "c3", None),
    ("a call that has ended", ROUND, "c1", None),
    ("an open call", ROUND, "c2", ROUND.calls[1]),
]


@pytest.mark.parametrize(
    ("state", "call_id", "call"), [row[1:] for row in OPEN_CALLS], ids=[row[0] for row in OPEN_CALLS]
)
def test_an_open_call_is_found(state: Conversation, call_id: str, call: Call | None) -> None:
    assert state.open_call(call_id) == call


TWO = asking(question(1), question(2, "c2"))
FOCUS: list[tuple[str, Conversation, Question | None]] = [
    ("no question", NEW, None),
    ("the first of two", TWO, TWO.questions["q1"]),
    (
        "the second, after the first is decided",
        fold(r.QuestionDecided(question_id="q1", call_id="c1", outcome="denied"), state=TWO),
        TWO.questions["q2"],
    ),
]


@pytest.mark.parametrize(("state", "focus"), [row[1:] for row in FOCUS], ids=[row[0] for row in FOCUS])
def test_a_spoken_answer_concerns_the_first_question(state: Conversation, focus: Question | None) -> None:
    assert state.focus == focus


def test_a_call_says_where_it_runs_and_whether_it_has_ended() -> None:
    assert device().is_device and not local().is_device
    assert [call.is_open for call in ROUND.calls] == [False, True]
    assert NEW.calls == ()


def test_the_log_has_positions_that_stay() -> None:
    state = fold(
        STARTED,
        r.TurnEnded(reason="answered", text="Well."),
        r.TurnStarted(cause="transcript", limit_ms=9, event_id="e", text="go", trim=1),
    )
    assert (state.log_start, len(state.log), state.log_end) == (1, 2, 3)


EARLIER = fold(STARTED)
CONTINUES: list[tuple[str, Conversation, Conversation, bool]] = [
    ("nothing", fold(), NEW, True),
    ("itself", EARLIER, EARLIER, True),
    ("a later commit", fold(r.StateShown("idle"), state=EARLIER), EARLIER, True),
    ("a later owner", fold(r.Claimed("token.2:other"), state=EARLIER), EARLIER, True),
    ("an earlier commit", fold(), EARLIER, False),
    ("another owner of as many commits", Conversation(claims={"token.2:other": 2}), EARLIER, False),
]


@pytest.mark.parametrize(
    ("state", "earlier", "continues"), [row[1:] for row in CONTINUES], ids=[row[0] for row in CONTINUES]
)
def test_a_state_continues_the_one_that_it_contains(
    state: Conversation, earlier: Conversation, continues: bool
) -> None:
    assert state.continues(earlier) is continues
