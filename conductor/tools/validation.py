"""Validation of the arguments that a model wrote as JSON text."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
from jsonschema_rs import ValidationError, ValidationErrorKind

from conductor.tools.base import ToolOutcome, ToolSpec, failed
from conductor.tools.schema import SchemaError, required_choice
from conductor.tools.schema_checker import CheckBudget, Checker, TooMuchWork, checkers

ENDING = "Nothing was run. Call it again with corrected arguments."
# Errors in one message: a model corrects these before it reads more.
MAX_ERRORS = 5

# Limits of the values, names, forms and descriptions that a message quotes.
_VALUE_CHARS = 80
_LISTED_NAMES = 12
_LISTED_FORMS = 3
_DESCRIPTION_CHARS = 160


def refusal(tool: str, errors: Iterable[str]) -> str:
    """Join errors into one message for the model: the tool, up to five errors, an instruction."""
    return f"Invalid arguments for {tool}: {'; '.join(list(errors)[:MAX_ERRORS])}. {ENDING}"


def explain(errors: Iterable[ValidationError], schema: Mapping[str, Any]) -> list[str]:
    """Describe at most `MAX_ERRORS` different errors; each text is a clause without a full stop."""
    texts: dict[str, None] = {}
    for text in itertools.chain.from_iterable(map(_Explainer(schema).of, errors)):
        texts[text] = None
        if len(texts) == MAX_ERRORS:
            break
    return list(texts)


def _location(path: Sequence[str | int]) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")


class _Explainer:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema

    def of(self, error: ValidationError, location: str = "") -> Iterator[str]:
        location = location or _location(error.instance_path)[:_VALUE_CHARS]
        inside, name = f"{location}: " if location else "", location or "the arguments"
        value, kind = error.instance, error.kind
        if isinstance(kind, ValidationErrorKind.PropertyNames):
            yield from self.of(kind.error, location)
            return
        *path, keyword = error.schema_path or [""]
        holder = self._holder(path)
        match kind:
            case ValidationErrorKind.FalseSchema() if keyword == "additionalProperties":
                yield f"{inside}no argument is taken"
            case ValidationErrorKind.FalseSchema():
                yield f"{inside}{_quoted(value)} is not allowed"
            case ValidationErrorKind.Required(missing):
                yield f"{inside}missing required argument {missing[:_VALUE_CHARS]!r}"
            case ValidationErrorKind.AdditionalProperties(unexpected):
                allowed = _listed(list(holder.get("properties", ())), str) or "none"
                for unknown in unexpected:
                    yield f"{inside}unknown argument {unknown[:_VALUE_CHARS]!r} (allowed: {allowed})"
            case ValidationErrorKind.Enum():
                yield f"{name} must be one of {_listed(holder['enum'], _quoted)}, got {_quoted(value)}"
            case ValidationErrorKind.Pattern(pattern):
                hint = holder.get("description", "")[:_DESCRIPTION_CHARS]
                yield f"{name} must match {pattern}, got {_quoted(value)}{f' ({hint})' if hint else ''}"
            case ValidationErrorKind.OneOfMultipleValid():
                which = required_choice(holder["oneOf"]) or "its forms"
                yield f"{inside}needs exactly one of {which}, but more than one fits"
            case ValidationErrorKind.AnyOf(branches) | ValidationErrorKind.OneOfNotValid(branches):
                names = required_choice(holder[keyword])
                yield f"{inside}needs {names}" if names else self._forms(error, branches, name)
            case _ if keyword in _WORDINGS:
                yield f"{name} {_WORDINGS[keyword](holder[keyword])}, got {_quoted(value)}"
            case _:
                yield f"{name} does not fit its {keyword}"

    def _holder(self, path: Sequence[str | int]) -> Any:
        holder: Any = self._schema
        for step in path:
            holder = holder[step]
        return holder

    def _forms(self, error: ValidationError, branches: Sequence[Sequence[ValidationError]], name: str) -> str:
        failures = [failure for errors in branches for failure in errors if _is_wrong_type(failure, error)]
        if len(failures) == len(branches):
            types = dict.fromkeys(_type(self._holder(failure.schema_path)) for failure in failures)
            return f"{name} must be {' or '.join(types)}, got {_quoted(error.instance)}"
        ranks = [_distance(errors, error) for errors in branches]
        best = min(ranks)
        if not best[0] and ranks.count(best) == 1:
            return "; ".join(itertools.chain.from_iterable(map(self.of, branches[ranks.index(best)])))
        # Branches inside branches are left out: there can be thousands.
        forms = [next(self.of(first)) for first, *_ in branches[:_LISTED_FORMS] if not _has_branches(first)]
        return ", or ".join(dict.fromkeys(forms)) or f"{name} fits none of its forms"


def _listed(values: Sequence[Any], to_text: Callable[[Any], str]) -> str:
    more = f" (and {len(values) - _LISTED_NAMES} more)" if len(values) > _LISTED_NAMES else ""
    return ", ".join(map(to_text, values[:_LISTED_NAMES])) + more


def _is_wrong_type(error: ValidationError, outer: ValidationError) -> bool:
    return isinstance(error.kind, ValidationErrorKind.Type) and error.instance_path == outer.instance_path


def _distance(errors: Sequence[ValidationError], outer: ValidationError) -> tuple[bool, int, int]:
    constants = (ValidationErrorKind.Constant, ValidationErrorKind.Enum)
    values = [error for error in errors if isinstance(error.kind, constants)]
    is_whole = any(error.instance_path == outer.instance_path for error in values)
    return is_whole or any(_is_wrong_type(error, outer) for error in errors), len(values), len(errors)


def _has_branches(error: ValidationError) -> bool:
    return hasattr(error.kind, "context")


def _quoted(value: Any) -> str:
    # Cut before encoding: a value may be as long as all arguments together.
    if isinstance(value, str):
        value = value[:_VALUE_CHARS]
    elif isinstance(value, dict):
        return f"an object with {len(value)} fields"
    elif isinstance(value, list):
        return f"a list of {len(value)}"
    return json.dumps(value, ensure_ascii=False)[:_VALUE_CHARS]


def _type(types: str | Sequence[str]) -> str:
    return types if isinstance(types, str) else " or ".join(types)


def _count(noun: str, bound: str) -> Callable[[Any], str]:
    return lambda number: f"must have {bound} {number} {noun}{'' if number == 1 else 's'}"


_WORDINGS: dict[str, Callable[[Any], str]] = {
    "type": lambda types: f"must be {_type(types)}",
    "const": lambda value: f"must be {_quoted(value)}",
    "minimum": lambda bound: f"must be at least {bound}",
    "maximum": lambda bound: f"must be at most {bound}",
    "exclusiveMinimum": lambda bound: f"must be more than {bound}",
    "exclusiveMaximum": lambda bound: f"must be less than {bound}",
    "multipleOf": lambda step: f"must be a multiple of {step}",
    "minLength": _count("character", "at least"),
    "maxLength": _count("character", "at most"),
    "minItems": _count("item", "at least"),
    "maxItems": _count("item", "at most"),
    "minProperties": _count("field", "at least"),
    "maxProperties": _count("field", "at most"),
    "minContains": _count("fitting item", "at least"),
    "maxContains": _count("fitting item", "at most"),
    "uniqueItems": lambda _: "must not have the same item twice",
    "contains": lambda _: "has no item that fits",
    "not": lambda _: "has a form that is not allowed",
}


# Notes on changed arguments that the model gets.
MAX_NOTES = 8

View: TypeAlias = tuple[Mapping[str, Any], bool]
"""A schema of a value, and whether it applies to each value."""

_NOTHING = object()
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,14})(?:\.0{1,3})?\Z")  # 15 digits: exact in every JSON reader
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,15})?(?:[eE][-+]?[0-9]{1,2})?\Z")
# The format of a GitHub repository's URL; people and models write "owner/repo".
GITHUB = "github-repository"
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*/(?!\.{1,2}/?\Z)[A-Za-z0-9_.-]+/?\Z")
# Above this number a float cannot represent every integer.
_EXACT_INTEGERS = 2**53
_QUOTED_CHARS = 40


@dataclass(slots=True)
class _Coercion:
    # ``empty`` are the locations of empty texts that do not fit; ``notes`` describe the changes.
    checker: Checker
    work: CheckBudget
    empty: frozenset[str]
    notes: list[str] = field(default_factory=list)

    def value(self, value: Any, schema: Any, path: str) -> Any:
        views = self._views(schema)
        types = _types(views)
        if isinstance(value, str) and types and "string" not in types:
            value = self._from_text(value, types, path)
        elif isinstance(value, float) and "integer" in types and "number" not in types:
            value = self._to_integer(value, path)
        elif isinstance(value, str) and any(view.get("format") == GITHUB for view, _ in views):
            value = self._repository(value, path)
        if isinstance(value, dict):
            return self._object(value, views, path)
        if isinstance(value, list):
            return self._array(value, views, path)
        return value

    def _views(self, schema: Any) -> list[View]:
        views = list(self._walk(schema, True))
        self.work.spend(2.0 * (1 + len(views)))
        return views

    def _walk(self, schema: Any, certain: bool) -> Iterator[View]:
        if not isinstance(schema, dict):
            return
        yield schema, certain
        if "$ref" in schema:
            yield from self._walk(self.checker.resolve(schema["$ref"]), certain)
        for keyword in ("allOf", "anyOf", "oneOf"):
            for branch in schema.get(keyword, ()):
                yield from self._walk(branch, certain and keyword == "allOf")

    def _object(self, value: dict[str, Any], views: list[View], path: str) -> dict[str, Any]:
        self.work.spend(0.5 * len(views) * len(value))
        required = [view["required"] for view, certain in views if certain and "required" in view]
        additional: Any = next(
            (view["additionalProperties"] for view, _ in views if "additionalProperties" in view), {}
        )
        result = {}
        for name, item in value.items():
            below = f"{path}.{name}" if path else name
            declared = [view["properties"][name] for view, _ in views if name in view.get("properties", ())]
            schema = declared[0] if declared else additional
            if item in (None, "") and declared and not any(name in names for names in required):
                if self._is_absent(item, schema, below):
                    self._note(below, f"{'null' if item is None else 'empty text'} was left out")
                    continue
            result[name] = self.value(item, schema, below)
        return result

    def _is_absent(self, value: str | None, schema: Any, path: str) -> bool:
        views = self._views(schema)
        if value == "":  # no format allows an empty text, but formats are not checked
            return path in self.empty or any("format" in view for view, _ in views)
        types = _types(views)
        if any(None in view.get("enum", ()) or view.get("const", 0) is None for view, _ in views):
            return False
        return "null" not in types and (
            bool(types) or any("enum" in view or "const" in view for view, _ in views)
        )

    def _array(self, value: list[Any], views: list[View], path: str) -> list[Any]:
        first: list[Any] = next((view["prefixItems"] for view, _ in views if "prefixItems" in view), [])
        items: Any = next((view["items"] for view, _ in views if "items" in view), {})
        return [
            self.value(item, first[index] if index < len(first) else items, f"{path}[{index}]")
            for index, item in enumerate(value)
        ]

    def _from_text(self, text: str, types: set[str], path: str) -> Any:
        stripped = text.strip()
        result: Any = _NOTHING
        if "integer" in types and _INTEGER.match(stripped):
            result = int(float(stripped))
        elif "number" in types and _NUMBER.match(stripped):
            result = float(stripped) if re.search(r"[.eE]", stripped) else int(stripped)
        elif "boolean" in types and stripped.lower() in ("true", "false"):
            result = stripped.lower() == "true"
        elif stripped[:1] == "{" and "object" in types or stripped[:1] == "[" and "array" in types:
            result = _json(stripped)
        elif "null" in types and stripped.lower() == "null":
            result = None
        if result is _NOTHING:
            return text
        outcome = json.dumps(result) if not isinstance(result, dict | list) else "JSON"
        self._note(path, f"{json.dumps(text[:_QUOTED_CHARS], ensure_ascii=False)} was read as {outcome}")
        return result

    def _to_integer(self, value: float, path: str) -> float | int:
        if not value.is_integer() or abs(value) > _EXACT_INTEGERS:
            return value
        self._note(path, f"{value} was read as {int(value)}")
        return int(value)

    def _repository(self, text: str, path: str) -> str:
        if not _REPOSITORY.match(text):
            return text
        self._note(path, f"{text[:_QUOTED_CHARS]} was read as https://github.com/{text[:_QUOTED_CHARS]}")
        return f"https://github.com/{text}"

    def _note(self, path: str, change: str) -> None:
        self.notes.append(f"{path[:80] or 'arguments'}: {change}")


def coerce(
    arguments: Any, checker: Checker, work: CheckBudget, errors: Iterable[ValidationError]
) -> tuple[Any, tuple[str, ...]]:
    """Convert arguments towards their schema without loss; returns them with a note for each change.

    A text that is a number, true, false, null or JSON becomes that value where the schema allows no text.
    Null for an optional argument that cannot be null is dropped, as is an empty text that ``errors`` reject.
    3.0 becomes 3 where an integer is required; "owner/repo" becomes a URL where the format is `GITHUB`. The
    result must still be checked. Raises `TooMuchWork`.
    """
    coercion = _Coercion(checker, work, frozenset(_empty_texts(errors)))
    value = coercion.value(arguments, checker.schema, "")
    notes = coercion.notes
    if len(notes) > MAX_NOTES:
        notes = [*notes[:MAX_NOTES], f"and {len(notes) - MAX_NOTES} more changes of this kind"]
    return value, tuple(notes)


def _empty_texts(errors: Iterable[ValidationError]) -> Iterator[str]:
    for error in errors:
        if error.instance == "":
            yield _location(error.instance_path)
        for branch in getattr(error.kind, "context", ()):
            yield from _empty_texts(branch)


def _types(views: list[View]) -> set[str]:
    types: set[str] = set()
    for view, _ in views:
        declared = view.get("type", [])
        types.update([declared] if isinstance(declared, str) else declared)
    return types


def _json(text: str) -> Any:
    try:
        return decode_json(text)
    except (ValueError, RecursionError):
        return _NOTHING


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError("a number is out of range")
    return number


# msgspec's own conversion takes 100 times as long for floats such as 1e300.
decode_json = msgspec.json.Decoder(float_hook=_finite).decode


# Bytes and depth of a call's arguments.
MAX_ARGUMENT_BYTES = 64 * 1024
MAX_ARGUMENT_DEPTH = 32

_MAY_CHANGE = re.compile(r'[0-9](?:\.0|[eE])|:\s*""')  # 3.0 for 3, empty text for no value
_TOO_DEEP = f"they are nested more than {MAX_ARGUMENT_DEPTH} levels deep"
_TOO_INVOLVED = "they are too large to be checked against the tool's schema; send fewer or shorter values"


@dataclass(frozen=True, slots=True)
class Valid:
    """Arguments that fit their schema, and a note for each value that was changed without loss."""

    arguments: dict[str, Any]
    notes: tuple[str, ...] = ()


def validate(
    spec: ToolSpec,
    arguments_json: str,
    limit_bytes: int = MAX_ARGUMENT_BYTES,
    work: CheckBudget | None = None,
) -> Valid | ToolOutcome:
    """Check the arguments of a call; empty text stands for no arguments. Never raises.

    ``work`` limits the checks, by default to 30 ms on a slow machine. Invalid arguments give an outcome,
    ``parse_error`` or ``validation_failed``, with a message that helps the model to correct them.
    ``internal_error`` means that the tool's schema is not acceptable.
    """
    if len(arguments_json.encode(errors="replace")) > limit_bytes:
        return _invalid(spec, f"they are larger than {limit_bytes} bytes")
    try:
        arguments = decode_json(arguments_json) if arguments_json.strip() else {}
    except RecursionError:
        return _invalid(spec, _TOO_DEEP)
    except ValueError as error:  # half a surrogate pair, too
        reason = str(error) if isinstance(error, msgspec.MsgspecError) else "the text is not Unicode"
        return failed("parse_error", refusal(spec.name, [f"they are not valid JSON ({reason})"]))
    try:
        return _check(spec, arguments, arguments_json, work or CheckBudget())
    except SchemaError as error:
        return failed("internal_error", f"{spec.name} cannot be called: {error}. Nothing was run.")
    except TooMuchWork:
        return _invalid(spec, _TOO_INVOLVED)
    except RecursionError:
        return _invalid(spec, _TOO_DEEP)


def _check(spec: ToolSpec, arguments: Any, text: str, work: CheckBudget) -> Valid | ToolOutcome:
    if _is_too_deep(arguments, text):
        return _invalid(spec, _TOO_DEEP)
    checker = checkers.get(spec)
    notes: tuple[str, ...] = ()
    errors = checker.errors(arguments, text, work)
    if errors or _MAY_CHANGE.search(text):
        if arguments is None and not checker.errors({}, text, work):
            return Valid({}, ("arguments: null was read as {}",))
        coerced, notes = coerce(arguments, checker, work, errors)
        if notes:
            if _is_too_deep(coerced, text):
                return _invalid(spec, _TOO_DEEP)
            remaining = checker.errors(coerced, text, work)
            if remaining and not errors:  # they were valid without the change
                return Valid(arguments)
            arguments, errors = coerced, remaining
    if errors:
        return _invalid(spec, *explain(errors, checker.schema))
    return Valid(arguments, notes)


def _invalid(spec: ToolSpec, *errors: str) -> ToolOutcome:
    return failed("validation_failed", refusal(spec.name, errors))


def _is_too_deep(value: Any, text: str) -> bool:
    # Counting brackets decides in nearly all cases.
    if text.count("{") + text.count("[") <= MAX_ARGUMENT_DEPTH:
        return False
    level: list[Any] = [[value]]
    for _ in range(MAX_ARGUMENT_DEPTH + 1):
        holders = [item.values() if isinstance(item, dict) else item for item in level]
        level = [item for holder in holders for item in holder if isinstance(item, dict | list)]
    return bool(level)
