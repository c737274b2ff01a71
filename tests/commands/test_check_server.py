"""The server's part of ``conductor check``: files, the address, and who may connect."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from conductor.commands.check_item import Item

from conductor.commands.check import check

LONG = "a-long-and-random-token"


async def found(*subjects: str, insecure: bool = False, **settings: object) -> list[Item]:
    """Check some settings; give the items with these subjects."""
    items = check(None, overrides={"port": 0, **settings}, offline=True, insecure=insecure)
    return [item async for item in items if item.subject in subjects]


# -- files


async def test_the_folders_of_the_file_tools_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (item,) = await found("FILE_ROOTS", file_roots=(str(tmp_path / "shared"),))
    assert str(item) == f"ok    FILE_ROOTS: {tmp_path / 'shared'}."
    (item,) = await found("FILE_ROOTS", file_roots=(str(tmp_path),))
    assert item.level == "fail" and "contains its settings" in item.text


async def test_the_built_in_prompt_and_catalog_are_good() -> None:
    items = await found("SYSTEM_PROMPT_FILE", "DEVICE_TOOLS_FILE")
    assert [item.level for item in items] == ["ok", "ok"]


async def test_a_prompt_of_the_operators_is_read(tmp_path: Path) -> None:
    file = tmp_path / "prompt.md"
    file.write_text("Be brief.")
    (item,) = await found("SYSTEM_PROMPT_FILE", system_prompt_file=file)
    assert str(item) == f"ok    SYSTEM_PROMPT_FILE: {file}, 9 characters."


async def test_a_prompt_that_is_not_there_fails(tmp_path: Path) -> None:
    (item,) = await found("SYSTEM_PROMPT_FILE", system_prompt_file=tmp_path / "prompt.md")
    assert item.level == "fail" and item.text.endswith("cannot be read: No such file or directory.")


def catalog(folder: Path, *names: str) -> Path:
    file = folder / "tools.json"
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
    file.write_text(json.dumps({"tools": tools}))
    return file


async def policies(folder: Path, text: str) -> list[str]:
    file = folder / "rules.json"
    file.write_text(text)
    file.chmod(0o600)
    return [str(item) for item in await found("POLICIES_FILE", policies_file=file)]


async def test_the_operators_rules_are_counted(tmp_path: Path) -> None:
    (line,) = await policies(
        tmp_path, '{"version": 1, "rules": [{"effect": "deny", "tool": "agent.cancel"}]}'
    )
    assert line.startswith("ok    POLICIES_FILE: ") and line.endswith("rules.json, rules: 1.")


async def test_a_rule_for_a_misspelt_tool_is_warned_about(tmp_path: Path) -> None:
    lines = await policies(tmp_path, '{"version": 1, "rules": [{"effect": "deny", "tool": "agent.cancle"}]}')
    assert lines[1].startswith("warn  POLICIES_FILE: Rule 1 (deny agent.cancle) may never match")


async def test_an_allowed_tool_that_nothing_declares_is_warned_about() -> None:
    (item,) = await found("ALLOWED_TOOLS", allowed_tools=("agent.stauts", "agent.*", "calculator"))
    line = str(item)
    assert line.startswith("warn  ALLOWED_TOOLS: names agent.stauts, but no tool of the catalog")


async def test_rules_that_cannot_be_read_fail_with_their_place(tmp_path: Path) -> None:
    (line,) = await policies(tmp_path, '{"version": 1,\n "rules": [],}')
    assert line.startswith("fail  POLICIES_FILE: rules.json is not valid JSON, line 2, column 14: ")
    (item,) = await found("POLICIES_FILE", policies_file=tmp_path / "none.json")
    assert item.level == "fail"


async def test_the_tools_of_a_catalog_are_counted(tmp_path: Path) -> None:
    (item,) = await found("DEVICE_TOOLS_FILE", device_tools_file=catalog(tmp_path, "lamp.on", "lamp.off"))
    assert item.level == "ok" and item.text.endswith(", 2 tools.")


async def test_a_catalog_that_is_not_json_fails_with_the_place(tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text('{"tools": [}')
    (item,) = await found("DEVICE_TOOLS_FILE", device_tools_file=file)
    assert (item.level, item.subject) == ("fail", "DEVICE_TOOLS_FILE")
    assert "line 1, column" in item.text and item.text.startswith("The tool") and item.text.endswith(".")


async def test_a_catalog_with_a_refused_tool_fails(tmp_path: Path) -> None:
    (item,) = await found("DEVICE_TOOLS_FILE", device_tools_file=catalog(tmp_path, "tts.speak"))
    assert item.level == "fail" and "tts.speak" in item.text


async def test_a_catalog_that_takes_the_name_of_a_built_in_tool_is_warned_of(tmp_path: Path) -> None:
    good, clash = await found(
        "DEVICE_TOOLS_FILE", device_tools_file=catalog(tmp_path, "calculator", "lamp.on")
    )
    assert (good.level, clash.level) == ("ok", "warn")
    assert "calculator" in clash.text and "lamp" not in clash.text


# -- the address


async def test_a_free_port_is_good_and_is_free_afterwards() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for _ in range(2):
        assert [str(item) for item in await found("PORT", port=port)] == [
            f"ok    PORT: 127.0.0.1:{port} is free."
        ]


async def test_port_0_is_any_free_one() -> None:
    (item,) = await found("PORT")
    assert str(item) == "ok    PORT: any free port of 127.0.0.1."


async def test_a_port_that_is_listened_on_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        (item,) = await found("PORT", port=other.getsockname()[1])
    assert item.level == "fail" and "is in use" in item.text


async def test_an_address_of_another_machine_fails() -> None:
    (item,) = await found("HOST", host="192.0.2.1")  # RFC 5737: nobody has it
    assert item.level == "fail"
    assert "not an address of this machine" in item.text


@pytest.mark.parametrize("host", ["999.1.1.1.1.", "x" * 70 + ".invalid", "a b"])
async def test_a_host_that_is_no_name_fails(host: str) -> None:
    (item,) = await found("HOST", host=host)
    assert item.level == "fail"


# -- who may connect


async def access(insecure: bool = False, **given: object) -> list[str]:
    return [str(item) for item in await found("AUTH_TOKENS", insecure=insecure, **given)]


async def test_loopback_needs_no_token() -> None:
    (line,) = await access()
    assert line.startswith("ok    AUTH_TOKENS: not set, and not needed")


async def test_an_open_address_without_tokens_fails_and_says_how_to_mend_it() -> None:
    (line,) = await access(host="0.0.0.0")
    assert line.startswith("fail  AUTH_TOKENS: ") and "set AUTH_TOKENS" in line


async def test_an_open_address_that_is_meant_is_a_warning() -> None:
    (line,) = await access(insecure=True, host="0.0.0.0")
    assert line.startswith("warn  AUTH_TOKENS: ")


async def test_an_open_address_with_a_token_is_good() -> None:
    assert await access(host="0.0.0.0", auth_tokens=LONG) == [
        "ok    AUTH_TOKENS: 1 set; one of them is needed to connect."
    ]


async def test_short_and_unsendable_tokens_are_named_by_their_places_only() -> None:
    tokens = ["fifteen-letters", LONG, "with a space, and".replace(",", ""), "exactly-sixteen-"]
    lines = await access(auth_tokens=",".join(tokens))
    assert [line.partition(": ")[2][:14] for line in lines[1:]] == ["token 1 of 4 i", "token 3 of 4 h"]
    assert not any(token in line for token in tokens for line in lines)


async def test_tools_in_python_are_loaded(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        'from conductor.tools.python_tools import tool\n@tool()\ndef dice() -> int:\n    "Roll."\n'
    )
    (item,) = await found("TOOLS_PATH", tools_path=str(path))
    assert str(item) == "ok    TOOLS_PATH: dice."
    (item,) = await found("TOOLS_PATH", tools_path=str(tmp_path / "none"))
    assert str(item).startswith("fail  TOOLS_PATH: TOOLS_PATH names ")
    assert await found("TOOLS_PATH") == []
