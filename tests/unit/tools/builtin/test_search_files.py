"""``search_files``: matching lines within limits, and no secret file or file outside the roots."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from conductor.plugins.tools import search_files
from conductor.plugins.tools.sandbox import Files, Roots
from conductor.plugins.tools.search_files import MAX_FILE_BYTES, file_search
from conductor.tools.base import CallContext
from conductor.tools.outcomes import ToolOutcome
from tests.unit.tools.builtin.conftest import run

CONTEXT = CallContext(session_id="s", call_id="c")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "src").mkdir(parents=True)
    (folder / "readme.md").write_text("The heron\nfeeds at dawn.\n")
    (folder / "src" / "main.py").write_text("def feed():\r\n    return 'Heron'\r\n")
    return folder


async def search(root: Path, query: str, **arguments: Any) -> ToolOutcome:
    return await run(file_search(Files(Roots([root]))), {"query": query, **arguments}, CONTEXT)


def matches(outcome: ToolOutcome) -> list[tuple[str, int]]:
    assert outcome.success, outcome.error_message
    return [(match["path"], match["line"]) for match in outcome.data["matches"]]


async def test_lines_are_found_in_any_case_with_path_and_number(root: Path) -> None:
    outcome = await search(root, "heron")
    assert outcome.data == {
        "matches": [
            {"path": "readme.md", "line": 1, "text": "The heron"},
            {"path": "src/main.py", "line": 2, "text": "    return 'Heron'"},
        ],
        "files_searched": 2,
        "complete": True,
    }
    assert matches(await search(root, "Heron", case_sensitive=True)) == [("src/main.py", 2)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"path": "src"}, ["src/main.py"]),
        ({"path": "readme.md"}, ["readme.md"]),
        ({"files": "*.py"}, ["src/main.py"]),
        ({"files": "main.*"}, ["src/main.py"]),
        ({"files": "*.rs"}, []),
    ],
)
async def test_the_search_is_narrowed(root: Path, arguments: dict[str, Any], expected: list[str]) -> None:
    assert [path for path, _ in matches(await search(root, "heron", **arguments))] == expected


async def test_a_pattern_is_searched_by_line(root: Path) -> None:
    assert matches(await search(root, r"^def \w+\(", regex=True)) == [("src/main.py", 1)]
    assert matches(await search(root, r"^DEF", regex=True)) == [("src/main.py", 1)]
    assert matches(await search(root, r"^DEF", regex=True, case_sensitive=True)) == []
    assert matches(await search(root, r"^def \w+\(")) == []


@pytest.mark.parametrize("query", ["(", r"(a)\1", "(?=a)", "(?:ab){60000}c"])
async def test_an_invalid_or_nonlinear_pattern_is_refused(root: Path, query: str) -> None:
    outcome = await search(root, query, regex=True)
    assert outcome.error_type == "validation_failed"
    assert "\n" not in (outcome.error_message or "")


async def test_ignored_files_and_git_itself_are_not_searched(root: Path) -> None:
    (root / ".gitignore").write_text("build/\n*.log\n!keep.log\n")
    for path in ("build/a", ".git/a", "a.log", "keep.log"):
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text("needle")
    assert matches(await search(root, "needle")) == [("keep.log", 1)]


async def test_secret_binary_large_and_linked_files_are_not_searched(root: Path) -> None:
    (root / ".env").write_text("needle")
    (root / "binary").write_bytes(b"needle\0")
    (root / "large").write_bytes(b"needle" + b" " * MAX_FILE_BYTES)
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "x").write_text("needle")
    (root / "link").symlink_to(outside)
    os.link(outside / "x", root / "second")
    outcome = await search(root, "needle")
    assert matches(outcome) == []
    assert sorted(outcome.metadata.notes) == [
        "Not searched: 1 files that are too large.",
        "Not searched: 1 files that cannot be read.",
        "Not searched: 1 files that may hold secrets.",
    ]
    assert matches(await search(root, "needle", path=".env")) == []
    assert (await search(root, "needle", path="link")).error_type == "permission_denied"


async def test_long_lines_are_cut_around_the_match(root: Path) -> None:
    (root / "long").write_text("x" * 1000 + "needle" + "y" * 1000)
    text = (await search(root, "needle")).data["matches"][0]["text"]
    assert text == f"…{'x' * 60}needle{'y' * 134}…"


@pytest.mark.parametrize(
    ("limit", "value", "note"),
    [
        ("MAX_MATCHES", 3, "Only the first matches are listed."),
        ("MAX_TEXT_BYTES", 120, "Only the first matches are listed."),
        ("BUDGET_S", 0, "The time limit was reached."),
    ],
)
async def test_a_limit_that_ends_the_search_is_noted(
    root: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, note: str
) -> None:
    monkeypatch.setattr(search_files, limit, value)
    (root / "many").write_text("heron\n" * 1000)
    outcome = await search(root, "heron")
    assert not outcome.data["complete"]
    assert outcome.metadata.notes == (note,)


async def test_the_most_matches_fit_in_one_observation(root: Path) -> None:
    (root / "many").write_text("heron \x1b" * 30 + "\n" * 1000)
    (root / "more").write_text(("heron " * 40 + "\n") * 1000)
    assert len((await search(root, "heron")).content) < 16 * 1024


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"files": "src/*.py"}, ["src/main.py"]),
        ({"files": "src/deep/*.py"}, ["src/deep/x.py"]),
        ({"files": "deep/*.py", "path": "src"}, ["src/deep/x.py"]),
        ({"files": "**/*.py"}, ["src/main.py", "src/deep/x.py"]),
        ({"files": "other/*.py"}, []),
    ],
)
async def test_a_pattern_may_name_folders(root: Path, arguments: dict[str, Any], expected: list[str]) -> None:
    (root / "src" / "deep").mkdir()
    (root / "src" / "deep" / "x.py").write_text("heron\n")
    assert [path for path, _ in matches(await search(root, "heron", **arguments))] == expected


@pytest.mark.parametrize("files", ["[[:alpha:]]*", "!", "#a", "/"])
async def test_a_pattern_that_cannot_be_read_searches_nothing(root: Path, files: str) -> None:
    outcome = await search(root, "heron", files=files)
    assert (outcome.success, outcome.error_type) == (False, "validation_failed")


async def test_the_end_of_a_line_is_the_end_in_every_file(root: Path) -> None:
    assert matches(await search(root, r"feed\(\):$", regex=True)) == [("src/main.py", 1)]


async def test_accents_have_one_form_and_positions_are_those_of_the_text(root: Path) -> None:
    (root / "menu.txt").write_text(f"{'ß' * 400} Cafe\u0301 au lait {'x' * 400}\n")
    for query in ("café", "cafe\u0301", "CAFE"):
        (match,) = (await search(root, query)).data["matches"]
        assert "au lait" in match["text"]
    assert matches(await search(root, "Café", case_sensitive=True)) == [("menu.txt", 1)]
    assert matches(await search(root, "Cafe ", case_sensitive=True)) == []
