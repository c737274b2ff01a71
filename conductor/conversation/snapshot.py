"""Snapshots: the session fields from which another process resumes the session.

A field that cannot be decoded counts as missing: another version wrote it. ``name=`` keeps the encoded
name of a stored field.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Literal, TypeVar

import msgspec
import structlog

from conductor.messages import Note
from conductor.stores.base import CallRecord

log = structlog.get_logger(__name__)


TURN = "turn"
WAITING = "waiting"
LATE = "late"
PROFILE = "profile"
SPEECH = "speech"
PROMPT = "prompt"
DECIDED = "decided"
SUMMARY = "summary"

_T = TypeVar("_T")


class TurnSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """The running turn. ``attempts`` counts requests to the model since its last reply.

    ``spoken_text`` is the spoken part of the running reply. ``bridged``: a bridging phrase was spoken.
    ``stop`` is the reason for stopping the turn.
    """

    turn_id: str
    cause: str
    attempts: int = 1
    rounds: int = 0
    calls: int = 0
    refused_rounds: int = 0
    actions: tuple[str, ...] = ()
    stop: Literal["interrupted", "session_end", "timed_out"] | None = None
    spoken_text: str = msgspec.field(default="", name="said")
    bridged: bool = False


class SummarySnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """The summary of the messages before the log. ``untrusted``: third parties wrote part of them."""

    text: str
    untrusted: bool = False


class Transcript(msgspec.Struct, frozen=True):
    """A transcript that waits for its turn."""

    text: str
    event_id: str


class NoticeSnapshot(msgspec.Struct, frozen=True):
    """A notice that waits for a turn; ``expires_ms`` is epoch milliseconds."""

    text: str
    expires_ms: int


class PendingInputsSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """The transcripts and notices that wait for a turn."""

    transcripts: tuple[Transcript, ...] = ()
    notices: tuple[NoticeSnapshot, ...] = msgspec.field(default=(), name="news")


class LateCallsSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call whose result may still come; ``expires_ms`` is epoch milliseconds."""

    call: CallRecord
    starts_turn: bool = msgspec.field(name="wanted")
    expires_ms: int
    job: bool = False


class UnknownCallsSnapshot(msgspec.Struct, frozen=True):
    """A call that may have run; ``expires_ms`` is epoch milliseconds."""

    call_id: str
    digest: str
    expires_ms: int


class DeviceSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """Late and unknown device calls, and the notes that the model has not read yet."""

    late: tuple[LateCallsSnapshot, ...] = ()
    unknown: tuple[UnknownCallsSnapshot, ...] = ()
    notes: tuple[Note, ...] = msgspec.field(default=(), name="news")
    wants_turn: bool = False


class ProfileSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """A client's declarations; ``tools`` are unchanged."""

    capabilities: tuple[str, ...] = ()
    locale: str | None = None
    time_zone: str | None = None
    instructions: str | None = None
    tools: list[Any] | None = None
    model: str | None = None
    traceparent: str | None = None


class SpeechSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """A speech. ``position`` is the position of its message in the log, which an interruption truncates.

    The other fields are as in `conductor.conversation.speech.Speech`.
    """

    call_id: str
    turn_id: str
    position: int
    voice_text: str = msgspec.field(name="spoken")
    actions: tuple[str, ...] = ()
    speech_id: str = ""
    before: str = ""
    last: bool = True


class SpeechesSnapshot(msgspec.Struct, frozen=True):
    """The speeches that are not over, and the last one, oldest first."""

    speeches: tuple[SpeechSnapshot, ...]


class PromptSnapshot(msgspec.Struct, frozen=True):
    """The last spoken question, by the ids of its calls."""

    append_id: str
    speak_id: str
    approval_id: str


class DecidedSnapshot(msgspec.Struct, frozen=True):
    """The last questions that were closed: approval id -> outcome."""

    outcomes: dict[str, str]


class ClaimsSnapshot(msgspec.Struct, frozen=True):
    """The times of the session's recent claims, in epoch seconds."""

    times: tuple[float, ...] = ()


def encode(snapshot: msgspec.Struct) -> str:
    """Encode a snapshot as text."""
    return msgspec.json.encode(snapshot).decode()


def decode(text: str | None, kind: type[_T]) -> _T | None:
    """Decode a snapshot; None if it is missing or unreadable."""
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError):
        log.error("snapshot not readable", kind=kind.__name__)
        return None


def epoch_ms(at: float) -> int:
    """Convert a time of the event loop to epoch milliseconds, which another process can read."""
    return round((time.time() + at - asyncio.get_running_loop().time()) * 1000)


def loop_time(at_ms: int) -> float:
    """Convert epoch milliseconds to a time of the event loop."""
    return asyncio.get_running_loop().time() + at_ms / 1000 - time.time()
