"""Changes to a model's arguments that lose nothing: "3" for 3, JSON text for an object, null for nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from conductor.tools.schema_checker import Checker

MAX_NOTES = 8

_NOTHING = object()
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,14})(?:\.0{1,3})?\Z")  # 15 digits: exact in every JSON reader
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,15})?(?:[eE][-+]?[0-9]{1,2})?\Z")
_EXACT_INTEGERS = 2**53
_QUOTED_CHARS = 40


@dataclass(slots=True)
class _Coercion:
    """One pass over one call's arguments, with the notes on what was changed."""

    checker: Checker
    notes: list[str] = field(default_factory=list)

    def value(self, value: Any, schema: Any, path: str) -> Any:
        views = self.checker.views(schema)
        types = _types(views)
        if isinstance(value, str) and types and "string" not in types:
            value = self._from_text(value, types, path)
        elif isinstance(value, float) and "integer" in types and "number" not in types:
            value = self._whole(value, path)
        if isinstance(value, dict):
            return self._object(value, views, path)
        if isinstance(value, list):
            return self._array(value, views, path)
        return value

    def _object(
        self, value: dict[str, Any], views: list[tuple[Mapping[str, Any], bool]], path: str
    ) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        required: set[str] = set()
        for view, certain in reversed(views):
            properties |= view.get("properties", {})
            if certain:
                required |= set(view.get("required", ()))
        other: Any = next(
            (view["additionalProperties"] for view, _ in views if "additionalProperties" in view), {}
        )
        result = {}
        for name, each in value.items():
            below = f"{path}.{name}" if path else name
            schema = properties.get(name, other)
            if each is None and name in properties and name not in required and not self._may_be_null(schema):
                self.notes.append(f"{below[:80]}: null was left out")
                continue
            result[name] = self.value(each, schema, below)
        return result

    def _array(self, value: list[Any], views: list[tuple[Mapping[str, Any], bool]], path: str) -> list[Any]:
        first: list[Any] = next((view["prefixItems"] for view, _ in views if "prefixItems" in view), [])
        rest: Any = next((view["items"] for view, _ in views if "items" in view), {})
        return [
            self.value(each, first[index] if index < len(first) else rest, f"{path}[{index}]")
            for index, each in enumerate(value)
        ]

    def _from_text(self, text: str, types: set[str], path: str) -> Any:
        stripped = text.strip()
        found: Any = _NOTHING
        if "integer" in types and _INTEGER.match(stripped):
            found = int(float(stripped))
        elif "number" in types and _NUMBER.match(stripped):
            found = float(stripped) if re.search(r"[.eE]", stripped) else int(stripped)
        elif "boolean" in types and stripped.lower() in ("true", "false"):
            found = stripped.lower() == "true"
        elif stripped[:1] == "{" and "object" in types or stripped[:1] == "[" and "array" in types:
            found = _json(stripped)
        elif "null" in types and stripped.lower() == "null":
            found = None
        if found is _NOTHING:
            return text
        read = json.dumps(found) if not isinstance(found, dict | list) else "JSON"
        self._note(path, f"{json.dumps(text[:_QUOTED_CHARS], ensure_ascii=False)} was read as {read}")
        return found

    def _whole(self, value: float, path: str) -> float | int:
        if not value.is_integer() or abs(value) > _EXACT_INTEGERS:
            return value
        self._note(path, f"{value} was read as {int(value)}")
        return int(value)

    def _may_be_null(self, schema: Any) -> bool:
        views = self.checker.views(schema)
        types = _types(views)
        if any(None in view.get("enum", ()) or view.get("const", 0) is None for view, _ in views):
            return True
        return (
            "null" in types or not types and not any("enum" in view or "const" in view for view, _ in views)
        )

    def _note(self, path: str, what: str) -> None:
        self.notes.append(f"{path[:80] or 'arguments'}: {what}")


def coerce(arguments: Any, checker: Checker) -> tuple[Any, tuple[str, ...]]:
    """Bring arguments nearer to their schema without loss; also give a note for each change.

    Text that is a number, true, false, null or JSON becomes that value where the schema wants no text; null
    for an optional argument that cannot be null is left out; 3.0 becomes 3 where an integer is wanted. The
    outcome is still to be checked.
    """
    coercion = _Coercion(checker)
    value = coercion.value(arguments, checker.schema, "")
    notes = coercion.notes
    if len(notes) > MAX_NOTES:
        notes = [*notes[:MAX_NOTES], f"and {len(notes) - MAX_NOTES} more changes of this kind"]
    return value, tuple(notes)


def _types(views: list[tuple[Mapping[str, Any], bool]]) -> set[str]:
    types: set[str] = set()
    for view, _ in views:
        named = view.get("type", [])
        types.update([named] if isinstance(named, str) else named)
    return types


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return _NOTHING
