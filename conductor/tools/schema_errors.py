"""Errors of arguments in words for a model."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jsonschema_rs import ValidationError, ValidationErrorKind

from conductor.tools.schema import MASK, Schema, count_values, required_choice

# Errors in one message: a model corrects these before it reads more.
MAX_ERRORS = 5
# Values times schemas for which the library lists its errors, 30 µs each.
_MAX_PAIRS = 2_000
# Limits of the values, names, forms and messages that a text quotes.
_VALUE_CHARS = 80
_LISTED_NAMES = 12
_LISTED_FORMS = 3
_MESSAGE_CHARS = 160


def explain(schema: Schema, value: Any, text: str) -> list[str]:
    """Describe at most `MAX_ERRORS` different errors of a value written as ``text``, one clause each."""
    if count_values(text) * schema.nodes > _MAX_PAIRS:
        return ["they do not fit the tool's schema; send fewer values to learn the reason"]
    explainer = _Explainer(schema.tree)
    errors = itertools.chain.from_iterable(map(explainer.of, schema.validator.iter_errors(value)))
    return list(dict.fromkeys(itertools.islice(errors, 4 * MAX_ERRORS)))[:MAX_ERRORS]


class _Explainer:
    def __init__(self, tree: Any) -> None:
        self._tree = tree

    def of(self, error: ValidationError) -> Iterator[str]:
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path)
        location = "".join(steps).removeprefix(".")[:_VALUE_CHARS]
        inside, name = f"{location}: " if location else "", location or "the arguments"
        value, (*path, keyword) = error.instance, error.schema_path or [""]
        holder = self._holder(path)
        match error.kind:
            case ValidationErrorKind.FalseSchema() if keyword == "additionalProperties":
                yield f"{inside}no argument is taken"
            case ValidationErrorKind.FalseSchema():
                yield f"{inside}{_quoted(value)} is not allowed"
            case ValidationErrorKind.Type():
                yield f"{name} must be {_types(holder[keyword])}, got {_quoted(value)}"
            case ValidationErrorKind.Required(missing):
                yield f"{inside}missing required argument {missing[:_VALUE_CHARS]!r}"
            case ValidationErrorKind.AdditionalProperties(unexpected):
                allowed = _listed(list(holder.get("properties", ())), str) or "none"
                for unknown in unexpected:
                    yield f"{inside}unknown argument {unknown[:_VALUE_CHARS]!r} (allowed: {allowed})"
            case ValidationErrorKind.Enum(options):
                yield f"{name} must be one of {_listed(options, _quoted)}, got {_quoted(value)}"
            case ValidationErrorKind.OneOfMultipleValid():
                which = required_choice(holder["oneOf"]) or "its forms"
                yield f"{inside}needs exactly one of {which}, but more than one fits"
            case ValidationErrorKind.AnyOf(branches) | ValidationErrorKind.OneOfNotValid(branches):
                names = required_choice(holder[keyword])
                yield f"{inside}needs {names}" if names else self._forms(error, branches, name)
            case _:
                text = error.message[:_MESSAGE_CHARS]
                text = text.replace(MASK, name) if MASK in text else inside + text
                hint = holder.get("description", "")[:_MESSAGE_CHARS] if keyword == "pattern" else ""
                yield f"{text}, got {_quoted(value)}{f' ({hint})' if hint else ''}"

    def _holder(self, path: Sequence[str | int]) -> Any:
        holder: Any = self._tree
        for step in path:
            holder = holder[step]
        return holder

    def _forms(self, error: ValidationError, branches: Sequence[Sequence[ValidationError]], name: str) -> str:
        firsts = [first for first, *_ in branches]
        if all(
            first.schema_path[-1] == "type" and first.instance_path == error.instance_path for first in firsts
        ):
            types = dict.fromkeys(_types(self._holder(first.schema_path)) for first in firsts)
            return f"{name} must be {' or '.join(types)}, got {_quoted(error.instance)}"
        # Branches inside branches are left out: there can be many.
        plain = [first for first in firsts[:_LISTED_FORMS] if not hasattr(first.kind, "context")]
        forms = [next(self.of(first)) for first in plain]
        return ", or ".join(dict.fromkeys(forms)) or f"{name} fits none of its forms"


def _types(types: str | Sequence[str]) -> str:
    return types if isinstance(types, str) else " or ".join(types)


def _listed(values: Sequence[Any], to_text: Callable[[Any], str]) -> str:
    more = f" (and {len(values) - _LISTED_NAMES} more)" if len(values) > _LISTED_NAMES else ""
    return ", ".join(map(to_text, values[:_LISTED_NAMES])) + more


def _quoted(value: Any) -> str:
    # Cut before encoding: a value may be as long as all arguments together.
    if isinstance(value, str):
        value = value[:_VALUE_CHARS]
    elif isinstance(value, dict):
        return f"an object with {len(value)} fields"
    elif isinstance(value, list):
        return f"a list of {len(value)}"
    return json.dumps(value, ensure_ascii=False)[:_VALUE_CHARS]
