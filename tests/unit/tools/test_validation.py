"""Validation: a model's JSON text becomes arguments, or a message that helps to correct it."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conductor.tools.base import ToolSpec
from conductor.tools.outcomes import ToolOutcome
from conductor.tools.schema import SchemaError, read_schema
from conductor.tools.validation import SchemaCache, Valid, validate
from tests.cpu import least_cpu_s
from tests.unit.tools.test_predicates import plain

ENDING = "Nothing was run. Call it again with corrected arguments."


def tool(properties: Any = None, **keywords: Any) -> ToolSpec:
    return ToolSpec(
        name="t", description="", input_schema={"type": "object", "properties": properties or {}, **keywords}
    )


def tool_of(schema: Any) -> ToolSpec:
    """Make a tool with one optional argument ``v``."""
    return tool({"v": schema}, additionalProperties=False)


def accepted(spec: ToolSpec, text: str) -> Valid:
    checked = validate(spec, text)
    assert isinstance(checked, Valid), checked.error_message
    return checked


def refused(spec: ToolSpec, text: str, error_type: str = "validation_failed") -> str:
    checked = validate(spec, text)
    assert isinstance(checked, ToolOutcome)
    assert not checked.success
    assert checked.error_type == error_type
    assert checked.error_message is not None
    assert checked.error_message.endswith(ENDING)
    assert checked.error_message.startswith("Invalid arguments for t: ")
    return checked.error_message.removeprefix("Invalid arguments for t: ").removesuffix(f". {ENDING}")


TEXT, INTEGER, NULLABLE = {"type": "string"}, {"type": "integer"}, {"type": ["string", "null"]}
LEFT_OUT = ("v: null was left out",)


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        (TEXT, ' {"v": "x"} ', Valid({"v": "x"})),
        # No arguments.
        *((TEXT, text, Valid({})) for text in ("", "  \n", "{}")),
        (TEXT, "null", Valid({}, ("arguments: null was read as {}",))),
        # Null where it cannot be, and where it may.
        (TEXT, '{"v": null}', Valid({}, LEFT_OUT)),
        ({"enum": ["a", "b"]}, '{"v": null}', Valid({}, LEFT_OUT)),
        ({"anyOf": [TEXT, INTEGER]}, '{"v": null}', Valid({}, LEFT_OUT)),
        (NULLABLE, '{"v": null}', Valid({"v": None})),
        ({"enum": ["a", None]}, '{"v": null}', Valid({"v": None})),
        ({"const": None}, '{"v": null}', Valid({"v": None})),
        (True, '{"v": null}', Valid({"v": None})),
        # Values of one of several types.
        ({"type": ["string", "integer"]}, '{"v": "3"}', Valid({"v": "3"})),
        ({"type": "number"}, '{"v": 2.5}', Valid({"v": 2.5})),
    ],
)
def test_arguments_are_accepted(schema: Any, text: str, expected: Valid) -> None:
    checked = accepted(tool_of(schema), text)
    assert checked == expected
    assert list(map(type, checked.arguments.values())) == list(map(type, expected.arguments.values()))


@pytest.mark.parametrize(
    "text", ['{"v":', "{'v': 1}", '{"v": NaN}', '{"v": 1e999}', "{} {}", '{"v": "\\ud800"}', "\ud800"]
)
def test_text_that_is_not_strict_json_is_a_parse_error(text: str) -> None:
    assert refused(tool(), text, "parse_error").startswith("they are not valid JSON (")


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, '"3"', 3),
        ({"type": "integer"}, '"3.0"', 3),
        ({"type": "number"}, '"2.5"', 2.5),
        ({"type": "boolean"}, '"true"', True),
        ({"type": ["integer", "null"]}, '"null"', None),
        ({"type": "object"}, '"{\\"a\\": 1}"', {"a": 1}),
        ({"type": "array", "items": {"type": "integer"}}, '"[1, \\"2\\"]"', [1, 2]),
        (
            {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "boolean"}},
            '["1","true"]',
            [1, True],
        ),
    ],
)
def test_a_lossless_change_is_made_and_noted(schema: Any, text: str, value: Any) -> None:
    checked = accepted(tool_of(schema), f'{{"v": {text}}}')
    assert checked.arguments == {"v": value}
    assert type(checked.arguments["v"]) is type(value)
    assert checked.notes


def test_arguments_that_are_json_inside_a_json_string_are_read() -> None:
    assert accepted(tool_of({"type": "integer"}), '"{\\"v\\": 1}"').arguments == {"v": 1}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer"}, '"3.5"'),
        ({"type": "integer"}, '"1234567890123456789"'),
        ({"type": "integer"}, '"٣"'),
        ({"type": "integer"}, "2.5"),
        ({"type": "boolean"}, '"yes"'),
        ({"type": "number"}, '"inf"'),
        ({"type": "string"}, "3"),
        ({"type": "object"}, '"{broken"'),
    ],
)
def test_a_lossy_change_is_not_made(schema: Any, text: str) -> None:
    assert refused(tool_of(schema), f'{{"v": {text}}}').startswith(f"v must be {schema['type']}")


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [("integer", "300.0", "300"), ("integer", "3e2", "300"), ("number", "2.0", "2.0"), ("number", "2", "2")],
)
def test_a_whole_number_is_an_integer_only_where_the_schema_says_so(
    kind: str, text: str, expected: str
) -> None:
    spec = tool({"v": {"type": kind}, "list": {"type": "array", "items": {"type": kind}}})
    checked = accepted(spec, f'{{"v": {text}, "list": [{text}]}}')
    assert repr(checked.arguments) == f"{{'v': {expected}, 'list': [{expected}]}}"


def test_valid_arguments_that_a_change_would_break_stay_as_they_are() -> None:
    odd = {"not": {"const": 5}, "anyOf": [{"type": "integer"}, {"not": {"type": "integer"}}]}
    spec = tool({"n": {"type": "integer"}, "odd": odd})
    assert accepted(spec, '{"n": 3, "odd": "5"}') == Valid({"n": 3, "odd": "5"})


def test_many_changes_are_noted_briefly() -> None:
    spec = tool_of({"type": "array", "items": {"type": "integer"}})
    checked = accepted(spec, msgspec.json.encode({"v": ["1"] * 100}).decode())
    assert checked.arguments == {"v": [1] * 100}
    assert len(checked.notes) == 9
    assert checked.notes[-1] == "and 92 more changes of this kind"
    notes = accepted(spec, '{"v": ["1", "2", "3", "4", "5", "6", "7", "8"]}').notes
    assert len(notes) == 8 and notes[-1] == 'v[7]: "8" was read as 8'


def test_at_most_five_errors_are_reported() -> None:
    names = [f"argument{i}" for i in range(9)]
    spec = tool({name: {"type": "integer"} for name in names})
    message = refused(spec, msgspec.json.encode(dict.fromkeys(names, "x")).decode())
    assert message.count("must be integer") == 5


def test_arguments_above_the_limit_are_refused() -> None:
    spec, text = tool_of({"type": "string"}), '{"v": "äääää"}'
    size = len(text.encode())
    assert isinstance(validate(spec, text, size), Valid)
    too_large = validate(spec, text, size - 1)
    assert isinstance(too_large, ToolOutcome)
    assert too_large.error_type == "validation_failed"
    assert f"larger than {size - 1} bytes" in str(too_large.error_message)


@pytest.mark.parametrize("levels", [33, 400, 30_000])
def test_arguments_nested_too_deep_are_refused(levels: int) -> None:
    text = '{"v": ' + "[" * (levels - 1) + "]" * (levels - 1) + "}"
    assert "nested more than 32 levels" in refused(tool_of(True), text)
    text = '{"v": [' + "[" * 30 + "]" * 30 + ", []" * 100 + "]}"
    assert accepted(tool_of(True), text).arguments == msgspec.json.decode(text)


def test_json_text_nested_too_deep_is_refused_like_json() -> None:
    text = msgspec.json.encode({"v": "[" * 40 + "]" * 40}).decode()
    assert "nested more than 32 levels" in refused(tool_of({"type": "array"}), text)


def test_a_tool_with_an_invalid_schema_cannot_be_called() -> None:
    checked = validate(
        ToolSpec(name="t", description="", input_schema={"type": "object", "$ref": "https://example.org/x"}),
        "{}",
    )
    assert isinstance(checked, ToolOutcome)
    assert checked.error_type == "internal_error"


def test_a_changed_schema_takes_effect() -> None:
    accepted(tool_of({"type": "string"}), '{"v": "x"}')
    assert refused(tool_of({"type": "integer"}), '{"v": "x"}') == 'v must be integer, got "x"'


WIDE = {"type": "array", "items": {"anyOf": [{"type": "string"}] * 190}}


def texts(*values: Any) -> str:
    return msgspec.json.encode({"v": list(values)}).decode()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (WIDE, texts(*[1] * 30_000)),
        (WIDE, texts(*["x"] * 4_000, *[1] * 1_000)),
        (WIDE, texts(1)),
        ({"items": {"allOf": [{"type": "integer", "multipleOf": 1}] * 190}}, texts(*range(1, 5_000), 0.5)),
        ({"pattern": "(?:ab){1000}c"}, '{"v": "' + "ab" * 30_000 + '"}'),
        ({"pattern": "^(a+)+$"}, '{"v": "' + "a" * 60_000 + '!"}'),
        ({"items": {"pattern": "[ab]*a[ab]{50}c"}}, texts(*["ab" * 200] * 150)),
        (
            {"patternProperties": {"a*a*b$": {}}, "additionalProperties": False},
            '{"v": {"' + "a" * 60_000 + '": 1}}',
        ),
        ({"anyOf": [{"items": {"type": "string"}, "minItems": 9}] * 90}, texts(*[1] * 30_000)),
        ({"items": {"enum": list(range(5_000))}}, texts(*[-1] * 20_000)),
        ({"items": {"enum": [[i] for i in range(190)]}}, texts(*[[189]] * 900, 1)),
        ({"uniqueItems": True}, texts(*(2**63 + i for i in range(2_500)))),
        ({"items": {"multipleOf": 0.01}}, texts(*[1e300] * 9_000)),
        ({"items": {"type": "integer"}}, texts(*["1"] * 15_000)),
        ({"items": {"oneOf": [False] * 190}}, texts(*[1] * 20_000)),
        ({"items": {"properties": {"a": {"minLength": 1}}, "required": ["b"]}}, texts(*[{"a": ""}] * 5_000)),
        ({"required": [f"r{i}" for i in range(5_000)]}, '{"v": {}}'),
    ],
    ids=range(17),
)
def test_a_hostile_schema_cannot_hold_the_process(value: dict[str, Any], text: str) -> None:
    spec = tool({"v": value})
    validate(spec, "{}")  # compile it first
    assert least_cpu_s(lambda: validate(spec, text), 0.25) < 0.25  # 0.08 at most; without bounds minutes
    refused(spec, text)


def test_numbers_with_large_exponents_are_read_in_time() -> None:
    spec = tool_of({"type": "array", "items": {"type": "number"}})
    text = f'{{"v": [{",".join(["1e300"] * 10_000)}]}}'
    assert least_cpu_s(lambda: validate(spec, text), 0.07) < 0.07  # 0.02; by msgspec's own reader 0.1


def test_large_numbers_are_compared_if_they_are_few() -> None:
    spec = tool_of({"uniqueItems": True, "items": {"multipleOf": 0.5}})
    accepted(spec, texts(*range(4_000)))
    accepted(spec, texts(2**70, 2**70 + 1, 1e300))
    assert "too large to be checked" in refused(spec, texts(*[2.5] * 900, 1e300))


def test_items_that_differ_in_type_are_compared_in_linear_time() -> None:
    spec = tool_of({"type": "array", "uniqueItems": True})
    items: list[Any] = [value for i in range(2_000) for value in (i, f"{i}")]
    text = msgspec.json.encode({"v": items}).decode()
    assert least_cpu_s(lambda: accepted(spec, text), 0.25) < 0.25


@pytest.mark.parametrize(
    "dialect", ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"]
)
def test_a_dialect_named_at_the_top_changes_nothing_below_a_reference(dialect: str) -> None:
    pair = {"prefixItems": [{"type": "integer"}]}
    spec = tool({"v": {"$ref": "#/$defs/pair"}}, **{"$schema": dialect, "$defs": {"pair": pair}})
    accepted(spec, '{"v": [1]}')
    refused(spec, '{"v": ["x"]}')


def test_keywords_beside_a_reference_apply_too() -> None:
    spec = tool({"v": {"$ref": "#/$defs/n", "maximum": 5}}, **{"$defs": {"n": {"minimum": 3}}})
    accepted(spec, '{"v": 4}')
    assert refused(spec, '{"v": 6}').startswith("v is greater") and refused(spec, '{"v": 2}').startswith(
        "v is less"
    )


INTEGERS_OF_X = {"patternProperties": {"^x-": INTEGER}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        # Decimals are counted exactly.
        ({"multipleOf": 0.1}, 0.3, True),
        ({"multipleOf": 0.01}, 10**40, True),
        ({"multipleOf": 0.1}, 0.35, False),
        ({"multipleOf": 2}, 4.0, True),
        ({"multipleOf": 2}, True, True),  # not a number
        ({"type": "integer", "minimum": 2**63, "uniqueItems": True}, 2**64 - 1, True),
        # Items are the same when their values are.
        ({"uniqueItems": True}, [1, True], True),
        ({"uniqueItems": True}, [1, 1.0], False),
        ({"uniqueItems": True}, [{"a": 0.5}, {"a": 0.5}], False),
        ({"uniqueItems": True}, [[1], "x", None], True),
        # Names that match a pattern are no additional ones.
        (INTEGERS_OF_X, {"x-a": 1}, True),
        (INTEGERS_OF_X, {"x-a": "x"}, False),
        (INTEGERS_OF_X, {"y": 1}, False),
        ({"additionalProperties": INTEGER}, {"y": 1}, True),
        ({"additionalProperties": INTEGER}, {"y": "x"}, False),
    ],
)
def test_a_value_is_valid_or_not(schema: Any, value: Any, expected: bool) -> None:
    checked = validate(tool_of(schema), msgspec.json.encode({"v": value}).decode())
    assert isinstance(checked, Valid) is expected


def numbered(number: int, **keywords: Any) -> ToolSpec:
    return ToolSpec(name=f"t{number}", description="", input_schema={"type": "object", **keywords})


def test_compiled_schemas_are_cached_and_the_oldest_is_dropped() -> None:
    first, second, third = (numbered(number) for number in range(3))
    cache = SchemaCache(max_bytes=2 * read_schema(first.input_schema).size)
    cached = cache.get(first), cache.get(second)
    assert (cache.get(first), cache.get(second)) == cached
    cache.get(third)
    assert cache.get(second) is cached[1]
    assert cache.get(first) is not cached[0]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux how much memory is used")
def test_the_memory_of_compiled_schemas_is_bounded() -> None:
    bound = 4 * 1024 * 1024
    cache = SchemaCache(max_bytes=bound)
    before = _resident_bytes()
    for number in range(900):
        cache.get(numbered(number, properties={"v": {"enum": [[number, i] for i in range(190)]}}))
        assert cache.size <= bound
    assert cache.size > bound / 2
    assert _resident_bytes() - before < 8 * bound  # 900 of them would take 200 MiB


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_schema_larger_than_the_bound_is_compiled_all_the_same() -> None:
    cache = SchemaCache(max_bytes=1)
    assert not cache.get(numbered(1, required=["a"])).is_valid({})
    assert cache.size == 0


JSON = st.recursive(
    plain | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abcA"), inner, max_size=4),
    max_leaves=12,
)
LEAVES: st.SearchStrategy[Any] = st.sampled_from(
    [
        True,
        False,
        {"type": "string", "minLength": 1, "pattern": "^a+$"},
        {"type": "integer", "minimum": 1, "multipleOf": 2},
        {"type": ["number", "null"]},
        {"type": "number", "multipleOf": 0.1, "exclusiveMaximum": 9},
        {"type": "boolean"},
        {"enum": ["x", 1, None]},
        {"const": 1},
        {"$ref": "#"},
        {"not": {"type": "string"}},
        {"type": "array", "uniqueItems": True, "maxItems": 2, "contains": {"type": "integer"}},
    ]
)
SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(
            lambda properties, required, extra: {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": extra,
            },
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            st.lists(st.sampled_from("abc"), max_size=2, unique=True),
            inner,
        ),
        st.builds(lambda items: {"type": "array", "items": items}, inner),
        st.builds(
            lambda keyword, branches: {keyword: branches},
            st.sampled_from(["anyOf", "oneOf", "allOf"]),
            st.lists(inner, min_size=1, max_size=3),
        ),
        st.builds(
            lambda a, b: {"if": a, "then": b, "else": a, "dependentRequired": {"a": ["b"]}}, inner, inner
        ),
    ),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(SCHEMAS, JSON | st.text(max_size=30))
@example({"type": "object"}, "\ud800")
def test_validation_never_raises_and_accepted_arguments_are_valid(schema: Any, value: Any) -> None:
    schema = {**(schema if isinstance(schema, dict) else {}), "type": "object"}
    try:
        read_schema(schema)
    except SchemaError:
        return
    spec = ToolSpec(name="t", description="", input_schema=schema)
    checked = validate(spec, value if isinstance(value, str) else msgspec.json.encode(value).decode())
    if isinstance(checked, Valid):
        second = validate(spec, msgspec.json.encode(checked.arguments).decode())
        assert second == Valid(checked.arguments), "validating twice changes nothing"
    else:
        assert str(checked.error_message).endswith(ENDING)
