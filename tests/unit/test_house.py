"""The budgets of house.toml: scripts/house fails above a number, and writes a lower figure back."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Make a checkout of one module with three lines, without budgets."""
    (tmp_path / "conductor").mkdir()
    (tmp_path / "conductor" / "a.py").write_text("LIMIT = 1\n\nlimit = LIMIT\n")
    return tmp_path


def house(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run scripts/house on a checkout."""
    command = [sys.executable, str(ROOT / "scripts" / "house"), "--root", str(checkout), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def budgets(checkout: Path) -> dict[str, dict[str, int]]:
    return tomllib.loads((checkout / "house.toml").read_text())


def write_budgets(checkout: Path, lines: int) -> None:
    """Write house.toml: ``lines`` for conductor/, and the present number for every other figure."""
    rows = [line.rsplit(None, 1) for line in house(checkout).stdout.splitlines()]
    tables: dict[str, dict[str, int]] = {}
    for figure, number in rows:
        table, _, key = figure.strip().partition(".")
        tables.setdefault(table, {})[key] = int(number)
    tables["lines"]["conductor"] = lines
    text = "".join(
        f'["{table}"]\n' + "".join(f'"{key}" = {number}\n' for key, number in figures.items())
        for table, figures in tables.items()
    )
    (checkout / "house.toml").write_text(text)


def test_a_line_above_the_budget_fails(checkout: Path) -> None:
    write_budgets(checkout, lines=2)
    run = house(checkout)
    assert run.returncode == 1
    assert run.stderr == "scripts/house: lines.conductor is 3, its budget is 2\n"
    assert budgets(checkout)["lines"]["conductor"] == 2


def test_a_figure_that_fell_is_written_back(checkout: Path) -> None:
    write_budgets(checkout, lines=9)
    assert house(checkout).returncode == 0
    assert budgets(checkout)["lines"]["conductor"] == 3


def test_a_figure_without_a_budget_fails(checkout: Path) -> None:
    run = house(checkout)
    assert run.returncode == 1 and "lines.conductor is 3, its budget is none" in run.stderr


@pytest.mark.parametrize(
    ("figure", "line", "place"),
    [
        ("names.conductor, in 10,000", "found = []", "found"),
        ("words.conductor", "# It is removed meanwhile.", "# It is removed meanwhile."),
        ("docs.dangling references", "# See section 7.", "# See section 7."),
        ("docs.dangling references", "# See docs/nowhere.md.", "# See docs/nowhere.md."),
        (
            "docs.dangling references",
            '# As it stands (tools, "Permissions").',
            '# As it stands (tools, "Permissions").',
        ),
        ("code.numeric constants", "SIZE = 4", "4"),
    ],
)
def test_the_places_of_a_figure_are_listed(checkout: Path, figure: str, line: str, place: str) -> None:
    (checkout / "conductor" / "b.py").write_text(line + "\n")
    assert f"conductor/b.py:1: {place}\n" in house(checkout, "--list", figure).stdout
