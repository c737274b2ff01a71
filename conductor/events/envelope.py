"""The envelope around every event: its fields, ids and timestamps."""

from __future__ import annotations

import secrets
import time
from itertools import count
from typing import Any, ClassVar, Protocol

import msgspec

PROTOCOL_VERSION = 1
PATH = "/ws"
SUBPROTOCOL = "conductor.v1"
"""A browser names it next to ``bearer.TOKEN``. The token is not echoed."""
SUPERSEDED = 4409
"""The WebSocket close code of a connection whose session another connection serves."""


def doc(text: str, *examples: Any, needs: str = "", max_length: int | None = None) -> msgspec.Meta:
    """Describe a field for the reference and the schemas; ``needs`` is its capability, if not the event's."""
    extra = {"needs": needs} if needs else None
    return msgspec.Meta(description=text, examples=list(examples) or None, extra=extra, max_length=max_length)


class Payload(Protocol):
    """The content of an envelope: a struct whose class has its ``type`` on the wire."""

    TYPE: ClassVar[str]


class Envelope(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One frame. It has no other fields at the top level."""

    id: str
    type: str
    timestamp: str
    session_id: str
    protocol_version: int
    payload: Payload | msgspec.Raw


_encode = msgspec.json.Encoder().encode


def encode_event(event_id: str, session_id: str, payload: Payload) -> bytes:
    """Encode an event as a frame of UTF-8 JSON with the present time."""
    return _encode(
        Envelope(
            id=event_id,
            type=payload.TYPE,
            timestamp=timestamp(),
            session_id=session_id,
            protocol_version=PROTOCOL_VERSION,
            payload=payload,
        )
    )


def encode_frame(event_id: str, type_: str, session_id: str, payload: bytes) -> bytes:
    """Encode an event whose payload is encoded as a frame with the present time."""
    raw = msgspec.Raw(payload)
    return _encode(
        Envelope(
            id=event_id,
            type=type_,
            timestamp=timestamp(),
            session_id=session_id,
            protocol_version=PROTOCOL_VERSION,
            payload=raw,
        )
    )


class IdGenerator:
    """Makes unique ids from a random prefix and a counter; a UUID costs 25 times as much."""

    def __init__(self, kind: str) -> None:
        self._prefix = f"{kind}_{secrets.token_hex(8)}"
        self._count = count(1)

    def __call__(self) -> str:
        """Make the next id, such as ``evt_9f86d081884c7d65_2a``."""
        return f"{self._prefix}_{next(self._count):x}"


_second = 0
_second_text = ""


def timestamp() -> str:
    """Return the present time as ISO 8601 UTC with exactly three decimals and ``Z``."""
    # The text of a second is cached; formatting it costs five times as much.
    global _second, _second_text
    milliseconds = time.time_ns() // 1_000_000
    second, remainder = divmod(milliseconds, 1000)
    if second != _second:
        _second_text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        _second = second
    return f"{_second_text}.{remainder:03d}Z"


new_call_id = IdGenerator("call")
