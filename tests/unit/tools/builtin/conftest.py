"""The folders of the tests of file tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from conductor.plugins.tools.functions import PythonToolset, builtin_tool
from conductor.tools.base import CallContext
from conductor.tools.outcomes import ToolOutcome


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make a root with the folder ``a``, and a folder next to the root that no tool may touch."""
    folder = tmp_path / "root"
    (folder / "a").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("secret")
    return folder


def paths_in(folder: Path) -> list[str]:
    """List the paths of files and folders below a folder, in order."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


async def run(
    function: Callable[..., Any], arguments: Mapping[str, Any], context: CallContext
) -> ToolOutcome:
    """Call a tool with validated arguments, as the server does."""
    tool = builtin_tool(function)
    return await PythonToolset([tool]).call(tool.spec.name, arguments, context)


async def preview_of(function: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    """Return a tool's description of a call."""
    preview = builtin_tool(function).spec.preview
    assert preview is not None
    return await preview(arguments)


def reason_of(function: Callable[..., Any], arguments: Mapping[str, Any]) -> str | None:
    """Return why a call of a tool must ask."""
    sensitive = builtin_tool(function).spec.sensitive
    assert sensitive is not None
    return sensitive(arguments)
