"""Tools with odd schemas, from the phone's declaration to a service that refuses them, and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.app import App
from tests.models import AnthropicService, Call, HttpFailure, OpenAIService, Reply
from tests.serving import Served, serving


def phone_with(served: Served, **schemas: Any) -> App:
    """Make a phone that declares tools with these properties, and answers their calls."""
    declared = [
        {
            "name": f"device.{name}",
            "description": f"The tool {name}.",
            "inputSchema": {"type": "object", **schema},
            "annotations": {"readOnlyHint": True},
        }
        for name, schema in schemas.items()
    ]
    fields = {"capabilities": ["tools"], "tools": declared}
    tools = {f"device.{name}": lambda _: "done" for name in schemas}
    return served.phone(start_fields=fields, tools=tools)


def parts_of(schema: Any) -> Iterator[Any]:
    yield schema
    for value in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from parts_of(value)


def like_gemini(body: Any) -> Reply | HttpFailure:
    """Refuse a list of types and a schema ``true``, as Gemini's endpoint does."""
    for tool in body["tools"]:
        function = tool["function"]
        for part in parts_of(function["parameters"]):
            inner = (
                [part.get("items"), *part.get("properties", {}).values()] if isinstance(part, dict) else []
            )
            if isinstance(part, dict) and (isinstance(part.get("type"), list) or True in inner):
                words = f"Unable to submit request because `{function['name']}` functionDeclaration schema"
                return HttpFailure(400, "INVALID_ARGUMENT", f"{words} didn't specify the schema type field.")
    return Reply(text="All right.")


async def test_lists_of_types_and_true_reach_no_service() -> None:
    schema = {"properties": {"a": {"type": ["string", "null"]}, "b": True, "c": {"items": True}}}
    async with OpenAIService(default=like_gemini) as model, serving(model.provider()) as served:
        async with phone_with(served, odd=schema) as phone:
            await phone.ask("hi")
            assert phone.finals() == ["All right."] and model.received == 1


def refuses(name: str) -> Any:
    def script(body: Any) -> Reply | HttpFailure:
        names = [tool.get("name") or tool["function"]["name"] for tool in body.get("tools", ())]
        if name in names:
            return HttpFailure(
                400, "invalid_request_error", f"tools.{names.index(name)}.custom.input_schema: is invalid"
            )
        return Reply(text=f"Without {name}.")

    return script


@pytest.mark.parametrize("kind", [AnthropicService, OpenAIService])
async def test_a_tool_whose_schema_is_refused_is_left_out_and_logged_once(
    kind: type[AnthropicService],
) -> None:
    async with kind(default=refuses("device_odd")) as model, serving(model.provider()) as served:
        with capture_logs() as lines:
            for session in ("s-1", "s-2"):
                async with phone_with(served, plain={}, odd={"properties": {"a": {}}}, last={}) as phone:
                    assert session
                    await phone.ask("hi")
                    assert phone.finals() == ["Without device_odd."]
    assert model.received == 3, "the second session does not try it"
    warnings = [line for line in lines if "left out" in line["event"]]
    assert [line["tool"] for line in warnings] == ["device.odd"]


async def test_a_schema_that_cannot_be_told_apart_ends_in_an_apology() -> None:
    async with OpenAIService() as model, serving(model.provider()) as served:
        model.default = HttpFailure(400, "invalid_request_error", "A schema of a function is invalid.")
        async with phone_with(served, odd={}) as phone:
            await phone.ask("hi")
            assert [error["code"] for error in phone.errors()] == [
                "model_provider_failed"
            ] and model.received == 1


FILTER: Any = {
    "properties": {"$filter": {"type": "string"}, "$top": {"type": "integer"}, "node": {"$ref": "#/$defs/n"}},
    "required": ["$filter"],
    "$defs": {"n": {"type": "object", "properties": {"name": {}, "parent": {"$ref": "#/$defs/n"}}}},
}


async def test_arguments_with_odd_names_and_recursive_schemas_come_through() -> None:
    node = {"name": "a", "parent": {"name": "b"}}
    async with AnthropicService() as model, serving(model.provider()) as served:
        model.play(
            Reply(calls=(Call("device_list", {"top": 3}),)),
            Reply(calls=(Call("device_list", {"filter": "x eq 1", "top": 3, "node": node}),)),
            Reply(text="Done."),
        )
        async with phone_with(served, list=FILTER) as phone:
            await phone.ask("list")
            assert phone.runs == [("device.list", {"$filter": "x eq 1", "$top": 3, "node": node})]
            assert phone.finals() == ["Done."]
        assert "missing required argument 'filter'" in model.texts()
        (tool,) = (tool for tool in model.requests[0]["tools"] if tool["name"] == "device_list")
        schema = tool["input_schema"]
        assert list(schema["properties"]) == ["filter", "top", "node"] and schema["required"] == ["filter"]
        assert str(schema).count("'name'") == 4
        assert not model.refused
