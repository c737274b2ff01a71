"""What a device answers to a call, as text that fits into a frame."""

from __future__ import annotations

from typing import Any

import msgspec

from conductor.events.client import ResumeDone, ToolCancelled, ToolResultEvent
from conductor.events.server import ToolCallEvent

MAX_RESULT_CHARACTERS = 131_072
"""What is kept of a result too large for a frame: the server's hard limit is 1 MiB, and a character takes
up to six bytes as JSON."""
MAX_RESULT_FRAME = 2**20 - 4_096
MAX_CANCELLED_CHARACTERS = 8_192
"""The same of a cancelled call's result: only a ``tool.result`` may be above the soft limit of 64 KiB."""
MAX_RESUME_BYTES = 32_768
"""All that ``session.start`` says of what was done before: it has to fit below the soft limit of 64 KiB."""

_encode = msgspec.json.Encoder().encode


def as_text(value: Any) -> str:
    """Write what a handler returned: a string as it is, anything else as JSON. Raises `TypeError`."""
    return value if isinstance(value, str) else _encode(value).decode()


def failure(call: ToolCallEvent, message: str) -> ToolResultEvent:
    """Make the answer to a call that could not be done."""
    return ToolResultEvent(call.call_id, error=message)


def fit(result: ToolResultEvent) -> ToolResultEvent:
    """Shorten a result that would not fit into a frame, saying how much is missing."""
    result = ToolResultEvent(result.call_id, clean(result.result), clean(result.error))
    if len(_encode(result)) <= MAX_RESULT_FRAME:
        return result
    most = MAX_RESULT_CHARACTERS
    return ToolResultEvent(result.call_id, _shorten(result.result, most), _shorten(result.error, most))


def fit_cancelled(cancelled: ToolCancelled) -> ToolCancelled:
    """Shorten what a cancelled call gave, saying how much is missing."""
    result = _shorten(clean(cancelled.result), MAX_CANCELLED_CHARACTERS)
    return ToolCancelled(cancelled.call_id, cancelled.effect, result)


def done_by(result: ToolResultEvent, size: int) -> ResumeDone:
    """Say in ``session.start`` that a call is done, and how, where the ``size`` of its frame allows it."""
    if size > MAX_RESUME_BYTES:
        return ResumeDone(result.call_id)
    return ResumeDone(result.call_id, None if result.error is not None else result.result, result.error)


def _shorten(text: str | None, most: int) -> str | None:
    if text is None or len(text) <= most:
        return text
    return f"{text[:most]}… [{len(text) - most} characters left out by the device]"


def clean(text: str | None) -> str | None:
    """Replace lone surrogates, which Python can hold and UTF-8 cannot."""
    return None if text is None else text.encode(errors="replace").decode()
