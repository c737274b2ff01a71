"""Tool declarations as clients, MCP servers and catalog files write them, made into `ToolSpec`s.

A declaration is MCP's Tool (`name`, `description`, `inputSchema`, `annotations`), with `_meta.conductor` for
what MCP does not know: protocol, "Extensions".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple, cast

from conductor.tools.base import Effect, OnInterrupt, Risk, ToolSpec
from conductor.tools.schema import SchemaError, check_schema

MAX_TOOLS = 128
MAX_DESCRIPTION_BYTES = 4 * 1024
MAX_TIMEOUT_MS = 60 * 60 * 1000

SERVER_PREFIXES = ("convo.", "tts.", "bridge.")
"""Names of the calls that the server itself makes on a client; no model may call them."""

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}\Z")
_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_RISKS: dict[Effect, Risk] = {"read": "safe", "write": "medium", "irreversible": "high"}


class Declared(NamedTuple):
    """What came of a list of declarations: the tools, and for each refused one its name and the reason."""

    accepted: list[ToolSpec]
    rejected: list[tuple[str, str]]


class _Refused(Exception):
    """A declaration that is not accepted; the message is the reason."""


def parse_declarations(
    declarations: list[Any],
    source: str = "device",
    *,
    reserved_prefixes: tuple[str, ...] = SERVER_PREFIXES,
    reserved_names: Collection[str] = (),
    max_tools: int = MAX_TOOLS,
) -> Declared:
    """Read decoded JSON declarations; a bad one is refused with a reason and costs the others nothing.

    ``reserved_names`` are those that other toolsets have taken. Never raises. A list that goes on after
    ``max_tools`` tools and as many refusals is not read to its end, and the last refusal says so.
    """
    accepted: dict[str, ToolSpec] = {}
    rejected: list[tuple[str, str]] = []
    for index, declaration in enumerate(declarations):
        name = _shown_name(declaration)
        try:
            if len(accepted) >= max_tools:
                raise _Refused(f"more than {max_tools} tools")
            spec = _spec(declaration, source)
            if spec.name.startswith(reserved_prefixes):
                raise _Refused(f"names that start with {', '.join(reserved_prefixes)} are the server's own")
            if spec.name in reserved_names:
                raise _Refused("this name is taken by another tool")
            if spec.name in accepted:
                raise _Refused("declared twice; the first one stands")
            accepted[spec.name] = spec
        except (_Refused, SchemaError) as refused:
            if len(rejected) == max_tools:
                rejected.append(("", f"{len(declarations) - index} more declarations were not read"))
                break
            rejected.append((name, str(refused)))
    return Declared(list(accepted.values()), rejected)


def _spec(declaration: Any, source: str) -> ToolSpec:
    if not isinstance(declaration, dict):
        raise _Refused("a declaration must be a JSON object")
    name = declaration.get("name")
    if not isinstance(name, str) or not _NAME.match(name):
        raise _Refused("name must be 1 to 128 of A-Z a-z 0-9 _ . : / -")
    if "inputSchema" not in declaration:
        raise _Refused("inputSchema is missing")
    check_schema(declaration["inputSchema"])
    annotations = _object(declaration, "annotations")
    effect = _effect(annotations)
    wishes = _object(_object(declaration, "_meta"), "conductor")
    default: OnInterrupt = "cancel" if effect == "read" else "keep"
    return ToolSpec(
        name=name,
        description=_description(declaration),
        input_schema=declaration["inputSchema"],
        source=source,
        risk=_RISKS[effect],
        effect=effect,
        timeout_s=_timeout(wishes),
        interactive=_flag(wishes, "interactive"),
        mode=cast(Literal["sync", "async"], _choice(wishes, "mode", ("sync", "async")) or "sync"),
        on_interrupt=cast(OnInterrupt, _choice(wishes, "onInterrupt", ("cancel", "keep")) or default),
        approval=cast(Literal["never", "ask"] | None, _choice(wishes, "approval", ("never", "ask"))),
        open_world=_flag(annotations, "openWorldHint"),
        untrusted=_flag(annotations, "openWorldHint"),
    )


def _effect(annotations: Mapping[str, Any]) -> Effect:
    """Read MCP's hints.

    "destructiveHint … is meaningful only when readOnlyHint == false" (MCP, ToolAnnotations), so read-only is
    looked at first. Its default there, destructive, is not taken: without a hint a tool is a write.
    """
    hints = {hint: _flag(annotations, hint) for hint in _HINTS}
    if hints["readOnlyHint"]:
        return "read"
    return "irreversible" if hints["destructiveHint"] else "write"


def _description(declaration: Mapping[str, Any]) -> str:
    """Give the description, refused above 4 KiB.

    It is not cut: what follows the cut may be the sentence that says when not to use the tool, and its
    author, who could shorten it well, would not hear of it.
    """
    description = declaration.get("description")
    if description is None:
        return ""
    if not isinstance(description, str):
        raise _Refused("description must be text")
    try:
        size = len(description.encode())
    except UnicodeEncodeError:
        raise _Refused("description is no Unicode (half of a surrogate pair)") from None
    if size > MAX_DESCRIPTION_BYTES:
        raise _Refused(f"description is larger than {MAX_DESCRIPTION_BYTES} bytes")
    return description


def _timeout(wishes: Mapping[str, Any]) -> float | None:
    timeout_ms = wishes.get("timeoutMs")
    if timeout_ms is None:
        return None
    if isinstance(timeout_ms, bool) or not isinstance(timeout_ms, int | float):
        raise _Refused("timeoutMs must be a number of milliseconds")
    if not 1 <= timeout_ms <= MAX_TIMEOUT_MS:
        raise _Refused(f"timeoutMs must be between 1 and {MAX_TIMEOUT_MS}")
    return timeout_ms / 1000


def _object(holder: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = holder.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _Refused(f"{key} must be a JSON object")
    return value


def _flag(holder: Mapping[str, Any], key: str) -> bool:
    value = holder.get(key)
    if value is not None and not isinstance(value, bool):
        raise _Refused(f"{key} must be true or false")
    return bool(value)


def _choice(holder: Mapping[str, Any], key: str, choices: tuple[str, ...]) -> str | None:
    value = holder.get(key)
    if value is not None and value not in choices:
        raise _Refused(f"{key} must be {' or '.join(choices)}")
    return value


def _shown_name(declaration: Any) -> str:
    name = declaration.get("name") if isinstance(declaration, dict) else None
    return name[:128].encode(errors="replace").decode() if isinstance(name, str) else ""
