"""``mcp.json``: its fields, and the sentence for each mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conductor.errors import SettingsError
from conductor.plugins.mcp.config import McpServerConfig, load_mcp_servers
from conductor.settings import load_settings


def read(tmp_path: Path, document: Any) -> tuple[McpServerConfig, ...]:
    path = tmp_path / "mcp.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return load_mcp_servers(load_settings(None, config_dir=path.parent))


def test_without_a_file_there_are_no_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_mcp_servers(load_settings(None)) == ()


def test_a_file_of_other_clients_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTES_KEY", "s3cr3t-value")
    files, notes = read(
        tmp_path,
        {
            "mcpServers": {
                "files": {"command": "npx", "args": ["-y", "x"], "env": {"A": "b"}, "risk": {"read": "safe"}},
                "notes": {
                    "type": "streamable-http",
                    "url": "https://notes.example/mcp",
                    "headers": {"Authorization": "Bearer ${NOTES_KEY}"},
                    "trust": True,
                    "tools": ["get_*"],
                    "timeout": 5,
                    "enabled": False,
                },
            }
        },
    )
    assert (files.type, files.command, files.args, files.trust, files.enabled) == (
        *("stdio", "npx", ("-y", "x")),
        *(False, True),
    )
    assert (notes.type, notes.headers, notes.enabled) == (
        "http",
        {"Authorization": "Bearer s3cr3t-value"},
        False,
    )
    assert notes.secrets == ("s3cr3t-value",) and "s3cr3t-value" not in repr(notes.secrets and files)


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({"comand": "x"}, 'there is no "comand"; there are: type, command, args'),
        ({}, '"command" is missing, which type "stdio" needs'),
        ({"type": "http"}, '"url" is missing'),
        ({"command": "x", "url": "http://a"}, '"command" cannot be combined with "url"'),
        (
            {"command": "x", "type": "stdio", "headers": {"a": "b"}},
            '"headers" cannot be combined with "command"',
        ),
        ({"url": "ftp://a"}, "url must begin with https:// or http:// and a host"),
        ({"url": "http://u:p@a/"}, "url must not contain a user name"),
        ({"command": "x", "env": {"A": "${NO_SUCH_NAME}"}}, "the variable NO_SUCH_NAME is not set"),
        ({"command": "x", "risk": {"a": "low"}}, "risk.a is not valid: it must be"),
        ({"command": "x", "timeout": 0}, "timeout is not valid"),
        ({"url": "http://a", "type": "sse"}, "type is not valid"),
        ({"command": "x", "secrets": ["a"]}, 'there is no "secrets"'),
        ("x", "must be a JSON object"),
    ],
)
def test_a_mistake_in_a_server_is_one_sentence(tmp_path: Path, server: Any, words: str) -> None:
    with pytest.raises(SettingsError) as raised:
        read(tmp_path, {"mcpServers": {"files": server}})
    assert 'mcp.json, server "files"' in str(raised.value) and words in str(raised.value)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("{", "is not valid JSON"),
        ("[]", 'must be a JSON object with an object under "mcpServers"'),
        ({"servers": {}}, 'an object under "mcpServers"'),
        ({"mcpServers": {}, "inputs": []}, 'there is no "inputs"'),
        ({"mcpServers": {"a.b": {"command": "x"}}}, "a name is 1 to 32 letters"),
        ({"mcpServers": {"tts": {"command": "x"}}}, "this name is the server's own"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(tmp_path: Path, document: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=".*") as raised:
        read(tmp_path, document)
    assert words in str(raised.value)
