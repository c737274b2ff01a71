"""A bounded walk through folders for the tools that list and search; it follows no link, and .gitignore."""

from __future__ import annotations

import heapq
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

from conductor.plugins.tools import gitignore
from conductor.plugins.tools.sandbox import MAX_PARTS, CancelFlag, Files, SandboxPath, open_file, open_folder

# Names scanned in one call; names sorted at once.
MAX_SCANNED = 200_000
_RUN = 4096

EntryKind: TypeAlias = Literal["folder", "file", "link", "other"]
MARKS: Mapping[EntryKind, str] = {"folder": "/", "file": "", "link": " (link)", "other": " (special)"}

Chain: TypeAlias = tuple[tuple[int, tuple[gitignore.IgnoreRule, ...]], ...]
"""The rules that hold in a folder, from its root down, each with the number of parts of its folder."""


class Walk:
    """The walk of one call, and its limits.

    ``seconds`` is the time limit. ``notes`` are in order, each once.
    ``complete`` is False once a limit left something out.
    """

    def __init__(
        self, files: Files, stop: CancelFlag, seconds: float, max_scanned: int | None = None
    ) -> None:
        self.files = files
        self.complete = True
        self._notes: dict[str, None] = {}
        self._stop = stop
        self._deadline = time.monotonic() + seconds
        self._scans_left = self._max_scanned = MAX_SCANNED if max_scanned is None else max_scanned

    def full(self) -> bool:
        """Return whether the walk must end, and note why. Raises `ToolError` if the call was cancelled."""
        self._stop.check()
        note = self.reached_limit()
        if not note and time.monotonic() >= self._deadline:
            note = "The time limit was reached."
        if note:
            self.cut(note)
        return bool(note)

    def reached_limit(self) -> str:
        """Return the note on a limit of the tool that is reached, or an empty text."""
        return ""

    def cut(self, note: str) -> None:
        """Record that something is left out, and why."""
        self.complete = False
        self._notes[note] = None

    @property
    def scanned_all(self) -> bool:
        """Whether no further names are scanned."""
        return self._scans_left <= 0

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out, and why."""
        return tuple(self._notes)

    def entries_below(
        self, top: SandboxPath, depth: int = MAX_PARTS
    ) -> Iterator[tuple[int, EntryKind, SandboxPath]]:
        """Walk ``depth`` levels from a folder down, nearest first; yield each entry with its open folder.

        Of a folder its folders come first, then the other entries, each by name. Raises `OSError` for
        ``top``; an unreadable folder below it becomes a note. If rules ignore ``top``, none hold in it.
        """
        queue: deque[tuple[SandboxPath, Chain]] = deque([(top, self._rules_above(top))])
        while queue and not self.full():
            location, above = queue.popleft()
            try:
                with open_folder(location) as folder:
                    chain = self._add_rules(location, above)
                    for kind, child in self._entries(location, chain, self._scan(folder)):
                        yield folder, kind, child
                        if kind == "folder" and len(child.parts) - len(top.parts) < depth:
                            queue.append((child, chain))
                        elif kind == "folder":
                            self.cut(f"Only {depth} level{'s are' if depth > 1 else ' is'} shown.")
            except OSError:  # no permission; removed or replaced during the walk
                if location is top:
                    raise
                self.cut("Some folders could not be read.")

    def files_below(self, top: SandboxPath) -> Iterator[tuple[int, SandboxPath]]:
        """Yield the files of `entries_below`."""
        return ((folder, entry) for folder, kind, entry in self.entries_below(top) if kind == "file")

    def _entries(
        self, location: SandboxPath, chain: Chain, runs: list[list[tuple[bool, str, EntryKind]]]
    ) -> Iterator[tuple[EntryKind, SandboxPath]]:
        for _, name, kind in heapq.merge(*runs):
            child = SandboxPath(location.root, (*location.parts, name))
            if not _ignored(chain, child, kind == "folder"):
                yield kind, child

    def _scan(self, folder: int) -> list[list[tuple[bool, str, EntryKind]]]:
        # Sorted runs of names, folders first: sorting a very large list holds the interpreter lock.
        runs: list[list[tuple[bool, str, EntryKind]]] = [[]]
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    if self.scanned_all:
                        self.cut(f"Only {self._max_scanned:,} entries were scanned.")
                        break
                    self._scans_left -= 1
                    # The clock costs more than an entry.
                    if self._scans_left % 1024 == 0 and self.full():
                        break
                    if entry.name != ".git":
                        kind = _kind(entry)
                        runs[-1].append((kind != "folder", entry.name, kind))
                        if len(runs[-1]) == _RUN:
                            runs[-1].sort()
                            runs.append([])
        finally:
            os.close(descriptor)
        runs[-1].sort()
        return runs

    def _add_rules(self, location: SandboxPath, above: Chain) -> Chain:
        try:
            with open_file(SandboxPath(location.root, (*location.parts, ".gitignore"))) as file:
                data = os.read(file, gitignore.MAX_BYTES + 1)
        except OSError:  # no file, or a link, which git does not follow here either
            return above
        rules = gitignore.parse(data)
        return (*above, (len(location.parts), rules)) if rules else above

    def _rules_above(self, location: SandboxPath) -> Chain:
        chain: Chain = ()
        for length in range(len(location.parts)):
            chain = self._add_rules(SandboxPath(location.root, location.parts[:length]), chain)
            if _ignored(chain, SandboxPath(location.root, location.parts[: length + 1]), True):
                self._notes["The folder is named in .gitignore; it is shown because it was requested."] = None
                return ()
        return chain


def _ignored(chain: Chain, location: SandboxPath, is_folder: bool) -> bool:
    # The rules nearest to a path take precedence.
    for length, rules in reversed(chain):
        verdict = gitignore.verdict(rules, location.parts[length:], is_folder)
        if verdict is not None:
            return verdict
    return False


def is_everything(path: str) -> bool:
    """Return whether a path means all roots."""
    return path.strip("./") == "" and ".." not in path


def _kind(entry: os.DirEntry[str]) -> EntryKind:
    try:
        if entry.is_symlink():
            return "link"
        if entry.is_dir(follow_symlinks=False):
            return "folder"
        return "file" if entry.is_file(follow_symlinks=False) else "other"
    except OSError:  # the disk is asked only where the listing does not include the kind
        return "other"
