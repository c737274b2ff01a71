"""Coercion: only what loses nothing, and only as far as a schema goes."""

from __future__ import annotations

from typing import Any

import pytest

from conductor.tools.coercion import coerce
from conductor.tools.schema_checker import Checker


def coerced(schema: dict[str, Any], arguments: Any) -> Any:
    return coerce(arguments, Checker({"type": "object", **schema}))[0]


def test_branches_of_any_of_lend_their_properties() -> None:
    branch = {"properties": {"n": {"type": "integer"}}}
    assert coerced({"anyOf": [{"required": ["x"]}, branch]}, {"n": "1"}) == {"n": 1}


def test_a_name_required_in_one_branch_only_may_be_left_out() -> None:
    schema = {"properties": {"a": {"type": "string"}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    assert coerced(schema, {"a": None, "b": 1}) == {"b": 1}


def test_a_name_required_by_all_of_stays() -> None:
    schema = {"properties": {"a": {"type": "string"}}, "allOf": [{"required": ["a"]}]}
    assert coerced(schema, {"a": None}) == {"a": None}


def test_additional_properties_are_coerced_by_their_schema() -> None:
    assert coerced({"additionalProperties": {"type": "boolean"}}, {"any": "true"}) == {"any": True}


def test_a_name_that_the_schema_does_not_know_is_left_alone() -> None:
    assert coerced({"properties": {}, "additionalProperties": False}, {"x": None}) == {"x": None}


def test_a_tree_is_coerced_at_every_level() -> None:
    schema = {"properties": {"n": {"type": "integer"}, "below": {"type": "array", "items": {"$ref": "#"}}}}
    assert coerced(schema, {"below": [{"n": "1", "below": [{"n": "2"}]}]}) == {
        "below": [{"n": 1, "below": [{"n": 2}]}]
    }


@pytest.mark.parametrize("value", [2.0**60, 1e300, -(2.0**54)])
def test_a_float_that_may_stand_for_several_integers_stays(value: float) -> None:
    assert type(coerced({"properties": {"n": {"type": "integer"}}}, {"n": value})["n"]) is float
