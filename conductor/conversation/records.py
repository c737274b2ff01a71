"""Records: the facts of a conversation in the past tense, each complete in itself.

A record holds every value that a clock, a setting or chance decided; its time is the commit's. The
store keeps commits, and `conductor.conversation.apply` makes the state of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from conductor.conversation.state import (
    AppFact,
    Call,
    Cause,
    Conversation,
    LateCall,
    Notice,
    Profile,
    Question,
    Summary,
    UnknownCall,
    Value,
)
from conductor.errors import ErrorCode
from conductor.events.server import ConversationState, EndReason
from conductor.messages import AssistantMessage, Illustrated, Image, ToolResult
from conductor.tools.outcomes import ErrorType, Outcome


class Fact(Value, frozen=True, tag=True):
    """A record."""


# -- the session


class Claimed(Fact, frozen=True):
    """A process took the session over; its backend wants the events ``webhooks``.

    ``visits``: for a request of the backend, without a client.
    """

    claim: str
    webhooks: tuple[str, ...] = ()
    visits: bool = False


class Released(Fact, frozen=True):
    """The owner gave the session up in order."""


class SessionOpened(Fact, frozen=True):
    """A client connected, and the backend does not know yet that the session is open."""


class SessionClosed(Fact, frozen=True):
    """The session was ended, or its grace period is over."""


class ProfileDeclared(Fact, frozen=True):
    """The client declared itself, or changed its declaration. Without ``approval`` it shows no cards."""

    profile: Profile


class ClientReplaced(Fact, frozen=True):
    """A client connected that may have lost its state: the ids of its events may begin anew."""


class CallsWithheld(Fact, frozen=True):
    """The app was relaunched: it may have run these calls, which are never sent again."""

    event_ids: tuple[str, ...]


class StateShown(Fact, frozen=True):
    """A state was shown outside of a turn. A ``probe`` repeats the present one to a reconnected client."""

    state: ConversationState
    probe: bool = False


class FieldSet(Fact, frozen=True):
    """A tool stored a text; an empty one deletes the field."""

    name: str
    value: str


# -- inputs


class InputQueued(Fact, Illustrated, frozen=True):
    """A transcript waits for its turn; ``lang`` is its language, if the recogniser tells.

    ``until``: it is half a sentence, and waits until then for the other half. If the last one that waits is
    half a sentence, this is its other half.
    """

    event_id: str
    text: str
    lang: str = ""
    until: int = 0


class EventHandled(Fact, frozen=True):
    """An event had no other effect; its repetition is ignored."""

    event_id: str


class NoticeTaken(Fact, frozen=True):
    """The model is to be told something."""

    event_id: str
    notice: Notice


class ContextAdded(Fact, frozen=True):
    """The app told a fact, or removed one. ``dropped`` older ones went, since there were too many."""

    event_id: str
    fact: AppFact
    dropped: int = 0


# -- a turn


class TurnStarted(Fact, frozen=True, kw_only=True):
    """A turn started: about ``text``, about the notices, or about the call of a ``tool`` by a program.

    Messages before the position ``trim`` are dropped; ``summary`` covers them. The app shows the first
    ``shown`` characters of the text already.
    """

    cause: Cause
    limit_ms: int
    event_id: str = ""
    text: str = ""
    tool: str = ""
    trim: int = 0
    summary: Summary | None = None
    lang: str = ""
    images: tuple[Image, ...] = ()
    shown: int = 0


class SegmentSpoken(Fact, frozen=True):
    """A part of the running reply was spoken: ``text`` as written, ``speech_text`` for the ear, if any."""

    text: str
    speech_text: str


class BridgeSpoken(Fact, frozen=True):
    """A phrase was spoken while the turn waits for a tool. It is no part of the history."""

    speech_text: str


class ReplyBroken(Fact, frozen=True):
    """A reply broke off. ``text`` was spoken and stays; the model continues from there.

    ``by_takeover``: its process ended, not the request. ``is_lost``: it ended without words or without its
    call, which the model learns.
    """

    text: str = ""
    by_takeover: bool = False
    is_lost: bool = False


class ReplyLogged(Fact, frozen=True, kw_only=True):
    """The model replied.

    ``calls`` are the reply's calls as the gate decided about them. ``speech_text`` is the reply for the ear,
    without the segments that were spoken already. ``usage`` is input tokens, output tokens, and cost.
    """

    message: AssistantMessage
    calls: tuple[Call, ...] = ()
    speech_text: str = ""
    paused: bool = False
    usage: tuple[int, int, float] = (0, 0, 0.0)


class CallReleased(Fact, frozen=True):
    """The earlier writes of a held call's reply are decided: it starts."""

    call_id: str


class DeviceWanted(Fact, frozen=True):
    """These calls wait for a device that is not connected."""

    calls: tuple[str, ...]


class CallFinished(Fact, frozen=True, kw_only=True):
    """A call has its only result; the last one of a reply closes the round.

    ``late``: the true result may still come. ``unknown``: the call may have changed something. ``tool`` and
    ``source`` are empty for a call that never ran.
    """

    result: ToolResult
    tool: str = ""
    source: str = ""
    error_type: ErrorType = "none"
    reason: str = ""
    took_ms: int = 0
    size: int = 0
    late: LateCall | None = None
    unknown: UnknownCall | None = None


class TurnEnded(Fact, frozen=True, kw_only=True):
    """The turn ended.

    ``results`` finish the open calls; the app must cancel the device calls ``cancelled``. The questions
    ``superseded`` close. ``text`` stays of an unfinished reply. After a failure with the code ``error`` the
    ``apology`` is shown, and ``speech_text`` for the ear. ``follows``: another turn starts at once, without
    ``idle``. ``continues``: it had brought nothing yet, and the next words continue its words, which wait for
    them as half a sentence does.
    """

    reason: EndReason
    event_id: str = ""
    text: str = ""
    results: tuple[CallFinished, ...] = ()
    cancelled: tuple[str, ...] = ()
    superseded: tuple[str, ...] = ()
    error: ErrorCode | None = None
    apology: str = ""
    speech_text: str = ""
    follows: bool = False
    continues: bool = False


# -- questions


class QuestionsAsked(Fact, frozen=True):
    """Calls wait for a person. Cards are shown by this record, a spoken question by `PromptSpoken`."""

    questions: tuple[Question, ...]


class PromptSpoken(Fact, frozen=True):
    """A question was spoken; ``counts`` as a presentation, unless a new client only hears it again.

    ``language`` is the code of another language than it was asked in before.
    """

    question_id: str
    text: str
    counts: bool = True
    language: str = ""


class PromptHeard(Fact, frozen=True):
    """A spoken question was heard to its end."""

    question_id: str


class PromptCut(Fact, frozen=True):
    """A spoken question was interrupted; it is repeated in the silence after ``repeat_at``."""

    question_id: str
    event_id: str
    repeat_at: int


class AnswerUnclear(Fact, frozen=True, kw_only=True):
    """The person's words decided nothing. One that ``counts`` uses up one of the repetitions.

    ``waits``: the question is not repeated, since the person wants time.
    """

    question_id: str
    event_id: str
    text: str
    counts: bool
    waits: bool = False
    images: tuple[Image, ...] = ()


class QuestionDecided(Fact, frozen=True, kw_only=True):
    """A question was decided, by the words ``text`` of a transcript, by a tap, or by a key ``decided_by``.

    ``arguments`` and ``digest`` replace the values of an edited call. ``grants`` are the session's encoded
    grants after a decision that lasts.
    """

    question_id: str
    call_id: str
    outcome: Outcome
    event_id: str = ""
    text: str = ""
    arguments: str = ""
    digest: str = ""
    notes: tuple[str, ...] = ()
    grants: str = ""
    decided_by: str = ""
    images: tuple[Image, ...] = ()

    @property
    def channel(self) -> str:
        """Where the decision came from: ``voice``, ``card``, or the key."""
        return self.decided_by or ("voice" if self.text else "card")


# -- speech, and results after their turn


class SpeechCut(Fact, frozen=True):
    """A speech was interrupted, or withdrawn; ``text`` stays of its message."""

    speech_id: str
    text: str
    event_id: str = ""


class SpeechPaused(Fact, frozen=True, kw_only=True):
    """The person began to speak over a speech, and the app paused it. The fields are as in `Pause`."""

    event_id: str
    speech_id: str
    name: str
    spoken_text: str | None = None
    played_ms: float | None = None


class PauseEnded(Fact, frozen=True, kw_only=True):
    """The pause of a speech ended: the speech, which the app calls ``name``, ``resumes``, or it was cut.

    ``event_id`` is the transcript that changed nothing else, with its ``text``, or the interruption.
    There may have been no pause, since the named speech had ended.
    """

    resumes: bool
    event_id: str = ""
    text: str = ""
    name: str = ""


class JobAccepted(Fact, frozen=True):
    """The app accepted a call as a job after the call was closed."""

    job: LateCall


class LateFinished(Fact, frozen=True):
    """A result came after its call was closed. ``starts_turn``: a turn reports it.

    ``in_part``: a part of the call was done, so it is still unknown what a repetition would do.
    """

    call_id: str
    notice: Notice
    starts_turn: bool
    in_part: bool = False


# Their ``text`` is the text of the transcript ``event_id``.
TranscriptRecord: TypeAlias = InputQueued | TurnStarted | AnswerUnclear | QuestionDecided | PauseEnded

if TYPE_CHECKING:
    Record: TypeAlias = Fact
else:
    Record = reduce(or_, Fact.__subclasses__())  # the decoder needs each class


def answers(records: Sequence[Record]) -> Iterator[tuple[str, Any]]:
    """List ended calls with their results, decided questions with the arguments of a yes, and speeches."""
    for record in records:
        match record:
            case ReplyLogged():
                yield from ((call.id, call.result) for call in record.calls if call.result is not None)
            case CallFinished():
                yield record.result.call_id, record.result
            case TurnEnded():
                yield from answers(record.results)
                yield from ((question_id, None) for question_id in record.superseded)
            case QuestionDecided():
                allowed = record.outcome in ("allowed", "edited")
                yield record.question_id, record.arguments if allowed else None
            case SpeechCut():
                yield record.speech_id, None


def images(records: Sequence[Record]) -> Iterator[Image]:
    """List the images that records bring into the session."""
    for record in records:
        match record:
            case CallFinished():
                yield from record.result.images
            case ReplyLogged():
                yield from (image for call in record.calls if call.result for image in call.result.images)
            case TurnStarted() | InputQueued() | AnswerUnclear() | QuestionDecided():
                yield from record.images
            case LateFinished() | NoticeTaken():
                yield from record.notice.images


class Commit(Value, frozen=True, kw_only=True):
    """Records that happened together: one append to the store.

    ``claim`` is its author, empty if the commit before has the same, and ``at`` its time in epoch
    milliseconds. ``acked`` are ids of events that the client or the backend has handled since the last
    commit. A snapshot has the ``state`` before the commit, and replaces all earlier commits.
    """

    claim: str = ""
    at: int = 0
    records: tuple[Record, ...] = ()
    acked: tuple[str, ...] = ()
    state: Conversation | None = None


_encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Commit).decode


def encode(commit: Commit) -> bytes:
    """Encode a commit. Lone surrogates, which no UTF-8 text holds, become ``?``."""
    try:
        return _encode(commit)
    except UnicodeEncodeError:
        return _encode(_without_surrogates(msgspec.to_builtins(commit, builtin_types=(bytes,))))


def _without_surrogates(value: object) -> object:
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case list() | tuple():
            return [_without_surrogates(item) for item in value]
        case dict():
            return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value
