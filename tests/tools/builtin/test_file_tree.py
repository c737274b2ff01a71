"""``get_file_tree``: what there is, in order, within bounds, and nothing behind a link."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conductor.tools.base import CallContext, ToolOutcome
from conductor.tools.builtin.file_tree import MAX_DEPTH, FileTree, TreeLimits
from conductor.tools.builtin.read_file import ReadFile
from conductor.tools.builtin.sandbox import WALKS, Files, Roots
from conductor.tools.schema import check_schema

CONTEXT = CallContext("s", "c")
TOP = Path(__file__).resolve().parents[3]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


def make(root: Path, *paths: str) -> None:
    """Create files, and folders where a path ends in a slash."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).mkdir(exist_ok=True) if path.endswith("/") else (root / path).touch()


async def tree(*roots: Path, limits: TreeLimits | None = None, **arguments: Any) -> ToolOutcome:
    return await FileTree(Files(Roots(roots)), limits).run(arguments, CONTEXT)


def test_its_schema_is_sound() -> None:
    check_schema(FileTree.spec.input_schema)
    assert (FileTree.spec.risk, FileTree.spec.effect) == ("safe", "read")


async def test_folders_come_first_and_all_in_order(root: Path) -> None:
    make(root, "z.txt", "b/y", "b/x", "b/c/deep", "a/", ".hidden", "B")
    outcome = await tree(root)
    assert outcome.data == {
        "path": ".",
        "tree": "a/\nb/\n c/\n  deep\n x\n y\n.hidden\nB\nz.txt",
        "folders": 3,
        "files": 6,
        "links": 0,
        "special": 0,
        "ignored": 0,
        "complete": True,
    }
    assert outcome.metadata.notes == ()


@pytest.mark.parametrize("path", ["b", "./b/", "root/b"])
async def test_a_folder_can_be_asked_for(root: Path, path: str) -> None:
    make(root, "a", "b/x", "b/c/y")
    data = (await tree(root, path=path)).data
    assert (data["path"], data["tree"]) == ("b", "c/\n y\nx")


async def test_an_empty_folder_is_an_empty_tree(root: Path) -> None:
    assert (await tree(root)).data["tree"] == ""


async def test_a_depth_shows_so_many_levels_and_says_so(root: Path) -> None:
    make(root, "a/b/c/d", "x")
    outcome = await tree(root, depth=2)
    assert outcome.data["tree"] == "a/\n b/ …\nx"
    assert not outcome.data["complete"]
    assert outcome.metadata.notes == ("Only 2 levels are shown.",)
    assert (await tree(root, depth=1)).metadata.notes == ("Only 1 level is shown.",)
    assert (await tree(root, depth=4)).data["complete"]


async def test_several_roots_are_shown_by_their_labels(tmp_path: Path) -> None:
    make(tmp_path, "one/a/x", "two/y")
    for path in ("", ".", "/"):
        outcome = await tree(tmp_path / "one", tmp_path / "two", path=path)
        assert outcome.data["tree"] == "one/\n a/\n  x\ntwo/\n y"
    assert (await tree(tmp_path / "one", tmp_path / "two", depth=1)).data["tree"] == "one/\n a/ …\ntwo/\n y"
    assert (await tree(tmp_path / "one", tmp_path / "two", path="one/a")).data["path"] == "one/a"
    gone = await tree(tmp_path / "gone", tmp_path / "two")
    assert gone.data["tree"] == "gone/ (cannot be read)\ntwo/\n y"


async def test_links_are_shown_and_not_followed(root: Path) -> None:
    make(root.parent, "outside/secret")
    make(root, "a/x")
    (root / "folder").symlink_to(root.parent / "outside")
    (root / "loop").symlink_to(root)
    (root / "a" / "file").symlink_to("/etc/passwd")
    (root / "dangling").symlink_to("nowhere")
    os.mkfifo(root / "pipe")
    data = (await tree(root)).data
    assert data["tree"] == (
        "a/\n file (link)\n x\ndangling (link)\nfolder (link)\nloop (link)\npipe (special)"
    )
    assert (data["links"], data["special"]) == (4, 1)
    outcome = await tree(root, path="folder")
    assert outcome.error_type == "permission_denied"
    assert outcome.error_message == "'folder' is a link or is behind a link; links are not followed."


@pytest.mark.parametrize(
    ("path", "kind"),
    [("..", "validation_failed"), ("/etc", "permission_denied"), ("none", "not_found"), ("x", "not_found")],
)
async def test_what_is_no_folder_inside_is_refused(root: Path, path: str, kind: str) -> None:
    make(root, "x")
    outcome = await tree(root, path=path)
    assert outcome.error_type == kind
    assert str(root.parent) not in outcome.content


async def test_a_root_that_disappeared_is_said(root: Path) -> None:
    tool = FileTree(Files(Roots([root])))
    os.rmdir(root)
    outcome = await tool.run({}, CONTEXT)
    assert outcome.error_type == "io_error"
    assert outcome.error_message == "The folder 'root' is not available now."


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_a_folder_without_the_right_to_it_is_marked(root: Path) -> None:
    make(root, "a/x", "b")
    (root / "a").chmod(0)
    try:
        outcome = await tree(root)
    finally:
        (root / "a").chmod(0o700)
    assert outcome.data["tree"] == "a/ (cannot be read)\nb"
    assert outcome.metadata.notes == ("Some folders could not be read.",)


async def test_gitignore_holds_at_every_level(root: Path) -> None:
    make(
        root, "a/x.log", "a/keep.log", "a/b/y.log", "build/out", "src/build/z", "src/gen/g.py", ".git/config"
    )
    (root / ".gitignore").write_text("*.log\n/build/\n")
    (root / "a" / ".gitignore").write_text("!keep.log\n")
    (root / "src" / ".gitignore").write_text("gen\n")
    data = (await tree(root)).data
    assert data["tree"] == ("a/\n b/\n .gitignore\n keep.log\nsrc/\n build/\n  z\n .gitignore\n.gitignore")
    assert data["ignored"] == 4
    assert (await tree(root, path="a/b")).data["tree"] == ""  # the rules above it hold as well


async def test_an_ignored_folder_that_is_asked_for_is_shown_and_said_to_be(root: Path) -> None:
    make(root, "build/out/x.o")
    (root / ".gitignore").write_text("build/\n*.o\n")
    for path in ("build", "build/out"):
        outcome = await tree(root, path=path)
        assert "x.o" in outcome.data["tree"]
        assert outcome.metadata.notes == (
            "The folder is named in .gitignore; it is shown because it was requested.",
        )


async def test_a_gitignore_that_is_a_link_or_a_pipe_or_huge_does_no_harm(root: Path) -> None:
    make(root, "a/x", "b/x", "c/x")
    (root.parent / "rules").write_text("x\n")
    (root / "a" / ".gitignore").symlink_to(root.parent / "rules")
    os.mkfifo(root / "b" / ".gitignore")
    (root / "c" / ".gitignore").write_text("x\n" * 1_000_000)
    outcome = await tree(root)
    assert outcome.data["tree"] == (
        "a/\n .gitignore (link)\n x\nb/\n .gitignore (special)\n x\nc/\n .gitignore"
    )
    assert "lines of .gitignore files were too many" in outcome.metadata.notes[0]


async def test_a_gitignore_made_to_be_slow_is_not(root: Path) -> None:
    make(root, *(f"{number:03}" + "a" * 240 for number in range(200)))
    (root / ".gitignore").write_text(("*a" * 60 + "*b\n") * 100)
    async with asyncio.timeout(30):  # without bounds it never ends
        outcome = await tree(root, limits=TreeLimits(text_bytes=10**6))
    assert outcome.data["files"] == 201


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
async def test_this_repository_is_shown_as_git_shows_it() -> None:
    top = TOP
    listing = await asyncio.to_thread(
        subprocess.run,
        ["git", "-C", str(top), "ls-files", "-co", "--exclude-standard", "-z", "conductor"],
        capture_output=True,
        check=False,
    )
    if listing.returncode:
        pytest.skip("not a repository")
    listed = [top / path for path in listing.stdout.decode().split("\0")[:-1]]
    expected = [path for path in listed if path.exists() and not path.is_symlink()]  # no link is followed
    data = (await tree(top, path="conductor")).data
    assert data["complete"]
    assert data["files"] == len(expected)


async def test_names_cannot_break_out_of_their_line(root: Path) -> None:
    for name in (b"a\nb", b"\x1b[2J", b"\xff\xfe", "\u202ex".encode()):
        (root / os.fsdecode(name)).touch()
    os.mkdir(os.fsencode(root) + b"/\xff")
    (root / os.fsdecode(b"\xff") / "x").touch()
    outcome = await tree(root)
    assert outcome.data["tree"].split("\n") == [
        "\\xff/",
        " x",
        "\\x1b[2J",
        "a\\nb",
        "\\u202ex",
        "\\xff\\xfe",
    ]
    assert outcome.content.isprintable()


async def test_a_large_tree_shows_what_is_near_the_top_and_says_it_was_cut(root: Path) -> None:
    make(root, *(f"{folder}/{file}" for folder in "abc" for file in range(30)), "top")
    outcome = await tree(root, limits=TreeLimits(entries=40))
    assert outcome.data["folders"] + outcome.data["files"] == 40
    lines = outcome.data["tree"].split("\n")
    assert lines[0] == "a/"
    assert lines[-4:] == [" 13", " … 24 more", "c/ …", "top"]
    assert not outcome.data["complete"]
    assert outcome.metadata.notes == ("Only 40 entries are shown.",)


async def test_two_thousand_entries_are_shown_at_most(root: Path) -> None:
    make(root, *(f"{number}" for number in range(2100)))
    data = (await tree(root, limits=TreeLimits(text_bytes=10**6))).data
    assert data["files"] == 2000
    assert data["tree"].endswith("\n… 100 more")


async def test_the_result_fits_an_observation_whatever_the_names_are(root: Path) -> None:
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
    """Give a folder on a disk in memory: on others so many files take minutes to make."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no disk in memory here")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


async def test_a_folder_with_a_hundred_thousand_entries_is_bounded(memory_disk: Path) -> None:
    (memory_disk / ".gitignore").write_text("*5\n*7\n")
    names = [f"{number:06}" for number in range(100_000)]
    random.Random(7).shuffle(names)
    for name in names:
        os.close(os.open(memory_disk / name, os.O_CREAT | os.O_WRONLY))
    loop_began, began = time.thread_time(), time.process_time()
    patient = TreeLimits(seconds=60)
    outcome = await tree(memory_disk, limits=patient)
    loop_took, took = time.thread_time() - loop_began, time.process_time() - began
    assert outcome.data["tree"].startswith(".gitignore\n000000\n000001\n")
    assert "000005" not in outcome.data["tree"]
    assert outcome.data["tree"].endswith(" more")
    assert loop_took < took / 4  # the work is in another thread
    tracemalloc.start()
    try:
        assert (await tree(memory_disk, limits=patient)).data == outcome.data
        assert tracemalloc.get_traced_memory()[1] < 40e6
    finally:
        tracemalloc.stop()


async def test_only_so_many_names_are_looked_at(root: Path) -> None:
    make(root, *(f"{folder}/{file:03}" for folder in "ab" for file in range(100)))
    outcome = await tree(root, limits=TreeLimits(scanned=50))
    assert (outcome.data["folders"], outcome.data["files"]) == (2, 48)
    assert outcome.data["tree"].endswith("\n … more\nb/ …")
    assert outcome.metadata.notes == ("Only 50 entries were scanned.",)


async def test_when_the_time_is_used_up_it_says_what_it_has(root: Path) -> None:
    make(root, *(f"{number}/x" for number in range(50)))
    ticks = iter(range(1000))
    tool = FileTree(Files(Roots([root])), TreeLimits(seconds=20), clock=lambda: next(ticks))
    outcome = await tool.run({}, CONTEXT)
    assert 0 < outcome.data["folders"] <= 20
    assert outcome.metadata.notes == ("The time limit was reached.",)


async def test_a_deep_tree_is_cut_at_the_greatest_depth(root: Path) -> None:
    folder = os.open(root, os.O_RDONLY)
    for _ in range(300):  # deeper than a path can say
        os.mkdir("d" * 20, dir_fd=folder)
        below = os.open("d" * 20, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    try:
        outcome = await tree(root)
        assert outcome.data["folders"] == MAX_DEPTH
        assert outcome.data["tree"].endswith("/ …")
        assert outcome.metadata.notes == (f"Only {MAX_DEPTH} levels are shown.",)
    finally:
        await asyncio.to_thread(subprocess.run, ["rm", "-rf", str(root)], check=True)


async def test_a_folder_swapped_for_a_link_never_shows_what_is_outside(root: Path) -> None:
    make(root.parent, "outside/b/secret")
    make(root, "a/b/inside")
    link, real, aside = root / "link", root / "a", root / "aside"
    link.symlink_to(root.parent / "outside")
    over, swaps = threading.Event(), 0

    def swapping() -> None:
        nonlocal swaps
        while not over.is_set():
            real.rename(aside)
            link.rename(real)
            real.rename(link)
            aside.rename(real)
            swaps += 1

    tool = FileTree(Files(Roots([root])))
    thread = threading.Thread(target=swapping)
    thread.start()
    shown = set()
    try:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            for path in ("", "a", "a/b"):
                shown.add((await tool.run({"path": path}, CONTEXT)).content)
    finally:
        over.set()
        thread.join()
    assert any("inside" in content for content in shown)
    assert not any("secret" in content for content in shown)
    assert swaps > 100


async def test_walks_wait_for_each_other_and_a_read_for_none_of_them(root: Path) -> None:
    """The clock is asked by each walk as it begins, and holds it."""
    (root / "x").write_text("one")
    files = Files(Roots([root]))
    begun, release = threading.Semaphore(0), threading.Event()
    walking = 0

    def held() -> float:
        nonlocal walking
        if not release.is_set():
            walking += 1
            begun.release()
            release.wait(5)
        return 0.0

    tree = FileTree(files, clock=held)
    calls = [asyncio.create_task(tree.run({}, CONTEXT)) for _ in range(12)]
    try:
        for _ in range(WALKS):
            assert await asyncio.to_thread(begun.acquire, timeout=5)
        async with asyncio.timeout(5):
            assert (await ReadFile(files).run({"path": "x"}, CONTEXT)).success
        assert walking == WALKS == 2
    finally:
        release.set()
    assert all([(await call).success for call in calls])
