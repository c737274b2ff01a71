"""The calls of one reply, some of which a service streams more than once; pure.

Gateways repeat a call at the stream's end, write its arguments twice, or begin them with an empty object. It
must not run twice: in one reply the same id and name are one call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from conductor.messages import ToolCall
from conductor.models.base import is_json, whole_characters

# Calls of one reply, and the characters of arguments that are mended: the validation refuses larger ones.
MAX_CALLS = 256
MAX_CHARS = 64 * 1024
_BLANKS = re.compile(r"\s*")
_raw_decode = json.JSONDecoder().raw_decode


def arguments_text(value: Any) -> str:
    """Return arguments as JSON text; some services send JSON itself."""
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()


def one_object(arguments: str) -> str:
    """Return the object that a service wrote twice, behind an empty one, or as JSON in a string.

    Half characters in it are replaced. Other arguments stay as they are.
    """
    text = arguments.strip()
    if not text.startswith(("{", '"', "null")) or len(text) > MAX_CHARS or (text[0] == "{" and is_json(text)):
        return arguments
    try:
        objects = _objects(text)
    except (ValueError, RecursionError):
        return arguments
    if len(objects) > 1:
        return arguments
    written, value = next(iter(objects.values()), ("{}", {}))
    return written if is_json(written) else whole_characters(json.dumps(value, ensure_ascii=False))


def _objects(text: str, *, in_string: bool = False) -> dict[str, tuple[str, Any]]:
    """Read objects or null in a row, also as JSON in strings: each different object that is not empty."""
    objects: dict[str, tuple[str, Any]] = {}
    position = 0
    while position < len(text):
        value, end = _raw_decode(text, position)
        if isinstance(value, str) and not in_string:
            objects |= _objects(value.strip(), in_string=True)
        elif isinstance(value, dict) and value:
            objects.setdefault(json.dumps(value, sort_keys=True), (text[position:end], value))
        elif value not in ({}, None):
            raise ValueError
        blanks = _BLANKS.match(text, end)
        position = blanks.end() if blanks is not None else end
    return objects


def distinct(calls: Iterable[ToolCall]) -> list[ToolCall]:
    """Keep one of the calls with the same id and name: the first that has whole arguments, if any has."""
    kept: dict[tuple[str | int, str], ToolCall] = {}
    for number, call in enumerate(calls):
        key = call.call_id or number, call.name
        if key not in kept or _rank(call.arguments) > _rank(kept[key].arguments):
            kept[key] = call
    return list(kept.values())


def has_arguments(text: str) -> bool:
    """Return whether it is a whole object that is not empty."""
    return _rank(text) == 2


def _rank(arguments: str) -> int:
    return is_json(arguments) + (is_json(arguments) and arguments.strip() not in ("{}", "null", '""'))
