"""A speech that the app has paused: the next words let it go on, or cut it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from conductor.conversation.heard import CUT_HERE
from conductor.messages import ToolCall
from conductor.models.base import TextDelta
from tests.app import App
from tests.dialogues import DEVICE, TOOLS, begin, call
from tests.hasty import SHORT_S, hasten
from tests.models import AnthropicService, Reply, Script
from tests.server.nodes import Node, Shelf, node
from tests.serving import provider_for, serving
from tests.shapes import arguments_of

LONG = "The table is for four, at eight. It is by the window."
SPOKEN = '{"spoken":true}'


@asynccontextmanager
async def app(claude: AnthropicService, *capabilities: str, **limits: Any) -> AsyncIterator[App]:
    """Run a server, and an app that can pause and plays each speech until the test ends it."""
    tools = {**DEVICE, "tts.speak": lambda arguments: None}
    limits = {"pause_timeout": 60.0, "heard_window": 0.0, **limits}
    async with serving(provider_for(claude), **limits) as served, served.phone(tools=tools) as phone:
        await begin(phone, "pause", "resume", "turns", *capabilities, tools=TOOLS)
        yield phone


async def speech(phone: App, words: str = "book a table") -> str:
    """Say something, and return the call of the speech of the reply, once the turn is over."""
    since = len(phone.log)
    phone.say(words)
    spoken = await phone.until("tts.speak", since=since)
    await phone.until("turn.ended", since=since)
    return str(spoken["payload"]["callId"])


async def paused(phone: App, speech_id: str, **heard: Any) -> int:
    """Pause a speech; returns the place in the log once the server knows."""
    since = len(phone.log)
    event_id = phone.pause(speechId=speech_id, **heard)
    await phone.until(lambda event: event_id in event["payload"].get("eventIds", ()), since=since)
    return len(phone.log)


def heard_by_model(claude: AnthropicService) -> str:
    return json.dumps(claude.requests[-1]["messages"], ensure_ascii=False)


# -- what decides


@pytest.mark.parametrize("words", ["Mhm.", "okay, right", "Yeah yeah", "uh-huh"])
async def test_a_backchannel_lets_the_speech_go_on_and_changes_nothing(
    claude: AnthropicService, words: str
) -> None:
    claude.replies += [Reply(text=LONG), Reply(text="At nine.")]
    async with app(claude) as phone:
        speech_id = await speech(phone)
        since = await paused(phone, speech_id, spokenText="The table is")
        event_id = phone.say(words)
        resume = await phone.until("audio.output.resume", since=since)
        assert resume["payload"] == {"speechId": speech_id}
        end = await phone.until("turn.ended", since=since)
        assert (end["payload"]["eventId"], end["payload"]["reason"]) == (event_id, "resumed")
        shown = [shape for shape in phone.shapes(since) if shape != "event.ack"]
        assert shown == ["audio.output.resume", "state idle", "turn.ended"]
        phone.result(speech_id, SPOKEN)
        await speech(phone, "and then?")
    assert LONG in heard_by_model(claude) and words not in heard_by_model(claude)


@pytest.mark.parametrize("heard", [{"spokenText": "The table is"}, {"playedMs": 900}], ids=str)
async def test_other_words_cut_the_speech_to_what_the_pause_told(
    claude: AnthropicService, heard: dict[str, Any]
) -> None:
    claude.replies += [Reply(text=LONG), Reply(text="At nine.")]
    async with app(claude) as phone:
        speech_id = await speech(phone)
        since = await paused(phone, speech_id, **heard)
        phone.say("no, for six people")
        await phone.until("tts.speak", since=since)
        assert phone.events("audio.output.resume") == []
    assert f"The table is {CUT_HERE}" in heard_by_model(claude)


async def test_the_speech_goes_on_without_a_transcript(claude: AnthropicService) -> None:
    claude.replies += [Reply(text=LONG)]
    async with app(claude, pause_timeout=0.2) as phone:
        speech_id = await speech(phone)
        since = await paused(phone, speech_id)
        await phone.until("audio.output.resume", since=since, speechId=speech_id)
        await phone.until("state idle", since=since)


@pytest.mark.parametrize("noise", [".", "…", "♪", "(music)", "[BLANK_AUDIO]"])
async def test_a_noise_lets_the_speech_go_on_at_once(claude: AnthropicService, noise: str) -> None:
    claude.replies += [Reply(text="Shall I book the table?")]
    async with app(claude) as phone:
        speech_id = await speech(phone)
        since = await paused(phone, speech_id)
        phone.say(noise)
        await phone.until("audio.output.resume", since=since)
        await phone.until("state idle", since=since)
        shown = [shape for shape in phone.shapes(since) if shape != "event.ack"]
        assert shown == ["error", "audio.output.resume", "state idle"]
    assert len(claude.requests) == 1


async def test_a_speech_can_be_paused_many_times(claude: AnthropicService) -> None:
    claude.replies += [Reply(text=LONG), Reply(text="At nine.")]
    async with app(claude) as phone:
        speech_id = await speech(phone)
        for heard in ("The", "The table", "The table is"):
            since = await paused(phone, speech_id, spokenText=heard)
            phone.say("mhm")
            await phone.until("audio.output.resume", since=since)
        since = await paused(phone, speech_id, spokenText="The table is for four")
        phone.say("for six")
        await phone.until("tts.speak", since=since)
    assert f"The table is for four {CUT_HERE}" in heard_by_model(claude)


async def test_an_app_that_answers_nothing_while_its_voice_is_paused_may_be_speaking_still(
    claude: AnthropicService,
) -> None:
    claude.replies += [Reply(text=LONG)]
    tools = dict.fromkeys(("convo.setState", "convo.appendMessage", "tts.speak"), lambda _: None)
    async with serving(provider_for(claude)) as served, served.phone(tools=tools) as phone:
        await begin(phone, "pause", "resume", "turns", tools=TOOLS)
        speech_id = await speech(phone)
        for _ in range(2):
            since = await paused(phone, speech_id, spokenText="The table")
            event_id = phone.say("mhm")
            await phone.until("turn.ended", since=since, eventId=event_id, reason="resumed")


# -- questions


async def test_a_yes_to_a_reply_that_asks_is_an_answer(claude: AnthropicService) -> None:
    claude.replies += [Reply(text="There is one at eight. Shall I book it?"), Reply(text="It is booked.")]
    async with app(claude) as phone:
        speech_id = await speech(phone)
        since = await paused(phone, speech_id, spokenText="There is one")
        phone.say("yes")
        await phone.until("assistant.speech.final", since=since, text="It is booked.")
        assert phone.events("audio.output.resume") == []
    assert '"yes"' in heard_by_model(claude)


async def test_a_yes_to_a_visible_card_counts_over_a_speech(claude: AnthropicService) -> None:
    claude.replies += [Reply(text="I will move the file.", calls=(call("move_file"),)), Reply(text="Moved.")]
    async with app(claude, "approval", "segments") as phone:
        phone.say("move it")
        card = await phone.until("approval.request")
        phone.send("approval.shown", {"approvalId": card["payload"]["approvalId"]})
        (spoken,) = phone.events("tts.speak")
        since = await paused(phone, spoken["payload"]["callId"], spokenText="I will")
        phone.say("yes")
        await phone.until("approval.resolved", since=since, outcome="allowed")
        await phone.until("assistant.speech.final", since=since, text="Moved.")
        assert phone.runs == [("move_file", {"path": "a"})]
        assert phone.events("audio.output.resume") == []


@pytest.mark.parametrize("pauses", [True, False], ids=["over a speech", "in silence"])
@pytest.mark.parametrize("words", ["Mhm.", "okay", "hmm, let me think"])
async def test_a_card_stands_while_the_person_only_listens_or_thinks(
    claude: AnthropicService, words: str, pauses: bool
) -> None:
    claude.replies += [Reply(text="I will move the file.", calls=(call("move_file"),)), Reply(text="Moved.")]
    async with app(claude, "approval", "segments") as phone:
        phone.say("move it")
        card = await phone.until("approval.request")
        phone.send("approval.shown", {"approvalId": card["payload"]["approvalId"]})
        (spoken,) = phone.events("tts.speak")
        since = len(phone.log)
        if pauses:
            since = await paused(phone, spoken["payload"]["callId"], spokenText="I will")
        said = phone.say(words)
        await phone.until("append user", since=since)
        await phone.until("state idle", since=since)
        assert phone.events("approval.resolved") == phone.events("audio.output.resume") == []
        phone.decide_card(card, "allow")
        ended = await phone.until("turn.ended", since=since, eventId=said)
        assert phone.runs == [("move_file", {"path": "a"})] and ended["payload"]["reason"] == "answered"
        assert len(phone.finals()) == 2 and len(phone.events("approval.request")) == 1
    assert words not in heard_by_model(claude)


async def test_a_yes_over_a_spoken_question_has_it_asked_again_and_never_resumes_it(
    claude: AnthropicService,
) -> None:
    claude.replies += [Reply(calls=(call("move_file"),)), Reply(text="Moved.")]
    async with app(claude) as phone:
        phone.say("move it")
        question = await phone.until("tts.speak")
        since = await paused(phone, question["payload"]["callId"], spokenText="May I")
        phone.say("yes")
        again = await phone.until("tts.speak", since=since)
        phone.result(question["payload"]["callId"], SPOKEN)
        phone.result(again["payload"]["callId"], SPOKEN)
        phone.say("yes")
        await phone.until("assistant.speech.final", since=since, text="Moved.")
        assert phone.events("audio.output.resume") == []


# -- the turn goes on


async def test_the_turn_goes_on_and_its_speech_is_held(claude: AnthropicService) -> None:
    held = asyncio.Event()
    story = Reply(text="One is a long enough sentence. Two is another one. ", hold=held, hold_at=7)
    claude.replies += [story, Reply(text="Fine.")]
    async with app(claude, "segments") as phone:
        phone.say("tell me")
        first = await phone.until("tts.speak")
        since = await paused(phone, arguments_of(first)["speechId"], spokenText="One is")
        held.set()
        await phone.until("turn.ended", since=since)
        assert phone.speeches(since) == [] and "state speaking" not in phone.shapes(since)
        phone.say("mhm")
        resume = await phone.until("audio.output.resume", since=since)
        second = await phone.until("tts.speak", since=resume)
        assert resume["payload"]["speechId"] == arguments_of(first)["speechId"]
        assert arguments_of(second)["text"] == "Two is another one."


async def test_a_held_speech_is_dropped_by_words(claude: AnthropicService) -> None:
    held = asyncio.Event()
    story = Reply(text="One is a long enough sentence. Two is another one. ", hold=held, hold_at=7)
    claude.replies += [story, Reply(text="Fine.")]
    async with app(claude, "segments") as phone:
        phone.say("tell me")
        first = await phone.until("tts.speak")
        since = await paused(phone, arguments_of(first)["speechId"], spokenText="One is")
        held.set()
        await phone.until("turn.ended", since=since)
        phone.say("stop it")
        await phone.until("tts.speak", since=since)
        assert phone.speeches(since) == ["Fine."]
    assert f"One is {CUT_HERE}" in heard_by_model(claude)


async def test_a_device_call_passes_the_held_speech(claude: AnthropicService) -> None:
    held = asyncio.Event()
    looks = Reply(
        text="One is a long enough sentence. Two is another one. ",
        calls=(call("look"),),
        hold=held,
        hold_at=7,
    )
    claude.replies += [looks, Reply(text="I see it.")]
    async with app(claude, "segments") as phone:
        phone.say("look")
        first = await phone.until("tts.speak")
        since = await paused(phone, first["payload"]["callId"], spokenText="One is")
        held.set()
        await phone.until("look", since=since)
        assert phone.runs == [("look", {"path": "a"})]
        assert phone.speeches(since) == []
        phone.say("okay")
        await phone.until("assistant.speech.final", since=since, text="I see it.")
        assert phone.speeches(since) == ["Two is another one.", "I see it."]


# -- connections


async def test_a_pause_outlasts_a_lost_connection(claude: AnthropicService) -> None:
    claude.replies += [Reply(text=LONG), Reply(text="At nine.")]
    async with app(claude) as phone:
        speech_id = await speech(phone)
        await paused(phone, speech_id, spokenText="The table is")
        phone.start_fields["capabilities"] = ["pause", "resume", "turns"]
        await phone.cut()
        since = len(phone.log)
        await phone.open()
        phone.say("for six")
        await phone.until("tts.speak", since=since)
    assert f"The table is {CUT_HERE}" in heard_by_model(claude)


async def test_a_pause_that_was_lost_with_the_connection_is_made_good(claude: AnthropicService) -> None:
    claude.replies += [Reply(text=LONG), Reply(text="At nine.")]
    async with app(claude) as phone:
        speech_id = await speech(phone)
        phone.start_fields["capabilities"] = ["pause", "resume", "turns"]
        await phone.cut()
        phone.pause(speechId=speech_id, spokenText="The table is")
        event_id = phone.say("mhm")
        since = len(phone.log)
        await phone.open()
        await phone.until("audio.output.resume", since=since, speechId=speech_id)
        assert len(phone.events("turn.ended", since, eventId=event_id)) == 1


async def test_an_app_that_was_started_again_is_not_kept_waiting(claude: AnthropicService) -> None:
    claude.replies += [Reply(text=LONG)]
    async with app(claude, pause_timeout=SHORT_S) as phone:
        speech_id = await speech(phone)
        await paused(phone, speech_id)
        phone.start_fields["capabilities"] = ["pause", "resume", "turns"]
        await phone.cut()
        phone.relaunch()
        since = len(phone.log)
        await phone.open()
        hasten()
        await phone.until("audio.output.resume", since=since)
        assert await phone.until("tts.speak", since=since)


@asynccontextmanager
async def moving(shelf: Shelf, *replies: Script) -> AsyncIterator[tuple[App, Node, Node]]:
    """Run two servers with one store, and an app at the first."""
    async with node(shelf.make(), replies) as first, node(shelf.make(), [[TextDelta("Fine.")]]) as second:
        fields = {"capabilities": ["pause", "resume", "turns", "tools"], "tools": TOOLS}
        tools = {"tts.speak": lambda _: None, "look": lambda _: None}
        phone = App(first.url, tools=tools, start_fields=fields)
        await phone.open()
        try:
            yield phone, first, second
        finally:
            await phone.close()


async def move(phone: App, to: Node) -> None:
    await phone.cut()
    phone.url = to.url
    await phone.open()


async def test_the_end_of_a_turn_is_not_lost_if_the_end_of_a_pause_overtakes_it(shelf: Shelf) -> None:
    async with moving(shelf, [TextDelta(LONG)], [TextDelta("At nine.")]) as (phone, _, other):
        speech_id = await speech(phone)
        since, asked = len(phone.log), phone.say("when?")
        await phone.until("append assistant", since=since)  # its speech is held, and the turn's end behind it
        since = await paused(phone, speech_id)
        phone.say("mhm")
        await phone.until("audio.output.resume", since=since)
        await move(phone, other)
        await phone.until("turn.ended", eventId=asked)


async def test_a_text_is_not_lost_if_a_call_overtakes_it_in_a_pause(shelf: Shelf) -> None:
    go, add = asyncio.Event(), ToolCall("c-1", "calculator", '{"expression":"1 + 1"}')
    rounds: list[Script] = [[TextDelta(f"This is round {n}."), add] for n in range(3)]
    async with moving(shelf, *rounds, [go, ToolCall("c-2", "look", "{}")]) as (phone, first, other):
        phone.say("go")
        spoken = await phone.until("tts.speak")
        await phone.until("assistant.speech.final", text="This is round 1.")
        await first.provider.record(3).started.wait()
        since = await paused(phone, spoken["payload"]["callId"])
        go.set()
        await phone.until("look", since=since)
        await move(phone, other)
        await phone.until("assistant.speech.final", text="This is round 2.")


async def test_words_drop_a_speech_that_the_pause_held_in_another_process(shelf: Shelf) -> None:
    go, add = asyncio.Event(), ToolCall("c-1", "calculator", '{"expression":"1 + 1"}')
    replies: list[Script] = [[TextDelta("This is round 0."), add], [go, TextDelta("It is two.")]]
    async with moving(shelf, *replies) as (phone, first, other):
        phone.say("go")
        spoken = await phone.until("tts.speak")
        await first.provider.record(1).started.wait()
        since = await paused(phone, spoken["payload"]["callId"], spokenText="")
        go.set()
        await phone.until("turn.ended", since=since)
        await move(phone, other)
        phone.say("no, stop that")
        await phone.until("assistant.speech.final", text="Fine.")
        await phone.until("tts.speak", since=since)
        assert phone.speeches(since) == ["Fine."]


# -- clients that cannot pause, and odd ones


async def test_a_pause_of_a_client_without_the_capability_is_ignored(claude: AnthropicService) -> None:
    claude.replies += [Reply(text=LONG), Reply(text="Fine.")]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, "diagnostics")
        await phone.ask("book a table")
        phone.pause(spokenText="The")
        await phone.until("diagnostic")
        since = len(phone.log)
        await phone.ask("mhm")
        assert phone.finals(since) == ["Fine."] and phone.events("audio.output.resume") == []


async def test_a_pause_of_a_speech_that_has_ended_holds_nothing_and_a_mhm_stays_a_backchannel(
    claude: AnthropicService,
) -> None:
    held = asyncio.Event()
    story = Reply(text="One is a long enough sentence. Two is another one. ", hold=held, hold_at=7)
    claude.replies += [Reply(text="At eight."), story, Reply(text="At nine.")]
    async with app(claude, "segments") as phone:
        ended = await speech(phone)
        phone.result(ended, SPOKEN)
        since = len(phone.log)
        phone.say("and where?")
        await phone.until("tts.speak", since=since)
        since = await paused(phone, ended, spokenText="At")
        await phone.until("audio.output.resume", speechId=ended)
        held.set()
        await phone.until("tts.speak", since=since)
        event_id = phone.say("mhm")
        await phone.until("turn.ended", since=since, eventId=event_id, reason="resumed")
        phone.say("when?")
        await phone.until("assistant.speech.final", since=since, text="At nine.")
    assert f"At {CUT_HERE}" not in heard_by_model(claude) and "mhm" not in heard_by_model(claude)


async def test_a_backchannel_in_a_pause_of_nothing_has_a_turn_of_its_own(claude: AnthropicService) -> None:
    async with app(claude) as phone:
        since = await paused(phone, "")
        event_id = phone.say("mhm")
        end = await phone.until("turn.ended", since=since)
        assert (end["payload"]["eventId"], end["payload"]["reason"]) == (event_id, "resumed")
        assert end["payload"]["turnId"].startswith("turn_")
    assert not claude.requests


async def test_a_repeated_pause_and_a_repeated_backchannel_count_once(claude: AnthropicService) -> None:
    claude.replies += [Reply(text=LONG), Reply(text="At nine.")]
    async with app(claude) as phone:
        speech_id = await speech(phone)
        pause_id, words_id = phone.pause(speechId=speech_id), phone.say("mhm")
        resume = await phone.until("audio.output.resume")
        phone.send("audio.output.paused", {"speechId": speech_id}, id=pause_id)
        phone.send("user.audio.transcript.final", {"text": "mhm"}, id=words_id)
        await phone.until("state idle", since=phone.log.index(resume) + 2)
        phone.result(speech_id, SPOKEN)
        await speech(phone, "and then?")
        assert len(phone.events("audio.output.resume")) == 1
    assert f"{LONG}" in heard_by_model(claude) and len(claude.requests) == 2


async def test_a_tap_after_the_pause_cuts_at_once(claude: AnthropicService) -> None:
    claude.replies += [Reply(text=LONG), Reply(text="At nine.")]
    async with app(claude) as phone:
        speech_id = await speech(phone)
        since = await paused(phone, speech_id, spokenText="The table is")
        phone.interrupt()
        phone.result(speech_id, SPOKEN)
        phone.say("mhm")
        await phone.until("tts.speak", since=since)
        assert phone.events("audio.output.resume") == []
    assert f"The table is {CUT_HERE}" in heard_by_model(claude)


async def test_a_speech_that_half_a_sentence_has_cut_never_goes_on(claude: AnthropicService) -> None:
    claude.replies += [Reply(text=LONG), Reply(text="Done.")]
    async with app(claude, "hints", hold_unfinished=60.0) as phone:
        speech_id = await speech(phone)
        since = await paused(phone, speech_id, spokenText="The table is")
        phone.say("No, make it six and")
        await phone.until("turn.hint", since=since)
        await paused(phone, speech_id, spokenText="The table is")
        phone.say("okay")
        await phone.until("assistant.speech.final", text="Done.")
        assert not phone.events("audio.output.resume")
    assert "No, make it six and okay" in heard_by_model(claude)
