"""The audit log: each decision, its call, and the outcome."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conductor.errors import SettingsError
from conductor.settings import load_settings
from conductor.tools.audit import AuditLog
from conductor.tools.rules import arguments_digest
from tests.dialogues import decide, talking
from tests.models import AnthropicService, Call, Reply

THREE = Reply(
    calls=(
        Call("delete_file", {"path": "old.txt"}),
        Call("look", {"path": "."}),
        Call("move_file", {"path": "notes.txt"}),
    )
)


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_each_decision_answer_and_call_is_a_line(
    claude: AnthropicService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    monkeypatch.setenv("AUDIT_LOG", str(path))
    claude.replies += [THREE, Reply(text="Done.")]
    tools = {name: (lambda a: "done") for name in ("look", "move_file", "delete_file")}
    async with talking(claude, "approval", device=tools) as phone:
        phone.say("tidy up")
        high = await phone.until("approval.request", name="delete_file")
        medium = await phone.until("approval.request", name="move_file")
        await decide(phone, medium, "edit", editedArguments={"path": "secret.txt"})
        resolved = await decide(phone, high, "deny", message="no, leave it")
        await phone.idle(since=phone.log.index(resolved))
    assert path.stat().st_mode & 0o777 == 0o600
    assert "secret.txt" not in path.read_text() and "leave it" not in path.read_text()
    lines = entries(path)
    assert {(line["subject"], line["session"], line["source"]) for line in lines} == {
        ("anonymous", "s-1", "device")
    }
    records = [(line["event"], line["tool"]) for line in lines]
    assert sorted(records) == [
        ("answer", "delete_file"),
        ("answer", "move_file"),
        ("answer", "move_file"),
        ("call", "look"),
        ("call", "move_file"),
        ("decision", "delete_file"),
        ("decision", "look"),
        ("decision", "move_file"),
    ]
    by = {(line["event"], line["tool"], line["digest"]): line for line in lines}
    moved = arguments_digest("move_file", {"path": "secret.txt"})
    digest = arguments_digest("delete_file", {"path": "old.txt"})
    assert by["decision", "delete_file", digest]["decision"] == "ask"
    assert by["answer", "delete_file", digest] | {"time": ""} == {
        "time": "",
        "event": "answer",
        "subject": "anonymous",
        "session": "s-1",
        "tool": "delete_file",
        "source": "device",
        "digest": digest,
        "outcome": "denied",
        "by": "card",
    }
    assert by["answer", "move_file", moved]["outcome"] == "edited"
    assert by["call", "move_file", moved]["error_type"] == "none"


async def test_an_answer_by_voice_is_marked_so(
    claude: AnthropicService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    monkeypatch.setenv("AUDIT_LOG", str(path))
    claude.replies += [Reply(calls=(Call("move_file", {"path": "notes.txt"}),)), Reply(text="Moved.")]
    tools = {"move_file": lambda a: "moved"}
    async with talking(claude, device=tools) as phone:
        await phone.ask("tidy up")
        await phone.ask("yes, go ahead")
    (answer,) = (line for line in entries(path) if line["event"] == "answer")
    assert (answer["outcome"], answer["by"]) == ("allowed", "voice")


def test_a_log_that_cannot_be_written_is_a_mistake_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="AUDIT_LOG"):
        AuditLog(tmp_path)
    assert load_settings(None).audit_log is None


def test_a_log_may_be_rotated_and_a_lost_line_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = AuditLog(path)
    audit.write({"event": "a"})
    path.rename(tmp_path / "old.jsonl")
    audit.write({"event": "b"})
    assert entries(path) == [{"event": "b"}]
    path.unlink()
    path.mkdir()
    audit.write({"event": "c"})
