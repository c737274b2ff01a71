"""Coercion: only lossless changes, and only where the schema requires them."""

from __future__ import annotations

from typing import Any

import pytest

from conductor.tools.base import ToolSpec
from conductor.tools.outcomes import ToolOutcome
from conductor.tools.schema import read_schema
from conductor.tools.validation import Valid, coerce, validate

INTEGER = {"type": "integer"}
OBJECT = {"type": "object"}


def coerced(schema: dict[str, Any], arguments: Any) -> Any:
    return coerce(arguments, read_schema({"type": "object", **schema}))[0]


TEXT_A = {"properties": {"a": {"type": "string"}}}
PAGE = {"properties": {"n": INTEGER, "sizes": {"items": {"$ref": "#/$defs/size"}}}}
URL = {"properties": {"url": {"pattern": "^https://"}}, "required": ["name"]}


@pytest.mark.parametrize(
    ("schema", "arguments", "expected"),
    [
        # Branches of anyOf lend their properties.
        ({"anyOf": [{"required": ["x"]}, {"properties": {"n": INTEGER}}]}, {"n": "1"}, {"n": 1}),
        # A name that one branch only requires may be left out.
        (
            {**TEXT_A, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {"a": None, "b": 1},
            {"b": 1},
        ),
        ({"additionalProperties": {"type": "boolean"}}, {"any": "true"}, {"any": True}),
        # An empty text in a branch is left out.
        ({"anyOf": [URL, {"required": ["id"]}]}, {"name": "x", "url": ""}, {"name": "x"}),
        # A name that the schema does not know is left alone.
        ({"properties": {}, "additionalProperties": False}, {"x": None}, {"x": None}),
        # The name of a field is no value.
        ({"properties": {"v": {"propertyNames": {"minLength": 1}}}}, {"v": {"": 1}}, {"v": {"": 1}}),
        ({"properties": {"v": {"propertyNames": {"type": "integer"}}}}, {"v": {"5": 1}}, {"v": {"5": 1}}),
        # A value below a reference.
        (
            {"$defs": {"page": PAGE, "size": INTEGER}, "properties": {"p": {"$ref": "#/$defs/page"}}},
            {"p": {"n": "1", "sizes": ["2"]}},
            {"p": {"n": 1, "sizes": [2]}},
        ),
    ],
)
def test_arguments_are_coerced(schema: dict[str, Any], arguments: Any, expected: Any) -> None:
    assert coerced(schema, arguments) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 1},
        {"type": "string", "pattern": "^https://"},
        {"enum": ["open", "closed"]},
        {"type": "integer"},
        {"anyOf": [{"type": "string", "minLength": 1}, {"type": "integer"}]},
    ],
)
def test_an_empty_text_for_an_optional_argument_that_cannot_be_empty_is_left_out(schema: Any) -> None:
    assert coerced({"properties": {"v": schema}}, {"v": ""}) == {}
    required = validate(
        ToolSpec(
            name="t", description="", input_schema={**OBJECT, "properties": {"v": schema}, "required": ["v"]}
        ),
        '{"v": ""}',
    )
    assert isinstance(required, ToolOutcome) and "missing required argument 'v'" in str(
        required.error_message
    )
    nested = {"properties": {"list": {"items": {"properties": {"v": schema}}}}}
    assert coerced(nested, {"list": [{"v": ""}]}) == {"list": [{}]}


@pytest.mark.parametrize("schema", [{"type": "string"}, {"enum": ["", "a"]}, {"pattern": "^$|^a"}, True])
def test_an_empty_text_stays_where_it_fits(schema: Any) -> None:
    properties = {"v": schema, "n": {"type": "integer"}}
    assert coerced({"properties": properties}, {"v": "", "n": "1"}) == {"v": "", "n": 1}


def test_valid_values_are_unchanged_next_to_coerced_ones() -> None:
    nullable = {"type": ["string", "null"]}
    properties = {"text": nullable, "none": nullable, "n": INTEGER}
    assert coerced({"properties": properties}, {"text": "null", "none": None, "n": "1"}) == {
        "text": "null",
        "none": None,
        "n": 1,
    }


@pytest.mark.parametrize("value", ["1152921504606846976.0", "1e300", "-18014398509481984.0"])
def test_a_float_that_may_stand_for_several_integers_stays(value: str) -> None:
    checked = validate(
        ToolSpec(name="t", description="", input_schema={**OBJECT, "properties": {"n": INTEGER}}),
        f'{{"n": {value}}}',
    )
    assert isinstance(checked, Valid) and type(checked.arguments["n"]) is float
