"""``conductor check``: files, the address and access."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from conductor.commands.check import check
from conductor.commands.output import Item

LONG = "a-long-and-random-token"


async def run_checks(*subjects: str, insecure: bool = False, **settings: object) -> list[Item]:
    """Check settings; return the items with these subjects."""
    items = check(None, overrides={"port": 0, **settings}, offline=True, insecure=insecure)
    return [item async for item in items if item.subject in subjects]


async def test_the_folders_of_the_file_tools_are_checked(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (item,) = await run_checks("FILE_ROOTS", file_roots=(str(tmp_path / "shared"),))
    assert str(item) == f"ok    FILE_ROOTS: {tmp_path / 'shared'}."
    (item,) = await run_checks("FILE_ROOTS", file_roots=(str(tmp_path),))
    assert item.level == "fail" and "contains its settings" in item.text


async def test_the_built_in_prompt_and_catalog_pass() -> None:
    items = await run_checks("SYSTEM_PROMPT_FILE", "DEVICE_TOOLS_FILE")
    assert [item.level for item in items] == ["ok", "ok"]


async def test_a_missing_prompt_fails(tmp_path: Path) -> None:
    (item,) = await run_checks("SYSTEM_PROMPT_FILE", system_prompt_file=tmp_path / "prompt.md")
    assert item.level == "fail" and item.text.endswith("cannot be read: no such file or directory.")


def catalog(folder: Path, *names: str) -> Path:
    file = folder / "tools.json"
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
    file.write_text(json.dumps({"tools": tools}))
    return file


async def policies(folder: Path, text: str) -> list[str]:
    file = folder / "rules.json"
    file.write_text(text)
    file.chmod(0o600)
    return [str(item) for item in await run_checks("POLICIES_FILE", policies_file=file)]


async def test_rules_are_counted(tmp_path: Path) -> None:
    (line,) = await policies(
        tmp_path, '{"version": 1, "rules": [{"effect": "deny", "tool": "agent.cancel"}]}'
    )
    assert line.startswith("ok    POLICIES_FILE: ") and line.endswith("rules.json, rules: 1.")


async def test_an_unknown_allowed_tool_is_a_warning() -> None:
    (item,) = await run_checks("ALLOWED_TOOLS", allowed_tools=("agent.stauts", "agent.*", "calculator"))
    assert str(item).startswith("warn  ALLOWED_TOOLS: names agent.stauts, but no tool of the catalog")


async def test_invalid_rules_fail_with_their_line(tmp_path: Path) -> None:
    (line,) = await policies(tmp_path, '{"version": 1,\n "rules": [],}')
    assert line.startswith("fail  POLICIES_FILE: rules.json is not valid JSON, line 2, column 14: ")
    (item,) = await run_checks("POLICIES_FILE", policies_file=tmp_path / "none.json")
    assert item.level == "fail"


async def test_an_invalid_catalog_fails_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text('{"tools": [}')
    (item,) = await run_checks("DEVICE_TOOLS_FILE", device_tools_file=file)
    assert (item.level, item.subject) == ("fail", "DEVICE_TOOLS_FILE")
    assert "line 1, column" in item.text and item.text.startswith("The tool") and item.text.endswith(".")


async def test_a_catalog_with_a_reserved_name_fails(tmp_path: Path) -> None:
    (item,) = await run_checks("DEVICE_TOOLS_FILE", device_tools_file=catalog(tmp_path, "tts.speak"))
    assert item.level == "fail" and "tts.speak" in item.text


async def test_a_catalog_that_replaces_a_built_in_tool_is_a_warning(tmp_path: Path) -> None:
    catalog_item, clash = await run_checks(
        "DEVICE_TOOLS_FILE", device_tools_file=catalog(tmp_path, "calculator", "lamp.on")
    )
    assert (catalog_item.level, clash.level) == ("ok", "warn")
    assert "calculator" in clash.text and "lamp" not in clash.text


async def test_a_free_port_passes_and_stays_free() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for _ in range(2):
        assert [str(item) for item in await run_checks("PORT", port=port)] == [
            f"ok    PORT: 127.0.0.1:{port} is free."
        ]


async def test_port_0_is_any_free_port() -> None:
    (item,) = await run_checks("PORT")
    assert str(item) == "ok    PORT: any free port of 127.0.0.1."


async def test_a_port_in_use_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        (item,) = await run_checks("PORT", port=listener.getsockname()[1])
    assert item.level == "fail" and "is in use" in item.text


@pytest.mark.parametrize("host", ["192.0.2.1", "999.1.1.1.1.", "x" * 70 + ".invalid", "a b"])
async def test_an_invalid_host_fails(host: str) -> None:
    (item,) = await run_checks("HOST", host=host)
    assert item.level == "fail"


async def access(insecure: bool = False, **settings: object) -> list[str]:
    return [str(item) for item in await run_checks("AUTH_TOKENS", insecure=insecure, **settings)]


async def test_loopback_needs_no_token() -> None:
    (line,) = await access()
    assert line.startswith("ok    AUTH_TOKENS: not set, and not needed")


async def test_an_open_address_without_tokens_fails_with_a_remedy() -> None:
    (line,) = await access(host="0.0.0.0")
    assert line.startswith("fail  AUTH_TOKENS: ") and "set AUTH_TOKENS" in line


async def test_an_insecure_open_address_is_a_warning() -> None:
    (line,) = await access(insecure=True, host="0.0.0.0")
    assert line.startswith("warn  AUTH_TOKENS: ")


async def test_an_open_address_with_a_token_passes() -> None:
    assert await access(host="0.0.0.0", auth_tokens=LONG) == [
        "ok    AUTH_TOKENS: 1 set; a client needs one of them."
    ]


async def test_weak_tokens_are_identified_by_their_number() -> None:
    tokens = ["fifteen-letters", LONG, "with a space, and".replace(",", ""), "exactly-sixteen-"]
    lines = await access(auth_tokens=",".join(tokens))
    assert [line.partition(": ")[2][:20] for line in lines[1:]] == [
        "token 1 of 4 has few",
        "token 3 of 4 has oth",
    ]
    assert not any(token in line for token in tokens for line in lines)


async def test_tools_in_python_are_loaded(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        'from conductor.plugins.tools.python_tools import tool\n@tool()\ndef dice() -> int:\n    "Roll."\n'
    )
    (item,) = await run_checks("TOOLS_PATH", tools_path=str(path))
    assert str(item) == "ok    TOOLS_PATH: dice."
    (item,) = await run_checks("TOOLS_PATH", tools_path=str(tmp_path / "none"))
    assert str(item).startswith("fail  TOOLS_PATH: TOOLS_PATH names ")
    assert await run_checks("TOOLS_PATH") == []
