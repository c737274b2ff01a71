"""The tool ``get_file_tree``: folders and files as a tree, within limits."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from conductor.plugins.tools.definitions import argument, definition
from conductor.plugins.tools.sandbox import CancelFlag, Files, SandboxPath, printable
from conductor.plugins.tools.walk import MARKS, Chain, Kind, Walk, is_everything
from conductor.tools.base import CallContext, ToolOutcome, succeeded

# Levels of a tree, and its entries.
MAX_DEPTH = 12
MAX_ENTRIES = 2000
# Bytes of a result as JSON, which leave space for the other fields of an observation, and seconds of a call.
MAX_TEXT_BYTES = 14 * 1024
BUDGET_S = 2.0


class FileTree:
    """``get_file_tree``."""

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
            "details": argument("boolean", "Show sizes in bytes and times of change (UTC). Default false."),
        },
        risk="safe",
        effect="read",
        untrusted=True,
    )

    def __init__(self, files: Files) -> None:
        self._files = files

    async def run(self, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Answer with ``path, tree, folders, files, links, special, ignored, complete``.

        Folders come first, then the other entries, each by name. If not everything fits, the levels nearest
        to the top are shown; ``…`` stands for the missing entries, and the outcome's notes give the reason.
        """
        path, depth = arguments.get("path") or "", arguments.get("depth", MAX_DEPTH)

        def work(stop: CancelFlag) -> ToolOutcome:
            roots = self._files.roots
            tree = _Tree(self._files, stop, BUDGET_S)
            tree.has_details = bool(arguments.get("details"))
            if is_everything(path) and len(roots.all) > 1:
                return tree.of_roots(depth)
            return self._files.first(
                "." if is_everything(path) else path, lambda location: tree.below(location, depth)
            )

        return await self._files.run(work, walk=True)


@dataclass(slots=True)
class _Node:
    """A line of a tree. ``omission`` stands for missing children."""

    location: SandboxPath
    text: str = ""
    kind: Kind = "folder"
    level: int = 0
    above: Chain | None = None
    children: list[_Node] = field(default_factory=list)
    omission: str = ""

    @property
    def line(self) -> str:
        """The text without its children."""
        omission = f" {self.omission}" if self.omission and not self.children else ""
        return f"{' ' * (self.level - 1)}{self.text}{omission}\n"

    def lines(self) -> Iterator[str]:
        """Return the lines of the children and of the levels below them."""
        for child in self.children:
            yield child.line
            yield from child.lines()
        if self.children and self.omission:
            yield f"{' ' * self.level}{self.omission}\n"


class _Tree(Walk):
    has_details = False

    def of_roots(self, depth: int) -> ToolOutcome:
        roots = self.files.roots.all
        top = _Node(SandboxPath(roots[0], ()))
        top.children = [_Node(SandboxPath(root, ()), f"{root.label}/", level=1) for root in roots]
        return self._grown(top, ".", top.children, depth)

    def below(self, location: SandboxPath, depth: int) -> ToolOutcome:
        top = _Node(location)
        return self._grown(top, self.files.roots.path_of(location), [top], depth)

    def reached_limit(self) -> str:
        if self._counts.total() >= MAX_ENTRIES:
            return f"Only {MAX_ENTRIES:,} entries are shown."
        return "The entries do not all fit in one result." if self._text_left <= 0 else ""

    def _grown(self, top: _Node, path: str, nodes: list[_Node], depth: int) -> ToolOutcome:
        self._counts = Counter[Kind](child.kind for child in top.children)
        self._text_left = MAX_TEXT_BYTES
        # Breadth first: the levels nearest to the top are shown if not everything fits.
        queue = deque(nodes)
        while queue:
            node = queue.popleft()
            if node.level >= depth:
                node.omission = "…"
                self.cut(f"Only {depth} level{'s are' if depth > 1 else ' is'} shown.")
            elif self.full() or self.scanned_all:
                node.omission = "…"
                self.complete = False
            else:
                self._list(node)
                queue.extend(child for child in node.children if child.kind == "folder")
        counts = self._counts
        return succeeded(
            {
                "path": path,
                "tree": "".join(top.lines()).rstrip("\n") or top.omission,
                "folders": counts["folder"],
                "files": counts["file"],
                "links": counts["link"],
                "special": counts["other"],
                "ignored": self.ignored,
                "complete": self.complete,
            },
            notes=self.notes,
        )

    def _list(self, node: _Node) -> None:
        try:
            with self.listing(node.location, node.above) as listing:
                for kind, name, location in listing.entries:
                    if self.full():
                        node.omission = "…"
                        return
                    text = f"{printable(name)}{MARKS[kind]}" + (
                        _details(listing.folder, name, kind) if self.has_details else ""
                    )
                    child = _Node(location, text, kind, node.level + 1, listing.chain)
                    # As JSON, as the limit of an observation is counted; a folder may get a mark.
                    self._text_left -= len(msgspec.json.encode(child.line)) + (4 if kind == "folder" else 0)
                    self._counts[kind] += 1
                    node.children.append(child)
        except OSError:  # no permission; removed or replaced during the walk
            if node.level == 0:
                raise
            node.omission = "(cannot be read)"
            self.cut("Some folders could not be read.")
        if self.scanned_all:
            node.omission = node.omission or "…"


def _details(folder: int, name: str, kind: Kind) -> str:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:  # it has been removed
        return ""
    size = f" {status.st_size}" if kind == "file" else ""
    return f"{size} {datetime.fromtimestamp(status.st_mtime, UTC):%Y-%m-%dT%H:%M:%SZ}"
