"""What the message of an ``invalid_event`` error says, for the codec's checks of a frame."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from conductor.events.codec import MAX_DEPTH, MAX_INTEGER, MAX_NODES

REFUSALS: Mapping[str, str] = MappingProxyType(
    {
        "binary_frame": "The frame is binary; events are text.",
        "event_too_large:<bytes>": "The frame is larger than the limit; only a `tool.result` may be.",
        "invalid_utf8": "The frame is not UTF-8.",
        "invalid_json": "The frame is not JSON: strictly, without NaN, infinities or halves of characters.",
        "duplicate_key": "An object in the frame has the same key twice.",
        "not_an_object": "The frame is JSON, but not an object.",
        "too_deep": f"The frame is nested deeper than {MAX_DEPTH} levels.",
        "too_many_values": f"The frame holds more than {MAX_NODES} values.",
        "number_out_of_range": f"An integer in the frame is above {MAX_INTEGER} or below -{MAX_INTEGER}.",
        "missing_id": "`id` is not there, null or empty.",
        "missing_type": "`type` is not there, or null.",
        "missing_timestamp": "`timestamp` is not there, or null.",
        "missing_session_id": "`sessionId` is not there, null or empty.",
        "missing_payload": "`payload` is not there, or null.",
        "invalid_id": "`id` is not a string of 1 to 128 characters.",
        "invalid_type": "`type` is not a string.",
        "invalid_timestamp": "`timestamp` is not a string.",
        "invalid_session_id": "`sessionId` is not 1 to 128 of `A-Z a-z 0-9 . _ : -`.",
        "invalid_payload": "`payload` is not an object.",
        "invalid_payload: <reason>": "A field of the payload is missing or of the wrong type.",
        "invalid_protocol_version": "`protocolVersion` is not a positive integer.",
        "instructions_too_large:<bytes>": "`instructions` is larger than that limit.",
    }
)
"""Message -> its meaning, in Markdown. Words in angle brackets stand for what varies."""
