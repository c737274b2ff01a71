"""``get_file_tree``: entries in order, within limits, and nothing behind a link."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import tempfile
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conductor.plugins.tools import file_tree, walk
from conductor.plugins.tools.file_tree import MAX_DEPTH, tree_lister
from conductor.plugins.tools.read_file import file_reader
from conductor.plugins.tools.sandbox import WALKS, Files, Roots, SandboxPath, open_folder
from conductor.tools.base import CallContext
from conductor.tools.outcomes import ToolOutcome
from tests.server.wires import WAIT
from tests.unit.tools.builtin.conftest import run
from tests.unit.tools.builtin.races import exchange, interrupted

CONTEXT = CallContext(session_id="s", call_id="c")


@pytest.fixture
def root(root: Path) -> Path:
    (root / "a").rmdir()
    return root


def make(root: Path, *paths: str) -> None:
    """Create files, and folders where a path ends in a slash."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).mkdir(exist_ok=True) if path.endswith("/") else (root / path).touch()


async def tree(*roots: Path, **arguments: Any) -> ToolOutcome:
    return await run(tree_lister(Files(Roots(roots))), arguments, CONTEXT)


async def test_folders_come_first_and_all_in_order(root: Path) -> None:
    make(root, "z.txt", "b/y", "b/x", "b/c/deep", "a/", ".hidden", "B")
    outcome = await tree(root)
    assert outcome.data == {
        "tree": "a/\nb/\n.hidden\nB\nz.txt\nb/c/\nb/x\nb/y\nb/c/deep",
        "complete": True,
    }
    assert outcome.metadata.notes == ()
    assert (await tree(root, path="a")).data["tree"] == ""


@pytest.mark.parametrize("path", ["b", "./b/", "root/b"])
async def test_a_tree_can_begin_at_a_folder(root: Path, path: str) -> None:
    make(root, "a", "b/x", "b/c/y")
    assert (await tree(root, path=path)).data["tree"] == "b/c/\nb/x\nb/c/y"


async def test_several_roots_are_shown_by_their_labels(tmp_path: Path) -> None:
    make(tmp_path, "one/a/x", "two/y")
    first, second = tmp_path / "one", tmp_path / "two"
    for path in ("", ".", "/"):
        assert (await tree(first, second, path=path)).data["tree"] == "one/a/\none/a/x\ntwo/y"
    assert (await tree(first, second, depth=1)).data["tree"] == "one/a/\ntwo/y"
    assert (await tree(first, second, path="one/a")).data["tree"] == "one/a/x"
    outcome = await tree(tmp_path / "gone", second)
    assert (outcome.data["tree"], outcome.data["complete"]) == ("two/y", False)
    assert outcome.metadata.notes == ("The folder 'gone' is not available now.",)


async def test_links_are_shown_and_not_followed(root: Path) -> None:
    make(root.parent, "outside/secret")
    make(root, "a/x")
    (root / "folder").symlink_to(root.parent / "outside")
    (root / "loop").symlink_to(root)
    (root / "a" / "file").symlink_to("/etc/passwd")
    (root / "dangling").symlink_to("nowhere")
    os.mkfifo(root / "pipe")
    assert (await tree(root)).data["tree"] == (
        "a/\ndangling (link)\nfolder (link)\nloop (link)\npipe (special)\na/file (link)\na/x"
    )
    outcome = await tree(root, path="folder")
    assert outcome.error_type == "permission_denied"
    assert outcome.error_message == "'folder' is a link or is behind a link; links are not followed."


async def test_gitignore_files_apply_at_every_level(root: Path) -> None:
    make(
        root, "a/x.log", "a/keep.log", "a/b/y.log", "build/out", "src/build/z", "src/gen/g.py", ".git/config"
    )
    (root / ".gitignore").write_text("*.log\n/build/\n")
    (root / "a" / ".gitignore").write_text("!keep.log\n")
    (root / "src" / ".gitignore").write_text("gen\n")
    assert (await tree(root)).data["tree"] == (
        "a/\nsrc/\n.gitignore\na/b/\na/.gitignore\na/keep.log\nsrc/build/\nsrc/.gitignore\nsrc/build/z"
    )
    assert (await tree(root, path="a/b")).data["tree"] == ""  # by the rules of the folders above
    outcome = await tree(root, path="build")
    assert outcome.data["tree"] == "build/out"
    assert outcome.metadata.notes == (
        "The folder is named in .gitignore; it is shown because it was requested.",
    )


async def test_a_gitignore_that_is_a_link_or_a_pipe_or_huge_is_harmless(root: Path) -> None:
    make(root, "a/x", "b/x", "c/x")
    (root.parent / "rules").write_text("x\n")
    (root / "a" / ".gitignore").symlink_to(root.parent / "rules")
    os.mkfifo(root / "b" / ".gitignore")
    (root / "c" / ".gitignore").write_text("x\n" * 1_000_000)
    outcome = await tree(root)
    assert outcome.data["tree"] == (
        "a/\nb/\nc/\na/.gitignore (link)\na/x\nb/.gitignore (special)\nb/x\nc/.gitignore"
    )


async def test_names_stay_on_their_line(root: Path) -> None:
    for name in (b"a\nb", b"\x1b[2J", b"\xff\xfe", "\u202ex".encode()):
        (root / os.fsdecode(name)).touch()
    os.mkdir(os.fsencode(root) + b"/\xff")
    (root / os.fsdecode(b"\xff") / "x").touch()
    outcome = await tree(root)
    lines = ["\\xff/", "\\x1b[2J", "a\\nb", "\\u202ex", "\\xff\\xfe", "\\xff/x"]
    assert outcome.data["tree"].split("\n") == lines
    assert outcome.content.isprintable()


@pytest.mark.parametrize(
    ("limit", "depth", "count", "end", "note"),
    [
        ((file_tree, "MAX_ENTRIES", 40), 12, 40, "\nb/13", "Only 40 entries are shown."),
        ((file_tree, "MAX_TEXT_BYTES", 200), 12, 36, "\nb/1", "The entries do not all fit in one result."),
        ((walk, "MAX_SCANNED", 50), 12, 50, "", "Only 50 entries were scanned."),
        ((file_tree, "BUDGET_S", 0), 12, 0, "", "The time limit was reached."),
        ((file_tree, "BUDGET_S", 60), 1, 4, "a/\nb/\nc/\ntop", "Only 1 level is shown."),
    ],
)
async def test_a_large_tree_is_cut_far_from_the_top(
    root: Path, monkeypatch: pytest.MonkeyPatch, limit: Any, depth: int, count: int, end: str, note: str
) -> None:
    monkeypatch.setattr(*limit)
    make(root, *(f"{folder}/{file}" for folder in "abc" for file in range(30)), "top")
    outcome = await tree(root, depth=depth)
    assert len(outcome.data["tree"].split()) == count
    assert outcome.data["tree"].endswith(end)
    assert not outcome.data["complete"]
    assert outcome.metadata.notes == (note,)


async def test_a_result_fits_an_observation_with_any_names(root: Path) -> None:
    for number in range(60):
        folder = root / f"{number}{'é' * 100}"
        folder.mkdir()
        for child in range(60):
            (folder / f"\x01\x02\x03{child}").mkdir()
    for depth in (1, 2, 12):
        outcome = await tree(root, depth=depth)
        assert len(outcome.content) < 16 * 1024
        assert not outcome.data["complete"]


@pytest.fixture
def memory_disk() -> Iterator[Path]:
    """Make a folder on a disk in memory: on other disks many files take minutes."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no disk in memory here")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


async def test_a_folder_with_very_many_entries_is_limited(
    memory_disk: Path,
) -> None:
    (memory_disk / ".gitignore").write_text("*5\n*7\n")
    numbers = [f"{number:06}" for number in range(20_000)]
    random.Random(7).shuffle(numbers)
    for name in numbers:
        os.close(os.open(memory_disk / name, os.O_CREAT | os.O_WRONLY))
    outcome = await tree(memory_disk)
    assert outcome.data["tree"].startswith(".gitignore\n000000\n000001\n")
    assert "000015" not in outcome.data["tree"]
    assert not outcome.data["complete"]
    tracemalloc.start()
    try:
        assert (await tree(memory_disk)).data == outcome.data
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


async def test_a_deep_tree_is_cut_at_the_greatest_depth(root: Path) -> None:
    folder = os.open(root, os.O_RDONLY)
    for _ in range(300):  # deeper than a path can be long
        os.mkdir("d" * 20, dir_fd=folder)
        below = os.open("d" * 20, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    try:
        outcome = await tree(root)
        assert len(outcome.data["tree"].split()) == MAX_DEPTH
        assert outcome.metadata.notes == (f"Only {MAX_DEPTH} levels are shown.",)
    finally:
        await asyncio.to_thread(subprocess.run, ["rm", "-rf", str(root)], check=True)


async def test_a_folder_swapped_for_a_link_never_shows_files_outside(root: Path) -> None:
    make(root.parent, "outside/b/secret")
    make(root, "a/b/inside")
    (root / "link").symlink_to(root.parent / "outside")
    contents = []
    with interrupted() as calls:
        await tree(root, path="a")
    for start in range(next(calls) + 1):
        for end in (start + 1, start + 1000):
            steps = [(number, partial(exchange, root / "a", root / "link")) for number in (start, end)]
            with interrupted(*steps):
                contents.append((await tree(root, path="a")).content)
    assert any("inside" in content for content in contents)
    assert not any("secret" in content for content in contents)


async def test_a_walk_waits_for_other_walks_and_a_read_does_not(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "x").write_text("one")
    files = Files(Roots([root]))
    started, release = threading.Semaphore(0), threading.Event()
    walking: list[SandboxPath] = []

    def blocking(location: SandboxPath) -> AbstractContextManager[int]:
        if not release.is_set():
            walking.append(location)
            started.release()
            release.wait(5)
        return open_folder(location)

    monkeypatch.setattr(walk, "open_folder", blocking)
    calls = [asyncio.create_task(run(tree_lister(files), {}, CONTEXT)) for _ in range(12)]
    try:
        for _ in range(WALKS):
            assert await asyncio.to_thread(started.acquire, timeout=WAIT)
        async with asyncio.timeout(WAIT):
            assert (await run(file_reader(files), {"path": "x"}, CONTEXT)).success
        assert len(walking) == WALKS == 2
    finally:
        release.set()
    assert all([(await call).success for call in calls])
