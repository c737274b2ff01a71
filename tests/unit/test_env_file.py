"""The file ``.env``: an unreadable line may be a protection, so it is a mistake."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from conductor.env_file import read_env_file
from conductor.errors import SettingsError
from conductor.settings import Settings, load_settings

KNOWN = frozenset(Settings.model_fields)
SECRET = "hunter2-hunter2"
UNREADABLE = "cannot be read: it must be NAME=value, with a quote closed on the same line."


@pytest.fixture(autouse=True)
def no_settings_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the developer's own environment and .env out of the tests."""
    for name in Settings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.chdir(tmp_path)


def mistakes(text: str) -> tuple[str, ...]:
    Path(".env").write_text(text, encoding="utf-8", newline="")
    file = read_env_file(Path(".env"), KNOWN)
    assert file is not None
    for mistake in file.mistakes:
        assert SECRET not in mistake and "\n" not in mistake and mistake.endswith(".")
    return file.mistakes


@pytest.mark.parametrize(
    "line",
    [
        f'AUTH_TOKENS="{SECRET}',
        f'AUTH_TOKENS="{SECRET}\nADMIN_TOKEN="',  # the quote swallows a line
        f'OTHER="{SECRET}\nAUTH_TOKENS="',
        f'AUTH_TOKENS="{SECRET}" {SECRET}',
        f"AUTH_TOKENS: {SECRET}",
        f"AUTH_TOKENS {SECRET}",
        "AUTH_TOKENS",
        f'"AUTH_TOKENS"={SECRET}',
        f";AUTH_TOKENS={SECRET}",
        f"\ufeffAUTH_TOKENS={SECRET}",  # a byte order mark in the middle: two files put together
        f"AUTH\u200b_TOKENS={SECRET}",
        SECRET,
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_line_that_is_not_name_and_value_is_a_mistake(line: str, newline: str) -> None:
    text = f"PORT=1001\n\n\n{line}\n".replace("\n", newline)
    assert mistakes(text)[0] == f"Line 4 of .env {UNREADABLE}"
    with pytest.raises(SettingsError, match=r"^Line 4 of \.env"):
        load_settings()


@pytest.mark.parametrize(
    "line",
    [
        f"AUTH_TOKENS={SECRET}",
        f"  AUTH_TOKENS = {SECRET}  ",
        f"export AUTH_TOKENS={SECRET}",
        f"AUTH_TOKENS='{SECRET}'",
        f'AUTH_TOKENS="{SECRET}"',
        f"AUTH_TOKENS={SECRET} # nor this",
        f"\ufeffAUTH_TOKENS={SECRET}",
        f"AUTH_TOKENS={SECRET}\nPATH_TO_SOMETHING=else",
    ],
)
def test_lines_as_of_a_shell_are_read(line: str) -> None:
    assert mistakes(f"{line}\n") == ()
    assert load_settings().auth_tokens == (SECRET,)


def test_a_repeated_setting_is_a_mistake() -> None:
    assert mistakes(f"AUTH_TOKENS={SECRET}\nauth_tokens=\nTZ=UTC\nTZ=CET\n") == (
        "Line 2 of .env sets AUTH_TOKENS a second time.",
    )


@pytest.mark.parametrize("value", ["${NOWHERE}", '"a${EMPTY}b"', "${HERE:-x}"])
def test_a_reference_to_a_variable_is_a_mistake(value: str) -> None:
    (mistake,) = mistakes(f"HERE={SECRET}\nAUTH_TOKENS={value}\n")
    assert mistake == "Line 2 of .env refers to a variable; write the value itself."


def test_unknown_names_are_listed_by_name_or_by_line_if_they_may_be_secrets() -> None:
    Path(".env").write_text(f"TZ=UTC\nPORT=1001\n{SECRET.replace('-', '_')}=1\n")
    file = read_env_file(Path(".env"), KNOWN)
    assert file is not None and file.unknown == ("TZ", "line 3") and not file.mistakes


def test_a_missing_file_gives_nothing(tmp_path: Path) -> None:
    assert read_env_file(tmp_path / "none", KNOWN) is None


def test_an_unreadable_file_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()  # what Docker makes of a file that is not there
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "utf16").write_text("AUTH_TOKENS=x", encoding="utf-16")
    for name, why in (("folder", "is a directory"), ("link", "no such file"), ("utf16", "is not UTF-8 text")):
        with pytest.raises(SettingsError, match=f"cannot be read: .*{why}"):
            read_env_file(tmp_path / name, KNOWN)


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".env")  # as password managers give it
    writer = threading.Thread(target=(tmp_path / ".env").write_text, args=("PORT=1001\n",), daemon=True)
    writer.start()
    assert load_settings().port == 1001
    writer.join()
