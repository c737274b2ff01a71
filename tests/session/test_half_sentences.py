"""Half sentences: a transcript that ends in the middle waits for the other half, and both are one turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from conductor.conversation.state import Question
from conductor.events import client
from conductor.messages import AssistantMessage, ToolResult, UserMessage
from conductor.models.base import ModelRequest, TextDelta
from conductor.session.services import Services
from conductor.session.session import Session
from conductor.stores.base import SessionLog
from conductor.stores.memory import MemoryStore
from tests.models import Script
from tests.session.helpers import (
    App,
    SlowStore,
    Stage,
    at_rest,
    call,
    die,
    later,
    make_services,
    now_ms,
    open_session,
    tool,
)
from tests.shapes import arguments_of

HOLD_MS = 1_200
CAPABILITIES = ("hints", "turns", "resume", "cancel")


def words_of(request: ModelRequest) -> Script:
    """Reply with the person's last words."""
    said = [message.text for message in request.messages if isinstance(message, UserMessage)]
    return [TextDelta(f"You said: {said[-1]}.")]


async def listening(
    replies: Callable[[ModelRequest], Script] = words_of,
    *,
    capabilities: Sequence[str] = CAPABILITIES,
    hold_ms: int | None = None,
    mode: str = "cancel",
    hold_unfinished: float = HOLD_MS / 1000,
    store: SessionLog | None = None,
    bridge_phrases: Sequence[str] = (),
) -> Stage:
    """Open a session of an app that is ready for half sentences."""
    store = SlowStore() if store is None else store
    services = make_services(replies, store=store, mode=mode, hold_unfinished=hold_unfinished)
    services = replace(services, bridge_phrases=bridge_phrases)
    app = App(store=store if isinstance(store, SlowStore) else None)
    app.start_fields = {"capabilities": capabilities, "hold_unfinished_ms": hold_ms}
    return Stage(await join(services, app), app, services)


async def join(services: Services, app: App) -> Session:
    """Start or resume the session of the app in a process."""
    session, resumed = await open_session(services), bool(app.lines)
    line = app.open_line(session)
    await session.clients.start(client.SessionStart(**app.start_fields), line, resumed=resumed)
    return session


def said(app: App) -> list[str]:
    """List the person's messages, as the app has got them."""
    return [arguments_of(event)["text"] for event in app.events("append user")]


def ended(app: App) -> list[tuple[str, str]]:
    return [
        (end["eventId"], end["reason"]) for end in (event["payload"] for event in app.events("turn.ended"))
    ]


async def test_both_halves_are_one_message_and_one_turn() -> None:
    stage = await listening()
    first = stage.app.say("Remind me to buy milk and")
    await later(1.0)
    assert not stage.provider.requests
    second = stage.app.say("eggs.")
    await stage.quiet()
    assert said(stage.app) == ["Remind me to buy milk and eggs."]
    assert stage.app.finals() == ["You said: Remind me to buy milk and eggs.."]
    assert ended(stage.app) == [(first, "answered"), (second, "answered")]
    assert not stage.app.outbox, "both are acknowledged"


async def test_a_half_opens_the_microphone_and_tells_the_app_to_listen_on() -> None:
    stage = await listening()
    await later(0.5)
    since = len(stage.app.log)
    first = stage.app.say("Call my")
    await later(0.5)
    assert stage.app.shapes(since)[:3] == ["state idle", "turn.hint", "event.ack"]
    assert stage.app.events("turn.hint")[0]["payload"] == {"complete": False}
    assert first not in stage.app.outbox
    await stage.quiet()
    assert said(stage.app) == ["Call my"]


async def test_a_half_without_its_other_half_is_answered_when_its_time_is_over() -> None:
    stage = await listening()
    at = now_ms()
    first = stage.app.say("Call my")
    await stage.app.until("state thinking")
    assert HOLD_MS <= now_ms() - at < HOLD_MS + 200
    await stage.quiet()
    assert ended(stage.app) == [(first, "answered")]


async def test_a_whole_sentence_waits_for_nothing() -> None:
    times = []
    for hold_unfinished in (0.0, 1.2):
        stage = await listening(hold_unfinished=hold_unfinished)
        at = now_ms()
        stage.app.say("Turn on the lights.")
        await stage.app.until("assistant.speech.final")
        times.append(now_ms() - at)
        await stage.quiet()
    assert times[0] == times[1]


@pytest.mark.parametrize(
    ("capabilities", "hold_ms", "hold_unfinished"),
    [((), None, 1.2), ((), 1_200, 1.2), (CAPABILITIES, None, 0.0), (CAPABILITIES, 0, 1.2)],
    ids=["no capability", "no capability, and a wish", "the operator's default", "the app's wish"],
)
async def test_without_the_capability_or_a_time_a_half_is_answered_at_once(
    capabilities: Sequence[str], hold_ms: int | None, hold_unfinished: float
) -> None:
    stage = await listening(capabilities=capabilities, hold_ms=hold_ms, hold_unfinished=hold_unfinished)
    at = now_ms()
    stage.app.say("Call my")
    await stage.app.until("state thinking")
    assert now_ms() - at < 100
    await stage.quiet()
    assert not stage.app.events("turn.hint")


async def test_an_app_may_ask_for_a_time_of_its_own() -> None:
    stage = await listening(hold_ms=3_000, hold_unfinished=0.0)
    at = now_ms()
    stage.app.say("Call my")
    await stage.app.until("state thinking")
    assert now_ms() - at >= 3_000


async def test_a_half_waits_while_the_other_half_is_spoken() -> None:
    stage = await listening()
    stage.app.say("Call my")
    for _ in range(4):
        await later(0.9)
        stage.app.send("user.audio.transcript.partial", {"text": "mother"})
    await later(2)
    stage.app.say("mother at home")
    await stage.quiet()
    assert said(stage.app) == ["Call my mother at home"]


async def test_partials_that_do_not_end_hold_a_half_for_half_a_minute_at_most() -> None:
    stage = await listening()
    at = now_ms()
    stage.app.say("Call my")

    async def murmur() -> None:
        while True:
            await later(1)
            stage.app.send("user.audio.transcript.partial", {"text": "mm"})

    murmuring = asyncio.create_task(murmur())
    await stage.app.until("state thinking")
    murmuring.cancel()
    assert 30_000 <= now_ms() - at < 33_000


async def test_a_half_that_is_sent_twice_is_taken_once() -> None:
    stage = await listening()
    first = stage.app.say("Call my")
    stage.app.say("Call my", id=first)
    await later(0.3)
    second = stage.app.say("mother")
    stage.app.say("mother", id=second)
    stage.app.say("Call my", id=first)
    await stage.quiet()
    assert said(stage.app) == ["Call my mother"] and len(stage.provider.requests) == 1


async def test_many_halves_are_one_message() -> None:
    stage = await listening()
    parts = ["So", "I want to", "call my", "mother"]
    ids = []
    for part in parts:
        ids.append(stage.app.say(part))
        await later(1)
    await stage.quiet()
    assert said(stage.app) == ["So I want to call my mother"]
    assert ended(stage.app) == [(event_id, "answered") for event_id in ids]


async def test_a_half_over_a_turn_interrupts_it_at_once() -> None:
    asked: list[str] = []

    def slow(request: ModelRequest) -> Script:
        asked.append("")
        return [TextDelta("One "), 5.0, TextDelta("two.")] if len(asked) == 1 else words_of(request)

    stage = await listening(slow)
    first = stage.app.say("Tell me a story")
    await stage.app.until("assistant.speech.partial")
    await later(1.2)
    stage.app.say("No, call my")
    await later(0.5)
    assert ended(stage.app) == [(first, "interrupted")]
    assert stage.app.states()[-1] == "idle"
    stage.app.say("mother")
    await stage.quiet()
    assert said(stage.app) == ["Tell me a story", "No, call my mother"]


async def test_in_the_queues_mode_both_halves_wait_for_the_turn() -> None:
    def slow(request: ModelRequest) -> Script:
        return [TextDelta("One."), 4.0]

    stage = await listening(slow, mode="queue")
    stage.app.say("Tell me a story")
    await stage.app.until("assistant.speech.partial")
    stage.app.say("Then call my")
    await later(2)
    stage.app.say("mother")
    await stage.quiet()
    assert said(stage.app) == ["Tell me a story", "Then call my mother"]


async def test_a_cancel_leaves_a_half_unanswered_in_the_history() -> None:
    stage = await listening()
    first = stage.app.say("Call my")
    await later(0.3)
    stage.app.send("response.cancel", {})
    await stage.quiet()
    await later(3)
    assert said(stage.app) == ["Call my"] and ended(stage.app) == [(first, "interrupted")]
    assert not stage.provider.requests and stage.app.states()[-1] == "idle"


async def test_an_interruption_leaves_a_half_waiting() -> None:
    stage = await listening()
    stage.app.say("Call my")
    await later(0.3)
    stage.app.interrupt()
    await later(0.3)
    stage.app.say("mother")
    await stage.quiet()
    assert said(stage.app) == ["Call my mother"]


async def test_a_noise_leaves_a_half_waiting() -> None:
    stage = await listening()
    stage.app.say("Call my")
    await later(0.3)
    stage.app.say("[BLANK_AUDIO]")
    await later(0.3)
    stage.app.say("mother")
    await stage.quiet()
    assert said(stage.app) == ["Call my mother"] and stage.app.error_codes() == ["invalid_transcript"]


async def test_a_noise_ends_the_wait_that_its_partial_began() -> None:
    stage = await listening()
    at = now_ms()
    stage.app.say("Call my")
    await later(1)
    stage.app.send("user.audio.transcript.partial", {"text": "hm"})
    await later(1)
    stage.app.say("[cough]")
    await stage.app.until("state thinking")
    assert now_ms() - at < 2_200
    await stage.quiet()
    assert said(stage.app) == ["Call my"]


async def test_news_wait_for_a_half() -> None:
    stage = await listening()
    stage.app.say("Call my")
    await later(0.1)
    stage.app.agent_done("a-1")
    await later(1.0)
    stage.app.say("mother")
    await stage.quiet()
    assert said(stage.app)[0] == "Call my mother"
    assert len(stage.provider.requests) == 2


async def test_words_about_a_question_never_wait() -> None:
    def ask(request: ModelRequest) -> Script:
        if isinstance(request.messages[-1], ToolResult):
            return [TextDelta("Done.")]
        return [call("device.move")]

    stage = await listening(ask)
    stage.services = replace(stage.services, catalog=[tool("device.move", approval="ask")])
    stage.session.reload(stage.services)
    stage.app.say("Move it")
    await stage.app.until("tts.speak")
    await later(1)
    (question,) = stage.session.state.questions.values()
    assert isinstance(question, Question)
    at = now_ms()
    stage.app.say("yes but")
    await later(0.1)
    assert not stage.app.events("turn.hint") and now_ms() - at < HOLD_MS


@pytest.mark.parametrize("pause_s", [0.4, 5.0], ids=["in its time", "after its time"])
async def test_a_half_outlives_its_process(pause_s: float) -> None:
    stage = await listening()
    app, services = stage.app, stage.services
    first = app.say("Call my")
    await app.until("turn.hint")
    await later(0.2)
    die(stage.session, app)
    await later(pause_s)
    at = now_ms()
    session = await join(services, app)
    await app.until("state thinking")
    assert now_ms() - at < HOLD_MS
    await at_rest(session)
    assert said(app) == ["Call my"] and ended(app) == [(first, "answered")]


async def test_the_other_half_may_come_to_the_next_process() -> None:
    stage = await listening()
    app, services = stage.app, stage.services
    app.say("Call my")
    await app.until("turn.hint")
    await later(0.2)
    die(stage.session, app)
    session = await join(services, app)
    app.say("mother")
    await at_rest(session)
    assert said(app) == ["Call my mother"]


async def test_a_half_is_answered_before_the_server_stops() -> None:
    stage = await listening(store=MemoryStore())
    stage.app.say("Call my")
    await later(0.1)
    stage.session.drain(5)
    at = now_ms()
    await stage.session.settled()
    assert said(stage.app) == ["Call my"] and now_ms() - at < HOLD_MS


async def test_a_session_with_a_half_is_busy() -> None:
    stage = await listening()
    stage.app.say("Call my")
    await later(0.5)
    assert stage.session.busy
    await stage.quiet()
    assert not stage.session.busy


# -- sentences that a recogniser has cut between any two words


def slowly(request: ModelRequest) -> Script:
    """Reply with the person's last words, as slowly as a model does."""
    return [0.4, TextDelta("You "), 1.0, *words_of(request)]


def asked(stage: Stage) -> list[str]:
    """List the person's messages of the last request."""
    messages = stage.provider.requests[-1].messages
    assert not any(isinstance(message, AssistantMessage) for message in messages)
    return [message.text for message in messages if isinstance(message, UserMessage)]


async def test_words_soon_after_others_are_one_message_of_the_model() -> None:
    stage = await listening(slowly)
    first = stage.app.say("Is there a quiet")
    await later(0.6)
    assert stage.app.events("assistant.speech.partial"), "the model has begun to write"
    second = stage.app.say("car park with a lift?")
    await stage.quiet()
    assert asked(stage) == ["Is there a quiet car park with a lift?"]
    assert said(stage.app) == ["Is there a quiet", "car park with a lift?"]
    assert len(stage.app.events("tts.speak")) == 1, "nothing is said about the first half"
    assert ended(stage.app) == [(first, "answered"), (second, "answered")]
    assert not {first, second} & {*stage.app.outbox}, "both are acknowledged"


async def test_words_soon_after_others_may_be_half_a_sentence() -> None:
    stage = await listening(slowly)
    ids = []
    for part in ("If it rains tomorrow", "remind me to take the", "big umbrella", "please"):
        ids.append(stage.app.say(part))
        await later(0.6)
    await stage.quiet()
    assert asked(stage) == ["If it rains tomorrow remind me to take the big umbrella please"]
    assert said(stage.app) == ["If it rains tomorrow", "remind me to take the big umbrella", "please"]
    assert ended(stage.app) == [(event_id, "answered") for event_id in ids]


async def test_words_while_the_person_has_begun_soon_are_one_message() -> None:
    stage = await listening(lambda request: [9.0, *words_of(request)])
    stage.app.say("Is there a quiet")
    await later(0.8)
    for _ in range(4):
        stage.app.send("user.audio.transcript.partial", {"text": "car park"})
        await later(0.8)
    stage.app.say("car park with a lift and a very long name?")
    await stage.quiet()
    assert asked(stage) == ["Is there a quiet car park with a lift and a very long name?"]


@pytest.mark.parametrize("segments", [False, True], ids=["whole", "in segments"])
async def test_nothing_is_said_or_done_while_the_person_goes_on(segments: bool) -> None:
    def act(request: ModelRequest) -> Script:
        if isinstance(request.messages[-1], ToolResult):
            return [TextDelta("It is open.")]
        return [0.8, TextDelta("I open it. Wait, please. "), call("device.do")]

    stage = await listening(act, capabilities=(*CAPABILITIES, *(["segments"] if segments else [])))
    stage.app.say("Open the red")
    for _ in range(4):
        await later(0.5)
        stage.app.send("user.audio.transcript.partial", {"text": "door"})
    await later(0.5)
    assert not stage.app.events("tts.speak") and not stage.app.events("device.do")
    stage.app.say("door")
    await stage.quiet()
    assert len(stage.app.events("device.do")) == 1
    assert stage.session.state.log[0] == UserMessage("Open the red door")


async def test_no_phrase_of_waiting_is_spoken_while_the_person_goes_on() -> None:
    stage = await listening(lambda request: [5.0, *words_of(request)], bridge_phrases=("One moment.",))
    stage.app.say("Open the red")
    for _ in range(6):
        await later(0.5)
        stage.app.send("user.audio.transcript.partial", {"text": "door"})
    assert not stage.app.events("tts.speak")
    await stage.app.until("tts.speak")
    assert stage.app.speeches() == ["One moment."], "the person has stopped"


async def test_a_partial_without_words_after_it_lets_the_reply_wait_a_moment() -> None:
    stage = await listening(lambda request: [0.6, *words_of(request)])
    at = now_ms()
    first = stage.app.say("Open the red")
    await later(0.5)
    stage.app.send("user.audio.transcript.partial", {"text": "hm"})
    await stage.app.until("tts.speak")
    assert 500 + HOLD_MS <= now_ms() - at < 700 + HOLD_MS
    await stage.quiet()
    assert ended(stage.app) == [(first, "answered")]


async def test_words_after_a_while_are_a_message_of_their_own() -> None:
    stage = await listening(lambda request: [3.0, *words_of(request)])
    first = stage.app.say("What's the weather?")
    await later(1.3)
    second = stage.app.say("Hello?")
    await stage.quiet()
    assert asked(stage) == ["What's the weather?", "Hello?"]
    assert ended(stage.app) == [(first, "interrupted"), (second, "answered")]


async def test_a_call_of_the_first_words_is_not_made_twice() -> None:
    def act(request: ModelRequest) -> Script:
        return [0.3, call("device.do")] if len(request.messages) == 1 else words_of(request)

    stage = await listening(act)
    stage.app.say("Open the door")
    await stage.app.until("device.do")
    stage.app.say("to the garden")
    await stage.quiet()
    assert len(stage.app.events("device.do")) == 1
    users = [m.text for m in stage.provider.requests[-1].messages if isinstance(m, UserMessage)]
    assert users == ["Open the door", "to the garden"]


async def test_a_cancel_after_words_that_went_on_leaves_them_in_the_history() -> None:
    stage = await listening(slowly)
    stage.app.say("Is there a quiet")
    await later(0.6)
    stage.app.say("car park with a")
    await later(0.3)
    stage.app.send("response.cancel", {})
    await stage.quiet()
    assert said(stage.app) == ["Is there a quiet", "car park with a"]
    assert stage.session.state.log == [UserMessage("Is there a quiet car park with a")]


async def test_words_that_went_on_outlive_their_process() -> None:
    stage = await listening(lambda request: [9.0, *words_of(request)])
    app, services = stage.app, stage.services
    first = app.say("Is there a quiet")
    await later(0.4)
    second = app.say("car park with a")
    await app.until("turn.hint")
    await later(0.2)
    die(stage.session, app)
    session = await join(services, app)
    third = app.say("lift")
    await at_rest(session)
    assert said(app) == ["Is there a quiet", "car park with a lift"]
    assert [event_id for event_id, _ in ended(app)] == [first, second, third]
    assert session.state.log[0] == UserMessage("Is there a quiet car park with a lift")
