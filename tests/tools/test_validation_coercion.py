"""Coercion: only lossless changes, and only where the schema requires them."""

from __future__ import annotations

from typing import Any

import pytest

from conductor.tools.schema import read_schema
from conductor.tools.validation import coerce

INTEGER = {"type": "integer"}


def coerced(schema: dict[str, Any], arguments: Any) -> Any:
    return coerce(arguments, read_schema({"type": "object", **schema}))[0]


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


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 1},
        {"type": "string", "pattern": "^https://"},
        {"type": "string", "format": "date"},
        {"enum": ["open", "closed"]},
        {"type": "integer"},
        {"anyOf": [{"type": "string", "minLength": 1}, {"type": "integer"}]},
    ],
)
def test_an_empty_text_for_an_optional_argument_that_cannot_be_empty_is_left_out(schema: Any) -> None:
    assert coerced({"properties": {"v": schema}}, {"v": ""}) == {}
    assert coerced({"properties": {"v": schema}, "required": ["v"]}, {"v": ""}) == {"v": ""}
    nested = {"properties": {"list": {"items": {"properties": {"v": schema}}}}}
    assert coerced(nested, {"list": [{"v": ""}]}) == {"list": [{}]}


@pytest.mark.parametrize("schema", [{"type": "string"}, {"enum": ["", "a"]}, {"pattern": "^$|^a"}, True])
def test_an_empty_text_stays_where_it_fits(schema: Any) -> None:
    properties = {"v": schema, "n": {"type": "integer"}}
    assert coerced({"properties": properties}, {"v": "", "n": "1"}) == {"v": "", "n": 1}


def test_an_empty_text_in_a_branch_is_left_out() -> None:
    branch = {"properties": {"url": {"pattern": "^https://"}}, "required": ["name"]}
    assert coerced({"anyOf": [branch, {"required": ["id"]}]}, {"name": "x", "url": ""}) == {"name": "x"}


def test_valid_values_are_unchanged_next_to_coerced_ones() -> None:
    nullable = {"type": ["string", "null"]}
    properties = {"text": nullable, "none": nullable, "x": {"type": ["integer", "number"]}, "n": INTEGER}
    arguments = {"text": "null", "none": None, "x": 3.0, "n": "1"}
    value = coerced({"properties": properties}, arguments)
    assert value == {**arguments, "n": 1} and isinstance(value["x"], float)


def test_a_name_that_the_schema_does_not_know_is_left_alone() -> None:
    assert coerced({"properties": {}, "additionalProperties": False}, {"x": None}) == {"x": None}


def test_a_value_below_a_reference_is_coerced() -> None:
    page = {"properties": {"n": INTEGER, "sizes": {"items": {"$ref": "#/$defs/size"}}}}
    schema = {"$defs": {"page": page, "size": INTEGER}, "properties": {"p": {"$ref": "#/$defs/page"}}}
    assert coerced(schema, {"p": {"n": "1", "sizes": ["2"]}}) == {"p": {"n": 1, "sizes": [2]}}


@pytest.mark.parametrize("value", [2.0**60, 1e300, -(2.0**54)])
def test_a_float_that_may_stand_for_several_integers_stays(value: float) -> None:
    assert type(coerced({"properties": {"n": {"type": "integer"}}}, {"n": value})["n"]) is float
