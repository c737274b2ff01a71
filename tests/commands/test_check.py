"""``conductor check``, in this process and as a process."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from conductor.commands.check import check, report
from conductor.commands.output import Item, fail, ok, warn
from conductor.settings import Settings
from tests.models import AnthropicService

SECRET = "hunter2-hunter2"


async def run_check(**options: Any) -> tuple[int, str]:
    """Run the check; returns its exit code and its output. The default ``overrides`` select any port."""
    options.setdefault("overrides", {"port": 0})
    out = io.StringIO()
    code = await report(check(**options), out)
    return code, out.getvalue()


def subjects(output: str) -> list[str]:
    """Return the subjects of the items, in order."""
    return [line.split()[1].rstrip(":") for line in output.partition("\n\n")[0].splitlines()]


async def test_an_empty_folder_passes_all_checks() -> None:
    code, output = await run_check()
    assert code == 0
    files = ["settings", "SYSTEM_PROMPT_FILE", "DEVICE_TOOLS_FILE", "POLICIES_FILE"]
    assert subjects(output) == [*files, "PORT", "AUTH_TOKENS", "sessions", "model"]
    assert output.endswith("\n\n7 ok, 1 warning, 0 failed\n")


async def test_each_error_is_a_line_and_the_exit_code_is_2(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        "HOST=0.0.0.0\nMAX_TURNS=0\nLOG_LEVEL=loud\nSYSTEM_PROMPT_FILE=none.md\nDEVICE_TOOLS_FILE=none.json\n"
        f"MODEL_PROVIDER=anthropic\nOTHER={SECRET}\n"
    )
    code, output = await run_check()
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


@pytest.mark.parametrize(
    ("line", "skipped"),
    [
        ("PORT=eighty", "PORT"),
        ("ANTHROPIC_MAX_TOKENS=0", "model"),
        ("ANTHROPIC_MAX_TOKENS=many", "model"),
        ("SESSION_STORE_URL=mysql://h", "sessions"),
        ("WORKERS=none", "sessions"),
    ],
)
async def test_checks_of_an_invalid_setting_are_skipped(tmp_path: Path, line: str, skipped: str) -> None:
    (tmp_path / ".env").write_text(f"{line}\n")
    name = line.partition("=")[0]
    code, output = await run_check(overrides={})
    assert code == 2
    assert subjects(output).count(name) == 1
    assert skipped == name or skipped not in subjects(output)


async def test_a_binary_settings_file_stops_the_check(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"PORT=\xff\xfe\n")
    code, output = await run_check()
    assert code == 2
    assert output.splitlines()[0] == "fail  settings: The file .env cannot be read: it is not UTF-8 text."
    assert output.endswith("\n0 ok, 0 warnings, 1 failed\n")


async def test_an_invalid_line_of_the_settings_file_stops_the_check(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f'AUTH_TOKENS="{SECRET}\n')
    code, output = await run_check()
    assert (code, subjects(output)) == (2, ["settings", "settings"])
    assert output.splitlines()[1].startswith("fail  settings: Line 1 of .env cannot be read")
    assert SECRET not in output


async def test_names_that_a_configuration_file_uses_are_settings(tmp_path: Path) -> None:
    server = '{"command": "false", "env": {"KEY": "${WEATHER_KEY}"}, "enabled": false}'
    (tmp_path / "mcp.json").write_text(f'{{"mcpServers": {{"weather": {server}}}}}')
    (tmp_path / ".env").write_text(f"MCP_CONFIG_FILE=mcp.json\nWEATHER_KEY={SECRET}\nOTHER_KEY={SECRET}\n")
    _, output = await run_check(offline=True)
    assert "OTHER_KEY in .env is not a setting." in output and "WEATHER_KEY" not in output


async def test_the_settings_file_is_an_option(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("LOG_LEVEL=loud\n")
    (tmp_path / "other").write_text("MAX_TURNS=0\n")
    assert (await run_check(env_file=None))[0] == 0
    code, output = await run_check(env_file=tmp_path / "other")
    assert code == 2 and "MAX_TURNS" in output and "LOG_LEVEL" not in output


async def test_an_offline_check_does_not_ask_the_model() -> None:
    async with AnthropicService() as claude:
        overrides = {"port": 0, "anthropic_api_key": "test-key", "anthropic_base_url": claude.base_url}
        code, output = await run_check(overrides=overrides, offline=True)
        assert (code, claude.received) == (0, 0)
        code, output = await run_check(overrides=overrides)
        assert (code, claude.received) == (0, 1)
        assert output.endswith("\n8 ok, 0 warnings, 0 failed\n")


async def test_items_are_written_at_once_and_a_failure_is_exit_code_2() -> None:
    out = io.StringIO()

    async def items(last: Item) -> AsyncIterator[Item]:
        yield ok("a", "good.")
        assert out.getvalue().endswith("ok    a: good.\n")
        yield warn("b", "doubtful.")
        yield last

    assert await report(items(fail("c", "bad.")), out) == 2
    assert out.getvalue().endswith("warn  b: doubtful.\nfail  c: bad.\n\n1 ok, 1 warning, 1 failed\n")
    assert await report(items(ok("c", "good.")), out) == 0


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder, without the developer's settings."""
    outer = {name: value for name, value in os.environ.items() if name.lower() not in Settings.model_fields}
    return subprocess.run(
        [sys.executable, "-m", "conductor", "check", *arguments],
        cwd=folder,
        env={**outer, **environment},
        capture_output=True,
        encoding="utf-8",
        timeout=30,
    )


def test_the_command_passes_in_an_empty_folder(tmp_path: Path) -> None:
    process = run(tmp_path, "--port", "0", "--provider", "demo")
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.endswith("\n8 ok, 0 warnings, 0 failed\n")


def test_a_failure_prints_no_secret_and_no_traceback(tmp_path: Path) -> None:
    environment = {
        "ANTHROPIC_API_KEY": SECRET,
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:1",
        "AUTH_TOKENS": SECRET,
        "LOG_LEVEL": SECRET,
    }
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = run(tmp_path, "--port", str(listener.getsockname()[1]), **environment)
    assert process.returncode == 2
    failed = [line.split(":")[0] for line in process.stdout.splitlines() if line.startswith("fail")]
    assert failed == ["fail  LOG_LEVEL", "fail  PORT", "fail  model"]
    assert "warn  AUTH_TOKENS: token 1 of 1 has fewer than 16" in process.stdout
    assert SECRET not in process.stdout + process.stderr
    assert process.stderr == ""


def test_the_command_takes_the_options_of_serve(tmp_path: Path) -> None:
    process = run(
        tmp_path, "--host", "0.0.0.0", "--port", "0", "--insecure-no-auth", "--model", "m", "--offline"
    )
    assert process.returncode == 0
    assert "warn  AUTH_TOKENS" in process.stdout
