"""The words that a person will probably say, for the recogniser, as a pure function."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from conductor.events.server import MAX_HINTS
from conductor.messages import Message, ToolResult
from conductor.tools.base import ToolSpec

# Characters and words of a phrase.
MAX_CHARS, MAX_WORDS = 60, 6
# Results that are read, the newest ones, the values of each, their depth, and the characters of a value.
MAX_RESULTS, MAX_VALUES, MAX_DEPTH, MAX_READ = 10, 200, 10, 2_000

_NAMED = re.compile(r"(name|title|label)s?$", re.IGNORECASE)
# A name in a sentence: words with a capital letter, behind another word.
_NAMES = re.compile(r"(?<=[\w,] )[^\W\d_a-z][\w'\u2019-]*[^\W\d_](?: [^\W\d_a-z][\w'\u2019-]*)*")
# What stands in a result in place of data, a secret or a part that was left out.
_MARK = re.compile(r"\[[^\[\]]*\]")
_LETTERS = re.compile(r"[^\W\d_]{2}")
_NO_WORDS = re.compile(r"[\[\]{}<>|=_@\\]|://|^\S*\d\S*$")


def phrases(
    answers: Iterable[str], arguments: Iterable[str], log: Sequence[Message], tools: Iterable[ToolSpec]
) -> list[str]:
    """List the words to listen for, the newest first.

    ``answers`` are the words that count for the open questions, ``arguments`` their values as JSON. Names in
    the results of the ``log`` follow, then the titles and the named values of the device's ``tools``.
    """
    results = [
        message for message in reversed(log) if isinstance(message, ToolResult) and not message.is_error
    ]
    found = [
        *answers,
        *(phrase for text in arguments for phrase in _values(msgspec.json.decode(text))),
        *(phrase for result in results[:MAX_RESULTS] for phrase in _names(result.content)),
        *(phrase for tool in tools for phrase in _of_tool(tool)),
    ]
    kept: dict[str, str] = {}
    for phrase in found:
        text = " ".join(phrase.split())
        if text and len(text) <= MAX_CHARS:
            kept.setdefault(text.casefold(), text)
    return list(kept.values())[:MAX_HINTS]


def _of_tool(tool: ToolSpec) -> Iterator[str]:
    if tool.title:
        yield tool.title
    yield from filter(_is_spoken, _enums(tool.input_schema))


def _enums(schema: Any) -> Iterator[str]:
    """List the named values of a schema and of its parts."""
    if isinstance(schema, Mapping):
        for key, part in schema.items():
            if key == "enum" and isinstance(part, list):
                yield from (value for value in part if isinstance(value, str))
            elif key == "const" and isinstance(part, str):
                title = schema.get("title")
                yield title if isinstance(title, str) else part
            else:
                yield from _enums(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _enums(part)


def _values(value: Any) -> Iterator[str]:
    return (text for _, text in _leaves(value) if _is_spoken(text))


def _names(content: str) -> Iterator[str]:
    """List the names in a result: values that are called so, or written so, or names in its sentences."""
    for key, text in islice(_leaves(content), MAX_VALUES):
        if _is_spoken(text) and (_NAMED.search(key) or text.istitle()):
            yield text
        elif " " in text:
            yield from _NAMES.findall(_MARK.sub("", text[:MAX_READ]))


def _leaves(value: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """List the texts of a JSON value, each with the key that it stands under."""
    if depth > MAX_DEPTH:
        return
    match value:
        case str() if value[:1] in ("{", "[", '"') and (inner := _decoded(value)) is not None:
            yield from _leaves(inner, key, depth + 1)
        case str():
            yield key, value
        case Mapping():
            for name, part in value.items():
                yield from _leaves(part, str(name), depth + 1)
        case list():
            for part in value:
                yield from _leaves(part, key, depth + 1)


def _decoded(text: str) -> Any:
    """Read a text that is JSON, as the result of a device is within its own; None if it is none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def _is_spoken(text: str) -> bool:
    is_short = len(text) <= MAX_CHARS and len(text.split()) <= MAX_WORDS
    return is_short and bool(_LETTERS.search(text)) and not _NO_WORDS.search(text)
