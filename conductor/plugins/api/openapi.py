"""The OpenAPI document, made of the table of routes and the types of bodies."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from conductor.plugins.api.requests import Route
from conductor.plugins.api.resources import Failure
from conductor.version import __version__

_DESCRIPTION = "For the backend of an app whose clients talk to Conductor. Errors have a stable code."


def openapi_of(routes: Sequence[Route]) -> dict[str, Any]:
    """Make the document, in OpenAPI 3.1."""
    queries = {route.query for route in routes}
    types = [Failure, *queries, *(kind for route in routes for kind in (route.answer, route.body))]
    template = "#/components/schemas/{name}"
    listed, components = msgspec.json.schema_components(types, ref_template=template)
    schemas = dict(zip(types, listed, strict=True))
    schemas |= {query: components.pop(query.__name__) for query in queries}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
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


def _operation(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    summary = (inspect.getdoc(route.work) or "").partition("\n")[0]
    query = schemas[route.query]
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
            "200": {"description": summary, **_json(schemas[route.answer])},
            "default": {"description": "The request failed.", **_json(schemas[Failure])},
        },
    }
    if route.body is not None:
        operation["requestBody"] = {**_json(schemas[route.body]), "required": True}
    return operation


def _json(schema: Any) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}
