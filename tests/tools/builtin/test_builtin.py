"""The set of built-in tools, and its registry."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
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
    assert {"get_current_time", "calculator", "add_task", "schedule_task"} < set(tools)
    for name, spec in tools.items():
        check_schema(spec.input_schema)
        assert spec.source == "builtin"
        assert spec.risk == ("medium" if name == "schedule_task" else "safe")
        assert spec.description


async def test_file_tools_are_there_where_there_are_folders_and_say_what_is_sensitive(tmp_path: Path) -> None:
    specs = {spec.name: spec for spec in BuiltinToolset(standard_tools(file_roots=[tmp_path])).specs()}
    assert {"get_file_tree", "list_directory", "search_files", "read_file", "create_file"} < set(specs)
    assert [specs[name].risk for name in ("get_file_tree", "read_file", "create_file")] == [
        "safe",
        "medium",
        "high",
    ]
    sensitive, preview = specs["read_file"].sensitive, specs["create_file"].preview
    assert sensitive is not None and preview is not None
    assert sensitive({"path": ".env"}) and sensitive({"path": "notes.txt"}) is None
    assert "notes.txt" in await preview({"path": "notes.txt", "content": "x"})


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
