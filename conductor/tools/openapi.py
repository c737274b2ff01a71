"""HTTP tools from an OpenAPI 3 document: the operations that the operator chooses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from conductor.errors import SettingsError
from conductor.tools.base import Risk

MAX_DOCUMENT_BYTES = 8 * 1024 * 1024
# Levels of references that are written out; what is deeper may be anything.
MAX_DEPTH = 8
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_METHODS = ("get", "head", "post", "put", "patch", "delete")
# What JSON Schema does not have, or not so.
_DROPPED = ("example", "xml", "externalDocs", "discriminator", "readOnly", "writeOnly", "deprecated")


class OpenApiConfig(BaseModel):
    """One document. ``file`` is relative to ``tools.toml``; ``operations`` are ids, or ``METHOD /path``.

    The tools are named ``name.id``. ``url`` replaces the document's first server; ``risk`` is by operation.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$")]
    file: str
    operations: Annotated[tuple[str, ...], Field(min_length=1)]
    url: str | None = None
    headers: Mapping[str, str] = {}
    risk: Mapping[str, Risk] = {}
    allow: tuple[str, ...] = ()
    timeout: float = 20.0


def import_operations(path: Path, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Make the ``[[tool]]`` entries of an ``[[openapi]]`` entry. Raises `SettingsError`."""
    try:
        config = OpenApiConfig.model_validate(entry)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field, message = ".".join(str(part) for part in first["loc"]), first["msg"].rstrip(".")
        raise SettingsError(
            f"{path}, openapi: {field} is not valid: {message[0].lower()}{message[1:]}."
        ) from None
    where = f'{path}, openapi "{config.name}"'
    document = _read(where, path.parent / config.file)
    known = {key: one for one in _operations(document) for key in (one["id"], one["place"]) if key}
    tools = []
    for wanted in config.operations:
        operation = known.get(wanted)
        if operation is None:
            some = ", ".join(list(known)[:8])
            raise SettingsError(f'{where}: there is no operation "{wanted}"; there are: {some} …')
        tools.append(_entry(where, config, document, operation, wanted))
    return tools


def _read(where: str, path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_DOCUMENT_BYTES + 1)
        if len(text) > MAX_DOCUMENT_BYTES:
            raise SettingsError(f"{where}: {path} is larger than {MAX_DOCUMENT_BYTES} bytes.")
        document = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except OSError as error:
        raise SettingsError(f"{where}: {path} cannot be read: {(error.strerror or '').lower()}.") from None
    except (ValueError, yaml.YAMLError, RecursionError):
        raise SettingsError(f"{where}: {path} is no valid JSON or YAML.") from None
    if not isinstance(document, dict) or not str(document.get("openapi", "")).startswith("3."):
        raise SettingsError(f"{where}: {path} is no OpenAPI 3 document.")
    return document


def _operations(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for place, item in document.get("paths", {}).items():
        for method in _METHODS:
            if isinstance(item, dict) and isinstance(item.get(method), dict):
                operation = item[method]
                shared = item.get("parameters", [])
                yield {
                    "id": operation.get("operationId"),
                    "place": f"{method.upper()} {place}",
                    "path": place,
                    "method": method.upper(),
                    "operation": operation,
                    "parameters": [*shared, *operation.get("parameters", [])],
                }


def _entry(
    where: str, config: OpenApiConfig, document: Mapping[str, Any], found: Mapping[str, Any], wanted: str
) -> dict[str, Any]:
    operation = found["operation"]
    properties: dict[str, Any] = {}
    required: list[str] = []
    query: list[str] = []
    for given in found["parameters"]:
        parameter = _resolved(document, given)
        name, place = parameter.get("name"), parameter.get("in")
        if place not in ("path", "query"):
            if parameter.get("required"):
                raise SettingsError(f'{where}: "{wanted}" needs the {place} {name}: write it under headers.')
            continue
        if not _NAME.fullmatch(name or ""):  # such as filter[name], which models' services refuse
            if parameter.get("required"):
                raise SettingsError(
                    f'{where}: "{wanted}" needs the argument {name}, whose name no model takes.'
                )
            continue
        schema = _schema(document, parameter.get("schema", {}))
        if parameter.get("description"):
            schema = {**schema, "description": parameter["description"]}
        properties[name] = schema
        if place == "query":
            query.append(f"{name}={{{name}}}")
        if place == "path" or parameter.get("required"):
            required.append(name)
    body = _body_schema(document, operation)
    properties |= body.get("properties", {})
    required += body.get("required", [])
    url = (config.url or _server(where, document)).rstrip("/") + found["path"]
    words = operation.get("description") or operation.get("summary") or found["place"]
    label = found["id"] or found["place"].replace(" ", "_").replace("{", "").replace("}", "")
    entry = {
        "name": f"{config.name}.{label}",
        "description": words[:4_096],
        "url": url + (f"?{'&'.join(query)}" if query else ""),
        "method": found["method"],
        "input_schema": {
            "type": "object",
            "properties": properties,
            "required": list(dict.fromkeys(required)),
            "additionalProperties": False,
        },
        "headers": config.headers,
        "allow": list(config.allow),
        "timeout": config.timeout,
    }
    return entry | ({"risk": config.risk[wanted]} if wanted in config.risk else {})


def _server(where: str, document: Mapping[str, Any]) -> str:
    servers = document.get("servers") or [{}]
    url = servers[0].get("url", "")
    if not url.startswith(("http://", "https://")) or "{" in url:
        raise SettingsError(f"{where}: the document names no server's address; write it as url.")
    return str(url)


def _body_schema(document: Mapping[str, Any], operation: Mapping[str, Any]) -> dict[str, Any]:
    body = _resolved(document, operation.get("requestBody", {}))
    content = body.get("content", {})
    kind = next((kind for kind in content if "json" in kind), None)
    if kind is None:
        return {}
    schema = _schema(document, content[kind].get("schema", {}))
    if not body.get("required"):
        schema.pop("required", None)
    return schema


def _resolved(document: Mapping[str, Any], value: Any) -> Any:
    for _ in range(MAX_DEPTH):
        reference = value.get("$ref") if isinstance(value, dict) else None
        if not isinstance(reference, str):
            return value
        value = document
        for step in reference.removeprefix("#/").split("/"):
            step = step.replace("~1", "/").replace("~0", "~")
            value = value.get(step, {}) if isinstance(value, dict) else {}
    return {}


def _schema(document: Mapping[str, Any], schema: Any, within: tuple[str, ...] = ()) -> dict[str, Any]:
    # Writes references out: what is valid within a document need not be without it. ``within`` are those that
    # lead here; one that leads back may be anything, or a schema of a few lines would grow without end.
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    if isinstance(reference, str):
        if reference in within or len(within) == MAX_DEPTH:
            return {}
        within = (*within, reference)
    schema = _resolved(document, schema)
    if not isinstance(schema, dict):
        return {}
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _DROPPED or key.startswith("x-") or key == "nullable":
            continue
        if key == "properties":
            made[key] = {name: _schema(document, one, within) for name, one in value.items()}
        elif key in ("allOf", "anyOf", "oneOf"):
            made[key] = [_schema(document, one, within) for one in value]
        elif key in ("items", "not") or (key == "additionalProperties" and isinstance(value, dict)):
            made[key] = _schema(document, value, within)
        else:
            made[key] = value
    return _translated(made, nullable=bool(schema.get("nullable")))


def _translated(made: dict[str, Any], *, nullable: bool) -> dict[str, Any]:
    # What OpenAPI 3.0 writes in another way than JSON Schema.
    if nullable and isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
    if made.get("format") in ("int32", "int64", "float", "double", "binary", "byte", "password"):
        del made["format"]
    for key in ("exclusiveMinimum", "exclusiveMaximum"):
        if isinstance(made.get(key), bool):
            limit = key.removeprefix("exclusive").lower()
            flag = made.pop(key)
            if flag and limit in made:
                made[key] = made.pop(limit)
    return made
