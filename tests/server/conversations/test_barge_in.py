"""Interruptions: the turn stops, and the model learns which words were heard."""

from __future__ import annotations

import asyncio

import pytest

from conductor.conversation.phrases import CUT_BEFORE_SPEECH, CUT_HERE, CUT_SOMEWHERE, HEARD_NOTHING
from tests.dialogues import last_text
from tests.models import AnthropicService, Reply
from tests.serving import provider_for, serving
from tests.shapes import PLAIN_TURN


def assistant_texts(request: dict) -> list[str]:  # type: ignore[type-arg]  # JSON
    """Read the assistant's texts of a request."""
    texts = []
    for message in request["messages"]:
        if message["role"] == "assistant":
            content = message["content"]
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            texts += [block["text"] for block in blocks if block["type"] == "text"]
    return texts


async def test_a_new_transcript_stops_the_answer_and_is_answered_itself(claude: AnthropicService) -> None:
    claude.replies += [
        Reply(text="Once upon a time there was", hold=asyncio.Event(), hold_at=3),
        Reply(text="All right."),
    ]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        phone.say("tell me a story")
        await phone.until("assistant.speech.partial")
        since = len(phone.log)
        phone.say("stop, something else")
        await phone.idle(since=since)
        assert phone.shapes(since) == PLAIN_TURN  # no idle between the two, nothing of the old answer
        assert phone.finals() == ["All right."]
        await claude.wait_disconnects(1)
    (text,) = assistant_texts(claude.requests[-1])
    assert text.startswith("Once upon")
    assert text.endswith(CUT_BEFORE_SPEECH)
    assert last_text(claude.requests[-1]).endswith("stop, something else")


async def test_an_interruption_during_the_answer_ends_in_idle_and_nothing_more(
    claude: AnthropicService,
) -> None:
    claude.replies += [Reply(text="One two three four", hold=asyncio.Event(), hold_at=2), Reply(text="Yes?")]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        phone.say("count")
        await phone.until("assistant.speech.partial")
        since = len(phone.log)
        phone.interrupt()
        await phone.idle(since=since)
        await claude.wait_disconnects(1)
        assert phone.shapes(since) == ["state idle"]
        events = await phone.ask("hello?")
        assert phone.finals() == ["Yes?"]
        assert all("One" not in str(event["payload"]) for event in events)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"spokenText": "The capital of"}, f"The capital of {CUT_HERE}"),
        ({"playedMs": 1000}, f"The capital of {CUT_HERE}"),
        ({"playedMs": 0}, HEARD_NOTHING),
        ({}, f"The capital of France is Paris. {CUT_SOMEWHERE}"),
    ],
)
async def test_the_history_holds_the_words_that_were_heard(
    claude: AnthropicService, fields: dict[str, object], expected: str
) -> None:
    claude.replies += [Reply(text="The capital of France is Paris."), Reply(text="Fine.")]
    async with serving(provider_for(claude)) as served:
        async with served.phone(acknowledge=lambda name: name != "tts.speak") as phone:
            await phone.ask("what is the capital of France?")
            phone.interrupt(**fields)
            phone.say("thanks")
            await phone.until("assistant.speech.final", text="Fine.")
    assert assistant_texts(claude.requests[-1]) == [expected]


@pytest.mark.parametrize(("window", "expected"), [(30.0, f"It {CUT_HERE}"), (-1.0, "It rains.")])
async def test_an_interruption_counts_just_after_the_acknowledgement_and_not_long_after(
    claude: AnthropicService, window: float, expected: str
) -> None:
    claude.replies += [Reply(text="It rains."), Reply(text="Fine.")]
    async with serving(provider_for(claude), heard_window=window) as served, served.phone() as phone:
        await phone.ask("weather?")
        phone.interrupt(spokenText="It")
        await phone.ask("thanks")
    assert assistant_texts(claude.requests[-1]) == [expected]


async def test_a_repeated_interruption_is_processed_once(claude: AnthropicService) -> None:
    claude.replies += [Reply(text="One."), Reply(text="Two", hold=asyncio.Event())]
    async with serving(provider_for(claude)) as served:
        async with served.phone(acknowledge=lambda name: name != "tts.speak") as phone:
            await phone.ask("first")
            phone.say("second")
            await claude.wait_open(1)
            payload = {"reason": "user"}
            for _ in range(2):  # the second would stop the running turn
                phone.send("audio.output.interrupted", payload, id="interruption-1")
            phone.send("user.audio.transcript.partial", {"text": "…"})
            with pytest.raises(TimeoutError):
                await claude.wait_disconnects(1, 0.1)
