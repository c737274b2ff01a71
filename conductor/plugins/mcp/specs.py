"""The `ToolSpec`s of an MCP server's tools, whose texts are not trusted."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import msgspec

from conductor.lines import in_line
from conductor.plugins.mcp.config import McpServerConfig
from conductor.tools.base import PersonQuestion, ToolSpec
from conductor.tools.declarations import MAX_DESCRIPTION_BYTES, MAX_TITLE_CHARS, MAX_TOOLS
from conductor.tools.outcomes import Effect, Risk, truncate
from conductor.tools.schema import SchemaError, read_schema
from conductor.tools.validation import schemas

if TYPE_CHECKING:
    from mcp.types import ElicitRequestFormParams, Tool, ToolAnnotations

# Bytes of all schemas of one server: the model reads them in each request.
MAX_SCHEMAS_BYTES = 256 * 1024
# Characters of a question.
MAX_MESSAGE_CHARS = 1_000

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,95}\Z")
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?")
_TEXTS = ("description", "title", "$comment")
"""Keywords of a schema whose texts do not affect validation."""


def make_specs(config: McpServerConfig, tools: Sequence[Tool]) -> tuple[tuple[ToolSpec, ...], list[str]]:
    """Make the specs, and list the omitted tools with the reasons, one sentence each."""
    specs: dict[str, ToolSpec] = {}
    warnings: list[str] = []
    size = 0
    for tool in tools:
        if config.tools and not any(fnmatchcase(tool.name, glob) for glob in config.tools):
            continue
        try:
            spec = _spec(config, tool)
        except (SchemaError, msgspec.MsgspecError, ValueError, RecursionError) as error:
            warnings.append(f"{ascii(tool.name[:64])} is omitted: {str(error)[:200]}.")
            continue
        size += len(msgspec.json.encode(spec.input_schema))
        if len(specs) == MAX_TOOLS or size > MAX_SCHEMAS_BYTES:
            warnings.append(f"{spec.name} and later tools are omitted: too many tools; select some by tools.")
            break
        if spec.name in specs:
            warnings.append(f"{spec.name} is listed twice; the first one is used.")
            continue
        specs[spec.name] = spec
    for name in config.risk:
        if f"{config.name}.{name}" not in specs:
            warnings.append(f"risk names {name}, which is not one of its tools.")
    return tuple(specs.values()), warnings


def make_question(server: str, params: ElicitRequestFormParams) -> PersonQuestion | None:
    """Make the question of a server's form; None if its schema is not supported."""
    form: Any = params.requested_schema
    form = form if isinstance(form, dict) else form.model_dump(by_alias=True, exclude_none=True)
    try:
        schema = _clean_schema(form)
        read_schema(schema)
    except (SchemaError, ValueError, RecursionError):
        return None
    return PersonQuestion(server, clean(params.message)[:MAX_MESSAGE_CHARS], schema)


def clean(text: str) -> str:
    """Remove escape sequences, and control, bidi and other invisible characters, except newline and tab."""
    text = _ANSI.sub("", text)
    return "".join(
        char for char in text if char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co")
    )


def _spec(config: McpServerConfig, tool: Tool) -> ToolSpec:
    if not _NAME.match(tool.name):
        raise ValueError("a name is 1 to 95 of A-Z a-z 0-9 _ . : / -")
    if tool.execution is not None and tool.execution.task_support == "required":
        raise ValueError("it only runs as a task, which is not supported")
    hints = tool.annotations
    risk = config.risk.get(tool.name)
    # An operator who sets a tool's risk has reviewed it; other hints of an untrusted server do not count.
    trusted_hints = hints if config.trust or risk is not None else None
    open_world = not config.trust or hints is None or hints.open_world_hint is not False
    title = in_line(clean(tool.title or (hints.title if hints else None) or ""))
    spec = ToolSpec(
        name=f"{config.name}.{tool.name}",
        description=truncate(clean(tool.description or ""), MAX_DESCRIPTION_BYTES),
        input_schema=_clean_schema(tool.input_schema),
        source=f"mcp:{config.name}",
        risk=risk or (_risk(hints) if config.trust else "high"),
        effect=_effect(trusted_hints),
        timeout_s=config.timeout,
        open_world=open_world,
        untrusted=open_world,
        title=title[:MAX_TITLE_CHARS].strip() or None,
    )
    # Compiled now, so that a fault is reported here.
    schemas.get(spec)
    return spec


def _risk(hints: ToolAnnotations | None) -> Risk:
    if hints is None or (hints.read_only_hint is None and hints.destructive_hint is None):
        return "medium"
    if hints.read_only_hint:
        return "safe" if hints.open_world_hint is False else "medium"
    return "medium" if hints.destructive_hint is False else "high"


def _effect(hints: ToolAnnotations | None) -> Effect:
    if hints is not None and hints.read_only_hint:
        return "read"
    return "irreversible" if hints is not None and hints.destructive_hint else "write"


def _clean_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", **_clean(schema, "", 0)}


def _clean(value: Any, key: str, depth: int) -> Any:
    if depth > 64:
        raise ValueError("its schema is nested too deep")
    if isinstance(value, dict):
        return {_plain(name): _clean(item, name, depth + 1) for name, item in value.items()}
    if isinstance(value, list):
        return [_clean(item, "", depth + 1) for item in value]
    if not isinstance(value, str):
        return value
    # The server would not recognize a changed value.
    return clean(value) if key in _TEXTS else _plain(value)


def _plain(text: str) -> str:
    if clean(text) != text:
        raise ValueError("its schema contains control or invisible characters")
    return text
