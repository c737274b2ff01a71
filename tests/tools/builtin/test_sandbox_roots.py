"""Opening beneath a root: what is inside is found, and no link, race or odd file leads out."""

from __future__ import annotations

import errno
import os
import random
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.tools.builtin.sandbox import (
    DirectoryMissing,
    PathError,
    Roots,
    SandboxPath,
    open_regular,
    printable,
    split,
)

SECRET = b"secret"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    (folder / "b").mkdir(parents=True)
    for name in ("file", "b/file"):
        (folder / name).write_bytes(SECRET)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "a" / "b").mkdir(parents=True)
    for name in ("file", "a/file", "a/b/file"):
        (folder / name).write_bytes(b"inside")
    return folder


def read(roots: Roots, path: str) -> bytes:
    location = roots.locations(path)[0]
    with roots.folder(SandboxPath(location.root, location.parts[:-1])) as folder:
        file = open_regular(folder, location.parts[-1])
    try:
        return os.read(file, 100)
    finally:
        os.close(file)


def refusal(roots: Roots, path: str) -> str:
    with pytest.raises(OSError) as raised:
        read(roots, path)
    return errno.errorcode[raised.value.errno or 0]


@pytest.fixture
def no_descriptor_leaks() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    yield
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before  # earlier tests may still close some


@pytest.mark.usefixtures("no_descriptor_leaks")
@pytest.mark.parametrize("path", ["file", "a/file", "a/b/file", "./a//b/./file"])
def test_what_is_inside_is_opened(root: Path, path: str) -> None:
    assert read(Roots([root]), path) == b"inside"


def test_an_absolute_path_within_a_root_is_taken(root: Path) -> None:
    assert read(Roots([root]), str(root / "a" / "file")) == b"inside"


@pytest.mark.parametrize("path", ["/etc/passwd", "/", "//etc", "/root-of-another/file"])
def test_an_absolute_path_elsewhere_is_refused(root: Path, path: str) -> None:
    with pytest.raises(PathError, match="outside") as raised:
        Roots([root]).locations(path)
    assert str(root.parent) not in str(raised.value)


def test_a_folder_whose_name_only_begins_like_the_roots_is_outside(root: Path) -> None:
    with pytest.raises(PathError, match="outside"):
        Roots([root]).locations(f"{root}-more/file")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "..",
        "../outside/file",
        "a/../file",
        "a/b/..",
        "fi\0le",
        "a/\x1b[2J",
        "a\nb",
        "\x7f",
        "\x85",
        "\u2028",
        "\ud800",
        "\udcff",
        "x" * 4097,
        "é" * 2049,
        "a/" * 65,
    ],
)
def test_a_path_that_cannot_be_one_is_refused(root: Path, path: str) -> None:
    with pytest.raises(PathError):
        Roots([root]).locations(path)


def test_a_path_of_64_parts_is_taken(root: Path) -> None:
    assert len(Roots([root]).locations("a/" * 64)[0].parts) == 64


@given(st.text())
def test_no_text_gives_a_part_that_leads_elsewhere(path: str) -> None:
    try:
        parts = split(path)
    except PathError:
        return
    assert all(part not in ("", ".", "..") and "/" not in part and "\0" not in part for part in parts)


@pytest.mark.usefixtures("no_descriptor_leaks")
@pytest.mark.parametrize("target", ["outside", "inside", "relative", "dangling", "proc"])
@pytest.mark.parametrize("at", ["a", "a/b", "a/b/file"])
def test_a_link_is_refused_at_each_part(root: Path, outside: Path, at: str, target: str) -> None:
    link = root / at
    shutil.rmtree(link) if link.is_dir() else link.unlink()
    same = root / "same"
    (same / "b").mkdir(parents=True)
    for name in ("file", "b/file"):
        (same / name).write_bytes(b"inside")
    rest = at.partition("a")[2].lstrip("/")
    link.symlink_to(
        {
            "outside": outside / rest,
            "inside": same / rest,
            "relative": Path("../" * (at.count("/") + 1)) / "outside" / rest,
            "dangling": root / "nowhere",
            "proc": Path("/proc/self/root") / str(outside / rest).lstrip("/"),
        }[target]
    )
    assert refusal(Roots([root]), "a/b/file") == "ELOOP"


def test_a_link_to_the_folder_above_is_refused(root: Path) -> None:
    (root / "up").symlink_to("..")
    assert refusal(Roots([root]), "up/outside/file") == "ELOOP"


def test_links_in_the_configured_path_are_the_operators(root: Path) -> None:
    (root.parent / "alias").symlink_to(root)
    roots = Roots([root.parent / "alias"])
    assert read(roots, "a/file") == b"inside"
    assert read(roots, str(root.parent / "alias" / "a" / "file")) == b"inside"
    assert read(roots, str(root / "a" / "file")) == b"inside"


def test_a_root_that_became_a_link_is_gone(root: Path, outside: Path) -> None:
    roots = Roots([root])
    root.rename(root.parent / "moved")
    root.symlink_to(outside)
    with pytest.raises(DirectoryMissing):
        read(roots, "file")


def test_a_root_that_was_removed_is_gone_and_comes_back(root: Path) -> None:
    roots = Roots([root])
    root.rename(root.parent / "moved")
    with pytest.raises(DirectoryMissing):
        read(roots, "file")
    (root.parent / "moved").rename(root)
    assert read(roots, "file") == b"inside"


def test_a_hard_link_is_refused(root: Path, outside: Path) -> None:
    os.link(outside / "file", root / "hard")
    assert refusal(Roots([root]), "hard") == "EMLINK"


def test_a_folder_is_no_file(root: Path) -> None:
    assert refusal(Roots([root]), "a") == "EISDIR"


def test_what_is_not_there_or_lies_in_a_file_is_not_found(root: Path) -> None:
    assert refusal(Roots([root]), "a/none") == "ENOENT"
    assert refusal(Roots([root]), "none/file") == "ENOENT"
    assert refusal(Roots([root]), "file/file") == "ENOTDIR"
    assert refusal(Roots([root]), "x" * 300 + "/file") == "ENAMETOOLONG"


@pytest.mark.timeout(10)
def test_a_pipe_is_refused_without_waiting_for_its_writer(root: Path) -> None:
    os.mkfifo(root / "pipe")
    assert refusal(Roots([root]), "pipe") == "ENXIO"


def test_a_socket_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        assert refusal(Roots([root]), "socket") == "ENXIO"


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no devices here")
def test_a_device_is_refused() -> None:
    assert refusal(Roots([Path("/dev")]), "zero") == "ENXIO"


def test_a_link_to_a_device_is_refused(root: Path) -> None:
    (root / "zero").symlink_to("/dev/zero")
    assert refusal(Roots([root]), "zero") == "ELOOP"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open everything")
def test_a_missing_right_is_reported(root: Path) -> None:
    (root / "file").chmod(0)
    (root / "a").chmod(0)
    try:
        assert refusal(Roots([root]), "file") == "EACCES"
        assert refusal(Roots([root]), "a/file") == "EACCES"
    finally:
        (root / "a").chmod(0o700)


def swapped_while_reading(swap: Callable[[], None], roots: Roots, path: str) -> tuple[int, int, set[bytes]]:
    """Swap in one thread and read in this one for half a second; counts both, and gives all contents seen."""
    over, swaps = threading.Event(), 0

    def swapping() -> None:
        nonlocal swaps
        while not over.is_set():
            swap()
            swaps += 1

    seen: set[bytes] = set()
    reads = 0
    thread = threading.Thread(target=swapping)
    thread.start()
    try:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            reads += 1
            try:
                seen.add(read(roots, path))
            except OSError:
                seen.add(b"")
    finally:
        over.set()
        thread.join()
    return swaps, reads, seen


@pytest.mark.usefixtures("no_descriptor_leaks")
@pytest.mark.parametrize("at", ["a", "a/b", "a/b/file"])
def test_a_link_swapped_in_while_reading_never_shows_what_is_outside(
    root: Path, outside: Path, at: str
) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)  # noqa: T201 -- shown where the test fails
    chance = random.Random(seed)
    rest = at.partition("a")[2].lstrip("/")
    link, real, aside = root / "link", root / at, root / "aside"
    link.symlink_to(outside / rest)

    def swap() -> None:
        real.rename(aside)
        link.rename(real)
        for _ in range(chance.randrange(50)):
            pass
        real.rename(link)
        aside.rename(real)

    swaps, reads, seen = swapped_while_reading(swap, Roots([root]), "a/b/file")
    assert SECRET not in seen
    assert b"inside" in seen
    assert (swaps > 100, reads > 100) == (True, True)


def test_a_hard_link_swapped_in_while_reading_never_shows_what_is_outside(root: Path, outside: Path) -> None:
    file = root / "a" / "file"

    def swap() -> None:
        file.unlink()
        os.link(outside / "file", file)
        file.unlink()
        file.write_bytes(b"inside")

    swaps, _, seen = swapped_while_reading(swap, Roots([root]), "a/file")
    assert SECRET not in seen
    assert swaps > 100


def test_a_hard_link_dropped_after_it_was_opened_is_refused(
    root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The narrowest moment of that race, made certain: linked before the opening, dropped right after it."""
    file, really_open = root / "swap", os.open
    file.write_bytes(b"inside")

    def open_and_swap(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path != "swap":
            return really_open(path, flags, mode, dir_fd=dir_fd)
        file.unlink()
        os.link(outside / "file", file)
        opened = really_open(path, flags, mode, dir_fd=dir_fd)
        file.unlink()
        file.write_bytes(b"inside")
        return opened

    roots = Roots([root])
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", open_and_swap)
        assert refusal(roots, "swap") == "EAGAIN"
    assert read(roots, "swap") == b"inside"


def test_a_link_put_in_place_just_before_it_is_opened_is_not_followed(
    root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, really_open = root / "swap", os.open
    file.write_bytes(b"inside")

    def swap_and_open(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "swap":
            file.unlink()
            file.symlink_to(outside / "file")
        try:
            return really_open(path, flags, mode, dir_fd=dir_fd)
        finally:
            if path == "swap":
                file.unlink()
                file.write_bytes(b"inside")

    roots = Roots([root])
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", swap_and_open)
        assert refusal(roots, "swap") == "ELOOP"


def test_with_several_roots_the_label_comes_first(tmp_path: Path) -> None:
    for name in ("one/x", "two/x", "other/one", "one/one"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "one" / "one" / "deep").write_bytes(b"deep")
    roots = Roots([tmp_path / "one", tmp_path / "two", tmp_path / "other" / "one", tmp_path / "one"])
    assert roots.labels == "one, two, one~2"
    assert [roots.path_of(location) for location in roots.locations("two/x")] == [
        "two/x",
        "one/two/x",
        "two/two/x",
        "one~2/two/x",
    ]
    assert [roots.path_of(location) for location in roots.locations("one~2")][0] == "one~2"
    for location in roots.locations("one/one/deep"):  # what is shown is what is opened
        assert roots.locations(roots.path_of(location))[0] == location


def test_with_one_root_paths_are_shown_without_its_label(root: Path) -> None:
    roots = Roots([root])
    assert [roots.path_of(location) for location in roots.locations("root/a")] == ["root/a", "a"]
    assert roots.path_of(roots.locations(".")[0]) == "."


def test_names_stay_on_their_line_and_show_what_they_are() -> None:
    assert printable("a b é 日") == "a b é 日"
    assert printable("\x1b[2J\n") == "\\x1b[2J\\n"
    assert printable("\u202egpj.exe") == "\\u202egpj.exe"
    assert printable(os.fsdecode(b"\xff\xfe")) == "\\xff\\xfe"
