"""An input schema compiled once, by which arguments are checked within a bounded amount of work."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from fractions import Fraction
from typing import Any, TypeAlias

import jsonschema
import msgspec
import referencing
from jsonschema.exceptions import ValidationError

from conductor.tools.schema import check_schema
from conductor.tools.schema_patterns import compile_pattern

MAX_WORK = 50_000  # keywords looked at, about 3 µs each; a long search or message counts as many

Keyword: TypeAlias = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]

_MAX_VIEWS = 64
_REFERENCE_UNITS = 8
_ITEMS_PER_UNIT = 16
_MESSAGE_CHARS_PER_UNIT = 64  # jsonschema writes the whole value into each message


class TooMuchWork(Exception):
    """Arguments that could not be checked within `MAX_WORK`: too large for so involved a schema."""


class Checker:
    """The checks of one schema, which passes `check_schema` first.

    Raises `SchemaError`. Nothing is ever fetched: the registry is empty and references are local.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        check_schema(schema)
        # With $schema in it jsonschema would choose its own class of validator when it follows "#".
        self.schema = {keyword: value for keyword, value in schema.items() if keyword != "$schema"}
        self._validator = _VALIDATOR(self.schema, registry=referencing.Registry())
        resource = referencing.jsonschema.DRAFT202012.create_resource(self.schema)
        self._resolver = referencing.Registry().resolver_with_root(resource)
        self._views: dict[int, list[tuple[Mapping[str, Any], bool]]] = {}

    def errors(self, arguments: Any, at_most: int) -> list[ValidationError]:
        """List what is wrong with the arguments; empty means valid.

        Raises `TooMuchWork`, and RecursionError where schema and arguments together nest too deep.
        """
        reset = _work.set([MAX_WORK])
        try:
            return list(itertools.islice(self._validator.iter_errors(arguments), at_most))
        finally:
            _work.reset(reset)

    def views(self, schema: Any) -> list[tuple[Mapping[str, Any], bool]]:
        """List the schemas that speak of the same value, each with whether it certainly applies.

        They are the schema itself, what it refers to, and the branches of allOf, anyOf and oneOf; those of
        the last two may or may not apply.
        """
        if not isinstance(schema, dict):
            return []
        known = self._views.get(id(schema))  # the schema is a part of ours, and lives as long
        if known is None:
            known = self._views[id(schema)] = list(itertools.islice(self._walk(schema, True), _MAX_VIEWS))
        return known

    def _walk(self, schema: Any, certain: bool) -> Iterator[tuple[Mapping[str, Any], bool]]:
        if not isinstance(schema, dict):
            return
        yield schema, certain
        if "$ref" in schema:
            yield from self._walk(self._resolver.lookup(schema["$ref"]).contents, certain)
        for keyword in ("allOf", "anyOf", "oneOf"):
            for branch in schema.get(keyword, ()):
                yield from self._walk(branch, certain and keyword == "allOf")


_work: ContextVar[list[int]] = ContextVar("work left")


def _spend(units: int) -> None:
    left = _work.get()
    left[0] -= units
    if left[0] < 0:
        raise TooMuchWork


def _metered(keyword: Keyword, units: int) -> Keyword:
    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        size = len(value) if isinstance(value, list | dict) else 0
        size += len(instance) if isinstance(instance, list | dict) else 0
        _spend(units + size // _ITEMS_PER_UNIT)
        for error in keyword(validator, value, instance, schema) or ():
            _spend(len(error.message) // _MESSAGE_CHARS_PER_UNIT)
            yield error

    return check


def _matches(pattern: str, text: str) -> bool:
    compiled = compile_pattern(pattern)
    _spend(compiled.cost(len(text)))
    return compiled.regex.search(text) is not None


def _pattern(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _matches(value, instance):
        yield ValidationError("does not match the pattern")


def _pattern_properties(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        for pattern, below in value.items():
            for name, each in instance.items():
                if _matches(pattern, name):
                    yield from validator.descend(each, below, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, value: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    properties = schema.get("properties", ())
    patterns = schema.get("patternProperties", ())
    for name, each in instance.items():
        if name in properties or any(_matches(pattern, name) for pattern in patterns):
            continue
        if value is False:
            yield ValidationError("unknown name", path=(name,))
        else:
            yield from validator.descend(each, value, path=name)


def _unique_items(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Take linear time, where the library compares each with each when they cannot be sorted."""
    if value and isinstance(instance, list):
        if len({msgspec.json.encode(_comparable(each), order="sorted") for each in instance}) < len(instance):
            yield ValidationError("has the same item more than once")


def _comparable(value: Any) -> Any:
    """Make numbers of equal value equal as text: JSON Schema's 1 and 1.0 are one value."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_comparable(each) for each in value]
    if isinstance(value, dict):
        return {name: _comparable(each) for name, each in value.items()}
    return value


def _multiple_of(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Count in decimal: 0.3 is a multiple of 0.1, although the floats are not."""
    if isinstance(instance, int | float) and not isinstance(instance, bool):
        if (_exact(instance) / _exact(value)).denominator != 1:
            yield ValidationError("is not a multiple")


def _exact(number: int | float) -> Fraction:
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


_OURS: dict[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
    "multipleOf": _multiple_of,
}
_VALIDATOR = jsonschema.validators.extend(  # type: ignore[no-untyped-call]  # its stub has no types
    jsonschema.Draft202012Validator,
    validators={
        name: _metered(keyword, _REFERENCE_UNITS if name == "$ref" else 1)
        for name, keyword in {**jsonschema.Draft202012Validator.VALIDATORS, **_OURS}.items()
    },
)
