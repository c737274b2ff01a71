"""What has to happen next: `next_step`, `due` and `deadline` as tables.

A row of `STEPS`: its name in words, the state, the facts of the process, the settings, and the step: records
to commit, or the work that takes time. A row of `DUE` has a time in place of the settings, the records that
are due, and the time of the next deadline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from conductor.conversation import records as r
from conductor.conversation.conduct import Conduct
from conductor.conversation.state import Conversation, LateCall, Notice, Turn, UnknownCall
from conductor.conversation.steps import (
    AskModel,
    AskPerson,
    AwaitResults,
    PrepareRequest,
    RunCalls,
    deadline,
    due,
    next_step,
)
from conductor.messages import ToolCall
from tests.conversation.build import (
    CARDS,
    NOW,
    RULES,
    STARTED,
    Gate,
    asking,
    device,
    finished,
    fold,
    local,
    question,
    replied,
    view,
)
from tests.conversation.stories import HALF, HALF_SAID

QUEUE = replace(RULES, cancels=False)
NOTHING = AwaitResults()


def turn_of(state: Conversation) -> Turn:
    assert state.turn is not None
    return state.turn


def news(*notices: Notice) -> Conversation:
    return fold(*(r.NoticeTaken("", notice) for notice in notices))


def in_turn(*records: r.Record) -> Conversation:
    return fold(*records, state=TURN)


def elsewhere(*records: r.Record) -> Conversation:
    """Make a turn that another process takes over after these records."""
    return fold(r.Claimed("token.2:other"), state=in_turn(*records))


# -- between turns

QUEUED = fold(r.InputQueued("e1", "one"), r.InputQueued("e2", "two"))
ONE_INPUT = fold(r.InputQueued("e1", "one", "de"))
FIRST = r.TurnStarted(cause="transcript", limit_ms=120_000, event_id="e1", text="one")
HALF_ALONE = changed(FIRST, event_id="h1", text="milk and")
FIRST_IN_GERMAN = changed(FIRST, lang="de")
MEMORIES = {"memories": "Likes owls."}
REMEMBERED = r.NoticeTaken("", Notice(text="Likes owls.", untrusted=True, late=True))

SORRY = RULES.failures["rate_limited"]
APOLOGY = [
    r.TurnStarted(cause="refused", limit_ms=120_000),
    r.TurnEnded(reason="answered", apology=SORRY, speech_text=SORRY),
]

CALL, OTHER_CALL = ToolCall("c1", "device.do", "{}"), ToolCall("c2", "device.do", "{}")

FREE_FLOOR = {"floor_at": NOW}
REPORT = Notice(text="The agent has ended.", expires_at=NOW + 1_000)
WORDS = Notice(text="Said by the app.", expires_at=NOW + 1_000, words="Your *taxi* is here.")
OLD = Notice(text="Too old.", expires_at=NOW)
REPORTED = [r.TurnStarted(cause="news", limit_ms=120_000)]
SPOKEN = [
    r.TurnStarted(cause="words", limit_ms=120_000),
    r.TurnEnded(reason="answered", apology="Your *taxi* is here.", speech_text="Your taxi is here."),
]

# -- in a turn

TURN = fold(STARTED)
PAUSED = fold(r.SpeechPaused(event_id="p1", speech_id="s", name="s"))
GOES_ON = r.PauseEnded(resumes=True, name="s")
ASK = AskModel(turn_of(TURN).id, rounds=0, retries=0, with_tools=True)
THIS_REQUEST = {"request": (turn_of(TURN).id, 0, 0)}
TWO_CALLS = in_turn(replied(device(), local("c2")))
ROUND_DONE = fold(finished(), finished("c2"), state=TWO_CALLS)
ALL_DENIED = in_turn(replied(device(consent="held")), finished("c1", "permission_denied", tool="", source=""))
REQUEST = fold(r.TurnStarted(cause="request", limit_ms=120_000, tool="device.do"))
TWICE_TAKEN = fold(r.Claimed("token.3:third"), state=elsewhere())
FAILED = RULES.failures["model_provider_failed"]

# -- in a round

NEEDS_YES = device(consent="needed")
HELD = device("c2", consent="held")
ASKED = fold(r.QuestionsAsked((question(),)), state=in_turn(replied(NEEDS_YES, HELD)))

CONSENTED_READ = local(consent="given", started_at=NOW, claim="token.1:claim")
LOST = finished("c1", "unknown", tool="local.sum", source="builtin", reason="connection_lost")
LOST_WRITE = changed(LOST, unknown=UnknownCall("digest c1", NOW + 600_000))
LOST_READ = finished("c1", "cancelled", tool="local.sum", source="builtin", reason="connection_lost")

WANTS_DEVICE = fold(r.Claimed("token.1:claim", ("device.wanted",)), STARTED, replied(device(), device("c2")))
AWAY = {"is_connected": False}

Facts = dict[str, Any]
STEPS: list[tuple[str, Conversation, Facts, Conduct, object]] = [
    # Between turns: the person's words, then an apology, a program's call, and news.
    ("nothing", fold(), {}, RULES, NOTHING),
    ("an input", ONE_INPUT, {}, RULES, [FIRST_IN_GERMAN]),
    ("an input of a person who is remembered", ONE_INPUT, MEMORIES, RULES, [REMEMBERED, FIRST_IN_GERMAN]),
    (
        "an input that another one replaces",
        QUEUED,
        {},
        RULES,
        [FIRST, r.TurnEnded(reason="interrupted", follows=True)],
    ),
    (
        "a replaced input gets no memories",
        QUEUED,
        MEMORIES,
        RULES,
        [FIRST, r.TurnEnded(reason="interrupted", follows=True)],
    ),
    ("an input that is answered before the next", QUEUED, {}, QUEUE, [FIRST]),
    ("an input in the last moment of a session", ONE_INPUT, {"closing": True}, RULES, NOTHING),
    ("an input for another process", ONE_INPUT, {"is_suspended": True}, RULES, NOTHING),
    ("an input before the server stops", ONE_INPUT, {"draining": True}, RULES, [FIRST_IN_GERMAN]),
    ("half a sentence", HALF_SAID, {}, RULES, NOTHING),
    ("half a sentence before a refused input", HALF_SAID, {"refused_input": True}, RULES, NOTHING),
    ("half a sentence whose time is over", HALF_SAID, {"now": NOW + 1_000}, RULES, [HALF_ALONE]),
    (
        "half a sentence while the other half is spoken",
        HALF_SAID,
        {"now": NOW + 5_999, "speaking_until": NOW + 6_000},
        RULES,
        NOTHING,
    ),
    (
        "half a sentence while the person does not end",
        HALF_SAID,
        {"now": NOW + 31_000, "speaking_until": NOW + 32_000},
        RULES,
        [HALF_ALONE],
    ),
    ("half a sentence before the server stops", HALF_SAID, {"draining": True}, RULES, [HALF_ALONE]),
    ("half a sentence for another process", HALF_SAID, {"is_suspended": True}, RULES, NOTHING),
    (
        "an input before half a sentence",
        fold(r.InputQueued("e1", "one"), HALF),
        {},
        RULES,
        [FIRST, r.TurnEnded(reason="interrupted")],
    ),
    (
        "an input before half a sentence whose time is over",
        fold(r.InputQueued("e1", "one"), HALF),
        {"now": NOW + 1_000},
        RULES,
        [FIRST, r.TurnEnded(reason="interrupted", follows=True)],
    ),
    (
        "two halves",
        fold(HALF, r.InputQueued("e1", "eggs")),
        {},
        RULES,
        [changed(FIRST, text="milk and eggs")],
    ),
    ("a refused input", fold(), {"refused_input": True}, RULES, APOLOGY),
    ("a refused input before the stop", fold(), {"refused_input": True, "draining": True}, RULES, APOLOGY),
    ("a refused input after a queued one", ONE_INPUT, {"refused_input": True}, RULES, [FIRST_IN_GERMAN]),
    (
        "a refused input without an apology",
        fold(),
        {"refused_input": True},
        replace(RULES, failures={}),
        [r.TurnStarted(cause="refused", limit_ms=120_000), r.TurnEnded(reason="answered")],
    ),
    (
        "a refused input before a program's call",
        fold(),
        {"refused_input": True, "requests": [CALL]},
        RULES,
        APOLOGY,
    ),
    ("a program's calls", fold(), {"requests": [CALL, OTHER_CALL]}, RULES, PrepareRequest(CALL)),
    (
        "a program's call before news",
        news(REPORT),
        {**FREE_FLOOR, "requests": [CALL]},
        RULES,
        PrepareRequest(CALL),
    ),
    ("a program's call before the stop", fold(), {"requests": [CALL], "draining": True}, RULES, NOTHING),
    ("news", news(REPORT), FREE_FLOOR, RULES, REPORTED),
    ("news before the stop", news(REPORT), {**FREE_FLOOR, "draining": True}, RULES, NOTHING),
    ("news without the floor", news(REPORT), {}, RULES, NOTHING),
    ("news while the person speaks", news(REPORT), {"floor_at": NOW + 1}, RULES, NOTHING),
    ("news after a failure", news(REPORT), {**FREE_FLOOR, "notices_after": NOW + 1}, RULES, NOTHING),
    ("news at the end of that pause", news(REPORT), {**FREE_FLOOR, "notices_after": NOW}, RULES, REPORTED),
    ("news that is too old", news(OLD), FREE_FLOOR, RULES, NOTHING),
    ("news after one that is too old", news(OLD, REPORT), FREE_FLOOR, RULES, REPORTED),
    ("no news", fold(), FREE_FLOOR, RULES, NOTHING),
    ("words of the app", news(WORDS, REPORT), FREE_FLOOR, RULES, SPOKEN),
    ("words of the app after news", news(REPORT, WORDS), FREE_FLOOR, RULES, REPORTED),
    # A turn without open calls: the model is asked.
    ("a turn", TURN, {}, RULES, ASK),
    ("a turn before the stop", TURN, {"draining": True, "closing": True}, RULES, ASK),
    ("after a round", ROUND_DONE, {}, RULES, replace(ASK, rounds=1)),
    ("before the last round", ROUND_DONE, {}, replace(RULES, max_tool_rounds=2), replace(ASK, rounds=1)),
    (
        "after the last round",
        ROUND_DONE,
        {},
        replace(RULES, max_tool_rounds=1),
        replace(ASK, rounds=1, with_tools=False),
    ),
    ("before the last call", ROUND_DONE, {}, replace(RULES, max_calls_per_turn=3), replace(ASK, rounds=1)),
    (
        "after the last call",
        ROUND_DONE,
        {},
        replace(RULES, max_calls_per_turn=2),
        replace(ASK, rounds=1, with_tools=False),
    ),
    ("after a refusal", ALL_DENIED, {}, RULES, replace(ASK, rounds=1)),
    (
        "after too many refusals",
        ALL_DENIED,
        {},
        replace(RULES, max_refused_rounds=1),
        replace(ASK, rounds=1, with_tools=False),
    ),
    ("after a broken reply", in_turn(r.ReplyBroken()), {}, RULES, replace(ASK, retries=1)),
    ("a reply that is being spoken", in_turn(r.SegmentSpoken("One. ", "One.")), THIS_REQUEST, RULES, ASK),
    (
        "a reply of another process, in part spoken",
        elsewhere(r.SegmentSpoken("One. ", "One.")),
        {},
        RULES,
        [r.ReplyBroken("One.", by_takeover=True)],
    ),
    ("a turn of another process", elsewhere(), {}, RULES, ASK),
    (
        "a turn that brought two processes down",
        TWICE_TAKEN,
        {},
        RULES,
        [r.TurnEnded(reason="failed", error="model_provider_failed", apology=FAILED, speech_text=FAILED)],
    ),
    ("a turn of a program after its call", REQUEST, {}, RULES, [r.TurnEnded(reason="answered")]),
    (
        "a turn of a program before an input",
        fold(r.InputQueued("e1", "one"), state=REQUEST),
        {},
        RULES,
        [r.TurnEnded(reason="answered", follows=True)],
    ),
    # A round: held writes, a device that is away, calls of the server, questions, and the wait.
    ("calls of the server run", TWO_CALLS, {}, RULES, RunCalls((TWO_CALLS.calls[1],))),
    ("calls that run", TWO_CALLS, {"running_calls": {"c2"}}, RULES, AwaitResults(("c1", "c2"))),
    ("calls of which one has ended", fold(finished("c2"), state=TWO_CALLS), {}, RULES, AwaitResults(("c1",))),
    ("a call that needs a yes", in_turn(replied(NEEDS_YES)), {}, RULES, AskPerson(("c1",))),
    (
        "a call of the server that needs a yes",
        in_turn(replied(local(effect="write", consent="needed"))),
        {},
        RULES,
        AskPerson(("c1",)),
    ),
    (
        "a call that needs a yes, behind one that runs",
        in_turn(replied(device(), device("c2", consent="needed"))),
        {},
        RULES,
        AwaitResults(("c1", "c2")),
    ),
    (
        "a call that needs a yes, after the others",
        in_turn(replied(device(), device("c2", consent="needed")), finished()),
        {},
        RULES,
        AskPerson(("c2",)),
    ),
    (
        "a call that got no yes",
        in_turn(replied(NEEDS_YES, device("c2", consent="needed")), finished("c1", "permission_denied")),
        {},
        RULES,
        AskPerson(("c2",)),
    ),
    ("an open question", asking(question()), {}, RULES, AwaitResults(("c1",))),
    ("a write that is held", in_turn(replied(NEEDS_YES, HELD)), {}, RULES, AskPerson(("c1",))),
    ("a write that is held by an open question", ASKED, {}, RULES, AwaitResults(("c1", "c2"))),
    (
        "a write whose earlier write is decided",
        fold(r.QuestionDecided(question_id="q1", call_id="c1", outcome="allowed"), state=ASKED),
        {},
        RULES,
        [r.CallReleased("c2")],
    ),
    (
        "a write whose earlier write could not be asked about",
        in_turn(replied(NEEDS_YES, HELD), finished("c1", "permission_denied")),
        {},
        RULES,
        [r.CallReleased("c2")],
    ),
    (
        "a write after a read that needs a yes",
        in_turn(replied(device(effect="read", consent="needed"), HELD)),
        {},
        RULES,
        [r.CallReleased("c2")],
    ),
    (
        "a write before and one after a call that needs a yes",
        in_turn(replied(device("c0", consent="held"), NEEDS_YES, HELD)),
        {},
        RULES,
        [r.CallReleased("c0")],
    ),
    (
        "two writes, and one that was released",
        in_turn(
            replied(device("c0", consent="held"), HELD, device("c3", consent="held")), r.CallReleased("c2")
        ),
        {},
        RULES,
        [r.CallReleased("c0"), r.CallReleased("c3")],
    ),
    (
        "a write that has its result",
        in_turn(replied(device(), HELD), finished("c2", "cancelled")),
        {},
        RULES,
        AwaitResults(("c1",)),
    ),
    (
        "a write that is forbidden by now",
        in_turn(replied(HELD)),
        {"gate": Gate(forbids=True)},
        RULES,
        [finished("c2", "permission_denied", tool="", source="", reason="policy")],
    ),
    ("a device that is away", WANTS_DEVICE, AWAY, RULES, [r.DeviceWanted(("c1", "c2"))]),
    ("a device that is there", WANTS_DEVICE, {}, RULES, AwaitResults(("c1", "c2"))),
    (
        "a device that nobody wakes",
        TWO_CALLS,
        {**AWAY, "running_calls": {"c2"}},
        RULES,
        AwaitResults(("c1", "c2")),
    ),
    (
        "a device that was asked for",
        fold(r.DeviceWanted(("c1",)), state=WANTS_DEVICE),
        AWAY,
        RULES,
        [r.DeviceWanted(("c2",))],
    ),
    (
        "a device that was asked for both calls",
        fold(r.DeviceWanted(("c1", "c2")), state=WANTS_DEVICE),
        AWAY,
        RULES,
        AwaitResults(("c1", "c2")),
    ),
    (
        "a device for the open call",
        fold(finished(), state=WANTS_DEVICE),
        AWAY,
        RULES,
        [r.DeviceWanted(("c2",))],
    ),
    (
        "a device for a call that needs a yes",
        fold(r.Claimed("token.1:claim", ("device.wanted",)), STARTED, replied(NEEDS_YES)),
        AWAY,
        RULES,
        AskPerson(("c1",)),
    ),
    (
        "no device for a call of the server",
        fold(r.Claimed("token.1:claim", ("device.wanted",)), STARTED, replied(local())),
        {**AWAY, "running_calls": {"c1"}},
        RULES,
        AwaitResults(("c1",)),
    ),
    # Calls that another process started: only a read without consent runs again.
    (
        "a read of another process",
        elsewhere(replied(local())),
        {},
        RULES,
        RunCalls((local(started_at=NOW, claim="token.1:claim"),)),
    ),
    ("a write of another process", elsewhere(replied(local(effect="write"))), {}, RULES, [LOST_WRITE]),
    ("a read with consent of another process", elsewhere(replied(CONSENTED_READ)), {}, RULES, [LOST_READ]),
    (
        "a write and a read of another process",
        elsewhere(replied(local(effect="write"), local("c2"))),
        {},
        RULES,
        [LOST_WRITE],
    ),
    (
        "two writes of another process",
        elsewhere(replied(local(effect="write"), local("c2", effect="irreversible"))),
        {},
        RULES,
        [
            LOST_WRITE,
            changed(
                LOST_WRITE,
                result=finished("c2", "unknown").result,
                unknown=UnknownCall("digest c2", NOW + 600_000),
            ),
        ],
    ),
    (
        "a write of this process",
        in_turn(replied(local(effect="write"))),
        {},
        RULES,
        RunCalls((local(effect="write", started_at=NOW, claim="token.1:claim"),)),
    ),
    ("a device call of another process", elsewhere(replied(device())), {}, RULES, AwaitResults(("c1",))),
]


@pytest.mark.parametrize(
    ("state", "facts", "conduct", "step"), [row[1:] for row in STEPS], ids=[row[0] for row in STEPS]
)
def test_the_next_step(state: Conversation, facts: Facts, conduct: Conduct, step: object) -> None:
    assert next_step(view(state, conduct, **facts)) == step


def test_a_step_depends_on_nothing_but_its_arguments() -> None:
    for _, state, facts, conduct, _ in STEPS:
        assert next_step(view(state, conduct, **facts)) == next_step(view(state, conduct, **facts))


# -- time


QUESTION = asking(question())
EXPIRED = [
    r.QuestionDecided(question_id="q1", call_id="c1", outcome="expired"),
    finished("c1", "approval_timeout", tool="", source="", reason="expired"),
]
CARD = asking(question(), profile=CARDS)
TWO_CARDS = asking(question(), question(2, "c2", expires_at=NOW + 9_000), profile=CARDS)
HEARD = fold(r.PromptHeard("q1"), state=QUESTION)
CUT = fold(r.PromptCut("q1", "e1", NOW + 5_000), state=QUESTION)
CUT_LATE = fold(r.PromptCut("q1", "e1", NOW + 600_000), state=QUESTION)
CUT_CARD = fold(r.QuestionsAsked((changed(CUT.questions["q1"], card=True),)), state=CUT)
AGAIN = [r.PromptSpoken("q1", "device.do? (1)")]
SPEAKS = {"speaking_until": NOW + 7_000}
ALLOWED = fold(
    r.QuestionDecided(question_id="q1", call_id="c1", outcome="allowed"), at=NOW + 50_000, state=QUESTION
)

TOO_LONG = RULES.failures["turn_timeout"]
TIMED_OUT = r.TurnEnded(reason="timed_out", error="turn_timeout", apology=TOO_LONG, speech_text=TOO_LONG)
UNFINISHED = r.CallFinished(
    result=finished("c1", "unknown").result,
    tool="device.do",
    source="device",
    error_type="unknown",
    reason="turn_timeout",
    late=LateCall(
        call_id="c1",
        name="device.do",
        effect="write",
        expires_at=NOW + 720_000,
        started_at=NOW,
        arguments="{}",
    ),
    unknown=UnknownCall("digest c1", NOW + 720_000),
)

DUE: list[tuple[str, Conversation, Facts, int, Sequence[r.Record], int | None]] = [
    ("nothing", fold(), {}, NOW, [], None),
    # A turn has a limit; its clock stands while a person decides.
    ("a turn", TURN, {}, NOW + 119_999, [], NOW + 120_000),
    ("a turn that takes too long", TURN, {}, NOW + 120_000, [TIMED_OUT], NOW + 120_000),
    (
        "a turn that takes too long, with a call",
        in_turn(replied(device())),
        {},
        NOW + 120_000,
        [changed(TIMED_OUT, results=(UNFINISHED,), cancelled=("c1",))],
        NOW + 120_000,
    ),
    ("a turn whose clock stands", QUESTION, {}, NOW + 300_000, [], NOW + 600_000),
    ("a turn whose clock stood", ALLOWED, {}, NOW + 169_999, [], NOW + 170_000),
    # Questions expire.
    ("a question", QUESTION, {}, NOW + 599_999, [], NOW + 600_000),
    ("a question that expires", QUESTION, {}, NOW + 600_000, EXPIRED, NOW + 600_000),
    ("a card", CARD, {}, NOW + 599_999, [], NOW + 600_000),
    ("a card that expires", CARD, {}, NOW + 600_000, EXPIRED, NOW + 600_000),
    ("the second of two cards", TWO_CARDS, {}, NOW + 8_999, [], NOW + 9_000),
    (
        "the second of two cards, which expires first",
        TWO_CARDS,
        {},
        NOW + 9_000,
        [
            r.QuestionDecided(question_id="q2", call_id="c2", outcome="expired"),
            finished("c2", "approval_timeout", tool="", source="", reason="expired"),
        ],
        NOW + 9_000,
    ),
    ("two cards that expired", TWO_CARDS, {}, NOW + 600_000, EXPIRED, NOW + 9_000),
    # A prompt that was cut is repeated in the silence after the person's words.
    ("a prompt that is being spoken", QUESTION, {}, NOW + 9_000, [], NOW + 600_000),
    ("a prompt that was heard", HEARD, {}, NOW + 9_000, [], NOW + 600_000),
    ("a prompt that was cut", CUT, {}, NOW + 4_999, [], NOW + 5_000),
    ("a prompt that was cut, in silence", CUT, {}, NOW + 5_000, AGAIN, NOW + 5_000),
    ("a prompt that was cut, while the person speaks", CUT, SPEAKS, NOW + 6_999, [], NOW + 7_000),
    ("a prompt that was cut, after the person spoke", CUT, SPEAKS, NOW + 7_000, AGAIN, NOW + 7_000),
    ("a prompt that was cut, and is a card by now", CUT_CARD, {}, NOW + 5_000, [], NOW + 600_000),
    ("a prompt that was cut, and expires", CUT_LATE, {}, NOW + 600_000, EXPIRED, NOW + 600_000),
    # A paused speech goes on if no transcript comes.
    ("a pause", PAUSED, {}, NOW + 1_999, [], NOW + 2_000),
    ("a pause without a transcript", PAUSED, {}, NOW + 2_000, [GOES_ON], NOW + 2_000),
    ("a pause while the person speaks", PAUSED, {"heard_at": NOW + 900}, NOW + 2_000, [], NOW + 2_900),
    ("a pause without a client", PAUSED, {"is_connected": False}, NOW + 9_000, [], None),
    # News wait until the person has spoken: the next step tells them.
    ("news", news(REPORT), {"floor_at": NOW + 300}, NOW, [], NOW + 300),
    ("news after a failure", news(REPORT), {"floor_at": NOW, "notices_after": NOW + 900}, NOW, [], NOW + 900),
    ("news that can be told", news(REPORT), {"floor_at": NOW}, NOW, [], None),
    ("news without the floor", news(REPORT), {"notices_after": NOW + 900}, NOW, [], None),
    ("news before the stop", news(REPORT), {"floor_at": NOW + 300, "draining": True}, NOW, [], None),
    ("news that is too old", news(OLD), {"floor_at": NOW + 300}, NOW, [], None),
    ("news after one that is too old", news(OLD, REPORT), {"floor_at": NOW + 300}, NOW, [], NOW + 300),
    ("no news", fold(), {"floor_at": NOW + 300}, NOW, [], None),
    # Half a sentence waits for the other half; the next step begins its turn.
    ("half a sentence", HALF_SAID, {}, NOW, [], NOW + 1_000),
    ("half a sentence that waits for the other half", HALF_SAID, SPEAKS, NOW + 2_000, [], NOW + 7_000),
    ("half a sentence whose time is over", HALF_SAID, {}, NOW + 1_000, [], None),
    ("half a sentence in a turn", in_turn(HALF), {}, NOW, [], NOW + 120_000),
    (
        "news in a turn",
        fold(r.NoticeTaken("", REPORT), state=TURN),
        {"floor_at": NOW + 300},
        NOW,
        [],
        NOW + 120_000,
    ),
]


@pytest.mark.parametrize(
    ("state", "facts", "now", "records", "at"), [row[1:] for row in DUE], ids=[row[0] for row in DUE]
)
def test_a_deadline_makes_its_records(
    state: Conversation, facts: Facts, now: int, records: Sequence[r.Record], at: int | None
) -> None:
    assert due(view(state, now=now, **facts)) == records
    assert deadline(view(state, now=now, **facts)) == at


@pytest.mark.parametrize(
    ("state", "limits", "at"),
    [
        (fold(), (), None),
        (fold(), (None, None), None),
        (fold(), (None, NOW + 2, NOW + 1), NOW + 1),
        (TURN, (None, NOW + 2), NOW + 2),
        (TURN, (NOW + 200_000,), NOW + 120_000),
    ],
)
def test_the_deadlines_of_others_count_too(
    state: Conversation, limits: tuple[int | None, ...], at: int | None
) -> None:
    assert deadline(view(state), *limits) == at


def test_at_a_deadline_there_is_something_to_do() -> None:
    for name, state, facts, now, _, _ in DUE:
        at = deadline(view(state, now=now, **facts))
        if at is not None:
            later = view(state, now=at, **facts)
            assert due(later) or next_step(later) != NOTHING, f"the timer fires for nothing: {name}"


def test_a_deadline_that_has_passed_leaves_nothing_due_once_it_is_recorded() -> None:
    for name, state, facts, now, _, _ in DUE:
        while records := due(view(state, now=now, **facts)):
            state = fold(*records, at=now, state=state)
        assert (deadline(view(state, now=now, **facts)) or now + 1) > now, f"the timer would spin: {name}"
