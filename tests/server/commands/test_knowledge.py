"""``conductor knowledge index``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.commands.conftest import mistake, run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("Herons.")
    monkeypatch.setenv("KNOWLEDGE_DIR", "docs")
    monkeypatch.setenv("DATA_DIR", "data")
    return tmp_path


def test_the_result_is_printed(folder: Path) -> None:
    text = run("knowledge", "index")
    assert text.startswith("1 documents: 1 indexed, 0 removed, 0 unreadable, in ")
    assert (folder / "data" / "knowledge.db").exists()


def test_unreadable_documents_are_listed(folder: Path) -> None:
    (folder / "docs" / "b.txt").write_bytes(b"\0")
    text = run("knowledge", "index", code=2)
    assert text.splitlines()[1:] == ["document  reason", "b.txt     it is not text"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("KNOWLEDGE_DIR", "", "There is no knowledge base: KNOWLEDGE_DIR is not set."),
        ("KNOWLEDGE_DIR", "missing", "KNOWLEDGE_DIR: missing is not a folder."),
        ("DATA_DIR", "docs/a.md", "The index cannot be written: "),
    ],
)
def test_a_wrong_setting_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(name, value)
    assert mistake("knowledge", "index").startswith(message)
