"""The tool ``list_directory``: one folder's entries with their sizes and times."""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from conductor.tools.base import CallContext, ToolOutcome, succeeded
from conductor.tools.builtin.definitions import argument, definition
from conductor.tools.builtin.sandbox import CancelFlag, Files, SandboxPath, printable
from conductor.tools.builtin.walk import Kind, Walk, ignored, is_everything

# Limits of one result: entries, bytes as JSON, seconds.
MAX_ENTRIES = 500
MAX_TEXT_BYTES = 14 * 1024
BUDGET_S = 2.0


class ListDirectory:
    """``list_directory``. ``clock`` is any clock in seconds."""

    spec = definition(
        "list_directory",
        "List what is in one folder, with sizes and times of change; names that .gitignore leaves out "
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

        Folders come first, then the rest, each by name. An entry has ``name`` and ``kind``, files also
        ``size_bytes``, and all but links ``modified`` (ISO 8601, UTC).
        """
        path, offset = arguments.get("path") or "", arguments.get("offset", 1)

        def work(stop: CancelFlag) -> ToolOutcome:
            roots, walk = self._files.roots, Walk(self._files, stop, self._clock, BUDGET_S)
            if is_everything(path) and len(roots.all) > 1:
                entries = [{"name": root.label, "kind": "folder"} for root in roots.all]
                return _outcome(".", entries[offset - 1 :], offset, len(entries), 0, walk)
            wanted = "." if is_everything(path) else path
            return self._files.first(wanted, lambda location: self._list(location, offset, walk))

        return await self._files.run(work, walk=True)

    def _list(self, location: SandboxPath, offset: int, walk: Walk) -> ToolOutcome:
        chain = walk.rules_above(location)
        with self._files.roots.folder(location) as folder:
            chain = walk.rules_in(folder, len(location.parts), chain)
            found = list(heapq.merge(*walk.scan(folder)))
            kept = [
                (name, kind)
                for _, name, kind in found
                if not ignored(chain, (*location.parts, name), kind == "folder")
            ]
            entries: list[dict[str, Any]] = []
            room = MAX_TEXT_BYTES
            for name, kind in kept[offset - 1 : offset - 1 + MAX_ENTRIES]:
                entry = _entry(folder, name, kind)
                room -= len(msgspec.json.encode(entry)) + 1
                if room < 0 or walk.full():
                    break
                entries.append(entry)
        if walk.scanned_all:
            walk.cut(walk.scanned_note)
        shown = self._files.roots.path_of(location)
        return _outcome(shown, entries, offset, len(kept), len(found) - len(kept), walk)


def _entry(folder: int, name: str, kind: Kind) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": printable(name), "kind": kind}
    if kind == "link":
        return entry
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:  # it has been removed
        return entry
    if kind == "file":
        entry["size_bytes"] = found.st_size
    entry["modified"] = f"{datetime.fromtimestamp(found.st_mtime, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return entry


def _outcome(
    path: str, entries: list[dict[str, Any]], offset: int, total: int, ignored: int, walk: Walk
) -> ToolOutcome:
    last = offset + len(entries) - 1
    return succeeded(
        {
            "path": path,
            "entries": entries,
            "first": offset,
            "last": last,
            "total": total,
            "ignored": ignored,
            "complete": walk.complete and last >= total,
        },
        notes=walk.said(),
    )
