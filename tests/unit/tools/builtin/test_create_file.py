"""``create_file``: a complete new file or nothing, and no other file is replaced."""

from __future__ import annotations

import asyncio
import os
import resource
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from conductor.plugins.tools.sandbox import CancelFlag, Files, Roots
from conductor.plugins.tools.write_file import file_creator, write_new
from conductor.tools.base import CallContext
from conductor.tools.outcomes import ToolOutcome
from tests.unit.tools.builtin.conftest import paths_in, preview_of, run
from tests.unit.tools.builtin.races import exchange, interrupted

CONTEXT = CallContext(session_id="s", call_id="c")


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


async def create(root: Path, path: str, content: str = "text\n") -> ToolOutcome:
    return await run(file_creator(Files(Roots([root]))), {"path": path, "content": content}, CONTEXT)


@pytest.mark.parametrize(
    ("name", "content", "mode"),
    [
        ("new.md", "é\n", 0o644),
        (".env", "x", 0o600),
        ("empty", "", 0o644),
        ("large", "x" * 1_000_000, 0o644),
    ],
)
async def test_a_file_is_created_whole(root: Path, name: str, content: str, mode: int) -> None:
    outcome = await create(root, f"a/{name}", content)
    file, data = root / "a" / name, content.encode()
    assert outcome.data == {"path": f"a/{name}", "size_bytes": len(data), "created_folders": 0}
    assert file.read_bytes() == data
    assert paths_in(root) == ["a", f"a/{name}"]
    assert (stat.S_IMODE(file.stat().st_mode), file.stat().st_nlink) == (mode, 1)


async def test_invalid_content_is_refused(root: Path) -> None:
    assert (await create(root, "x", "\ud800")).error_type == "validation_failed"
    assert paths_in(root) == ["a"]


@pytest.mark.parametrize("kind", ["file", "folder", "link", "dangling", "pipe"])
async def test_an_existing_file_is_not_changed(root: Path, kind: str) -> None:
    existing, target = root / "there", root.parent / "outside" / "target"
    if kind == "file":
        existing.write_text("before")
    elif kind == "folder":
        existing.mkdir()
    elif kind == "pipe":
        os.mkfifo(existing)
    else:
        if kind == "link":
            target.write_text("before")
        existing.symlink_to(target)
    before = existing.lstat()
    outcome = await create(root, "there")
    assert outcome.error_type == "validation_failed"
    assert outcome.error_message == "'there' exists already; it was not changed."
    assert (existing.lstat().st_ino, existing.lstat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert paths_in(root) == ["a", "there"]
    assert target.exists() == (kind == "link")


async def test_missing_folders_are_created(root: Path) -> None:
    assert (await create(root, "b/c/x")).data["created_folders"] == 2
    assert (await create(root, "d/" + "x" * 256)).error_type == "validation_failed"
    assert paths_in(root) == ["a", "b", "b/c", "b/c/x"]


@pytest.mark.parametrize("path", ["", ".", "a/", "a/."])
async def test_a_path_without_a_file_name_is_refused(root: Path, path: str) -> None:
    outcome = await create(root, path)
    assert outcome.error_type in ("validation_failed", "permission_denied")
    assert paths_in(root.parent) == ["outside", "outside/file", "root", "root/a"]


async def test_a_disk_that_is_full_leaves_nothing_behind(root: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, hard))
    try:
        outcome = await create(root, "b/c/x", "x" * 900_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert outcome.error_type == "io_error"
    assert outcome.error_message == "'b/c/x' cannot be used: file too large."
    assert paths_in(root) == ["a"]


async def test_a_missing_root_is_not_replaced_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    tool = file_creator(Files(Roots([tmp_path / "gone", tmp_path / "two"])))
    outcome = await run(tool, {"path": "x", "content": ""}, CONTEXT)
    assert outcome.error_message == "The folder 'gone' is not available now."
    assert paths_in(tmp_path) == ["two"]


async def test_of_many_calls_for_one_name_one_succeeds(root: Path) -> None:
    tool = file_creator(Files(Roots([root])))
    contents = [str(number) * 10_000 for number in range(8)]
    outcomes = await asyncio.gather(
        *(run(tool, {"path": "x", "content": content}, CONTEXT) for content in contents)
    )
    assert sum(outcome.success for outcome in outcomes) == 1
    winner = next(content for content, outcome in zip(contents, outcomes, strict=True) if outcome.success)
    assert (root / "x").read_text() == winner
    assert paths_in(root) == ["a", "x"]


@pytest.fixture
def folder(root: Path) -> Iterator[int]:
    opened = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    yield opened
    os.close(opened)


def test_a_name_taken_at_the_last_moment_is_not_replaced(
    root: Path, folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_sync = os.fsync

    def sync_and_take(file: int) -> None:
        really_sync(file)
        (root / "x").symlink_to("elsewhere")

    monkeypatch.setattr(os, "fsync", sync_and_take)
    with pytest.raises(FileExistsError):
        write_new(folder, "x", b"data", 0o644, CancelFlag())
    assert os.readlink(root / "x") == "elsewhere"
    assert paths_in(root) == ["a", "x"]


async def test_a_link_swapped_in_while_creating_never_leads_outside(root: Path) -> None:
    (root / "link").symlink_to(root.parent / "outside")
    with interrupted() as calls:
        await create(root, "a/b/x")
    created = 0
    for start in range(next(calls) + 1):
        for end in (start + 1, start + 1000):
            steps = [(number, partial(exchange, root / "a", root / "link")) for number in (start, end)]
            with interrupted(*steps):
                created += (await create(root, f"a/{start}-{end}/x")).success
            assert paths_in(root.parent / "outside") == ["file"]
    assert created > 0
    assert not [name for name in paths_in(root) if name.endswith(".tmp")]


async def test_a_preview_describes_the_file(root: Path) -> None:
    tool = file_creator(Files(Roots([root])))
    content = "one\n\x1b[2Jtwo\n3\n4\n5\n6\n7\n"
    text = await preview_of(tool, {"path": "b/x.md", "content": content})
    assert text == (
        "Would create 'b/x.md': 7 lines, 22 bytes. "
        "Would fail if it exists already.\n"
        "+one\n+\\x1b[2Jtwo\n+3\n+4\n+5\n+6\n+7"
    )
    text = await preview_of(tool, {"path": "x", "content": "1"})
    assert text.startswith("Would create 'x': 1 line, 1 bytes.")
    assert paths_in(root) == ["a"]


async def test_folders_are_created_only_if_no_root_has_them(tmp_path: Path) -> None:
    roots = [tmp_path / "first", tmp_path / "second"]
    for root in roots:
        root.mkdir()
    (roots[1] / "docs").mkdir()
    tool = file_creator(Files(Roots(roots)))
    for path in ("docs/a.txt", "drafts/a.txt"):
        assert (await run(tool, {"path": path, "content": ""}, CONTEXT)).success
    assert paths_in(roots[0]) == ["drafts", "drafts/a.txt"] and paths_in(roots[1]) == ["docs", "docs/a.txt"]
