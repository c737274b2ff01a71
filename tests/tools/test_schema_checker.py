"""The compiled schema: local references, ECMA's patterns, exact decimals, bounded work."""

from __future__ import annotations

from typing import Any

import pytest

from conductor.tools.schema import SchemaError
from conductor.tools.schema_checker import Checker, TooMuchWork


def fits(schema: dict[str, Any], value: Any) -> bool:
    return not Checker({"type": "object", "properties": {"v": schema}}).errors({"v": value}, 1)


def test_a_schema_that_is_not_sound_is_not_compiled() -> None:
    with pytest.raises(SchemaError):
        Checker({"type": "object", "$ref": "https://example.org/schema"})


@pytest.mark.parametrize(
    "dialect", ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"]
)
def test_a_dialect_named_at_the_top_changes_nothing_below_a_reference(dialect: str) -> None:
    tree = {"below": {"$ref": "#"}, "pair": {"prefixItems": [{"type": "integer"}]}}
    checker = Checker({"$schema": dialect, "type": "object", "properties": tree})
    assert not checker.errors({"below": {"pair": [1]}}, 1)
    assert checker.errors({"below": {"pair": ["x"]}}, 1)


def test_decimals_are_counted_exactly() -> None:
    assert fits({"multipleOf": 0.1}, 0.3)
    assert fits({"multipleOf": 0.01}, 10**400)
    assert not fits({"multipleOf": 0.1}, 0.35)
    assert fits({"multipleOf": 2}, 4.0)
    assert fits({"multipleOf": 2}, True)  # no number


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
    assert fits(schema, [1] * 100)
    with pytest.raises(TooMuchWork):
        fits(schema, [1] * 10_000)


def test_views_are_what_may_speak_of_the_same_value() -> None:
    schema = {"type": "object", "$defs": {"d": {"title": "d"}}}
    schema |= {
        "properties": {"v": {"$ref": "#/$defs/d", "anyOf": [{"title": "a", "allOf": [{"title": "b"}]}]}}
    }
    checker = Checker(schema)
    views = checker.views(checker.schema["properties"]["v"])
    assert [(view.get("title"), certain) for view, certain in views] == [
        (None, True),
        ("d", True),
        ("a", False),
        ("b", False),
    ]
    assert checker.views(True) == []
