"""The sequences of the protocol's pages, played against a server."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from protocol_reference import markdown

from conductor.messages import ToolCall
from conductor.models.base import TextDelta
from tests.app import App
from tests.conftest import ROOT
from tests.models import Script, ScriptedProvider
from tests.serving import serving

GUIDE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
SEQUENCES: list[str] = re.findall(r"```text\n(> .*?)\n```", GUIDE + markdown(), re.DOTALL)
START = json.loads(re.findall(r"```json\n(.*?)\n```", GUIDE, re.DOTALL)[0])["payload"]
LOST = "# The connection is lost"


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall("", name, json.dumps(arguments))


FOREVER = 60.0
REPLIES: Mapping[str, list[Script]] = {
    "Are the lamps on in the hall and the kitchen?": [
        [
            TextDelta("Let me look."),
            call("lamp.status", room="hall"),
            call("lamp.status", room="kitchen"),
        ],
        [TextDelta("Only in the kitchen.")],
    ],
    "What is seventeen percent of 2340?": [[TextDelta("It is **39"), 0.01, TextDelta("7.8**.")]],
    "What is half of 795.6?": [
        [TextDelta("It is 397.8, which is about four hundred.")],
        [TextDelta("You are welcome.")],
    ],
    "Tell me a story.": [
        [TextDelta("Once upon a time"), FOREVER],
        [TextDelta("A hen laid an egg.")],
    ],
    "Delete my note about milk.": [
        [call("note.delete", title="Milk")],
        [TextDelta("The note is gone.")],
    ],
    "Light in the hall.": [
        [call("lamp.switch", room="hall")],
        [TextDelta("The light is on.")],
    ],
    "Tell me about owls.": [[TextDelta("Owls hunt at night. They hear well.")]],
    "Is the hall lit?": [[call("lamp.status", room="hall")], [TextDelta("No, it is dark.")]],
}
"""What a person says first -> the model's replies."""


@dataclass
class Player:
    """Sends the app's events of a sequence, and compares the server's events with the page.

    ``real``: id on the page -> id on the wire.
    """

    phone: App
    lines: list[str]
    position: int = 0
    real: dict[str, str] = field(default_factory=dict)

    async def play(self) -> None:
        for line in self.lines:
            if line.startswith(LOST):
                await self.phone.cut()
                self.position = len(self.phone.log)
                await self.phone.open(start=False)
            elif line.startswith("> "):
                await self.send(*line[2:].split(" ", 1))
            elif line.startswith("< "):
                await self.expect(*line[2:].split(" ", 1))

    async def send(self, event_type: str, fields: str) -> None:
        if event_type == "tool.result":
            call_id, result = fields.split(" ", 1)
            payload: Any = {"callId": call_id, "result": json.loads(result)}
        else:
            payload = json.loads(fields)
        for example, real in self.real.items():
            payload = json.loads(json.dumps(payload).replace(f'"{example}"', f'"{real}"'))
        self.real["app_1"] = self.phone.send(event_type, payload)

    async def expect(self, event_type: str, fields: str) -> None:
        """Wait for the next event of a type that is written down anywhere in the sequence."""
        example: Any
        if event_type == "tool.call":
            call_id, name, arguments = fields.split(" ", 2)
            example = {"callId": call_id, "name": name, "arguments": json.loads(arguments)}
        else:
            example = json.loads(fields)
        kinds = {line.split(" ")[1] for line in self.lines if line.startswith("< ")}
        event = await self.phone.until(lambda event: event["type"] in kinds, since=self.position)
        self.position = self.phone.log.index(event) + 1
        payload = dict(event["payload"])
        if event_type == "tool.call":
            payload["arguments"] = json.loads(payload.get("arguments", "null"))
        assert (event["type"], self.with_written_ids(payload, example)) == (event_type, example)

    def with_written_ids(self, payload: Any, example: Any) -> Any:
        """Put written ids, and times, in the place of those on the wire; the same one each time."""
        if isinstance(payload, dict) and isinstance(example, dict):
            return {name: self.with_written_ids(value, example.get(name)) for name, value in payload.items()}
        if isinstance(example, str) and re.fullmatch(r"(call|appr|batch|app|speech)_\d+", example):
            return example if self.real.setdefault(example, payload) == payload else payload
        if isinstance(example, str) and re.fullmatch(r"2026-03-01T[\d:.]+Z", example):
            return example
        return payload


@pytest.mark.parametrize("sequence", SEQUENCES, ids=lambda text: re.findall(r'"text":"(.*?)"', text)[0])
async def test_the_server_follows_each_sequence_of_the_reference(sequence: str) -> None:
    lines = sequence.split("\n")
    assert all(re.match(r"[<>] [\w.]+ \S|# ", line) for line in lines)
    transcripts = re.findall(r'user\.audio\.transcript\.final {"text":"(.*?)"}', sequence)
    provider = ScriptedProvider(REPLIES[transcripts[0]])
    starts = lines[0].startswith("> session.start ")
    async with serving(provider, partial_interval=0.0) as served:
        phone = served.phone(acknowledge=lambda name: name != "tts.speak")
        if not starts:
            phone.start_fields = START
        await phone.open(start=not starts)
        await Player(phone, lines, len(phone.log)).play()
        await phone.close()


def test_every_sequence_has_a_script_and_every_script_a_sequence() -> None:
    assert len(SEQUENCES) == len(REPLIES)
