"""Tool declarations of clients and catalog files, parsed into `ToolSpec`s.

A declaration is MCP's Tool (`name`, `description`, `inputSchema`, `annotations`), with `_meta.conductor` for
the fields that MCP lacks (docs/protocol-reference.md).
"""

from __future__ import annotations

import hashlib
import re
import time
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

import msgspec
from msgspec import Meta, Struct, field

from conductor.config_file import read_json
from conductor.errors import SettingsError
from conductor.rate_limit import Admission
from conductor.tools.base import ToolSpec
from conductor.tools.outcomes import Effect, OnInterrupt, Risk
from conductor.tools.schema import SchemaError
from conductor.tools.validation import schemas
from conductor.version import PACKAGE

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

CATALOGS = PACKAGE / "catalogs"
"""The package's catalogs; DEVICE_TOOLS_FILE names one without its suffix."""

NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}\Z")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_FIELDS = "name title description inputSchema outputSchema annotations icons execution _meta".split()
"""The fields of MCP's Tool."""
_RISKS: dict[Effect, Risk] = {"read": "safe", "write": "medium", "irreversible": "high"}


_Title: TypeAlias = Annotated[str, Meta(max_length=MAX_TITLE_CHARS)] | None


class _Wishes(
    Struct, rename="camel", forbid_unknown_fields=True, kw_only=True
):  # a misspelt "approval" would be ignored
    timeout_ms: Annotated[float, Meta(ge=1, le=MAX_TIMEOUT_MS)] | None = None
    interactive: bool | None = None
    mode: Literal["sync", "async"] | None = None
    on_interrupt: OnInterrupt | None = None
    approval: Literal["never", "ask"] | None = None
    spoken: Annotated[str, Meta(max_length=MAX_SPOKEN_CHARS)] | None = None


class _Annotations(Struct, rename="camel", kw_only=True):
    title: _Title = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class _Extension(Struct):
    conductor: _Wishes | None = None


class _Declaration(Struct, rename="camel", kw_only=True):
    name: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.:/-]{1,128}\Z")]
    input_schema: Any
    title: _Title = None
    description: str | None = None
    annotations: _Annotations | None = None
    meta: _Extension | None = field(default=None, name="_meta")


class Declared(NamedTuple):
    """The tools of a list of declarations, and the name and reason of each rejected one."""

    accepted: list[ToolSpec]
    rejected: list[tuple[str, str]]


class Refused(Exception):
    """A declaration that is not accepted; the message is the reason."""

    def __init__(self, reason: str, name: str = "") -> None:
        super().__init__(reason)
        self.name = name


ReadTool: TypeAlias = ToolSpec | Refused
"""The result for one declaration, independent of the others."""

# Equal declarations, such as an app's in all its sessions, are one tool, which is compiled and rendered once.
_specs: WeakValueDictionary[bytes, ToolSpec] = WeakValueDictionary()


def parse_declarations(
    declarations: Sequence[Any],
    *,
    readings: Iterable[ReadTool] | None = None,
    reserved_names: Collection[str] = (),
) -> Declared:
    """Read decoded JSON declarations; an invalid one is rejected and does not affect the others.

    ``readings`` come from `read_declarations`, ``reserved_names`` from other toolsets. Never raises. After
    `MAX_TOOLS` tools and as many rejections reading stops, and the last rejection says so.
    """
    accepted: dict[str, ToolSpec] = {}
    rejected: list[tuple[str, str]] = []
    if readings is None:
        readings = map(_read, declarations)
    for index, reading in enumerate(readings):
        if isinstance(reading, Refused):
            reason = str(reading)
        elif len(accepted) >= MAX_TOOLS:
            reason = f"more than {MAX_TOOLS} tools"
        elif reading.name.startswith(SERVER_PREFIXES):
            reason = f"names that start with {', '.join(SERVER_PREFIXES)} are the server's own"
        elif reading.name in reserved_names:
            reason = "this name is taken by another tool"
        elif reading.name in accepted:
            reason = "declared twice; the first one stands"
        else:
            accepted[reading.name] = reading
            continue
        if len(rejected) == MAX_TOOLS:
            rejected.append(("", f"{len(declarations) - index} more declarations were not read"))
            break
        rejected.append((reading.name, reason))
    return Declared(list(accepted.values()), rejected)


def unknown_fields(declaration: Any) -> Iterator[str]:
    """Name the unknown fields of a declaration; they have no effect."""
    if not isinstance(declaration, dict):
        return
    yield from (name for name in declaration if name not in _FIELDS)
    for outer, struct in (("annotations", _Annotations), ("_meta", _Extension)):
        inner, names = declaration.get(outer), struct.__struct_encode_fields__
        if isinstance(inner, dict):  # MCP: a name with a slash in _meta belongs to another vendor
            yield from (f"{outer}.{name}" for name in inner if name not in names and "/" not in name)


async def read_declarations(declarations: Sequence[Any], admission: Admission) -> list[ReadTool]:
    """Read declarations in admitted steps of `READ_S`: a frame of declarations may take 0.5 s."""
    readings: list[ReadTool] = []
    started = time.perf_counter()
    for declaration in declarations[: 2 * MAX_TOOLS + 1]:
        if time.perf_counter() - started > READ_S:
            await admission.enter()
            started = time.perf_counter()
        readings.append(_read(declaration))
    return readings


def _read(declaration: Any) -> ReadTool:
    try:
        key = hashlib.sha256(msgspec.json.encode(declaration)).digest()
    except (UnicodeEncodeError, OverflowError, RecursionError):
        return _unshared(declaration)
    reading = _specs.get(key) or _unshared(declaration)
    if isinstance(reading, ToolSpec):
        _specs[key] = reading
    return reading


def _unshared(declaration: Any) -> ReadTool:
    try:
        return _spec(msgspec.convert(declaration, _Declaration))
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$.")
        prefix = f"{path[:-1]}: " if path else ""
        return Refused(f"{prefix}{problem[0].lower()}{problem[1:]}", _shown_name(declaration))
    except (Refused, SchemaError) as refused:
        return Refused(str(refused), _shown_name(declaration))


def _spec(declaration: _Declaration) -> ToolSpec:
    hints = declaration.annotations or _Annotations()
    wishes = (declaration.meta or _Extension()).conductor or _Wishes()
    # MCP: "destructiveHint … is meaningful only when readOnlyHint == false". MCP's default, destructive, does
    # not apply: without a hint a tool is a write.
    effect: Effect = "irreversible" if hints.destructive_hint else "write"
    if hints.read_only_hint:
        effect = "read"
    spec = ToolSpec(
        name=declaration.name,
        description=_description(declaration.description or ""),
        input_schema=declaration.input_schema,
        risk=_RISKS[effect],
        effect=effect,
        timeout_s=None if wishes.timeout_ms is None else wishes.timeout_ms / 1000,
        interactive=bool(wishes.interactive),
        mode=wishes.mode or "sync",
        on_interrupt=wishes.on_interrupt or ("cancel" if effect == "read" else "keep"),
        approval=wishes.approval,
        open_world=bool(hints.open_world_hint),
        untrusted=bool(hints.open_world_hint),
        title=_stripped(declaration.title) or _stripped(hints.title),
        spoken=_stripped(wishes.spoken),
    )
    # Compiled at the declaration: an error is reported there, and the first call does not wait.
    schemas.get(spec)
    _check_template(spec)
    return spec


def _description(text: str) -> str:
    # A description that is too long is rejected, not cut: the cut might remove the sentence that says when
    # not to use the tool.
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise Refused("description is not Unicode (half of a surrogate pair)") from None
    if size > MAX_DESCRIPTION_BYTES:
        raise Refused(f"description is larger than {MAX_DESCRIPTION_BYTES} bytes")
    return text


def _stripped(text: str | None) -> str | None:
    return (text or "").encode(errors="replace").decode().strip() or None


def _check_template(spec: ToolSpec) -> None:
    if spec.spoken is None:
        return
    if re.search(r"[{}]", _PLACEHOLDER.sub("", spec.spoken)):
        raise Refused("spoken has a brace without its partner")
    for name in _PLACEHOLDER.findall(spec.spoken):
        if name not in spec.input_schema.get("properties", {}):
            raise Refused(f"spoken names {name!r}, which is not among the properties of inputSchema")


def headline(spec: ToolSpec, arguments: Mapping[str, Any]) -> str:
    """Name a call on its card: its template filled in, else its title; empty without both.

    A stranger's title must not pass for the server's words, and no value hides or reorders others.
    """
    parts = _PLACEHOLDER.split(spec.spoken or "")
    values = [arguments.get(name) for name in parts[1::2]]
    if spec.spoken and all(isinstance(value, str | int | float) for value in values):
        parts[1::2] = [str(value)[:MAX_SPOKEN_CHARS] for value in values]
        text = "".join(parts)
    else:
        text = "" if spec.untrusted and spec.source.startswith("mcp:") else spec.title or ""
    text = " ".join("".join(char if unicodedata.category(char)[0] != "C" else " " for char in text).split())
    return f"{text[:1].upper()}{text[1:]}"


def _shown_name(declaration: Any) -> str:
    name = declaration.get("name") if isinstance(declaration, dict) else None
    return name[:128].encode(errors="replace").decode() if isinstance(name, str) else ""


# -- the catalog


def catalog_path(setting: Path) -> Path | None:
    """Return the file that DEVICE_TOOLS_FILE names: one of `CATALOGS`, or a path; None for ``none``."""
    name = str(setting).lower()
    if name == "none":
        return None
    packaged = CATALOGS / f"{name}.json"
    return packaged if packaged in CATALOGS.iterdir() else setting


def read_catalog(setting: Path) -> list[Any]:
    """Read a catalog's declarations: a list under ``tools`` of a JSON object; none for ``none``.

    Raises `SettingsError` for a file that cannot be read.
    """
    path = catalog_path(setting)
    if path is None:
        return []
    catalog = read_json(path, f"The tool catalog {path.name}")
    declarations = catalog.get("tools") if isinstance(catalog, dict) else None
    if not isinstance(declarations, list):
        raise SettingsError(f'The tool catalog {path.name} must be a JSON object with a list under "tools".')
    return declarations


def load_catalog(setting: Path) -> tuple[ToolSpec, ...]:
    """Read the tools of a catalog; raises `SettingsError`, also for the first tool that is rejected."""
    accepted, rejected = parse_declarations(read_catalog(setting))
    if rejected:
        tool, reason = rejected[0]
        raise SettingsError(
            f"The tool catalog {setting.name} has a tool that is not accepted, {tool or '?'}: "
            f"{reason.rstrip('.')}."
        )
    # The operator's catalog is trusted; a client's declarations are not.
    return tuple(replace(spec, untrusted=False) for spec in accepted)
