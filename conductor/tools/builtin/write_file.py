"""The tool ``write_file``: write a text file beneath the configured folders, over another one if need be."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from itertools import islice
from typing import Any

from conductor.tools.base import CallContext, ToolOutcome, succeeded
from conductor.tools.builtin.create_file import MAX_CONTENT_BYTES, CreateFile, amount, encoded, replace_file
from conductor.tools.builtin.definitions import definition
from conductor.tools.builtin.read_file import read_bytes
from conductor.tools.builtin.sandbox import (
    CancelFlag,
    FileError,
    Files,
    SandboxPath,
    printable,
    secret_kind,
)

# Lines of each text that are compared: the time grows with their product. Lines of a difference that are
# shown, and characters of each.
MAX_COMPARED_LINES = 5000
MAX_SHOWN_LINES = 60
_LINE_CHARS = 120


class WriteFile:
    """``write_file``. A file that is replaced keeps its mode; a new one is made as by ``create_file``."""

    spec = definition(
        "write_file",
        "Write a text file: replaces the whole text of a file that exists, or creates it. Read the file "
        "first, and give the complete new text. Use it only when the user asked for the change.",
        CreateFile.spec.input_schema["properties"],
        required=["path", "content"],
        risk="high",
        effect="write",
    )

    def __init__(self, files: Files) -> None:
        self._files = files
        self._new = CreateFile(files)

    def sensitive(self, arguments: Mapping[str, Any]) -> str | None:
        """Say why this file needs consent even if writing was allowed (tools, "Built-ins")."""
        return self._files.sensitive(arguments)

    async def preview(self, arguments: Mapping[str, Any]) -> str:
        """Say what a call would do: for a file that exists, by a unified diff."""

        def work(stop: CancelFlag) -> ToolOutcome:
            try:
                location, old = self._files.first(
                    arguments["path"],
                    lambda location: (location, read_bytes(self._files, location, stop, MAX_CONTENT_BYTES)),
                )
            except FileError as error:
                if error.error_type == "not_found":
                    return succeeded("")
                # Too large to compare, or it would fail: the reason is what can be said.
                return succeeded(f"Would replace {printable(arguments['path'])!r}. {error}")
            return succeeded(
                _difference(location, self._files.roots.path_of(location), old, arguments["content"])
            )

        outcome = await self._files.run(work)
        if outcome.success and outcome.data:
            return str(outcome.data)
        return outcome.error_message or await self._new.preview(arguments)

    async def run(self, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Answer with ``path``, ``size_bytes`` and ``replaced``; a new file also with ``created_folders``."""

        def work(stop: CancelFlag) -> ToolOutcome:
            data = encoded(arguments["content"])
            try:
                location = self._files.first(
                    arguments["path"], lambda location: self._replace(location, data, stop)
                )
            except FileError as error:
                if error.error_type != "not_found":
                    raise
                created = self._new.create(arguments, stop)
                return succeeded({**created.data, "replaced": False})
            shown = self._files.roots.path_of(location)
            return succeeded({"path": shown, "size_bytes": len(data), "replaced": True})

        return await self._files.run(work)

    def _replace(self, location: SandboxPath, data: bytes, stop: CancelFlag) -> SandboxPath:
        if not location.parts:
            raise FileError("validation_failed", "The path is a folder's; it needs a file's name.")
        with self._files.roots.folder(SandboxPath(location.root, location.parts[:-1])) as folder:
            replace_file(folder, location.parts[-1], data, stop)
        return location


def _difference(location: SandboxPath, shown: str, old: bytes, new: str) -> str:
    opening = f"Would replace {shown!r}, {len(old):,} bytes, by {amount(new)}."
    kind = secret_kind((*location.root.parts, *location.parts))
    if kind:
        return f"{opening} The difference is not shown: it may hold {kind}."
    before, after = old.decode(errors="replace").splitlines(), new.splitlines()
    if max(len(before), len(after)) > MAX_COMPARED_LINES:
        return f"{opening} The texts are too long to be compared."
    lines = difflib.unified_diff(before, after, shown, shown, lineterm="", n=2)
    kept = [printable(line[:_LINE_CHARS]) for line in islice(lines, MAX_SHOWN_LINES)]
    more = sum(1 for _ in lines)
    if not kept:
        return f"{opening} The lines stay the same."
    return "\n".join([opening, *kept, *([f"… and {more} more lines"] if more else [])])
