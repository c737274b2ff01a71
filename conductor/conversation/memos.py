"""The small texts that a session keeps beside its log, so that another process can go on with it.

Each is a field of the session. What cannot be read counts as missing: it was another version's.
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

_T = TypeVar("_T")


class TurnMemo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The turn that is running. ``attempts`` counts how often the model was begun without an answer.

    ``stop`` says why it is to end, if it is.
    """

    turn_id: str
    cause: str
    attempts: int = 1
    rounds: int = 0
    calls: int = 0
    refused_rounds: int = 0
    actions: tuple[str, ...] = ()
    stop: Literal["interrupted", "session_end", "timed_out"] | None = None


class TranscriptMemo(msgspec.Struct, frozen=True):
    """A transcript that waits for its turn."""

    text: str
    event_id: str


class NewsMemo(msgspec.Struct, frozen=True):
    """News to tell; ``expires_ms`` is epoch milliseconds."""

    text: str
    expires_ms: int


class WaitingMemo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What waits for its turn."""

    transcripts: tuple[TranscriptMemo, ...] = ()
    news: tuple[NewsMemo, ...] = ()


class LateMemo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call whose result may still come; ``expires_ms`` is epoch milliseconds."""

    call: CallRecord
    wanted: bool
    expires_ms: int
    job: bool = False


class UnknownMemo(msgspec.Struct, frozen=True):
    """A call that may have happened; ``expires_ms`` is epoch milliseconds."""

    call_id: str
    digest: str
    expires_ms: int


class DeviceMemo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is still to come from the device, and what has come and was not told."""

    late: tuple[LateMemo, ...] = ()
    unknown: tuple[UnknownMemo, ...] = ()
    news: tuple[Note, ...] = ()
    wants_turn: bool = False


class ProfileMemo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a client has said of itself; ``tools`` are as it declared them."""

    capabilities: tuple[str, ...] = ()
    locale: str | None = None
    time_zone: str | None = None
    instructions: str | None = None
    tools: list[Any] | None = None


class SpeechMemo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A speech: an interruption cuts its message, which stands at ``position`` of the log."""

    call_id: str
    turn_id: str
    position: int
    spoken: str
    actions: tuple[str, ...] = ()


class SpeechesMemo(msgspec.Struct, frozen=True):
    """The speeches that are not over, and the last one, oldest first."""

    speeches: tuple[SpeechMemo, ...]


class PromptMemo(msgspec.Struct, frozen=True):
    """The last spoken question, by the ids of its calls."""

    append_id: str
    speak_id: str
    approval_id: str


class DecidedMemo(msgspec.Struct, frozen=True):
    """The last questions that were closed: approval id -> outcome."""

    outcomes: dict[str, str]


class ClaimsMemo(msgspec.Struct, frozen=True):
    """When the session was claimed of late, in epoch seconds."""

    times: tuple[float, ...] = ()


def encode(memo: msgspec.Struct) -> str:
    """Write a memo as text."""
    return msgspec.json.encode(memo).decode()


def decode(text: str | None, kind: type[_T]) -> _T | None:
    """Read a memo; None if there is none that can be read."""
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError):
        log.error("kept state not readable", kind=kind.__name__)
        return None


def epoch_ms(at: float) -> int:
    """Say a time of the event loop's as epoch milliseconds, which mean the same in another process."""
    return round((time.time() + at - asyncio.get_running_loop().time()) * 1000)


def loop_time(at_ms: int) -> float:
    """Say epoch milliseconds as a time of the event loop's."""
    return asyncio.get_running_loop().time() + at_ms / 1000 - time.time()
