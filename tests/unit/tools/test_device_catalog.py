"""Catalogs: the tools of the iOS app, and the error of an invalid file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conductor.errors import SettingsError
from conductor.tools.base import ToolSpec
from conductor.tools.declarations import load_catalog
from conductor.tools.outcomes import ToolOutcome
from conductor.tools.validation import Valid, validate
from tests.conftest import IOS_CATALOG

IOS = {tool.name: tool for tool in load_catalog(IOS_CATALOG)}


def message(name: str, arguments: dict[str, Any]) -> str:
    checked = validate(IOS[name], json.dumps(arguments))
    assert isinstance(checked, ToolOutcome)
    return str(checked.error_message)


def test_the_shipped_apps_tools_are_these_seven_and_strict() -> None:
    assert len(IOS) == 7
    for tool in IOS.values():
        assert tool.description
        assert tool.input_schema["additionalProperties"] is False
        assert "unknown argument 'x'" in message(tool.name, {"x": 1})


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("agent.spawn", {"prompt": "Fix it", "repository": "https://github.com/acme/website"}),
        ("agent.spawn", {"prompt": "Fix it", "repository": "https://github.com/acme/website.git"}),
        (
            "agent.spawn",
            {"prompt": "Fix it", "prUrl": "https://github.com/o/r/pull/7", "openAsCursorGithubApp": True},
        ),
        ("agent.list", {"limit": 200}),
        ("agent.spawn", {"prompt": "Fix it", "prUrl": "https://github.com/o/r/pull/7", "autoCreatePr": True}),
        ("agent.followup", {"id": "bc-1", "prompt": "Go on"}),
        ("agent.list", {"limit": 5, "cursor": "c"}),
        ("repositories.list", {}),
        ("repositories.select", {"prompt": "Which one?", "filter": "app"}),
    ],
)
def test_usual_calls_are_valid(name: str, arguments: dict[str, Any]) -> None:
    assert validate(IOS[name], json.dumps(arguments)) == Valid(arguments)


def test_a_repository_by_its_owner_and_name_reaches_the_app_as_its_url() -> None:
    checked = validate(IOS["agent.spawn"], '{"prompt": "Fix it", "repository": "octocat/hello-world"}')
    url = "https://github.com/octocat/hello-world"
    assert checked == Valid(
        {"prompt": "Fix it", "repository": url}, (f'repository: "octocat/hello-world" was read as "{url}"',)
    )


def test_an_agent_needs_a_repository_or_a_pull_request() -> None:
    assert message("agent.spawn", {"prompt": "Fix it"}) == (
        "Invalid arguments for agent.spawn: needs repository or prUrl. "
        "Nothing was run. Call it again with corrected arguments."
    )


@pytest.mark.parametrize("repository", ["hello-world", "https://github.com/acme", "a/b/c", "https://a b/c/d"])
def test_a_repository_is_owner_and_name_or_its_url(repository: str) -> None:
    assert "repository does not match" in message("agent.spawn", {"prompt": "x", "repository": repository})


def test_empty_optional_texts_of_an_agent_are_dropped() -> None:
    arguments = {"prompt": "x", "repository": "o/r", "prUrl": "", "ref": "", "model": "", "branchName": ""}
    checked = validate(IOS["agent.spawn"], json.dumps(arguments))
    assert isinstance(checked, Valid)
    assert checked.arguments == {"prompt": "x", "repository": "https://github.com/o/r"}
    assert "ref: empty text was left out" in checked.notes
    assert "needs repository or prUrl" in message(
        "agent.spawn", {"prompt": "x", "repository": "", "prUrl": ""}
    )


def test_the_model_sees_no_schema_that_anthropic_refuses() -> None:
    for tool in IOS.values():
        assert not {"anyOf", "oneOf", "allOf"} & tool.definition.input_schema.keys()
    assert IOS["agent.spawn"].definition.input_schema["description"] == "Needs repository or prUrl."


def load(folder: Path, content: str | bytes) -> tuple[ToolSpec, ...]:
    path = folder / "tools.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_catalog(path)


def test_a_file_is_read_with_or_without_a_byte_order_mark(tmp_path: Path) -> None:
    content = json.dumps({"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})
    assert load(tmp_path, content) == load(tmp_path, b"\xef\xbb\xbf" + content.encode())
    assert load(tmp_path, '{"tools": []}') == ()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"tools": [', "is not valid JSON, line 1, column 12: expecting value"),
        ('{"tools": {}}', 'must be a JSON object with a list under "tools"'),
        (b" " * (1024 * 1024 + 1), "is larger than 1048576 bytes"),
        (
            '{"tools": [{"name": "t"}]}',
            "has a tool that is not accepted, t: object missing required field `inputSchema`",
        ),
        ('{"tools": [7]}', "has a tool that is not accepted, ?: expected `object`, got `int`"),
    ],
)
def test_a_mistake_in_a_catalog_is_one_sentence(tmp_path: Path, content: str | bytes, words: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load(tmp_path, content)
    assert str(raised.value) == f"The tool catalog tools.json {words}."


def test_the_operators_catalog_is_trusted(tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    web = {"name": "web.read", "inputSchema": {"type": "object"}, "annotations": {"openWorldHint": True}}
    path.write_text(json.dumps({"tools": [web]}))
    (tool,) = load_catalog(path)
    assert tool.open_world and not tool.untrusted
