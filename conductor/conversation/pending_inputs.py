"""Inputs that wait for a turn of a session: transcripts, requests and notices."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Container, Sequence
from dataclasses import dataclass

from conductor.conversation.history import lost_result
from conductor.conversation.snapshot import (
    NoticeSnapshot,
    PendingInputsSnapshot,
    Transcript,
    decode,
    encode,
    epoch_ms,
    loop_time,
)
from conductor.messages import Message, ToolCall, ToolResult

MAX_TRANSCRIPTS = 3
MAX_NOTICES = 16
MAX_REQUESTS = 16


@dataclass(frozen=True, slots=True)
class ServerNotice:
    """A notice for the person, delivered when the session is idle. ``expires`` is the loop's time."""

    text: str
    expires: float


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A call of a program of the person, which waits for the ``result``."""

    call: ToolCall
    result: asyncio.Future[ToolResult]

    def answer(self, log: Sequence[Message]) -> None:
        """Set the result from the log, unless the program has stopped waiting."""
        call_id = self.call.call_id
        results = (m for m in reversed(log) if isinstance(m, ToolResult) and m.call_id == call_id)
        if not self.result.done():
            self.result.set_result(next(results, None) or lost_result(call_id))


class PendingInputs:
    """Bounded queues: transcripts go first, then requests, which are not stored, then notices."""

    def __init__(self, max_transcripts: int, max_notices: int) -> None:
        self._max_transcripts = max_transcripts
        self._max_notices = max_notices
        self._transcripts: list[Transcript] = []
        self._notices: list[ServerNotice] = []
        self.requests: list[ToolRequest] = []

    def add_transcript(self, transcript: Transcript) -> bool:
        """Queue a transcript; False if the queue is full."""
        if len(self._transcripts) >= self._max_transcripts:
            return False
        self._transcripts.append(transcript)
        return True

    def knows(self, event_id: str) -> bool:
        """Tell whether this transcript is queued."""
        return any(transcript.event_id == event_id for transcript in self._transcripts)

    def add_notice(self, notice: ServerNotice) -> None:
        """Queue a notice, and drop the oldest over the limit."""
        if all(notice.text != waiting.text for waiting in self._notices):
            self._notices.append(notice)
            del self._notices[: max(0, len(self._notices) - self._max_notices)]

    @property
    def transcripts(self) -> int:
        return len(self._transcripts)

    def has_notices(self, now: float) -> bool:
        """Tell whether a notice has not expired: it may start a turn."""
        return any(notice.expires > now for notice in self._notices)

    @property
    def next_transcript(self) -> Transcript | None:
        return self._transcripts[0] if self._transcripts else None

    def drop_transcript(self, event_id: str | None) -> None:
        """Remove a transcript."""
        self._transcripts = [t for t in self._transcripts if t.event_id != event_id]

    def drop_transcripts(self) -> None:
        """Remove all transcripts."""
        self._transcripts.clear()

    def notices(self, before: float = math.inf) -> list[ServerNotice]:
        """List the notices, or only the ones that expired ``before``, which join any turn."""
        return [notice for notice in self._notices if notice.expires <= before]

    def dump(self, without: str | None = None, delivered: Sequence[ServerNotice] = ()) -> str:
        """Encode the queues, without the transcript and the notices that a turn is taking."""
        transcripts = tuple(transcript for transcript in self._transcripts if transcript.event_id != without)
        notices = tuple(
            NoticeSnapshot(notice.text, epoch_ms(notice.expires))
            for notice in self._notices
            if notice not in delivered
        )
        if not transcripts and not notices:
            return ""
        return encode(PendingInputsSnapshot(transcripts, notices))

    def restore(self, stored: str | None, started: Container[str]) -> None:
        """Restore from a snapshot, without the transcripts whose turn has ``started``."""
        snapshot = decode(stored, PendingInputsSnapshot)
        if snapshot is None:
            return
        self._transcripts.extend(t for t in snapshot.transcripts if t.event_id not in started)
        self._notices.extend(ServerNotice(n.text, loop_time(n.expires_ms)) for n in snapshot.notices)
        del self._notices[: max(0, len(self._notices) - self._max_notices)]

    def drop_notices(self, delivered: Sequence[ServerNotice]) -> None:
        """Remove notices that a turn delivers."""
        self._notices = [notice for notice in self._notices if notice not in delivered]
