"""Input schemas: accepted and rejected ones, and the form for model services."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from conductor.tools.schema import MAX_RECURSION, SchemaError, model_schema, own_names, read_schema
from tests.cpu import least_cpu_s


def object_schema(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", **keywords}


def with_value(schema: Any) -> dict[str, Any]:
    return object_schema(properties={"value": schema})


def nested(levels: int) -> dict[str, Any]:
    return {"not": nested(levels - 1)} if levels else {}


@pytest.mark.parametrize(
    "schema",
    [
        object_schema(),
        object_schema(properties={"a": True, "b": {"type": ["string", "null"]}}, required=["a"]),
        {"$schema": "https://json-schema.org/draft/2020-12/schema", **object_schema()},
        {"$schema": "http://json-schema.org/draft-07/schema#", **object_schema()},
        with_value({"$ref": "#/$defs/x"}) | {"$defs": {"x": {"type": "string"}}},
        with_value({"$ref": "#/$defs/a~1b%20c"}) | {"$defs": {"a/b c": {"type": "string"}}},
        with_value({"enum": ["$ref"], "default": {"$ref": "https://example.org/x"}}),
        object_schema(properties={"pattern": {"type": "integer"}, "enum": {"type": "string"}}),
        with_value({"type": "string", "pattern": r"^\d{4}-\d{2}$", "x-note": {"anything": [1]}}),
    ],
)
def test_a_sound_schema_is_accepted(schema: dict[str, Any]) -> None:
    read_schema(schema)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ([], "must be a JSON object"),
        ({"type": "string"}, '"type": "object"'),
        (
            with_value({"type": "text"}),
            "properties.value.type is not valid in Draft 2020-12: the types are array",
        ),
        (with_value({"items": [{"type": "string"}]}), r'properties.value.items .*"boolean", "object"'),
        (with_value({"enum": []}), "must not be empty"),
        (with_value({"minimum": "1"}), '"1" is not of type "number"'),
        (with_value({"multipleOf": 0}), "minimum of 0"),
        (object_schema(required=["a", "a"]), "non-unique"),
        (object_schema(properties=[]), r'properties is not .* type "object"'),
        (object_schema(anyOf=[]), "less than 1 item"),
        (with_value({"$ref": "https://example.org/schema.json"}), "inside this schema"),
        (with_value({"$ref": "#/$defs/missing"}), "inside this schema"),
        (with_value({"$ref": "#/$defs"}) | {"$defs": {}}, "inside this schema"),
        (with_value({"$ref": "#/default"}) | {"default": {"properties": 5}}, "inside this schema"),
        (
            with_value({"$ref": "#/x-note/allOf/0"}) | {"x-note": {"allOf": [{"type": 1}]}},
            "inside this schema",
        ),
        (with_value({"$ref": 3}), 'not of type "string"'),
        (with_value({"$id": "https://example.org/", "$ref": "#"}), "not supported"),
        (with_value({"unevaluatedProperties": False}), "not supported"),
        (
            with_value({"$schema": "https://json-schema.org/draft/2020-12/schema"}),
            r"value.\$schema is not supported",
        ),
        (with_value({"default": object()}), "not JSON"),
        (with_value({"title": "\ud800"}), "not Unicode"),
        (object_schema(patternProperties={"(": {}}), r"the pattern '\(' is not accepted"),
        (with_value({"pattern": "(?=a)b"}), "no look-around"),
        (with_value({"pattern": r"(a)\1"}), "no back-reference"),
        (with_value({"pattern": "(?:ab){15000}c"}), "no large counted repeat"),
        (with_value({"pattern": "a" * 257}), "it may have 256 characters"),
        (
            object_schema(properties={f"p{i}": {"pattern": r"\p{L}"} for i in range(5)}),
            "patterns are too many",
        ),
        (with_value({"default": [[]] * 1100}), "more than 1024 objects and lists"),
        (with_value({"anyOf": [True] * 199}), "more than 200 schemas"),
        (with_value({"const": nested(600)}), "more than 8 levels"),
    ],
)
def test_a_schema_that_is_not_sound_is_refused_with_the_reason(schema: Any, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        read_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        object_schema(**{"$ref": "#"}),
        with_value({"items": {"$ref": "#"}}),
        with_value({"items": {"$ref": "#/properties/value"}}),
        with_value({"$ref": "#/$defs/a"}) | {"$defs": {"a": {"$ref": "#/$defs/a"}}},
        with_value({"$ref": "#/$defs/a"})
        | {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"items": {"$ref": "#/$defs/a"}}}},
    ],
)
def test_a_schema_that_refers_to_itself_is_accepted_and_ends(schema: dict[str, Any]) -> None:
    assert "$ref" not in str(read_schema(schema).tree) + str(model_schema(schema))


TREE = object_schema(
    properties={"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#"}}}
)


def test_a_recursion_is_repeated_four_times() -> None:
    schema = read_schema(TREE)

    def leaf(levels: int, name: Any) -> dict[str, Any]:
        return {"children": [leaf(levels - 1, name)]} if levels else {"name": name}

    assert str(model_schema(TREE)).count("'name'") == MAX_RECURSION == 4
    assert [schema.is_valid(leaf(levels, 5)) for levels in range(6)] == [False] * 4 + [True] * 2
    assert all(schema.is_valid(leaf(levels, "n")) for levels in range(6))


def test_a_recursion_with_many_branches_is_repeated_less_often() -> None:
    kinds = {name: {"items": {"$ref": "#/$defs/f"}} for name in ("and", "or", "not", "any")}
    schema = with_value({"$ref": "#/$defs/f"}) | {"$defs": {"f": {"properties": kinds}}}
    assert read_schema(schema).nodes < 200
    assert str(model_schema(schema)).count("'any'") == 1 + 4 + 16


def test_a_schema_of_a_model_has_neither_references_nor_their_targets() -> None:
    schema = with_value({"$ref": "#/$defs/x"}) | {"$defs": {"x": {"type": "string", "default": "a"}}}
    assert model_schema(schema) == with_value({"type": "string", "default": "a"})


# -- names of arguments


def test_an_argument_whose_name_services_refuse_gets_another_for_the_model() -> None:
    names = ["$filter", "filter_2", "filter", "@odata.type", "größe", "$", "", "x" * 70, "a b"]
    schema = object_schema(properties={name: {} for name in names}, required=["$filter", "filter"])
    own = own_names(schema)
    assert own == {
        "filter_3": "$filter",
        "odata.type": "@odata.type",
        "gr_e": "größe",
        "argument": "$",
        "argument_2": "",
        "x" * 60: "x" * 70,
        "a_b": "a b",
    }
    rendered = model_schema(schema)
    assert list(rendered["properties"])[:3] == ["filter_3", "filter_2", "filter"]
    assert rendered["required"] == ["filter_3", "filter"]


def test_arguments_that_only_a_branch_declares_get_names_too() -> None:
    schema = object_schema(anyOf=[{"properties": {"$top": {}}, "required": ["$top"]}])
    assert list(model_schema(schema)["properties"]) == ["top"] and own_names(schema) == {"top": "$top"}


def test_a_reference_counts_as_its_target() -> None:
    doubled = {f"d{i}": {"prefixItems": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(7)}
    schema = {"$defs": {**doubled, "d7": {}}, **with_value({"$ref": "#/$defs/d3"})}
    assert read_schema(schema).nodes < 200
    with pytest.raises(SchemaError, match="more than 200 schemas"):
        read_schema(schema | with_value({"$ref": "#/$defs/d1"}))


def test_a_schema_may_be_8_levels_deep_and_no_more() -> None:
    read_schema(with_value(nested(6)))
    with pytest.raises(SchemaError, match="more than 8 levels"):
        read_schema(with_value(nested(7)))


def test_a_schema_may_be_64_kib_and_no_more() -> None:
    frame = len('{"type":"object","description":""}')
    read_schema(object_schema(description="x" * (64 * 1024 - frame)))
    with pytest.raises(SchemaError, match="larger than 65536 bytes"):
        read_schema(object_schema(description="x" * (64 * 1024 - frame + 1)))
    with pytest.raises(SchemaError, match="larger than 65536 bytes"):
        read_schema(object_schema(examples=[1] * 70_000))


def test_a_value_that_holds_itself_is_refused() -> None:
    looped: dict[str, Any] = object_schema()
    looped["properties"] = {"again": looped}
    with pytest.raises(SchemaError, match="levels deep"):
        read_schema(looped)


@pytest.mark.parametrize(
    "schema",
    [
        object_schema(properties={f"p{i}": {"type": "string"} for i in range(199)}),
        object_schema(properties={f"p{i}": {"pattern": f"^\\p{{L}}{{{i}}}"} for i in range(64)}),
        object_schema(properties={f"p{i}": {"pattern": r"\p{L}" * 50 + str(i)} for i in range(64)}),
        object_schema(**{"$defs": {f"d{i}": {"$ref": f"#/$defs/d{i // 2}"} for i in range(1, 900)}}),
    ],
    ids=["properties", "large patterns", "too large patterns", "references"],
)
def test_a_large_schema_is_checked_in_less_time_than_a_person_notices(schema: dict[str, Any]) -> None:
    def check() -> None:
        with contextlib.suppress(SchemaError):
            read_schema(schema)

    assert least_cpu_s(check, 0.25) < 0.25  # 0.03; without bounds some take seconds


def test_unicode_classes_and_counted_repeats_of_ordinary_size_are_accepted() -> None:
    for pattern in (r"^[\p{L}' -]+$", r"^\d{4}-\d{2}-\d{2}$", "^[a-f0-9]{64}$", "^.{1,50}$", "^(a+)+$"):
        read_schema(with_value({"pattern": pattern}))


def test_the_schema_for_the_model_states_a_required_choice_in_words() -> None:
    schema = object_schema(
        properties={"a": {}, "b": {}},
        required=["a"],
        anyOf=[{"required": ["b"]}, {"required": ["c", "d"]}, {"required": ["e"]}],
    )
    assert model_schema(schema) == object_schema(
        properties={"a": {}, "b": {}}, required=["a"], description="Needs b, c and d or e."
    )


def test_the_schema_for_the_model_keeps_the_description_that_it_had() -> None:
    schema = object_schema(description="Where to.", oneOf=[{"required": ["a"]}, {"required": ["b"]}])
    assert model_schema(schema)["description"] == "Where to. Needs exactly one of: a or b."


def test_the_schema_for_the_model_takes_up_the_properties_of_its_branches() -> None:
    strict = {"properties": {"kind": {"const": "x"}}, "required": ["kind", "x"]}
    sized = {"properties": {"size": {"type": "integer"}}, "required": ["kind"]}
    schema = object_schema(
        properties={"kind": {"type": "string"}}, anyOf=[strict, sized], allOf=[{"required": ["z"]}]
    )
    assert model_schema(schema) == object_schema(
        properties={"kind": {"type": "string"}, "size": {"type": "integer"}}, required=["kind", "z"]
    )


def test_a_branch_that_takes_anything_makes_nothing_required_for_the_model() -> None:
    assert "required" not in model_schema(object_schema(anyOf=[{"required": ["a"]}, True]))


def test_a_plain_schema_is_the_models_schema() -> None:
    schema = object_schema(properties={"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}})
    assert model_schema(schema) is schema
