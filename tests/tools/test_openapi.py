"""Tools from OpenAPI documents: the chosen operations, their arguments and their schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conductor.errors import SettingsError
from conductor.settings import load_settings
from conductor.tools.http_tools import HttpToolConfig, load_http_tools, make_url

TEXT = {"type": "string"}
KIN = [f"parent_{number}" for number in range(12)]
PETS: dict[str, Any] = {
    "openapi": "3.0.3",
    "servers": [{"url": "https://pets.example/v1"}],
    "paths": {
        "/pets/{petId}": {
            "parameters": [{"$ref": "#/components/parameters/PetId"}],
            "get": {
                "operationId": "getPet",
                "summary": "Find a pet.",
                "parameters": [
                    {"name": "fields", "in": "query", "schema": {"type": "array", "items": TEXT}},
                    {"name": "filter[kind]", "in": "query", "schema": {"type": "string"}},
                    {"name": "X-Trace", "in": "header", "schema": {"type": "string"}},
                ],
            },
            "patch": {
                "description": "Change a pet.",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}},
                },
            },
        },
        "/secret": {"get": {"operationId": "secret", "parameters": [
            {"name": "X-Key", "in": "header", "required": True, "schema": {"type": "string"}}]}},
    },
    "components": {
        "parameters": {
            "PetId": {"name": "petId", "in": "path", "required": True,
                      "schema": {"type": "integer", "format": "int64"}, "description": "Which pet."},
        },
        "schemas": {
            "Pet": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string", "nullable": True, "example": "Rex"},
                    "age": {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
                    **{kin: {"$ref": "#/components/schemas/Pet"} for kin in KIN},
                },
            }
        },
    },
}  # fmt: skip


def load(
    folder: Path, entry: str, document: Any = PETS, name: str = "pets.json"
) -> dict[str, HttpToolConfig]:
    (folder / name).write_text(json.dumps(document))
    path = folder / "tools.toml"
    path.write_text(f'[[openapi]]\nname = "pets"\nfile = "{name}"\n{entry}\n')
    return {tool.name: tool for tool in load_http_tools(load_settings(None, http_tools_file=path)).tools}


@pytest.mark.parametrize("name", ["pets.json", "pets.yaml"])
def test_the_chosen_operations_are_tools(tmp_path: Path, name: str) -> None:
    tools = load(
        tmp_path, 'operations = ["getPet", "PATCH /pets/{petId}"]\nrisk = {getPet = "safe"}', name=name
    )
    assert list(tools) == ["pets.getPet", "pets.PATCH_/pets/petId"]
    get, patch = tools.values()
    assert (get.method, get.url) == ("GET", "https://pets.example/v1/pets/{petId}?fields={fields}")
    assert (get.spec.risk, get.description) == ("safe", "Find a pet.")
    assert get.input_schema["properties"]["petId"] == {"type": "integer", "description": "Which pet."}
    assert get.input_schema["required"] == ["petId"]
    assert make_url(get.url, {"petId": 7, "fields": ["a", "b"]}, {}).endswith("/pets/7?fields=a&fields=b")
    assert (patch.method, patch.spec.risk, patch.spec.effect) == ("PATCH", "high", "write")
    properties = patch.input_schema["properties"]
    assert properties["name"] == {"type": ["string", "null"]}
    assert [properties[kin] for kin in KIN] == [{}] * 12  # and not trees of trees
    assert properties["age"] == {"type": "integer", "exclusiveMinimum": 0}
    assert set(patch.input_schema["required"]) == {"petId", "name"}


@pytest.mark.parametrize(
    ("entry", "document", "says"),
    [
        ('operations = ["getCat"]', PETS, 'no operation "getCat"; there are: getPet'),
        ('operations = ["secret"]', PETS, "needs the header X-Key"),
        ("", PETS, "operations is not valid"),
        ('operations = ["getPet"]', {"swagger": "2.0"}, "no OpenAPI 3 document"),
        ('operations = ["getPet"]', [1], "no OpenAPI 3 document"),
        ('operations = ["getPet"]', {**PETS, "servers": [{"url": "/v1"}]}, "names no server's address"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, entry: str, document: Any, says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, entry, document)
    assert says in str(caught.value)


def test_the_address_may_be_the_operators(tmp_path: Path) -> None:
    entry = 'operations = ["getPet"]\nurl = "https://proxy.example/"\nheaders = {A = "b"}'
    (tool,) = load(tmp_path, entry, {**PETS, "servers": []}).values()
    assert tool.url.startswith("https://proxy.example/pets/") and tool.headers == {"A": "b"}
