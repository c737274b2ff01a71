"""Error messages: each names the argument, the rule and the value, in words for a model."""

from __future__ import annotations

from typing import Any

import pytest

from conductor.tools.schema import read_schema
from conductor.tools.validation import explain, refusal


def explained(schema: dict[str, Any], arguments: Any) -> list[str]:
    return explain(read_schema({"type": "object", **schema}), arguments)


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        ({"type": "integer"}, "a", 'v must be integer, got "a"'),
        ({"enum": ["open", "closed"]}, 3, 'v must be one of "open", "closed", got 3'),
        (
            {"enum": list(range(20))},
            -1,
            "v must be one of 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 (and 8 more), got -1",
        ),
        ({"pattern": "^a$", "description": "Just an a"}, "b", 'v does not match "^a$", got "b" (Just an a)'),
        (
            {"oneOf": [{"minimum": 1}, {"minimum": 2}]},
            3,
            "v is valid under more than one of the schemas listed in the 'oneOf' keyword, got 3",
        ),
        ({"not": {"type": "integer"}}, 1, '{"type":"integer"} is not allowed for v, got 1'),
        ({"prefixItems": [{}], "items": False}, [1, 2], "False schema does not allow v[1], got 2"),
        ({"required": ["a", "b"]}, {"a": 1}, "v: missing required argument 'b'"),
        (
            {"anyOf": [{"required": ["a"], "properties": {"a": {"type": "integer"}}}, {"type": "string"}]},
            {"a": "x"},
            'v.a must be integer, got "x", or v must be string, got an object with 1 fields',
        ),
        (
            {"$ref": "#/$defs/page"},
            {"sise": 1},
            "v: unknown argument 'sise' (allowed: size)",
        ),
    ],
)
def test_each_rule_has_its_words(schema: dict[str, Any], value: Any, message: str) -> None:
    page = {"properties": {"size": {}}, "additionalProperties": False}
    assert message in explained({"properties": {"v": schema}, "$defs": {"page": page}}, {"v": value})


CLOSED = {"additionalProperties": False}
CHOICE = [{"required": ["repository"]}, {"required": ["prUrl"]}]
UNKNOWN = "unknown argument 'promt' (allowed: "


@pytest.mark.parametrize(
    ("schema", "arguments", "messages"),
    [
        ({"properties": {"id": {}, "limit": {}}, **CLOSED}, {"promt": 1}, [f"{UNKNOWN}id, limit)"]),
        (
            {"properties": {}, **CLOSED},
            {"promt": 1, "b": 2},
            [f"{UNKNOWN}none)", "unknown argument 'b' (allowed: none)"],
        ),
        (CLOSED, {"a": 1}, ["no argument is taken"]),
        ({"anyOf": CHOICE}, {}, ["needs repository or prUrl"]),
        (
            {"oneOf": CHOICE},
            {"repository": 1, "prUrl": 1},
            ["needs exactly one of repository or prUrl, but more than one fits"],
        ),
        # A repeated error is reported once.
        ({"allOf": [{"required": ["a"]}, {"required": ["a"]}]}, {}, ["missing required argument 'a'"]),
    ],
)
def test_arguments_together_are_explained(
    schema: dict[str, Any], arguments: Any, messages: list[str]
) -> None:
    assert explained(schema, arguments) == messages


def test_a_long_value_is_cut() -> None:
    [message] = explained({"properties": {"v": {"type": "integer"}}}, {"v": "x" * 10_000})
    assert len(message) < 200


def test_a_refusal_says_that_nothing_was_run() -> None:
    assert refusal("t", ["a", "b"]) == (
        "Invalid arguments for t: a; b. Nothing was run. Call it again with corrected arguments."
    )
