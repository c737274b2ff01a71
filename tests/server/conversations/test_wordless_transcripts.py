"""A transcript without a word is a noise: it starts no turn, cuts nothing, and answers no question."""

from __future__ import annotations

import asyncio

import pytest

from conductor.models.base import TextDelta
from tests.dialogues import DEVICE, call, talking
from tests.models import AnthropicService, Reply, ScriptedProvider
from tests.serving import serving

NOISES = [
    ".",
    "…",
    "?!",
    "♪",
    "♪♪ ♪",
    "(music)",
    "[BLANK_AUDIO]",
    "[Music] (applause).",
    "*sighs*",
    "（笑）",
    "👍",
    "[(door)]",
]
WORDS = ["2", "é", "はい", "ठीक", "I'd go (now)", "(now) go", "(unclosed", "A*"]


@pytest.mark.parametrize("noise", NOISES)
async def test_a_noise_leaves_the_running_reply_as_it_is(claude: AnthropicService, noise: str) -> None:
    held = asyncio.Event()
    claude.replies += [Reply(text="One two three.", hold=held, hold_at=1)]
    async with talking(claude, "turns") as phone:
        transcript = phone.say("count")
        await phone.until("assistant.speech.partial")
        refused = phone.say(noise)
        error = (await phone.until("error"))["payload"]
        assert (error["code"], error["eventId"]) == ("invalid_transcript", refused)
        held.set()
        end = await phone.until("turn.ended")
        assert (end["payload"]["eventId"], end["payload"]["reason"]) == (transcript, "answered")
        assert phone.finals() == ["One two three."]
    assert len(claude.requests) == 1


async def test_a_noise_reopens_the_microphone_and_counts_as_no_turn() -> None:
    provider = ScriptedProvider(lambda _: [TextDelta("Fine.")])
    async with serving(provider, turns_per_minute=1.0) as served, served.phone() as phone:
        for noise in NOISES[:4]:
            since = len(phone.log)
            phone.say(noise)
            await phone.until("state idle", since=since)
        await phone.ask("and now?")
        assert {error["code"] for error in phone.errors()} == {"invalid_transcript"}
    assert len(provider.requests) == 1


@pytest.mark.parametrize("words", WORDS)
async def test_words_start_a_turn_in_every_script(words: str) -> None:
    provider = ScriptedProvider(lambda _: [TextDelta("Fine.")])
    async with serving(provider) as served, served.phone() as phone:
        await phone.ask(words)
        assert phone.finals() == ["Fine."] and phone.errors() == []


async def test_noises_neither_answer_a_question_nor_use_up_its_tries(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(call("move_file"),)), Reply(text="It is moved.")]
    async with talking(claude, device=DEVICE) as phone:
        since = len(phone.log)
        phone.say("move it")
        await phone.until("tts.speak", since=since)
        await phone.until("state idle", since=since)
        for _ in range(4):
            since = len(phone.log)
            phone.say("♪")
            await phone.until("error", since=since)
            await phone.until("state idle", since=since)
        phone.say("yes")
        await phone.until("assistant.speech.final")
        assert phone.finals() == ["It is moved."]
        assert len(phone.speeches()) == 2, "the question was spoken once"
