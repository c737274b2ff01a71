"""The settings' part of ``conductor check``."""

from __future__ import annotations

from pathlib import Path

import pytest

from conductor.commands.check_item import Item
from conductor.commands.check_server import settings_items
from conductor.settings import Settings, read_settings

SECRET = "hunter2-hunter2"


def items_of(text: str | None, folder: Path) -> list[Item]:
    """Check a settings' file with this text, or none."""
    file = folder / ".env"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    return list(settings_items(file, read_settings(file, {})))


def lines_of(text: str | None, folder: Path, level: str) -> list[str]:
    return [str(item) for item in items_of(text, folder) if item.level == level]


# -- values


def test_good_settings_are_one_good_item(tmp_path: Path) -> None:
    assert [item.level for item in items_of("PORT=1001\n", tmp_path)] == ["ok"]


def test_no_file_is_fine(tmp_path: Path) -> None:
    assert lines_of(None, tmp_path, "ok") == [
        "ok    settings: .env is not there, which is fine; none comes from the environment."
    ]


def test_all_that_is_wrong_is_named_and_not_only_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOG_FORMAT", "xml")
    failed = lines_of("PORT=eighty\nMAX_TURNS=0\nLOG_LEVEL=loud\n", tmp_path, "fail")
    assert [line.split(":")[0] for line in failed] == [
        "fail  PORT",
        "fail  MAX_TURNS",
        "fail  LOG_LEVEL",
        "fail  LOG_FORMAT",
    ]
    assert "greater than or equal to 1" in failed[1]


def test_defaults_stand_in_for_what_is_wrong_and_the_rest_is_kept(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("PORT=eighty\nMAX_TURNS=7\nLOG_LEVEL=loud\n")
    found = read_settings(file, {"host": "::1"})
    assert set(found.invalid) == {"port", "log_level"}
    settings = found.settings
    assert (settings.port, settings.log_level) == (8080, "info")
    assert (settings.max_turns, settings.host) == (7, "::1")


def test_an_option_that_is_wrong_is_found_like_a_setting(tmp_path: Path) -> None:
    assert set(read_settings(None, {"port": 70_000}).invalid) == {"port"}


def test_no_value_is_repeated(tmp_path: Path) -> None:
    text = "".join(f"{name.upper()}={SECRET}\n" for name in Settings.model_fields)
    items = items_of(text + f"{SECRET}\nXX{SECRET}=1\nOTHER={SECRET}\n", tmp_path)
    assert len([item for item in items if item.level == "fail"]) > 10
    assert SECRET not in "\n".join(map(str, items))


def test_the_environment_is_said_to_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "1002")
    monkeypatch.setenv("MAX_TURNS", "8")
    (line,) = lines_of("PORT=1001\nHOST=::1\n", tmp_path, "ok")
    assert "from the environment: MAX_TURNS, PORT;" in line
    assert line.endswith("the environment wins over the file for PORT.")


# -- names


def test_each_line_that_is_wrong_is_named(tmp_path: Path) -> None:
    assert lines_of("\n# a comment\nAUTH_TOKENS\n", tmp_path, "fail") == [
        "fail  settings: Line 3 of .env cannot be read: "
        "it must be NAME=value, with a quote closed on the same line.",
    ]


def test_unknown_names_in_the_file_are_reported(tmp_path: Path) -> None:
    assert lines_of("AUTH_TOKEN=x\nsecret-looking=1\n", tmp_path, "warn") == [
        "warn  settings: AUTH_TOKEN in .env is not a setting.",
        "warn  settings: line 2 in .env is not a setting.",
    ]


def test_names_count_in_any_case_as_they_do_for_the_server(tmp_path: Path) -> None:
    assert lines_of("port=1001\nexport Max_Turns=3\n", tmp_path, "warn") == []
