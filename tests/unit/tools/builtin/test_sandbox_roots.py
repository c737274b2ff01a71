"""Opening files below a root: no link, race or special file leads out of it."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.plugins.tools.sandbox import DirectoryMissing, Roots, open_file, printable, split
from conductor.tools import ToolError
from tests.unit.tools.builtin.races import exchange, interrupted

SECRET = b"secret"


def read(roots: Roots, path: str) -> bytes:
    with open_file(roots.locations(path)[0]) as file:
        return os.read(file, 100)


def refusal(roots: Roots, path: str) -> str:
    with pytest.raises(OSError) as raised:
        read(roots, path)
    return errno.errorcode[raised.value.errno or 0]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    (folder / "b").mkdir(parents=True, exist_ok=True)
    for name in ("file", "b/file"):
        (folder / name).write_bytes(SECRET)
    return folder


@pytest.fixture
def root(root: Path) -> Path:
    (root / "a" / "b").mkdir()
    for name in ("file", "a/file", "a/b/file"):
        (root / name).write_bytes(b"inside")
    return root


@pytest.fixture
def no_descriptor_leaks() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    yield
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before  # earlier tests may still close some


@pytest.mark.usefixtures("no_descriptor_leaks")
@pytest.mark.parametrize("path", ["file", "a/file", "a/b/file", "./a//b/./file"])
def test_a_file_inside_is_opened(root: Path, path: str) -> None:
    assert read(Roots([root]), path) == b"inside"


@pytest.mark.parametrize("path", ["/etc/passwd", "/", "//etc", "{root}-more/file"])
def test_an_absolute_path_elsewhere_is_refused(root: Path, path: str) -> None:
    with pytest.raises(ToolError, match="outside") as raised:
        Roots([root]).locations(path.format(root=root))
    assert str(root.parent) not in str(raised.value).partition(" cannot be used")[2]


@pytest.mark.parametrize(
    "path",
    ["", "..", "../outside/file", "a/../file", "a/b/..", "fi\0le", "a\nb", "\x85", "\u2028", "\ud800"]
    + ["x" * 4097, "é" * 2049, "a/" * 65],
)
def test_an_invalid_path_is_refused(root: Path, path: str) -> None:
    with pytest.raises(ToolError):
        Roots([root]).locations(path)
    assert len(Roots([root]).locations("a/" * 64)[0].parts) == 64


@given(st.text())
def test_no_text_gives_a_part_that_leads_elsewhere(path: str) -> None:
    try:
        parts = split(path)
    except ToolError:
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
    target_path = at.partition("a")[2].lstrip("/")
    link.symlink_to(
        {
            "outside": outside / target_path,
            "inside": same / target_path,
            "relative": Path("../" * (at.count("/") + 1)) / "outside" / target_path,
            "dangling": root / "nowhere",
            "proc": Path("/proc/self/root") / str(outside / target_path).lstrip("/"),
        }[target]
    )
    assert refusal(Roots([root]), "a/b/file") == "ELOOP"


def test_a_link_in_the_configured_path_is_followed(root: Path) -> None:
    (root.parent / "alias").symlink_to(root)
    roots = Roots([root.parent / "alias"])
    assert read(roots, "a/file") == b"inside"
    assert read(roots, str(root.parent / "alias" / "a" / "file")) == b"inside"
    assert read(roots, str(root / "a" / "file")) == b"inside"


def test_a_root_that_became_a_link_is_missing_until_it_returns(root: Path, outside: Path) -> None:
    roots = Roots([root])
    root.rename(root.parent / "moved")
    with pytest.raises(DirectoryMissing):
        read(roots, "file")
    root.symlink_to(outside)
    with pytest.raises(DirectoryMissing):
        read(roots, "file")
    root.unlink()
    (root.parent / "moved").rename(root)
    assert read(roots, "file") == b"inside"


@pytest.mark.parametrize(
    ("path", "error"),
    [("hard", "EMLINK"), ("a", "EISDIR"), ("pipe", "ENXIO"), ("socket", "ENXIO"), ("device", "ELOOP")],
)
def test_a_path_that_is_not_a_plain_file_is_refused(
    root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, path: str, error: str
) -> None:
    os.link(outside / "file", root / "hard")
    os.mkfifo(root / "pipe")  # opening it would wait for a writer
    (root / "device").symlink_to("/dev/zero")
    monkeypatch.chdir(root)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        assert refusal(Roots([root]), path) == error
    assert refusal(Roots([Path("/dev")]), "null") == "ENXIO"


def test_a_missing_file_is_not_found(root: Path) -> None:
    assert refusal(Roots([root]), "a/none") == "ENOENT"
    assert refusal(Roots([root]), "none/file") == "ENOENT"
    assert refusal(Roots([root]), "file/file") == "ENOTDIR"
    assert refusal(Roots([root]), "x" * 300 + "/file") == "ENAMETOOLONG"


@pytest.mark.usefixtures("no_descriptor_leaks")
@pytest.mark.parametrize("at", ["a", "a/b", "a/b/file", "hard link"])
def test_a_link_swapped_in_while_reading_never_shows_a_file_outside(
    root: Path, outside: Path, at: str
) -> None:
    """The link comes before any call of the system, and goes before any later one."""
    link, file, spare = root / "link", root / "a" / "b" / "file", root / "spare"

    def swap_in() -> None:
        if at == "hard link":
            file.unlink()
            os.link(outside / "file", file)
        else:
            exchange(root / at, link)

    def swap_out() -> None:
        if at == "hard link":
            spare.write_bytes(b"inside")
            spare.replace(file)
        else:
            exchange(root / at, link)

    link.symlink_to(outside / at.partition("a")[2].lstrip("/"))
    contents, roots = list[bytes](), Roots([root])
    with interrupted() as calls:
        read(roots, "a/b/file")
    for start, end in combinations_with_replacement(range(next(calls) + 1), 2):
        with interrupted((start, swap_in), (end, swap_out)), suppress(OSError):
            contents.append(read(roots, "a/b/file"))
    assert set(contents) == {b"inside"}


@pytest.mark.parametrize("kind", ["symbolic", "hard", "hard, and its name goes after its count"])
def test_a_link_of_a_moment_is_refused(
    root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The file is a link when it is opened, and neither when it is looked at before nor after that."""
    file, really_open, really_stat = root / "file", os.open, os.stat

    def swap_and_open(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path != "file":
            return really_open(path, flags, mode, dir_fd=dir_fd)
        file.unlink()
        file.symlink_to(outside / "file") if kind == "symbolic" else os.link(outside / "file", file)
        try:
            return really_open(path, flags, mode, dir_fd=dir_fd)
        finally:
            file.unlink()
            file.write_bytes(b"inside")

    def late_stat(path: str, **options: Any) -> os.stat_result:
        return really_stat(outside / "file") if path == "file" else really_stat(path, **options)

    roots = Roots([root])
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", swap_and_open)
        if "count" in kind:
            patched.setattr(os, "stat", late_stat)
        assert refusal(roots, "file") == ("ELOOP" if kind == "symbolic" else "EAGAIN")
    assert read(roots, "file") == b"inside"


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
    for location in roots.locations("one/one/deep"):  # a path in a result leads back to its file
        assert roots.locations(roots.path_of(location))[0] == location


def test_with_one_root_paths_are_shown_without_its_label(root: Path) -> None:
    roots = Roots([root])
    assert [roots.path_of(location) for location in roots.locations("root/a")] == ["root/a", "a"]
    assert roots.path_of(roots.locations(".")[0]) == "."


def test_unprintable_characters_of_names_are_escaped() -> None:
    assert printable("a b é 日") == "a b é 日"
    assert printable("\x1b[2J\n") == "\\x1b[2J\\n"
    assert printable("\u202egpj.exe") == "\\u202egpj.exe"
    assert printable(os.fsdecode(b"\xff\xfe")) == "\\xff\\xfe"
