"""``write_file``: the complete new text or the old one, and the same mode."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conductor.plugins.tools.sandbox import CancelFlag, Files, Roots
from conductor.plugins.tools.write_file import (
    MAX_COMPARED_BYTES,
    MAX_COMPARED_LINES,
    MAX_DIFF_LINES,
    file_writer,
    replace_file,
)
from conductor.tools import ToolError
from conductor.tools.base import CallContext
from conductor.tools.outcomes import ToolOutcome
from tests.unit.tools.builtin.conftest import paths_in, preview_of, run

CONTEXT = CallContext(session_id="s", call_id="c")


@pytest.fixture
def root(root: Path) -> Path:
    (root / "a" / "old.md").write_text("one\ntwo\nthree\n")
    return root


async def write(root: Path, path: str, content: str = "new\n") -> ToolOutcome:
    return await run(file_writer(Files(Roots([root]))), {"path": path, "content": content}, CONTEXT)


async def preview(root: Path, path: str, content: str = "new\n") -> str:
    return await preview_of(file_writer(Files(Roots([root]))), {"path": path, "content": content})


@pytest.mark.parametrize("mode", [0o600, 0o755])
async def test_a_file_is_replaced_and_keeps_its_mode(root: Path, mode: int) -> None:
    (root / "a" / "old.md").chmod(mode)
    outcome = await write(root, "a/old.md", "é\n")
    assert outcome.data == {"path": "a/old.md", "size_bytes": 3, "replaced": True}
    assert (root / "a" / "old.md").read_bytes() == b"\xc3\xa9\n"
    assert stat.S_IMODE((root / "a" / "old.md").stat().st_mode) == mode
    assert paths_in(root) == ["a", "a/old.md"]


async def test_a_file_that_is_missing_is_created(root: Path) -> None:
    outcome = await write(root, "a/new.md")
    assert outcome.data == {"path": "a/new.md", "size_bytes": 4, "created_folders": 0, "replaced": False}
    assert (await write(root, "b/new.md")).data["created_folders"] == 1


async def test_the_root_with_the_file_is_used(root: Path) -> None:
    empty = root.parent / "other"
    empty.mkdir()
    tool = file_writer(Files(Roots([empty, root])))
    (root / "x").write_text("old")
    assert (await run(tool, {"path": "x", "content": "new"}, CONTEXT)).data["path"] == "root/x"
    assert paths_in(empty) == [] and (root / "x").read_text() == "new"


@pytest.mark.parametrize("kind", ["link", "dangling", "hard link", "pipe", "folder", "read-only"])
async def test_a_path_that_is_not_a_plain_file_is_not_changed(root: Path, kind: str) -> None:
    existing, target = root / "there", root.parent / "target"
    target.write_text("before")
    make: dict[str, Callable[[], object]] = {
        "link": lambda: existing.symlink_to(target),
        "dangling": lambda: existing.symlink_to(root.parent / "missing"),
        "hard link": lambda: os.link(target, existing),
        "pipe": lambda: os.mkfifo(existing),
        "folder": existing.mkdir,
        "read-only": lambda: existing.touch(0o444),
    }
    make[kind]()
    before = existing.lstat()
    outcome = await write(root, "there")
    assert not outcome.success and outcome.error_type != "internal_error"
    assert existing.lstat() == before
    assert target.read_text() == "before" and not (root.parent / "missing").exists()
    assert not [name for name in paths_in(root) if name.endswith(".tmp")]


@pytest.mark.parametrize("failing", ["fsync", "rename", "cancel"])
def test_a_write_that_fails_leaves_the_old_file(
    root: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = CancelFlag()
    if failing == "cancel":
        stop.set()
    else:

        def fail(*args: Any, **kwargs: Any) -> None:
            raise OSError(28, "full")

        monkeypatch.setattr(os, failing, fail)
    folder = os.open(root / "a", os.O_RDONLY)
    try:
        with pytest.raises((OSError, ToolError)):
            replace_file(folder, "old.md", b"new", stop)
    finally:
        os.close(folder)
    assert paths_in(root) == ["a", "a/old.md"]
    assert (root / "a" / "old.md").read_text() == "one\ntwo\nthree\n"


async def test_a_preview_is_a_unified_diff(root: Path) -> None:
    assert await preview(root, "a/old.md", "one\n2\x1b\nthree\n") == (
        "Would replace 'a/old.md', 14 bytes, by 3 lines, 13 bytes.\n"
        "--- a/old.md\n+++ a/old.md\n@@ -1,3 +1,3 @@\n one\n-two\n+2\\x1b\n three"
    )
    assert (await preview(root, "a/old.md", "one\ntwo\nthree\n")).endswith("The lines stay the same.")
    assert (root / "a" / "old.md").read_text() == "one\ntwo\nthree\n"


async def test_a_preview_is_bounded(root: Path) -> None:
    text = await preview(root, "a/old.md", "x" * 500 + "\n" + "y\n" * 300)
    lines = text.splitlines()
    assert len(lines) == MAX_DIFF_LINES + 2 and lines[-1].startswith("… and ")
    assert max(map(len, lines)) <= 120
    text = await preview(root, "a/old.md", "y\n" * (MAX_COMPARED_LINES + 1))
    assert text.endswith("The texts are too long to be compared.")
    (root / "a" / "old.md").write_bytes(b"x" * (MAX_COMPARED_BYTES + 1))
    assert "the limit is" in await preview(root, "a/old.md")


async def test_a_preview_shows_no_secret_and_no_file_outside(root: Path) -> None:
    (root / ".env").write_text("PASSWORD=heron\n")
    text = await preview(root, ".env")
    assert "heron" not in text and text.endswith("it may hold secrets.")
    (root / "link").symlink_to("/etc/passwd")
    assert "links are not followed" in await preview(root, "link")
    assert "outside the allowed folders" in await preview(root, "/etc/passwd")
