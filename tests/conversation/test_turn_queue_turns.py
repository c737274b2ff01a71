"""Which turn comes next, and what happens where transcripts, news, interruptions and slow commits meet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from conductor.conversation.phrases import FAILURES
from conductor.conversation.speech import HEARD_NOTHING
from conductor.errors import Fenced, ModelError, StoreError, StoreUnavailable
from conductor.events import client
from conductor.messages import AssistantMessage, Note, UserMessage
from conductor.models.base import ModelRequest, TextDelta
from conductor.stores.base import AppendLog, Operation
from tests.conversation.helpers import (
    PLAIN_TURN,
    SPOKEN,
    LocalTools,
    SlowStore,
    call,
    inbound,
    later,
    make_services,
    stage,
    steps,
)
from tests.models import Script


def logs(operations: Sequence[Operation], kind: type) -> bool:
    return any(isinstance(o, AppendLog) and isinstance(o.entry, kind) for o in operations)


def users(messages: Sequence[object]) -> list[str]:
    return [m.text for m in messages if isinstance(m, UserMessage)]


def answers(messages: Sequence[object]) -> list[str]:
    return [m.text for m in messages if isinstance(m, AssistantMessage)]


def deaf_to_speech(name: str, call_id: str) -> str | None:
    """Acknowledge all but speech: it is being said."""
    return None if name == "tts.speak" else SPOKEN


# -- transcripts that wait


async def test_at_most_three_transcripts_wait_and_a_fourth_is_refused() -> None:
    hold = asyncio.Event()

    def reply(request: ModelRequest) -> Script:
        return [hold, TextDelta(f"To {request.messages[-1].text}.")]  # type: ignore[union-attr]  # a user's

    one = await stage(make_services(reply, mode="queue"))
    for number in range(5):
        one.app.say(f"q{number}")
    await steps(20)
    assert one.app.errors() == ["rate_limited"]
    hold.set()
    await one.quiet()
    assert users(one.session.messages) == ["q0", "q1", "q2", "q3"]
    assert one.app.finals() == ["To q0.", "To q1.", "To q2.", "To q3.", FAILURES["rate_limited"]]
    await one.close()


@pytest.mark.parametrize("spoken", [True, False])
async def test_a_person_hears_once_that_words_were_refused_when_those_before_them_are_answered(
    spoken: bool,
) -> None:
    hold = asyncio.Event()

    def reply(request: ModelRequest) -> Script:
        return [hold, TextDelta(f"To {request.messages[-1].text}.")]  # type: ignore[union-attr]  # a user's

    services = make_services(reply, mode="queue", failures=FAILURES if spoken else {})
    one = await stage(services)
    for number in range(7):
        one.app.say(f"q{number}")
    await steps(50)
    assert one.app.errors() == ["rate_limited"] * 3
    hold.set()
    await one.quiet()
    told = [FAILURES["rate_limited"]] if spoken else []
    assert one.app.finals()[4:] == told
    assert one.app.spoken()[4:] == told
    assert one.app.shapes()[-5:] == PLAIN_TURN[2:]
    assert one.app.states().count("idle") == 1 + spoken
    one.app.say("q8")
    await one.quiet()
    assert one.app.finals()[-1] == "To q8."
    await one.close()


async def test_a_repeated_transcript_is_answered_once() -> None:
    one = await stage(make_services([[TextDelta("Yes.")], [TextDelta("Again?")]]))
    one.app.say("hello", "event-1")
    await one.quiet()
    one.app.say("hello", "event-1")
    await one.quiet()
    assert one.app.finals() == ["Yes."]
    assert users(one.session.messages) == ["hello"]
    await one.close()


async def test_of_transcripts_that_follow_each_other_only_the_last_is_answered() -> None:
    def reply(request: ModelRequest) -> Script:
        text = users(request.messages)[-1]
        return [asyncio.Event()] if text == "one" else [TextDelta(f"To {text}.")]

    one = await stage(make_services(reply))
    one.app.say("one")
    await steps(20)
    since = len(one.app.log)
    one.app.say("two")
    one.app.say("three")
    await one.quiet()
    assert users(one.session.messages) == ["one", "two", "three"]
    assert [users(r.messages)[-1] for r in one.provider.requests] == ["one", "three"]
    assert one.app.shapes(since) == [*PLAIN_TURN[:2], *PLAIN_TURN]
    await one.close()


async def test_an_interrupted_answer_names_what_was_done() -> None:
    local = LocalTools()
    local.go.set()
    scripts: list[Script] = [[call("local.write"), call("local.sum")], [TextDelta("It is written.")]]
    one = await stage(make_services(scripts, toolsets=[local]), deaf_to_speech)
    one.app.say("go")
    await one.app.until("tts.speak")
    await one.settled()
    one.app.interrupt(spoken_text="It")
    await steps(20)
    told = answers(one.session.messages)[-1]
    assert told.startswith("It [")
    assert "local.write" in told
    assert "local.sum" not in told
    await one.close()


async def test_what_was_heard_of_an_earlier_answer_is_shown_to_the_model_from_the_next_turn_on() -> None:
    local = LocalTools()
    scripts: list[Script] = [
        [TextDelta("First.")], [call("local.wait")], [TextDelta("Second.")], [TextDelta("Third.")],
    ]  # fmt: skip
    services = make_services(scripts, toolsets=[local])
    one = await stage(services, deaf_to_speech)
    one.app.say("one")
    await one.settled()
    one.app.say("two")
    await local.begun.wait()
    one.app.interrupt(spoken_text="Fi")
    await steps(20)
    assert answers(one.session.messages)[0].startswith("Fi [")
    local.go.set()
    await one.settled()
    one.app.say("three")
    await one.settled()
    _, before, after, following = (list(request.messages) for request in one.provider.requests)
    assert after[: len(before)] == before
    assert answers(following)[0].startswith("Fi [")
    await one.close()


async def test_the_second_answer_to_a_client_that_acknowledges_nothing_is_spoken_at_once() -> None:
    one = await stage(make_services([[TextDelta("First.")], [TextDelta("Second.")]]), lambda *_: None)
    for text in ("one", "two"):
        one.app.say(text)
        await one.settled()
    assert one.app.spoken() == ["First.", "Second."]
    assert one.app.states()[-1] == "idle"
    await one.close()


async def test_a_transcript_repeated_on_another_line_during_its_commit_is_answered_once() -> None:
    store = SlowStore()
    one = await stage(make_services(lambda _: [TextDelta("Yes.")], store=store))
    store.hold = asyncio.Event()
    one.app.say("hello", "event-1")
    await steps(5)
    one.app.connect(one.session)
    one.app.say("hello", "event-1")
    await steps(5)
    store.hold.set()
    await one.quiet()
    assert users(one.session.messages) == ["hello"]
    await one.close()


async def test_a_transcript_that_was_refused_for_the_store_is_not_answered_all_the_same() -> None:
    hold = asyncio.Event()
    store = SlowStore()
    one = await stage(
        make_services([[hold, TextDelta("One.")], [TextDelta("Two.")], [TextDelta("3")]], store=store)
    )
    one.app.say("one", "event-1")
    await steps(10)
    store.fail = lambda operations: StoreUnavailable("away")
    one.app.say("two", "event-2")
    await steps(5)
    assert one.app.errors() == ["store_unavailable"]
    store.fail = lambda operations: None
    hold.set()
    await one.quiet()
    assert users(one.session.messages) == ["one"]
    one.app.say("two", "event-2")  # as the person, or the app, does after the error
    await one.quiet()
    assert users(one.session.messages) == ["one", "two"]
    await one.close()


@pytest.mark.parametrize("comes_back", ["after the store", "before the store"])
async def test_a_client_that_was_away_with_the_store_is_told_that_its_turn_failed(comes_back: str) -> None:
    hold = asyncio.Event()
    store = SlowStore()
    one = await stage(make_services([[hold, TextDelta("One.")], [TextDelta("Two.")]], store=store))
    one.app.say("one")
    await steps(10)
    store.fail = lambda operations: StoreUnavailable("away")
    assert one.app.line is not None
    one.app.line.hang_up()
    hold.set()
    await later(10)
    assert one.session.busy
    if comes_back == "after the store":
        store.fail = lambda operations: None
        await later(2)
        one.app.connect(one.session)
        await one.quiet()
        assert one.app.finals() == [FAILURES["store_unavailable"]]
    else:
        one.app.connect(one.session)
        await later(2)
        assert one.app.errors() == ["store_unavailable"]
        store.fail = lambda operations: None
        await one.quiet()
    one.app.say("two")
    await one.quiet()
    assert one.app.finals()[-1] == "Two."
    await one.close()


async def test_transcripts_that_waited_for_a_store_are_answered_before_the_next_one() -> None:
    hold = asyncio.Event()
    store = SlowStore()

    def reply(request: ModelRequest) -> Script:
        text = users(request.messages)[-1]
        return [hold, TextDelta("One.")] if text == "one" else [TextDelta(f"To {text}.")]

    one = await stage(make_services(reply, store=store, mode="queue"))
    one.app.say("one")
    await steps(10)
    one.app.say("two")
    one.app.say("three")
    await steps(10)
    store.fail = lambda o: StoreUnavailable("away") if logs(o, UserMessage) else None
    hold.set()
    await one.settled()
    assert one.app.errors() == ["store_unavailable"]
    store.fail = lambda operations: None
    one.app.say("four")
    await one.quiet()
    heard = users(one.session.messages)
    assert heard == ["one", "two", "three", "four"]
    await one.close()


async def test_a_transcript_that_waited_for_a_store_is_answered_once_the_store_is_back() -> None:
    hold, store = asyncio.Event(), SlowStore()
    scripts: list[Script] = [[hold, TextDelta("One.")], [TextDelta("Two.")]]
    one = await stage(make_services(scripts, store=store, mode="queue"))
    one.app.say("one")
    await steps(10)
    one.app.say("two")
    await steps(10)
    store.fail = lambda o: StoreUnavailable("away") if logs(o, UserMessage) else None
    hold.set()
    await one.settled()
    store.fail = lambda operations: None
    await later(10)
    assert one.app.finals() == ["One.", "Two."]
    await one.close()


@pytest.mark.parametrize("begins_while_recorded", [False, True])
async def test_a_transcript_never_stops_the_turn_that_answers_it(begins_while_recorded: bool) -> None:
    store = SlowStore()
    local = LocalTools()
    local.go.set()
    hold, slow_begin = asyncio.Event(), asyncio.Event()

    def reply(request: ModelRequest) -> Script:
        if users(request.messages)[-1] == "two":
            return [slow_begin, TextDelta("Second.")]
        spoken = any(isinstance(m, AssistantMessage) for m in request.messages)
        return [hold, TextDelta("Done.")] if spoken else [TextDelta("I look."), call("local.sum")]

    one = await stage(make_services(reply, store=store, toolsets=[local]), deaf_to_speech)
    one.app.say("one")
    await one.app.until("tts.speak")  # it is playing: the answer's own speech will be held
    await steps(20)
    store.hold = asyncio.Event()
    hold.set()
    await steps(10)  # the answer is being committed
    one.app.say("two")
    await steps(10)
    if begins_while_recorded:  # the turn before ends while the transcript is on its way into the store
        answer, store.hold = store.hold, asyncio.Event()
        answer.set()
        await steps(20)
    transcript, store.hold = store.hold, None
    transcript.set()
    await steps(50)
    slow_begin.set()
    await one.quiet()
    assert users(one.session.messages) == ["one", "two"]
    assert "Second." in one.app.finals()
    await one.close()


# -- interruptions


async def test_a_speech_that_was_taken_back_is_no_speech_to_interrupt() -> None:
    local = LocalTools()
    local.go.set()
    hold = asyncio.Event()

    def reply(request: ModelRequest) -> Script:
        if users(request.messages)[-1] == "two":
            return [TextDelta("So"), hold, TextDelta(" much.")]
        spoken = any(isinstance(m, AssistantMessage) for m in request.messages)
        return [TextDelta("Done.")] if spoken else [TextDelta("I look."), call("local.sum")]

    one = await stage(make_services(reply, toolsets=[local]), deaf_to_speech)
    one.app.say("one")
    await one.settled()
    first = (await one.app.until("tts.speak"))["payload"]["callId"]
    one.app.say("two")  # takes back the second speech, which waits for the first
    await steps(20)
    one.app.result(first, SPOKEN)
    await later(1)
    one.app.interrupt()  # nothing is being said: it is the running answer that is meant
    await steps(20)
    assert not one.session.busy, "the running turn goes on"
    assert HEARD_NOTHING in answers(one.session.messages)[1]
    hold.set()
    await one.close()


async def test_a_speech_that_was_too_old_to_replay_is_no_speech_to_interrupt() -> None:
    hold = asyncio.Event()
    services = make_services([[TextDelta("First.")], [TextDelta("So"), hold]], stale_speech=-1.0)
    one = await stage(services, deaf_to_speech)
    one.app.say("one")
    await one.settled()
    assert one.app.line is not None
    one.app.line.hang_up()  # the acknowledgement is lost with the line
    one.app.connect(one.session)  # and the speech is too old to be said again
    await steps(5)
    one.app.say("two")
    await steps(20)
    one.app.interrupt()
    await steps(20)
    assert not one.session.busy, "the running turn goes on"
    assert answers(one.session.messages)[0] == "First.", "another answer was marked as interrupted"
    await one.close()


async def test_a_client_that_acknowledges_nothing_can_interrupt_its_second_answer() -> None:
    hold = asyncio.Event()
    one = await stage(
        make_services([[TextDelta("First.")], [TextDelta("So"), hold]]), lambda name, call_id: None
    )
    one.app.say("one")
    await one.settled()
    one.app.say("two")
    await steps(20)
    one.app.interrupt()
    await steps(20)
    assert not one.session.busy, "the running turn goes on"
    assert answers(one.session.messages)[0] == "First."
    await one.close()


async def test_a_speech_whose_commit_failed_is_no_speech_to_interrupt() -> None:
    hold = asyncio.Event()
    store = SlowStore()
    one = await stage(make_services([[TextDelta("First.")], [TextDelta("So"), hold]], store=store))
    store.fail = lambda o: StoreUnavailable("away") if logs(o, AssistantMessage) else None
    one.app.say("one")
    await one.settled()
    assert one.app.spoken() == []
    store.fail = lambda operations: None
    one.app.say("two")
    await steps(20)
    one.app.interrupt()
    await steps(20)
    assert users(one.session.messages) == ["one", "two"], "the user's words were overwritten"
    assert not one.session.busy
    await one.close()


async def test_an_answer_interrupted_during_its_commit_is_either_heard_or_not_spoken() -> None:
    store = SlowStore()
    one = await stage(make_services([[TextDelta("A long story.")]], store=store), slow=True)
    assert one.app.line is not None
    one.app.say("one")
    while not one.provider.requests:
        await steps(1)
    store.hold = asyncio.Event()
    await steps(5)
    one.app.interrupt()
    await steps(5)
    store.hold.set()
    await one.settled()
    one.app.line.slow = False
    one.app.line.flush()
    await one.quiet()
    history = answers(one.session.messages)
    assert one.app.spoken() == [] or history == ["A long story."], (one.app.spoken(), history)
    await one.close()


# -- news


async def test_news_waits_for_the_running_turn_and_leaves_thinking_out() -> None:
    hold = asyncio.Event()
    one = await stage(make_services([[hold, TextDelta("Sure.")], [TextDelta("Both are done.")]]))
    one.app.say("hi")
    await steps(10)
    one.app.agent_done("a-1")
    one.app.agent_done("a-2")
    one.app.agent_done("a-2")  # the same again, under an id of its own
    await steps(20)
    assert len(one.provider.requests) == 1
    hold.set()
    await one.quiet()
    assert one.app.finals() == ["Sure.", "Both are done."]
    assert one.app.shapes()[1:] == [*PLAIN_TURN, *PLAIN_TURN[2:]]
    (note,) = [m for m in one.session.messages if isinstance(m, Note)]
    assert note.text.count("a-1") == 1
    assert note.text.count("a-2") == 1
    await one.close()


async def test_news_waits_until_the_speech_is_over() -> None:
    one = await stage(make_services([[TextDelta("Sure.")], [TextDelta("It is done.")]]), deaf_to_speech)
    one.app.say("hi")
    await one.settled()
    one.app.agent_done("a-1")
    await steps(50)
    assert len(one.provider.requests) == 1
    speech = await one.app.until("tts.speak")
    one.app.result(speech["payload"]["callId"], SPOKEN)
    await one.app.until("assistant.speech.final", since=len(one.app.log))
    assert one.app.finals() == ["Sure.", "It is done."]
    await one.close()


async def test_news_waits_for_the_floor_until_the_person_is_silent() -> None:
    one = await stage(make_services([[TextDelta("It is done.")]], floor_timeout=5.0))
    assert one.app.line is not None
    loop = asyncio.get_running_loop()
    one.app.line.say(client.TranscriptPartial("I"))
    one.app.agent_done("a-1")
    for _ in range(3):
        await later(4)
        one.app.line.say(client.TranscriptPartial("I would"))
    last = loop.time()
    assert one.provider.requests == []
    await one.app.until("assistant.speech.final")
    assert loop.time() == pytest.approx(last + 5.0)
    await one.quiet()
    await one.close()


async def test_news_waits_until_the_microphone_of_a_client_without_partials_was_open_for_a_while() -> None:
    scripts: list[Script] = [[TextDelta("Sure.")], [TextDelta("It is done.")]]
    one = await stage(make_services(scripts, open_microphone=4.0), deaf_to_speech)
    loop = asyncio.get_running_loop()
    one.app.say("hi")
    speech = await one.app.until("tts.speak")
    one.app.agent_done("a-1")
    await later(3)
    one.app.result(speech["payload"]["callId"], SPOKEN)  # from now on the microphone is open
    opened = loop.time()
    await later(3.9)
    assert len(one.provider.requests) == 1
    await one.app.until("assistant.speech.final", since=len(one.app.log))
    assert loop.time() == pytest.approx(opened + 4.0)
    await one.close()


async def test_news_waits_after_words_that_started_no_turn_and_after_a_connection() -> None:
    one = await stage(make_services([[TextDelta("It is done.")]], open_microphone=4.0))
    loop = asyncio.get_running_loop()
    await later(3)
    one.app.agent_done("a-1")
    one.app.say(" ")
    await later(3)
    assert one.app.line is not None and one.app.errors() == ["invalid_transcript"]
    one.app.line.hang_up()
    one.app.connect(one.session)
    connected = loop.time()
    await one.app.until("assistant.speech.final")
    assert loop.time() == pytest.approx(connected + 4.0)
    await one.close()


async def test_news_that_comes_while_the_microphone_is_long_open_is_told_at_once() -> None:
    one = await stage(make_services([[TextDelta("It is done.")]], open_microphone=4.0))
    await later(60)
    one.app.agent_done("a-1")
    await steps(50)
    assert one.app.finals() == ["It is done."]
    await one.close()


async def test_a_transcript_goes_before_news() -> None:
    one = await stage(make_services([[TextDelta("Hello.")], [TextDelta("It is done.")]]))
    assert one.app.line is not None
    one.app.line.say(client.TranscriptPartial("he"))
    one.app.agent_done("a-1")
    one.app.say("hello")
    await one.quiet()
    assert one.app.finals() == ["Hello.", "It is done."]
    await one.close()


async def test_news_waits_for_somebody_to_listen() -> None:
    one = await stage(make_services([[TextDelta("It is done.")]]))
    line = one.app.line
    assert line is not None
    await one.quiet()
    line.hang_up()
    await one.session.receive(inbound(client.AgentCompleted("a-1", "FINISHED")), line)
    await later(100)
    assert one.provider.requests == []
    one.app.connect(one.session)
    await one.quiet()
    assert one.app.finals() == ["It is done."]
    assert one.app.states()[-1] == "idle"
    await one.close()


async def test_at_most_sixteen_pieces_of_news_wait() -> None:
    hold = asyncio.Event()
    one = await stage(make_services([[hold, TextDelta("Sure.")], [TextDelta("Done.")]]))
    one.app.say("hi")
    for number in range(20):
        one.app.agent_done(f"agent-{number:02}")
    await steps(60)
    hold.set()
    await one.quiet()
    (note,) = [m for m in one.session.messages if isinstance(m, Note)]
    assert [f"agent-{n:02}" in note.text for n in range(20)] == [False] * 4 + [True] * 16
    await one.close()


async def test_a_repeated_completion_is_told_once() -> None:
    one = await stage(make_services([[TextDelta("Done.")]]))
    one.app.agent_done("a-1", "event-1")
    await one.quiet()
    one.app.agent_done("a-1", "event-1")
    await one.quiet()
    assert one.app.finals() == ["Done."]
    await one.close()


async def test_news_that_is_too_old_to_be_told_by_itself_goes_with_the_next_turn() -> None:
    one = await stage(make_services([[TextDelta("Hello.")], [TextDelta("x")]]))
    line = one.app.line
    assert line is not None
    await one.quiet()
    line.hang_up()
    await one.session.receive(inbound(client.AgentCompleted("a-1", "FINISHED")), line)
    await later(700)
    one.app.connect(one.session)
    await one.quiet()
    assert one.provider.requests == []
    one.app.say("hello")
    await one.quiet()
    assert any(isinstance(m, Note) and "a-1" in m.text for m in one.session.messages)
    await one.close()


async def test_a_resume_opens_the_microphone_although_there_is_expired_news() -> None:
    one = await stage(make_services([]))
    line = one.app.line
    assert line is not None
    await one.quiet()
    line.hang_up()
    await one.session.receive(inbound(client.AgentCompleted("a-1", "FINISHED")), line)
    await later(700)
    one.app.connect(one.session)
    await one.quiet()
    assert one.app.states() == ["idle"]
    await one.close()


async def test_news_survives_a_store_that_is_away() -> None:
    store = SlowStore(fail=lambda o: StoreUnavailable("away") if logs(o, Note) else None)
    one = await stage(make_services([[TextDelta("Hello.")], [TextDelta("It is done.")]], store=store))
    one.app.agent_done("a-1")
    await one.settled()
    store.fail = lambda operations: None
    one.app.say("hello")
    await one.quiet()
    assert any(isinstance(m, Note) and "a-1" in m.text for m in one.session.messages)
    await one.close()


async def test_news_never_says_thinking() -> None:
    local = LocalTools()
    scripts: list[Script] = [[TextDelta("One moment."), call("local.sum")], [TextDelta("It is done.")]]
    one = await stage(make_services(scripts, toolsets=[local]))
    one.app.agent_done("a-1")
    await one.quiet()
    assert "thinking" not in one.app.states()
    assert one.app.states()[-1] == "idle"
    await one.close()


# -- the end


async def test_a_session_closed_while_a_waiting_turn_begins_does_not_ask_the_model() -> None:
    store = SlowStore()
    first, never = asyncio.Event(), asyncio.Event()
    one = await stage(make_services([[first, TextDelta("One.")], [never]], store=store, mode="queue"))
    one.app.say("one")
    one.app.say("two")
    await steps(20)

    gate = asyncio.Event()
    gate.set()
    store.hold = gate
    first.set()
    while "One." not in one.app.finals():
        await steps(1)
    gate.clear()
    await steps(5)
    closing = asyncio.ensure_future(one.session.close())
    await steps(5)
    gate.set()
    await closing
    assert len(one.provider.requests) == 1
    await one.close()


async def test_a_session_closed_while_its_first_turn_begins_says_nothing_more() -> None:
    store = SlowStore()
    one = await stage(make_services([[TextDelta("One.")]], store=store))
    store.hold = asyncio.Event()
    one.app.say("one")
    await steps(5)
    said = len(one.app.log)
    closing = asyncio.ensure_future(one.session.close())
    await steps(5)
    store.hold.set()
    await closing
    await steps(20)
    assert one.app.shapes(said) in ([], PLAIN_TURN[:2])  # whoever claims it next goes on with the turn
    await one.close()


def fenced_after(messages: int) -> SlowStore:
    store = SlowStore()

    def fail(operations: Sequence[Operation]) -> StoreError | None:
        return Fenced("taken over") if len(store.commits) >= messages else None

    store.fail = fail
    return store


async def test_a_session_that_was_taken_over_says_nothing_to_a_transcript() -> None:
    one = await stage(make_services([[TextDelta("One.")]], store=fenced_after(0)))
    said = len(one.app.log)
    one.app.say("hi")
    await one.settled()
    assert one.app.shapes(said) == []
    await one.close()


async def test_a_session_that_was_taken_over_does_not_apologise() -> None:
    one = await stage(make_services([[ModelError("overloaded", "busy")]], store=fenced_after(1)))
    one.app.say("hi")
    await one.settled()
    assert one.app.shapes()[-1] == "append user"
    await one.close()


async def test_a_session_that_was_taken_over_does_not_answer() -> None:
    one = await stage(make_services([[TextDelta("One.")]], store=fenced_after(1)))
    one.app.say("hi")
    await one.settled()
    assert one.app.shapes()[-1] == "append user"
    await one.close()


async def test_words_that_are_no_unicode_still_end_idle_where_failures_are_not_spoken() -> None:
    script: Script = [TextDelta("half a \ud83d pair")]
    one = await stage(make_services([script], failures={}))
    since = len(one.app.log)
    one.app.say("hi")
    await one.settled()
    assert one.app.states(since)[-1] == "idle"
    await one.close()
