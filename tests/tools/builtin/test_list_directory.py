"""``list_directory``: one folder, in pages, without what is ignored."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from conductor.tools.base import CallContext, ToolOutcome
from conductor.tools.builtin.file_tree import BUDGET_S, MAX_PAGE_ENTRIES, ListDirectory
from conductor.tools.builtin.sandbox import Files, Roots
from conductor.tools.schema import check_schema

CONTEXT = CallContext("s", "c")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


async def listed(*roots: Path, **arguments: Any) -> ToolOutcome:
    return await ListDirectory(Files(Roots(roots))).run(arguments, CONTEXT)


def test_its_schema_is_sound() -> None:
    check_schema(ListDirectory.spec.input_schema)
    assert (ListDirectory.spec.risk, ListDirectory.spec.effect) == ("safe", "read")


async def test_entries_have_kind_size_and_time(root: Path) -> None:
    (root / "src").mkdir()
    (root / "a.txt").write_text("héllo")
    (root / "link").symlink_to("/etc/passwd")
    os.mkfifo(root / "pipe")
    for name in ("src", "a.txt", "pipe"):
        os.utime(root / name, (0, 0))
    outcome = await listed(root)
    assert outcome.data == {
        "path": ".",
        "entries": [
            {"name": "src", "kind": "folder", "modified": "1970-01-01T00:00:00Z"},
            {"name": "a.txt", "kind": "file", "size_bytes": 6, "modified": "1970-01-01T00:00:00Z"},
            {"name": "link", "kind": "link"},
            {"name": "pipe", "kind": "other", "modified": "1970-01-01T00:00:00Z"},
        ],
        "first": 1,
        "last": 4,
        "total": 4,
        "ignored": 0,
        "complete": True,
    }


async def test_what_gitignore_names_is_left_out_and_counted(root: Path) -> None:
    (root / "sub").mkdir()
    (root / ".gitignore").write_text("*.log\n")
    for name in ("a.log", "a.txt"):
        (root / "sub" / name).touch()
    outcome = await listed(root, path="sub")
    assert [entry["name"] for entry in outcome.data["entries"]] == ["a.txt"]
    assert outcome.data["ignored"] == 1


async def test_a_large_folder_comes_in_pages(root: Path) -> None:
    names = [f"{number:04}-{'x' * 60}" for number in range(700)]
    for name in names:
        (root / name).touch()
    seen: list[str] = []
    while True:
        outcome = await listed(root, offset=len(seen) + 1)
        page = [entry["name"] for entry in outcome.data["entries"]]
        assert 0 < len(page) <= MAX_PAGE_ENTRIES and len(outcome.content) < 16 * 1024
        seen += page
        assert outcome.data["last"] == len(seen) and outcome.data["total"] == 700
        if outcome.data["complete"]:
            break
    assert seen == names
    assert (await listed(root, offset=701)).data["entries"] == []


async def test_several_roots_are_listed_by_their_names(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "b" / "x").touch()
    outcome = await listed(tmp_path / "a", tmp_path / "b")
    assert [entry["name"] for entry in outcome.data["entries"]] == ["a", "b"]
    outcome = await listed(tmp_path / "a", tmp_path / "b", path="b")
    assert [entry["name"] for entry in outcome.data["entries"]] == ["x"]


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("missing", "not_found"),
        ("file", "not_found"),
        ("link", "permission_denied"),
        ("../root", "validation_failed"),
        ("/etc", "permission_denied"),
    ],
)
async def test_a_path_that_is_no_folder_here_is_refused(root: Path, path: str, error: str) -> None:
    (root / "file").touch()
    (root / "link").symlink_to("/etc")
    assert (await listed(root, path=path)).error_type == error


async def test_it_ends_when_its_time_is_used_up(root: Path) -> None:
    (root / "a").touch()
    times = iter([0.0, *[BUDGET_S] * 10])
    outcome = await ListDirectory(Files(Roots([root])), lambda: next(times)).run({}, CONTEXT)
    assert not outcome.data["complete"]
    assert outcome.metadata.notes == ("The time limit was reached.",)
