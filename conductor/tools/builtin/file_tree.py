"""The tool ``get_file_tree``: the contents of the configured folders as a compact text."""

from __future__ import annotations

import heapq
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

from conductor.tools.base import CallContext, ToolOutcome, ToolSpec, succeeded
from conductor.tools.builtin import gitignore
from conductor.tools.builtin.sandbox import (
    CancelFlag,
    DirectoryMissing,
    Files,
    SandboxPath,
    open_regular,
    printable,
)

# Limits of one call: levels, entries shown, bytes of text, names scanned, seconds; names sorted at once.
MAX_DEPTH = 12
MAX_ENTRIES = 2000
MAX_TEXT_BYTES = 14 * 1024
MAX_SCANNED = 200_000
BUDGET_S = 2.0
_RUN = 4096

Kind: TypeAlias = Literal["folder", "file", "link", "other"]
_MARKS: Mapping[Kind, str] = {"folder": "/", "file": "", "link": " (link)", "other": " (special)"}


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """Limits of one call; ``text_bytes`` leaves room for the other fields of an observation."""

    entries: int = MAX_ENTRIES
    text_bytes: int = MAX_TEXT_BYTES
    scanned: int = MAX_SCANNED
    seconds: float = BUDGET_S


class FileTree:
    """``get_file_tree``. ``clock`` is any clock in seconds."""

    spec = ToolSpec(
        name="get_file_tree",
        description=(
            "List files and folders as an indented tree; folders end in /. Files that .gitignore names are "
            "left out. It says when not everything is shown: then ask for a folder by its path."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "path": {
                    "type": "string",
                    "maxLength": 4096,
                    "description": "Folder to list, for example src. Leave it out for everything.",
                },
                "depth": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_DEPTH,
                    "description": f"Levels to go down; 1 is the folder itself. Default {MAX_DEPTH}.",
                },
            },
            "additionalProperties": False,
        },
        source="builtin",
        risk="safe",
        effect="read",
        on_interrupt="cancel",
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
        everything = path.strip("./") == "" and ".." not in path

        def work(stop: CancelFlag) -> ToolOutcome:
            walk = _Walk(self._files, self._limits, self._clock, stop)
            if everything and len(self._files.roots.all) > 1:
                return _outcome(walk.roots(depth), walk)
            return _outcome(walk.folder("." if everything else path, depth), walk)

        return await self._files.run(work, walk=True)


@dataclass(slots=True)
class _Node:
    name: str
    kind: Kind
    place: SandboxPath
    children: list[_Node] = field(default_factory=list)
    rest: str = ""


_Found: TypeAlias = tuple[bool, str, Kind]
"""One name in a folder; what is not a folder comes later."""

_Chain: TypeAlias = tuple[tuple[int, tuple[gitignore.IgnoreRule, ...]], ...]
"""The rules that hold in a folder, from its root down, each with how many parts lead to its own folder."""


class _Walk:
    def __init__(
        self, files: Files, limits: TreeLimits, clock: Callable[[], float], stop: CancelFlag
    ) -> None:
        self._files = files
        self._limits = limits
        self._clock = clock
        self._stop = stop
        self._deadline = clock() + limits.seconds
        self._text_left = limits.text_bytes
        self._scanned = 0
        self.counts: Counter[Kind | Literal["ignored", "rules"]] = Counter()
        self.notes: dict[str, None] = {}  # in order, each once
        self.complete = True

    def roots(self, depth: int) -> _Node:
        tops = [_Node(root.label, "folder", SandboxPath(root, ())) for root in self._files.roots.all]
        self.counts["folder"] = len(tops)
        self._fill(deque((top, 1, ()) for top in tops), depth)
        return _Node(".", "folder", tops[0].place, tops)

    def folder(self, path: str, depth: int) -> _Node:
        def attempt(place: SandboxPath) -> tuple[_Node, _Chain]:
            chain = self._rules_above(place)
            top = _Node(self._files.roots.shown(place), "folder", place)
            return top, self._list(top, 0, chain)

        top, chain = self._files.first(path, attempt)
        self._fill(self._below(top, 1, depth, chain), depth)
        return top

    def _fill(self, queue: deque[tuple[_Node, int, _Chain]], depth: int) -> None:
        while queue:
            node, level, chain = queue.popleft()
            if self._full() or self._scanned >= self._limits.scanned:
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

    def _below(self, node: _Node, level: int, depth: int, chain: _Chain) -> deque[tuple[_Node, int, _Chain]]:
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

    def _full(self) -> bool:
        self._stop.check()
        limits, note = self._limits, ""
        if sum(self.counts[kind] for kind in _MARKS) >= limits.entries:
            note = f"Only {limits.entries:,} entries are shown."
        elif self._text_left <= 0:
            note = "Only as much is shown as fits in one result."
        elif self._clock() >= self._deadline:
            note = "The time for it was used up."
        if note:
            self.notes[note] = None
        return bool(note)

    def _list(self, node: _Node, level: int, chain: _Chain) -> _Chain:
        parts = node.place.parts
        with self._files.roots.folder(node.place) as folder:
            rules = self._rules_in(folder)
            found = self._scan(folder)
        chain = (*chain, (len(parts), rules)) if rules else chain
        count = sum(map(len, found))
        for index, (_, name, kind) in enumerate(heapq.merge(*found)):
            if self._full():
                self._leave(node, f"… {count - index:,} more")
                break
            if _ignored(chain, (*parts, name), kind == "folder"):
                self.counts["ignored"] += 1
                continue
            child = _Node(printable(name), kind, SandboxPath(node.place.root, (*parts, name)))
            # As JSON, since that is what an observation's limit counts.
            self._text_left -= len(msgspec.json.encode(_line(child, level))) + (4 if kind == "folder" else 0)
            self.counts[kind] += 1
            node.children.append(child)
        if self._scanned >= self._limits.scanned:
            self._leave(node, "… more", f"Only {self._limits.scanned:,} entries were looked at.")
        return chain

    def _scan(self, folder: int) -> list[list[_Found]]:
        # Runs, since sorting a very large folder at once holds the interpreter lock.
        runs: list[list[_Found]] = [[]]
        opened = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            with os.scandir(opened) as entries:
                for entry in entries:
                    if self._scanned >= self._limits.scanned:
                        break
                    self._scanned += 1
                    # Now and then: the clock costs more than an entry.
                    if self._scanned % 1024 == 0 and self._full():
                        break
                    if entry.name != ".git":
                        kind = _kind(entry)
                        runs[-1].append((kind != "folder", entry.name, kind))
                        if len(runs[-1]) == _RUN:
                            runs[-1].sort()
                            runs.append([])
        finally:
            os.close(opened)
        runs[-1].sort()
        return runs

    def _rules_in(self, folder: int) -> tuple[gitignore.IgnoreRule, ...]:
        try:
            file = open_regular(folder, ".gitignore")
        except OSError:  # no file, or a link: git does not follow one here either
            return ()
        try:
            data = os.read(file, gitignore.MAX_BYTES + 1)
        finally:
            os.close(file)
        rules, left_out = gitignore.parse(data)
        self.counts["rules"] += left_out
        return rules

    def _rules_above(self, place: SandboxPath) -> _Chain:
        # Rules do not hold in a folder that they leave out themselves.
        chain: _Chain = ()
        for length in range(len(place.parts)):
            with self._files.roots.folder(SandboxPath(place.root, place.parts[:length])) as folder:
                rules = self._rules_in(folder)
            chain = (*chain, (length, rules)) if rules else chain
            if _ignored(chain, place.parts[: length + 1], True):
                self.notes["The folder is named in .gitignore; it is shown since it was asked for."] = None
                return ()
        return chain


def _ignored(chain: _Chain, parts: tuple[str, ...], is_folder: bool) -> bool:
    # Rules nearer to the path take precedence.
    for length, rules in reversed(chain):
        found = gitignore.verdict(rules, parts[length:], is_folder)
        if found is not None:
            return found
    return False


def _kind(entry: os.DirEntry[str]) -> Kind:
    try:
        if entry.is_symlink():
            return "link"
        if entry.is_dir(follow_symlinks=False):
            return "folder"
        return "file" if entry.is_file(follow_symlinks=False) else "other"
    except OSError:  # only asked of the disk where the listing does not say it
        return "other"


def _line(node: _Node, level: int) -> str:
    rest = f" {node.rest}" if node.kind == "folder" and node.rest and not node.children else ""
    return f"{' ' * level}{node.name}{_MARKS[node.kind]}{rest}\n"


def _written(node: _Node, level: int) -> Iterator[str]:
    for child in node.children:
        yield _line(child, level)
        yield from _written(child, level + 1)
    if node.children and node.rest:
        yield f"{' ' * level}{node.rest}\n"


def _outcome(top: _Node, walk: _Walk) -> ToolOutcome:
    counts, notes = walk.counts, list(walk.notes)
    if counts["rules"]:
        notes.append(f"{counts['rules']:,} lines of .gitignore files were too many or too long to be used.")
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
        notes=notes,
    )
