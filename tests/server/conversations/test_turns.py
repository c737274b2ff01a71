"""The capability ``turns``: each accepted transcript gets one ``turn.ended``."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.dialogues import DEVICE, call, talking
from tests.models import AnthropicService, Reply
from tests.serving import provider_for, serving
from tests.shapes import shape_of

START = {"capabilities": ["resume", "turns"]}


def ends(log: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Give the transcript and the reason of each ``turn.ended``."""
    payloads = [event["payload"] for event in log if event["type"] == "turn.ended"]
    return [(payload["eventId"], payload["reason"]) for payload in payloads]


async def test_the_end_follows_the_last_idle_of_the_turn(claude: AnthropicService) -> None:
    claude.replies += [Reply(text="Hello.")]
    async with talking(claude, "turns") as phone:
        transcript = phone.say("hello")
        await phone.until("turn.ended")
        assert [shape_of(event) for event in phone.log[-2:]] == ["state idle", "turn.ended"]
        assert ends(phone.log) == [(transcript, "answered")]
        assert phone.log[-1]["payload"]["turnId"].startswith("turn_")


async def test_an_answer_by_voice_ends_with_the_turn_that_asked(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(call("move_file"),)), Reply(text="It is moved.")]
    async with talking(claude, "turns", device=DEVICE) as phone:
        since = len(phone.log)
        first = phone.say("move it")
        await phone.until("tts.speak", since=since)
        await phone.until("state idle", since=since)
        assert ends(phone.log) == []  # this idle is for the answer
        second = phone.say("yes")
        await phone.until("turn.ended", eventId=second)
        assert phone.finals() == ["It is moved."]
        assert ends(phone.log) == [(first, "answered"), (second, "answered")]
        assert len({event["payload"]["turnId"] for event in phone.events("turn.ended")}) == 1


async def test_a_transcript_that_a_later_one_replaces_ends_as_interrupted(claude: AnthropicService) -> None:
    claude.replies += [Reply(text="One two three.", hold=asyncio.Event(), hold_at=1), Reply(text="Four.")]
    async with talking(claude, "turns") as phone:
        first = phone.say("count")
        await phone.until("assistant.speech.partial")
        second = phone.say("go on")
        await phone.until("turn.ended", eventId=second)
        assert ends(phone.log) == [(first, "interrupted"), (second, "answered")]


async def test_a_refused_transcript_has_an_error_and_no_end(claude: AnthropicService) -> None:
    async with talking(claude, "turns") as phone:
        transcript = phone.say("  ")
        error = await phone.until("error")
        assert error["payload"]["eventId"] == transcript
        await phone.idle()
        assert ends(phone.log) == []


async def test_a_turn_that_ends_without_a_connection_is_reported_after_the_resume(
    claude: AnthropicService,
) -> None:
    claude.replies += [Reply(text="Hello."), Reply(text="Again.")]
    async with serving(provider_for(claude)) as served, served.phone(start_fields=START) as phone:
        transcript = phone.say("hello")
        await phone.until("event.ack")
        await phone.cut()
        await served.quiet()
        await phone.open()
        await phone.until("turn.ended")
        assert ends(phone.log) == [(transcript, "answered")]
        await phone.until("state idle", since=phone.events("turn.ended")[0])
        await phone.cut()
        await phone.open()
        await phone.ask("again")
        assert len(ends(phone.log)) == 2 and not any(ends(phone.repeated))
