"""The set of built-in tools, their definitions, and the paths that file tools refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from conductor.plugins.tools.builtin import BuiltinToolset, builtin_specs, standard_tools
from conductor.tools.base import CallContext
from conductor.tools.schema import read_schema

CONTEXT = CallContext(session_id="s", call_id="c")
KINDS = """\
get_current_time safe read
calculator safe read
add_task safe write
list_tasks safe read
update_task safe write
schedule_task medium write
list_scheduled_tasks safe read
cancel_scheduled_task safe write
get_file_tree safe read
search_files medium read
read_file medium read
create_file high write
write_file high write
notes_create medium write
notes_search safe read
query_knowledge_base safe read
web_fetch medium read
web_search medium read
"""


def test_the_definitions_are_sound() -> None:
    specs = builtin_specs()
    assert "".join(f"{spec.name} {spec.risk} {spec.effect}\n" for spec in specs) == KINDS
    for spec in specs:
        read_schema(spec.input_schema)
        assert spec.source == "builtin" and spec.description
        assert spec.on_interrupt == ("cancel" if spec.effect == "read" else "keep")
        assert spec.untrusted or spec.name not in ("read_file", "notes_search", "web_fetch", "web_search")
        assert spec.open_world == spec.name.startswith("web_")


def test_a_tool_is_defined_once_a_process() -> None:
    first, second = standard_tools(), standard_tools()
    assert all(tool is again for tool, again in zip(first, second, strict=True))
    assert builtin_specs() is builtin_specs()


def test_tools_without_their_settings_are_not_offered() -> None:
    names = [tool.spec.name for tool in standard_tools()]
    assert names == [line.split()[0] for line in KINDS.splitlines()[:8]]


async def test_file_tools_ask_for_secrets_and_preview_changes(tmp_path: Path) -> None:
    specs = {spec.name: spec for spec in BuiltinToolset(standard_tools(file_roots=[tmp_path])).specs()}
    for name in ("read_file", "create_file", "write_file"):
        sensitive = specs[name].sensitive
        assert sensitive is not None
        assert sensitive({"path": ".git/config"}) == ".git/config may hold secrets"
        assert sensitive({"path": "notes.txt"}) is None
    for name in ("create_file", "write_file"):
        preview = specs[name].preview
        assert preview is not None
        assert "notes.txt" in await preview({"path": "notes.txt", "content": "x"})


FILE_TOOLS = ["get_file_tree", "search_files", "read_file", "create_file", "write_file"]
ARGUMENTS = {
    "search_files": {"query": "root"},
    "create_file": {"content": "x"},
    "write_file": {"content": "x"},
}


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("../outside/x", "validation_failed"),
        ("a/../../outside", "validation_failed"),
        ("x\0", "validation_failed"),
        ("/etc/passwd", "permission_denied"),
        ("link/x", "permission_denied"),
    ],
)
@pytest.mark.parametrize("tool", FILE_TOOLS)
async def test_a_path_outside_or_behind_a_link_is_refused(
    tmp_path: Path, tool: str, path: str, error: str
) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "link").symlink_to(outside)
    toolset = BuiltinToolset(standard_tools(file_roots=[root]))
    outcome = await toolset.call(tool, {**ARGUMENTS.get(tool, {}), "path": path}, CONTEXT)
    assert (outcome.success, outcome.error_type) == (False, error)
    assert outcome.error_message and outcome.error_message.endswith(".")
    assert str(tmp_path) not in outcome.content
    assert [*outside.iterdir()] == [] and [*root.iterdir()] == [root / "link"]


@pytest.mark.parametrize("tool", FILE_TOOLS)
async def test_a_missing_path_and_a_missing_root_are_reported(tmp_path: Path, tool: str) -> None:
    toolset = BuiltinToolset(standard_tools(file_roots=[tmp_path / "root"]))
    call = {**ARGUMENTS.get(tool, {}), "path": "missing/x"}
    outcome = await toolset.call(tool, call, CONTEXT)
    assert outcome.error_type == "io_error"
    assert outcome.error_message == "The folder 'root' is not available now."
    (tmp_path / "root").mkdir()
    if tool not in ("create_file", "write_file"):  # they create the folder
        assert (await toolset.call(tool, call, CONTEXT)).error_type == "not_found"
    (tmp_path / "root" / "missing").touch()
    if tool != "search_files":
        assert (await toolset.call(tool, call, CONTEXT)).error_type == "not_found"
