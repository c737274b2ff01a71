"""What a record shows its client: `events` as a table, and the promises of ids and kinds.

A row of `EVENTS`: its name in words, the state before, the records, and the events in the order of the wire:
names with payloads. A UI call stands with its own name and arguments. The client's capabilities are the
state's: `VOICE` has none, `CARDS` has cards and the news of calls.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
import pytest
from msgspec.structs import replace as changed

from conductor.conversation import records as r
from conductor.conversation.events import iso_time
from conductor.conversation.state import AppFact, Conversation, Event, Form, LateCall, Notice, Profile
from conductor.events.server import is_ui_call
from tests.conversation.build import (
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
)
from tests.conversation.stories import HALF, HALF_SAID, LISTENS

Shown: TypeAlias = tuple[str, dict[str, Any]]

# -- events in short: a name, and the payload


def state(value: str) -> Shown:
    return "convo.setState", {"state": value}


def message(role: Literal["user", "assistant"], text: str, **more: str) -> Shown:
    return "convo.appendMessage", {"role": role, "text": text, "isPartial": False, **more}


def final(text: str, **more: str) -> list[Shown]:
    """Make the two events of a text that is complete."""
    return [("assistant.speech.final", {"text": text}), message("assistant", text, **more)]


def speak(text: str, **more: str | int | bool) -> Shown:
    return "tts.speak", {"text": text, **more}


def aloud(text: str, **more: str | int | bool) -> list[Shown]:
    return [state("speaking"), speak(text, **more)]


def part(number: int, *, last: bool) -> dict[str, Any]:
    """Make the place of a speech in the reply of the second record."""
    return {"speechId": REPLY, "segment": number, "last": last}


def run(call_id: str = "c1", **more: int) -> Shown:
    return "device.do", {"callId": call_id, "name": "device.do", "arguments": "{}", **more}


def began(call_id: str, name: str, source: str) -> Shown:
    display = f"{name} …"
    activity = {"callId": call_id, "name": name, "source": source, "status": "started", "display": display}
    return "tool.activity", activity


def over(call_id: str, error_type: str, display: str, took_ms: int = 0, size: int = 0) -> Shown:
    return "tool.activity", {
        "callId": call_id,
        "name": "device.do",
        "source": "device",
        "status": "finished",
        "errorType": error_type,
        "executionTimeMs": took_ms,
        "dataSizeBytes": size,
        "display": display,
    }


def cancel(call_id: str, reason: str) -> Shown:
    return "tool.cancel", {"callId": call_id, "reason": reason}


def resolved(approval_id: str, outcome: str) -> Shown:
    return "approval.resolved", {"approvalId": approval_id, "outcome": outcome}


def error(code: str, text: str) -> Shown:
    return "error", {"code": code, "message": text}


def turn_ended(event_id: str, reason: str) -> Shown:
    return "turn.ended", {"turnId": "turn_claim_c00", "eventId": event_id, "reason": reason}


def resume(speech_id: str) -> Shown:
    return "audio.output.resume", {"speechId": speech_id}


def two_ended(event_id: str) -> Shown:
    """Make the end of the turn that the fifth record started."""
    return "turn.ended", {"turnId": "turn_claim_1400", "eventId": event_id, "reason": "answered"}


THINKING, IDLE = state("thinking"), state("idle")
TIMED_OUT = error("turn_timeout", "The turn took longer than its time limit.")
CARD = {
    "approvalId": "q1",
    "batchId": "batch",
    "callId": "c1",
    "name": "device.do",
    "arguments": {},
    "argumentsDigest": "digest c1",
    "risk": "medium",
    "reasons": [],
    "prompt": "May I?",
    "scopes": ["once", "session"],
    "expiresAt": "2026-05-28T20:36:40.000Z",
}

# -- states. The claim is their first record, the profile the second, the start of a turn the third.


def of(*capabilities: str, **fields: Any) -> Conversation:
    """Make a turn of a client with these capabilities."""
    return fold(r.ProfileDeclared(Profile(capabilities=capabilities, **fields)), STARTED)


def after(before: Conversation, *records: r.Record) -> Conversation:
    return fold(*records, state=before)


EMPTY = fold()
TURN, CARD_TURN, SEGMENT_TURN = of(), of(*CARDS.capabilities), of("segments")
REPLY = "speech_claim_c00_1"  # the turn is the third record, its reply the second message
NEWS = after(fold(r.ProfileDeclared(VOICE)), r.TurnStarted(cause="news", limit_ms=9))
SEGMENT_NEWS = after(
    fold(r.ProfileDeclared(Profile(capabilities=("segments",)))), r.TurnStarted(cause="news", limit_ms=9)
)

ONE = r.SegmentSpoken("One. ", "One.")
CALLED, CARD_CALLED = after(TURN, replied(device())), after(CARD_TURN, replied(device()))
HELD = after(CARD_TURN, replied(device(consent="held")))
LATE = LateCall(call_id="c1", name="device.do", effect="write", expires_at=NOW + 9)
CLOSED_LATE = finished(late=LATE)
LATE_RESULT = r.LateFinished("c1", Notice(text="A lamp.", late=True), starts_turn=True)

PAUSER = fold(r.ProfileDeclared(Profile(capabilities=("pause",))))
PAUSER_OF_TURNS = after(
    of("pause", "turns"), replied(text="Yes.", speech_text="Yes."), r.TurnEnded(reason="answered")
)
GOES_ON = r.PauseEnded(resumes=True, name="s")

VOICE_ASKED, CARD_ASKED = asking(question()), asking(question(), profile=CARDS)
TWO_CARDS = asking(question(), question(2, "c2"), profile=CARDS)
FORM = Form("builtin", "Which?", {})
UNSPOKEN = after(TURN, replied(device(consent="needed")), r.QuestionsAsked((question(),)))
PROMPT = r.PromptSpoken("q1", "May I?")


def wants(profile: Profile, *, language: str, lang: str = "") -> Conversation:
    """Make a question in a language, which no one has spoken yet."""
    start = msgspec.structs.replace(STARTED, lang=lang)
    asked = r.QuestionsAsked((question(language=language),))
    return fold(r.ProfileDeclared(profile), start, replied(device(consent="needed")), asked)


def decided(outcome: Any, **fields: Any) -> r.QuestionDecided:
    return r.QuestionDecided(question_id="q1", call_id="c1", outcome=outcome, **fields)


def ended(reason: Any = "answered", **fields: Any) -> r.TurnEnded:
    return r.TurnEnded(reason=reason, **fields)


def failed(**fields: Any) -> r.TurnEnded:
    return ended("failed", **{"error": "turn_timeout", **fields})


# Calls that started a second ago.
ADDING = fold(replied(local()), at=NOW - 1_000, state=CARD_TURN)
ALLOWED = fold(decided("allowed"), at=NOW - 1_000, state=CARD_ASKED)

Row: TypeAlias = tuple[str, Conversation, list[r.Record], list[Shown]]

STATES: list[Row] = [
    ("a state outside of a turn", EMPTY, [r.StateShown("listening")], [state("listening")]),
    ("words start a turn", EMPTY, [STARTED], [THINKING, message("user", "go")]),
    ("news starts a turn without a sign", EMPTY, [r.TurnStarted(cause="news", limit_ms=9)], []),
    ("an end", TURN, [ended()], [IDLE]),
    ("an end that another turn follows", TURN, [ended("interrupted", follows=True)], []),
]

REPLIES: list[Row] = [
    ("a reply", TURN, [replied(text="Yes.", speech_text="Yes.")], [*final("Yes."), *aloud("Yes.")]),
    ("a reply without sound", TURN, [replied(text="`x`")], final("`x`")),
    ("a reply without words", TURN, [replied()], []),
    ("a reply after its turn", EMPTY, [replied(text="Yes.", speech_text="Yes.")], []),
    ("a segment", TURN, [ONE], aloud("One.")),
    ("a segment without sound", TURN, [r.SegmentSpoken("- ", "")], []),
    ("a segment after its turn", EMPTY, [ONE], []),
    ("a second segment needs no state", after(TURN, ONE), [r.SegmentSpoken("Two.", "Two.")], [speak("Two.")]),
    (
        "the rest of a reply",
        after(TURN, ONE),
        [replied(text="One. Two.", speech_text="Two.")],
        [*final("One. Two."), speak("Two.")],
    ),
    (
        "words before a call: the state goes back to thinking once they were spoken",
        after(TURN, ONE),
        [replied(local(), text="One.")],
        [*final("One."), THINKING],
    ),
    (
        "words aloud and a call",
        TURN,
        [replied(local(), text="I add.", speech_text="I add.")],
        [*final("I add."), *aloud("I add."), THINKING],
    ),
    ("silent words before a call", TURN, [replied(local(), text="`x`")], final("`x`")),
    ("words before a call, in a turn about news", after(NEWS, ONE), [replied(local())], []),
    ("a broken reply keeps its spoken words", after(TURN, ONE), [r.ReplyBroken("One.")], final("One.")),
    ("a broken reply of which nobody heard", TURN, [r.ReplyBroken()], []),
    ("a phrase while a tool runs", TURN, [r.BridgeSpoken("Wait.")], [*aloud("Wait."), THINKING]),
    ("such a phrase in a turn about news", NEWS, [r.BridgeSpoken("Wait.")], aloud("Wait.")),
    ("such a phrase after its turn", EMPTY, [r.BridgeSpoken("Wait.")], []),
]

SEGMENTS: list[Row] = [
    ("a segment says its place", SEGMENT_TURN, [ONE], aloud("One.", **part(0, last=False))),
    (
        "the next one, too",
        after(SEGMENT_TURN, ONE),
        [r.SegmentSpoken("Two.", "Two.")],
        [speak("Two.", **part(1, last=False))],
    ),
    (
        "the last one and the message bear the id of the reply",
        after(SEGMENT_TURN, ONE),
        [replied(text="One. Two.", speech_text="Two.")],
        [*final("One. Two.", messageId=REPLY), speak("Two.", **part(1, last=True))],
    ),
    (
        "a reply in one piece",
        SEGMENT_TURN,
        [replied(text="Yes.", speech_text="Yes.")],
        [*final("Yes.", messageId=REPLY), *aloud("Yes.", **part(0, last=True))],
    ),
    (
        "a message that is not spoken bears the id of its call",
        SEGMENT_TURN,
        [replied(text="`x`")],
        final("`x`", messageId="call_claim_1185"),
    ),
    (
        "so does a message of the person",
        fold(r.ProfileDeclared(Profile(capabilities=("segments",)))),
        [STARTED],
        [THINKING, message("user", "go", messageId="call_claim_d81")],
    ),
    (
        "and a broken reply",
        after(SEGMENT_TURN, ONE),
        [r.ReplyBroken("One.")],
        final("One.", messageId="call_claim_1585"),
    ),
    (
        "an apology is a speech apart",
        SEGMENT_TURN,
        [ended("failed", apology="Sorry.", speech_text="Sorry.")],
        [
            *final("Sorry.", messageId="speech_claim_1000"),
            *aloud("Sorry.", speechId="speech_claim_1000", segment=0, last=True),
            IDLE,
        ],
    ),
    (
        "a spoken question, too",
        wants(Profile(capabilities=("segments",)), language="en"),
        [PROMPT],
        [
            message("assistant", "May I?", messageId="speech_claim_1800"),
            *aloud("May I?", speechId="speech_claim_1800", segment=0, last=True),
            IDLE,
        ],
    ),
]

CALLS: list[Row] = [
    ("a device call", TURN, [replied(device())], [run()]),
    ("a server's call", TURN, [replied(local())], []),
    ("words and a device call", TURN, [replied(device(), text="I do.")], [*final("I do."), run()]),
    ("two device calls", TURN, [replied(device(), device("c2"))], [run(), run("c2")]),
    ("a call that needs a yes", CARD_TURN, [replied(device(consent="needed"))], []),
    ("a call that has failed already", CARD_TURN, [replied(device(result=finished().result))], []),
    ("a limit for a client with leases", of("lease"), [replied(device())], [run(timeoutMs=30_000)]),
    (
        "the start of calls for a client with activity",
        CARD_TURN,
        [replied(device(), local("c2"))],
        [run(), began("c1", "device.do", "device"), began("c2", "local.sum", "builtin")],
    ),
    (
        "two device calls, each with its start",
        of("activity"),
        [replied(device(), device("c2"))],
        [run(), began("c1", "device.do", "device"), run("c2"), began("c2", "device.do", "device")],
    ),
    ("a held call starts", HELD, [r.CallReleased("c1")], [run(), began("c1", "device.do", "device")]),
    ("a held call that is gone", CARD_TURN, [r.CallReleased("c1")], []),
    ("a call that waits for a person is not released", CARD_ASKED, [r.CallReleased("c1")], []),
]

RESULTS: list[Row] = [
    ("a result", CALLED, [finished()], []),
    (
        "a result for a client with activity",
        CARD_CALLED,
        [finished(took_ms=7, size=21)],
        [over("c1", "none", "device.do: done, 21 bytes, 7 ms", 7, 21)],
    ),
    (
        "a failure",
        CARD_CALLED,
        [finished("c1", "permission_denied")],
        [over("c1", "permission_denied", "device.do: permission denied, 0 bytes, 0 ms")],
    ),
    (
        "a failure on the device",
        CARD_CALLED,
        [finished("c1", "tool_error", reason="device_error")],
        [over("c1", "tool_error", "device.do: failed on the device, 0 bytes, 0 ms")],
    ),
    ("the end of a call that never ran", CARD_CALLED, [finished(tool="", source="")], []),
    (
        "a time limit cancels the call",
        of("cancel"),
        [replied(device()), finished("c1", "unknown", reason="tool_result_timeout", late=LATE)],
        [run(), cancel("c1", "timeout")],
    ),
    ("one without the device's result to come", of("cancel"), [finished(reason="tool_result_timeout")], []),
    ("an unknown result of another cause", of("cancel"), [finished(reason="lost", late=LATE)], []),
    ("a time limit without cancel", CALLED, [finished(reason="tool_result_timeout", late=LATE)], []),
    (
        "a late result that starts a turn",
        after(CARD_CALLED, CLOSED_LATE),
        [LATE_RESULT],
        [("tool.late", {"callId": "c1", "deliveredAs": "turn"})],
    ),
    (
        "a late result for the next turn",
        after(CARD_CALLED, CLOSED_LATE),
        [msgspec.structs.replace(LATE_RESULT, starts_turn=False)],
        [("tool.late", {"callId": "c1", "deliveredAs": "context"})],
    ),
    ("a late result for a client that cannot know", after(CALLED, CLOSED_LATE), [LATE_RESULT], []),
]

ENDS: list[Row] = [
    (
        "an interruption",
        of("cancel"),
        [ended("interrupted", cancelled=("c1",))],
        [cancel("c1", "barge_in"), IDLE],
    ),
    (
        "a turn's time limit",
        of("cancel"),
        [ended("timed_out", cancelled=("c1",))],
        [cancel("c1", "timeout"), IDLE],
    ),
    (
        "the end of the session",
        of("cancel"),
        [ended("session_end", cancelled=("c1", "c2"))],
        [cancel("c1", "session_end"), cancel("c2", "session_end"), IDLE],
    ),
    ("calls of a client without cancel", CALLED, [ended("interrupted", cancelled=("c1",))], [IDLE]),
    (
        "open cards",
        CARD_ASKED,
        [ended("interrupted", superseded=("q1",))],
        [resolved("q1", "superseded"), IDLE],
    ),
    ("an open spoken question", VOICE_ASKED, [ended("interrupted", superseded=("q1",))], [IDLE]),
    (
        "cancelled calls, cards, and results, in this order",
        TWO_CARDS,
        [ended("interrupted", cancelled=("c1",), superseded=("q2",), results=(finished("c1", "cancelled"),))],
        [
            cancel("c1", "barge_in"),
            resolved("q2", "superseded"),
            over("c1", "cancelled", "device.do: cancelled, 0 bytes, 0 ms"),
            IDLE,
        ],
    ),
    ("a failure in silence", TURN, [failed()], [TIMED_OUT, IDLE]),
    (
        "a failure that another turn follows",
        TURN,
        [failed(apology="Sorry.", speech_text="Sorry.", follows=True)],
        [TIMED_OUT, *final("Sorry."), *aloud("Sorry.")],
    ),
    (
        "a failure with an apology in writing",
        TURN,
        [failed(apology="Sorry.")],
        [TIMED_OUT, *final("Sorry."), IDLE],
    ),
    (
        "a failure in mid-reply shows the part that was spoken",
        after(TURN, ONE),
        [failed(text="One. [The reply broke off here.]")],
        [TIMED_OUT, *final("One."), IDLE],
    ),
    (
        "a failure in mid-reply with an apology",
        after(TURN, ONE),
        [failed(text="One. [The reply broke off here.]", apology="One. Sorry.", speech_text="Sorry.")],
        [TIMED_OUT, *final("One. Sorry."), *aloud("Sorry."), IDLE],
    ),
    (
        "a failure before a word",
        TURN,
        [failed(text="[The reply broke off here.]")],
        [TIMED_OUT, IDLE],
    ),
    (
        "a failure without a message",
        TURN,
        [failed(error="invalid_transcript")],
        [error("invalid_transcript", "The server made a mistake; its log says more."), IDLE],
    ),
    ("refused words", TURN, [ended("failed", apology="Sorry.")], [*final("Sorry."), IDLE]),
    (
        "an unfinished reply without a failure",
        after(TURN, ONE),
        [ended("interrupted", text="One. [interrupted]")],
        [IDLE],
    ),
    (
        "a client with turns learns of each transcript",
        after(of("turns"), r.AnswerUnclear(question_id="q1", event_id="words-2", text="hm", counts=False)),
        [ended("interrupted")],
        [IDLE, turn_ended("words-1", "interrupted"), turn_ended("words-2", "interrupted")],
    ),
    ("an end without a turn", fold(r.ProfileDeclared(Profile(capabilities=("turns",)))), [ended()], [IDLE]),
]

QUESTIONS: list[Row] = [
    (
        "a card",
        after(CARD_TURN, replied(device(consent="needed"))),
        [r.QuestionsAsked((question(card=True),))],
        [("approval.request", CARD), IDLE],
    ),
    (
        "a card with a title, a preview and reasons, whose secrets are hidden",
        after(CARD_TURN, replied(device(consent="needed"))),
        [
            r.QuestionsAsked(
                (
                    msgspec.structs.replace(
                        question(card=True, title="Do it", preview="- a", reasons=("It is new.",)),
                        arguments='{"pin":"1234"}',
                        redacted_arguments='{"pin":"…"}',
                    ),
                )
            )
        ],
        [
            (
                "approval.request",
                {
                    **CARD,
                    "arguments": {"pin": "…"},
                    "reasons": ["It is new."],
                    "preview": "- a",
                    "title": "Do it",
                },
            ),
            IDLE,
        ],
    ),
    (
        "cards and a spoken question",
        after(CARD_TURN, replied(device(consent="needed"))),
        [r.QuestionsAsked((question(2, "c2"), question(card=True)))],
        [("approval.request", CARD), IDLE],
    ),
    (
        "two cards, one state",
        after(CARD_TURN, replied(device(consent="needed"), device("c2", consent="needed"))),
        [r.QuestionsAsked((question(card=True), question(2, "c2", card=True)))],
        [
            ("approval.request", CARD),
            (
                "approval.request",
                {**CARD, "approvalId": "q2", "callId": "c2", "argumentsDigest": "digest c2"},
            ),
            IDLE,
        ],
    ),
    ("a spoken question that no one has spoken", TURN, [r.QuestionsAsked((question(),))], []),
    ("a spoken question", UNSPOKEN, [PROMPT], [message("assistant", "May I?"), *aloud("May I?"), IDLE]),
    ("a spoken question that is decided", TURN, [PROMPT], []),
    (
        "an unclear answer: the question is repeated",
        VOICE_ASKED,
        [r.AnswerUnclear(question_id="q1", event_id="e", text="hm", counts=True)],
        [message("user", "hm")],
    ),
    (
        "a person who wants time",
        VOICE_ASKED,
        [r.AnswerUnclear(question_id="q1", event_id="e", text="hm", counts=False, waits=True)],
        [message("user", "hm"), IDLE],
    ),
    (
        "words beside a card",
        CARD_ASKED,
        [r.AnswerUnclear(question_id="q1", event_id="e", text="hm", counts=False)],
        [message("user", "hm"), IDLE],
    ),
    (
        "words after the question",
        TURN,
        [r.AnswerUnclear(question_id="q1", event_id="e", text="hm", counts=False)],
        [message("user", "hm")],
    ),
]

LANGUAGES: list[Row] = [
    (
        f"a question in {language}, {client}",
        wants(profile, language=language, lang=lang),
        [PROMPT],
        [message("assistant", "May I?"), *aloud("May I?", **named), IDLE],
    )
    for client, profile, lang, language, named in (
        ("of a client without a locale", VOICE, "", "en", {}),
        ("of a client without a locale", VOICE, "", "de", {"lang": "de"}),
        ("of a client with this locale", Profile(locale="de-AT"), "", "de", {}),
        ("of a client with another locale", Profile(locale="de-AT"), "", "en", {"lang": "en"}),
        ("of a client that names a language", Profile(locale="de-AT", lang="de"), "", "de", {"lang": "de"}),
        ("after words in a known language", Profile(locale="de-AT"), "de", "de", {"lang": "de"}),
    )
]  # fmt: skip

DECISIONS: list[Row] = [
    (
        "a spoken yes",
        VOICE_ASKED,
        [decided("allowed", text="yes")],
        [message("user", "yes"), THINKING, run()],
    ),
    ("a spoken no", VOICE_ASKED, [decided("denied", text="no")], [message("user", "no"), THINKING]),
    (
        "a tap on yes",
        CARD_ASKED,
        [decided("allowed")],
        [resolved("q1", "allowed"), THINKING, run(), began("c1", "device.do", "device")],
    ),
    (
        "an edit",
        CARD_ASKED,
        [decided("edited", arguments='{"a":1}', digest="d")],
        [
            resolved("q1", "edited"),
            THINKING,
            ("device.do", {"callId": "c1", "name": "device.do", "arguments": '{"a":1}'}),
            began("c1", "device.do", "device"),
        ],
    ),
    ("a tap on no", CARD_ASKED, [decided("denied")], [resolved("q1", "denied"), THINKING]),
    (
        "a spoken answer to a card",
        CARD_ASKED,
        [decided("denied", text="no")],
        [message("user", "no"), resolved("q1", "denied"), THINKING],
    ),
    ("another card keeps the microphone open", TWO_CARDS, [decided("denied")], [resolved("q1", "denied")]),
    (
        "another question, which is spoken next, does not",
        asking(question(), question(2, "c2")),
        [decided("denied", text="no")],
        [message("user", "no"), THINKING],
    ),
    ("no answer in time", CARD_ASKED, [decided("expired")], [resolved("q1", "expired")]),
    ("no spoken answer in time", VOICE_ASKED, [decided("expired")], []),
    (
        "a yes to a call that is over",
        after(CARD_ASKED, finished()),
        [decided("allowed")],
        [resolved("q1", "allowed"), THINKING],
    ),
    (
        "a form that is filled in: its call runs already",
        after(ADDING, r.QuestionsAsked((question(form=FORM, card=True),))),
        [decided("allowed", arguments='{"a":1}')],
        [resolved("q1", "allowed"), THINKING],
    ),
    (
        "such a form of a call that was allowed before",
        after(ALLOWED, r.QuestionsAsked((question(form=FORM, card=True),))),
        [decided("allowed", arguments='{"a":1}')],
        [resolved("q1", "allowed"), THINKING],
    ),
]

PAUSES: list[Row] = [
    ("a speech that goes on", PAUSER, [GOES_ON], [resume("s"), IDLE]),
    ("a speech that goes on in a turn", after(PAUSER, STARTED), [GOES_ON], [resume("s")]),
    (
        "a spoken question that goes on",
        after(PAUSER, STARTED, replied(device(consent="needed")), r.QuestionsAsked((question(),))),
        [GOES_ON],
        [resume("s"), IDLE],
    ),
    (
        "a speech that goes on after a transcript, whose end is told",
        PAUSER_OF_TURNS,
        [r.PauseEnded(resumes=True, event_id="e", name="call_claim_1187")],
        [resume("call_claim_1187"), IDLE, turn_ended("e", "resumed")],
    ),
    (
        "a speech of an earlier turn that goes on in a turn",
        after(PAUSER_OF_TURNS, STARTED),
        [r.PauseEnded(resumes=True, event_id="e", name="s")],
        [resume("s"), ("turn.ended", {"turnId": "turn_claim_1800", "eventId": "e", "reason": "resumed"})],
    ),
    (
        "an unknown speech that goes on after a transcript",
        PAUSER_OF_TURNS,
        [r.PauseEnded(resumes=True, event_id="e", name="s")],
        [
            resume("s"),
            IDLE,
            ("turn.ended", {"turnId": "turn_claim_1800", "eventId": "e", "reason": "resumed"}),
        ],
    ),
    ("a paused speech that was cut", PAUSER, [r.PauseEnded(resumes=False, event_id="e")], []),
]

HALVES: list[Row] = [
    (
        "half a sentence",
        fold(r.ProfileDeclared(LISTENS)),
        [HALF],
        [IDLE, ("turn.hint", {"complete": False})],
    ),
    ("half a sentence for an app that cannot listen on", EMPTY, [HALF], [IDLE]),
    (
        "half a sentence over a turn",
        fold(r.ProfileDeclared(LISTENS), STARTED),
        [HALF],
        [("turn.hint", {"complete": False})],
    ),
    (
        "the other half",
        HALF_SAID,
        [r.InputQueued("e1", "hi"), changed(STARTED, event_id="e1", text="milk and hi")],
        [THINKING, message("user", "milk and hi")],
    ),
    (
        "words that continue others, which are shown",
        fold(r.ProfileDeclared(Profile(capabilities=("turns",))), changed(STARTED, text="milk")),
        [
            r.TurnEnded(reason="interrupted", follows=True, continues=True),
            r.InputQueued("e1", "hi"),
            changed(STARTED, event_id="e1", text="milk hi", shown=4),
        ],
        [THINKING, message("user", "hi")],
    ),
    (
        "the end of the turn of two halves",
        fold(
            r.ProfileDeclared(Profile(capabilities=("turns",))),
            HALF,
            r.InputQueued("e1", "hi"),
            changed(STARTED, event_id="e1", text="milk and hi"),
        ),
        [r.TurnEnded(reason="answered")],
        [IDLE, two_ended("h1"), two_ended("e1")],
    ),
]

NOTHING: list[Row] = [
    (f"{type(record).__name__}, {where}", before, [record], [])
    for where, before in (("with cards", CARD_ASKED), ("by voice", VOICE_ASKED), ("before a turn", EMPTY))
    for record in (
        r.Claimed("b"),
        r.Released(),
        r.SessionOpened(),
        r.SessionClosed(),
        r.ProfileDeclared(VOICE),
        r.ClientReplaced(),
        r.CallsWithheld(("e",)),
        r.FieldSet("a", "1"),
        r.InputQueued("e", "hi"),
        r.EventHandled("e"),
        r.NoticeTaken("e", Notice(text="n")),
        r.ContextAdded("e", AppFact(text="n")),
        r.DeviceWanted(("c1",)),
        r.PromptHeard("q1"),
        r.PromptCut("q1", "e", NOW),
        r.SpeechCut("s", "One"),
        r.SpeechPaused(event_id="e", speech_id="s", name="s"),
        r.PauseEnded(resumes=True, event_id="e", name="s"),
        r.JobAccepted(LATE),
    )
]

EVENTS = (
    STATES
    + REPLIES
    + SEGMENTS
    + CALLS
    + RESULTS
    + ENDS
    + QUESTIONS
    + LANGUAGES
    + DECISIONS
    + PAUSES
    + HALVES
    + NOTHING
)


def shown(event: Event) -> Shown:
    payload = msgspec.json.decode(event.payload)
    if event.type != "tool.call":
        return event.type, payload
    name = payload["name"]
    return name, msgspec.json.decode(payload["arguments"]) if is_ui_call(name) else payload


@pytest.mark.parametrize(
    ("before", "records", "expected"), [row[1:] for row in EVENTS], ids=[row[0] for row in EVENTS]
)
def test_a_record_shows_this_and_no_more(
    before: Conversation, records: list[r.Record], expected: list[Shown]
) -> None:
    assert [shown(event) for event in events_of(before, *records)] == expected


def test_each_record_has_a_row() -> None:
    assert {type(record) for row in EVENTS for record in row[2]} == set(r.Fact.__subclasses__())


# -- the envelope

KINDS = {
    "convo.setState": ("state", ""),
    "convo.appendMessage": ("message", ""),
    "tts.speak": ("speak", ""),
    "assistant.speech.final": ("final", ""),
    "device.do": ("call", "callId"),
    "approval.request": ("approval", "approvalId"),
    "approval.resolved": ("resolved", "approvalId"),
    "turn.ended": ("ended", ""),
    "audio.output.resume": ("resume", ""),
    "error": ("flash", ""),
    "tool.activity": ("flash", ""),
    "tool.cancel": ("flash", ""),
    "tool.late": ("flash", ""),
}
"""Name -> the kind of the event, by which it is kept and replayed, and the field that names its subject."""


@pytest.mark.parametrize("name", KINDS)
def test_an_event_has_the_kind_of_its_name(name: str) -> None:
    kind, field = KINDS[name]
    found = [
        event
        for _, before, records, _ in EVENTS
        for event in events_of(before, *records)
        if shown(event)[0] == name
    ]
    assert found
    for event in found:
        assert (event.kind, event.at, event.probe) == (kind, NOW, False)
        bound = shown(event)[1][field] if field else msgspec.json.decode(event.payload).get("callId", "")
        assert event.call_id == (bound if field or event.type == "tool.call" else "")


@pytest.mark.parametrize(
    ("call", "effect", "limit_ms"),
    [(device(limit_ms=9), "write", 9), (device(effect="read"), "read", 30_000)],
)
def test_a_call_carries_its_effect_and_its_limit(call: Any, effect: str, limit_ms: int) -> None:
    (event,) = events_of(TURN, replied(call))
    assert (event.effect, event.limit_ms) == (effect, limit_ms)


def test_only_a_probe_is_marked_as_one() -> None:
    probe, state_alone = events_of(EMPTY, r.StateShown("idle", probe=True), r.StateShown("idle"))
    assert (probe.probe, state_alone.probe) == (True, False)


ANSWER = [STARTED, replied(text="Yes.", speech_text="Yes."), ended()]


def test_ids_are_made_of_claim_record_and_place() -> None:
    assert [event.id for event in events_of(EMPTY, *ANSWER)] == [
        *("evt_claim_980", "evt_claim_981"),
        *("evt_claim_d84", "evt_claim_d85", "evt_claim_d86", "evt_claim_d87"),
        "evt_claim_1189",
    ]


def test_ids_of_a_claim_are_in_the_order_of_the_wire() -> None:
    for name, before, records, _ in EVENTS:
        places = [int(event.id.rpartition("_")[2], 16) for event in events_of(before, *records)]
        assert places == sorted(set(places)), name


def test_a_ui_call_has_the_place_of_its_event() -> None:
    for name, before, records, _ in EVENTS:
        for event in events_of(before, *records):
            if event.type == "tool.call" and event.kind != "call":
                assert event.call_id.removeprefix("call_") == event.id.removeprefix("evt_"), name


@pytest.mark.parametrize(
    ("at_ms", "text"),
    [(0, "1970-01-01T00:00:00.000Z"), (1_772_366_400_007, "2026-03-01T12:00:00.007Z")],
)
def test_a_time_is_written_in_utc_with_milliseconds(at_ms: int, text: str) -> None:
    assert iso_time(at_ms) == text
