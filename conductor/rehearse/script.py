"""The YAML files of rehearsals: their fields, and one sentence for a mistake."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from conductor.client.pictures import Shown, wire_pictures
from conductor.config_file import read_text, validate
from conductor.errors import ModelFailure, SettingsError
from conductor.events.client import MAX_TTL_S
from conductor.images import MAX_IMAGES
from conductor.settings import Settings

# Of a file: `record` writes long ones.
MAX_BYTES = 16 * 1024 * 1024
SCRIPTED = "scripted"
"""The ``model`` with replies in the file."""

OWN_SETTINGS = {
    "host": "127.0.0.1",
    "port": 0,
    "web": "off",
    "device_tools_file": "none",
    "workers": 1,
    "auth_tokens": (),
    "api_keys": (),
    "admin_token": None,
    "audit_log": None,
    "session_store_url": "memory://",
    "session_rate_limit_per_min": 1_000_000,
}
"""Settings of every rehearsal: its server has one client and stores nothing."""

Moment = Literal["transcript", "card", "call", "answer", "speech"]
MOMENTS: tuple[Moment, ...] = get_args(Moment)

_Seconds = Annotated[float, Field(ge=0, le=3600)]
_Count = Annotated[int, Field(ge=0)]


class _Loader(yaml.SafeLoader):
    """YAML 1.2's plain values: ``on``, ``yes``, 12:30 and 2026-03-01 are texts."""

    yaml_implicit_resolvers = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        # YAML keeps the last of two fields with the same name, and drops the first silently.
        names: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in names:
                raise yaml.MarkedYAMLError(
                    problem=f"duplicate field {key.value}", problem_mark=key.start_mark
                )
            names.add(str(key.value))
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Writes YAML for `_Loader`: a text that looks like another value is quoted."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, _pattern, _first in (
    ("null", r"null|~|", ["n", "~", ""]),
    ("bool", r"true|false", "tf"),
    ("int", r"-?(0|[1-9][0-9]*)", "-0123456789"),
    ("float", r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?", "-0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})\\Z"), list(_first))


def _read_image(value: object) -> bytes:
    if not isinstance(value, str):
        raise ValueError("it is not the name of a file")
    try:
        data = Path(value).read_bytes()
    except OSError as error:
        raise ValueError(f"{value} cannot be read: {error.strerror}") from None
    wire_pictures([data])
    return data


_Images = Annotated[tuple[Annotated[bytes, BeforeValidator(_read_image)], ...], Field(max_length=MAX_IMAGES)]
"""Files of images, relative to the rehearsal; the server would accept each."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Call(_Part):
    """A call of a tool, in a scripted reply or in a step's expectations.

    An expected call has at least these ``arguments``. Without ``times`` one call or more is expected.
    """

    tool: str
    arguments: dict[str, Any] = {}
    times: _Count | None = None

    @model_validator(mode="before")
    @classmethod
    def _name(cls, value: Any) -> Any:
        return {"tool": value} if isinstance(value, str) else value


class Reply(_Part):
    """One reply of the scripted model: a text, calls, both, or a failure; ``after`` is a delay in seconds."""

    say: str = ""
    calls: tuple[Call, ...] = ()
    error: ModelFailure | None = None
    after: _Seconds = 0

    @model_validator(mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        return {"say": value} if isinstance(value, str) else value


class ToolAnswer(_Part):
    """A device tool's answer to calls with the arguments ``when``; ``delay`` is in seconds.

    ``images`` are files.
    """

    when: dict[str, Any] = {}
    result: Any = None
    images: _Images = ()
    error: str | None = None
    delay: _Seconds = 0
    once: bool = False


class Tool(_Part):
    """A tool of the device: MCP's Tool and its ``answers``. The first matching answer counts."""

    model_config = ConfigDict(extra="allow")  # the server validates a Tool

    name: str
    answers: tuple[ToolAnswer, ...] = (ToolAnswer(result="ok"),)

    @property
    def declaration(self) -> dict[str, Any]:
        """The app's declaration of the tool."""
        return self.model_dump(exclude={"answers"})


class Answers:
    """Answers the calls of tools; an answer with ``once`` is given once."""

    def __init__(self) -> None:
        self._given: set[int] = set()

    async def give(self, tool: Tool, arguments: Mapping[str, Any]) -> Any:
        """Return the first answer for these arguments after its delay.

        Raises `RuntimeError` with the text of its error, and `LookupError` if there is none.
        """
        for answer in tool.answers:
            if holds(arguments, answer.when) and id(answer) not in self._given:
                if answer.once:
                    self._given.add(id(answer))
                await asyncio.sleep(answer.delay)
                if answer.error is not None:
                    raise RuntimeError(answer.error)
                return Shown(answer.images, answer.result) if answer.images else answer.result
        raise LookupError("This tool has no answer to these arguments.")


def holds(value: Any, part: Any) -> bool:
    """Whether a value equals ``part``; an object needs matching values for the fields of ``part``."""
    if isinstance(part, Mapping):
        return isinstance(value, Mapping) and all(
            name in value and holds(value[name], field) for name, field in part.items()
        )
    return bool(value == part)


class Decision(_Part):
    """The person's decision on a call that needs consent.

    ``words`` are spoken, or the reason of a refusal. ``edit`` holds the new arguments, all of them.
    """

    by: Literal["tap", "voice", "deny"]
    words: str | None = None
    edit: dict[str, Any] | None = None
    scope: Literal["once", "session", "always"] = "once"

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"by": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _consistent(self) -> Decision:
        if self.by != "tap" and (self.edit is not None or self.scope != "once"):
            raise ValueError("edit and scope need by: tap")
        if self.by == "tap" and self.words is not None:
            raise ValueError("words need by: voice or by: deny")
        return self


class Interruption(_Part):
    """When the person speaks over the answer, counted from the start of its speech.

    ``heard`` is the heard text; by default the text up to that point, or for ``after_ms`` the time.
    """

    after_characters: _Count | None = None
    after_ms: _Count | None = None
    heard: str | None = None

    @model_validator(mode="after")
    def _exclusive(self) -> Interruption:
        if (self.after_characters is None) == (self.after_ms is None):
            raise ValueError("it needs either after_characters or after_ms")
        return self


class Expectation(_Part):
    """The expected result of a step. Missing fields are not checked, except ``errors``.

    ``said`` and ``not_said`` are regular expressions for the spoken text. ``approvals`` are the outcomes of
    ``approval.resolved``, ``errors`` the codes of ``error`` events. ``judge`` is a yes-or-no question about
    the step for a model; the expected answer is yes. It needs ``--judge``.
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
            raise ValueError(f"it is not a regular expression: {error}") from None
        return value


class StepLimits(_Part):
    """The limits of a step."""

    seconds: Annotated[float | None, Field(gt=0, le=3600)] = None
    input_tokens: _Count | None = None
    output_tokens: _Count | None = None


class ToldFact(_Part):
    """A fact that the app tells before the words of a step, as in ``context.add``."""

    text: str
    key: str | None = None
    ttl_s: Annotated[float | None, Field(ge=0, le=MAX_TTL_S)] = None
    untrusted: bool = False

    @model_validator(mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        return {"text": value} if isinstance(value, str) else value


class Step(_Part):
    """The person's words, actions and expectations. ``cut`` is the moment to cut the socket.

    ``images`` are files that the words are about, and ``context`` facts that the app tells before them.

    ``rest`` is the other half of the sentence, which follows after a pause. ``murmurs`` are words that only
    show that the person listens, each over a speech of the answer: the speech goes on.
    """

    say: str
    images: _Images = ()
    context: tuple[ToldFact, ...] = ()
    rest: str | None = None
    approve: tuple[Decision, ...] = ()
    interrupt: Interruption | None = None
    murmurs: tuple[str, ...] = ()
    cut: Literal[Moment, "random"] | None = None
    expect: Expectation = Expectation()
    limits: StepLimits = StepLimits()

    @field_validator("approve", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        return value if isinstance(value, list) else [value]


class Person(_Part):
    """A person played by a model, who speaks after the steps until the ``goal`` is reached or given up.

    ``success`` is a yes-or-no question about the whole conversation for the judge. ``cut`` applies to each
    turn.
    """

    persona: str
    goal: str
    success: str
    max_turns: Annotated[int, Field(ge=1, le=100)] = 10
    cut: Literal[Moment, "random"] | None = None


class Ledger(_Part):
    """Bounds on the calls that the server recorded. A broken one fails a rehearsal, also after a judge's yes.

    ``at_most`` counts the calls that ran, by tool; ``never`` are tools that must not run; ``asked_before``
    are tools of which each call needs an earlier yes; with ``no_unknown`` each outcome must be known.
    """

    at_most: dict[str, _Count] = {}
    never: tuple[str, ...] = ()
    asked_before: tuple[str, ...] = ()
    no_unknown: bool = False


class Rehearsal(_Part):
    """One file. ``model`` None selects the settings' model. Without ``cards`` approvals are by voice."""

    name: str = ""
    model: str | None = None
    replies: tuple[Reply, ...] = ()
    settings: dict[str, Any] = {}
    locale: str | None = None
    time_zone: str | None = None
    greeting: str | None = None
    variables: dict[str, str] | None = None
    cards: bool = True
    segments: bool = False
    tools: tuple[Tool, ...] = ()
    steps: tuple[Step, ...] = ()
    person: Person | None = None
    ledger: Ledger | None = None

    @field_validator("settings")
    @classmethod
    def _valid_names(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if name.lower() not in Settings.model_fields:
                raise ValueError(f"{name} is not a setting")
            if name.lower() in OWN_SETTINGS:
                raise ValueError(f"{name} has a fixed value in rehearsals")
        return {name.lower(): setting for name, setting in value.items()}

    @model_validator(mode="after")
    def _complete(self) -> Rehearsal:
        if (self.model == SCRIPTED) != bool(self.replies):
            raise ValueError(f"replies are required for model: {SCRIPTED}, and not allowed otherwise")
        if not self.steps and self.person is None:
            raise ValueError("steps or a person are required")
        if self.person is not None and self.cards:
            raise ValueError("a person answers spoken questions: set cards: false")
        if not self.cards and any(step.approve for step in self.steps):
            raise ValueError("approve needs cards; without cards a separate step answers the spoken question")
        names = {tool.name for tool in self.tools}
        for call in (call for step in self.steps for call in step.expect.called):
            if call.arguments and call.tool not in names:
                raise ValueError(f"arguments of {call.tool} are unknown: it is not one of the file's tools")
        return self


def dump(document: dict[str, Any]) -> str:
    """Write the document of a file as YAML."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def load(path: Path) -> Rehearsal:
    """Load a file. Raises `SettingsError` with the file and the field."""
    rehearsal = validate(Rehearsal, _read(path), str(path))
    folder = path.parent
    settings = {name: _absolute(folder, name, value) for name, value in rehearsal.settings.items()}
    return rehearsal.model_copy(update={"name": rehearsal.name or path.stem, "settings": settings})


def load_tools(path: Path) -> tuple[Tool, ...]:
    """Load the tools of a file, which may be a rehearsal. Raises `SettingsError`, as `load` does."""
    return validate(Rehearsal, _read(path) | {"steps": [{"say": ""}]}, str(path)).tools


def _read(path: Path) -> dict[str, Any]:
    text = read_text(path, max_bytes=MAX_BYTES)
    try:
        document = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        problem = getattr(error, "problem", None) or getattr(error, "reason", "it cannot be read")
        raise SettingsError(f"{path}{line} is not valid YAML: {problem}.") from None
    if not isinstance(document, dict):
        raise SettingsError(f"{path} must be a mapping of fields.")
    _place_images(document, path.parent.resolve())
    return document


def _place_images(document: dict[str, Any], folder: Path) -> None:
    """Make the names of the steps' and the answers' images absolute."""
    answers = [answer for tool in _parts(document, "tools") for answer in _parts(tool, "answers")]
    for part in (*_parts(document, "steps"), *answers):
        if isinstance(names := part.get("images"), list):
            part["images"] = [str(folder / name) if isinstance(name, str) else name for name in names]


def _parts(value: dict[str, Any], field: str) -> list[dict[str, Any]]:
    parts = value.get(field)
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def _absolute(folder: Path, name: str, value: Any) -> Any:
    # Paths are relative to the file.
    kind = Settings.model_fields[name].annotation
    if name == "file_roots" and isinstance(value, str | list):
        roots = value.split(",") if isinstance(value, str) else map(str, value)
        return [str(folder.resolve() / root.strip()) for root in roots]
    return folder.resolve() / value if Path in (kind, *get_args(kind)) and isinstance(value, str) else value
