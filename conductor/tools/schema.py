"""Validation of tools' input schemas, and their conversion for model services.

Schemas come from devices, MCP servers and files; they are checked when a tool is registered. An accepted
schema is a self-contained Draft 2020-12 object schema: no remote references, no reference loops, and no
pattern that needs backtracking.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple
from urllib.parse import unquote

import jsonschema_rs
import msgspec

# Bytes and depth of a schema, checked before any recursion.
MAX_SCHEMA_BYTES = 64 * 1024
MAX_SCHEMA_DEPTH = 32
# Objects and lists in a schema; each takes some 15 µs to check and to compile.
MAX_CONTAINERS = 1024
MAX_REFERENCE_DEPTH = 64
# Schemas that apply to one value, including references.
MAX_SAME_VALUE = 512
MAX_PATTERN_CHARS = 256
MAX_PATTERNS_KIB = 256

SAME_VALUE = frozenset(["allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"])
"""The keywords whose schemas apply to the value itself, not to a part of it."""

_TOO_DEEP = f"the schema is nested more than {MAX_SCHEMA_DEPTH} levels deep"
_TYPES = "the types are array, boolean, integer, null, number, object and string"
_PATTERN_KIB = (4, 16, 64)
_PROPERTY_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}\Z")
_ONE = ("additionalProperties", "items", "contains", "not", "if", "then", "else", "propertyNames")
_LIST = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAP = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_DIALECTS = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
)
_REFUSED = {
    **dict.fromkeys(["$id", "$anchor"], "references must be JSON pointers such as #/$defs/name"),
    **dict.fromkeys(["$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"], "use $ref"),
    **dict.fromkeys(["unevaluatedProperties", "unevaluatedItems"], "use additionalProperties or items"),
    "$vocabulary": "the vocabulary is that of Draft 2020-12",
    "$schema": "only the whole schema may name a dialect",
    "dependencies": "use dependentRequired or dependentSchemas",
    "additionalItems": "use prefixItems and items",
}


class SchemaError(ValueError):
    """An input schema that is not accepted. The message is the reason in one clause."""


class Compiled(NamedTuple):
    """A compiled schema.

    ``size`` is its approximate size in bytes, ``parts`` the number of schemas, objects and lists in it. If
    ``linear``, validation takes at most ``parts`` times the length of the JSON text in steps.
    """

    schema: dict[str, Any]
    validator: jsonschema_rs.Draft202012Validator
    size: int
    parts: int
    linear: bool


def compile_schema(schema: Any) -> Compiled:
    """Check that a value is an acceptable input schema and compile it. Raises `SchemaError`.

    At most 64 KiB encoded and 32 levels deep; ``type`` is ``object``, as MCP requires; references stay
    within the schema and do not loop; patterns pass `pattern_kib`.
    """
    size, parts = check_extent(schema)
    plain = dict(schema)
    dialect = plain.pop("$schema", _DIALECTS[0])
    if not isinstance(dialect, str) or dialect.rstrip("#") not in _DIALECTS:
        raise SchemaError("$schema must name Draft 2020-12")
    try:
        jsonschema_rs.meta.validate(plain)  # the code below relies on the shapes of keywords
        nodes = _nodes(plain)
        kib = _check_keywords(nodes)
        _check_references(nodes)
        validator = _validator(plain, _PATTERN_KIB[-1])
    except jsonschema_rs.ValidationError as error:
        path = [str(step) for step in error.instance_path]
        reason = _TYPES if path[-1:] == ["type"] else error.message[:200]
        raise SchemaError(f"{_at('/'.join(path))} is not valid in Draft 2020-12: {reason}") from None
    keywords = {keyword for node in nodes.values() if isinstance(node, dict) for keyword in node}
    parts += len(nodes)
    linear = not kib and keywords.isdisjoint(["$ref", "uniqueItems"])
    return Compiled(plain, validator, 32 * size + 2048 * parts + 4096 * kib, parts, linear)


def check_schema(schema: object) -> None:
    """Check that a value is an acceptable input schema. Raises `SchemaError`."""
    compile_schema(schema)


@lru_cache(maxsize=1024)
def pattern_kib(pattern: str) -> int:
    """Compile a pattern; returns its size in KiB. Raises `SchemaError`.

    Matching is linear in the text and in the compiled size: `(?:ab){1500}c` takes 30 µs a character.
    """
    if len(pattern) <= MAX_PATTERN_CHARS:
        for kib in _PATTERN_KIB:
            try:
                _validator({"pattern": pattern}, kib)
            except jsonschema_rs.ValidationError:
                continue
            return kib
    raise SchemaError(
        f"the pattern {pattern[:80]!r} is not accepted: it may have {MAX_PATTERN_CHARS} characters, no "
        "look-around, no back-reference and no large counted repeat (use maxLength)"
    )


def linear_search(pattern: str) -> Callable[[str], bool]:
    """Compile a pattern to a test of a text, at most 10 µs a character. Raises `SchemaError`."""
    return _validator({"pattern": pattern}, pattern_kib(pattern)).is_valid


def _validator(schema: dict[str, Any], kib: int) -> jsonschema_rs.Draft202012Validator:
    limits = jsonschema_rs.RegexOptions(size_limit=kib * 1024, dfa_size_limit=64 * 1024)
    # Offline: nothing is fetched. Masked: a message would contain the whole value.
    return jsonschema_rs.Draft202012Validator(schema, pattern_options=limits, offline=True, mask="the value")


def check_extent(schema: object) -> tuple[int, int]:
    """Refuse a schema that is not JSON, not an object, too large or too deep, before any recursion.

    Returns its encoded size in bytes and its number of objects and lists. Raises `SchemaError`.
    """
    if not isinstance(schema, dict):
        raise SchemaError("the input schema must be a JSON object")
    if schema.get("type") != "object":
        raise SchemaError('the input schema must have "type": "object"')
    size = _encoded_size(schema)
    waiting: list[tuple[int, Any]] = [(1, schema)]
    for count, (depth, value) in enumerate(waiting):  # the list grows
        if depth > MAX_SCHEMA_DEPTH:
            raise SchemaError(_TOO_DEEP)
        if count >= MAX_CONTAINERS:
            raise SchemaError(f"the schema has more than {MAX_CONTAINERS} objects and lists")
        if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
            raise SchemaError("the schema has a key that is not text")
        for item in value.values() if isinstance(value, dict) else value:
            if isinstance(item, dict | list):
                waiting.append((depth + 1, item))
            elif isinstance(item, float) and not math.isfinite(item):
                raise SchemaError("the schema has a number that is not finite")
    return size, len(waiting)


def _encoded_size(schema: dict[str, Any]) -> int:
    try:
        size = len(msgspec.json.encode(schema))
    except RecursionError:
        raise SchemaError(_TOO_DEEP) from None
    except UnicodeEncodeError:
        raise SchemaError("the schema has text that is not Unicode (half of a surrogate pair)") from None
    except TypeError as error:
        raise SchemaError(f"the schema has a value that is not JSON: {error}") from None
    if size > MAX_SCHEMA_BYTES:
        raise SchemaError(f"the schema is larger than {MAX_SCHEMA_BYTES} bytes")
    return size


def _nodes(schema: dict[str, Any]) -> dict[str, Any]:
    nodes: dict[str, Any] = {}
    stack: list[tuple[str, Any]] = [("#", schema)]
    while stack:
        pointer, node = stack.pop()
        nodes[pointer] = node
        if isinstance(node, dict):
            stack.extend((f"{pointer}/{step}", below) for step, below in _below(node))
    return nodes


def _check_keywords(nodes: Mapping[str, Any]) -> int:
    for name in nodes["#"].get("properties", ()):
        # Anthropic rejects the whole request for any other name.
        if not _PROPERTY_NAME.match(name):
            raise SchemaError(f"the argument's name {name[:80]!r} must be 1 to 64 of A-Z a-z 0-9 _ . -")
    patterns_kib = 0
    for pointer, node in nodes.items():
        if not isinstance(node, dict):
            continue
        for keyword in _REFUSED.keys() & node.keys():
            raise SchemaError(f"{_at(pointer, keyword)} is not supported: {_REFUSED[keyword]}")
        if node.get("enum") == []:
            raise SchemaError(f"{_at(pointer, 'enum')} must not be empty")
        patterns = [node["pattern"]] if "pattern" in node else []
        for pattern in [*patterns, *node.get("patternProperties", ())]:
            patterns_kib += pattern_kib(pattern)
            if patterns_kib > MAX_PATTERNS_KIB:
                raise SchemaError("the schema's patterns are too many or too large")
    return patterns_kib


def _below(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for keyword, value in schema.items():
        if keyword in _ONE:
            yield keyword, value
        elif keyword in _LIST:
            yield from ((f"{keyword}/{index}", node) for index, node in enumerate(value))
        elif keyword in _MAP:
            for name, node in value.items():
                yield f"{keyword}/{name.replace('~', '~0').replace('/', '~1')}", node


def _check_references(nodes: Mapping[str, Any]) -> None:
    # A tree or a list may refer to its own schema below ``properties`` or ``items``: values are finite. A
    # schema that refers to itself for the same value (``$ref``, ``allOf``, ``not`` …) is endless.
    onward = {pointer: _same_value(pointer, node) for pointer, node in nodes.items()}
    for pointer, targets in onward.items():
        if not all(target in nodes for target in targets):
            raise SchemaError(f"{_at(pointer, '$ref')} must point to a schema inside this schema, by #/...")
    try:
        order = list(TopologicalSorter(onward).static_order())
    except CycleError:
        raise SchemaError("the schema has references that loop for the same value") from None
    depth: dict[str, int] = {}
    count: dict[str, int] = {}
    for pointer in order:
        depth[pointer] = 1 + max((depth[target] for target in onward[pointer]), default=0)
        count[pointer] = 1 + sum(count[target] for target in onward[pointer])
        if depth[pointer] > MAX_REFERENCE_DEPTH:
            raise SchemaError(f"the schema has references more than {MAX_REFERENCE_DEPTH} deep")
        if count[pointer] > MAX_SAME_VALUE:
            raise SchemaError(f"{_at(pointer)} applies more than {MAX_SAME_VALUE} schemas to one value")


def _same_value(pointer: str, node: Any) -> list[str]:
    if not isinstance(node, dict):
        return []
    targets = [f"{pointer}/{step}" for step, _ in _below(node) if step.split("/")[0] in SAME_VALUE]
    return [*targets, unquote(node["$ref"])] if "$ref" in node else targets


def model_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert a schema for a model service: Anthropic rejects anyOf, oneOf and allOf at the top level.

    The properties of branches move up, an argument that all branches require stays required, and "one of
    these is required" becomes a sentence of the description. `validate` enforces the original schema. A
    schema without these keywords is returned unchanged.
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
    """Describe branches that have only ``required`` ("a, b or c"); None for others."""
    choices = []
    for branch in branches:
        if not isinstance(branch, dict) or not branch.get("required") or branch.keys() - _CHOICE_KEYWORDS:
            return None
        choices.append(" and ".join(branch["required"]))
    return " or ".join([", ".join(choices[:-1]), choices[-1]] if len(choices) > 1 else choices) or None


_CHOICE_KEYWORDS = frozenset(["required", "title", "description", "$comment"])


def _at(pointer: str, keyword: str = "") -> str:
    return (
        ".".join(filter(None, [*pointer.removeprefix("#").split("/"), keyword]))[:200] or "the input schema"
    )
