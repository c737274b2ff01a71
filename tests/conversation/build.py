"""What the tables share: a gate of few words, states made of records, and the view of a state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from conductor.conversation import records as r
from conductor.conversation.apply import advance
from conductor.conversation.conduct import Conduct
from conductor.conversation.phrases import FAILURES
from conductor.conversation.state import Call, Conversation, Event, Profile, Question
from conductor.conversation.view import CallGate, Edit, View, live_of
from conductor.messages import AssistantMessage, ToolCall, ToolResult
from conductor.tools.judge import Answer, AnswerKind
from conductor.tools.outcomes import ErrorType, ToolOutcome, failed
from tests.shapes import shape_of

NOW = 1_780_000_000_000
CLAIM = "token.1:claim"


class Gate(CallGate):
    """Tools of few words: "yes", "no" and "hm" are answers, "mhm" is none, and nothing is forbidden.

    In German "ja" is a backchannel, and "und" ends half a sentence.
    """

    def __init__(self, remembered: str = "", *, forbids: bool = False, speaks: bool = True) -> None:
        self.remembered, self.forbids, self.speaks = remembered, forbids, speaks

    def classify(self, question: Question, utterance: str, lang: str) -> Answer:
        kinds: dict[str, AnswerKind] = {"yes": "allow", "no": "deny", "hm": "unclear"}
        return Answer(kinds.get(utterance, "other"), "once", utterance)

    def is_backchannel(self, words: str, lang: str) -> bool:
        return words in ("mhm", "yes", *(["ja"] if lang == "de" else []))

    def is_unfinished(self, words: str, lang: str) -> bool:
        return words.endswith(" und" if lang == "de" else " and")

    def is_credit(self, words: str) -> bool:
        return words == "Subtitles by Amara.org"

    def language_of(self, lang: str) -> str:
        return "en"

    def prompt(self, question: Question, attempt: int) -> str:
        return f"{question.tool}? ({attempt})"

    def by_voice(self, question: Question) -> bool:
        return self.speaks

    def refusal(self, question: Question, arguments: str) -> ToolOutcome | None:
        return failed("permission_denied", "forbidden", reason="policy") if self.forbids else None

    def held_refusal(self, call: Call) -> ToolOutcome | None:
        return failed("permission_denied", "forbidden", reason="policy") if self.forbids else None

    def edited(self, question: Question, arguments: Mapping[str, Any]) -> Edit | str:
        text = msgspec.json.encode(dict(arguments)).decode()
        return Edit(text, f"digest {text}", "edited") if arguments else "Nothing is left."

    def granted(self, question: Question, grants: str) -> str:
        return f"{grants}{question.tool};"

    def allows(self, question: Question, grants: str) -> bool:
        return question.tool in grants

    def result(self, call: Call, outcome: ToolOutcome) -> ToolResult:
        read = result(call.id, outcome.error_type, *outcome.metadata.notes, untrusted=call.untrusted)
        return msgspec.structs.replace(read, images=outcome.images)

    def memories(self, words: str) -> str:
        return self.remembered.replace("WORDS", words)


def result(call_id: str = "c1", error_type: str = "none", *notes: str, untrusted: bool = False) -> ToolResult:
    """Make a result as the gate of the tables writes it: the kind of the error, and the notes."""
    text = "done" if error_type == "none" else error_type
    return ToolResult(call_id, "; ".join((text, *notes)), error_type != "none", untrusted)


RULES = Conduct(failures=FAILURES)


# The name of a fact in the tables -> its owner and its name there.
_FACTS = {
    "draft": "model.draft",
    "request": "model.request",
    "running_calls": "loop.calls",
    "notices_after": "loop.notices_after",
    "finished_speeches": "outbox.finished_speeches",
    "is_connected": "outbox.is_connected",
    "visible_cards": "cards.visible",
    "told_outcomes": "cards.told",
    "heard_at": "speech.heard_at",
    "utterance_began": "speech.utterance_began",
    "speaking_until": "speech.speaking_until",
    "sends_partials": "speech.sends_partials",
    "floor_at": "openings.floor_at",
    "refused_input": "openings.refused_input",
    "draining": "stop.draining",
    "is_suspended": "stop.is_suspended",
    "closing": "stop.closing",
    "requests": "programs.requests",
    "summary": "summary.ready",
}


@dataclass
class Waiting:
    """An event that was not handed to a socket."""

    is_written: bool = False


def view(
    state: Conversation,
    conduct: Conduct = RULES,
    *,
    gate: CallGate | None = None,
    now: int | Callable[[], int] = NOW,
    was_sent: Collection[str] | None = None,
    memories: str = "",
    **facts: Any,
) -> View:
    """Make the view of a state, which decisions read. It is the only place in which a test makes a `View`.

    ``facts`` are those of the process, by name: plain values. ``was_sent`` are the calls that were sent
    (without it, all of them), ``memories`` is the text that is remembered of the person.
    """
    live = live_of(conduct)
    for name, value in {"is_connected": True, **facts}.items():
        owner, _, field = _FACTS[name].partition(".")
        setattr(getattr(live, owner), field, value)
    if was_sent is not None:
        calls = {*(call.id for call in state.calls), *state.speeches, *state.late_calls}
        calls |= {event.call_id for event in state.outbound.values()}
        live.outbox.unanswered = {call_id: Waiting() for call_id in calls.difference(was_sent)}
    return View(
        state=state,
        live=live,
        gate=gate or Gate(memories),
        conduct=conduct,
        now=now if callable(now) else lambda: now,
    )


CARDS = Profile(capabilities=("approval", "cancel", "late", "activity"))
VOICE = Profile()


def fold(*records: r.Record, at: int = NOW, state: Conversation | None = None) -> Conversation:
    """Make a state of records, each a commit of its own; a given state is not changed."""
    state = copy.deepcopy(state) if state is not None else Conversation()
    if not state.claims:
        advance(state, r.Commit(claim=CLAIM, at=at, records=(r.Claimed(CLAIM),)))
    for record in records:
        advance(state, r.Commit(claim=CLAIM, at=at, records=(record,)))
    return state


def events_of(state: Conversation, *records: r.Record, at: int = NOW) -> list[Event]:
    """Give the events of records, in a commit after a state, which is not changed."""
    return advance(copy.deepcopy(state), r.Commit(claim=CLAIM, at=at, records=records))


def shapes(events: Sequence[Event]) -> list[str]:
    return [shape_of({"type": e.type, "payload": msgspec.json.decode(e.payload)}) for e in events]


# -- parts of a story

STARTED = r.TurnStarted(cause="transcript", limit_ms=120_000, event_id="words-1", text="go")


def device(call_id: str = "c1", effect: Any = "write", **fields: Any) -> Call:
    return Call(
        id=call_id,
        name="device.do",
        arguments="{}",
        source="device",
        effect=effect,
        digest=f"digest {call_id}",
        **fields,
    )


def local(call_id: str = "c1", effect: Any = "read", **fields: Any) -> Call:
    return Call(
        id=call_id,
        name="local.sum",
        arguments="{}",
        source="builtin",
        effect=effect,
        digest=f"digest {call_id}",
        **fields,
    )


def replied(*calls: Call, text: str = "", speech_text: str = "") -> r.ReplyLogged:
    tool_calls = tuple(ToolCall(call.id, call.name, call.arguments) for call in calls)
    return r.ReplyLogged(
        message=AssistantMessage(text=text, calls=tool_calls), calls=calls, speech_text=speech_text
    )


def finished(call_id: str = "c1", error_type: ErrorType = "none", **fields: Any) -> r.CallFinished:
    """Make the end of a device call; one that never ran has an empty ``tool`` and ``source``."""
    fields = {"tool": "device.do", "source": "device", "error_type": error_type, **fields}
    return r.CallFinished(result=fields.pop("result", result(call_id, error_type)), **fields)


def question(number: int = 1, call_id: str = "c1", **fields: Any) -> Question:
    fields = {"expires_at": NOW + 600_000, **fields}
    return Question(
        id=f"q{number}",
        batch_id="batch",
        call_id=call_id,
        tool="device.do",
        arguments="{}",
        redacted_arguments="{}",
        digest=f"digest {call_id}",
        prompt="May I?",
        risk="medium",
        scopes=("once", "session"),
        **fields,
    )


def asking(*questions: Question, profile: Profile = VOICE) -> Conversation:
    """Make a turn whose calls wait for a person."""
    calls = [device(item.call_id, consent="needed") for item in questions]
    state = fold(r.ProfileDeclared(profile), STARTED, replied(*calls))
    card = "approval" in profile.capabilities
    state = fold(
        r.QuestionsAsked(tuple(msgspec.structs.replace(q, card=card) for q in questions)), state=state
    )
    return state if card else fold(r.PromptSpoken(questions[0].id, "May I?"), state=state)
