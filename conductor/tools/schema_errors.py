"""Errors of arguments in words for a model."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jsonschema_rs import Draft202012Validator, ValidationError, ValidationErrorKind

from conductor.tools.schema import MASK, compile_validator, required_choice

# Errors in one message: a model corrects these before it reads more.
MAX_ERRORS = 5
# Values times schemas for which the library lists its errors, 30 µs each.
_MAX_PAIRS = 2_000
# Limits of the values, names, forms and messages that a text quotes.
_VALUE_CHARS = 80
_LISTED_NAMES = 12
_LISTED_FORMS = 3
_MESSAGE_CHARS = 160


def explain(tree: Any, value: Any) -> list[str]:
    """Describe at most `MAX_ERRORS` different errors; each text is a clause without a full stop.

    ``tree`` is that of a `Schema`. Of a large value only the first part that does not fit is explained.
    """
    part, path = tree, ""
    validators: dict[int, Draft202012Validator] = {}  # one for all items of a list
    while isinstance(value, dict | list) and _size(part) * _size(value) > _MAX_PAIRS:
        for inner, item, step in _parts(part, value):
            if id(inner) not in validators:
                validators[id(inner)] = compile_validator(inner)
            if not validators[id(inner)].is_valid(item):
                part, value, path = inner, item, f"{path}{step}"
                break
        else:
            return [f"{path.removeprefix('.') or 'they'} does not fit; send fewer values to learn the reason"]
    errors = itertools.chain.from_iterable(
        _Explainer(part, path).of(error) for error in compile_validator(part).iter_errors(value)
    )
    return list(dict.fromkeys(itertools.islice(errors, 4 * MAX_ERRORS)))[:MAX_ERRORS]


def _size(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_size, inner))


def _parts(tree: Any, value: Any) -> Iterator[tuple[Any, Any, str]]:
    if isinstance(tree, dict) and isinstance(value, dict):
        for name, part in tree.get("properties", {}).items():
            if name in value:
                yield part, value[name], f".{name}"
    if isinstance(tree, dict) and isinstance(value, list) and "prefixItems" not in tree:
        yield from ((tree.get("items", True), item, f"[{index}]") for index, item in enumerate(value))


class _Explainer:
    def __init__(self, tree: Any, path: str) -> None:
        self._tree = tree
        self._path = path

    def of(self, error: ValidationError) -> Iterator[str]:
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path)
        location = "".join((self._path, *steps)).removeprefix(".")[:_VALUE_CHARS]
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
        failures = [failure for errors in branches for failure in errors if _is_wrong_type(failure, error)]
        if len(failures) == len(branches):
            types = dict.fromkeys(_types(self._holder(failure.schema_path)) for failure in failures)
            return f"{name} must be {' or '.join(types)}, got {_quoted(error.instance)}"
        ranks = [_distance(errors, error) for errors in branches]
        best = min(ranks)
        if not best[0] and ranks.count(best) == 1:
            return "; ".join(itertools.chain.from_iterable(map(self.of, branches[ranks.index(best)])))
        # Branches inside branches are left out: there can be many.
        firsts = [first for first, *_ in branches[:_LISTED_FORMS] if not hasattr(first.kind, "context")]
        forms = [next(self.of(first)) for first in firsts]
        return ", or ".join(dict.fromkeys(forms)) or f"{name} fits none of its forms"


def _is_wrong_type(error: ValidationError, outer: ValidationError) -> bool:
    return isinstance(error.kind, ValidationErrorKind.Type) and error.instance_path == outer.instance_path


def _distance(errors: Sequence[ValidationError], outer: ValidationError) -> tuple[bool, int, int]:
    constants = (ValidationErrorKind.Constant, ValidationErrorKind.Enum)
    values = [error for error in errors if isinstance(error.kind, constants)]
    is_whole = any(error.instance_path == outer.instance_path for error in values)
    return is_whole or any(_is_wrong_type(error, outer) for error in errors), len(values), len(errors)


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
