"""``conductor check``: settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from conductor.commands.check_server import settings_items
from conductor.commands.output import Item
from conductor.settings import Settings, read_settings

SECRET = "hunter2-hunter2"


def items_of(text: str | None, folder: Path) -> list[Item]:
    """Check a settings file with this text; None for no file."""
    file = folder / ".env"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    return list(settings_items(file, read_settings(file, {})))


def lines_of(text: str | None, folder: Path, level: str) -> list[str]:
    return [str(item) for item in items_of(text, folder) if item.level == level]


def test_valid_settings_are_one_item(tmp_path: Path) -> None:
    assert [item.level for item in items_of("PORT=1001\n", tmp_path)] == ["ok"]


def test_the_file_is_optional(tmp_path: Path) -> None:
    assert lines_of(None, tmp_path, "ok") == [
        "ok    settings: .env is optional and missing; none from the environment."
    ]


def test_all_invalid_settings_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOG_FORMAT", "xml")
    failed = lines_of("PORT=eighty\nMAX_TURNS=0\nLOG_LEVEL=loud\n", tmp_path, "fail")
    assert [line.split(":")[0] for line in failed] == [
        "fail  PORT",
        "fail  MAX_TURNS",
        "fail  LOG_LEVEL",
        "fail  LOG_FORMAT",
    ]
    assert "greater than or equal to 1" in failed[1]


def test_values_are_not_printed(tmp_path: Path) -> None:
    text = "".join(f"{name.upper()}={SECRET}\n" for name in Settings.model_fields)
    items = items_of(text + f"{SECRET}\nXX{SECRET}=1\nOTHER={SECRET}\n", tmp_path)
    assert len([item for item in items if item.level == "fail"]) > 10
    assert SECRET not in "\n".join(map(str, items))


def test_the_environment_takes_precedence_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORT", "1002")
    monkeypatch.setenv("MAX_TURNS", "8")
    (line,) = lines_of("PORT=1001\nHOST=::1\n", tmp_path, "ok")
    assert "from the environment: MAX_TURNS, PORT;" in line
    assert line.endswith("the environment takes precedence over the file for PORT.")


def test_all_invalid_lines_are_listed(tmp_path: Path) -> None:
    assert lines_of("\n# a comment\nAUTH_TOKENS\n", tmp_path, "fail") == [
        "fail  settings: Line 3 of .env cannot be read: "
        "it must be NAME=value, with a quote closed on the same line.",
    ]


def test_unknown_names_in_the_file_are_a_warning(tmp_path: Path) -> None:
    assert lines_of("AUTH_TOKEN=x\nsecret-looking=1\n", tmp_path, "warn") == [
        "warn  settings: AUTH_TOKEN in .env is not a setting.",
        "warn  settings: line 2 in .env is not a setting.",
    ]


def test_names_are_case_insensitive(tmp_path: Path) -> None:
    assert lines_of("port=1001\nexport Max_Turns=3\n", tmp_path, "warn") == []
