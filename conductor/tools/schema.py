"""Input schemas of tools: the language that is accepted, and its form for model services.

Schemas come from devices, MCP servers and files; they are checked when a tool is registered. An accepted
schema is a Draft 2020-12 object schema of at most `MAX_NODES` schemas on `MAX_DEPTH` levels, with its
references followed. References are not remote, and patterns need no backtracking. A recursive schema is
repeated `MAX_RECURSION` times, or less often if that exceeds the other limits; below, every value of its
type is taken.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import jsonschema_rs
import msgspec

# Bytes of a schema, and its objects and lists: each takes some 15 µs to check.
MAX_SCHEMA_BYTES = 64 * 1024
MAX_CONTAINERS = 1024
# Schemas in a schema and their levels, a reference as deep as its target; options of an ``enum`` that
# are objects or lists count too.
MAX_NODES = 200
MAX_DEPTH = 8
MAX_RECURSION = 4
MAX_PATTERN_CHARS = 256
MAX_PATTERNS_KIB = 64
# Values that are checked (25 ns for each schema), and characters times KiB of patterns (0.4 µs).
MAX_VALUES = 5_000
MAX_PATTERN_WORK = 120_000
# Values among which numbers may be large: the library compares these with each other, or divides exactly.
MAX_LARGE_NUMBERS = 300
MASK = "{value}"
"""Stands for the value in messages of the library."""

_LARGE_NUMBER = re.compile(r"\d{16}|\d[eE]\+?\d{2}")
_PATTERN_KIB = (1, 4, 16, 64)
# The names of arguments that every service accepts.
_ACCEPTED = re.compile(r"[a-zA-Z0-9_.-]{1,64}\Z")
_REFUSED_CHARS = re.compile(r"[^a-zA-Z0-9_.-]+")
_NAME_CHARS = 60  # and a number
_ONE = ("additionalProperties", "items", "contains", "not", "if", "then", "else", "propertyNames")
_LIST = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAP = ("properties", "patternProperties", "dependentSchemas")
_PLAIN = frozenset(
    "type enum const multipleOf minimum maximum exclusiveMinimum exclusiveMaximum minLength maxLength "
    "pattern minItems maxItems uniqueItems minContains maxContains minProperties maxProperties required "
    "dependentRequired format title description default".split()
)
_REFERENCES = (b'"$ref"', b'"$defs"', b'"definitions"')
_REFUSED = frozenset(
    "$id $anchor $dynamicRef $dynamicAnchor $recursiveRef $recursiveAnchor $vocabulary $schema "
    "unevaluatedProperties unevaluatedItems dependencies additionalItems".split()
)
"""Keywords with an effect that are not supported. Keywords that are listed nowhere here have no effect."""


class SchemaError(ValueError):
    """An input schema that is not accepted. The message is the reason in one clause."""


@dataclass(slots=True, kw_only=True)
class Schema:
    """A compiled schema.

    ``tree`` has neither references nor keywords without effect; ``is_recursive``: it is a part of an endless
    one. ``patterns_kib`` is the size of its patterns.
    ``is_exact``: it divides or compares numbers exactly. ``size`` is its approximate size in bytes.
    """

    tree: dict[str, Any] = field(default_factory=dict)
    validator: jsonschema_rs.Draft202012Validator = field(init=False)
    nodes: int = 0
    patterns_kib: int = 0
    is_exact: bool = False
    is_recursive: bool = False
    size: int = 0

    def is_valid(self, value: Any) -> bool:
        """Return whether a value that `allows` has admitted is valid."""
        return self.validator.is_valid(value)

    def allows(self, text: str) -> bool:
        """Return whether the check of a value, written as ``text``, is short enough to be made.

        The library holds the interpreter lock during a check.
        """
        values = count_values(text)
        if values > MAX_LARGE_NUMBERS and self.is_exact and _LARGE_NUMBER.search(text):
            return False
        return values <= MAX_VALUES and self.patterns_kib * len(text) <= MAX_PATTERN_WORK

    def count(self, nodes: int = 0, patterns_kib: int = 0) -> None:
        """Count schemas and patterns. Raises `SchemaError` if they are too many."""
        self.nodes += nodes
        self.patterns_kib += patterns_kib
        if self.nodes > MAX_NODES:
            raise SchemaError(f"the input schema has more than {MAX_NODES} schemas")
        if self.patterns_kib > MAX_PATTERNS_KIB:
            raise SchemaError("the schema's patterns are too many or too large")


def count_values(text: str) -> int:
    """Return an upper bound of the number of values in a JSON text."""
    return 1 + text.count(",") + text.count("[") + text.count("{")


def read_schema(schema: object) -> Schema:
    """Compile an input schema. Raises `SchemaError` if it is not acceptable."""
    if not isinstance(schema, dict):
        raise SchemaError("the input schema must be a JSON object")
    if schema.get("type") != "object":
        raise SchemaError('the input schema must have "type": "object"')
    encoded = _encoded(schema)
    root = msgspec.json.decode(encoded)
    root.pop("$schema", None)  # any dialect is read as Draft 2020-12
    try:
        jsonschema_rs.meta.validate(root)  # the code below relies on the shapes of keywords
        result = _read(root)
        result.validator = compile_validator(result.tree)
    except jsonschema_rs.ValidationError as error:
        path = [str(step) for step in error.instance_path]
        reason = _TYPES if path[-1:] == ["type"] else error.message[:200]
        raise SchemaError(f"{_at(path)} is not valid in Draft 2020-12: {reason}") from None
    except SchemaError:
        raise
    except ValueError:  # the library's own limit of levels
        raise SchemaError(_TOO_DEEP) from None
    result.size = 32 * len(encoded) + 2048 * result.nodes + 4096 * result.patterns_kib
    return result


_TYPES = "the types are array, boolean, integer, null, number, object and string"
_TOO_DEEP = f"the schema is nested more than {MAX_DEPTH} levels deep"


def _encoded(schema: dict[Any, Any]) -> bytes:
    try:
        encoded = msgspec.json.encode(schema)
    except RecursionError:
        raise SchemaError(_TOO_DEEP) from None
    except UnicodeEncodeError:
        raise SchemaError("the schema has text that is not Unicode (half of a surrogate pair)") from None
    except TypeError as error:
        raise SchemaError(f"the schema has a value that is not JSON: {error}") from None
    if len(encoded) > MAX_SCHEMA_BYTES:
        raise SchemaError(f"the schema is larger than {MAX_SCHEMA_BYTES} bytes")
    if encoded.count(b"{") + encoded.count(b"[") > MAX_CONTAINERS:
        raise SchemaError(f"the schema has more than {MAX_CONTAINERS} objects and lists")
    return encoded


def _read(root: dict[str, Any], recursion: int = MAX_RECURSION) -> Schema:
    result = Schema()
    try:
        result.tree = _Reader(root, result, recursion).read(root)
    except SchemaError:
        if not result.is_recursive or recursion == 1:
            raise
        return _read(root, recursion - 1)
    return result


class _Reader:
    def __init__(self, root: Mapping[str, Any], result: Schema, recursion: int) -> None:
        self._root = root
        self._result = result
        self._recursion = recursion

    def read(
        self, node: Any, pointer: tuple[str, ...] = (), depth: int = 1, above: tuple[str, ...] = ()
    ) -> Any:
        """Read a schema; ``above`` are the references that were followed to it."""
        self._result.count(nodes=1)
        # A recursion has its own limit.
        deepest = MAX_DEPTH if len(set(above)) == len(above) and "#" not in above else 2 * MAX_DEPTH
        if max(depth, len(above)) > deepest:
            raise SchemaError(_TOO_DEEP)
        if not isinstance(node, dict):
            return node

        def inner(schema: Any, *steps: str) -> Any:
            return self.read(schema, (*pointer, *steps), depth + 1, above)

        tree: dict[str, Any] = {}
        for keyword, value in node.items():
            if keyword in _REFUSED:
                raise SchemaError(f"{_at(pointer, keyword)} is not supported")
            if keyword in _ONE:
                tree[keyword] = inner(value, keyword)
            elif keyword in _LIST:
                tree[keyword] = [inner(item, keyword, str(index)) for index, item in enumerate(value)]
            elif keyword in _MAP:
                tree[keyword] = {name: inner(item, keyword, name) for name, item in value.items()}
            elif keyword in _PLAIN:
                tree[keyword] = value
            self._count(keyword, value, pointer)
        return self._with_target(tree, node["$ref"], pointer, depth, above) if "$ref" in node else tree

    def _with_target(
        self,
        tree: dict[str, Any],
        reference: str,
        pointer: tuple[str, ...],
        depth: int,
        above: tuple[str, ...],
    ) -> Any:
        target = self._target(reference, pointer)
        times = above.count(reference) + (reference == "#")
        self._result.is_recursive = self._result.is_recursive or times > 0
        if times < self._recursion:
            target = self.read(target, pointer, depth, (*above, reference))
        else:
            target = {"type": target["type"]} if isinstance(target, dict) and "type" in target else {}
        if tree.keys() <= {"description"} and isinstance(target, dict):
            return target | tree
        return tree | {"allOf": [*tree.get("allOf", ()), target]}

    def _count(self, keyword: str, value: Any, pointer: tuple[str, ...]) -> None:
        match keyword:
            case "enum" if not value:
                raise SchemaError(f"{_at(pointer, keyword)} must not be empty")
            case "enum":
                self._result.count(nodes=sum(isinstance(option, list | dict) for option in value))
            case "pattern":
                self._result.count(patterns_kib=pattern_kib(value))
            case "patternProperties":
                self._result.count(patterns_kib=sum(map(pattern_kib, value)))
            case "multipleOf" | "uniqueItems":
                self._result.is_exact = True

    def _target(self, reference: str, pointer: tuple[str, ...]) -> Any:
        try:
            return _resolve(self._root, reference)
        except (LookupError, StopIteration, TypeError, ValueError):
            raise SchemaError(
                f"{_at(pointer, '$ref')} must point to a schema inside this schema, by #/..."
            ) from None


def _resolve(root: Any, reference: str) -> Any:
    # Only by keywords that hold schemas: of other values, such as a default, no shape is known.
    start, *parts = unquote(reference).split("/")
    if start != "#":
        raise LookupError
    steps = iter(part.replace("~1", "/").replace("~0", "~") for part in parts)
    for keyword in steps:
        if keyword in _ONE:
            root = root[keyword]
        elif keyword in (*_LIST, *_MAP, "$defs", "definitions"):
            holder, step = root[keyword], next(steps)
            root = holder[int(step) if isinstance(holder, list) else step]
        else:
            raise LookupError
    return root


@lru_cache(maxsize=1024)
def pattern_kib(pattern: str) -> int:
    """Compile a pattern; returns its size in KiB. Raises `SchemaError`.

    Matching is linear in the text and in the compiled size: `(?:ab){1500}c` takes 30 µs a character.
    """
    if len(pattern) <= MAX_PATTERN_CHARS:
        for kib in _PATTERN_KIB:
            try:
                compile_validator({"pattern": pattern}, kib)
            except jsonschema_rs.ValidationError:
                continue
            return kib
    raise SchemaError(
        f"the pattern {pattern[:80]!r} is not accepted: it may have {MAX_PATTERN_CHARS} characters, no "
        "look-around, no back-reference and no large counted repeat (use maxLength)"
    )


def linear_search(pattern: str) -> Callable[[str], bool]:
    """Compile a pattern to a test of a text, at most 10 µs a character. Raises `SchemaError`."""
    return compile_validator({"pattern": pattern}, pattern_kib(pattern)).is_valid


def compile_validator(schema: Any, kib: int = _PATTERN_KIB[-1]) -> jsonschema_rs.Draft202012Validator:
    """Compile a schema, or a part of one, that `read_schema` has accepted."""
    limits = jsonschema_rs.RegexOptions(size_limit=kib * 1024, dfa_size_limit=64 * 1024)
    # Offline: nothing is fetched. Masked: a message would contain the whole value.
    return jsonschema_rs.Draft202012Validator(schema, pattern_options=limits, offline=True, mask=MASK)


def model_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert a schema for a model service: Anthropic rejects anyOf, oneOf and allOf at the top level.

    The properties of branches move up, an argument that all branches require stays required, and "one of
    these is required" becomes a sentence of the description. References are followed, and arguments get names
    that services accept (`own_names`). `validate` enforces the original schema. Raises `SchemaError`.
    """
    schema = _without_rules(_without_references(schema))
    accepted = {own: name for name, own in _own_names(schema).items()}
    if not accepted:
        return schema
    properties = {accepted.get(name, name): value for name, value in schema["properties"].items()}
    required = [accepted.get(name, name) for name in schema.get("required", ())]
    return {**schema, "properties": properties} | ({"required": required} if required else {})


def own_names(schema: Mapping[str, Any]) -> Mapping[str, str]:
    """Map the names of arguments that `model_schema` gives to the tool's own, such as ``$filter``."""
    return _own_names(_without_rules(_without_references(schema)))


def _own_names(schema: Mapping[str, Any]) -> dict[str, str]:
    properties = list(schema.get("properties", ()))
    names = {name for name in properties if _ACCEPTED.match(name)}
    own: dict[str, str] = {}
    for name in properties:
        if name in names:
            continue
        plain = _REFUSED_CHARS.sub("_", name).strip("_")[:_NAME_CHARS] or "argument"
        numbered = (f"{plain}_{number}" for number in itertools.count(2))
        chosen = next(candidate for candidate in itertools.chain([plain], numbered) if candidate not in names)
        names.add(chosen)
        own[chosen] = name
    return own


def _without_references(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    encoded = msgspec.json.encode(schema)
    return read_schema(schema).tree if any(name in encoded for name in _REFERENCES) else schema


def _without_rules(schema: Mapping[str, Any]) -> Mapping[str, Any]:
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


def _at(pointer: Sequence[str], keyword: str = "") -> str:
    return ".".join(filter(None, [*pointer, keyword]))[:200] or "the input schema"
