"""Half sentences and hints over a socket: what an app asks for, and what the model reads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.app import App
from tests.models import AnthropicService, Reply
from tests.pictures import on_the_wire, png
from tests.serving import provider_for, serving
from tests.shapes import arguments_of

LAMP = {
    "name": "lamp.switch",
    "title": "Switch a lamp",
    "inputSchema": {"type": "object", "properties": {"room": {"enum": ["hall", "kitchen"]}}},
}


@asynccontextmanager
async def app(claude: AnthropicService, **start_fields: Any) -> AsyncIterator[App]:
    claude.default = Reply(text="Noted.")
    async with serving(provider_for(claude)) as served:
        fields = {"capabilities": ["resume", "turns", "tools", "hints"], "tools": [LAMP], **start_fields}
        async with served.phone(start_fields=fields) as phone:
            yield phone


async def test_two_halves_are_one_message_of_the_model(claude: AnthropicService) -> None:
    async with app(claude, holdUnfinishedMs=10_000) as phone:
        first = phone.say("Remind me to buy milk and")
        hint = await phone.until("turn.hint")
        assert hint["payload"] == {"complete": False}
        await phone.until(lambda event: first in event["payload"].get("eventIds", ()))
        assert not claude.requests
        second = phone.say("eggs")
        ends = [await phone.until("turn.ended", eventId=event_id) for event_id in (first, second)]
        assert {end["payload"]["reason"] for end in ends} == {"answered"}
        (message,) = [arguments_of(event)["text"] for event in phone.events("append user")]
        assert message == "Remind me to buy milk and eggs"
        (request,) = claude.requests
        assert message in json.dumps(request["messages"])


async def test_words_soon_after_others_are_one_message_of_the_model(claude: AnthropicService) -> None:
    async with app(claude, holdUnfinishedMs=10_000) as phone:
        claude.play(Reply(text="To which one?", hold=asyncio.Event(), hold_at=1))
        first = phone.say("Take me to the quiet")
        await phone.until("assistant.speech.partial")
        second = phone.say("car park with a lift")
        ends = [await phone.until("turn.ended", eventId=event_id) for event_id in (first, second)]
        assert {end["payload"]["reason"] for end in ends} == {"answered"}
        assert phone.finals() == ["Noted."] and len(phone.events("tts.speak")) == 1
        messages = json.dumps(claude.requests[-1]["messages"])
        assert "Take me to the quiet car park with a lift" in messages and "To which" not in messages


async def test_a_picture_is_seen_in_the_next_turn_though_its_words_come_in_two_transcripts(
    claude: AnthropicService,
) -> None:
    capabilities = ["resume", "turns", "hints", "images"]
    async with app(claude, capabilities=capabilities, holdUnfinishedMs=10_000) as phone:
        phone.say("what is this?", images=[on_the_wire(png())])
        await phone.until("turn.ended")
        claude.play(Reply(text="To which one?", hold=asyncio.Event(), hold_at=1))
        since = len(phone.log)
        phone.say("Take me to the quiet")
        await phone.until("assistant.speech.partial", since=since)
        last = phone.say("car park with a lift")
        await phone.until("turn.ended", eventId=last)
    assert '"type": "image"' in json.dumps(claude.requests[-1]["messages"])


async def test_an_app_that_asks_for_no_wait_gets_none(claude: AnthropicService) -> None:
    async with app(claude) as phone:
        phone.say("Remind me to buy milk and")
        await phone.until("turn.ended")
        assert not phone.events("turn.hint") and len(claude.requests) == 1


async def test_a_wait_of_another_kind_is_refused(claude: AnthropicService) -> None:
    async with app(claude) as phone:
        for wrong in (-1, 10_001, "soon", 1.5):
            since = len(phone.log)
            phone.send("session.start", {"capabilities": ["hints"], "holdUnfinishedMs": wrong})
            error = await phone.until("error", since=since)
            assert error["payload"]["code"] == "invalid_event"


async def test_the_words_of_the_tools_follow_the_start_and_each_change(claude: AnthropicService) -> None:
    async with app(claude) as phone:
        hints = await phone.until("stt.hints")
        assert hints["payload"]["phrases"] == ["Switch a lamp", "hall", "kitchen"]
        since = len(phone.log)
        phone.send("session.update", {"tools": [{**LAMP, "title": "Light"}]})
        hints = await phone.until("stt.hints", since=since)
        assert hints["payload"]["phrases"] == ["Light", "hall", "kitchen"]
