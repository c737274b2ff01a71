"""How the demo model fills in a tool's arguments: by the names that the offered schema uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from conductor.models.base import ToolDefinition

# Each role's usual names. The first is taken when the schema names none of them.
_NAMES: Mapping[str, Sequence[str]] = {
    "zone": ("timezone", "time_zone", "timeZone", "zone", "tz"),
    "expression": ("expression", "expr", "formula", "input"),
    "prompt": ("prompt", "message", "instructions", "task", "text", "followup"),
    "repository": ("repository", "repo", "repositoryUrl", "repository_url", "repoUrl", "repositoryId"),
    "agent": ("agentId", "agent_id", "id", "agent", "name"),
    "task": ("id", "task_id", "taskId", "task"),
    "status": ("status", "state"),
    "title": ("title", "description", "task", "text", "content", "name"),
    "path": ("path", "file_path", "file", "filename", "directory", "root"),
    "content": ("content", "contents", "text"),
    "filter": ("filter", "query", "search"),
    "pull_request": ("autoCreatePr", "autoCreatePR", "auto_create_pr"),
    "branch": ("autoBranch", "auto_branch"),
}
_ONLY_IF_OFFERED = ("filter", "pull_request", "branch")


def offered(tools: Sequence[ToolDefinition], name: str) -> ToolDefinition | None:
    """Return the tool called ``name``, also where it was written with underscores for dots."""
    wanted = name.replace(".", "_").casefold()
    exact = [tool for tool in tools if tool.name == name]
    return next(
        iter(exact + [tool for tool in tools if tool.name.replace(".", "_").casefold() == wanted]), None
    )


def arguments(tool: ToolDefinition, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for ``tool`` of the values by role."""
    properties: Mapping[str, Any] = tool.input_schema.get("properties") or {}
    filled: dict[str, Any] = {}
    for role, value in values.items():
        names = _NAMES[role]
        name = next((name for name in names if name in properties and name not in filled), None)
        if name is None and role in _ONLY_IF_OFFERED:
            continue
        name = name or names[0]
        filled[name] = _typed(role, value, properties.get(name))
    return filled


def _typed(role: str, value: Any, schema: Any) -> Any:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if isinstance(value, str) and value.isdecimal() and kind in ("integer", "number"):
        return int(value)
    if role == "task" and isinstance(value, str) and value.isdecimal() and len(value) < 10:
        return f"task_{int(value)}"  # tasks are numbered task_1, task_2, …; a person says the number
    return value
