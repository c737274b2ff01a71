"""The tool ``get_file_tree``: the paths of folders and files, within limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from conductor.plugins.tools.definitions import argument, definition
from conductor.plugins.tools.sandbox import CancelFlag, Files, SandboxPath
from conductor.plugins.tools.walk import MARKS, Walk, is_everything
from conductor.tools.base import CallContext
from conductor.tools.outcomes import ToolOutcome, succeeded

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
        "List files and folders by their paths; folders end in /. Files that .gitignore names are left "
        "out. It says when not everything is shown: then ask for a folder by its path.",
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

    def __init__(self, files: Files) -> None:
        self._files = files

    async def run(self, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Answer with ``tree`` and ``complete``.

        The levels nearest to the top come first; of a folder its folders, then the other entries, each by
        name. If not everything fits, the outcome's notes give the reason.
        """
        path = arguments.get("path") or ""

        def work(stop: CancelFlag) -> ToolOutcome:
            tree = _Tree(self._files, stop, BUDGET_S)
            depth = arguments.get("depth", MAX_DEPTH)
            if is_everything(path) and len(self._files.roots.all) > 1:
                for root in self._files.roots.all:
                    try:
                        tree.add_below(SandboxPath(root, ()), depth)
                    except OSError:
                        tree.cut(f"The folder {root.label!r} is not available now.")
            else:
                folder = "." if is_everything(path) else path
                self._files.first(folder, lambda location: tree.add_below(location, depth))
            return tree.outcome()

        return await self._files.run(work, walk=True)


class _Tree(Walk):
    def __init__(self, files: Files, stop: CancelFlag, seconds: float) -> None:
        super().__init__(files, stop, seconds)
        self._lines: list[str] = []
        self._text_left = MAX_TEXT_BYTES

    def add_below(self, top: SandboxPath, depth: int) -> None:
        """Add the entries below a folder. Raises `OSError` if it cannot be opened."""
        for _, kind, entry in self.entries_below(top, depth):
            if self.full():
                return
            line = f"{self.files.roots.path_of(entry)}{MARKS[kind]}"
            # As JSON, as the limit of an observation is counted.
            self._text_left -= len(msgspec.json.encode(line))
            if self._text_left >= 0:
                self._lines.append(line)

    def reached_limit(self) -> str:
        if len(self._lines) >= MAX_ENTRIES:
            return f"Only {MAX_ENTRIES:,} entries are shown."
        return "The entries do not all fit in one result." if self._text_left <= 0 else ""

    def outcome(self) -> ToolOutcome:
        """Make the outcome."""
        return succeeded({"tree": "\n".join(self._lines), "complete": self.complete}, notes=self.notes)
