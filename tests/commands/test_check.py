"""``conductor check`` as a whole: in this process, and as one of its own."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conductor.commands.check_item import Item, fail, ok, warn

from conductor.cli import main
from conductor.commands.check import check, report
from conductor.settings import Settings
from tests.models import AnthropicService

SECRET = "hunter2-hunter2"


async def checked(**options: Any) -> tuple[int, str]:
    """Run the check; returns its exit code and what it wrote. Without ``overrides`` it takes any port."""
    options.setdefault("overrides", {"port": 0})
    out = io.StringIO()
    code = await report(check(**options), out)
    return code, out.getvalue()


def subjects(output: str) -> list[str]:
    """Say what was looked at, in order."""
    return [line.split()[1].rstrip(":") for line in output.partition("\n\n")[0].splitlines()]


async def test_a_fresh_folder_passes_and_everything_was_looked_at() -> None:
    code, output = await checked()
    assert code == 0
    files = ["settings", "SYSTEM_PROMPT_FILE", "DEVICE_TOOLS_FILE", "POLICIES_FILE"]
    assert subjects(output) == [*files, "PORT", "AUTH_TOKENS", "sessions", "model"]
    assert output.endswith("\n\n7 ok, 1 warning, 0 failed\n")


async def test_each_thing_that_is_wrong_is_a_line_and_the_exit_code_is_2(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        "HOST=0.0.0.0\nMAX_TURNS=0\nLOG_LEVEL=loud\nSYSTEM_PROMPT_FILE=none.md\nDEVICE_TOOLS_FILE=none.json\n"
        f"MODEL_PROVIDER=anthropic\nOTHER={SECRET}\n"
    )
    code, output = await checked()
    failed = [line.split(":")[0] for line in output.splitlines() if line.startswith("fail")]
    assert code == 2
    assert failed == [
        "fail  MAX_TURNS",
        "fail  LOG_LEVEL",
        "fail  SYSTEM_PROMPT_FILE",
        "fail  DEVICE_TOOLS_FILE",
        "fail  AUTH_TOKENS",
        "fail  model",
    ]
    assert SECRET not in output


async def test_folders_of_the_file_tools_are_looked_at_where_there_are_some() -> None:
    code, output = await checked(overrides={"port": 0, "file_roots": "."})
    assert code == 2 and "fail  FILE_ROOTS: FILE_ROOTS: . contains its settings (.env)" in output


@pytest.mark.parametrize(
    ("wrong", "left_out"),
    [
        ("PORT=eighty", "PORT"),
        ("ANTHROPIC_MAX_TOKENS=0", "model"),
        ("ANTHROPIC_MAX_TOKENS=many", "model"),
        ("SESSION_STORE_URL=mysql://h", "sessions"),
        ("WORKERS=none", "sessions"),
    ],
)
async def test_what_rests_on_a_setting_that_is_not_valid_is_left_out(
    tmp_path: Path, wrong: str, left_out: str
) -> None:
    (tmp_path / ".env").write_text(f"{wrong}\n")
    name = wrong.partition("=")[0]
    code, output = await checked(overrides={})
    assert code == 2
    assert subjects(output).count(name) == 1
    assert left_out == name or left_out not in subjects(output)


async def test_a_settings_file_that_is_not_text_is_the_only_item(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"PORT=\xff\xfe\n")
    code, output = await checked()
    assert code == 2
    assert output.splitlines()[0] == "fail  settings: The file .env cannot be read: it is not UTF-8 text."
    assert output.endswith("\n0 ok, 0 warnings, 1 failed\n")


async def test_a_line_that_cannot_be_read_fails_and_nothing_else_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f'AUTH_TOKENS="{SECRET}\n')
    code, output = await checked()
    assert (code, subjects(output)) == (2, ["settings", "settings"])
    assert output.splitlines()[1].startswith("fail  settings: Line 1 of .env cannot be read")
    assert SECRET not in output


async def test_another_file_or_none_can_be_read(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("LOG_LEVEL=loud\n")
    (tmp_path / "other").write_text("MAX_TURNS=0\n")
    assert (await checked(env_file=None))[0] == 0
    code, output = await checked(env_file=tmp_path / "other")
    assert code == 2 and "MAX_TURNS" in output and "LOG_LEVEL" not in output


async def test_the_model_is_asked_unless_the_check_is_offline() -> None:
    async with AnthropicService() as claude:
        overrides = {"port": 0, "anthropic_api_key": "test-key", "anthropic_base_url": claude.base_url}
        code, output = await checked(overrides=overrides, offline=True)
        assert (code, claude.received) == (0, 0)
        code, output = await checked(overrides=overrides)
        assert (code, claude.received) == (0, 1)
        assert output.endswith("\n8 ok, 0 warnings, 0 failed\n")


async def test_an_open_address_that_is_meant_passes() -> None:
    overrides = {"host": "0.0.0.0", "port": 0}
    assert (await checked(overrides=overrides))[0] == 2
    assert (await checked(overrides=overrides, insecure=True))[0] == 0


async def test_warnings_alone_leave_the_exit_code_0() -> None:
    async def items() -> Any:
        yield ok("a", "good.")
        yield warn("b", "doubtful.")
        yield warn("c", "doubtful.")

    out = io.StringIO()
    assert await report(items(), out) == 0
    expected = "ok    a: good.\nwarn  b: doubtful.\nwarn  c: doubtful.\n\n1 ok, 2 warnings, 0 failed\n"
    assert out.getvalue() == expected


async def test_an_item_is_written_as_soon_as_it_is_found() -> None:
    out = io.StringIO()

    async def items() -> Any:
        yield ok("a", "good.")
        assert out.getvalue() == "ok    a: good.\n"
        yield fail("b", "bad.")

    assert await report(items(), out) == 2


def test_an_item_is_a_value() -> None:
    assert fail("a", "b.") == Item("fail", "a", "b.")


# -- as a process


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder, with none of the developer's own settings."""
    outer = {name: value for name, value in os.environ.items() if name.lower() not in Settings.model_fields}
    return subprocess.run(
        [sys.executable, "-m", "conductor", "check", *arguments],
        cwd=folder,
        env={**outer, **environment},
        capture_output=True,
        encoding="utf-8",
        timeout=30,
    )


def test_the_command_passes_in_a_fresh_folder(tmp_path: Path) -> None:
    done = run(tmp_path, "--port", "0", "--provider", "demo")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\n8 ok, 0 warnings, 0 failed\n")


def test_the_command_fails_without_a_secret_and_without_a_traceback(tmp_path: Path) -> None:
    environment = {
        "ANTHROPIC_API_KEY": SECRET,
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:1",
        "AUTH_TOKENS": SECRET,
        "LOG_LEVEL": SECRET,
    }
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = run(tmp_path, "--port", str(other.getsockname()[1]), **environment)
    assert done.returncode == 2
    failed = [line.split(":")[0] for line in done.stdout.splitlines() if line.startswith("fail")]
    assert failed == ["fail  LOG_LEVEL", "fail  PORT", "fail  model"]
    assert "warn  AUTH_TOKENS: token 1 of 1 is shorter than 16" in done.stdout
    assert SECRET not in done.stdout + done.stderr
    assert done.stderr == ""


def test_the_command_takes_the_options_of_serve(tmp_path: Path) -> None:
    done = run(
        tmp_path, "--host", "0.0.0.0", "--port", "0", "--insecure-no-auth", "--model", "m", "--offline"
    )
    assert done.returncode == 0
    assert "warn  AUTH_TOKENS" in done.stdout


def test_the_help_names_both_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    output = capsys.readouterr().out
    assert "check" in output and "protocol" in output
