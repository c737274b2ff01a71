"""The tool ``get_file_tree``: the contents of the configured folders as a compact text."""

from __future__ import annotations

import heapq
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from conductor.tools.base import CallContext, ToolOutcome, succeeded
from conductor.tools.builtin.definitions import argument, definition
from conductor.tools.builtin.sandbox import CancelFlag, DirectoryMissing, Files, SandboxPath, printable
from conductor.tools.builtin.walk import MARKS, MAX_SCANNED, Chain, Kind, Walk, ignored, is_everything

# Limits of one call: levels, entries shown, bytes of text, seconds.
MAX_DEPTH = 12
MAX_ENTRIES = 2000
MAX_TEXT_BYTES = 14 * 1024
BUDGET_S = 2.0


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """Limits of one call; ``text_bytes`` leaves room for the other fields of an observation."""

    entries: int = MAX_ENTRIES
    text_bytes: int = MAX_TEXT_BYTES
    scanned: int = MAX_SCANNED
    seconds: float = BUDGET_S


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

    def __init__(
        self, files: Files, limits: TreeLimits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._files = files
        self._limits = limits or TreeLimits()
        self._clock = clock

    async def run(self, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Answer with ``path, tree, folders, files, links, special, ignored, complete``.

        Folders come first, then the rest, each by name. What is nearer to the top is shown first when not
        all can be; ``…`` stands for what is not shown, and the outcome's notes say why.
        """
        path, depth = arguments.get("path") or "", arguments.get("depth", MAX_DEPTH)
        everything = is_everything(path)

        def work(stop: CancelFlag) -> ToolOutcome:
            walk = _TreeWalk(self._files, self._limits, self._clock, stop)
            if everything and len(self._files.roots.all) > 1:
                return _outcome(walk.roots(depth), walk)
            return _outcome(walk.folder("." if everything else path, depth), walk)

        return await self._files.run(work, walk=True)


@dataclass(slots=True)
class _Node:
    name: str
    kind: Kind
    location: SandboxPath
    children: list[_Node] = field(default_factory=list)
    rest: str = ""


class _TreeWalk(Walk):
    def __init__(
        self, files: Files, limits: TreeLimits, clock: Callable[[], float], stop: CancelFlag
    ) -> None:
        super().__init__(files, stop, clock, limits.seconds, limits.scanned)
        self._limits = limits
        self._text_left = limits.text_bytes
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
        self._fill(self._below(top, 1, depth, chain), depth)
        return top

    def _fill(self, queue: deque[tuple[_Node, int, Chain]], depth: int) -> None:
        while queue:
            node, level, chain = queue.popleft()
            if self.full() or self.scanned_all:
                self._leave(node, "…")
                continue
            try:
                chain = self._list(node, level, chain)
            except (
                OSError,
                DirectoryMissing,
            ):  # no permission; a folder removed or replaced during the walk
                self._leave(node, "(cannot be read)", "Some folders could not be read.")
                continue
            # Breadth first: what is nearer to the top is shown where not all can be.
            queue.extend(self._below(node, level + 1, depth, chain))

    def _below(self, node: _Node, level: int, depth: int, chain: Chain) -> deque[tuple[_Node, int, Chain]]:
        folders = [child for child in node.children if child.kind == "folder"]
        if level < depth:
            return deque((child, level, chain) for child in folders)
        for child in folders:
            self._leave(child, "…", f"Only {depth} level{'s are' if depth > 1 else ' is'} shown.")
        return deque()

    def _leave(self, node: _Node, rest: str, note: str = "") -> None:
        node.rest = rest
        self.complete = False
        if note:
            self.notes[note] = None

    def full(self) -> bool:
        limits, note = self._limits, ""
        if sum(self.counts[kind] for kind in MARKS) >= limits.entries:
            note = f"Only {limits.entries:,} entries are shown."
        elif self._text_left <= 0:
            note = "Only as much is shown as fits in one result."
        if not note:
            return super().full()
        self._stop.check()
        self.cut(note)
        return True

    def _list(self, node: _Node, level: int, chain: Chain) -> Chain:
        parts = node.location.parts
        with self.files.roots.folder(node.location) as folder:
            chain = self.rules_in(folder, len(parts), chain)
            found = self.scan(folder)
        count = sum(map(len, found))
        for index, (_, name, kind) in enumerate(heapq.merge(*found)):
            if self.full():
                self._leave(node, f"… {count - index:,} more")
                break
            if ignored(chain, (*parts, name), kind == "folder"):
                self.counts["ignored"] += 1
                continue
            child = _Node(printable(name), kind, SandboxPath(node.location.root, (*parts, name)))
            # As JSON, since that is what an observation's limit counts.
            self._text_left -= len(msgspec.json.encode(_line(child, level))) + (4 if kind == "folder" else 0)
            self.counts[kind] += 1
            node.children.append(child)
        if self.scanned_all:
            self._leave(node, "… more", self.scanned_note)
        return chain


def _line(node: _Node, level: int) -> str:
    rest = f" {node.rest}" if node.kind == "folder" and node.rest and not node.children else ""
    return f"{' ' * level}{node.name}{MARKS[node.kind]}{rest}\n"


def _written(node: _Node, level: int) -> Iterator[str]:
    for child in node.children:
        yield _line(child, level)
        yield from _written(child, level + 1)
    if node.children and node.rest:
        yield f"{' ' * level}{node.rest}\n"


def _outcome(top: _Node, walk: _TreeWalk) -> ToolOutcome:
    counts = walk.counts
    tree = "".join(_written(top, 0)).rstrip("\n")
    if top.rest and not top.children:
        tree = top.rest
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
        notes=walk.said(),
    )
