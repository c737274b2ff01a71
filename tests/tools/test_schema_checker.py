"""The compiled schema: local references, ECMA's patterns, exact decimals, bounded work."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conductor.tools.base import ToolSpec
from conductor.tools.schema import SchemaError
from conductor.tools.schema_checker import CheckBudget, Checker, CheckerCache, TooMuchWork


def fits(schema: dict[str, Any], value: Any) -> bool:
    checker, arguments = Checker({"type": "object", "properties": {"v": schema}}), {"v": value}
    return not checker.errors(arguments, msgspec.json.encode(arguments).decode(), CheckBudget())


def test_a_schema_that_is_not_sound_is_not_compiled() -> None:
    with pytest.raises(SchemaError):
        Checker({"type": "object", "$ref": "https://example.org/schema"})


@pytest.mark.parametrize(
    "dialect", ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"]
)
def test_a_dialect_named_at_the_top_changes_nothing_below_a_reference(dialect: str) -> None:
    tree = {"below": {"$ref": "#"}, "pair": {"prefixItems": [{"type": "integer"}]}}
    checker = Checker({"$schema": dialect, "type": "object", "properties": tree})
    assert not checker.errors({"below": {"pair": [1]}}, "", CheckBudget())
    assert checker.errors({"below": {"pair": ["x"]}}, "", CheckBudget())


def test_decimals_are_counted_exactly() -> None:
    assert fits({"multipleOf": 0.1}, 0.3)
    assert fits({"multipleOf": 0.01}, 10**400)
    assert not fits({"multipleOf": 0.1}, 0.35)
    assert fits({"multipleOf": 2}, 4.0)
    assert fits({"multipleOf": 2}, True)  # not a number


@pytest.mark.parametrize(
    ("items", "unique"),
    [([1, True], True), ([1, 1.0], False), ([{"a": 1}, {"a": 1.0}], False), ([[1], "x", None], True)],
)
def test_items_are_the_same_when_their_values_are(items: list[Any], unique: bool) -> None:
    assert fits({"uniqueItems": True}, items) is unique


def test_names_that_match_a_pattern_are_no_additional_ones() -> None:
    schema = {"patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False}
    assert fits(schema, {"x-a": 1})
    assert not fits(schema, {"x-a": "1"})
    assert not fits(schema, {"y": 1})
    assert fits({"additionalProperties": {"type": "integer"}}, {"y": 1})
    assert not fits({"additionalProperties": {"type": "integer"}}, {"y": "1"})


def test_more_work_than_the_bound_is_given_up() -> None:
    schema = {"type": "array", "items": {"allOf": [{"type": "integer"}] * 50}}
    assert fits(schema, [1] * 20)
    with pytest.raises(TooMuchWork):
        fits(schema, [1] * 10_000)


def test_references_count_as_often_as_they_are_followed() -> None:
    names = ["one", "two", "three", "four", "five", "six", "seven"]
    doubled = {
        name: {"allOf": [{"$ref": f"#/$defs/{before}"}] * 2}
        for before, name in zip(["zero", *names], names, strict=False)
    }
    schema = {"$defs": {"zero": {"type": "integer"}, **doubled}, "type": "object"}
    checker = Checker({**schema, "properties": {"v": {"items": {"$ref": "#/$defs/seven"}}}})
    text = msgspec.json.encode({"v": [1] * 20}).decode()
    with pytest.raises(TooMuchWork):
        checker.errors(msgspec.json.decode(text), text, CheckBudget())


def test_listing_errors_costs_more_than_detecting_them() -> None:
    schema = {"type": "array", "items": {"anyOf": [{"type": "integer"}] * 10}}
    assert fits(schema, [1] * 60)
    with pytest.raises(TooMuchWork):
        fits(schema, ["x"] * 60)


def test_a_long_number_is_a_number() -> None:
    assert fits({"type": "integer", "minimum": 2**64, "uniqueItems": True}, 2**70)
    assert fits({"uniqueItems": True}, [2**70, 2**70 + 1])


def spec(number: int, **keywords: Any) -> ToolSpec:
    return ToolSpec(f"t{number}", "", {"type": "object", **keywords})


def test_compiled_schemas_are_cached_and_the_oldest_is_dropped() -> None:
    cache = CheckerCache(max_count=2)
    first, second, third = (spec(number) for number in range(3))
    cached = cache.get(first), cache.get(second)
    assert (cache.get(first), cache.get(second)) == cached
    cache.get(third)
    assert cache.get(second) is cached[1]
    assert cache.get(first) is not cached[0]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux how much memory is used")
def test_the_memory_of_compiled_schemas_is_bounded() -> None:
    bound = 4 * 1024 * 1024
    cache = CheckerCache(max_bytes=bound)
    before = _resident_bytes()
    for number in range(300):
        cache.get(spec(number, properties={"v": {"enum": [[number, i] for i in range(500)]}}))
        assert cache.size <= bound
    assert cache.size > bound / 2
    assert _resident_bytes() - before < 8 * bound  # 300 of them would take 200 MiB


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_schema_larger_than_the_bound_is_checked_all_the_same() -> None:
    cache = CheckerCache(max_bytes=1)
    checker = cache.get(spec(1, required=["a"]))
    assert checker.errors({}, "{}", CheckBudget())
    assert cache.size == 0
