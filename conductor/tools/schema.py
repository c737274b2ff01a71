"""Which input schemas a tool may declare, and the form of a schema that every model service takes.

Schemas come from devices, MCP servers and files, so they are checked when a tool is registered. What passes
is a Draft 2020-12 object schema that says all it has to say by itself: nothing is fetched, no reference can
loop, no pattern can hold the process.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import unquote

import msgspec

from conductor.tools.schema_patterns import PatternError, compile_pattern

MAX_SCHEMA_BYTES = 64 * 1024
MAX_SCHEMA_DEPTH = 32
MAX_REFERENCE_DEPTH = 64

_PROPERTY_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}\Z")

Path: TypeAlias = tuple[str | int, ...]

# `jsonschema.Draft202012Validator.check_schema` would tell the same in 3 ms a schema; this takes some 50 µs,
# which matters when a phone declares a hundred tools as it connects.
_TYPES = frozenset(["array", "boolean", "integer", "null", "number", "object", "string"])
_ONE = frozenset(
    ["additionalProperties", "items", "contains", "not", "if", "then", "else", "propertyNames"]
)  # fmt: skip
_LIST = frozenset(["allOf", "anyOf", "oneOf", "prefixItems"])
_MAP = frozenset(["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"])
_SAME_VALUE = frozenset(["allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "$ref"])
_DIALECTS = frozenset(
    [
        "https://json-schema.org/draft/2020-12/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "http://json-schema.org/draft-07/schema",
    ]
)
_REFUSED = {
    **dict.fromkeys(["$id", "$anchor"], "references must be JSON pointers such as #/$defs/name"),
    **dict.fromkeys(["$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"], "use $ref"),
    **dict.fromkeys(["unevaluatedProperties", "unevaluatedItems"], "use additionalProperties or items"),
    "$vocabulary": "the vocabulary is that of Draft 2020-12",
    "dependencies": "use dependentRequired or dependentSchemas",
    "additionalItems": "use prefixItems and items",
}


class SchemaError(ValueError):
    """An input schema that is not accepted; the message says why, in one clause."""


def check_schema(schema: object) -> None:
    """Check that a value is an input schema that can be used safely. Raises `SchemaError`.

    At most 64 KiB encoded and 32 levels deep; ``type`` is ``object``, as MCP asks; references point into the
    schema itself and never back to the value they came from; patterns pass `compile_pattern`.
    """
    _check_extent(schema)
    if not isinstance(schema, dict):
        raise SchemaError("the input schema must be a JSON object")
    if schema.get("type") != "object":
        raise SchemaError('the input schema must have "type": "object"')
    if len(msgspec.json.encode(schema)) > MAX_SCHEMA_BYTES:
        raise SchemaError(f"the schema is larger than {MAX_SCHEMA_BYTES} bytes")
    _check_property_names(schema.get("properties"))
    places: dict[Path, Any] = {}
    waiting: list[tuple[Path, Any]] = [((), schema)]
    while waiting:
        path, place = waiting.pop()
        places[path] = place
        if isinstance(place, dict):
            _check_keywords(place, path)
            waiting.extend((path + step, below) for step, below in _below(place))
        elif not isinstance(place, bool):
            raise SchemaError(f"{_at(path)} must be a schema: an object, true or false")
    _check_references(places)


def _check_extent(schema: object) -> None:
    """Refuse what is too deep, too large or no JSON, before anything recursive looks at it."""
    waiting: list[tuple[int, object]] = [(1, schema)]
    seen = 0
    while waiting:
        depth, value = waiting.pop()
        seen += 1
        if seen > MAX_SCHEMA_BYTES:  # each value takes a byte at least
            raise SchemaError(f"the schema is larger than {MAX_SCHEMA_BYTES} bytes")
        if isinstance(value, dict | list) and depth > MAX_SCHEMA_DEPTH:
            raise SchemaError(f"the schema is nested more than {MAX_SCHEMA_DEPTH} levels deep")
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise SchemaError("the schema has a key that is no text")
                _check_text(key)
            waiting.extend((depth + 1, below) for below in value.values())
        elif isinstance(value, list):
            waiting.extend((depth + 1, below) for below in value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise SchemaError("the schema has a number that is not finite")
        elif isinstance(value, str):
            _check_text(value)
        elif value is not None and not isinstance(value, bool | int | float):
            raise SchemaError(f"the schema has a value that is no JSON: {type(value).__name__}")


def _check_property_names(properties: object) -> None:
    """Refuse names of arguments that Anthropic refuses, together with every other tool of the request."""
    for name in properties if isinstance(properties, dict) else ():
        if not _PROPERTY_NAME.match(name):
            raise SchemaError(f"the argument's name {name[:80]!r} must be 1 to 64 of A-Z a-z 0-9 _ . -")


def _check_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise SchemaError("the schema has text that is no Unicode (half of a surrogate pair)") from None


def _below(schema: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    """List the schemas inside a schema, each with the way there."""
    for keyword, value in schema.items():
        if keyword in _ONE:
            yield (keyword,), value
        elif keyword in _LIST:
            yield from (((keyword, index), each) for index, each in enumerate(value))
        elif keyword in _MAP:
            yield from (((keyword, name), each) for name, each in value.items())


def _check_keywords(schema: Mapping[str, Any], path: Path) -> None:
    for keyword, value in schema.items():
        if keyword in _REFUSED:
            raise SchemaError(f"{_at(path, keyword)} is not supported: {_REFUSED[keyword]}")
        if keyword == "$schema" and (path or not _is_text(value) or value.rstrip("#") not in _DIALECTS):
            raise SchemaError(f"{_at(path, keyword)} must name Draft 2020-12, at the top of the schema")
        shape = _SHAPES.get(keyword)
        if shape is not None and not shape[0](value):
            raise SchemaError(f"{_at(path, keyword)} must be {shape[1]}")
    patterns = [schema["pattern"]] if "pattern" in schema else []
    for pattern in [*patterns, *schema.get("patternProperties", ())]:
        try:
            compile_pattern(pattern)
        except PatternError as error:
            raise SchemaError(f"the pattern {pattern[:80]!r} {error}") from None


def _check_references(places: Mapping[Path, Any]) -> None:
    """Refuse references that lead nowhere, and those by which a value would be checked for ever.

    A tree or a list may refer to its own schema below ``properties`` or ``items``, since values end. A schema
    that refers to itself for the same value (``$ref``, ``allOf``, ``not`` …) never ends. Kahn's algorithm.
    """
    pointers = {_pointer(path): path for path in places}
    onward: dict[Path, list[Path]] = {}
    arrivals = dict.fromkeys(places, 0)
    for path, place in places.items():
        if not isinstance(place, dict):
            continue
        targets = [path + step for step, _ in _below(place) if step[0] in _SAME_VALUE]
        if "$ref" in place:
            target = pointers.get(unquote(place["$ref"]))
            if target is None:
                raise SchemaError(f"{_at(path, '$ref')} must point to a schema inside this schema, by #/...")
            targets.append(target)
        onward[path] = targets
        for target in targets:
            arrivals[target] += 1
    depth = dict.fromkeys((path for path, count in arrivals.items() if count == 0), 1)
    waiting = list(depth)
    while waiting:
        path = waiting.pop()
        for target in onward.get(path, ()):
            depth[target] = max(depth.get(target, 0), depth[path] + 1)
            arrivals[target] -= 1
            if arrivals[target] == 0:
                waiting.append(target)
    if any(arrivals.values()):
        raise SchemaError("the schema has references that go round in a circle for one and the same value")
    if max(depth.values()) > MAX_REFERENCE_DEPTH:
        raise SchemaError(f"the schema has references more than {MAX_REFERENCE_DEPTH} deep")


def model_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give the schema as a model service takes it: Anthropic refuses anyOf, oneOf and allOf at the top.

    Their properties move up, what all branches require stays required, and a rule such as "one of these is
    required" becomes a sentence of the schema's description. The rule itself is kept by `validate`, which
    uses the whole schema. A schema without such keywords is returned as it is.
    """
    rules = [keyword for keyword in ("allOf", "anyOf", "oneOf", "not") if keyword in schema]
    if not rules:
        return schema
    plain = {keyword: value for keyword, value in schema.items() if keyword not in rules}
    properties: dict[str, Any] = {}
    required = set(schema.get("required", ()))
    sentences = [schema["description"]] if schema.get("description") else []
    for keyword in rules:
        if keyword == "not":
            continue
        branches = [branch if isinstance(branch, dict) else {} for branch in schema[keyword]]
        for branch in branches:
            properties |= branch.get("properties", {})
        needs = [set(branch.get("required", ())) for branch in branches]
        required |= set().union(*needs) if keyword == "allOf" else set.intersection(*needs)
        names = required_choice(schema[keyword])
        if names and keyword != "allOf":
            sentences.append(f"{'Needs' if keyword == 'anyOf' else 'Needs exactly one of:'} {names}.")
    if properties or "properties" in plain:
        plain["properties"] = properties | plain.get("properties", {})
    if required:
        plain["required"] = sorted(required)
    if sentences:
        plain["description"] = " ".join(sentences)
    return plain


def required_choice(branches: Sequence[Any]) -> str | None:
    """Say in words the choice that branches of nothing but ``required`` leave ("a, b or c"), else None."""
    choices = []
    for branch in branches:
        if not isinstance(branch, dict) or not branch.get("required") or branch.keys() - _CHOICE_KEYWORDS:
            return None
        choices.append(" and ".join(branch["required"]))
    return " or ".join([", ".join(choices[:-1]), choices[-1]] if len(choices) > 1 else choices) or None


_CHOICE_KEYWORDS = frozenset(["required", "title", "description", "$comment"])


def _at(path: Path, keyword: str = "") -> str:
    """Name a place in the schema, for people."""
    return ".".join(map(str, [*path, *([keyword] if keyword else [])]))[:200] or "the input schema"


def _pointer(path: Path) -> str:
    """Give a place as a JSON pointer in a fragment (RFC 6901)."""
    return "#" + "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_map(value: Any) -> bool:
    return isinstance(value, dict)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value)) and len(set(value)) == len(value)


def _are_types(value: Any) -> bool:
    if _is_text(value):
        return value in _TYPES
    return _are_names(value) and bool(value) and _TYPES.issuperset(value)


_Shape: TypeAlias = tuple[Callable[[Any], bool], str]
_SHAPES: dict[str, _Shape] = {
    "type": (_are_types, "a type's name or a list of them: " + ", ".join(sorted(_TYPES))),
    "required": (_are_names, "a list of different names"),
    "enum": (lambda value: isinstance(value, list) and bool(value), "a list with something in it"),
    "examples": (lambda value: isinstance(value, list), "a list"),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    "dependentRequired": (
        lambda value: _is_map(value) and all(map(_are_names, value.values())),
        "an object of lists of names",
    ),
    **dict.fromkeys(
        _LIST, (lambda value: isinstance(value, list) and bool(value), "a list with schemas in it")
    ),
    **dict.fromkeys(_MAP, (_is_map, "an object of schemas")),
    **dict.fromkeys(
        ["$ref", "$comment", "title", "description", "format", "pattern"]
        + ["contentEncoding", "contentMediaType"],
        (_is_text, "text"),
    ),
    **dict.fromkeys(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"], (_is_number, "a number")),
    **dict.fromkeys(
        ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"]
        + ["minContains", "maxContains"],
        (_is_count, "a count"),
    ),
    **dict.fromkeys(
        ["uniqueItems", "readOnly", "writeOnly", "deprecated"],
        (lambda value: isinstance(value, bool), "true or false"),
    ),
}
