"""Events with a value that cannot be read: the fields around it are, and half a character is replaced."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import msgspec

from conductor import possessive

# Brackets and strings that are looked at: 15 ms.
MAX_PARTS = 16_000
_PAYLOAD = "payload"
_HALF = "\ufffd"
# An escaped backslash, a pair of surrogates, and half a pair.
_SURROGATES = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
# Brackets of one kind are one part: a value may be nested a million times. A text ends at the frame's end,
# too, so that each byte is read once.
_PART = possessive.compile(
    rb'(?P<text>"(?:[^"\\]++|\\.)*+\\?(?:"|\Z))(?P<colon>[ \t\r\n]*+:)?|(?P<open>[\[{]++)|(?P<close>[\]}]++)',
    re.DOTALL,
)


class _Payload(msgspec.Struct, rename="camel"):
    call_id: str
    error: str | None = None
    effect: str | None = None


class _Report(msgspec.Struct, rename="camel", kw_only=True):
    id: str
    type: str
    timestamp: str
    session_id: str
    payload: _Payload


def read_texts(frame: bytes) -> dict[str, Any] | None:
    """Read the fields of an event, and of its payload, that are texts; other fields are None.

    Returns None if a field is there twice, or after `MAX_PARTS`.
    """
    if frame.count(b'"callId"') == 1:
        try:  # many values of good JSON are skipped a hundred times as fast
            return cast(dict[str, Any], msgspec.to_builtins(msgspec.json.decode(frame, type=_Report)))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
    event: dict[str, Any] = {}
    payload: dict[str, Any] = {}
    names = ["", ""]  # of the last field of the event, and of its payload
    depth = 0
    for number, part in enumerate(_PART.finditer(frame)):
        if number == MAX_PARTS:
            return None
        if part["open"] or part["close"]:
            if part["open"] and depth == 2 and names == [_PAYLOAD, "error"]:
                payload["error"] = _HALF
            depth += len(part["open"] or b"") - len(part["close"] or b"")
            continue
        if depth not in (1, 2) or (depth == 2 and names[0] != _PAYLOAD):
            continue
        fields = event if depth == 1 else payload
        text = _text(part["text"])
        if part["colon"]:
            if text in fields:
                return None
            names[depth - 1] = text or ""
            fields[names[depth - 1]] = None
        elif text is not None:
            fields[names[depth - 1]] = text
        elif depth == 2 and names[1] == "error":
            payload["error"] = _HALF
    return {**event, _PAYLOAD: payload}


def repaired(message: bytes) -> bytes:
    """Replace what is not Unicode in JSON, invalid UTF-8 and halves of surrogate pairs, by U+FFFD."""
    if b"\\u" in message:
        message = _SURROGATES.sub(lambda match: rb"\ufffd" if match[1] else match[0], message)
    return message if message.isascii() else message.decode("utf-8", "replace").encode()


def _text(quoted: bytes) -> str | None:
    try:
        text: str = json.loads(quoted)
        text.encode()
    except ValueError:
        return None
    return text
