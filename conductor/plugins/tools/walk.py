"""A bounded walk through folders for the tools that list and search; it follows no link, and .gitignore."""

from __future__ import annotations

import heapq
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, TypeAlias

from conductor.plugins.tools import gitignore
from conductor.plugins.tools.sandbox import CancelFlag, Files, SandboxPath, open_regular

# Names scanned in one call; names sorted at once.
MAX_SCANNED = 200_000
_RUN = 4096

Kind: TypeAlias = Literal["folder", "file", "link", "other"]

Entry: TypeAlias = tuple[bool, str, Kind]
"""A name in a folder. The first field sorts folders first."""

Chain: TypeAlias = tuple[tuple[int, tuple[gitignore.IgnoreRule, ...]], ...]
"""The rules that hold in a folder, from its root down, each with the number of parts of its own folder."""

MARKS: Mapping[Kind, str] = {"folder": "/", "file": "", "link": " (link)", "other": " (special)"}


class Walk:
    """The walk of one call, and its limits.

    ``clock`` is any clock in seconds, ``seconds`` the time limit. ``notes`` are in order, each once.
    ``complete`` is False once a limit left something out.
    """

    def __init__(
        self,
        files: Files,
        stop: CancelFlag,
        clock: Callable[[], float],
        seconds: float,
        scanned: int = MAX_SCANNED,
    ) -> None:
        self.files = files
        self.complete = True
        self.notes: dict[str, None] = {}
        self._unused_rules = 0
        self._stop = stop
        self._clock = clock
        self._deadline = clock() + seconds
        self._max_scanned = scanned
        self._scanned = 0

    def full(self) -> bool:
        """Return whether the walk must end, and note why. Raises `FileError` if the call was cancelled."""
        self._stop.check()
        note = self.reached_limit()
        if not note and self._clock() >= self._deadline:
            note = "The time limit was reached."
        if note:
            self.cut(note)
        return bool(note)

    def reached_limit(self) -> str:
        """Return the note on a limit of the tool that is reached, or an empty text."""
        return ""

    def cut(self, note: str) -> None:
        """Note that something is left out, and why."""
        self.complete = False
        self.notes[note] = None

    @property
    def scanned_all(self) -> bool:
        return self._scanned >= self._max_scanned

    def all_notes(self) -> tuple[str, ...]:
        """Return the notes, with one on rules that were not used."""
        count = self._unused_rules
        rules = f"{count:,} lines of .gitignore files were too many or too long to be used."
        return (*self.notes, *([rules] if count else ()))

    def scan(self, folder: int) -> list[list[Entry]]:
        """List an open folder, as sorted runs: sorting a very large one holds the interpreter lock."""
        runs: list[list[Entry]] = [[]]
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    if self.scanned_all:
                        self.cut(f"Only {self._max_scanned:,} entries were scanned.")
                        break
                    self._scanned += 1
                    # The clock costs more than an entry.
                    if self._scanned % 1024 == 0 and self.full():
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

    def files_below(self, top: SandboxPath) -> Iterator[tuple[int, SandboxPath]]:
        """Walk from a folder down, nearest first, and yield each file with its open folder.

        Raises `OSError` for ``top``; an unreadable folder below it becomes a note.
        """
        queue: deque[tuple[SandboxPath, Chain]] = deque([(top, self.rules_above(top))])
        while queue and not self.full():
            location, chain = queue.popleft()
            try:
                with self.files.roots.folder(location) as folder:
                    chain = self.rules_in(folder, len(location.parts), chain)
                    for _, name, kind in heapq.merge(*self.scan(folder)):
                        child = SandboxPath(location.root, (*location.parts, name))
                        if kind in ("link", "other") or ignored(chain, child.parts, kind == "folder"):
                            continue
                        if kind == "folder":
                            queue.append((child, chain))
                        else:
                            yield folder, child
            except OSError:  # no permission; removed or replaced during the walk
                if location is top:
                    raise
                self.cut("Some folders could not be read.")

    def rules_in(self, folder: int, depth: int, above: Chain) -> Chain:
        """Add the rules of an open folder, which is ``depth`` parts below its root."""
        try:
            file = open_regular(folder, ".gitignore")
        except OSError:  # no file, or a link, which git does not follow here either
            return above
        try:
            data = os.read(file, gitignore.MAX_BYTES + 1)
        finally:
            os.close(file)
        rules, unused = gitignore.parse(data)
        self._unused_rules += unused
        return (*above, (depth, rules)) if rules else above

    def rules_above(self, location: SandboxPath) -> Chain:
        """Collect the rules that hold for a requested folder; no rules if they ignore the folder itself."""
        chain: Chain = ()
        for length in range(len(location.parts)):
            with self.files.roots.folder(SandboxPath(location.root, location.parts[:length])) as folder:
                chain = self.rules_in(folder, length, chain)
            if ignored(chain, location.parts[: length + 1], True):
                self.notes["The folder is named in .gitignore; it is shown because it was requested."] = None
                return ()
        return chain


def ignored(chain: Chain, parts: tuple[str, ...], is_folder: bool) -> bool:
    """Return whether the rules leave a path out; those nearer to it take precedence."""
    for length, rules in reversed(chain):
        verdict = gitignore.verdict(rules, parts[length:], is_folder)
        if verdict is not None:
            return verdict
    return False


def is_everything(path: str) -> bool:
    """Return whether a path means all roots."""
    return path.strip("./") == "" and ".." not in path


def _kind(entry: os.DirEntry[str]) -> Kind:
    try:
        if entry.is_symlink():
            return "link"
        if entry.is_dir(follow_symlinks=False):
            return "folder"
        return "file" if entry.is_file(follow_symlinks=False) else "other"
    except OSError:  # the disk is asked only where the listing does not include the kind
        return "other"
