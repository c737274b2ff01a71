"""What a state says of itself, as tables."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from conductor.conversation import records as r
from conductor.conversation.state import (
    MAX_FACTS,
    AppFact,
    Call,
    Conversation,
    Input,
    Notice,
    Question,
)
from conductor.messages import Image, UserMessage
from tests.conversation.build import (
    CARDS,
    NOW,
    STARTED,
    asking,
    device,
    finished,
    fold,
    local,
    question,
    replied,
)

NEW = Conversation()
NEWS = r.TurnStarted(cause="news", limit_ms=9)
INTERRUPTED = r.TurnEnded(reason="interrupted", follows=True)
MILK_AND = Input(event_id="e1", text="milk and", until=9)
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


# -- words that wait for more

SHOWN = Image(id="a", media_type="image/png", size=9, width=1, height=1)
HALVES = fold(
    r.InputQueued("e1", "milk and", "en", until=NOW + 9, images=(SHOWN,)),
    r.InputQueued("e2", "eggs", until=NOW + 9),
)
WHOLE = Input(event_id="e2", text="milk and eggs", lang="en", until=NOW + 9, earlier=("e1",), images=(SHOWN,))
STARTS_WHOLE = r.TurnStarted(
    cause="transcript", limit_ms=9, event_id="e2", text="milk and eggs", lang="en", images=(SHOWN,)
)
BEGUN = fold(STARTS_WHOLE, state=HALVES)
BEGUN_AGAIN = replace(WHOLE, until=NOW, shown=len("milk and eggs"))
WORDS = Input(event_id="words-1", text="go", until=NOW, shown=2)
UNANSWERED: list[tuple[str, Conversation, Input | None]] = [
    ("no turn", HALVES, None),
    ("a turn about two halves", BEGUN, BEGUN_AGAIN),
    ("a turn", fold(STARTED), WORDS),
    ("a turn about news", fold(r.NoticeTaken("", Notice(text="n")), NEWS), None),
    ("a turn about words without an event", fold(replace(STARTED, event_id="")), None),
    ("a part of a reply", fold(STARTED, r.SegmentSpoken("One. ", "One.")), None),
    ("a phrase of waiting", fold(STARTED, r.BridgeSpoken("Wait.")), None),
    ("a call", ROUND, None),
]


@pytest.mark.parametrize(
    ("state", "words"), [row[1:] for row in UNANSWERED], ids=[row[0] for row in UNANSWERED]
)
def test_words_wait_for_more_until_their_turn_has_brought_anything(
    state: Conversation, words: Input | None
) -> None:
    assert state.unanswered == words


HALF: list[tuple[str, Conversation, Input | None]] = [
    ("nothing waits", NEW, None),
    ("a whole sentence waits", fold(r.InputQueued("e1", "milk")), None),
    ("half a sentence waits", fold(r.InputQueued("e1", "milk and", until=9)), MILK_AND),
    (
        "it waits behind a whole one",
        fold(r.InputQueued("e0", "hi"), r.InputQueued("e1", "milk and", until=9)),
        MILK_AND,
    ),
    ("two halves wait", HALVES, WHOLE),
    (
        "the other half names its language",
        fold(r.InputQueued("e1", "milk and", "en", until=9), r.InputQueued("e2", "Eier", "de", until=9)),
        Input(event_id="e2", text="milk and Eier", lang="de", until=9, earlier=("e1",)),
    ),
    (
        "the rest of words that began a turn is shown alone",
        fold(replace(INTERRUPTED, continues=True), r.InputQueued("e3", "ham", until=9), state=BEGUN),
        Input(
            event_id="e3",
            text="milk and eggs ham",
            lang="en",
            until=9,
            earlier=("e1", "e2"),
            images=(SHOWN,),
            shown=len("milk and eggs"),
        ),
    ),
]


@pytest.mark.parametrize(("state", "half"), [row[1:] for row in HALF], ids=[row[0] for row in HALF])
def test_half_a_sentence_is_the_last_that_waits(state: Conversation, half: Input | None) -> None:
    assert state.half == half


# -- the app's facts

CART, SUN = AppFact(text="Three items.", key="cart"), AppFact(text="The sun shines.")
FULLER_CART, TOLD_SUN = replace(CART, text="Four items."), replace(SUN, untrusted=True)
NAMED_AS_CART, SAME_WORDS = AppFact(text="cart"), replace(CART, key="")
OVER, BRIEF = AppFact(text="Rain.", expires_at=NOW), AppFact(text="Snow.", expires_at=NOW + 1)
MANY = tuple(AppFact(text=f"f{number}") for number in range(MAX_FACTS))
LONG = tuple(AppFact(text=letter * 2_000 + "\u00e9" * 24) for letter in "abcd")  # 8,192 bytes
BYTE, HALF_OF_ALL = AppFact(text="x"), AppFact(text="x" * 4_096)
FACTS: list[tuple[str, tuple[AppFact, ...], AppFact, tuple[AppFact, ...], int]] = [
    ("the first", (), CART, (CART,), 0),
    ("another one", (CART,), SUN, (CART, SUN), 0),
    ("the same key", (CART, SUN), FULLER_CART, (SUN, FULLER_CART), 0),
    ("the same text without a key", (SUN, CART), TOLD_SUN, (CART, TOLD_SUN), 0),
    ("the text of a fact with a key", (CART,), SAME_WORDS, (CART, SAME_WORDS), 0),
    ("the key of another as its text", (CART,), NAMED_AS_CART, (CART, NAMED_AS_CART), 0),
    ("an empty text with its key", (CART, SUN), replace(CART, text=""), (SUN,), 0),
    ("an empty text with another key", (CART,), AppFact(text="", key="x"), (CART,), 0),
    ("one is over", (OVER, CART), SUN, (CART, SUN), 0),
    ("one is not over yet", (BRIEF,), SUN, (BRIEF, SUN), 0),
    ("one too many", MANY, SUN, (*MANY[1:], SUN), 1),
    ("as many bytes as stand", LONG[:3], LONG[3], LONG, 0),
    ("one byte too many", LONG, BYTE, (*LONG[1:], BYTE), 1),
    ("many bytes too many", LONG, HALF_OF_ALL, (*LONG[2:], HALF_OF_ALL), 2),
]


@pytest.mark.parametrize(
    ("facts", "added", "stand", "dropped"), [row[1:] for row in FACTS], ids=[row[0] for row in FACTS]
)
def test_a_fact_replaces_its_former_one_and_the_oldest_go_first(
    facts: tuple[AppFact, ...], added: AppFact, stand: tuple[AppFact, ...], dropped: int
) -> None:
    assert Conversation(facts=facts).facts_with(added, NOW) == (stand, dropped)


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
