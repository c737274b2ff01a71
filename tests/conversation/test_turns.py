"""The beginning of a turn, the model's replies, and the end of a turn, as tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from conductor.conversation import records as r
from conductor.conversation.heard import CUT_BEFORE_SPEECH, CUT_HERE, CUT_SOMEWHERE, HEARD_NOTHING
from conductor.conversation.phrases import CUT_OFF
from conductor.conversation.state import (
    AppFact,
    Call,
    Conversation,
    Notice,
    Profile,
    Summary,
)
from conductor.conversation.turns import ended, goes_on_until, greeted, remembered, turn_started
from conductor.conversation.turns import replied as replied_records
from conductor.messages import AssistantMessage
from tests.conversation.build import (
    NOW,
    RULES,
    STARTED,
    asking,
    device,
    finished,
    fold,
    local,
    question,
    replied,
    result,
    view,
)
from tests.conversation.stories import (
    ASKED,
    BARGED_IN,
    BEFORE_INPUT,
    CALLED,
    CALLED_TO_READ,
    DONE,
    FOR_ANOTHER,
    LATE_CALL,
    LATE_READ,
    LISTENS,
    LOST,
    NO_ANSWER,
    NOT_SENT,
    NOTHING_SENT,
    OWLS,
    REMEMBERED,
    REPLACED,
    SAID,
    SAID_THEN_CALLED,
    SEGMENTS,
    STARTS,
    STOPPED,
    TURN,
    TURN_ID,
    TWO_SAID,
    Facts,
    heard,
    in_turn,
    over,
    speech,
)

SILENT_SEGMENT = in_turn(r.SegmentSpoken("---", ""))
PROGRAM = fold(r.TurnStarted(cause="request", limit_ms=120_000, tool="device.do"))
LOST_READ = finished("c1", "cancelled", reason="interrupted", late=changed(LATE_READ, starts_turn=False))


FIRST_WORDS: list[tuple[str, Conversation, Facts, list[r.NoticeTaken]]] = [
    ("first words", fold(), OWLS, [REMEMBERED]),
    ("first words about nothing that is known", fold(), {"memories": ""}, []),
    (
        "first words after news",
        over(fold(r.NoticeTaken("", Notice(text="News.")), r.TurnStarted(cause="news", limit_ms=9))),
        OWLS,
        [REMEMBERED],
    ),
    ("second words", SAID, OWLS, []),
    (
        "words whose beginning was dropped",
        over(fold(STARTED, r.TurnStarted(cause="news", limit_ms=9, trim=1))),
        OWLS,
        [],
    ),
]


@pytest.mark.parametrize(
    ("state", "facts", "records"), [row[1:] for row in FIRST_WORDS], ids=[row[0] for row in FIRST_WORDS]
)
def test_memories_come_with_the_first_words(
    state: Conversation, facts: Facts, records: list[r.NoticeTaken]
) -> None:
    assert remembered(view(state, **facts), "hi") == records


# -- the app's greeting

HI = [
    r.TurnStarted(cause="greeting", limit_ms=RULES.turn_ms),
    r.TurnEnded(reason="answered", apology="Hi, **Ann**.", speech_text="Hi, Ann."),
]
GREETINGS: list[tuple[str, Conversation, str, list[r.Record]]] = [
    ("a new session", fold(), " Hi, **Ann**. ", HI),
    (
        "a new session with a fact of the backend",
        fold(r.ContextAdded("e1", AppFact(text="x"))),
        "Hi, **Ann**.",
        HI,
    ),
    ("nothing to say", fold(), " ", []),
    ("a session that was greeted", over(fold(HI[0])), "Hi.", []),
    ("a session that was greeted, and has lost its history", Conversation(greeted=True), "Hi.", []),
    ("a turn that runs", fold(STARTED), "Hi.", []),
    ("words that wait", fold(r.InputQueued("e1", "hi")), "Hi.", []),
    ("a session with a history", SAID, "Hi.", []),
]


@pytest.mark.parametrize(
    ("state", "greeting", "records"), [row[1:] for row in GREETINGS], ids=[row[0] for row in GREETINGS]
)
def test_a_greeting_begins_a_session(state: Conversation, greeting: str, records: list[r.Record]) -> None:
    assert greeted(view(state), greeting) == records


# -- the start of a turn: a long history loses its beginning, which a summary may replace

TWO_TURNS = TWO_SAID  # the messages 0 to 3
ONE_TURN_LEFT = over(
    fold(r.TurnStarted(cause="news", limit_ms=9, trim=2), state=TWO_TURNS)
)  # the messages 2 and 3
SHORT: Facts = {"conduct": replace(RULES, max_turns=2)}
FEW_TOKENS: Facts = {"conduct": replace(RULES, history_tokens=13)}
SPOKE = Summary("They spoke of owls.")
STARTS_OF_TURNS: list[tuple[str, Conversation, Facts, r.TurnStarted]] = [
    ("a short history", TWO_TURNS, {}, STARTS),
    ("too many turns", TWO_TURNS, SHORT, changed(STARTS, trim=2)),
    ("too many tokens", TWO_TURNS, FEW_TOKENS, changed(STARTS, trim=2)),
    ("a summary", TWO_TURNS, {"summary": (2, SPOKE)}, changed(STARTS, trim=2, summary=SPOKE)),
    (
        "a summary of more than was too long",
        TWO_TURNS,
        {**SHORT, "summary": (4, SPOKE)},
        changed(STARTS, trim=4, summary=SPOKE),
    ),
    (
        "a summary of less than was too long",
        TWO_TURNS,
        {**SHORT, "summary": (1, SPOKE)},
        changed(STARTS, trim=2, summary=SPOKE),
    ),
    ("a summary of what was dropped", ONE_TURN_LEFT, {"summary": (2, SPOKE)}, STARTS),
]


@pytest.mark.parametrize(
    ("state", "facts", "record"),
    [row[1:] for row in STARTS_OF_TURNS],
    ids=[row[0] for row in STARTS_OF_TURNS],
)
def test_a_turn_drops_the_beginning_of_a_long_history(
    state: Conversation, facts: Facts, record: r.TurnStarted
) -> None:
    assert turn_started(view(state, **facts), "transcript", "e1", "hi") == record


def test_a_turn_has_the_limit_of_the_settings_and_the_cause_of_its_caller() -> None:
    conduct = replace(RULES, turn_ms=9_000)
    started = turn_started(view(fold(), conduct), "request", tool="device.do")
    assert started == r.TurnStarted(cause="request", limit_ms=9_000, tool="device.do")


# -- the end of a turn

WRITING: Facts = {"draft": " Let me see ", "request": (TURN_ID, 0, 0)}
FAILURES = RULES.failures
SORRY, BUDGET = FAILURES["turn_timeout"], FAILURES["budget_spent"]
SAYS_WHEN = "Sorry, the language model's service is busy. Please try again in about 20 seconds."
DONE_NOT_SAID = FAILURES["calls_ran"].format(done="device do")
CLOSING: Facts = {"reason": "session_end"}
TOO_LONG: Facts = {"reason": "timed_out"}
FAILED: Facts = {"reason": "failed", "error": "turn_timeout"}
SPENT: Facts = {"reason": "failed", "error": "rate_limited", "failure": "budget_spent"}
SAYS_SORRY = r.TurnEnded(reason="failed", error="turn_timeout", apology=SORRY, speech_text=SORRY)
SAYS_SPENT = r.TurnEnded(reason="failed", error="rate_limited", apology=BUDGET, speech_text=BUDGET)
SPENT_BEFORE = fold(r.TurnEnded(reason="failed", apology=BUDGET), STARTED, state=TURN)
SPENT_LONG_BEFORE = fold(replied(text="One."), r.TurnEnded(reason="answered"), STARTED, state=SPENT_BEFORE)
SORRY_BEFORE = fold(r.TurnEnded(reason="failed", apology=SORRY), STARTED, state=TURN)
TWICE_DONE = fold(replied(device(), device("c2")), finished(), finished("c2"), state=DONE)
CANCELLABLE = in_turn(replied(device(on_interrupt="cancel")))
NEVER_STARTED = changed(
    NOT_SENT, tool="", source="", reason="turn_timeout", late=changed(LATE_CALL, started_at=0)
)
LOST_THERE = changed(LOST, tool="local.sum", source="builtin", reason="turn_timeout", late=None)


def stopped(*results: r.CallFinished, text: str = "", **fields: Any) -> r.TurnEnded:
    return r.TurnEnded(reason="interrupted", text=text, results=results, **fields)


def timed_out_with(*results: r.CallFinished, **fields: Any) -> r.TurnEnded:
    return r.TurnEnded(reason="timed_out", results=results, **fields)


ENDS: list[tuple[str, Conversation, Facts, Facts, r.TurnEnded]] = [
    ("an interruption", TURN, {}, {}, STOPPED),
    ("the end of the session", TURN, {}, CLOSING, r.TurnEnded(reason="session_end")),
    ("an event", TURN, {}, {"event_id": "e1"}, BARGED_IN),
    ("before an input", BEFORE_INPUT, {}, {}, REPLACED),
    ("before an input that is not next", BEFORE_INPUT, {}, {"follow": False}, STOPPED),
    ("before an input, at the end of the session", BEFORE_INPUT, {"closing": True}, {}, STOPPED),
    ("before an input of another process", BEFORE_INPUT, FOR_ANOTHER, {}, STOPPED),
    ("with an input that is next", TURN, {}, {"follow": True}, REPLACED),
    # What stays of a reply that is being written.
    ("an unspoken draft", TURN, WRITING, {}, stopped(text=f"Let me see {CUT_BEFORE_SPEECH}")),
    (
        "an unspoken draft, heard in part",
        TURN,
        WRITING,
        {"heard_prefix": "Let me"},
        stopped(text=f"Let me {CUT_HERE}"),
    ),
    (
        "an unspoken draft, heard for longer than it is",
        TURN,
        WRITING,
        {"heard_prefix": "Let me see what"},
        stopped(text=f"Let me see {CUT_HERE}"),
    ),
    ("an unspoken draft, unheard", TURN, WRITING, {"heard_prefix": ""}, stopped(text=HEARD_NOTHING)),
    (
        "an unspoken draft at the end of the session",
        TURN,
        WRITING,
        CLOSING,
        r.TurnEnded(reason="session_end", text=f"Let me see {CUT_BEFORE_SPEECH}"),
    ),
    ("a draft of an earlier request", in_turn(r.ReplyBroken()), WRITING, {}, STOPPED),
    ("a draft of an earlier round", DONE, WRITING, {}, STOPPED),
    ("a draft before its calls", CALLED, WRITING, {}, stopped(LOST)),
    ("a spoken draft", SEGMENTS, {}, {}, stopped(text=f"One. Two. {CUT_SOMEWHERE}")),
    (
        "a spoken draft with more words",
        SEGMENTS,
        {**WRITING, "draft": "One. Two. Three"},
        {},
        stopped(text=f"One. Two. {CUT_SOMEWHERE}"),
    ),
    (
        "a spoken draft, its first segment heard",
        SEGMENTS,
        {"finished_speeches": {speech(SEGMENTS): NOW}},
        {},
        stopped(text=f"One. {CUT_HERE}"),
    ),
    ("a spoken draft, all heard", SEGMENTS, heard(SEGMENTS), {}, stopped(text=f"One. Two. {CUT_HERE}")),
    ("a draft without words for the ear", SILENT_SEGMENT, {}, {}, stopped(text=f"--- {CUT_SOMEWHERE}")),
    (
        "a draft after a speech that was heard",
        in_turn(replied(device(), text="One.", speech_text="One."), finished()),
        {**heard(SAID_THEN_CALLED), "draft": "Done", "request": (TURN_ID, 1, 0)},
        {},
        stopped(text=f"Done {CUT_BEFORE_SPEECH}"),
    ),
    ("a failure within a draft", TURN, WRITING, FAILED, changed(SAYS_SORRY, text=f"Let me see {CUT_OFF}")),
    (
        "a failure within a spoken draft",
        SEGMENTS,
        {},
        FAILED,
        changed(SAYS_SORRY, text=f"One. Two. {CUT_OFF}"),
    ),
    # The apology.
    ("a failure", TURN, {}, FAILED, SAYS_SORRY),
    ("a failure that has no code", TURN, {}, {"reason": "failed"}, r.TurnEnded(reason="failed")),
    (
        "a failure that has no words",
        TURN,
        {},
        {"reason": "failed", "error": "invalid_event"},
        r.TurnEnded(reason="failed", error="invalid_event"),
    ),
    ("a failure with other words than its code", TURN, {}, SPENT, SAYS_SPENT),
    (
        "a failure with a time",
        TURN,
        {},
        {**FAILED, "failure": "model_busy", "back": "in about 20 seconds"},
        changed(SAYS_SORRY, apology=SAYS_WHEN, speech_text=SAYS_WHEN),
    ),
    (
        "a spent budget that was said before",
        SPENT_BEFORE,
        {},
        SPENT,
        changed(SAYS_SPENT, apology="", speech_text=""),
    ),
    ("a spent budget that was said long before", SPENT_LONG_BEFORE, {}, SPENT, SAYS_SPENT),
    ("another failure that was said before", SORRY_BEFORE, {}, FAILED, SAYS_SORRY),
    (
        "a failure after a write",
        DONE,
        {},
        FAILED,
        changed(SAYS_SORRY, apology=DONE_NOT_SAID, speech_text=DONE_NOT_SAID),
    ),
    (
        "a failure after three writes of one tool",
        TWICE_DONE,
        {},
        FAILED,
        changed(SAYS_SORRY, apology=DONE_NOT_SAID, speech_text=DONE_NOT_SAID),
    ),
    ("a failure after a read", in_turn(replied(device(effect="read")), finished()), {}, FAILED, SAYS_SORRY),
    (
        "a spent budget after a write",
        DONE,
        {},
        SPENT,
        changed(SAYS_SPENT, apology=f"{DONE_NOT_SAID} {BUDGET}", speech_text=f"{DONE_NOT_SAID} {BUDGET}"),
    ),
    ("a failure of a program's turn", PROGRAM, {}, FAILED, r.TurnEnded(reason="failed")),
    # Open calls: each gets an honest result.
    ("a write", CALLED, {}, {}, stopped(LOST)),
    ("a write that was not sent", CALLED, NOTHING_SENT, {}, stopped(NOT_SENT)),
    ("a read", CALLED_TO_READ, {}, {}, stopped(LOST_READ)),
    ("a read that was not sent", CALLED_TO_READ, NOTHING_SENT, {}, stopped(LOST_READ)),
    (
        "a write at the end of the session",
        CALLED,
        {},
        CLOSING,
        r.TurnEnded(reason="session_end", results=(changed(LOST, reason="session_end"),)),
    ),
    (
        "a write that takes too long",
        CALLED,
        {},
        TOO_LONG,
        timed_out_with(changed(LOST, reason="turn_timeout"), cancelled=("c1",)),
    ),
    (
        "a write that takes too long and was not sent",
        CALLED,
        NOTHING_SENT,
        TOO_LONG,
        timed_out_with(changed(NOT_SENT, reason="turn_timeout")),
    ),
    (
        "a write after a failure",
        CALLED,
        {},
        {"reason": "failed"},
        r.TurnEnded(reason="failed", results=(changed(LOST, reason="failed"),)),
    ),
    ("a write that can be cancelled", CANCELLABLE, {}, {}, stopped(LOST, cancelled=("c1",))),
    ("a write that can be cancelled and was not sent", CANCELLABLE, NOTHING_SENT, {}, stopped(NOT_SENT)),
    (
        "a write of the server",
        in_turn(replied(local(effect="write"))),
        NOTHING_SENT,
        TOO_LONG,
        timed_out_with(LOST_THERE),
    ),
    (
        "a write of the server that takes too long: no app has to cancel it",
        in_turn(replied(local(effect="write"))),
        {},
        TOO_LONG,
        timed_out_with(LOST_THERE),
    ),
    (
        "a write that waits for earlier ones",
        in_turn(replied(device(consent="held"))),
        {},
        TOO_LONG,
        timed_out_with(NEVER_STARTED),
    ),
    (
        "a call that has its result",
        fold(finished("c2"), state=in_turn(replied(device(), device("c2")))),
        {},
        {},
        stopped(LOST),
    ),
    ("a call that needs a yes", in_turn(replied(device(consent="needed"))), {}, {}, stopped(NO_ANSWER)),
    ("an open question", ASKED, {}, {}, stopped(NO_ANSWER, superseded=("q1",))),
    (
        "two open questions",
        asking(question(), question(2, "c2")),
        {},
        {},
        stopped(
            NO_ANSWER,
            changed(NO_ANSWER, result=result("c2", "approval_timeout")),
            superseded=("q1", "q2"),
        ),
    ),
    (
        "an open question at the end of the session",
        ASKED,
        {},
        CLOSING,
        r.TurnEnded(
            reason="session_end", results=(changed(NO_ANSWER, reason="interrupted"),), superseded=("q1",)
        ),
    ),
]


@pytest.mark.parametrize(
    ("state", "facts", "arguments", "end"), [row[1:] for row in ENDS], ids=[row[0] for row in ENDS]
)
def test_the_end_of_a_turn_keeps_what_was_heard_and_done(
    state: Conversation, facts: Facts, arguments: Facts, end: r.TurnEnded
) -> None:
    assert ended(view(state, **facts), **{"reason": "interrupted", **arguments}) == end


# -- the model's replies

BROKEN = fold(r.ReplyBroken("One."), state=TURN)
IN_SEGMENTS = fold(STARTED, state=fold(r.ProfileDeclared(Profile(capabilities=("segments",)))))
HELLO = AssistantMessage(text="Hello.")
ANSWERED = r.TurnEnded(reason="answered")
REPLIES: list[tuple[str, Conversation, tuple[Call, ...], Facts, list[r.Record]]] = [
    ("words", TURN, (), {}, [r.ReplyLogged(message=HELLO, calls=(), speech_text="Hello."), ANSWERED]),
    (
        "words before an input",
        BEFORE_INPUT,
        (),
        {},
        [r.ReplyLogged(message=HELLO, calls=(), speech_text="Hello."), changed(ANSWERED, follows=True)],
    ),
    (
        "words with a pause",
        TURN,
        (),
        {"paused": True},
        [r.ReplyLogged(message=HELLO, calls=(), speech_text="Hello.", paused=True)],
    ),
    (
        "words and their price",
        TURN,
        (),
        {"usage": (7, 2, 0.1)},
        [r.ReplyLogged(message=HELLO, calls=(), speech_text="Hello.", usage=(7, 2, 0.1)), ANSWERED],
    ),
    (
        "words and a call of the server",
        TURN,
        (local(),),
        {},
        [r.ReplyLogged(message=HELLO, calls=(local(),), speech_text="Hello.")],
    ),
    (
        "words and a device call",
        TURN,
        (device(),),
        {},
        [r.ReplyLogged(message=HELLO, calls=(device(),), speech_text="")],
    ),
    (
        "words and a device call, after spoken segments",
        SEGMENTS,
        (device(),),
        {},
        [r.ReplyLogged(message=HELLO, calls=(device(),), speech_text="Hello.")],
    ),
    (
        "words and a device call, to an app that takes segments",
        IN_SEGMENTS,
        (device(),),
        {},
        [r.ReplyLogged(message=HELLO, calls=(device(),), speech_text="Hello.")],
    ),
    (
        "words and a device call, after a broken reply",
        BROKEN,
        (device(),),
        {},
        [r.ReplyLogged(message=HELLO, calls=(device(),), speech_text="")],
    ),
    (
        "words and a device call that needs a yes",
        TURN,
        (device(consent="needed"),),
        {},
        [r.ReplyLogged(message=HELLO, calls=(device(consent="needed"),), speech_text="Hello.")],
    ),
    (
        "words and a refused device call",
        TURN,
        (device(result=result("c1", "permission_denied")),),
        {},
        [
            r.ReplyLogged(
                message=HELLO, calls=(device(result=result("c1", "permission_denied")),), speech_text="Hello."
            )
        ],
    ),
]


@pytest.mark.parametrize(
    ("state", "calls", "facts", "records"), [row[1:] for row in REPLIES], ids=[row[0] for row in REPLIES]
)
def test_a_reply_opens_a_round_or_ends_the_turn(
    state: Conversation, calls: tuple[Call, ...], facts: Facts, records: list[r.Record]
) -> None:
    assert replied_records(view(state), HELLO, calls, "Hello.", **facts) == records


BEGUN = fold(STARTED, state=fold(r.ProfileDeclared(LISTENS)))
HOLDS = {"conduct": replace(RULES, hold_ms=1_200)}
GOES_ON = {**HOLDS, "utterance_began": NOW + 500, "heard_at": NOW + 600, "speaking_until": NOW + 5_600}
UNTIL_WHEN: list[tuple[str, Conversation, dict[str, Any], int]] = [
    ("nobody speaks", BEGUN, HOLDS, 0),
    ("soon after", BEGUN, GOES_ON, NOW + 1_800),
    ("as the turn begins", BEGUN, {**GOES_ON, "utterance_began": NOW}, NOW + 1_800),
    ("soon after, and is heard to the end", BEGUN, {**GOES_ON, "speaking_until": 0}, 0),
    ("since before the turn", BEGUN, {**GOES_ON, "utterance_began": NOW - 1}, 0),
    ("after a while", BEGUN, {**GOES_ON, "utterance_began": NOW + 1_200}, 0),
    (
        "for more than half a minute",
        BEGUN,
        {**GOES_ON, "heard_at": NOW + 31_000, "speaking_until": NOW + 36_000},
        NOW + 30_500,
    ),
    ("to an app without the capability", TURN, GOES_ON, 0),
    ("in the queue's mode", BEGUN, {**GOES_ON, "conduct": replace(RULES, hold_ms=1_200, cancels=False)}, 0),
    ("without a turn", fold(r.ProfileDeclared(LISTENS)), GOES_ON, 0),
    ("after a part of the reply", fold(r.SegmentSpoken("One. ", "One."), state=BEGUN), GOES_ON, 0),
    ("after a call", fold(replied(device()), state=BEGUN), GOES_ON, 0),
]


@pytest.mark.parametrize(
    ("state", "facts", "until"), [row[1:] for row in UNTIL_WHEN], ids=[row[0] for row in UNTIL_WHEN]
)
def test_a_person_goes_on_until(state: Conversation, facts: dict[str, Any], until: int) -> None:
    assert goes_on_until(view(state, **facts)) == until
