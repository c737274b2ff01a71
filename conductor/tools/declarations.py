"""Tool declarations of clients, MCP servers and catalog files, parsed into `ToolSpec`s.

A declaration is MCP's Tool (`name`, `description`, `inputSchema`, `annotations`), with `_meta.conductor` for
the fields that MCP lacks (docs/protocol-reference.md).
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from conductor.rate_limit import Admission
from conductor.tools.base import Effect, OnInterrupt, Risk, ToolSpec
from conductor.tools.schema import SchemaError
from conductor.tools.validation import schemas

# Limits of a client's declarations: the model reads all of them in each request.
MAX_TOOLS = 128
MAX_DESCRIPTION_BYTES = 4 * 1024
MAX_TIMEOUT_MS = 60 * 60 * 1000
MAX_TITLE_CHARS = 80
MAX_SPOKEN_CHARS = 240
# Seconds of reading after which other work runs.
READ_S = 0.0005

SERVER_PREFIXES = ("convo.", "tts.", "bridge.")
"""Names of the server's own calls on a client; no model may call them."""

NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}\Z")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_WISHES = ("timeoutMs", "interactive", "mode", "onInterrupt", "approval", "spoken")
_FIELDS = "name title description inputSchema outputSchema annotations icons execution _meta".split()
"""The fields of MCP's Tool."""
_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_RISKS: dict[Effect, Risk] = {"read": "safe", "write": "medium", "irreversible": "high"}


class Declared(NamedTuple):
    """The tools of a list of declarations, and the name and reason of each rejected one."""

    accepted: list[ToolSpec]
    rejected: list[tuple[str, str]]


class Refused(Exception):
    """A declaration that is not accepted; the message is the reason."""

    def __init__(self, reason: str, name: str = "") -> None:
        super().__init__(reason)
        self.name = name


Reading: TypeAlias = ToolSpec | Refused
"""The result for one declaration, independent of the others."""


def parse_declarations(
    declarations: Sequence[Any],
    source: str = "device",
    *,
    readings: Iterable[Reading] | None = None,
    reserved_prefixes: tuple[str, ...] = SERVER_PREFIXES,
    reserved_names: Collection[str] = (),
    max_tools: int = MAX_TOOLS,
) -> Declared:
    """Read decoded JSON declarations; an invalid one is rejected and does not affect the others.

    ``readings`` come from `read_declarations`, ``reserved_names`` from other toolsets. Never raises. After
    ``max_tools`` tools and as many rejections reading stops, and the last rejection says so.
    """
    accepted: dict[str, ToolSpec] = {}
    rejected: list[tuple[str, str]] = []
    if readings is None:
        readings = (_read(declaration, source) for declaration in declarations)
    for index, reading in enumerate(readings):
        if isinstance(reading, Refused):
            reason = str(reading)
        elif len(accepted) >= max_tools:
            reason = f"more than {max_tools} tools"
        elif reading.name.startswith(reserved_prefixes):
            reason = f"names that start with {', '.join(reserved_prefixes)} are the server's own"
        elif reading.name in reserved_names:
            reason = "this name is taken by another tool"
        elif reading.name in accepted:
            reason = "declared twice; the first one stands"
        else:
            accepted[reading.name] = reading
            continue
        if len(rejected) == max_tools:
            rejected.append(("", f"{len(declarations) - index} more declarations were not read"))
            break
        rejected.append((reading.name, reason))
    return Declared(list(accepted.values()), rejected)


def unknown_fields(declaration: Any) -> Iterator[str]:
    """Name the unknown fields of a declaration; they have no effect."""
    if not isinstance(declaration, dict):
        return
    yield from (name for name in declaration if name not in _FIELDS)
    for field, names in (("annotations", ("title", *_HINTS)), ("_meta", ("conductor",))):
        inner = declaration.get(field)
        if isinstance(inner, dict):  # MCP: a name with a slash in _meta belongs to another vendor
            yield from (f"{field}.{name}" for name in inner if name not in names and "/" not in name)


async def read_declarations(declarations: Sequence[Any], admission: Admission) -> list[Reading]:
    """Read declarations in admitted steps of `READ_S`: a frame of declarations may take 0.5 s."""
    readings: list[Reading] = []
    started = time.perf_counter()
    for declaration in declarations[: 2 * MAX_TOOLS + 1]:
        if time.perf_counter() - started > READ_S:
            await admission.enter()
            started = time.perf_counter()
        readings.append(_read(declaration, "device"))
    return readings


def _read(declaration: Any, source: str) -> Reading:
    try:
        return _spec(declaration, source)
    except (Refused, SchemaError) as refused:
        return Refused(str(refused), _shown_name(declaration))


def _spec(declaration: Any, source: str) -> ToolSpec:
    if not isinstance(declaration, dict):
        raise Refused("a declaration must be a JSON object")
    name = declaration.get("name")
    if not isinstance(name, str) or not NAME.match(name):
        raise Refused("name must be 1 to 128 of A-Z a-z 0-9 _ . : / -")
    if "inputSchema" not in declaration:
        raise Refused("inputSchema is missing")
    annotations = _object(declaration, "annotations")
    effect = _effect(annotations)
    wishes = _object(_object(declaration, "_meta"), "conductor")
    for unknown in wishes.keys() - set(_WISHES):  # a misspelt "approval" would have no effect
        raise Refused(f"_meta.conductor has no {unknown[:80]!r}, only {', '.join(_WISHES)}")
    default: OnInterrupt = "cancel" if effect == "read" else "keep"
    spec = ToolSpec(
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
        title=_text(declaration, "title", MAX_TITLE_CHARS) or _text(annotations, "title", MAX_TITLE_CHARS),
        spoken=_text(wishes, "spoken", MAX_SPOKEN_CHARS),
    )
    # Compiled at the declaration: an error is reported there, and the first call does not wait.
    schemas.get(spec)
    _check_template(spec)
    return spec


def _effect(annotations: Mapping[str, Any]) -> Effect:
    # MCP: "destructiveHint … is meaningful only when readOnlyHint == false". MCP's default, destructive, does
    # not apply: without a hint a tool is a write.
    hints = {hint: _flag(annotations, hint) for hint in _HINTS}
    if hints["readOnlyHint"]:
        return "read"
    return "irreversible" if hints["destructiveHint"] else "write"


def _description(declaration: Mapping[str, Any]) -> str:
    # A description that is too long is rejected, not cut: the cut might remove the sentence that says when
    # not to use the tool.
    description = declaration.get("description")
    if description is None:
        return ""
    if not isinstance(description, str):
        raise Refused("description must be text")
    try:
        size = len(description.encode())
    except UnicodeEncodeError:
        raise Refused("description is not Unicode (half of a surrogate pair)") from None
    if size > MAX_DESCRIPTION_BYTES:
        raise Refused(f"description is larger than {MAX_DESCRIPTION_BYTES} bytes")
    return description


def _check_template(spec: ToolSpec) -> None:
    if spec.spoken is None:
        return
    if re.search(r"[{}]", _PLACEHOLDER.sub("", spec.spoken)):
        raise Refused("spoken has a brace without its partner")
    for name in _PLACEHOLDER.findall(spec.spoken):
        if name not in spec.input_schema.get("properties", {}):
            raise Refused(f"spoken names {name!r}, which is not among the properties of inputSchema")


def _timeout(wishes: Mapping[str, Any]) -> float | None:
    timeout_ms = wishes.get("timeoutMs")
    if timeout_ms is None:
        return None
    if isinstance(timeout_ms, bool) or not isinstance(timeout_ms, int | float):
        raise Refused("timeoutMs must be a number of milliseconds")
    if not 1 <= timeout_ms <= MAX_TIMEOUT_MS:
        raise Refused(f"timeoutMs must be between 1 and {MAX_TIMEOUT_MS}")
    return timeout_ms / 1000


def _object(holder: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = holder.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Refused(f"{key} must be a JSON object")
    return value


def _text(holder: Mapping[str, Any], key: str, limit: int) -> str | None:
    value = holder.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > limit:
        raise Refused(f"{key} must be text of at most {limit} characters")
    return value.encode(errors="replace").decode().strip() or None


def _flag(holder: Mapping[str, Any], key: str) -> bool:
    value = holder.get(key)
    if value is not None and not isinstance(value, bool):
        raise Refused(f"{key} must be true or false")
    return bool(value)


def _choice(holder: Mapping[str, Any], key: str, choices: tuple[str, ...]) -> str | None:
    value = holder.get(key)
    if value is not None and value not in choices:
        raise Refused(f"{key} must be {' or '.join(choices)}")
    return value


def _shown_name(declaration: Any) -> str:
    name = declaration.get("name") if isinstance(declaration, dict) else None
    return name[:128].encode(errors="replace").decode() if isinstance(name, str) else ""
