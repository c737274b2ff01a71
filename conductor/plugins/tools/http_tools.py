"""Tools that are HTTP requests, described in the operator's ``tools.toml``."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from conductor.config_file import check_fields, check_url, read_toml, validate
from conductor.errors import SettingsError
from conductor.plugins.addresses import Network
from conductor.plugins.tools.threads import web_client
from conductor.settings import Settings, with_environment
from conductor.tools import ToolError
from conductor.tools.base import CallContext, Toolset, ToolSpec
from conductor.tools.declarations import NAME, SERVER_PREFIXES
from conductor.tools.outcomes import (
    Effect,
    Risk,
    ToolOutcome,
    broke_off,
    failed,
    fate_of_status,
    succeeded,
    without_result,
)
from conductor.tools.redaction import secrets_in
from conductor.tools.schema import SchemaError, read_schema
from conductor.tools.validation import decode_json, refusal

# Bytes of an answer that are read, and characters of an error that the model gets.
MAX_ANSWER_BYTES = 1_048_576
_MAX_PROBLEM = 500

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_STRICT = ConfigDict(extra="forbid", frozen=True)
Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]


class HttpToolConfig(BaseModel):
    """One tool.

    ``url`` may contain arguments as ``{name}``, in its path and in its query. Other arguments go to
    the query, or into a JSON body where the method has one; no argument replaces a value of ``url`` or
    ``body``. ``body`` is a JSON template: ``"{name}"`` is the argument itself, and in longer text its text.
    ``response`` is a path into a JSON answer, such as ``data.items.0``. ``idempotency_header`` gets the id of
    the call. ``allow`` are permitted networks that are not public. ``headers`` take ``${NAME}`` from the
    environment.
    """

    model_config = _STRICT

    name: str
    description: Annotated[str, Field(min_length=1, max_length=4_096)]
    url: str
    method: Method = "GET"
    input_schema: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
    headers: Mapping[str, str] = {}
    body: Any = None
    response: str = ""
    risk: Risk | None = None
    effect: Effect | None = None
    timeout: Annotated[float, Field(gt=0, le=600)] = 20.0
    idempotency_header: str | None = None
    allow: tuple[Network, ...] = ()
    untrusted: bool = True
    title: str | None = None
    spoken: str | None = None

    @field_validator("allow", mode="before")
    @classmethod
    def _networks(cls, value: Any) -> Any:
        return tuple(ipaddress.ip_network(network) for network in value) if isinstance(value, list) else value

    @property
    def reads(self) -> bool:
        """Whether the method is GET or HEAD."""
        return self.method in ("GET", "HEAD")

    @cached_property
    def own(self) -> frozenset[str]:
        """The names of arguments and fields that its URL and its body use."""
        placeholders = [*_PLACEHOLDER.findall(self.url), *_PLACEHOLDER.findall(json.dumps(self.body))]
        query = [name for name, _ in parse_qsl(urlsplit(self.url).query, keep_blank_values=True)]
        return frozenset([*placeholders, *query, *(self.body if isinstance(self.body, dict) else ())])

    @property
    def spec(self) -> ToolSpec:
        """The tool's definition; by default GET and HEAD read, at medium risk."""
        return ToolSpec(
            name=self.name,
            description=self.description,
            input_schema=self.input_schema,
            source="http",
            risk=self.risk or ("medium" if self.reads else "high"),
            effect=self.effect or ("read" if self.reads else "write"),
            timeout_s=self.timeout + 1.0,  # its own limit comes first
            open_world=True,
            untrusted=self.untrusted,
            title=self.title,
            spoken=self.spoken,
        )


def http_tools_path(settings: Settings) -> Path:
    """Return the path of the tools: ``tools.toml`` in CONFIG_DIR."""
    return settings.config_file("tools.toml")


def from_settings(settings: Settings) -> HttpToolset:
    """Read the tools of the file; none if there is no file.

    Raises `SettingsError`: one sentence that names the file, the tool and the mistake.
    """
    path = http_tools_path(settings)
    document = read_toml(path, "")
    check_fields(document, ["tool"], str(path))
    secrets: list[str] = []
    tools: dict[str, HttpToolConfig] = {}
    for number, values in enumerate(_entries(path, document), 1):
        tool = _tool(path, number, values, secrets)
        if tool.name in tools:
            raise SettingsError(f"{path}: the name {tool.name} belongs to another tool.")
        tools[tool.name] = tool
    return HttpToolset(tools, tuple(dict.fromkeys(secrets)))


def _entries(path: Path, document: Mapping[str, Any]) -> list[dict[str, Any]]:
    entries = document.get("tool", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise SettingsError(f"{path}: tool must be a list of tables, [[tool]].")
    return entries


def _tool(path: Path, number: int, values: Mapping[str, Any], secrets: list[str]) -> HttpToolConfig:
    name = values.get("name")
    label = f'{path}, tool "{name}"' if isinstance(name, str) else f"{path}, tool {number}"
    tool = validate(HttpToolConfig, values, label)
    try:
        read_schema(tool.input_schema)
    except SchemaError as error:
        raise SettingsError(f"{label}: input_schema is not valid: {error}.") from None
    if not NAME.match(tool.name) or tool.name.startswith(SERVER_PREFIXES):
        raise SettingsError(f"{label} needs another name: letters, digits, dots, hyphens and underscores.")
    _check_url(label, tool)
    headers = {name: with_environment(label, text, secrets) for name, text in tool.headers.items()}
    secrets += [*secrets_in(headers), *secrets_in(dict(parse_qsl(urlsplit(tool.url).query)))]
    return tool.model_copy(update={"headers": headers})


def _check_url(label: str, tool: HttpToolConfig) -> None:
    check_url(tool.url, f"{label}: url")
    parts = urlsplit(tool.url)
    if _PLACEHOLDER.search(parts.netloc) or parts.fragment:
        raise SettingsError(f"{label}: url may contain arguments in its path and its query only.")
    properties = tool.input_schema.get("properties", {})
    for name in (*_PLACEHOLDER.findall(tool.url), *_PLACEHOLDER.findall(json.dumps(tool.body))):
        if name not in properties:
            raise SettingsError(f'{label}: input_schema has no "{name}", which url or body uses.')


def make_url(template: str, arguments: Mapping[str, Any], query_arguments: Mapping[str, Any]) -> str:
    """Fill a URL's placeholders, and add ``query_arguments`` to its query. Raises `ToolError`.

    A value is one segment of the path, or one name or value of the query, with any characters. Without the
    argument, the name and the value are left out of the query.
    """
    parts = urlsplit(template)
    path = "/".join(_segment(segment, arguments) for segment in parts.path.split("/"))
    pairs: list[tuple[str, str]] = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        names = _PLACEHOLDER.findall(value)
        if all(arguments.get(argument) is not None for argument in (*names, *_PLACEHOLDER.findall(name))):
            name = _PLACEHOLDER.sub(lambda match: _text(arguments[match[1]]), name)
            pairs += [(name, text) for text in _values(value, names, arguments)]
    pairs += [(name, text) for name, value in query_arguments.items() for text in _texts(value)]
    return urlunsplit((parts.scheme, parts.netloc, path, urlencode(pairs), ""))


def _segment(template: str, arguments: Mapping[str, Any]) -> str:
    def filled(match: re.Match[str]) -> str:
        value = arguments.get(match[1])
        if value is None or isinstance(value, list | dict) or value == "":
            message = f"{match[1]} must be a text or a number, and cannot be left out. Nothing was run."
            raise ToolError(message, "validation_failed")
        return quote(_text(value), safe="")

    segment = _PLACEHOLDER.sub(filled, template)
    if segment in (".", "..") and template != segment:
        message = "An argument must not be . or .. in the path. Nothing was run."
        raise ToolError(message, "validation_failed")
    return segment


def _values(template: str, names: Sequence[str], arguments: Mapping[str, Any]) -> list[str]:
    if len(names) == 1 and template == f"{{{names[0]}}}":
        return _texts(arguments[names[0]])  # a list is several values
    return [_PLACEHOLDER.sub(lambda match: _text(arguments[match[1]]), template)]


def _texts(value: Any) -> list[str]:
    return [_text(item) for item in value] if isinstance(value, list) else [_text(value)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _or_empty(arguments: Mapping[str, Any], name: str) -> Any:
    value = arguments.get(name)  # null is as good as left out
    return "" if value is None else value


def make_body(template: Any, arguments: Mapping[str, Any]) -> Any:
    """Fill a JSON template; a field without its argument is left out."""
    if isinstance(template, str):
        match = _PLACEHOLDER.fullmatch(template)
        if match is not None:
            return arguments.get(match[1])
        return _PLACEHOLDER.sub(lambda placeholder: _text(_or_empty(arguments, placeholder[1])), template)
    if isinstance(template, list):
        return [make_body(item, arguments) for item in template]
    if isinstance(template, dict):
        filled = {name: make_body(item, arguments) for name, item in template.items()}
        return {name: value for name, value in filled.items() if value is not None}
    return template


class HttpToolset(Toolset):
    """HTTP tools; ``secrets`` are the values from the environment, and all with the name of a secret."""

    def __init__(self, tools: Mapping[str, HttpToolConfig], secrets: Sequence[str]) -> None:
        self._secrets = secrets
        self._tools = tools
        self._specs = tuple(tool.spec for tool in tools.values())

    def specs(self) -> Sequence[ToolSpec]:
        """List the tools, in the order of the file."""
        return self._specs

    def secrets(self) -> Sequence[str]:
        """List the secrets in URLs and headers."""
        return self._secrets

    def reload(self, new: Toolset) -> Toolset:
        """Return the toolset of the file as it is now."""
        return new

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Make the request; an answer with a status below 400 is a success, whatever its body."""
        tool = self._tools[name]
        web = await web_client()
        if unknown := arguments.keys() - tool.input_schema.get("properties", {}).keys():
            return failed("validation_failed", refusal(name, [f"unknown argument {min(unknown)!r}"]))
        own = tool.own
        remaining = {key: value for key, value in arguments.items() if key not in own and value is not None}
        in_query = tool.method in ("GET", "HEAD", "DELETE")
        headers = dict(tool.headers)
        if tool.idempotency_header is not None:
            headers[tool.idempotency_header] = context.call_id
        body = None
        if tool.body is not None or (remaining and not in_query):
            filled = {} if tool.body is None else make_body(tool.body, arguments)
            if isinstance(filled, dict) and not in_query:
                filled = {**remaining, **filled}
            body = json.dumps(filled).encode()
            headers.setdefault("Content-Type", "application/json")
        try:
            url = make_url(tool.url, arguments, remaining if in_query else {})
            response = await web.fetch(
                tool.method,
                url,
                headers=headers,
                body=body,
                timeout_s=tool.timeout,
                max_bytes=MAX_ANSWER_BYTES,
                allowed=tool.allow,
            )
        except ToolError as error:
            return failed(error.error_type, str(error))
        except web.WebError as error:
            answered = "" if error.status in (None, 200) else f"The service answered {error.status}. "
            return without_result(error.fate, f"{answered}{error}", effect=tool.spec.effect, reason="http")
        # In a thread: parsing a large answer takes long.
        return await asyncio.to_thread(_outcome, response, tool.response, tool.spec.effect)


def _outcome(response: Any, path: str, effect: Effect) -> ToolOutcome:
    text = response.text.removeprefix("\ufeff")
    fate, status = fate_of_status(response.status), response.status
    if fate == "ran":
        return _answer(text, path, is_json="json" in response.content_type, cut=response.cut)
    said = " ".join(text.split())[:_MAX_PROBLEM]
    end = "" if said.endswith((".", "!", "?")) else "."
    message = f"The service answered {status}: {said}{end}" if said else f"The service answered {status}."
    if status == 500:
        return broke_off(message, effect=effect, error_type="io_error")
    if effect == "read":
        return failed("io_error", message, reason="http")
    return without_result(fate, message, effect=effect, reason="http")


def _answer(text: str, path: str, *, is_json: bool, cut: bool) -> ToolOutcome:
    """Make the outcome of a request that was carried out: its answer may have any form."""
    if not text.strip():
        return succeeded("", notes=("The service carried it out, and its answer is empty.",))
    if cut:
        return succeeded(text, notes=("The answer is cut; there is more.",))
    data: Any = text
    if is_json or path:
        try:
            data = decode_json(text)
        except (ValueError, RecursionError):
            return succeeded(text, notes=("The answer is not valid JSON; this is its text.",))
    part = data
    for step in filter(None, path.split(".")):
        try:
            part = part[int(step)] if isinstance(part, list) else part[step]
        except (KeyError, IndexError, TypeError, ValueError):
            return succeeded(data, notes=(f"The answer has no {path}; this is all of it.",))
    return succeeded(part)
