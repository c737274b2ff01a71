"""From events to frames: ids, records for those that must arrive, and the outbox that sees to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from conductor.conversation.outbox import Outbox
from conductor.conversation.transport import Frame
from conductor.events.envelope import IdSource, encode_event
from conductor.events.server import ApprovalRequest, ServerEvent, SpeechFinal, SpeechPartial, ToolCallEvent
from conductor.settings import Limits
from conductor.stores.base import OutboundRecord

_event_ids = IdSource("evt")

_Kind = Literal["call", "final", "message", "state", "speak", "approval"]
_UI_KINDS: dict[str, _Kind] = {
    "convo.setState": "state",
    "convo.appendMessage": "message",
    "tts.speak": "speak",
}


@dataclass(frozen=True, slots=True)
class CallTerms:
    """How long a call may take, in seconds, and what it does."""

    limit: float
    effect: str


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An event made ready: a record with its time limit, or a frame that need not arrive."""

    record: OutboundRecord | None
    limit: float
    frame: Frame | None


class Delivery:
    """Sends one session's events; ``terms`` knows the device's tools by name."""

    def __init__(
        self, session_id: str, outbox: Outbox, limits: Limits, terms: Callable[[str], CallTerms]
    ) -> None:
        self.outbox = outbox
        self._session_id = session_id
        self._limits = limits
        self._terms = terms

    def make_ready(self, events: Sequence[ServerEvent], turn_id: str) -> list[Outgoing]:
        """Give events their ids and bytes; nothing is sent yet."""
        return [self._ready(event, turn_id) for event in events]

    def send(self, outgoing: Sequence[Outgoing]) -> None:
        """Send what has been committed."""
        for one in outgoing:
            if one.record is not None:
                self.outbox.put(one.record, one.limit)
            elif one.frame is not None:
                self.outbox.send(one.frame)

    def frame(self, event: ServerEvent) -> Frame:
        """Make a frame of an event that need not arrive."""
        data = encode_event(_event_ids(), self._session_id, event)
        return Frame(data, partial=isinstance(event, SpeechPartial))

    def limit(self, record: OutboundRecord, tool: str | None = None) -> float:
        """Give the time limit of an event that comes from the store; ``tool`` is the one that is called."""
        if record.kind == "speak":
            return self._speech_limit(len(bytes(record.frame)))
        if record.kind == "call" and tool is not None:
            return self._terms(tool).limit
        return self._limits.ui_timeout if record.kind != "call" else self._limits.tool_timeout

    def _ready(self, event: ServerEvent, turn_id: str) -> Outgoing:
        kind: _Kind
        effect, limit, call_id = "", self._limits.ui_timeout, ""
        if isinstance(event, ToolCallEvent):
            kind = _UI_KINDS.get(event.name, "call")
            call_id = event.call_id
            if kind == "speak":
                limit = self._speech_limit(len(event.arguments))
            elif kind == "call":
                terms = self._terms(event.name)
                effect, limit = terms.effect, terms.limit
        elif isinstance(event, SpeechFinal):
            kind = "final"
        elif isinstance(event, ApprovalRequest):
            kind, call_id = "approval", event.approval_id
        else:
            return Outgoing(None, 0.0, self.frame(event))
        event_id = _event_ids()
        frame = msgspec.Raw(encode_event(event_id, self._session_id, event))
        now = time.time_ns() // 1_000_000
        return Outgoing(OutboundRecord(event_id, kind, call_id, turn_id, now, frame, effect), limit, None)

    def _speech_limit(self, chars: int) -> float:
        return self._limits.speech_timeout + chars * self._limits.speech_seconds_per_char
