"""The YAML files of rehearsals: what a file may hold, and one sentence for each mistake."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from conductor.errors import ModelFailure, SettingsError
from conductor.settings import Settings

SCRIPTED = "scripted"
"""The ``model`` whose replies stand in the file."""

OWN_SETTINGS = {
    "host": "127.0.0.1",
    "port": 0,
    "web": "off",
    "workers": 1,
    "auth_tokens": (),
    "admin_token": None,
    "audit_log": None,
    "session_store_url": "memory://",
    "session_rate_limit_per_min": 1_000_000,
}
"""Settings of every rehearsal: it is alone with its server, and leaves nothing behind."""

Moment = Literal["transcript", "card", "call", "answer", "speech"]
MOMENTS: tuple[Moment, ...] = get_args(Moment)

_Seconds = Annotated[float, Field(ge=0, le=3600)]
_Count = Annotated[int, Field(ge=0)]


class _Loader(yaml.SafeLoader):
    """YAML 1.2's plain values: ``on`` and ``yes`` are texts, and so are 12:30 and 2026-03-01."""

    yaml_implicit_resolvers = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        # YAML takes the last of two fields with the same name, and what the first expected would be lost.
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} is there twice", problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in (
    ("null", r"null|~|", ["n", "~", ""]),
    ("bool", r"true|false", "tf"),
    ("int", r"-?(0|[1-9][0-9]*)", "-0123456789"),
    ("float", r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?", "-0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})\\Z"), list(_first))


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Call(_Part):
    """A call of a tool: one that a scripted reply makes, or that a step expects with these ``arguments``.

    A step may expect more than it names: the arguments are part of the call's. Without ``times`` it expects
    one call or more.
    """

    tool: str
    arguments: dict[str, Any] = {}
    times: _Count | None = None

    @model_validator(mode="before")
    @classmethod
    def _name(cls, value: Any) -> Any:
        return {"tool": value} if isinstance(value, str) else value


class Reply(_Part):
    """One reply of the scripted model: a text, calls, both, or a failure; ``after`` is in seconds."""

    say: str = ""
    calls: tuple[Call, ...] = ()
    error: ModelFailure | None = None
    after: _Seconds = 0

    @model_validator(mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        return {"say": value} if isinstance(value, str) else value


class ToolAnswer(_Part):
    """What a tool of the device answers to calls whose arguments hold ``when``; ``delay`` is in seconds."""

    when: dict[str, Any] = {}
    result: Any = None
    error: str | None = None
    delay: _Seconds = 0
    once: bool = False


class Tool(_Part):
    """A tool of the device: MCP's Tool, and its ``answers``, of which the first that fits is given."""

    model_config = ConfigDict(extra="allow")  # what a Tool may hold the server knows best

    name: str
    answers: tuple[ToolAnswer, ...] = (ToolAnswer(result="ok"),)

    @property
    def declaration(self) -> dict[str, Any]:
        """The tool as the app declares it."""
        return self.model_dump(exclude={"answers"})


class Decision(_Part):
    """What the person decides about a call that needs consent, and how.

    ``words`` are what is said: by voice, or with a refusal. ``edit`` holds all arguments as they shall be.
    """

    by: Literal["tap", "voice", "deny"]
    words: str | None = None
    edit: dict[str, Any] | None = None
    scope: Literal["once", "session", "always"] = "once"

    @model_validator(mode="before")
    @classmethod
    def _way(cls, value: Any) -> Any:
        return {"by": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _fits(self) -> Decision:
        if self.by != "tap" and (self.edit is not None or self.scope != "once"):
            raise ValueError("edit and scope need by: tap")
        if self.by == "tap" and self.words is not None:
            raise ValueError("words need by: voice or by: deny")
        return self


class Interruption(_Part):
    """When the person speaks over the answer, counted from where it is spoken; ``heard`` is what they heard.

    Without ``heard`` it is the text up to there, or for ``after_ms`` the time.
    """

    after_characters: _Count | None = None
    after_ms: _Count | None = None
    heard: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Interruption:
        if (self.after_characters is None) == (self.after_ms is None):
            raise ValueError("it needs after_characters or after_ms, and not both")
        return self


class Expectation(_Part):
    """What a step is to bring; what is left out may be anything, but errors are expected only if named.

    ``said`` and ``not_said`` are regular expressions, looked for in all that was spoken. ``approvals`` are
    the outcomes of ``approval.resolved``, ``errors`` the codes of ``error`` events. ``judge`` is a question
    about the step that a model is to answer with yes; it is asked only with ``--judge``.
    """

    called: tuple[Call, ...] = ()
    not_called: tuple[str, ...] = ()
    said: str | None = None
    not_said: str | None = None
    state: str | None = None
    approvals: tuple[str, ...] | None = None
    errors: tuple[str, ...] = ()
    judge: str | None = None

    @field_validator("said", "not_said")
    @classmethod
    def _pattern(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"it is no regular expression: {error}") from None
        return value


class StepLimits(_Part):
    """The most that a step may take."""

    seconds: Annotated[float | None, Field(gt=0, le=3600)] = None
    input_tokens: _Count | None = None
    output_tokens: _Count | None = None


class Step(_Part):
    """What the person says, does and expects. ``cut`` is when the socket is cut; the conversation goes on."""

    say: str
    approve: tuple[Decision, ...] = ()
    interrupt: Interruption | None = None
    cut: Literal[Moment, "random"] | None = None
    expect: Expectation = Expectation()
    limits: StepLimits = StepLimits()

    @field_validator("approve", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        return value if isinstance(value, list) else [value]


class Rehearsal(_Part):
    """One file. Without ``model`` it is the settings' one; without ``cards`` the app is asked by voice."""

    name: str = ""
    model: str | None = None
    replies: tuple[Reply, ...] = ()
    settings: dict[str, Any] = {}
    locale: str | None = None
    time_zone: str | None = None
    cards: bool = True
    segments: bool = False
    tools: tuple[Tool, ...] = ()
    steps: Annotated[tuple[Step, ...], Field(min_length=1)]

    @field_validator("settings")
    @classmethod
    def _known(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if name.lower() not in Settings.model_fields:
                raise ValueError(f"{name} is not a setting")
            if name.lower() in OWN_SETTINGS:
                raise ValueError(f"{name} is chosen by the rehearsal")
        return {name.lower(): one for name, one in value.items()}

    @model_validator(mode="after")
    def _complete(self) -> Rehearsal:
        if (self.model == SCRIPTED) != bool(self.replies):
            raise ValueError(f"model: {SCRIPTED} needs replies, and only that")
        if not self.cards and any(step.approve for step in self.steps):
            raise ValueError("without cards a question is spoken: answer it by a step of its own")
        ours = {tool.name for tool in self.tools}
        for call in (call for step in self.steps for call in step.expect.called):
            if call.arguments and call.tool not in ours:
                raise ValueError(f"arguments of {call.tool} are not seen: it is not among the tools here")
        return self


def load(path: Path) -> Rehearsal:
    """Read a file. Raises `SettingsError`, which names the file, the line and the field."""
    try:
        text = path.read_text(encoding="utf-8")
        loader = _Loader(text)
        root = loader.get_single_node()
        document = None if root is None else loader.construct_document(root)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}.") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path} cannot be read: it is not UTF-8 text.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        problem = getattr(error, "problem", None) or getattr(error, "reason", "it cannot be read")
        raise SettingsError(f"{path}{line} is not valid YAML: {problem}.") from None
    if not isinstance(document, dict):
        raise SettingsError(f"{path} is no rehearsal: it must hold fields such as steps.")
    try:
        rehearsal = Rehearsal.model_validate(document)
    except ValidationError as error:
        raise SettingsError(_mistake(path, root, error)) from None
    folder = path.parent
    settings = {name: _absolute(folder, name, value) for name, value in rehearsal.settings.items()}
    return rehearsal.model_copy(update={"name": rehearsal.name or path.stem, "settings": settings})


def _absolute(folder: Path, name: str, value: Any) -> Any:
    # Paths in the file are relative to the file.
    kind = Settings.model_fields[name].annotation
    if name == "file_roots" and isinstance(value, str | list):
        roots = value.split(",") if isinstance(value, str) else map(str, value)
        return [str(folder.resolve() / root.strip()) for root in roots]
    return folder.resolve() / value if Path in (kind, *get_args(kind)) and isinstance(value, str) else value


_SENTENCES = {
    "missing": "{} is missing",
    "too_short": "{} is empty",
    "string_type": "{} must be a text; put it in quotes",
    "tuple_type": "{} must be a list",
    "dict_type": "{} must hold fields",
    "model_type": "{} must hold fields",
}
"""Pydantic's kinds of mistakes in the file's words; others have a good sentence of their own."""


def _mistake(path: Path, root: yaml.Node | None, error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part + 1 if isinstance(part, int) else part) for part in first["loc"])
    where = f"{path}, line {_line(root, first['loc'])}"
    kind = first["type"]
    if kind in _SENTENCES:
        return f"{where}: {_SENTENCES[kind].format(field)}."
    if kind == "extra_forbidden":
        quotes = "; if it is a text, put it in quotes" if " " in field else ""
        return f"{where}: there is no {field}{quotes}."
    text = first["msg"]
    ours = text.removeprefix("Value error, ")
    text = ours if ours != text else text[:1].lower() + text[1:]
    return f"{where}: {field + ' is not valid: ' if field else ''}{text}{'' if text[-1] in '.?' else '.'}"


def _line(node: yaml.Node | None, loc: Sequence[int | str]) -> int:
    # The line of the field, or of the innermost part that is there.
    line = 1
    for part in loc:
        if isinstance(node, yaml.MappingNode):
            found = next((pair for pair in node.value if pair[0].value == part), None)
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            break
    return line
