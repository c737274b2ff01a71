"""Validation of the arguments that a model wrote as JSON text, and errors in words for a model."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
from jsonschema_rs import ValidationError, ValidationErrorKind

from conductor.tools.base import ToolOutcome, ToolSpec, failed
from conductor.tools.schema import (
    MASK,
    Schema,
    SchemaError,
    compile_validator,
    count_values,
    read_schema,
    required_choice,
)

# Errors in one message: a model corrects these before it reads more.
MAX_ERRORS = 5
# Values times schemas for which the library lists its errors, 30 µs each.
_MAX_PAIRS = 2_000
# Limits of the values, names or options, forms and messages that a text quotes.
_VALUE_CHARS = 80
_LISTED = 12
_LISTED_FORMS = 3
_MESSAGE_CHARS = 160
# Bytes and depth of a call's arguments.
MAX_ARGUMENT_BYTES = 64 * 1024
MAX_ARGUMENT_DEPTH = 32
# Values of arguments that are coerced; of larger ones only the errors are reported.
MAX_COERCED = 2_000
ENDING = "Nothing was run. Call it again with corrected arguments."

_MAY_CHANGE = re.compile(r'[0-9](?:\.0|[eE])|:\s*""')  # 3.0 for 3, empty text for no value
_TOO_DEEP = f"they are nested more than {MAX_ARGUMENT_DEPTH} levels deep"
_TOO_INVOLVED = "they are too large to be checked against the tool's schema; send fewer or shorter values"


def refusal(tool: str, errors: Iterable[str]) -> str:
    """Join errors into one message for the model: the tool, up to five errors, an instruction."""
    return f"Invalid arguments for {tool}: {'; '.join(list(errors)[:MAX_ERRORS])}. {ENDING}"


class SchemaCache:
    """Compiled schemas, since many sockets declare the same tools. The oldest is dropped first."""

    def __init__(self, max_count: int = 1024, max_bytes: int = 64 * 1024 * 1024) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._schemas: dict[str, Schema] = {}
        self.size = 0

    def get(self, spec: ToolSpec) -> Schema:
        """Return the compiled schema of a tool. Raises `SchemaError`."""
        try:
            key = spec.fingerprint
        except (RecursionError, TypeError, ValueError):
            return read_schema(spec.input_schema)  # it raises the reason
        schema = self._schemas.get(key)
        if schema is None:
            schema = self._schemas[key] = read_schema(spec.input_schema)
            self.size += schema.size
            while len(self._schemas) > self._max_count or self.size > self._max_bytes:
                self.size -= self._schemas.pop(next(iter(self._schemas))).size
        return schema


schemas = SchemaCache()


@dataclass(frozen=True, slots=True)
class Valid:
    """Arguments that fit their schema, and a note for each value that was changed without loss."""

    arguments: dict[str, Any]
    notes: tuple[str, ...] = ()


def validate(
    spec: ToolSpec, arguments_json: str, limit_bytes: int = MAX_ARGUMENT_BYTES
) -> Valid | ToolOutcome:
    """Check the arguments of a call; empty text stands for no arguments. Never raises.

    Invalid arguments give an outcome, ``parse_error`` or ``validation_failed``, with a message that helps the
    model to correct them. ``internal_error`` means that the tool's schema is not acceptable.
    """
    if len(arguments_json.encode(errors="replace")) > limit_bytes:
        return _invalid(spec, f"they are larger than {limit_bytes} bytes")
    try:
        arguments = decode_json(arguments_json) if arguments_json.strip() else {}
        return _check(spec, arguments, arguments_json)
    except RecursionError:
        return _invalid(spec, _TOO_DEEP)
    except SchemaError as error:
        return failed("internal_error", f"{spec.name} cannot be called: {error}. Nothing was run.")
    except ValueError as error:  # half a surrogate pair, too
        reason = str(error) if isinstance(error, msgspec.MsgspecError) else "the text is not Unicode"
        return failed("parse_error", refusal(spec.name, [f"they are not valid JSON ({reason})"]))


def _check(spec: ToolSpec, arguments: Any, text: str) -> Valid | ToolOutcome:
    schema = schemas.get(spec)
    if problem := _problem(schema, arguments, text):
        return _invalid(spec, problem)
    is_valid = schema.is_valid(arguments)
    if is_valid and not _MAY_CHANGE.search(text):
        return Valid(arguments)
    if arguments is None and schema.is_valid({}):
        return Valid({}, ("arguments: null was read as {}",))
    coerced, notes = coerce(arguments, schema) if count_values(text) <= MAX_COERCED else (arguments, ())
    if notes and not is_valid:
        if problem := _problem(schema, coerced, msgspec.json.encode(coerced).decode()):
            return _invalid(spec, problem)
        arguments = coerced
    if schema.is_valid(coerced):
        return Valid(coerced, notes)
    if is_valid:  # without the change
        return Valid(arguments)
    return _invalid(spec, *explain(schema, arguments, text))


def _problem(schema: Schema, value: Any, text: str) -> str:
    if _is_too_deep(value):
        return _TOO_DEEP
    return "" if schema.allows(text) else _TOO_INVOLVED


def _invalid(spec: ToolSpec, *errors: str) -> ToolOutcome:
    return failed("validation_failed", refusal(spec.name, errors))


def _is_too_deep(value: Any, levels: int = MAX_ARGUMENT_DEPTH) -> bool:
    if not isinstance(value, dict | list):
        return False
    items = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_too_deep(item, levels - 1) for item in items)


# -- errors in words for a model


def explain(schema: Schema, value: Any, text: str) -> list[str]:
    """Describe at most `MAX_ERRORS` different errors of a value written as ``text``, one clause each."""
    if count_values(text) * schema.nodes > _MAX_PAIRS:
        return ["they do not fit the tool's schema; send fewer values to learn the reason"]
    errors = (
        clause for error in schema.validator.iter_errors(value) for clause in _clauses(schema.tree, error)
    )
    return list(dict.fromkeys(itertools.islice(errors, 4 * MAX_ERRORS)))[:MAX_ERRORS]


def _clauses(tree: Any, error: ValidationError) -> Iterator[str]:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path)
    location = "".join(steps).removeprefix(".")[:_VALUE_CHARS]
    inside, name = f"{location}: " if location else "", location or "the arguments"
    value, (*path, keyword) = _quoted(error.instance), error.schema_path or [""]
    holder = tree
    for step in path:
        holder = holder[step]
    match error.kind:
        case ValidationErrorKind.Required(missing):
            yield f"{inside}missing required argument {missing[:_VALUE_CHARS]!r}"
        case ValidationErrorKind.AdditionalProperties(unexpected):
            allowed = _listed(list(holder.get("properties", ()))) or "none"
            for unknown in unexpected:
                yield f"{inside}unknown argument {unknown[:_VALUE_CHARS]!r} (allowed: {allowed})"
        case ValidationErrorKind.FalseSchema() if keyword == "additionalProperties":
            yield f"{inside}no argument is taken"
        case ValidationErrorKind.Type():
            types = holder[keyword]
            yield f"{name} must be {types if isinstance(types, str) else ' or '.join(types)}, got {value}"
        case ValidationErrorKind.Enum(options):
            yield f"{name} must be one of {_listed(list(map(_quoted, options)))}, got {value}"
        case ValidationErrorKind.OneOfMultipleValid() if choice := required_choice(holder["oneOf"]):
            yield f"{inside}needs exactly one of {choice}, but more than one fits"
        case ValidationErrorKind.AnyOf(branches) | ValidationErrorKind.OneOfNotValid(branches):
            if choice := required_choice(holder[keyword]):
                yield f"{inside}needs {choice}"
                return
            # Branches inside branches are left out: there can be many.
            firsts = [first for first, *_ in branches if not hasattr(first.kind, "context")]
            forms = [next(_clauses(tree, first)) for first in firsts[:_LISTED_FORMS]]
            yield ", or ".join(dict.fromkeys(forms)) or f"{name} fits none of its forms"
        case _:
            text = error.message[:_MESSAGE_CHARS]
            text = text.replace(MASK, name) if MASK in text else inside + text
            hint = holder.get("description", "")[:_MESSAGE_CHARS] if keyword == "pattern" else ""
            yield f"{text}, got {value}{f' ({hint})' if hint else ''}"


def _listed(names: list[str]) -> str:
    more = f" (and {len(names) - _LISTED} more)" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _quoted(value: Any) -> str:
    # Cut before encoding: a value may be as long as all arguments together.
    if isinstance(value, str):
        value = value[:_VALUE_CHARS]
    elif isinstance(value, dict):
        return f"an object with {len(value)} fields"
    elif isinstance(value, list):
        return f"a list of {len(value)}"
    return json.dumps(value, ensure_ascii=False)[:_VALUE_CHARS]


# -- coercion

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
    # ``notes`` describe the changes. By the identity of a schema: the schemas that apply to its value, and
    # whether null or an empty text stands for no value.
    notes: list[str] = field(default_factory=list)
    views: dict[int, list[View]] = field(default_factory=dict)
    absent: dict[tuple[int, str | None], bool] = field(default_factory=dict)

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
        if id(schema) not in self.views:
            self.views[id(schema)] = list(self._walk(schema, True))
        return self.views[id(schema)]

    def _walk(self, schema: Any, certain: bool) -> Iterator[View]:
        if not isinstance(schema, dict):
            return
        yield schema, certain
        for keyword in ("allOf", "anyOf", "oneOf"):
            for branch in schema.get(keyword, ()):
                yield from self._walk(branch, certain and keyword == "allOf")

    def _object(self, value: dict[str, Any], views: list[View], path: str) -> dict[str, Any]:
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
                if self._is_absent(item, schema):
                    self._note(below, f"{'null' if item is None else 'empty text'} was left out")
                    continue
            result[name] = self.value(item, schema, below)
        return result

    def _is_absent(self, value: str | None, schema: Any) -> bool:
        key = id(schema), value
        if key not in self.absent:
            # No format allows an empty text, but formats are not checked.
            has_format = value == "" and any("format" in view for view, _ in self._views(schema))
            self.absent[key] = has_format or not compile_validator(schema).is_valid(value)
        return self.absent[key]

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


def coerce(arguments: Any, schema: Schema) -> tuple[Any, tuple[str, ...]]:
    """Convert arguments towards their schema without loss; returns them with a note for each change.

    A text that is a number, true, false, null or JSON becomes that value where the schema allows no text.
    Null for an optional argument that cannot be null is dropped, as is an empty text that does not fit.
    3.0 becomes 3 where an integer is required; "owner/repo" becomes a URL where the format is `GITHUB`. The
    result must still be checked.
    """
    coercion = _Coercion()
    value = coercion.value(arguments, schema.tree, "")
    notes = coercion.notes
    if len(notes) > MAX_NOTES:
        notes = [*notes[:MAX_NOTES], f"and {len(notes) - MAX_NOTES} more changes of this kind"]
    return value, tuple(notes)


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
