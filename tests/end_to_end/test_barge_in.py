"""Interruptions: the turn stops, and the model learns which words were heard."""

from __future__ import annotations

import asyncio
import random

import pytest

from conductor.conversation.phrases import FAILURES
from conductor.conversation.speech import CUT_BEFORE_SPEECH, CUT_HERE, CUT_SOMEWHERE, HEARD_NOTHING
from tests.end_to_end.conftest import provider_for, serving
from tests.end_to_end.dialogues import last_text, results_of
from tests.models import AnthropicService, Call, Reply
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


async def test_in_queue_mode_a_transcript_waits_for_the_answer(claude: AnthropicService) -> None:
    going_on = asyncio.Event()
    claude.replies += [Reply(text="The first answer.", hold=going_on, hold_at=1), Reply(text="The second.")]
    async with serving(provider_for(claude), mode="queue") as served, served.phone() as phone:
        since = len(phone.log)
        phone.say("first")
        await phone.until("assistant.speech.partial")
        phone.say("second")
        going_on.set()
        await phone.until("state idle", since=since)
        assert phone.finals() == ["The first answer.", "The second."]
        assert phone.shapes(since) == PLAIN_TURN[:-1] + PLAIN_TURN


async def test_too_many_transcripts_are_refused_and_the_rest_is_answered(claude: AnthropicService) -> None:
    going_on = asyncio.Event()
    claude.replies += [Reply(text="0", hold=going_on)]
    async with serving(provider_for(claude), mode="queue") as served, served.phone() as phone:
        for number in range(5):
            phone.say(f"question {number}")
        await phone.until("error")
        going_on.set()
        await phone.until(lambda e: e["payload"].get("text") == FAILURES["rate_limited"])
        assert [e["code"] for e in phone.errors()] == ["rate_limited"]
        assert len(phone.finals()) == 5


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


async def test_an_interruption_just_after_the_acknowledgement_still_counts(claude: AnthropicService) -> None:
    claude.replies += [Reply(text="It rains."), Reply(text="Fine.")]
    async with serving(provider_for(claude), heard_window=30.0) as served, served.phone() as phone:
        await phone.ask("weather?")
        phone.interrupt(spokenText="It")
        await phone.ask("thanks")
    assert assistant_texts(claude.requests[-1]) == [f"It {CUT_HERE}"]


async def test_an_interruption_long_after_the_speech_changes_nothing(claude: AnthropicService) -> None:
    claude.replies += [Reply(text="It rains."), Reply(text="Fine.")]
    async with serving(provider_for(claude), heard_window=-1.0) as served, served.phone() as phone:
        await phone.ask("weather?")
        phone.interrupt(spokenText="It")
        await phone.ask("thanks")
    assert assistant_texts(claude.requests[-1]) == ["It rains."]


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


async def test_results_that_came_are_kept_and_the_others_are_told_honestly(claude: AnthropicService) -> None:
    claude.replies += [
        Reply(
            calls=(
                Call("agent_status", {"id": "a-1"}),
                Call("agent_status", {"id": "a-2"}),
                Call("agent_cancel", {"id": "a-3"}),
            )
        ),
        Reply(text="Very well."),
    ]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        phone.say("look at these")
        first = await phone.until("agent.status")
        await phone.until("agent.cancel")
        phone.result(first["payload"]["callId"], "runs")
        since = len(phone.log)
        phone.say("never mind")
        await phone.idle(since=since)
    request = claude.requests[-1]
    kinds = [(result["error_type"], result["data"]) for result in results_of(request)]
    assert kinds == [("none", "runs"), ("cancelled", None), ("unknown", None)]
    assert last_text(request).endswith("never mind")


async def test_the_model_learns_of_a_write_whose_confirmation_was_not_heard(claude: AnthropicService) -> None:
    claude.replies += [
        Reply(calls=(Call("agent_cancel", {"id": "a-3"}),)),
        Reply(text="I have cancelled it."),
        Reply(text="Yes."),
    ]
    async with serving(provider_for(claude)) as served:
        phone = served.phone(
            acknowledge=lambda name: name != "tts.speak", tools={"agent.cancel": lambda a: "gone"}
        )
        async with phone:
            await phone.ask("cancel a-3")
            phone.interrupt(playedMs=0)
            phone.say("is it done?")
            await phone.until("assistant.speech.final", text="Yes.")
    text = assistant_texts(claude.requests[-1])[-1]
    assert HEARD_NOTHING in text
    assert "agent.cancel" in text


async def test_two_hundred_interruptions_at_seeded_points_leave_every_request_valid(
    claude: AnthropicService,
) -> None:
    seed = 20_260_301
    print("seed", seed)  # noqa: T201 -- to repeat the run
    chance = random.Random(seed)

    def reply(request: dict) -> Reply:  # type: ignore[type-arg]  # JSON
        if chance.random() < 0.5 and results_so_far(request) < 3:
            names = chance.choices(["agent_status", "agent_cancel", "calculator", "nonsense"], k=2)
            calls = tuple(Call(name, {"id": "a", "expression": "1+1"}) for name in names)
            return Reply(text=chance.choice(["", "Let me look."]), calls=calls, delay_s=0.0005)
        return Reply(text="word " * chance.randint(1, 20), delay_s=0.0005)

    def results_so_far(request: dict) -> int:  # type: ignore[type-arg]  # JSON
        count = 0
        for message in reversed(request["messages"]):
            if message["role"] == "user" and isinstance(message["content"], str):
                break
            count += message["role"] == "assistant"
        return count

    claude.default = reply
    tools = {
        "agent.status": lambda a: "runs" if chance.random() < 0.7 else None,
        "agent.cancel": lambda a: "gone" if chance.random() < 0.7 else None,
    }
    async with serving(provider_for(claude), tool_timeout=0.03, ui_timeout=0.02, frames_burst=1e6) as served:
        async with served.phone(tools=tools) as phone:
            for number in range(200):
                since = len(phone.log)
                phone.say(f"question {number}")
                for _ in range(chance.randint(0, 60)):
                    await asyncio.sleep(0)
                if chance.random() < 0.5:
                    phone.interrupt()
                    await phone.idle(since=since)
            await phone.ask("the last one")
            await served.quiet()
            (session,) = served.listener.registry.sessions
            assert not session.busy
            users = [m for m in session.state.log if type(m).__name__ == "UserMessage"]
            assert users[-1].text == "the last one"  # type: ignore[union-attr]
