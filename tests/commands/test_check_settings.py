"""The settings' part of ``conductor check``."""

from __future__ import annotations

from pathlib import Path

import pytest

from conductor.commands.check_item import Item
from conductor.commands.check_settings import OTHER_NAMES, hint_for, read_settings, settings_items
from conductor.settings import Settings

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
    items = items_of(text + f"{SECRET}\nXX{SECRET}=1\nANTROPIC_API_KEY={SECRET}\nOTHER={SECRET}\n", tmp_path)
    assert len([item for item in items if item.level == "fail"]) > 10
    assert SECRET not in "\n".join(map(str, items))


def test_the_environment_is_said_to_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "1002")
    monkeypatch.setenv("MAX_TURNS", "8")
    (line,) = lines_of("PORT=1001\nHOST=::1\n", tmp_path, "ok")
    assert "from the environment: MAX_TURNS, PORT;" in line
    assert line.endswith("the environment wins over the file for PORT.")


# -- names


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ANTROPIC_API_KEY", "ANTHROPIC_API_KEY"),
        ("ANTHROPIC_APIKEY", "ANTHROPIC_API_KEY"),
        ("AUTH_TOKEN", "AUTH_TOKENS"),
        ("LOGLEVEL", "LOG_LEVEL"),
        ("TOOL_TIMEOUT", "TOOL_TIMEOUT_MS"),
        ("PORTS", "PORT"),
        ("port_", "PORT"),
        ("CONDUCTOR_HOST", "HOST"),
        ("CLAUDE_API_KEY", "ANTHROPIC_API_KEY"),
        ("SYSTEM_PROMPT", "SYSTEM_PROMPT_FILE"),
    ],
)
def test_a_misspelt_or_renamed_setting_is_guessed(name: str, meant: str) -> None:
    hint = hint_for(name)
    assert hint is not None
    assert hint.rstrip("?.").split()[-1] == meant


@pytest.mark.parametrize(
    "name",
    [
        "HOSTNAME",
        "PATH",
        "LOGNAME",
        "POST",
        "EXPORT",
        "OPENAI_API_KEY",
        "REDIS_PORT",
        "LOG_FILE",
        "X",
        "TMPDIR",
    ],
)
def test_other_programs_names_are_left_alone(name: str) -> None:
    assert hint_for(name) is None


def test_the_other_names_lead_to_settings_and_are_none_themselves() -> None:
    known = {name.upper() for name in Settings.model_fields}
    assert set(OTHER_NAMES.values()) <= known
    assert not set(OTHER_NAMES) & known


def test_a_name_in_the_file_is_warned_of_with_its_line(tmp_path: Path) -> None:
    assert lines_of("\n# a comment\nANTROPIC_API_KEY=x\n", tmp_path, "warn") == [
        "warn  ANTROPIC_API_KEY: is no setting (line 3 of .env); did you mean ANTHROPIC_API_KEY?"
    ]


def test_names_that_look_like_nothing_of_ours_are_warned_of_in_the_file_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPOSE_PROJECT", "x")
    assert lines_of("TZ=UTC\nREDIS_PORT=1\nsecret-looking=1\n", tmp_path, "warn") == [
        "warn  settings: in .env these are no settings and do nothing: TZ, REDIS_PORT, line 3 of .env."
    ]


def test_a_misspelt_name_in_the_environment_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTH_TOKEN", SECRET)
    assert lines_of("", tmp_path, "warn") == [
        "warn  AUTH_TOKEN: is no setting (in the environment); did you mean AUTH_TOKENS?"
    ]


def test_names_count_in_any_case_as_they_do_for_the_server(tmp_path: Path) -> None:
    assert lines_of("port=1001\nexport Max_Turns=3\n", tmp_path, "warn") == []


@pytest.mark.parametrize("line", ["AUTH_TOKENS: abc", "AUTH_TOKENS", "sk-ant-key"])
def test_a_line_that_sets_nothing_is_warned_of_and_not_repeated(tmp_path: Path, line: str) -> None:
    assert lines_of(f"PORT=1001\n{line}\nMAX_TURNS=3\n", tmp_path, "warn") == [
        "warn  line 2 of .env: sets nothing: it is not NAME=value."
    ]


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    assert lines_of("\ufeffPORT=1001\n", tmp_path, "warn") == []
