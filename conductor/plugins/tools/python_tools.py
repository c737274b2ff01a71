"""Tools that are Python functions: of installed packages, and of the operator's files (TOOLS_PATH)."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, PydanticUserError, ValidationError, create_model

from conductor.errors import SettingsError
from conductor.plugins.tools.definitions import in_thread
from conductor.settings import Settings
from conductor.tools import MARK, ToolError
from conductor.tools.base import CallContext, Toolset, ToolSpec
from conductor.tools.declarations import NAME, SERVER_PREFIXES
from conductor.tools.outcomes import ToolOutcome, failed, returned
from conductor.tools.schema import SchemaError, read_schema

GROUP = "conductor.tools"
"""The group of entry points; each names a function or a module with functions."""
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
        python_tool = self._tools[name]
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
            return failed("tool_error", str(error))
        return returned(result, python_tool.spec.effect)


def from_settings(settings: Settings) -> PythonToolset:
    """Make the functions of TOOLS_PATH and of installed packages. Raises `SettingsError`."""
    return PythonToolset(python_tools(settings.tools_path))


@lru_cache(maxsize=8)
def python_tools(path: Path | None) -> tuple[PythonTool, ...]:
    """Load the tools of installed packages, and of a file or of all files in a folder.

    Raises `SettingsError`: one sentence that names the file or the entry point, and the mistake.
    """
    tools: dict[str, PythonTool] = {}
    for label, functions in _sources(path):
        for function in functions:
            python_tool = _read(function, label)
            if python_tool.spec.name in tools:
                raise SettingsError(f"{label}: the name {python_tool.spec.name} belongs to another tool.")
            tools[python_tool.spec.name] = python_tool
    return tuple(tools.values())


def _sources(path: Path | None) -> Iterable[tuple[str, list[Callable[..., Any]]]]:
    for entry in entry_points(group=GROUP):
        label = f"The entry point {entry.name} of {entry.dist.name if entry.dist is not None else GROUP}"
        yield label, _marked(_loaded(label, entry.load), label)
    if path is None:
        return
    if not path.exists():
        raise SettingsError(f"TOOLS_PATH names {path}, which does not exist.")
    for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
        module = _loaded(str(file), partial(_import, file))
        # A file may import functions of another file.
        own = [function for function in _marked(module, str(file)) if function.__module__ == module.__name__]
        yield str(file), own


def _loaded(label: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:  # an import may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise SettingsError(f"{label}{_line(label, error)} cannot be imported: {reason}.") from error


def _line(file: str, error: Exception) -> str:
    """Return the line of a file in which an error was raised; empty for an error elsewhere."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f", line {lines[-1]}," if lines else ""


def _import(file: Path) -> ModuleType:
    name = f"conductor_tools_{file.stem}"
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError("it is not a Python file")
    module = sys.modules[name] = module_from_spec(spec)  # annotations are resolved there
    spec.loader.exec_module(module)
    return module


def _marked(loaded: Any, label: str) -> list[Callable[..., Any]]:
    values = vars(loaded).values() if isinstance(loaded, ModuleType) else [loaded]
    functions: list[Callable[..., Any]] = [
        value for value in values if inspect.isfunction(value) and hasattr(value, MARK)
    ]
    if not functions and not isinstance(loaded, ModuleType):
        raise SettingsError(f"{label} is not a function marked with @tool.")
    return functions


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=False)


def _read(function: Callable[..., Any], origin: str) -> PythonTool:
    options: dict[str, Any] = getattr(function, MARK)
    name = options["name"]
    label = f"{origin}: the tool {name}"
    if not NAME.match(name) or name.startswith(SERVER_PREFIXES):
        raise SettingsError(f"{label} needs another name: letters, digits, dots, hyphens and underscores.")
    description = inspect.cleandoc(function.__doc__ or "")
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
        schema = arguments.model_json_schema()
        for part in (schema, *schema["properties"].values()) if fields else (schema,):
            part.pop("title", None)
        read_schema(schema)
    except (PydanticUserError, SchemaError, TypeError, NameError) as error:
        why = str(error).splitlines()[0].partition(". ")[0].rstrip(".")
        raise SettingsError(f"{label} cannot be offered: {why}.") from error
    spec = ToolSpec(description=description, input_schema=schema, source="python", **options)
    return PythonTool(spec, function, arguments, context_name)
