"""Read one complete object, or one call in another notation, that a model wrote; pure.

A model may write the notation of its training: objects with other keys, Python, or XML. Invalid JSON is
repaired if it is short.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from conductor.models.base import is_json, whole_characters

# Characters of one object: a repair takes more than linear time.
_MAX_REPAIRED_CHARS = 8_192

Tools: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The input schemas of the tools, by name."""

_NAMES = ("name", "tool", "tool_name", "action", "function")
_ARGUMENTS = ("arguments", "args", "parameters", "input", "tool_input", "action_input")
_CALL_TYPES = ("tool_call", "function", "function_call", "tool_use")
_TEXTS = "content text answer final_answer response reply message output action_input".split()
_OBSERVATIONS = ("tool_observation", "observation", "tool_result", "tool_response")
# A damaged object that was meant as a call.
_MEANT = re.compile(r'["“”\']?\b(?:tool_call|arguments|parameters)\b["“”\']?\s*[:,}]')
_THOUGHT = re.compile("thought|think|reason")
_PARAMETER = re.compile(r'<parameter(?:=| name=")([\w.-]+)"?>(.*?)</parameter>', re.DOTALL)
_SMART = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'"})
_PYTHON_WORDS: Mapping[str, Any] = {"true": True, "false": False, "null": None}


class MalformedCall(ValueError):
    """An invalid call or answer."""


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call. ``arguments`` is a JSON object; ``repaired``: its JSON had mistakes."""

    name: str
    arguments: str
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class WrittenCalls:
    """The meaning of an object: calls, the text of an answer, or an invented observation."""

    calls: tuple[WrittenCall, ...] = ()
    answer: str | None = None


def resolve(name: str, tools: Tools) -> str:
    """Return the tool's own name for one like ``lamp_switch``; an unknown name is unchanged."""
    if name in tools:
        return name
    matches = [tool for tool in tools if _plain(tool) == _plain(name.removeprefix("functions."))]
    return matches[0] if len(matches) == 1 else name


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower())


def read_object(span: str, tools: Tools, *, is_meant: bool = False) -> WrittenCalls | None:
    """Read ``{...}`` or ``[...]``; None if it is neither call nor answer.

    ``is_meant``: its position says that it is a call. Raises `MalformedCall`.
    """
    value, is_repaired = _load(span)
    meaning = _meaning(value, is_repaired, tools, is_meant)
    if meaning is None and (is_meant or (is_repaired and _MEANT.search(span))):
        raise MalformedCall
    return meaning


def read_arguments(name: str, span: str, tools: Tools) -> WrittenCalls:
    """Read a name's arguments: ``{...}``, ``({...})`` or ``(key=value, ...)``. Raises `MalformedCall`."""
    inner = span[1:-1].strip() if span.startswith("(") else span
    if inner.startswith("{"):
        return _call(name, *_load(inner), tools)
    return _call(name, _keywords(_python(f"f{span}")), False, tools)


def read_python(span: str, tools: Tools) -> WrittenCalls:
    """Read ``[name(key=value), ...]``. Raises `MalformedCall`."""
    tree = _python(span)
    if not isinstance(tree, ast.List):
        raise MalformedCall
    calls: list[WrittenCall] = []
    for item in tree.elts:
        if not isinstance(item, ast.Call):
            raise MalformedCall
        calls += _call(ast.unparse(item.func), _keywords(item), False, tools).calls
    return WrittenCalls(tuple(calls))


def read_xml(name: str, body: str, tools: Tools) -> WrittenCalls:
    """Read the parameters, or the JSON, of ``<function=name>...</function>``. Raises `MalformedCall`.

    Values stay texts: the validation of arguments reads them by the tool's schema.
    """
    if body.lstrip().startswith("{"):
        return _call(name, *_load(body.strip()), tools)
    if _PARAMETER.sub("", body).strip():
        raise MalformedCall
    return _call(name, {key: text.strip() for key, text in _PARAMETER.findall(body)}, False, tools)


_INVALID: Any = object()


def _json(text: str) -> Any:
    try:
        return json.loads(text, strict=False, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _INVALID


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _load(span: str) -> tuple[Any, bool]:
    """Load JSON; also tell whether it was repaired."""
    value = _json(span)
    if value is not _INVALID or len(span) > _MAX_REPAIRED_CHARS:
        return value, False
    plain = span.translate(_SMART)
    value = _json(plain)
    if value is _INVALID:
        import json_repair  # takes time to import

        value = json_repair.loads(plain, skip_json_loads=True)
    return value, True


def texts_of(span: str, tools: Tools) -> str:
    """Return the values of an object that is no call, as words; they may be cut off."""
    try:
        value, is_repaired = _load(span)
        meaning = _meaning(value, is_repaired, tools, is_meant=False)
    except MalformedCall:
        return ""
    if meaning is not None:
        return meaning.answer or ""
    if _MEANT.search(span) or not isinstance(value, dict):
        return ""
    if any(value.keys() <= _properties(name, tools).keys() for name in tools):
        return ""  # arguments without their call
    return ", ".join(str(item) for item in value.values() if isinstance(item, str | int | float))


def _meaning(value: Any, is_repaired: bool, tools: Tools, is_meant: bool) -> WrittenCalls | None:
    if isinstance(value, list):
        return _joined(_meaning(item, is_repaired, tools, is_meant) for item in value)
    if not isinstance(value, dict):
        return None
    kind = value.get("type")
    if kind in _OBSERVATIONS:
        return WrittenCalls()
    names = [value[key] for key in _NAMES if isinstance(value.get(key), str) and value[key]]
    name = next((name for name in names if resolve(name, tools) in tools), names[0] if names else None)
    if kind == "final_answer" or "final_answer" in value or name in ("final_answer", "Final Answer"):
        answer = next((value[key] for key in _TEXTS if key in value), "")
        if not isinstance(answer, str | int | float):  # small models answer sums by a number
            raise MalformedCall
        return WrittenCalls(answer=str(answer))
    for nested in (value.get("tool_calls"), value.get("function")):  # as in OpenAI's API
        if isinstance(nested, list | dict):
            return _meaning(nested, is_repaired, tools, is_meant=True)
    is_call = is_meant or kind in _CALL_TYPES
    key = next((key for key in _ARGUMENTS if key in value), None)
    is_call = is_call or ("type" in value and key is not None)
    if name is None or not (is_call or resolve(name, tools) in tools):
        if is_call:
            raise MalformedCall
        return _answer(value)
    if key is not None:
        return _call(name, value[key], is_repaired, tools)
    properties = _properties(resolve(name, tools), tools)
    arguments = {key: item for key, item in value.items() if key in properties and item is not name}
    # With unknown keys the key of the arguments may be damaged.
    if is_repaired or any(key not in (*_NAMES, "type", "id", "thought", *arguments) for key in value):
        raise MalformedCall
    return _call(name, arguments, is_repaired, tools)


def _answer(value: Mapping[str, Any]) -> WrittenCalls | None:
    """Read ``{"answer": "..."}`` and the like: one text of that kind, whatever else the object has."""
    texts = [value[key] for key in _TEXTS if isinstance(value.get(key), str | int | float)]
    is_thought = _THOUGHT.search(str(value.get("type"))) is not None
    return WrittenCalls(answer=str(texts[0])) if len(texts) == 1 and not is_thought else None


def _properties(name: str, tools: Tools) -> Mapping[str, Any]:
    properties = tools.get(name, {}).get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _joined(parts: Iterable[WrittenCalls | None]) -> WrittenCalls | None:
    calls: list[WrittenCall] = []
    for part in parts:
        calls += part.calls if part is not None else ()
    return WrittenCalls(tuple(calls)) if calls else None


def _call(name: str, arguments: Any, is_repaired: bool, tools: Tools) -> WrittenCalls:
    if isinstance(arguments, str):
        arguments = _json(arguments)
    if not isinstance(arguments, dict):
        raise MalformedCall
    try:
        text = json.dumps(arguments, allow_nan=False)
        if not is_json(text):  # it has half a character
            text = whole_characters(json.dumps(arguments, ensure_ascii=False))
    except (TypeError, ValueError):  # no JSON type, or NaN
        raise MalformedCall from None
    return WrittenCalls((WrittenCall(resolve(name, tools), text, is_repaired),))


def _python(source: str) -> ast.expr:
    try:
        return ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise MalformedCall from None


def _keywords(call: ast.expr) -> dict[str, Any]:
    if not isinstance(call, ast.Call) or call.args:
        raise MalformedCall
    arguments: dict[str, Any] = {}
    for keyword in call.keywords:
        value = keyword.value
        if keyword.arg is None:
            raise MalformedCall
        try:
            if isinstance(value, ast.Name) and value.id in _PYTHON_WORDS:
                arguments[keyword.arg] = _PYTHON_WORDS[value.id]
            else:
                arguments[keyword.arg] = ast.literal_eval(value)
        except (ValueError, TypeError, RecursionError, MemoryError):
            raise MalformedCall from None
    return arguments
