"""The envelope around every event: its fields, ids and timestamps."""

from __future__ import annotations

import secrets
import time
from itertools import count
from typing import ClassVar, Protocol

import msgspec

PROTOCOL_VERSION = 1
PATH = "/ws"
SUBPROTOCOL = "conductor.v1"
"""What a browser names beside ``bearer.TOKEN``; the token itself is never echoed."""
SUPERSEDED = 4409
"""The WebSocket close code of a connection whose session another client took over (protocol, "Base")."""


class Payload(Protocol):
    """What stands in an envelope: a struct whose class knows its ``type`` on the wire."""

    TYPE: ClassVar[str]


class Envelope(msgspec.Struct, frozen=True, rename="camel"):
    """One frame. Nothing else ever stands at the top level (protocol, "Envelope")."""

    id: str
    type: str
    timestamp: str
    session_id: str
    protocol_version: int
    payload: Payload


_encode = msgspec.json.Encoder().encode


def encode_event(event_id: str, session_id: str, payload: Payload) -> bytes:
    """Write one event as a frame of UTF-8 JSON, stamped with the present time."""
    return _encode(Envelope(event_id, payload.TYPE, timestamp(), session_id, PROTOCOL_VERSION, payload))


class IdGenerator:
    """Makes unique ids: a random prefix and a counter, since a uuid costs 25 times as much."""

    def __init__(self, kind: str) -> None:
        self._prefix = f"{kind}_{secrets.token_hex(8)}"
        self._count = count(1)

    def __call__(self) -> str:
        """Make the next id, such as ``evt_9f86d081884c7d65_2a``."""
        return f"{self._prefix}_{next(self._count):x}"

    def after(self, event_id: str) -> str:
        """Make the next id, such as ``evt_9f86d081884c7d65_2a.3c``, in the place behind an earlier one.

        Without an earlier id of this generator the place is before all of them.
        """
        prefix, _, place = event_id.partition(".")[0].rpartition("_")
        return f"{self._prefix}_{place if prefix == self._prefix else 0}.{next(self._count):x}"


def precedes(one: str, other: str) -> bool:
    """Tell whether one id of a generator has its place before another; False if that is not known."""
    prefix, _, place = one.rpartition("_")
    other_prefix, _, other_place = other.rpartition("_")
    try:
        return prefix == other_prefix and _place(place) < _place(other_place)
    except ValueError:
        return False


def _place(text: str) -> list[int]:
    return [int(number, 16) for number in text.split(".")]


_second = 0
_second_text = ""


def timestamp() -> str:
    """Say the present time as ISO 8601 UTC with exactly three decimals and ``Z``."""
    # The text of the second is cached: formatting it costs five times as much.
    global _second, _second_text
    milliseconds = time.time_ns() // 1_000_000
    second, rest = divmod(milliseconds, 1000)
    if second != _second:
        _second_text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        _second = second
    return f"{_second_text}.{rest:03d}Z"


new_call_id = IdGenerator("call")
new_speech_id = IdGenerator("speech")
