"""Validation of the arguments that a model wrote as JSON text, and errors in words for a model."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from jsonschema_rs import ValidationError, ValidationErrorKind

from conductor.tools.base import ToolSpec
from conductor.tools.outcomes import ToolOutcome, failed
from conductor.tools.schema import (
    MASK,
    Schema,
    SchemaError,
    count_values,
    read_schema,
    required_choice,
)

# Errors in one message: a model corrects these before it reads more.
MAX_ERRORS = 5
# Values times schemas for which the library lists its errors, 30 µs each; others are not corrected.
_MAX_PAIRS = 2_000
# Limits of the values, names or options, forms and messages that a text quotes.
_VALUE_CHARS = 80
_LISTED = 12
_LISTED_FORMS = 3
_MESSAGE_CHARS = 160
# Bytes and depth of a call's arguments.
MAX_ARGUMENT_BYTES = 64 * 1024
MAX_ARGUMENT_DEPTH = 32
ENDING = "Nothing was run. Call it again with corrected arguments."

_TOO_DEEP = f"they are nested more than {MAX_ARGUMENT_DEPTH} levels deep"
_TOO_INVOLVED = "they are too large to be checked against the tool's schema; send fewer or shorter values"


def refusal(tool: str, errors: Iterable[str]) -> str:
    """Join errors into one message for the model: the tool, up to five errors, an instruction."""
    return f"Invalid arguments for {tool}: {'; '.join(list(errors)[:MAX_ERRORS])}. {ENDING}"


class SchemaCache:
    """Compiled schemas, since many sockets declare the same tools. The oldest is dropped first."""

    def __init__(self, max_bytes: int = 64 * 1024 * 1024) -> None:
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
            while self.size > self._max_bytes:
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
    arguments = _with_own_names(spec, arguments)
    if problem := _problem(schema, arguments, text):
        return _invalid(spec, problem)
    if schema.is_valid(arguments):
        return Valid(_integers(arguments, schema.tree))
    if arguments is None and schema.is_valid({}):
        return Valid({}, ("arguments: null was read as {}",))
    if count_values(text) * schema.nodes > _MAX_PAIRS:
        return _invalid(spec, "they do not fit the tool's schema; send fewer values to learn the reason")
    arguments, notes = coerce(arguments, schema)
    if notes and (problem := _problem(schema, arguments, msgspec.json.encode(arguments).decode())):
        return _invalid(spec, problem)
    if not schema.is_valid(arguments):
        return _invalid(spec, *(_with_model_names(spec, error) for error in explain(schema, arguments)))
    return Valid(_integers(arguments, schema.tree), notes)


def _with_own_names(spec: ToolSpec, arguments: Any) -> Any:
    if not isinstance(arguments, dict) or not spec.own_names.keys() & arguments.keys():
        return arguments
    return {spec.own_names.get(name, name): value for name, value in arguments.items()}


def _with_model_names(spec: ToolSpec, error: str) -> str:
    for name, own in spec.own_names.items():
        error = error.replace(own, name)
    return error


def _integers(value: Any, tree: Any) -> Any:
    # By JSON Schema 3.0 is an integer, to many tools it is none. A number stays as the model wrote it.
    if not isinstance(tree, dict):
        return value
    match value:
        case float() if tree.get("type") == "integer" and abs(value) <= _EXACT_INTEGERS:
            return int(value)
        case dict():
            declared = tree.get("properties", {})
            return {name: _integers(item, declared.get(name)) for name, item in value.items()}
        case list():
            return [_integers(item, tree.get("items")) for item in value]
    return value


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


def explain(schema: Schema, value: Any) -> list[str]:
    """Describe at most `MAX_ERRORS` different errors of a value, one clause each."""
    errors = (
        clause for error in schema.validator.iter_errors(value) for clause in _clauses(schema.tree, error)
    )
    return list(dict.fromkeys(itertools.islice(errors, 4 * MAX_ERRORS)))[:MAX_ERRORS]


def _clauses(tree: Any, error: ValidationError) -> Iterator[str]:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path)
    location = "".join(steps).removeprefix(".")[:_VALUE_CHARS]
    inside, name = f"{location}: " if location else "", location or "the arguments"
    value, (holder, keyword) = _quoted(error.instance), _holder(tree, error)
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


def _holder(tree: Any, error: ValidationError) -> tuple[Any, str | int]:
    # The schema with the keyword of an error, and the keyword.
    *path, keyword = error.schema_path or [""]
    for step in path:
        tree = tree[step]
    return tree, keyword


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
# Rounds of changes: a JSON text may contain further texts.
_ROUNDS = 2

_NOTHING = object()
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,14})(?:\.0{1,3})?\Z")  # 15 digits: exact in every JSON reader
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,15})?(?:[eE][-+]?[0-9]{1,2})?\Z")
# The format of a GitHub repository's URL; people and models write "owner/repo".
GITHUB = "github-repository"
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*/(?!\.{1,2}/?\Z)[A-Za-z0-9_.-]+/?\Z")
# Above this number a float cannot represent every integer.
_EXACT_INTEGERS = 2**53


def coerce(arguments: Any, schema: Schema) -> tuple[Any, tuple[str, ...]]:
    """Change arguments where they do not fit, without loss; returns them with a note for each change.

    A text that is a number, true, false, null or JSON becomes that value where the schema requires one. Null
    and an empty text are left out where they do not fit. "owner/repo" becomes a URL where the format is
    `GITHUB`. The result must still be checked.
    """
    notes: list[str] = []
    root = {"": arguments}
    for _ in range(_ROUNDS):
        errors: dict[tuple[str | int, ...], list[ValidationError]] = {}
        for error in schema.validator.iter_errors(root[""]):
            for leaf in _leaves(error):
                errors.setdefault(("", *leaf.instance_path), []).append(leaf)
        for (*above, last), own in errors.items():
            holder: Any = root
            for step in above:
                holder = holder[step]
            value, outcome = _coerced(holder[last], own, schema.tree)
            if value is not _NOTHING:
                holder[last] = value
            elif outcome and above and isinstance(holder, dict):
                del holder[last]
            else:
                continue
            steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in (*above, last)[1:])
            notes.append(f"{''.join(steps)[1:][:80] or 'arguments'}: {outcome}")
    if len(notes) > MAX_NOTES:
        notes = [*notes[:MAX_NOTES], f"and {len(notes) - MAX_NOTES} more changes of this kind"]
    return root[""], tuple(notes)


def _leaves(error: ValidationError) -> Iterator[ValidationError]:
    # The errors of branches in place of theirs.
    match error.kind:
        case ValidationErrorKind.AnyOf(branches) | ValidationErrorKind.OneOfNotValid(branches):
            for branch in branches:
                for inner in branch:
                    yield from _leaves(inner)
        case ValidationErrorKind.FalseSchema():
            pass
        case _:
            yield error


def _coerced(value: Any, errors: Sequence[ValidationError], tree: Any) -> tuple[Any, str]:
    # The new value in place of one with these errors, and a note; `_NOTHING` to leave it out. The value may
    # differ from the errors' instance, which is a name for ``propertyNames``.
    result: Any = _NOTHING
    if value is None:
        return _NOTHING, "null was left out"
    if not isinstance(value, str):
        return _NOTHING, ""
    types = {
        kind
        for error in errors
        if isinstance(error.kind, ValidationErrorKind.Type)
        for kind in error.kind.types
    }
    text = value.strip()
    if "integer" in types and _INTEGER.match(text):
        result = int(float(text))
    elif "number" in types and _NUMBER.match(text):
        result = float(text) if re.search(r"[.eE]", text) else int(text)
    elif "boolean" in types and text.lower() in ("true", "false"):
        result = text.lower() == "true"
    elif text[:1] == "{" and "object" in types or text[:1] == "[" and "array" in types:
        result = _json(text)
    elif "null" in types and text.lower() == "null":
        result = None
    elif _REPOSITORY.match(value) and any(
        _holder(tree, error)[0].get("format") == GITHUB for error in errors
    ):
        result = f"https://github.com/{value}"
    if result is _NOTHING:
        return _NOTHING, "" if value else "empty text was left out"
    form = "JSON" if isinstance(result, dict | list) else json.dumps(result)
    return result, f"{_quoted(value)} was read as {form}"


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
