"""Tools that are Python functions: of installed packages, and of the operator's files (TOOLS_PATH)."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from conductor.errors import SettingsError
from conductor.plugins.tools.functions import PythonTool, PythonToolset, python_tool
from conductor.settings import Settings
from conductor.tools import MARK

GROUP = "conductor.tools"
"""The group of entry points; each names a function or a module with functions."""
# Threads of functions that are not ``async``. A function that hangs keeps its thread.
MAX_THREADS = 32


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
            read = python_tool(function, label)
            if read.spec.name in tools:
                raise SettingsError(f"{label}: the name {read.spec.name} belongs to another tool.")
            tools[read.spec.name] = read
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
