"""The tools that run in the server: each has one line in `standard_tools`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from conductor.plugins.tools.calculator import Calculator
from conductor.plugins.tools.clock import CurrentTime
from conductor.plugins.tools.file_tree import FileTree
from conductor.plugins.tools.folders import file_roots, knowledge_index, notes_dir
from conductor.plugins.tools.knowledge_index import KnowledgeBase, KnowledgeIndex
from conductor.plugins.tools.notes import NotesCreate, NotesSearch
from conductor.plugins.tools.read_file import ReadFile
from conductor.plugins.tools.sandbox import SUPPORTED, Files, Roots
from conductor.plugins.tools.schedule import CancelScheduledTask, ListScheduledTasks, ScheduleTask
from conductor.plugins.tools.search_files import SearchFiles
from conductor.plugins.tools.tasks import AddTask, ListTasks, UpdateTask
from conductor.plugins.tools.web import DDGS, WebFetch, WebSearch, check_installed
from conductor.plugins.tools.write_file import CreateFile, WriteFile
from conductor.settings import Settings
from conductor.tools.base import CallContext, Toolset, ToolSpec
from conductor.tools.outcomes import ToolOutcome, failed


class BuiltinTool(Protocol):
    """A tool with its definition."""

    @property
    def spec(self) -> ToolSpec:
        """Return the definition; its ``source`` is ``builtin``."""
        ...

    async def run(self, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Run with validated arguments. A failure is an outcome, not an exception."""
        ...


def standard_tools(
    file_roots: Sequence[Path] = (),
    notes_dir: Path | None = None,
    knowledge: KnowledgeIndex | None = None,
    web_fetch: bool = False,
    web_search: str | None = None,
) -> tuple[BuiltinTool, ...]:
    """Make the standard tools.

    The file tools need ``file_roots``, the notes ``notes_dir`` and the knowledge base its index, and all of
    them a system that can open files without following links. ``web_search`` is the search engine.
    """
    tools: list[BuiltinTool] = [
        CurrentTime(),
        Calculator(),
        AddTask(),
        ListTasks(),
        UpdateTask(),
        ScheduleTask(),
        ListScheduledTasks(),
        CancelScheduledTask(),
    ]
    if file_roots and SUPPORTED:
        files = Files(Roots(file_roots))
        tools += (FileTree(files), SearchFiles(files), ReadFile(files))
        tools += (CreateFile(files), WriteFile(files))
    if notes_dir is not None and SUPPORTED:
        notes = Files(Roots([notes_dir]))
        tools += (NotesCreate(notes), NotesSearch(notes))
    if knowledge is not None and SUPPORTED:
        tools.append(KnowledgeBase(knowledge))
    if web_fetch:
        check_installed("WEB_FETCH", "trafilatura")
        tools.append(WebFetch())
    if web_search is not None:
        if web_search == DDGS:
            check_installed("WEB_SEARCH", DDGS)
        tools.append(WebSearch(web_search))
    return tuple(tools)


def builtin_specs() -> tuple[ToolSpec, ...]:
    """List the definitions of all standard tools, including the ones that the settings disable."""
    top = Path("/")
    index = KnowledgeIndex(top, top / "unused")
    tools = standard_tools(file_roots=[top], notes_dir=top, knowledge=index)
    return (*(tool.spec for tool in tools), WebFetch.spec, WebSearch.spec)


class BuiltinToolset(Toolset):
    """The built-in tools."""

    def __init__(self, tools: Iterable[BuiltinTool] | None = None) -> None:
        self._tools = {tool.spec.name: tool for tool in (standard_tools() if tools is None else tools)}
        self._specs = tuple(_spec(tool) for tool in self._tools.values())
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, on_change: Callable[[], None]) -> None:
        """Start the background work of the tools, which keeps an index up to date."""
        watches = [getattr(tool, "watch", None) for tool in self._tools.values()]
        self._tasks = [asyncio.create_task(watch()) for watch in watches if watch is not None]

    async def aclose(self) -> None:
        """Stop the background work."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def specs(self) -> Sequence[ToolSpec]:
        """List the tools, in the order of the registry."""
        return self._specs

    def all_specs(self) -> Sequence[ToolSpec]:
        """List all standard tools, including the ones that the settings disable."""
        return builtin_specs()

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Run a tool with validated arguments."""
        tool = self._tools.get(name)
        if tool is None:
            return failed("not_found", f"There is no built-in tool {name[:128]!r}. Nothing was run.")
        return await tool.run(arguments, context)


def from_settings(settings: Settings) -> BuiltinToolset:
    """Make the tools that the settings offer. Raises `SettingsError`."""
    return BuiltinToolset(
        standard_tools(
            file_roots=file_roots(settings),
            notes_dir=notes_dir(settings),
            knowledge=knowledge_index(settings),
            web_fetch=settings.web_fetch,
            web_search=settings.web_search,
        )
    )


def _spec(tool: BuiltinTool) -> ToolSpec:
    sensitive, preview = getattr(tool, "sensitive", None), getattr(tool, "preview", None)
    return replace(tool.spec, sensitive=sensitive, preview=preview)
