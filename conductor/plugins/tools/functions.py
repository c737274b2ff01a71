"""Functions that `tool` marks, as tools: their definitions are made of their types."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, PydanticUserError, ValidationError, create_model

from conductor.errors import SettingsError
from conductor.plugins.tools.threads import in_thread
from conductor.tools import MARK, ToolError
from conductor.tools.base import CallContext, Toolset, ToolSpec
from conductor.tools.declarations import NAME, SERVER_PREFIXES
from conductor.tools.outcomes import ToolOutcome, failed, returned
from conductor.tools.schema import SchemaError, read_schema

# Threads of functions that are not ``async``. A function that hangs keeps its thread.
MAX_THREADS = 32


@dataclass(frozen=True, slots=True)
class PythonTool:
    """A function and the model of its arguments."""

    spec: ToolSpec
    function: Callable[..., Any]
    arguments: type[BaseModel]
    context_name: str | None


class PythonToolset(Toolset):
    """Python functions."""

    def __init__(self, tools: Iterable[PythonTool]) -> None:
        self._tools = {tool.spec.name: tool for tool in tools}
        self._threads = ThreadPoolExecutor(MAX_THREADS, "tool")

    def specs(self) -> Sequence[ToolSpec]:
        """List the tools."""
        return [tool.spec for tool in self._tools.values()]

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Call the function; raises its exceptions except `ToolError`."""
        python_tool = self._tools.get(name)
        if python_tool is None:
            return failed("not_found", f"There is no tool {name[:128]!r}. Nothing was run.")
        try:
            values = dict(python_tool.arguments.model_validate(arguments))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            location = ".".join(map(str, first["loc"]))
            return failed("validation_failed", f"{location}: {first['msg']}. Nothing was run.")
        if python_tool.context_name is not None:
            values[python_tool.context_name] = context
        try:
            if inspect.iscoroutinefunction(python_tool.function):
                result = await python_tool.function(**values)
            else:
                result = await in_thread(self._threads, lambda: python_tool.function(**values))
        except ToolError as error:
            return failed(error.error_type, str(error))
        return result if isinstance(result, ToolOutcome) else returned(result, python_tool.spec.effect)


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=False)


def python_tool(function: Callable[..., Any], origin: str, source: str = "python") -> PythonTool:
    """Make the tool of a marked function. Raises `SettingsError`, which begins with ``origin``."""
    options: dict[str, Any] = {"effect": "write", **getattr(function, MARK)}
    name = options["name"]
    label = f"{origin}: the tool {name}"
    if not NAME.match(name) or name.startswith(SERVER_PREFIXES):
        raise SettingsError(f"{label} needs another name: letters, digits, dots, hyphens and underscores.")
    description = options.pop("description", None) or inspect.cleandoc(function.__doc__ or "")
    if not description:
        raise SettingsError(f"{label} needs a docstring: the model reads it as the description.")
    fields: dict[str, Any] = {}
    context_name = None
    try:
        hints = get_type_hints(function, include_extras=True)
        for parameter in inspect.signature(function).parameters.values():
            if hints.get(parameter.name) is CallContext:
                context_name = parameter.name
                continue
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise SettingsError(f"{label} takes {parameter}: a model passes arguments by name.")
            if parameter.name not in hints:
                raise SettingsError(f"{label}: the parameter {parameter.name} has no type.")
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[parameter.name] = (hints[parameter.name], default)
        arguments = create_model(name, __base__=_Arguments, **fields)
        schema = _schema(arguments)
        read_schema(schema)
    except (PydanticUserError, SchemaError, TypeError, NameError) as error:
        why = str(error).splitlines()[0].partition(". ")[0].rstrip(".")
        raise SettingsError(f"{label} cannot be offered: {why}.") from error
    spec = ToolSpec(
        description=description,
        input_schema=schema,
        source=source,
        on_interrupt="cancel" if options["effect"] == "read" else "keep",
        **options,
    )
    return PythonTool(spec, function, arguments, context_name)


def builtin_tool(function: Callable[..., Any]) -> PythonTool:
    """Make a tool of the server's own."""
    return python_tool(function, "The server", source="builtin")


def _schema(arguments: type[BaseModel]) -> dict[str, Any]:
    schema = arguments.model_json_schema()
    schema.pop("title", None)
    schema["properties"] = {name: _property(part) for name, part in schema.get("properties", {}).items()}
    return schema


def _property(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter; one that is ``| None = None`` may be left out, and is never null."""
    own = {key: value for key, value in part.items() if key != "title"}
    if own.get("default", ...) is not None:
        return own
    del own["default"]
    kinds = [kind for kind in own.pop("anyOf", []) if kind != {"type": "null"}]
    if len(kinds) > 1:
        own["anyOf"] = kinds
    return {**(kinds[0] if len(kinds) == 1 else {}), **own}
