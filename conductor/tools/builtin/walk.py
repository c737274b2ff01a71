"""A walk through folders for the tools that list and search: bounded, without links, by ``.gitignore``."""

from __future__ import annotations

import heapq
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, TypeAlias

from conductor.tools.builtin import gitignore
from conductor.tools.builtin.sandbox import CancelFlag, DirectoryMissing, Files, SandboxPath, open_regular

# Names scanned in one call; names sorted at once.
MAX_SCANNED = 200_000
_RUN = 4096

Kind: TypeAlias = Literal["folder", "file", "link", "other"]

Found: TypeAlias = tuple[bool, str, Kind]
"""One name in a folder; what is not a folder comes later."""

Chain: TypeAlias = tuple[tuple[int, tuple[gitignore.IgnoreRule, ...]], ...]
"""The rules that hold in a folder, from its root down, each with how many parts lead to its own folder."""


class Walk:
    """What one call looks at, and what it has to leave out.

    ``clock`` is any clock in seconds, ``seconds`` what the call may take. ``notes`` are in order, each once.
    ``complete`` is False once something was left out because of a limit.
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
        self.rules_left_out = 0
        self._stop = stop
        self._clock = clock
        self._deadline = clock() + seconds
        self._max_scanned = scanned
        self._scanned = 0

    def full(self) -> bool:
        """Return whether the walk must end, with a note; raises `FileError` if the call was cancelled."""
        self._stop.check()
        if self._clock() < self._deadline:
            return False
        self.cut("The time for it was used up.")
        return True

    def cut(self, note: str) -> None:
        """Note that something was left out, and why."""
        self.complete = False
        self.notes[note] = None

    @property
    def scanned_all(self) -> bool:
        return self._scanned >= self._max_scanned

    @property
    def scanned_note(self) -> str:
        return f"Only {self._max_scanned:,} entries were looked at."

    def said(self) -> tuple[str, ...]:
        """Return the notes, with one on rules that were not used."""
        left_out = self.rules_left_out
        rules = f"{left_out:,} lines of .gitignore files were too many or too long to be used."
        return (*self.notes, *([rules] if left_out else ()))

    def scan(self, folder: int) -> list[list[Found]]:
        """List an open folder, as sorted runs: sorting a very large one holds the interpreter lock."""
        runs: list[list[Found]] = [[]]
        opened = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            with os.scandir(opened) as entries:
                for entry in entries:
                    if self.scanned_all:
                        break
                    self._scanned += 1
                    # Now and then: the clock costs more than an entry.
                    if self._scanned % 1024 == 0 and self.full():
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

    def files_below(self, top: SandboxPath) -> Iterator[tuple[int, SandboxPath]]:
        """Walk from a folder down, nearest first, and give each file with its open folder.

        Raises `OSError` and `DirectoryMissing` for ``top``; other folders are noted.
        """
        queue: deque[tuple[SandboxPath, Chain]] = deque([(top, self.rules_above(top))])
        while queue and not self.full():
            location, chain = queue.popleft()
            try:
                with self.files.roots.folder(location) as folder:
                    chain = self.rules_in(folder, len(location.parts), chain)
                    for _, name, kind in heapq.merge(*self.scan(folder)):
                        below = SandboxPath(location.root, (*location.parts, name))
                        if kind in ("link", "other") or ignored(chain, below.parts, kind == "folder"):
                            continue
                        if kind == "folder":
                            queue.append((below, chain))
                        else:
                            yield folder, below
            except (OSError, DirectoryMissing):  # no permission; removed or replaced during the walk
                if location is top:
                    raise
                self.cut("Some folders could not be read.")
        if self.scanned_all:
            self.cut(self.scanned_note)

    def rules_in(self, folder: int, depth: int, above: Chain) -> Chain:
        """Add the rules of an open folder, which is ``depth`` parts below its root."""
        try:
            file = open_regular(folder, ".gitignore")
        except OSError:  # no file, or a link: git does not follow one here either
            return above
        try:
            data = os.read(file, gitignore.MAX_BYTES + 1)
        finally:
            os.close(file)
        rules, left_out = gitignore.parse(data)
        self.rules_left_out += left_out
        return (*above, (depth, rules)) if rules else above

    def rules_above(self, location: SandboxPath) -> Chain:
        """Collect the rules that hold for a folder that was asked for; none if they leave it out itself."""
        chain: Chain = ()
        for length in range(len(location.parts)):
            with self.files.roots.folder(SandboxPath(location.root, location.parts[:length])) as folder:
                chain = self.rules_in(folder, length, chain)
            if ignored(chain, location.parts[: length + 1], True):
                self.notes["The folder is named in .gitignore; it is shown since it was asked for."] = None
                return ()
        return chain


def ignored(chain: Chain, parts: tuple[str, ...], is_folder: bool) -> bool:
    """Return whether the rules leave a path out; those nearer to it take precedence."""
    for length, rules in reversed(chain):
        found = gitignore.verdict(rules, parts[length:], is_folder)
        if found is not None:
            return found
    return False


def is_everything(path: str) -> bool:
    """Return whether a path names all the folders that may be used."""
    return path.strip("./") == "" and ".." not in path


MARKS: Mapping[Kind, str] = {"folder": "/", "file": "", "link": " (link)", "other": " (special)"}


def _kind(entry: os.DirEntry[str]) -> Kind:
    try:
        if entry.is_symlink():
            return "link"
        if entry.is_dir(follow_symlinks=False):
            return "folder"
        return "file" if entry.is_file(follow_symlinks=False) else "other"
    except OSError:  # only asked of the disk where the listing does not say it
        return "other"
