"""The set of built-in tools, and its registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conductor.tools.base import CallContext, ToolOutcome, Toolset, ToolSpec, succeeded
from conductor.tools.builtin import BuiltinToolset, standard_tools
from conductor.tools.schema import check_schema
from conductor.tools.validation import Valid, validate

CONTEXT = CallContext("s", "c")


class Echo:
    """A tool that gives its arguments back."""

    spec = ToolSpec("echo", "", {"type": "object"}, source="builtin")

    async def run(self, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        return succeeded({"arguments": arguments, "call": context.call_id})


def test_the_standard_tools_are_sound_and_safe() -> None:
    tools = {tool.spec.name: tool.spec for tool in standard_tools()}
    assert list(tools) == ["get_current_time", "calculator"]
    for spec in tools.values():
        check_schema(spec.input_schema)
        assert (spec.source, spec.risk, spec.effect) == ("builtin", "safe", "read")
        assert spec.description


async def test_a_tool_is_run_by_its_name() -> None:
    toolset: Toolset = BuiltinToolset([Echo()])
    assert [spec.name for spec in toolset.specs()] == ["echo"]
    outcome = await toolset.call("echo", {"a": 1}, CONTEXT)
    assert outcome.data == {"arguments": {"a": 1}, "call": "c"}


async def test_a_name_that_is_not_there_is_an_outcome() -> None:
    outcome = await BuiltinToolset().call("echo", {}, CONTEXT)
    assert outcome.error_type == "not_found"


async def test_a_models_call_goes_from_text_to_result() -> None:
    toolset = BuiltinToolset()
    spec = next(spec for spec in toolset.specs() if spec.name == "calculator")
    checked = validate(spec, '{"expression": "17% of 2340"}')
    assert isinstance(checked, Valid)
    outcome = await toolset.call(spec.name, checked.arguments, CONTEXT)
    assert outcome.data == {"result": "397.8"}
