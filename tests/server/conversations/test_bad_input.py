"""Whatever a client sends, it gets one clear error, keeps its connection, and the next turn works."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conductor.models.base import TextDelta
from tests.dialogues import ask_deciding, begin, call, results_of
from tests.models import AnthropicService, Reply, ScriptedProvider
from tests.serving import configured, serving


def event(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "id": "bad-1",
        "type": "user.audio.transcript.final",
        "timestamp": "2026-03-01T12:00:00.000Z",
        "sessionId": "s-1",
        "protocolVersion": 1,
        "payload": {"text": "hi"},
    }
    base.update(changes)
    return {key: value for key, value in base.items() if value is not ...}


def raw(**changes: Any) -> str:
    return json.dumps(event(**changes))


BAD: dict[str, tuple[str, str, str]] = {
    "not JSON": ("{not json", "invalid_event", "invalid_json"),
    "binary JSON": (raw(), "invalid_event", "binary_frame"),
    "a newer version": (raw(protocolVersion=2), "unsupported_protocol_version", ""),
    "no text": (raw(payload={}), "invalid_event", "invalid_payload"),
    "empty text": (raw(payload={"text": " \n"}), "invalid_transcript", ""),
    "oversize": (raw(payload={"text": "x" * 70_000}), "invalid_event", "event_too_large:70"),
    "another session": (raw(sessionId="s-2"), "session_mismatch", ""),
}
"""The frames that the codec refuses are those of its own tests; here one of each way to the client."""


@pytest.mark.parametrize("name", BAD)
async def test_bad_input_gets_one_error_and_the_next_turn_works(name: str) -> None:
    data, code, message = BAD[name]
    provider = ScriptedProvider(lambda _: [TextDelta("Fine.")])
    async with serving(provider) as served, served.phone() as phone:
        phone.socket.write(data.encode(), binary=name.startswith("binary"))
        await phone.until("error")
        await phone.ask("and now?")
        errors = phone.errors()
        assert [error["code"] for error in errors] == [code]
        assert errors[0]["message"].startswith(message)
        assert phone.finals() == ["Fine."]
    assert len(provider.requests) == 1


async def test_invalid_utf8_gets_an_error_too() -> None:
    provider = ScriptedProvider(lambda _: [TextDelta("Fine.")])
    async with serving(provider) as served, served.phone() as phone:
        phone.socket.write(b'{"id":"\xff"}')
        await phone.until("error")
        await phone.ask("and now?")
        assert phone.errors()[0]["message"] == "invalid_utf8"


@pytest.mark.parametrize("name", ["no text", "empty text", "oversize", "another session"])
async def test_a_transcript_that_starts_no_turn_reopens_the_microphone(name: str) -> None:
    async with serving(ScriptedProvider([])) as served, served.phone() as phone:
        phone.socket.write(BAD[name][0].encode())
        await phone.until("state idle")
        assert phone.shapes() == ["session.started", "error", "state idle"]


async def test_an_error_names_the_event_it_is_about() -> None:
    async with serving(ScriptedProvider([])) as served, served.phone() as phone:
        event_id = phone.say("  ")
        error = await phone.until("error")
        assert error["payload"]["eventId"] == event_id


async def test_bad_input_before_any_session_gets_an_error() -> None:
    async with serving(ScriptedProvider([])) as served:
        phone = served.phone()
        await phone.open(start=False)
        phone.socket.write(b"nonsense")
        error = await phone.until("error")
        assert error["payload"]["code"] == "invalid_event"
        phone.start()
        await phone.until("session.started")
        await phone.close()


async def test_an_unknown_type_is_ignored() -> None:
    provider = ScriptedProvider(lambda _: [TextDelta("Fine.")])
    async with serving(provider) as served, served.phone() as phone:
        phone.send("app.telemetry", {"battery": 0.5})
        await phone.ask("hi")
        assert phone.errors() == []


async def test_a_no_counts_however_long_its_words_are(claude: AnthropicService, tmp_path: Path) -> None:
    claude.replies += [Reply(calls=(call("move_file"),)), Reply(text="Very well.")]
    async with configured(claude, tmp_path) as server, server.phone() as phone:
        await begin(phone, "approval")
        await ask_deciding(phone, "move it", "deny", message="no " * 700)
        assert phone.errors() == []
    (result,) = results_of(claude.requests[-1])
    assert result["error_type"] == "permission_denied" and result["error_message"].count("no ") in (666, 667)
