"""Checks of arguments against a compiled input schema, in a bounded time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec
from jsonschema_rs import ValidationError

from conductor.tools.base import ToolSpec
from conductor.tools.schema import SAME_VALUE, compile_schema, pattern_kib

# Estimated microseconds to check the arguments of one call.
MAX_WORK_US = 10_000
# An upper bound below this needs no exact count.
_CHEAP_US = 3_000
# Estimated costs in microseconds: a value against one schema, visiting a value, each byte of a text for each
# KiB of a pattern.
_CHECK_US = 0.5
_VISIT_US = 4.0
_MULTIPLE_US = 70.0  # of numbers whose exponents are far apart
_PATTERN_US = 0.4
_ERROR_US = 12.0
_ERROR_VALUE_US = 0.7  # each error copies its value
_LONG_NUMBER = re.compile(r"\d{16}")


class TooMuchWork(Exception):
    """Arguments that cannot be checked in time: too large for a schema of this size."""


class CheckBudget:
    """The time for the checks of one call: estimated in microseconds, not measured."""

    def __init__(self, microseconds: float = MAX_WORK_US) -> None:
        self._remaining_us = microseconds

    def spend(self, microseconds: float) -> None:
        """Spend some of it. Raises `TooMuchWork` if the budget is exhausted."""
        self._remaining_us -= microseconds
        if self._remaining_us < 0:
            raise TooMuchWork


class Checker:
    """The checks of one schema. Raises `SchemaError`; ``size`` is its approximate size in bytes.

    The library holds the interpreter lock, some schemas take minutes for a small value, and listing errors
    takes far longer than detecting one. So the schemas that apply to each value are counted first, unless
    there are few.
    """

    def __init__(self, schema: object) -> None:
        self._compiled = compile_schema(schema)
        self.schema, self.size = self._compiled.schema, self._compiled.size

    def errors(self, arguments: Any, text: str, work: CheckBudget) -> list[ValidationError]:
        """List the errors of arguments, decoded from ``text``. Raises `TooMuchWork`."""
        most = self._compiled.parts * len(text) * _CHECK_US
        count = None
        if most > _CHEAP_US or not self._compiled.linear:
            count = _Count(self, work, text)
            count.visit(arguments, [self.schema])
        if self._compiled.validator.is_valid(arguments):
            return []
        if count is None:
            count = _Count(self, work, text)
            count.visit(arguments, [self.schema])
        work.spend(count.errors_us)
        return list(self._compiled.validator.iter_errors(arguments))

    def resolve(self, reference: str) -> Any:
        """Return the target of a ``$ref``."""
        target: Any = self.schema
        for step in unquote(reference).split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            target = target[int(step) if isinstance(target, list) else step]
        return target


def _multiple_us(value: Any, view: dict[str, Any]) -> float:
    # The library divides exactly, by fractions of hundreds of digits where exponents are far apart.
    return 0.5 if 1e-9 < abs(view["multipleOf"]) and abs(value or 0) < 1e15 else _MULTIPLE_US


class _Count:
    # Estimates the work of a check, and of listing its errors, before it runs.
    def __init__(self, checker: Checker, work: CheckBudget, text: str) -> None:
        self._checker = checker
        self._work = work
        self._has_long_numbers = _LONG_NUMBER.search(text) is not None
        self.errors_us = 0.0

    def visit(self, value: Any, schemas: Sequence[Any]) -> float:
        views = list(self._views(schemas))
        self._work.spend(_VISIT_US + len(views) * _CHECK_US)
        if not views:
            return len(msgspec.json.encode(value)) / 4
        match value:
            case str():
                size = self._text(value, views)
            case list():
                size = self._list(value, views)
            case dict():
                size = self._object(value, views)
            case _:
                size = 1.0
                self._work.spend(sum(_multiple_us(value, view) for view in views if "multipleOf" in view))
        each_us = _ERROR_US + _ERROR_VALUE_US * size
        for view in views:
            options = len(view.get("enum", ()))
            if isinstance(value, list | dict):
                self._work.spend(options * _CHECK_US)
            self.errors_us += each_us + options * _CHECK_US
        return size

    def _views(self, schemas: Sequence[Any]) -> Iterator[dict[str, Any]]:
        stack = list(schemas)
        while stack:
            self._work.spend(_VISIT_US)
            schema = stack.pop()
            if isinstance(schema, bool):
                yield {}
                continue
            yield schema
            if "$ref" in schema:
                stack.append(self._checker.resolve(schema["$ref"]))
            for keyword in SAME_VALUE & schema.keys():
                below = schema[keyword]
                if keyword == "dependentSchemas":
                    stack.extend(below.values())
                else:
                    stack.extend(below if isinstance(below, list) else [below])

    def _text(self, text: str, views: Sequence[dict[str, Any]]) -> float:
        length = len(text) if text.isascii() else 4 * len(text)
        for view in views:
            if "pattern" in view:
                self._work.spend(length * pattern_kib(view["pattern"]) * _PATTERN_US)
        return 1 + length / 500

    def _list(self, items: list[Any], views: Sequence[dict[str, Any]]) -> float:
        first = [view["prefixItems"] for view in views if "prefixItems" in view]
        item_schemas = [
            view[keyword] for view in views for keyword in ("items", "contains") if keyword in view
        ]
        # Long numbers are hashed as floats and collide: each is compared with each.
        compared_us = len(items) if self._has_long_numbers else 0.2
        self._work.spend(sum(len(items) * compared_us for view in views if view.get("uniqueItems")))
        if not (first or item_schemas):
            return len(msgspec.json.encode(items)) / 4
        size = 1.0
        for index, item in enumerate(items):
            size += self.visit(
                item, [*(schemas[index] for schemas in first if index < len(schemas)), *item_schemas]
            )
        return size

    def _object(self, value: dict[str, Any], views: Sequence[dict[str, Any]]) -> float:
        self._work.spend(len(views) * len(value) * _CHECK_US)
        size = 1.0
        for name, item in value.items():
            below = []
            for view in views:
                if name in view.get("properties", ()):
                    below.append(view["properties"][name])
                elif "additionalProperties" in view:
                    below.append(view["additionalProperties"])
                for pattern, schema in view.get("patternProperties", {}).items():
                    self._text(name, [{"pattern": pattern}])
                    below.append(schema)
            size += self.visit(item, below)
        names = [view["propertyNames"] for view in views if "propertyNames" in view]
        each_us = _ERROR_US + _ERROR_VALUE_US * size
        for name in value if names else ():
            self.visit(name, names)
            self.errors_us += each_us
        for view in views:
            dependent = view.get("dependentRequired", {})
            for needed_names in [
                view.get("required", ()),
                *(dependent[name] for name in dependent.keys() & value),
            ]:
                self._work.spend(len(needed_names) * 0.1)
                self.errors_us += sum(name not in value for name in needed_names) * each_us
        return size


class CheckerCache:
    """Compiled schemas, since many sockets declare the same tools. The oldest is dropped first."""

    def __init__(self, max_count: int = 1024, max_bytes: int = 64 * 1024 * 1024) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._checkers: dict[str, Checker] = {}
        self.size = 0

    def get(self, spec: ToolSpec) -> Checker:
        """Return the checker of a tool's schema. Raises `SchemaError`."""
        try:
            key = spec.fingerprint
        except (RecursionError, TypeError, ValueError):
            return Checker(spec.input_schema)  # it raises the reason
        checker = self._checkers.get(key)
        if checker is None:
            checker = self._checkers[key] = Checker(spec.input_schema)
            self.size += checker.size
            while len(self._checkers) > self._max_count or self.size > self._max_bytes:
                self.size -= self._checkers.pop(next(iter(self._checkers))).size
        return checker


checkers = CheckerCache()
