"""The OpenAPI document, made of the table of routes and the types of bodies."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from conductor import __version__
from conductor.plugins.api.requests import Route
from conductor.plugins.api.resources import Failure

_DESCRIPTION = "For the backend of an app whose clients talk to Conductor. Errors have a stable code."


def openapi_of(routes: Sequence[Route]) -> dict[str, Any]:
    """Make the document, in OpenAPI 3.1."""
    types = [route.answer for route in routes if route.answer is not Any]
    types += [route.body for route in routes if route.body is not None]
    queries = {route.query for route in routes}
    template = "#/components/schemas/{name}"
    schemas, components = msgspec.json.schema_components([*types, Failure, *queries], ref_template=template)
    by_type = dict(zip(map(repr, [*types, Failure, *queries]), schemas, strict=True))
    parameters = {query: components.pop(query.__name__) for query in queries}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_type, parameters)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Conductor", "version": __version__, "description": _DESCRIPTION},
        "paths": paths,
        "security": [{"key": []}],
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, by_type: dict[str, Any], parameters: dict[Any, Any]) -> dict[str, Any]:
    summary = (inspect.getdoc(route.work) or "").partition("\n")[0]
    query = parameters[route.query]
    listed = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    listed += [
        {"name": name, "in": "query", "required": name in query.get("required", ()), "schema": schema}
        for name, schema in query.get("properties", {}).items()
    ]
    if route.scope == "say":
        listed.append({"name": "Idempotency-Key", "in": "header", "schema": {"type": "string"}})
    operation: dict[str, Any] = {
        "operationId": route.work.__name__,
        "summary": summary,
        "description": f"Needs the scope `{route.scope}`.",
        "parameters": listed,
        "responses": {
            "200": _json(summary, {} if route.answer is Any else by_type[repr(route.answer)]),
            "default": _json("The request failed.", by_type[repr(Failure)]),
        },
    }
    if route.body is not None:
        operation["requestBody"] = {**_json("", by_type[repr(route.body)]), "required": True}
        del operation["requestBody"]["description"]
    return operation


def _json(description: str, schema: Any) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
