"""The tool ``get_file_tree``: the paths of folders and files, within limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from pydantic import Field

from conductor.plugins.tools.sandbox import CancelFlag, Files, SandboxPath
from conductor.plugins.tools.walk import MARKS, Walk, is_everything
from conductor.tools import tool
from conductor.tools.outcomes import ToolOutcome, succeeded

# Levels of a tree, and its entries.
MAX_DEPTH = 12
MAX_ENTRIES = 2000
# Bytes of a result as JSON, which leave space for the other fields of an observation, and seconds of a call.
MAX_TEXT_BYTES = 14 * 1024
BUDGET_S = 2.0


def tree_lister(files: Files) -> Callable[..., Any]:
    """Make the tool."""

    @tool(
        description="List files and folders by their paths; folders end in /. Files that .gitignore names "
        "are left out. It says when not everything is shown: then ask for a folder by its path.",
        risk="safe",
        effect="read",
        untrusted=True,
    )
    async def get_file_tree(
        path: Annotated[
            str | None,
            Field(
                max_length=4096,
                description="Folder to list, for example src. Leave it out for everything.",
            ),
        ] = None,
        depth: Annotated[
            int | None,
            Field(
                ge=1,
                le=MAX_DEPTH,
                description=f"Levels to go down; 1 is the folder itself. Default {MAX_DEPTH}.",
            ),
        ] = None,
    ) -> ToolOutcome:
        """Answer with ``tree`` and ``complete``.

        The levels nearest to the top come first; of a folder its folders, then the other entries, each by
        name. If not everything fits, the outcome's notes give the reason.
        """

        def work(stop: CancelFlag) -> ToolOutcome:
            tree = _Tree(files, stop, BUDGET_S)
            if is_everything(path or "") and len(files.roots.all) > 1:
                for root in files.roots.all:
                    try:
                        tree.add_below(SandboxPath(root, ()), depth or MAX_DEPTH)
                    except OSError:
                        tree.cut(f"The folder {root.label!r} is not available now.")
            else:
                folder = "." if is_everything(path or "") else path or ""
                files.first(folder, lambda location: tree.add_below(location, depth or MAX_DEPTH))
            return tree.outcome()

        return await files.run(work, walk=True)

    return get_file_tree


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
