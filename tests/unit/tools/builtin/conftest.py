"""The folders of the tests of file tools."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make a root with the folder ``a``, and a folder next to the root that no tool may touch."""
    folder = tmp_path / "root"
    (folder / "a").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("secret")
    return folder


def paths_in(folder: Path) -> list[str]:
    """List the paths of files and folders below a folder, in order."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
