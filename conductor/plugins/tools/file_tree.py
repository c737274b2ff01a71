"""The tools ``get_file_tree`` and ``list_directory``: folders as a tree, and one folder with its details."""

from __future__ import annotations

import heapq
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from conductor.plugins.tools.definitions import argument, definition
from conductor.plugins.tools.sandbox import CancelFlag, Files, SandboxPath, printable
from conductor.plugins.tools.walk import MARKS, MAX_SCANNED, Chain, Kind, Walk, ignored, is_everything
from conductor.tools.base import CallContext, ToolOutcome, succeeded

# Levels of a tree, and its entries.
MAX_DEPTH = 12
MAX_ENTRIES = 2000
# Entries of a page of a folder.
MAX_PAGE_ENTRIES = 500
# Bytes of a result as JSON, which leave space for the other fields of an observation, and seconds of a call.
MAX_TEXT_BYTES = 14 * 1024
BUDGET_S = 2.0


class FileTree:
    """``get_file_tree``. ``clock`` is any clock in seconds."""

    spec = definition(
        "get_file_tree",
        "List files and folders as an indented tree; folders end in /. Files that .gitignore names are "
        "left out. It says when not everything is shown: then ask for a folder by its path.",
        {
            "path": argument(
                "string", "Folder to list, for example src. Leave it out for everything.", maxLength=4096
            ),
            "depth": argument(
                "integer",
                f"Levels to go down; 1 is the folder itself. Default {MAX_DEPTH}.",
                minimum=1,
                maximum=MAX_DEPTH,
            ),
        },
        risk="safe",
        effect="read",
        untrusted=True,
    )

    def __init__(self, files: Files, clock: Callable[[], float] = time.monotonic) -> None:
        self._files = files
        self._clock = clock

    async def run(self, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Answer with ``path, tree, folders, files, links, special, ignored, complete``.

        Folders come first, then the other entries, each by name. If not everything fits, the levels nearest
        to the top are shown; ``…`` stands for the missing entries, and the outcome's notes give the reason.
        """
        path, depth = arguments.get("path") or "", arguments.get("depth", MAX_DEPTH)

        def work(stop: CancelFlag) -> ToolOutcome:
            walk = _TreeWalk(self._files, stop, self._clock)
            if not is_everything(path):
                return _tree_outcome(walk.folder(path, depth), walk)
            if len(self._files.roots.all) > 1:
                return _tree_outcome(walk.roots(depth), walk)
            return _tree_outcome(walk.folder(".", depth), walk)

        return await self._files.run(work, walk=True)


class ListDirectory:
    """``list_directory``. ``clock`` is any clock in seconds."""

    spec = definition(
        "list_directory",
        "List the entries of one folder, with sizes and times of change; names that .gitignore leaves out "
        "are not listed. If complete is false, call again with offset = last + 1.",
        {
            "path": argument(
                "string", "Folder to list, for example src. Leave it out for the top.", maxLength=4096
            ),
            "offset": argument("integer", "First entry to list; they count from 1. Default 1.", minimum=1),
        },
        risk="safe",
        effect="read",
        untrusted=True,
    )

    def __init__(self, files: Files, clock: Callable[[], float] = time.monotonic) -> None:
        self._files = files
        self._clock = clock

    async def run(self, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Answer with ``path, entries, first, last, total, ignored, complete``.

        Folders come first, then the other entries, each by name. An entry has ``name`` and ``kind``, files
        also ``size_bytes``, and all but links ``modified`` (ISO 8601, UTC).
        """
        path, offset = arguments.get("path") or "", arguments.get("offset", 1)

        def work(stop: CancelFlag) -> ToolOutcome:
            roots, walk = self._files.roots, Walk(self._files, stop, self._clock, BUDGET_S)
            if is_everything(path) and len(roots.all) > 1:
                entries = [{"name": root.label, "kind": "folder"} for root in roots.all]
                return _page(".", entries[offset - 1 :], offset, len(entries), 0, walk)
            folder = "." if is_everything(path) else path
            return self._files.first(folder, lambda location: self._list(location, offset, walk))

        return await self._files.run(work, walk=True)

    def _list(self, location: SandboxPath, offset: int, walk: Walk) -> ToolOutcome:
        chain = walk.rules_above(location)
        with self._files.roots.folder(location) as folder:
            chain = walk.rules_in(folder, len(location.parts), chain)
            names = list(heapq.merge(*walk.scan(folder)))
            visible = [
                (name, kind)
                for _, name, kind in names
                if not ignored(chain, (*location.parts, name), kind == "folder")
            ]
            entries: list[dict[str, Any]] = []
            bytes_left = MAX_TEXT_BYTES
            for name, kind in visible[offset - 1 : offset - 1 + MAX_PAGE_ENTRIES]:
                entry = _entry(folder, name, kind)
                bytes_left -= len(msgspec.json.encode(entry)) + 1
                if bytes_left < 0 or walk.full():
                    break
                entries.append(entry)
        path = self._files.roots.path_of(location)
        return _page(path, entries, offset, len(visible), len(names) - len(visible), walk)


def _entry(folder: int, name: str, kind: Kind) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": printable(name), "kind": kind}
    if kind == "link":
        return entry
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:  # it has been removed
        return entry
    if kind == "file":
        entry["size_bytes"] = status.st_size
    entry["modified"] = f"{datetime.fromtimestamp(status.st_mtime, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return entry


def _page(
    path: str, entries: list[dict[str, Any]], offset: int, total: int, ignored_count: int, walk: Walk
) -> ToolOutcome:
    last = offset + len(entries) - 1
    return succeeded(
        {
            "path": path,
            "entries": entries,
            "first": offset,
            "last": last,
            "total": total,
            "ignored": ignored_count,
            "complete": walk.complete and last >= total,
        },
        notes=walk.all_notes(),
    )


@dataclass(slots=True)
class _Node:
    name: str
    kind: Kind
    location: SandboxPath
    children: list[_Node] = field(default_factory=list)
    omission: str = ""
    """The text that stands for missing children."""


class _TreeWalk(Walk):
    def __init__(self, files: Files, stop: CancelFlag, clock: Callable[[], float]) -> None:
        super().__init__(files, stop, clock, BUDGET_S, MAX_SCANNED)
        self._text_left = MAX_TEXT_BYTES
        self.counts: Counter[Kind | Literal["ignored"]] = Counter()

    def roots(self, depth: int) -> _Node:
        tops = [_Node(root.label, "folder", SandboxPath(root, ())) for root in self.files.roots.all]
        self.counts["folder"] = len(tops)
        self._fill(deque((top, 1, ()) for top in tops), depth)
        return _Node(".", "folder", tops[0].location, tops)

    def folder(self, path: str, depth: int) -> _Node:
        def attempt(location: SandboxPath) -> tuple[_Node, Chain]:
            chain = self.rules_above(location)
            top = _Node(self.files.roots.path_of(location), "folder", location)
            return top, self._list(top, 0, chain)

        top, chain = self.files.first(path, attempt)
        self._fill(self._folders_in(top, 1, depth, chain), depth)
        return top

    def _fill(self, queue: deque[tuple[_Node, int, Chain]], depth: int) -> None:
        while queue:
            node, level, chain = queue.popleft()
            if self.full() or self.scanned_all:
                self._omit(node, "…")
                continue
            try:
                chain = self._list(node, level, chain)
            except OSError:  # no permission; removed or replaced during the walk
                self._omit(node, "(cannot be read)", "Some folders could not be read.")
                continue
            # Breadth first: the levels nearest to the top are shown if not everything fits.
            queue.extend(self._folders_in(node, level + 1, depth, chain))

    def _folders_in(
        self, node: _Node, level: int, depth: int, chain: Chain
    ) -> deque[tuple[_Node, int, Chain]]:
        folders = [child for child in node.children if child.kind == "folder"]
        if level < depth:
            return deque((child, level, chain) for child in folders)
        for child in folders:
            self._omit(child, "…", f"Only {depth} level{'s are' if depth > 1 else ' is'} shown.")
        return deque()

    def _omit(self, node: _Node, omission: str, note: str = "") -> None:
        node.omission = omission
        self.complete = False
        if note:
            self.notes[note] = None

    def reached_limit(self) -> str:
        if sum(self.counts[kind] for kind in MARKS) >= MAX_ENTRIES:
            return f"Only {MAX_ENTRIES:,} entries are shown."
        return "The entries do not all fit in one result." if self._text_left <= 0 else ""

    def _list(self, node: _Node, level: int, chain: Chain) -> Chain:
        parts = node.location.parts
        with self.files.roots.folder(node.location) as folder:
            chain = self.rules_in(folder, len(parts), chain)
            runs = self.scan(folder)
        count = sum(map(len, runs))
        for index, (_, name, kind) in enumerate(heapq.merge(*runs)):
            if self.full():
                self._omit(node, f"… {count - index:,} more")
                break
            if ignored(chain, (*parts, name), kind == "folder"):
                self.counts["ignored"] += 1
                continue
            child = _Node(printable(name), kind, SandboxPath(node.location.root, (*parts, name)))
            # As JSON, as the limit of an observation is counted.
            self._text_left -= len(msgspec.json.encode(_line(child, level))) + (4 if kind == "folder" else 0)
            self.counts[kind] += 1
            node.children.append(child)
        if self.scanned_all:
            self._omit(node, "… more")
        return chain


def _line(node: _Node, level: int) -> str:
    omission = f" {node.omission}" if node.omission and not node.children else ""
    return f"{' ' * level}{node.name}{MARKS[node.kind]}{omission}\n"


def _lines(node: _Node, level: int) -> Iterator[str]:
    for child in node.children:
        yield _line(child, level)
        yield from _lines(child, level + 1)
    if node.children and node.omission:
        yield f"{' ' * level}{node.omission}\n"


def _tree_outcome(top: _Node, walk: _TreeWalk) -> ToolOutcome:
    counts = walk.counts
    tree = "".join(_lines(top, 0)).rstrip("\n")
    if top.omission and not top.children:
        tree = top.omission
    return succeeded(
        {
            "path": top.name,
            "tree": tree,
            "folders": counts["folder"],
            "files": counts["file"],
            "links": counts["link"],
            "special": counts["other"],
            "ignored": counts["ignored"],
            "complete": walk.complete,
        },
        notes=walk.all_notes(),
    )
