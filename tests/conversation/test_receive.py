"""What an event of the client means: `conductor.conversation.receive` as tables.

A row is its name in words, the state, the facts of the process, the event or the arguments, and the records
(or the refusal) that follow.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from conductor.conversation import records as r
from conductor.conversation.consent import Later, Refuse, Response
from conductor.conversation.heard import CUT_HERE, CUT_SOMEWHERE, HEARD_NOTHING
from conductor.conversation.receive import (
    AppWords,
    connected,
    receive,
    starts_turn,
    timed_out,
    too_late,
    wordless,
)
from conductor.conversation.state import (
    MAX_NOTICES,
    AppFact,
    Conversation,
    LateCall,
    Notice,
    Profile,
    UnknownCall,
)
from conductor.conversation.view import Replay
from conductor.events import client
from conductor.images import Taken
from conductor.messages import Image
from tests.conversation.build import (
    CARDS,
    NOW,
    RULES,
    STARTED,
    VOICE,
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
    CONTINUES,
    DONE,
    FOR_ANOTHER,
    HALF,
    HALF_SAID,
    LATE_CALL,
    LATE_READ,
    LISTENS,
    LOST,
    NO_ANSWER,
    NOT_SENT,
    NOTHING_SENT,
    OWLS,
    QUEUE,
    REMEMBERED,
    REPLACED,
    SAID,
    SAID_THEN_CALLED,
    SEGMENTS,
    SEGMENTS_SAID,
    STARTS,
    STOPPED,
    TURN,
    TURN_ID,
    TWO_SAID,
    UNTIL,
    Facts,
    heard,
    in_turn,
    over,
    speech,
)


def replaced(state: Conversation) -> Conversation:
    """Let another client take the place of the one of a state."""
    return fold(r.ClientReplaced(), state=state)


# -- states

QUEUED = fold(r.InputQueued("w1", "one"))
FULL = in_turn(*(r.InputQueued(f"w{number}", "x") for number in range(3)))
HEARD = fold(r.PromptHeard("q1"), at=NOW - 1_000, state=ASKED)
PROMPT_CUT = fold(r.PromptCut("q1", "tap", NOW + 5_000), state=ASKED)

SAID_BY_ANOTHER_TURN = fold(STARTED, state=SAID)

SERVER_CALLED = in_turn(replied(local()))

JOB = changed(LATE_CALL, expires_at=NOW + 86_400_000, job=True)


def with_late(call: LateCall) -> Conversation:
    """Make the rest after a turn whose call ended without its result."""
    return over(in_turn(replied(device(effect=call.effect)), finished("c1", "unknown", late=call)))


LATE = with_late(LATE_CALL)

# -- the events

HI = client.TranscriptFinal("hi")
WAITS = r.InputQueued("e1", "hi")
BUSY = Refuse("rate_limited", "More than 3 transcripts are waiting.", 2.0)
RESTARTS = Refuse("rate_limited", "The server restarts.", 2.0)
EMPTY = Refuse("invalid_transcript", "The transcript is empty.")
NO_WORDS = Refuse("invalid_transcript", "The transcript has no words.")

HOLDING = replace(RULES, hold_ms=1_200)
HOLDS: Facts = {"conduct": HOLDING}
LISTENING = fold(r.ProfileDeclared(LISTENS))
PATIENT = fold(r.ProfileDeclared(changed(LISTENS, hold_ms=500)))
HASTY = fold(r.ProfileDeclared(changed(LISTENS, hold_ms=0)))
BEGUN = fold(STARTED, state=LISTENING)
BEGUN_ID = BEGUN.turn.id if BEGUN.turn is not None else ""
NEWS = r.TurnStarted(cause="news", limit_ms=120_000)
GO_HI = changed(STARTS, text="go hi", shown=2)
AFTER_A_WHILE: Facts = {**HOLDS, "now": NOW + 2_000, "utterance_began": NOW + 1_200}
MILK_AND = client.TranscriptFinal("milk and")
WAITS_FOR_MORE = r.InputQueued("e1", "milk and", until=NOW + 1_200)
WAITS_AFTER_A_WHILE = changed(WAITS_FOR_MORE, until=NOW + 3_200)
OTHER_HALF = r.InputQueued("e1", "hi")
FOUR = tuple(Image(id=key, media_type="image/png", size=9, width=1, height=1) for key in "abcd")
HALF_SHOWING = fold(
    r.ProfileDeclared(LISTENS), r.InputQueued("h1", "milk and", until=NOW + 1_000, images=FOUR)
)
YES = client.TranscriptFinal("yes")
ALLOWED = r.QuestionDecided(
    question_id="q1",
    call_id="c1",
    outcome="allowed",
    event_id="e1",
    text="yes",
    notes=("The user allowed this call, saying: 'yes'.",),
)

STOP = client.ResponseCancel()
INTERRUPTED = client.OutputInterrupted()
AFTER_ONE = client.OutputInterrupted(spoken_text=" One ")
HEARD_ONE = f"One {CUT_HERE}"
HANDLED = r.EventHandled("e1")
HANDLED_HI = fold(STARTS, r.TurnEnded(reason="answered"))

RESULT = client.ToolResultEvent("c1", "four")
TWO_SECONDS_LATER: Facts = {"now": NOW + 2_000}
PROMPT_DONE = client.ToolResultEvent(ASKED.questions["q1"].speech_id, "done")
UNREADABLE = client.UnreadableResult("c1", why="its JSON is cut off")
RAN = "The call ran; its result could not be read (its JSON is cut off). Do not repeat it."
ACCEPTED = client.ToolAccepted("c1", "job-7")
JOB_NOTE = "The job has started and is not finished. Its result will come later; do not claim it."
NOT_CANCELLED = "The call was to be cancelled, but had happened already."
LATE_NOTE = "A late result came for the earlier call of device.do with {}: "

CANCELLED = client.ToolCancelled("c1", "none")
CANCELLED_IN_PART = client.ToolCancelled("c1", "partial")
CANCELLED_TOO_LATE = client.ToolCancelled("c1", "complete", "four")
FAILED_THERE = client.ToolResultEvent("c1", None, "no")


UNANSWERED = changed(REPLACED, results=(NO_ANSWER,), superseded=("q1",))


def cut(state: Conversation, text: str, number: int = 0) -> r.SpeechCut:
    """Make the cut of a speech of a state by the event."""
    return r.SpeechCut(speech(state, number), text, "e1")


def reported(text: str, *, starts_turn: bool = True, untrusted: bool = False) -> list[r.Record]:
    notice = Notice(
        text=LATE_NOTE + text, expires_at=UNTIL if starts_turn else 0, untrusted=untrusted, late=True
    )
    return [r.LateFinished("c1", notice, starts_turn)]


EVENTS: list[tuple[str, Conversation, Facts, object, object]] = [
    # The person's words: an answer, a turn, or an input that waits.
    ("words", fold(), {}, HI, [STARTS]),
    (
        "words with blanks and a language",
        fold(),
        {},
        client.TranscriptFinal(" hi\n", "de"),
        [changed(STARTS, lang="de")],
    ),
    # An id counts once; that of a former client, whose ids may begin anew, with its words.
    ("words that were handled", HANDLED_HI, {}, HI, []),
    ("other words under a handled id", HANDLED_HI, {}, client.TranscriptFinal("ho"), []),
    ("words under the id of an interruption", fold(HANDLED), {}, HI, []),
    ("words that a former client said", replaced(HANDLED_HI), {}, client.TranscriptFinal(" hi "), []),
    ("words that wait for a former client", replaced(fold(WAITS)), {}, client.TranscriptFinal("hi"), []),
    (
        "half a character of a former client, as it is stored",
        replaced(fold(r.InputQueued("e1", "a ?"))),
        {},
        client.TranscriptFinal("a \ud800"),
        [],
    ),
    (
        "other words under an id of a former client",
        replaced(HANDLED_HI),
        {},
        client.TranscriptFinal("ho"),
        [changed(STARTS, text="ho")],
    ),
    ("words under the id of a former client's interruption", replaced(fold(HANDLED)), {}, HI, [STARTS]),
    (
        "words of the first of three clients",
        replaced(
            fold(changed(STARTS, text="ho"), r.TurnEnded(reason="answered"), state=replaced(HANDLED_HI))
        ),
        {},
        HI,
        [],
    ),
    ("an interruption of a former client", replaced(fold(HANDLED)), {}, INTERRUPTED, []),
    (
        "an interruption under the id of a former client's words",
        replaced(HANDLED_HI),
        {},
        INTERRUPTED,
        [HANDLED],
    ),
    ("words over a turn", TURN, {}, HI, [REPLACED, STARTS]),
    ("words over a turn, in the queue's mode", TURN, QUEUE, HI, [WAITS]),
    ("words behind words", QUEUED, QUEUE, HI, [WAITS]),
    ("words over a turn and behind words", BEFORE_INPUT, {}, HI, [REPLACED, WAITS]),
    ("words behind too many", FULL, QUEUE, HI, BUSY),
    ("words over a turn and behind too many", FULL, {}, HI, BUSY),
    ("words before the stop", fold(), {"draining": True}, HI, RESTARTS),
    ("words for another process", fold(), {"draining": True, "is_suspended": True}, HI, [WAITS]),
    ("words over a turn, for another process", TURN, FOR_ANOTHER, HI, [REPLACED, WAITS]),
    ("words of a person who is remembered", fold(), OWLS, HI, [REMEMBERED, STARTS]),
    ("words that wait get no memories", fold(), {**OWLS, **FOR_ANOTHER}, HI, [WAITS]),
    ("words in place of an answer", HEARD, {}, HI, [UNANSWERED, STARTS]),
    ("words in place of an answer, in the queue's mode", HEARD, QUEUE, HI, [UNANSWERED, STARTS]),
    ("a yes", HEARD, {}, YES, [ALLOWED]),
    ("a yes before the stop", HEARD, {"draining": True}, YES, [ALLOWED]),
    ("a yes that may be an echo", HEARD, {"now": NOW - 900}, YES, Later(NOW - 850, "q1")),
    # Half a sentence waits for the other half.
    ("half a sentence", LISTENING, HOLDS, MILK_AND, [WAITS_FOR_MORE]),
    ("half a sentence, by the operator's rules", LISTENING, {}, MILK_AND, [changed(STARTS, text="milk and")]),
    (
        "half a sentence for an app without the capability",
        fold(),
        HOLDS,
        MILK_AND,
        [changed(STARTS, text="milk and")],
    ),
    (
        "half a sentence for an app that asks for it",
        PATIENT,
        {},
        MILK_AND,
        [changed(WAITS_FOR_MORE, until=NOW + 500)],
    ),
    (
        "half a sentence for an app that does not want it",
        HASTY,
        HOLDS,
        MILK_AND,
        [changed(STARTS, text="milk and")],
    ),
    ("a whole sentence", LISTENING, HOLDS, HI, [STARTS]),
    (
        "half a sentence in another language",
        LISTENING,
        HOLDS,
        client.TranscriptFinal("Milch und", "de"),
        [changed(WAITS_FOR_MORE, text="Milch und", lang="de")],
    ),
    (
        "half a sentence over a turn",
        fold(STARTED, state=LISTENING),
        HOLDS,
        MILK_AND,
        [CONTINUES, WAITS_FOR_MORE],
    ),
    (
        "half a sentence long after a turn has begun",
        BEGUN,
        AFTER_A_WHILE,
        MILK_AND,
        [REPLACED, WAITS_AFTER_A_WHILE],
    ),
    (
        "half a sentence over a turn, in the queue's mode",
        fold(STARTED, state=LISTENING),
        {"conduct": replace(HOLDING, cancels=False)},
        MILK_AND,
        [WAITS_FOR_MORE],
    ),
    (
        "half a sentence in place of an answer",
        fold(r.ProfileDeclared(LISTENS), state=HEARD),
        HOLDS,
        MILK_AND,
        [UNANSWERED, changed(STARTS, text="milk and")],
    ),
    ("half a sentence before the stop", LISTENING, {**HOLDS, "draining": True}, MILK_AND, RESTARTS),
    (
        "half a sentence behind too many",
        fold(r.ProfileDeclared(LISTENS), state=FULL),
        {"conduct": replace(HOLDING, cancels=False)},
        MILK_AND,
        BUSY,
    ),
    ("the other half", HALF_SAID, HOLDS, HI, [OTHER_HALF, changed(STARTS, text="milk and hi")]),
    (
        "the other half, of a person who is remembered",
        HALF_SAID,
        {**HOLDS, **OWLS},
        HI,
        [OTHER_HALF, REMEMBERED, changed(STARTS, text="milk and hi")],
    ),
    (
        "the other half, of a person of whom a memory fits to the whole",
        HALF_SAID,
        {**HOLDS, "memories": "Said: WORDS."},
        HI,
        [
            OTHER_HALF,
            r.NoticeTaken("", Notice(text="Said: milk and hi.", untrusted=True, late=True)),
            changed(STARTS, text="milk and hi"),
        ],
    ),
    ("the other half, for another process", HALF_SAID, {**HOLDS, **FOR_ANOTHER}, HI, [OTHER_HALF]),
    (
        "the other half over a turn, in the queue's mode",
        in_turn(HALF),
        {"conduct": replace(HOLDING, cancels=False)},
        HI,
        [OTHER_HALF],
    ),
    (
        "the other half behind others",
        in_turn(r.InputQueued("w1", "one"), r.InputQueued("w2", "two"), HALF),
        QUEUE,
        HI,
        [OTHER_HALF],
    ),
    ("half of the rest", HALF_SAID, HOLDS, MILK_AND, [WAITS_FOR_MORE]),
    (
        "half a sentence that is heard again",
        HALF_SAID,
        HOLDS,
        client.TranscriptFinal("milk and"),
        [WAITS_FOR_MORE],
    ),
    (
        "half of as long a sentence as waits",
        LISTENING,
        HOLDS,
        client.TranscriptFinal(f"{'x' * 1_996} and"),
        [changed(WAITS_FOR_MORE, text=f"{'x' * 1_996} and")],
    ),
    (
        "too long a sentence",
        LISTENING,
        HOLDS,
        client.TranscriptFinal(f"{'x' * 2_000} and"),
        [changed(STARTS, text=f"{'x' * 2_000} and")],
    ),
    (
        "a cancel while half a sentence waits",
        HALF_SAID,
        HOLDS,
        client.ResponseCancel(),
        [changed(STARTS, event_id="h1", text="milk and"), STOPPED],
    ),
    (
        "a cancel while half a sentence with images waits",
        HALF_SHOWING,
        HOLDS,
        client.ResponseCancel(),
        [changed(STARTS, event_id="h1", text="milk and", images=FOUR), STOPPED],
    ),
    (
        "half of the rest, of halves with many images: they wait no longer",
        HALF_SHOWING,
        HOLDS,
        MILK_AND,
        [r.InputQueued("e1", "milk and"), changed(STARTS, text="milk and milk and", images=FOUR)],
    ),
    (
        "half of the rest, of halves with three images",
        fold(r.ProfileDeclared(LISTENS), changed(HALF, images=FOUR[:3])),
        HOLDS,
        MILK_AND,
        [WAITS_FOR_MORE],
    ),
    ("a cancel while other words wait", QUEUED, HOLDS, client.ResponseCancel(), []),
    # Words that come soon after others, of which nothing has come yet, are one sentence with them.
    ("words soon after others", BEGUN, HOLDS, HI, [CONTINUES, OTHER_HALF, GO_HI]),
    (
        "words soon after others whose reply is being written",
        BEGUN,
        {**HOLDS, "request": (BEGUN_ID, 0, 0), "draft": "Going wh"},
        HI,
        [CONTINUES, OTHER_HALF, GO_HI],
    ),
    (
        "words soon after others, of a person who is still heard after a while",
        BEGUN,
        {**AFTER_A_WHILE, "utterance_began": NOW + 1_199},
        HI,
        [CONTINUES, OTHER_HALF, GO_HI],
    ),
    ("words after a while", BEGUN, AFTER_A_WHILE, HI, [REPLACED, STARTS]),
    ("words soon after others, by the operator's rules", BEGUN, {}, HI, [REPLACED, STARTS]),
    ("words soon after others, for an app without the capability", TURN, HOLDS, HI, [REPLACED, STARTS]),
    ("words soon after others, in the queue's mode", BEGUN, {**HOLDS, **QUEUE}, HI, [WAITS]),
    (
        "words soon after others, for another process",
        BEGUN,
        {**HOLDS, **FOR_ANOTHER},
        HI,
        [CONTINUES, OTHER_HALF],
    ),
    (
        "words soon after others that were answered in part",
        fold(r.SegmentSpoken("One. ", "One."), state=BEGUN),
        HOLDS,
        HI,
        [changed(REPLACED, text=f"One. {CUT_SOMEWHERE}"), STARTS],
    ),
    (
        "words soon after a phrase of waiting",
        fold(r.BridgeSpoken("Wait."), state=BEGUN),
        HOLDS,
        HI,
        [REPLACED, STARTS],
    ),
    (
        "words soon after others that have called a tool",
        fold(replied(device()), state=BEGUN),
        HOLDS,
        HI,
        [changed(REPLACED, results=(LOST,)), STARTS],
    ),
    ("words soon after news", fold(r.ProfileDeclared(LISTENS), NEWS), HOLDS, HI, [REPLACED, STARTS]),
    (
        "words soon after others of an answered round",
        fold(replied(device()), finished("c1"), state=BEGUN),
        HOLDS,
        HI,
        [REPLACED, STARTS],
    ),
    (
        "words soon after too many others",
        fold(r.ProfileDeclared(LISTENS), changed(STARTED, text="x" * 2_001)),
        HOLDS,
        HI,
        [REPLACED, STARTS],
    ),
    # A speech that no socket took is withdrawn; one that was sent is cut by an interruption alone.
    (
        "words before a speech is sent",
        SAID,
        NOTHING_SENT,
        HI,
        [r.SpeechCut(speech(SAID), HEARD_NOTHING), STARTS],
    ),
    (
        "words before a speech is sent, for another process: it would say an outdated speech",
        SAID,
        {**NOTHING_SENT, **FOR_ANOTHER},
        HI,
        [r.SpeechCut(speech(SAID), HEARD_NOTHING), WAITS],
    ),
    ("words before a speech is sent, in the queue's mode", SAID, {**QUEUE, **NOTHING_SENT}, HI, [STARTS]),
    (
        "words over a turn whose speech is not sent",
        SAID_THEN_CALLED,
        NOTHING_SENT,
        HI,
        [
            r.SpeechCut(speech(SAID_THEN_CALLED), HEARD_NOTHING),
            changed(REPLACED, results=(NOT_SENT,)),
            STARTS,
        ],
    ),
    ("words over a speech", SAID, {}, HI, [STARTS]),
    # A button.
    ("a stop", TURN, {}, STOP, [STOPPED]),
    ("a stop before an input", BEFORE_INPUT, {}, STOP, [changed(STOPPED, follows=True)]),
    ("a stop at rest", fold(), {}, STOP, []),
    # Interruptions: of a speech, of a prompt, or of a turn that has not spoken yet.
    ("an interruption at rest", fold(), {}, INTERRUPTED, [HANDLED]),
    ("an interruption of a turn", TURN, {}, INTERRUPTED, [BARGED_IN]),
    (
        "an interruption of a turn whose card stands",
        asking(question(), profile=CARDS),
        {},
        INTERRUPTED,
        [changed(BARGED_IN, results=(NO_ANSWER,), superseded=("q1",))],
    ),
    ("an interruption of a speech", SAID, {}, INTERRUPTED, [cut(SAID, f"One two. {CUT_SOMEWHERE}")]),
    ("an interruption of a speech after a word", SAID, {}, AFTER_ONE, [cut(SAID, HEARD_ONE)]),
    (
        "an interruption of a speech after its first half",
        SAID,
        {},
        client.OutputInterrupted(played_ms=300),
        [cut(SAID, HEARD_ONE)],
    ),
    (
        "an interruption of a speech of the running turn",
        SAID_THEN_CALLED,
        {},
        AFTER_ONE,
        [cut(SAID_THEN_CALLED, HEARD_ONE), changed(BARGED_IN, results=(LOST,))],
    ),
    (
        "an interruption of the speech of an earlier turn",
        SAID_BY_ANOTHER_TURN,
        {},
        AFTER_ONE,
        [cut(SAID, HEARD_ONE)],
    ),
    (
        "an interruption just after the speech of an earlier turn",
        SAID_BY_ANOTHER_TURN,
        heard(SAID, NOW - 150),
        AFTER_ONE,
        [cut(SAID, HEARD_ONE), BARGED_IN],
    ),
    ("an interruption just after a speech", SAID, heard(SAID, NOW - 150), AFTER_ONE, [cut(SAID, HEARD_ONE)]),
    ("an interruption long after a speech", SAID, heard(SAID, NOW - 151), AFTER_ONE, [HANDLED]),
    ("an interruption of the older of two speeches", TWO_SAID, {}, AFTER_ONE, [cut(TWO_SAID, HEARD_ONE)]),
    (
        "an interruption of the speech after one that was heard",
        TWO_SAID,
        heard(SAID, NOW),
        AFTER_ONE,
        [cut(TWO_SAID, HEARD_ONE, 1)],
    ),
    (
        "an interruption just after two speeches",
        TWO_SAID,
        heard(TWO_SAID, NOW),
        AFTER_ONE,
        [cut(TWO_SAID, HEARD_ONE, 1)],
    ),
    (
        "an interruption just after a segment",
        SEGMENTS_SAID,
        heard(SEGMENTS_SAID, NOW),
        INTERRUPTED,
        [cut(SEGMENTS_SAID, f"One. Two. {CUT_HERE}", 1)],
    ),
    (
        "an interruption of a reply that is being written",
        SEGMENTS,
        {},
        AFTER_ONE,
        [changed(BARGED_IN, text=HEARD_ONE)],
    ),
    (
        "an interruption of its second segment",
        SEGMENTS,
        heard(in_turn(r.SegmentSpoken("One. ", "One."))),
        INTERRUPTED,
        [changed(BARGED_IN, text=f"One. {CUT_HERE}")],
    ),
    (
        "an interruption just after its second segment",
        SEGMENTS,
        heard(SEGMENTS, NOW),
        INTERRUPTED,
        [changed(BARGED_IN, text=f"One. Two. {CUT_HERE}")],
    ),
    (
        "an interruption after words that no speech has",
        TURN,
        {"draft": "One two", "request": (TURN_ID, 0, 0)},
        AFTER_ONE,
        [changed(BARGED_IN, text=HEARD_ONE)],
    ),
    ("an interruption of a prompt", ASKED, {}, INTERRUPTED, [r.PromptCut("q1", "e1", NOW + 5_000)]),
    ("an interruption after a prompt was cut", PROMPT_CUT, {}, INTERRUPTED, [HANDLED]),
    (
        "an interruption of the first prompt of a question that is decided",
        fold(
            r.PromptSpoken("q1", "May I?"),
            r.QuestionDecided(question_id="q1", call_id="c1", outcome="allowed"),
            state=ASKED,
        ),
        {},
        INTERRUPTED,
        [HANDLED],
    ),
    # Reports about a call: in time, late, or about nothing.
    ("a result", CALLED, TWO_SECONDS_LATER, RESULT, [finished(took_ms=2_000, size=4)]),
    ("an error", CALLED, {}, FAILED_THERE, [finished("c1", "tool_error", reason="device_error")]),
    ("an unreadable result", CALLED, {}, UNREADABLE, [finished(result=result("c1", "none", RAN), size=4)]),
    ("a result without a call", TURN, {}, RESULT, []),
    ("a result of a call that needs a yes", in_turn(replied(device(consent="needed"))), {}, RESULT, []),
    ("a result of a call of the server", SERVER_CALLED, {}, RESULT, []),
    ("a second result", DONE, {}, RESULT, []),
    (
        "a job",
        CALLED,
        {},
        ACCEPTED,
        [finished(result=result("c1", "none", JOB_NOTE), reason="accepted", size=37, late=JOB)],
    ),
    ("a job without a call", TURN, {}, ACCEPTED, []),
    ("a job of a prompt", ASKED, {}, client.ToolAccepted(PROMPT_DONE.call_id, "j"), []),
    ("a cancelled call", CALLED, {}, CANCELLED, [finished("c1", "cancelled", reason="none")]),
    (
        "a call that was cancelled in part",
        CALLED,
        {},
        CANCELLED_IN_PART,
        [finished("c1", "cancelled", reason="partial", unknown=UnknownCall("digest c1", UNTIL))],
    ),
    (
        "a read that was cancelled in part",
        fold(STARTED, replied(device(effect="read", started_at=NOW))),
        {},
        CANCELLED_IN_PART,
        [finished("c1", "cancelled", reason="partial")],
    ),
    (
        "a call that was cancelled too late",
        CALLED,
        {},
        CANCELLED_TOO_LATE,
        [finished(result=result("c1", "none", NOT_CANCELLED), size=4)],
    ),
    ("a late result", LATE, {}, RESULT, reported("done")),
    ("a late error", LATE, {}, FAILED_THERE, reported("tool_error")),
    ("a late unreadable result", LATE, {}, UNREADABLE, reported(f"done; {RAN}")),
    (
        "a late result of an outsider",
        with_late(changed(LATE_CALL, untrusted=True)),
        {},
        RESULT,
        reported("done", untrusted=True),
    ),
    ("a late result in a turn", fold(STARTED, state=LATE), {}, RESULT, reported("done", starts_turn=False)),
    (
        "a late result that starts no turn",
        with_late(changed(LATE_CALL, starts_turn=False)),
        {},
        RESULT,
        reported("done", starts_turn=False),
    ),
    ("a late result, too late", LATE, {"now": UNTIL}, RESULT, []),
    ("a second late result", fold(*reported("done"), state=LATE), {}, RESULT, []),
    ("a late job", LATE, {}, ACCEPTED, [r.JobAccepted(JOB)]),
    ("the result of a job", with_late(JOB), {}, RESULT, reported("done")),
    ("the result of a job in a turn", fold(STARTED, state=with_late(JOB)), {}, RESULT, reported("done")),
    ("a read that was cancelled, late", with_late(LATE_READ), {}, CANCELLED, []),
    (
        "a read that was cancelled too late, late",
        with_late(LATE_READ),
        {},
        CANCELLED_TOO_LATE,
        reported(f"done; {NOT_CANCELLED}"),
    ),
    ("a write that was cancelled, late", LATE, {}, CANCELLED, reported("cancelled")),
    (
        "a write that was cancelled in part, late",
        LATE,
        {},
        CANCELLED_IN_PART,
        [changed(reported("cancelled")[0], in_part=True)],
    ),
    ("the end of a prompt", ASKED, {}, PROMPT_DONE, [r.PromptHeard("q1")]),
    # Texts of others.
    (
        "an agent",
        fold(),
        {},
        client.AgentCompleted(agent_id="a-7", status="FINISHED"),
        [
            r.NoticeTaken(
                "e1", Notice(text="The coding agent a-7 has ended with status 'FINISHED'.", expires_at=UNTIL)
            )
        ],
    ),
    (
        "a fact of the app",
        fold(),
        {},
        client.ContextAdd(text=" Rain. "),
        [r.ContextAdded("e1", AppFact(text="Rain."))],
    ),
    (
        "a fact for which the two oldest have to go",
        fold(*(r.ContextAdded("", AppFact(text=text)) for text in ("a" * 60, "b" * 60, "c" * 8_000))),
        {},
        client.ContextAdd(text="d" * 150),
        [r.ContextAdded("e1", AppFact(text="d" * 150), 2)],
    ),
    (
        "a fact with a key and an end, that others have written",
        fold(),
        {},
        client.ContextAdd(text="Rain.", key="weather", ttl_s=1.5, untrusted=True),
        [r.ContextAdded("e1", AppFact(text="Rain.", key="weather", expires_at=NOW + 1_500, untrusted=True))],
    ),
    (
        "a fact that is over at once",
        fold(),
        {},
        client.ContextAdd(text="Rain.", ttl_s=0),
        [r.ContextAdded("e1", AppFact(text="Rain.", expires_at=NOW))],
    ),
    (
        "a fact while a turn runs and texts wait",
        fold(STARTED, *(r.NoticeTaken("", Notice(text=f"{number}")) for number in range(MAX_NOTICES))),
        {},
        client.ContextAdd(text="", key="weather"),
        [r.ContextAdded("e1", AppFact(text="", key="weather"))],
    ),
    (
        "words of the app",
        fold(),
        {},
        AppWords("Rain."),
        [
            r.NoticeTaken(
                "e1",
                Notice(
                    text="The app has this said to the user, who did not ask: Rain.",
                    expires_at=UNTIL,
                    untrusted=True,
                    words="Rain.",
                ),
            )
        ],
    ),
    (
        "a text too many of the app",
        fold(*(r.NoticeTaken("", Notice(text=f"{number}")) for number in range(MAX_NOTICES))),
        {},
        AppWords("Rain."),
        Refuse("rate_limited", "Too many texts wait in this session.", 2.0),
    ),
    ("an event without a meaning for the conversation", CALLED, {}, client.ToolStarted("c1"), []),
]


@pytest.mark.parametrize(
    ("state", "facts", "event", "response"), [row[1:] for row in EVENTS], ids=[row[0] for row in EVENTS]
)
def test_an_event_makes_its_records(
    state: Conversation, facts: Facts, event: object, response: object
) -> None:
    assert receive(view(state, **facts), "e1", event) == response


def test_an_event_means_nothing_the_second_time() -> None:
    for name, state, facts, event, response in EVENTS:
        records = response if isinstance(response, list) else []
        if any(getattr(record, "event_id", "") == "e1" for record in records):
            after = fold(*records, state=state)
            assert receive(view(after, **facts), "e1", event) == [], name
            assert receive(view(replaced(after), **facts), "e1", event) == [], name


def test_deciding_changes_nothing() -> None:
    for name, state, facts, event, _ in EVENTS:
        before = copy.deepcopy(state)
        receive(view(state, **facts), "e1", event)
        assert state == before, name


# -- words


@pytest.mark.parametrize(
    ("response", "starts"),
    [
        pytest.param([STARTS], True, id="a turn"),
        pytest.param([REPLACED, STARTS], True, id="a turn in place of another one"),
        pytest.param([REPLACED, WAITS], True, id="an input that waits"),
        pytest.param(
            [r.AnswerUnclear(question_id="q1", event_id="e1", text="hm", counts=True)], False, id="an answer"
        ),
        pytest.param(Later(NOW, "q1"), False, id="what may be an echo"),
        pytest.param(BUSY, False, id="refused words"),
        pytest.param([], False, id="words that were handled"),
    ],
)
def test_a_turn_counts_once_it_starts_or_waits(response: Response, starts: bool) -> None:
    assert starts_turn(response) is starts


NOISES: list[tuple[str, Refuse | None]] = [
    ("hi", None),
    ("7", None),
    ("é", None),
    ("", EMPTY),
    (" \n", EMPTY),
    ("...", NO_WORDS),
    ("…", NO_WORDS),
    ("♪♪", NO_WORDS),
    ("(coughs)", NO_WORDS),
    ("[BLANK_AUDIO]", NO_WORDS),
    ("{noise}", NO_WORDS),
    ("<unk>", NO_WORDS),
    ("*sighs*", NO_WORDS),
    ("（咳）", NO_WORDS),
    ("【音楽】", NO_WORDS),
    ("[music] (laughs) ...", NO_WORDS),
    ("[music] yes", None),
    ("(yes", None),
    ("♪ la la la ♪", NO_WORDS),
    ("🎵 oh baby 🎵 (applause)", NO_WORDS),
    ("♪ la la ♪ stop", None),
    ("♪ stop", None),
    ("Subtitles by Amara.org", NO_WORDS),
    ("Subtitles on", None),
]


@pytest.mark.parametrize(("text", "refusal"), NOISES)
def test_a_noise_is_no_transcript(text: str, refusal: Refuse | None) -> None:
    assert wordless(view(SAID), text) == refusal


JA = client.TranscriptFinal(" ja ", "de")
JA_STARTS = r.TurnStarted(cause="transcript", limit_ms=120_000, event_id="e1", text="ja", lang="de")
TOO_LATE: list[tuple[str, Conversation, list[r.Record]]] = [
    ("in the turn", TURN, [r.AnswerUnclear(question_id="q1", event_id="e1", text="ja", counts=False)]),
    ("after the turn", SAID, [JA_STARTS, r.TurnEnded(reason="interrupted")]),
    ("after the turn, before an input", QUEUED, [JA_STARTS, r.TurnEnded(reason="interrupted", follows=True)]),
    ("a second time", over(fold(JA_STARTS)), []),
    ("a second time, of a former client", replaced(over(fold(JA_STARTS))), []),
    (
        "a second time in the turn",
        in_turn(r.AnswerUnclear(question_id="q1", event_id="e1", text="ja", counts=False)),
        [],
    ),
]


@pytest.mark.parametrize(
    ("state", "records"), [row[1:] for row in TOO_LATE], ids=[row[0] for row in TOO_LATE]
)
def test_a_yes_to_a_closed_question_decides_nothing(state: Conversation, records: list[r.Record]) -> None:
    assert too_late(view(state), "e1", JA, "q1") == records


def test_an_image_that_came_with_it_is_kept_after_the_turn() -> None:
    started, _ = too_late(view(SAID), "e1", JA, "q1", taken=Taken(images=FOUR[:1]))
    assert started == changed(JA_STARTS, images=FOUR[:1])


# -- time limits

TIMED_OUT = finished("c1", "unknown", reason="tool_result_timeout", took_ms=2_000)
LATER = UNTIL + 2_000  # of a call that timed out after two seconds
AFTER_LIMIT = changed(LATE_CALL, expires_at=LATER)
LIMITS: list[tuple[str, Conversation, str, Facts, list[r.Record]]] = [
    (
        "a write",
        CALLED,
        "c1",
        {"was_shown": False},
        [changed(TIMED_OUT, late=AFTER_LIMIT, unknown=UnknownCall("digest c1", LATER))],
    ),
    (
        "a read",
        CALLED_TO_READ,
        "c1",
        {"was_shown": False},
        [changed(TIMED_OUT, late=changed(AFTER_LIMIT, effect="read"))],
    ),
    (
        "a write that was not sent",
        CALLED,
        "c1",
        {"was_shown": False, "was_sent": False},
        [
            changed(
                TIMED_OUT,
                result=result("c1", "cancelled"),
                error_type="cancelled",
                reason="device_not_connected",
                late=AFTER_LIMIT,
            )
        ],
    ),
    ("a call that is over", DONE, "c1", {"was_shown": True}, []),
    ("a call of the server", SERVER_CALLED, "c1", {"was_shown": True}, []),
    ("a prompt", ASKED, PROMPT_DONE.call_id, {"was_shown": True}, [r.PromptHeard("q1")]),
    ("a prompt that was not shown", ASKED, PROMPT_DONE.call_id, {"was_shown": False}, []),
]


@pytest.mark.parametrize(
    ("state", "call_id", "facts", "records"), [row[1:] for row in LIMITS], ids=[row[0] for row in LIMITS]
)
def test_a_time_limit_closes_a_call_and_ends_a_prompt(
    state: Conversation, call_id: str, facts: Facts, records: list[r.Record]
) -> None:
    assert timed_out(view(state, **TWO_SECONDS_LATER), call_id, **facts) == records


# -- connections

RESUME, CARD_RESUME = Profile(capabilities=("resume",)), Profile(capabilities=("approval", "resume"))
PAUSES = Profile(capabilities=("resume", "pause"))
PAUSED = fold(r.SpeechPaused(event_id="p1", speech_id=speech(SAID), name="s"), state=SAID)
GOES_ON = r.PauseEnded(resumes=True, name="s")
SAME, STALE = {"same_process": True}, {"is_new": False}
IDLE = r.StateShown("idle")
CARD = asking(question(), profile=CARDS)
TWO_CARDS = asking(question(), question(2, "c2"), profile=CARDS)
PROMPT = r.PromptSpoken("q1", "May I?", counts=False)


def call_event(state: Conversation) -> str:
    return next(event.id for event in state.outbound.values() if event.kind == "call")


def card_of(state: Conversation, *names: str) -> r.QuestionsAsked:
    return r.QuestionsAsked(tuple(changed(state.questions[name], card=True) for name in names))


WITHHELD = r.CallsWithheld((call_event(CALLED),))
CONNECTIONS: list[tuple[str, Conversation, Facts, Replay, Profile, Facts, list[r.Record]]] = [
    # ``idle`` opens the microphone of an app whose words were lost with its old socket.
    ("a resumed session", fold(), {}, Replay(), VOICE, {}, [IDLE]),
    ("a new session", fold(), {}, Replay(), VOICE, {"resumed": False}, []),
    ("a turn", TURN, {}, Replay(), VOICE, {}, []),
    ("a second start on a connection", fold(), {}, Replay(), VOICE, STALE, [IDLE]),
    # A relaunched app must not run a write again.
    ("a write", CALLED, {}, Replay(), VOICE, {}, [WITHHELD]),
    ("a write that was not sent", CALLED, NOTHING_SENT, Replay(), VOICE, {}, []),
    ("a write that was withheld before", fold(WITHHELD, state=CALLED), {}, Replay(), VOICE, {}, []),
    ("a read", CALLED_TO_READ, {}, Replay(), VOICE, {}, []),
    ("a write of an app that still runs", CALLED, {}, Replay(), RESUME, SAME, []),
    ("a write of an app that may still run, and cannot tell", CALLED, {}, Replay(), VOICE, SAME, [WITHHELD]),
    ("a write of an app that was started again", CALLED, {}, Replay(), RESUME, {}, [WITHHELD]),
    ("a write on the same connection", CALLED, {}, Replay(), VOICE, STALE, []),
    # A probe shows whether the replay was handled.
    (
        "a probe in a turn",
        TURN,
        {},
        Replay(unconfirmed=True),
        VOICE,
        {},
        [r.StateShown("thinking", probe=True)],
    ),
    (
        "a probe in a turn that speaks",
        TURN,
        {},
        Replay(unconfirmed=True, state="speaking"),
        VOICE,
        {},
        [r.StateShown("speaking", probe=True)],
    ),
    (
        "a probe behind a speech",
        SAID,
        {},
        Replay(unconfirmed=True, waits=True),
        VOICE,
        {},
        [r.StateShown("speaking", probe=True), IDLE],
    ),
    ("no probe at rest", SAID, {}, Replay(unconfirmed=True), VOICE, {}, [IDLE]),
    ("no probe of a replay that is known", TURN, {}, Replay(waits=True), VOICE, {}, []),
    ("no probe on the same connection", TURN, {}, Replay(unconfirmed=True), VOICE, STALE, []),
    # Questions are asked again as the client can show them.
    ("a card", CARD, {}, Replay(), CARDS, {}, [card_of(CARD, "q1")]),
    ("a card in the replay", CARD, {}, Replay(cards=("q1",)), CARDS, {}, [IDLE]),
    ("a card on the screen of an app that still runs", CARD, {}, Replay(), CARD_RESUME, SAME, [IDLE]),
    (
        "one of two cards in the replay",
        TWO_CARDS,
        {},
        Replay(cards=("q1",)),
        CARDS,
        {},
        [card_of(TWO_CARDS, "q2")],
    ),
    ("a spoken question that becomes a card", HEARD, {}, Replay(), CARD_RESUME, SAME, [card_of(HEARD, "q1")]),
    ("a card on the same connection", CARD, {}, Replay(), CARD_RESUME, {**SAME, **STALE}, []),
    ("a spoken question that was heard", HEARD, {}, Replay(), VOICE, {}, [PROMPT]),
    ("a spoken question that an app that still runs has heard", HEARD, {}, Replay(), VOICE, SAME, [IDLE]),
    (
        "a spoken question that an app that still runs has not heard",
        ASKED,
        {},
        Replay(),
        VOICE,
        SAME,
        [PROMPT],
    ),
    ("a spoken question on the same connection", ASKED, {}, Replay(), VOICE, STALE, []),
    (
        "a spoken question in the replay",
        ASKED,
        {},
        Replay(speeches=(PROMPT_DONE.call_id,)),
        VOICE,
        {},
        [IDLE],
    ),
    ("a card that becomes a spoken question", CARD, {}, Replay(), VOICE, {**SAME, **STALE}, [PROMPT]),
    (
        "a question of a new connection that resumed nothing",
        HEARD,
        {},
        Replay(),
        VOICE,
        {**SAME, "resumed": False},
        [],
    ),
    (
        "a write, a probe and a question",
        fold(r.QuestionDecided(question_id="q1", call_id="c1", outcome="allowed"), state=TWO_CARDS),
        {},
        Replay(unconfirmed=True),
        CARDS,
        {},
        [
            r.CallsWithheld(
                (
                    call_event(
                        fold(
                            r.QuestionDecided(question_id="q1", call_id="c1", outcome="allowed"),
                            state=TWO_CARDS,
                        )
                    ),
                )
            ),
            r.StateShown("thinking", probe=True),
            card_of(TWO_CARDS, "q2"),
        ],
    ),
]


@pytest.mark.parametrize(
    ("state", "facts", "replay", "profile", "arguments", "records"),
    [row[1:] for row in CONNECTIONS],
    ids=[row[0] for row in CONNECTIONS],
)
def test_a_connection_is_shown_where_the_conversation_stands(
    state: Conversation,
    facts: Facts,
    replay: Replay,
    profile: Profile,
    arguments: Facts,
    records: list[r.Record],
) -> None:
    known = {"resumed": True, "same_process": False, "is_new": True, **arguments}
    assert connected(view(replaced(state), **facts), replay, profile, **known) == records


@pytest.mark.parametrize(
    ("state", "profile", "arguments", "records"),
    [
        (SAID, VOICE, {}, [r.ClientReplaced(), IDLE]),
        (CALLED, VOICE, {}, [r.ClientReplaced(), WITHHELD]),
        (SAID, RESUME, {}, [r.ClientReplaced(), IDLE]),
        (SAID, RESUME, SAME, [IDLE]),
        (SAID, VOICE, STALE, [IDLE]),
        (replaced(SAID), VOICE, {}, [IDLE]),
        (PAUSED, PAUSES, {}, [r.ClientReplaced(), IDLE]),
        (PAUSED, PAUSES, SAME, [IDLE]),
        (PAUSED, PAUSES, STALE, [IDLE]),
        (PAUSED, RESUME, SAME, [GOES_ON, IDLE]),
    ],
    ids=[
        "an app without resume",
        "an app without resume in a call",
        "an app with resume that was started again",
        "an app that still runs",
        "the same connection",
        "an app without resume that has handled nothing",
        "an app that was started again in a pause",
        "an app that still runs, in a pause",
        "the same connection, in a pause",
        "an app that does not pause any more",
    ],
)
def test_an_app_that_may_have_lost_its_state_begins_its_ids_anew(
    state: Conversation, profile: Profile, arguments: Facts, records: list[r.Record]
) -> None:
    known = {"resumed": True, "same_process": False, "is_new": True, **arguments}
    assert connected(view(state), Replay(), profile, **known) == records
