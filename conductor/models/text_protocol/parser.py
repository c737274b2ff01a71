"""Find the calls in what a model wrote (models, "Text protocol"); pure.

The model is taught one notation and may write another: JSON objects by line, tag or fence, Hermes' and
Llama's objects, pythonic lists, and ``call: name({...})``. A call must be whole: one that was cut off is
never completed.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from conductor.models.text_protocol.speech import AnswerObject

# Characters that are read, and how deep JSON may be nested: a repair takes longer than linear time.
MAX_CHARS = 32_768
MAX_DEPTH = 64
_MAX_REPAIRED_CHARS = 8_192
# Objects and lists of one reply.
_MAX_SPANS = 64

Problem: TypeAlias = Literal["truncated", "malformed"]

_THOUGHT = re.compile(r"\s*<think>.*?(?:</think>|\Z)", re.DOTALL)
# What the model writes after an observation is invented, and so is the observation.
_OBSERVATION = re.compile(r'\{\s*"type"\s*:\s*"tool_observation"|<tool_(?:observation|response)\b')
_NAMED_CALL = re.compile(r"(?:\|\|)?\bcall:\s*([\w.-]+)\s*\(\s*\Z")
_PYTHONIC = re.compile(r"\[\s*[A-Za-z_][\w.]*\s*\(")
_CALL_TAG = re.compile(r"<(?:tool|tool_call|function_call)>\s*\Z")
# Text that is no valid JSON, but was meant as a call.
_MEANT = re.compile(r'["“”\']?\b(?:tool_call|arguments|parameters)\b["“”\']?\s*[:,}]')
# Pieces of JSON outside any object: a call that was damaged.
_PIECE = re.compile(r'(?:tool_call|arguments|parameters)["”\']\s*[:,}\]]|\w["”]\s*:\s*(?:["“{\[\d]|\Z)')
_SMART = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'"})


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call that the model wrote. ``arguments`` is a JSON object; ``repaired``: its JSON had mistakes."""

    name: str
    arguments: str
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """What a reply holds: calls, the text of a ``final_answer``, and the first problem with a call."""

    calls: tuple[WrittenCall, ...] = ()
    answer: str | None = None
    problem: Problem | None = None


def parse(text: str, names: Collection[str]) -> Written:
    """Read a whole reply; ``names`` are those of the tools."""
    text = _THOUGHT.sub("", text[:MAX_CHARS], count=1)
    observation = _OBSERVATION.search(text)
    if observation is not None:
        text = text[: observation.start()]
    calls: list[WrittenCall] = []
    answer: str | None = None
    for before, span, whole in _spans(text):
        found = _read(before, span, whole, names)
        if isinstance(found, str):
            # Of a reply that holds a call, what follows answers a result that is not there yet.
            answer = found if answer is None and not calls else answer
        elif isinstance(found, tuple):
            calls += found
        elif found is not None and found.problem is not None:
            return Written(tuple(calls), answer, found.problem)
        elif not whole and span.startswith("{"):
            return Written(tuple(calls), answer)  # an answer that was cut off
    lost = not calls and answer is None and _PIECE.search(_without_json(text)) is not None
    return Written(tuple(calls), answer, "malformed" if lost else None)


def _without_json(text: str) -> str:
    for _, span, whole in _spans(text):
        if whole and _json(span) is not _INVALID:
            text = text.replace(span, "", 1)
    return text


_Found: TypeAlias = "tuple[WrittenCall, ...] | str | Written | None"
_TRUNCATED = Written(problem="truncated")
_MALFORMED = Written(problem="malformed")


def _spans(text: str) -> Iterator[tuple[str, str, bool]]:
    """Give each outermost ``{...}`` and ``[...]``, what stands before it, and whether it is closed.

    What is nested too deep counts as not closed.
    """
    position = 0
    for _ in range(_MAX_SPANS):
        found = _OPEN.search(text, position)
        if found is None:
            return
        start, end = found.start(), _end_of(text, found.start())
        yield text[max(0, start - 200) : start], text[start:end], end is not None
        if end is None:
            return
        position = end


def _end_of(text: str, start: int) -> int | None:
    depth = 0
    for found in _MARKS.finditer(text, start):
        mark = found[0]
        if mark in "{[":
            depth += 1
            if depth > MAX_DEPTH:
                break
        elif mark in "}]":
            depth -= 1
            if depth == 0:
                return found.end()
    return None


_OPEN = re.compile(r"[{\[]")
# Brackets, and whole strings, whose brackets do not count; a string that is not closed runs to the end.
_MARKS = re.compile(r'[{}\[\]]|"(?:[^"\\]|\\.)*(?:"|\Z)', re.DOTALL)


def _read(before: str, span: str, whole: bool, names: Collection[str]) -> _Found:
    named = _NAMED_CALL.search(before)
    meant = named is not None or _CALL_TAG.search(before) is not None
    if not whole:
        return _TRUNCATED if meant or _begins_call(span) else None
    if _PYTHONIC.match(span):
        return _pythonic(span, names)
    value, repaired = _json(span), False
    if (
        value is _INVALID
        and len(span) <= _MAX_REPAIRED_CHARS
        and (meant or _looks_like_call(span) or "final_answer" in span)
    ):
        value, repaired = _repair(span), True
    if named is not None:
        return _call(named[1], value, repaired)
    found = _meaning(value, repaired, names, meant=meant)
    if found is None and (meant or (repaired and _looks_like_call(span))):
        return _MALFORMED
    return found


def _begins_call(span: str) -> bool:
    if span.startswith("["):
        return _PYTHONIC.match(span) is not None or _looks_like_call(span)
    reader = AnswerObject()
    reader.feed(span[:_MAX_REPAIRED_CHARS])
    return not reader.is_answer


def _looks_like_call(span: str) -> bool:
    return _MEANT.search(span) is not None


_INVALID: Any = object()


def _json(text: str) -> Any:
    try:
        return json.loads(text, strict=False, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _INVALID


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _repair(span: str) -> Any:
    value = _json(span.translate(_SMART))
    if value is _INVALID:
        import json_repair  # takes a while to import, and is rarely needed

        value = json_repair.loads(span.translate(_SMART), skip_json_loads=True)
    return value


def _meaning(value: Any, repaired: bool, names: Collection[str], *, meant: bool) -> _Found:
    if isinstance(value, list):
        return _joined(_meaning(one, repaired, names, meant=meant) for one in value)
    if not isinstance(value, dict):
        return None
    if value.get("type") == "final_answer" and isinstance(value.get("content"), str):
        return str(value["content"])
    if isinstance(value.get("tool_calls"), list):
        return _meaning(value["tool_calls"], repaired, names, meant=True)
    if isinstance(value.get("function"), dict):  # as in OpenAI's API
        return _meaning(value["function"], repaired, names, meant=True)
    name = value.get("name")
    meant = meant or value.get("type") in ("tool_call", "function")
    arguments = value.get("arguments", value.get("parameters", {} if meant and not repaired else None))
    meant = meant or ("type" in value and arguments is not None)
    if isinstance(arguments, str):
        arguments = _json(arguments)
    if not isinstance(name, str) or not name or not (meant or name in names):
        return _MALFORMED if value.get("type") in ("tool_call", "final_answer") else None
    return _call(name, arguments, repaired)


def _joined(found: Iterable[_Found]) -> _Found:
    calls: list[WrittenCall] = []
    for one in found:
        if isinstance(one, Written):
            return one
        calls += one if isinstance(one, tuple) else ()
    return tuple(calls) or None


def _call(name: str, arguments: Any, repaired: bool) -> tuple[WrittenCall] | Written:
    try:
        text = json.dumps(arguments, allow_nan=False)
    except (TypeError, ValueError):  # a literal of Python, or a number of none
        return _MALFORMED
    return (WrittenCall(name, text, repaired),) if isinstance(arguments, dict) else _MALFORMED


def _pythonic(span: str, names: Collection[str]) -> _Found:
    """Read ``[name(key="value"), ...]``."""
    if not any(f"{name}(" in span for name in names):
        return None
    try:
        tree = ast.parse(span, mode="eval").body
        return _joined(_python_call(item) for item in tree.elts) if isinstance(tree, ast.List) else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _MALFORMED


def _python_call(node: ast.expr) -> _Found:
    if not isinstance(node, ast.Call) or node.args:
        return _MALFORMED
    arguments = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
    return _MALFORMED if None in arguments else _call(ast.unparse(node.func), arguments, False)
