"""``conductor check``: settings, services and access."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from conductor.commands.check import check, report
from conductor.commands.output import Item, fail, ok, warn
from conductor.settings import Settings
from tests.conftest import ROOT, Main
from tests.models import AnthropicService

SECRET = "hunter2-hunter2"
LONG = "a-long-and-random-token"


def save(name: str, text: str, encoding: str = "utf-8") -> None:
    Path(name).write_text(text, encoding)


async def lines_of(*subjects: str, insecure: bool = False, **settings: Any) -> list[str]:
    """Check settings without a model; return the lines of these subjects, or all."""
    items = check({"port": 0, **settings}, offline=True, insecure=insecure)
    return [str(item) async for item in items if not subjects or item.subject in subjects]


async def failures(text: str, **settings: Any) -> list[str]:
    """Check a settings file; return the failed subjects."""
    save(".env", text)
    lines = await lines_of(**settings)
    assert SECRET not in "\n".join(lines)
    return [line.split()[1].rstrip(":") for line in lines if line.startswith("fail")]


async def test_an_empty_folder_passes_all_checks() -> None:
    lines = await lines_of()
    assert [line.split()[:2] for line in lines] == [
        ["ok", "settings:"],
        ["ok", "plugins:"],
        ["ok", "tools:"],
        ["ok", "rules:"],
        ["ok", "AUTH_TOKENS:"],
        ["ok", "sessions:"],
        ["warn", "model:"],
    ]
    assert lines[0] == "ok    settings: .env is optional and missing; none from the environment."


# -- settings


async def test_all_mistakes_in_settings_are_listed_and_end_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOG_FORMAT", "xml")
    text = f"PORT=eighty\nMAX_TURNS=0\nLOG_LEVEL=loud\nSYSTEM_PROMPT_FILE=none.md\nOTHER={SECRET}\n"
    save(".env", text)
    lines = [str(item) async for item in check({})]
    assert [line.split(":")[0] for line in lines[1:]] == [
        "fail  PORT",
        "fail  MAX_TURNS",
        "fail  LOG_LEVEL",
        "fail  LOG_FORMAT",
        "warn  settings",
    ]
    assert "greater than or equal to 1" in lines[2]


async def test_values_are_not_printed() -> None:
    text = "".join(f"{name.upper()}={SECRET}\n" for name in Settings.model_fields)
    assert len(await failures(text + f"XX{SECRET}=1\nOTHER={SECRET}\n")) > 10
    assert await failures(f'{SECRET}\nAUTH_TOKENS="{SECRET}\n') == ["settings", "settings"]


async def test_a_binary_settings_file_stops_the_check() -> None:
    save(".env", "PORT=\xff\n", "latin-1")
    assert await lines_of() == ["fail  settings: The file .env cannot be read: it is not UTF-8 text."]


async def test_the_settings_of_the_environment_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST", "127.0.0.1")
    monkeypatch.setenv("MAX_TURNS", "8")
    save(".env", "max_turns=1\nexport Log_Level=error\n")
    line, *_ = await lines_of("settings")
    assert line.endswith(".env is read; from the environment: HOST, MAX_TURNS.")


async def test_names_that_no_file_refers_to_are_a_warning() -> None:
    server = '{"command": "false", "env": {"KEY": "${WEATHER_KEY}"}, "enabled": false}'
    save("mcp.json", f'{{"mcpServers": {{"weather": {server}}}}}')
    save(".env", f"WEATHER_KEY={SECRET}\nOTHER_KEY={SECRET}\nsecret-looking=1\n")
    assert (await lines_of("settings"))[1:] == [
        "warn  settings: OTHER_KEY in .env is not a setting.",
        "warn  settings: line 3 in .env is not a setting.",
    ]


# -- services


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"system_prompt_file": "none.md"}, "none.md cannot be read: no such file or directory."),
        ({"device_tools_file": "none.json"}, "The tool catalog none.json cannot be read: no such file"),
        ({"policies_file": "rules.json"}, "rules.json is not valid JSON, line 2, column 14: "),
        ({"file_roots": "."}, "contains its settings"),
        ({"tools_path": "none"}, "TOOLS_PATH names "),
        ({"notes_dir": "none"}, "NOTES_DIR: none is not a folder."),
        ({"knowledge_dir": "none"}, "KNOWLEDGE_DIR: none is not a folder."),
    ],
)
async def test_services_that_cannot_be_made_are_one_failure(settings: dict[str, Any], sentence: str) -> None:
    save("rules.json", '{"version": 1,\n "rules": [],}')
    lines = [line for line in await lines_of(**settings) if line.startswith("fail")]
    assert len(lines) == 1 and lines[0].startswith("fail  services: ") and sentence in lines[0]


async def test_what_the_services_and_another_check_find_is_reported_once() -> None:
    assert await failures("MODEL_PROVIDER=anthropic\nHOST=0.0.0.0\n") == ["services", "AUTH_TOKENS"]


async def test_tools_and_rules_are_counted() -> None:
    text = 'from conductor.tools import tool\n@tool()\ndef dice() -> int:\n    "Roll."\n'
    save("mine.py", text)
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("calculator", "lamp.on")]
    save("tools.json", json.dumps({"tools": tools}))
    save("policies.json", '{"version": 1, "rules": [{"effect": "deny", "tool": "agent.cancel"}]}')
    os.chmod("policies.json", 0o602)
    lines = await lines_of(tools_path="mine.py", device_tools_file="tools.json", allowed_tools="agent.stauts")
    assert [re.split(": no tool|; a tool", line)[0] for line in lines[2:8]] == [
        "ok    tools: 8 builtin, 2 device, 1 python.",
        "warn  DEVICE_TOOLS_FILE: replaces built-in tools: calculator. Rename them in the file.",
        "ok    rules: policies.json, rules: 1; the preset standard decides where no rule does.",
        "warn  rules: Every user of this machine may write policies.json. Use chmod 600.",
        "warn  rules: Rule 1 (deny agent.cancel) may never match",
        "warn  ALLOWED_TOOLS: names agent.stauts, but no tool of the catalog or the server has this name",
    ]


async def test_mcp_servers_are_started_unless_offline() -> None:
    here = {"command": sys.executable, "args": ["-m", "tests.stand_ins.mcp_server"], "cwd": str(ROOT)}
    config = {"here": here, "off": {"command": "x", "enabled": False}, "gone": {"command": "no"}}
    save("mcp.json", json.dumps({"mcpServers": config}))
    counts, problem = [str(item) async for item in check({"port": 0}) if item.subject == "tools"]
    assert " mcp:here." in counts
    assert problem.startswith("fail  tools: the MCP server gone is down: ")
    assert len(await lines_of("tools")) == 1


# -- access


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({}, "ok    AUTH_TOKENS: not set, and not needed"),
        ({"host": "0.0.0.0"}, "fail  AUTH_TOKENS: Listening on 0.0.0.0 without tokens gives"),
        ({"host": "0.0.0.0", "insecure": True}, "warn  AUTH_TOKENS: not set: every client"),
        ({"host": "0.0.0.0", "auth_tokens": LONG}, "ok    AUTH_TOKENS: 1 set; a client needs one of them."),
    ],
)
async def test_other_machines_need_a_token(settings: dict[str, Any], line: str) -> None:
    (only,) = await lines_of("AUTH_TOKENS", **settings)
    assert only.startswith(line)


async def test_weak_tokens_are_identified_by_their_number() -> None:
    tokens = ["fifteen-letters", LONG, "with a space and", "exactly-sixteen-"]
    lines = await lines_of("AUTH_TOKENS", auth_tokens=",".join(tokens))
    assert [line[:40] for line in lines[1:]] == [
        f"warn  AUTH_TOKENS: token {number} of 4 is weak:" for number in (1, 3)
    ]
    assert not any(token in line for token in tokens for line in lines)


# -- the command


async def test_items_are_written_at_once_and_a_failure_is_exit_code_2() -> None:
    async def items(last: Item) -> AsyncIterator[Item]:
        yield ok("a", "good.")
        assert out.getvalue().endswith("ok    a: good.\n")
        yield warn("b", "doubtful.")
        yield last

    with redirect_stdout(io.StringIO()) as out:
        assert await report(items(fail("c", "bad."))) == 2
        assert out.getvalue().endswith("warn  b: doubtful.\nfail  c: bad.\n\n1 ok, 1 warning, 1 failed\n")
        assert await report(items(ok("c", "good."))) == 0


def test_the_command_takes_the_options_of_serve(conductor: Main) -> None:
    options = ["--host", "0.0.0.0", "--port", "0", "--insecure-no-auth", "--provider", "demo", "--model", "m"]
    code, out, err = conductor("check", *options)
    assert (code, err) == (0, "") and "warn  AUTH_TOKENS" in out
    assert out.endswith("\n6 ok, 1 warning, 0 failed\n")


async def test_the_model_is_asked_unless_offline() -> None:
    async with AnthropicService() as claude:
        overrides = {"port": 0, "anthropic_api_key": "test-key", "anthropic_base_url": claude.base_url}
        assert [item.level async for item in check(overrides, offline=True)].count("ok") == 7
        assert claude.received == 0
        assert [item.level async for item in check(overrides)].count("ok") == 7
        assert claude.received == 1


def test_a_failure_prints_no_secret_and_no_traceback(conductor: Main) -> None:
    values = {"ANTHROPIC_API_KEY": SECRET, "ANTHROPIC_BASE_URL": "http://127.0.0.1:1", "AUTH_TOKENS": SECRET}
    code, out, err = conductor("check", **values)
    failed = [line.split(":")[0] for line in out.splitlines() if line.startswith("fail")]
    assert (code, failed, err) == (2, ["fail  model"], "")
    assert "warn  AUTH_TOKENS: token 1 of 1 is weak" in out and SECRET not in out
