"""The tools that run in the server: each has one line in `standard_tools`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from conductor.plugins.tools.calculator import calculator
from conductor.plugins.tools.clock import clock
from conductor.plugins.tools.file_tree import tree_lister
from conductor.plugins.tools.folders import file_roots, knowledge_index, notes_dir
from conductor.plugins.tools.functions import PythonTool, PythonToolset, builtin_tool
from conductor.plugins.tools.knowledge_index import KnowledgeIndex, knowledge_searcher
from conductor.plugins.tools.notes import note_search, note_writer
from conductor.plugins.tools.read_file import file_reader
from conductor.plugins.tools.sandbox import SUPPORTED, Files, Roots
from conductor.plugins.tools.schedule import cancel_scheduled_task, list_scheduled_tasks, scheduler
from conductor.plugins.tools.search_files import file_search
from conductor.plugins.tools.tasks import add_task, list_tasks, update_task
from conductor.plugins.tools.web import DDGS, check_installed, search_engine, web_reader
from conductor.plugins.tools.write_file import file_creator, file_writer
from conductor.settings import Settings
from conductor.tools.base import ToolSpec


def standard_tools(
    file_roots: Sequence[Path] = (),
    notes_dir: Path | None = None,
    knowledge: KnowledgeIndex | None = None,
    web_fetch: bool = False,
    web_search: str | None = None,
) -> tuple[PythonTool, ...]:
    """Make the standard tools.

    The file tools need ``file_roots``, the notes ``notes_dir`` and the knowledge base its index, and all of
    them a system that can open files without following links. ``web_search`` is the search engine.
    """
    tools: list[Callable[..., Any]] = []
    if file_roots and SUPPORTED:
        files = Files(Roots(file_roots))
        tools += [tree_lister(files), file_search(files), file_reader(files)]
        tools += [file_creator(files), file_writer(files)]
    if notes_dir is not None and SUPPORTED:
        notes = Files(Roots([notes_dir]))
        tools += [note_writer(notes), note_search(notes)]
    if knowledge is not None and SUPPORTED:
        tools.append(knowledge_searcher(knowledge))
    if web_fetch:
        tools.append(web_reader())
    if web_search is not None:
        tools.append(search_engine(web_search))
    return (*plain_tools(), *map(builtin_tool, tools))


@cache
def plain_tools() -> tuple[PythonTool, ...]:
    """Make the tools that every server has, once a process: a definition takes a millisecond."""
    tools: list[Callable[..., Any]] = [clock(), calculator, add_task, list_tasks, update_task]
    tools += [scheduler(), list_scheduled_tasks, cancel_scheduled_task]
    return tuple(map(builtin_tool, tools))


@cache
def builtin_specs() -> tuple[ToolSpec, ...]:
    """List the definitions of all standard tools, including the ones that the settings disable."""
    top = Path("/")
    index = KnowledgeIndex(top, top / "unused")
    tools = standard_tools(file_roots=[top], notes_dir=top, knowledge=index, web_fetch=True, web_search=DDGS)
    return tuple(tool.spec for tool in tools)


class BuiltinToolset(PythonToolset):
    """The built-in tools, and the index of the knowledge base, which is kept up to date."""

    def __init__(
        self, tools: Sequence[PythonTool] | None = None, knowledge: KnowledgeIndex | None = None
    ) -> None:
        super().__init__(standard_tools() if tools is None else tools)
        self._knowledge = knowledge
        self._task: asyncio.Task[None] | None = None

    async def start(self, on_change: Callable[[], None]) -> None:
        """Start the update of the index."""
        if self._knowledge is not None:
            self._task = asyncio.create_task(self._knowledge.watch())

    async def aclose(self) -> None:
        """Stop the update of the index."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def all_specs(self) -> Sequence[ToolSpec]:
        """List all standard tools, including the ones that the settings disable."""
        return builtin_specs()


def from_settings(settings: Settings) -> BuiltinToolset:
    """Make the tools that the settings offer. Raises `SettingsError`."""
    if settings.web_fetch:
        check_installed("WEB_FETCH", "trafilatura")
    if settings.web_search == DDGS:
        check_installed("WEB_SEARCH", DDGS)
    knowledge = knowledge_index(settings)
    tools = standard_tools(
        file_roots=file_roots(settings),
        notes_dir=notes_dir(settings),
        knowledge=knowledge,
        web_fetch=settings.web_fetch,
        web_search=settings.web_search,
    )
    return BuiltinToolset(tools, knowledge)
