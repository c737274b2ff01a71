"""A device's result that cannot be read: its call ends at once, and the model learns that it ran."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.app import App
from tests.dialogues import SAVE, call, talking
from tests.models import AnthropicService, Reply

UNREADABLE = {
    "NaN": b'{"saved":NaN}',
    "half a surrogate": b'"saved \\ud83d"',
    "invalid UTF-8": b'"saved \xff"',
    "6,000 values": b"[" + b"1," * 6_000 + b"1]",
    "many levels": b"[" * 40_000 + b"]" * 40_000,
}


def report(phone: App, call_id: str, result: bytes) -> None:
    event = {
        "id": "report-1",
        "type": "tool.result",
        "timestamp": "2026-03-01T12:00:00.000Z",
        "sessionId": phone.session_id,
        "protocolVersion": 1,
        "payload": {"callId": call_id, "result": "RESULT", "error": None},
    }
    assert phone.link is not None
    phone.link.write(json.dumps(event).encode().replace(b'"RESULT"', result))


async def after(claude: AnthropicService, result: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Report a result; gives what the model reads of it, and the events of the app."""
    claude.replies += [Reply(calls=(call("save_note"),)), Reply(text="Saved.")]
    async with talking(claude, "resume", "diagnostics", tools=[SAVE]) as phone:
        phone.say("save it")
        event = await phone.until("save_note")
        report(phone, event["payload"]["callId"], result)
        await phone.until("assistant.speech.final")
        await phone.until(lambda event: "report-1" in event["payload"].get("eventIds", ()))
        (content,) = [
            block["content"]
            for message in claude.requests[-1]["messages"]
            if not isinstance(message["content"], str)
            for block in message["content"]
            if block["type"] == "tool_result"
        ]
        text = content if isinstance(content, str) else content[0]["text"]
        return json.loads(text), phone.log


@pytest.mark.parametrize("result", UNREADABLE.values(), ids=UNREADABLE)
async def test_a_result_that_cannot_be_read_ends_its_call_as_one_that_ran(
    claude: AnthropicService, result: bytes
) -> None:
    read, log = await after(claude, result)
    assert (read["success"], read["error_type"]) == (True, "none")
    assert read["metadata"]["notes"][0].startswith("The call ran; its result could not be read (it ")
    (told,) = [event["payload"] for event in log if event["type"] == "diagnostic"]
    assert (told["code"], told["eventId"]) == ("unreadable_result", "report-1")
    assert [event for event in log if event["type"] == "error"] == []


async def test_the_model_reads_each_digit_of_a_large_integer(claude: AnthropicService) -> None:
    read, _ = await after(claude, b'{"id":9223372036854775807}')
    assert read["data"] == '{"id":9223372036854775807}'
