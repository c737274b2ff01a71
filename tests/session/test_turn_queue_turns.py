"""The order of turns, where transcripts, news, interruptions and slow commits meet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from conductor.conversation.heard import HEARD_NOTHING
from conductor.conversation.phrases import FAILURES
from conductor.conversation.records import Commit, ReplyLogged, TurnStarted
from conductor.errors import Fenced, ModelError, StoreError, StoreUnavailable
from conductor.events import client
from conductor.messages import AssistantMessage, Note, UserMessage
from conductor.models.base import ModelRequest, TextDelta
from conductor.session.inbound import handle
from tests.models import Script
from tests.session.helpers import (
    SPOKEN,
    LocalTools,
    SlowStore,
    call,
    inbound,
    later,
    make_services,
    open_stage,
    steps,
)
from tests.shapes import PLAIN_TURN, shape_of


def logs(commit: Commit, kind: type) -> bool:
    """Whether a commit logs a message of a kind."""
    if kind is AssistantMessage:
        return any(isinstance(record, ReplyLogged) for record in commit.records)
    causes = ("news",) if kind is Note else ("transcript",)
    return any(isinstance(record, TurnStarted) and record.cause in causes for record in commit.records)


def users(messages: Sequence[object]) -> list[str]:
    return [m.text for m in messages if isinstance(m, UserMessage)]


def answers(messages: Sequence[object]) -> list[str]:
    return [m.text for m in messages if isinstance(m, AssistantMessage)]


def deaf_to_speech(name: str, call_id: str) -> str | None:
    """Acknowledge all but speech, which still plays."""
    return None if name == "tts.speak" else SPOKEN


# -- transcripts that wait


async def test_at_most_three_transcripts_wait_and_a_fourth_is_refused() -> None:
    hold = asyncio.Event()

    def reply(request: ModelRequest) -> Script:
        return [hold, TextDelta(f"To {request.messages[-1].text}.")]  # type: ignore[union-attr]  # a user's

    stage = await open_stage(make_services(reply, mode="queue"))
    for number in range(5):
        stage.app.say(f"q{number}")
    await steps(20)
    assert stage.app.error_codes() == ["rate_limited"]
    hold.set()
    await stage.quiet()
    assert users(stage.session.state.log) == ["q0", "q1", "q2", "q3"]
    assert stage.app.finals() == ["To q0.", "To q1.", "To q2.", "To q3.", FAILURES["rate_limited"]]


@pytest.mark.parametrize("speaks_failures", [True, False])
async def test_a_person_hears_once_that_words_were_refused_when_those_before_them_are_answered(
    speaks_failures: bool,
) -> None:
    hold = asyncio.Event()

    def reply(request: ModelRequest) -> Script:
        return [hold, TextDelta(f"To {request.messages[-1].text}.")]  # type: ignore[union-attr]  # a user's

    services = make_services(reply, mode="queue", failures=FAILURES if speaks_failures else {})
    stage = await open_stage(services)
    for number in range(7):
        stage.app.say(f"q{number}")
    await steps(50)
    assert stage.app.error_codes() == ["rate_limited"] * 3
    hold.set()
    await stage.quiet()
    sentences = [FAILURES["rate_limited"]] if speaks_failures else []
    assert stage.app.finals()[4:] == sentences
    assert stage.app.speeches()[4:] == sentences
    assert stage.app.shapes()[-5:] == PLAIN_TURN[2:]
    assert stage.app.states().count("idle") == 1 + speaks_failures
    await stage.ask("q8")
    assert stage.app.finals()[-1] == "To q8."


async def test_of_transcripts_that_follow_each_other_only_the_last_is_answered() -> None:
    def reply(request: ModelRequest) -> Script:
        text = users(request.messages)[-1]
        return [asyncio.Event()] if text == "one" else [TextDelta(f"To {text}.")]

    stage = await open_stage(make_services(reply), say="one")
    await steps(20)
    since = len(stage.app.log)
    stage.app.say("two")
    await stage.ask("three")
    assert users(stage.session.state.log) == ["one", "two", "three"]
    assert [users(r.messages)[-1] for r in stage.provider.requests] == ["one", "three"]
    assert stage.app.shapes(since) == [*PLAIN_TURN[:2], *PLAIN_TURN]


async def test_an_interrupted_answer_names_the_finished_actions() -> None:
    local = LocalTools()
    local.go.set()
    scripts: list[Script] = [[call("local.write"), call("local.sum")], [TextDelta("It is written.")]]
    stage = await open_stage(make_services(scripts, toolsets=[local]), deaf_to_speech, say="go")
    await stage.app.until("tts.speak")
    await stage.settled()
    stage.app.interrupt(spokenText="It")
    await steps(20)
    sentences = answers(stage.session.state.log)[-1]
    assert sentences.startswith("It [")
    assert "local.write" in sentences
    assert "local.sum" not in sentences


async def test_the_heard_part_of_an_earlier_answer_is_shown_to_the_model_from_the_next_turn_on() -> None:
    local = LocalTools()
    scripts: list[Script] = [
        [TextDelta("First.")], [call("local.wait")], [TextDelta("Second.")], [TextDelta("Third.")],
    ]  # fmt: skip
    services = make_services(scripts, toolsets=[local])
    stage = await open_stage(services, deaf_to_speech, say="one")
    await stage.settled()
    stage.app.say("two")
    await local.started.wait()
    stage.app.interrupt(spokenText="Fi")
    await steps(20)
    assert answers(stage.session.state.log)[0].startswith("Fi [")
    local.go.set()
    await stage.settled()
    stage.app.say("three")
    await stage.settled()
    _, before, after, following = (list(request.messages) for request in stage.provider.requests)
    assert after[: len(before)] == before
    assert answers(following)[0].startswith("Fi [")


async def test_a_transcript_repeated_on_another_line_during_its_commit_is_answered_once() -> None:
    store = SlowStore()
    stage = await open_stage(make_services(lambda _: [TextDelta("Yes.")], store=store))
    store.hold = asyncio.Event()
    stage.app.say("hello", id="event-1")
    await steps(5)
    opening = asyncio.ensure_future(stage.app.connect(stage.session))
    await steps(5)
    stage.app.say("hello", id="event-1")
    await steps(5)
    store.hold.set()
    await opening
    await stage.quiet()
    assert users(stage.session.state.log) == ["hello"]


async def test_a_repeated_transcript_opens_the_microphone_again() -> None:
    stage = await open_stage(make_services([[TextDelta("Yes.")]]))
    stage.app.say("hello", id="event-1")
    await stage.quiet()
    mark = len(stage.app.log)
    stage.app.say("hello", id="event-1")
    await stage.quiet()
    assert [shape_of(event) for event in stage.app.log[mark:]] == ["state idle"]


async def test_a_transcript_that_was_refused_for_the_store_is_not_answered_all_the_same() -> None:
    hold = asyncio.Event()
    store = SlowStore()
    stage = await open_stage(
        make_services([[hold, TextDelta("One.")], [TextDelta("Two.")], [TextDelta("3")]], store=store)
    )
    stage.app.say("one", id="event-1")
    await steps(10)
    store.fail = lambda operations: StoreUnavailable("away")
    stage.app.say("two", id="event-2")
    await steps(5)
    assert stage.app.error_codes() == ["store_unavailable"]
    store.fail = lambda operations: None
    hold.set()
    await stage.quiet()
    assert users(stage.session.state.log) == ["one"]
    stage.app.say("two", id="event-2")  # as the person, or the app, does after the error
    await stage.quiet()
    assert users(stage.session.state.log) == ["one", "two"]


async def test_a_client_that_was_away_with_the_store_is_answered_once_both_are_back() -> None:
    hold = asyncio.Event()
    store = SlowStore()
    stage = await open_stage(
        make_services([[hold, TextDelta("One.")], [TextDelta("Two.")]], store=store), say="one"
    )
    await steps(10)
    store.fail = lambda commit: StoreUnavailable("away")
    stage.app.line.cut()
    hold.set()
    await later(10)
    assert stage.session.busy
    store.fail = lambda commit: None
    await later(2)
    await stage.app.connect(stage.session)
    await stage.quiet()
    await stage.ask("two")
    assert stage.app.finals() == ["One.", "Two."]


async def test_transcripts_that_waited_for_a_store_are_answered_before_the_next_one() -> None:
    hold = asyncio.Event()
    store = SlowStore()

    def reply(request: ModelRequest) -> Script:
        text = users(request.messages)[-1]
        return [hold, TextDelta("One.")] if text == "one" else [TextDelta(f"To {text}.")]

    stage = await open_stage(make_services(reply, store=store, mode="queue"), say="one")
    await steps(10)
    stage.app.say("two")
    stage.app.say("three")
    await steps(10)
    store.fail = lambda o: StoreUnavailable("away") if logs(o, UserMessage) else None
    hold.set()
    await later(0.1)
    assert stage.app.error_codes() == ["store_unavailable"]
    store.fail = lambda operations: None
    await stage.ask("four")
    texts = users(stage.session.state.log)
    assert texts == ["one", "two", "three", "four"]


async def test_a_transcript_that_waited_for_a_store_is_answered_once_the_store_is_back() -> None:
    hold, store = asyncio.Event(), SlowStore()
    scripts: list[Script] = [[hold, TextDelta("One.")], [TextDelta("Two.")]]
    stage = await open_stage(make_services(scripts, store=store, mode="queue"), say="one")
    await steps(10)
    stage.app.say("two")
    await steps(10)
    store.fail = lambda o: StoreUnavailable("away") if logs(o, UserMessage) else None
    hold.set()
    await later(1)
    store.fail = lambda operations: None
    await later(10)
    assert stage.app.finals() == ["One.", "Two."]


@pytest.mark.parametrize("begins_while_recorded", [False, True])
async def test_a_transcript_never_stops_the_turn_that_answers_it(begins_while_recorded: bool) -> None:
    store = SlowStore()
    local = LocalTools()
    local.go.set()
    hold, slow_begin = asyncio.Event(), asyncio.Event()

    def reply(request: ModelRequest) -> Script:
        if users(request.messages)[-1] == "two":
            return [slow_begin, TextDelta("Second.")]
        has_reply = any(isinstance(m, AssistantMessage) for m in request.messages)
        return [hold, TextDelta("Done.")] if has_reply else [TextDelta("I look."), call("local.sum")]

    stage = await open_stage(make_services(reply, store=store, toolsets=[local]), deaf_to_speech, say="one")
    await stage.app.until("tts.speak")  # it is playing: the answer's own speech will be held
    await steps(20)
    store.hold = asyncio.Event()
    hold.set()
    await steps(10)  # the answer is being committed
    stage.app.say("two")
    await steps(10)
    if begins_while_recorded:  # the turn before ends while the transcript is on its way into the store
        answer, store.hold = store.hold, asyncio.Event()
        answer.set()
        await steps(20)
    transcript, store.hold = store.hold, None
    transcript.set()
    await steps(50)
    slow_begin.set()
    await stage.quiet()
    assert users(stage.session.state.log) == ["one", "two"]
    assert "Second." in stage.app.finals()


# -- interruptions


async def test_a_speech_that_was_taken_back_is_no_speech_to_interrupt() -> None:
    local = LocalTools()
    local.go.set()
    hold = asyncio.Event()

    def reply(request: ModelRequest) -> Script:
        if users(request.messages)[-1] == "two":
            return [TextDelta("So"), hold, TextDelta(" much.")]
        has_reply = any(isinstance(m, AssistantMessage) for m in request.messages)
        return [TextDelta("Done.")] if has_reply else [TextDelta("I look."), call("local.sum")]

    stage = await open_stage(make_services(reply, toolsets=[local]), deaf_to_speech, say="one")
    await stage.settled()
    first = (await stage.app.until("tts.speak"))["payload"]["callId"]
    stage.app.say("two")  # takes back the second speech, which waits for the first
    await steps(20)
    stage.app.result(first, SPOKEN)
    await later(1)
    stage.app.interrupt()  # no speech plays: the running answer is meant
    await steps(20)
    assert not stage.session.busy, "the running turn goes on"
    assert HEARD_NOTHING in answers(stage.session.state.log)[1]
    hold.set()


async def test_a_speech_that_was_too_old_to_replay_is_no_speech_to_interrupt() -> None:
    hold = asyncio.Event()
    services = make_services([[TextDelta("First.")], [TextDelta("So"), hold]], stale_speech=-1.0)
    stage = await open_stage(services, deaf_to_speech, say="one")
    await stage.settled()
    stage.app.line.cut()  # the acknowledgement is lost with the line
    await stage.app.connect(stage.session)  # and the speech is too old to be repeated
    await steps(5)
    stage.app.say("two")
    await steps(20)
    stage.app.interrupt()
    await steps(20)
    assert not stage.session.busy, "the running turn goes on"
    assert answers(stage.session.state.log)[0] == "First.", "another answer was marked as interrupted"


async def test_a_client_that_acknowledges_nothing_can_interrupt_its_second_answer() -> None:
    hold = asyncio.Event()
    stage = await open_stage(
        make_services([[TextDelta("First.")], [TextDelta("So"), hold]]), lambda name, call_id: None, say="one"
    )
    await stage.settled()
    stage.app.say("two")
    await steps(20)
    stage.app.interrupt()
    await steps(20)
    assert not stage.session.busy, "the running turn goes on"
    assert answers(stage.session.state.log)[0] == "First."


async def test_a_speech_whose_commit_failed_is_no_speech_to_interrupt() -> None:
    hold = asyncio.Event()
    store = SlowStore()
    stage = await open_stage(make_services([[TextDelta("First.")], [TextDelta("So"), hold]], store=store))
    store.fail = lambda o: StoreUnavailable("away") if logs(o, AssistantMessage) else None
    stage.app.say("one")
    await later(0.1)
    assert stage.app.speeches() == []
    store.fail = lambda operations: None
    stage.app.say("two")
    await steps(20)
    stage.app.interrupt()
    await steps(20)
    assert users(stage.session.state.log) == ["one", "two"], "the user's words were overwritten"
    assert not stage.session.busy


async def test_an_answer_interrupted_during_its_commit_is_either_heard_or_not_spoken() -> None:
    store = SlowStore()
    stage = await open_stage(make_services([[TextDelta("A long story.")]], store=store), slow=True, say="one")
    while not stage.provider.requests:
        await steps(1)
    store.hold = asyncio.Event()
    await steps(5)
    stage.app.interrupt()
    await steps(5)
    store.hold.set()
    await stage.settled()
    stage.app.line.slow = False
    stage.app.line.flush()
    await stage.quiet()
    history = answers(stage.session.state.log)
    assert stage.app.speeches() == [] or history == ["A long story."], (stage.app.speeches(), history)


# -- news


async def test_news_waits_for_the_running_turn_and_leaves_thinking_out() -> None:
    hold = asyncio.Event()
    stage = await open_stage(
        make_services([[hold, TextDelta("Sure.")], [TextDelta("Both are done.")]]), say="hi"
    )
    await steps(10)
    stage.app.agent_done("a-1")
    stage.app.agent_done("a-2")
    stage.app.agent_done("a-2")  # the same again, under an id of its own
    await steps(20)
    assert len(stage.provider.requests) == 1
    hold.set()
    await stage.quiet()
    assert stage.app.finals() == ["Sure.", "Both are done."]
    assert stage.app.shapes()[1:] == [*PLAIN_TURN, *PLAIN_TURN[2:]]
    (note,) = [m for m in stage.session.state.log if isinstance(m, Note)]
    assert note.text.count("a-1") == 1
    assert note.text.count("a-2") == 1


async def test_news_waits_until_the_speech_is_over() -> None:
    stage = await open_stage(
        make_services([[TextDelta("Sure.")], [TextDelta("It is done.")]]), deaf_to_speech, say="hi"
    )
    await stage.settled()
    stage.app.agent_done("a-1")
    await steps(50)
    assert len(stage.provider.requests) == 1
    speech = await stage.app.until("tts.speak")
    stage.app.result(speech["payload"]["callId"], SPOKEN)
    await stage.app.until("assistant.speech.final", since=len(stage.app.log))
    assert stage.app.finals() == ["Sure.", "It is done."]


async def test_news_waits_for_the_floor_until_the_person_is_silent() -> None:
    stage = await open_stage(make_services([[TextDelta("It is done.")]], floor_timeout=5.0))
    loop = asyncio.get_running_loop()
    stage.app.line.say(client.TranscriptPartial("I"))
    stage.app.agent_done("a-1")
    for _ in range(3):
        await later(4)
        stage.app.line.say(client.TranscriptPartial("I would"))
    last = loop.time()
    assert stage.provider.requests == []
    await stage.app.until("assistant.speech.final")
    assert loop.time() == pytest.approx(last + 5.0)
    await stage.quiet()


async def test_news_waits_until_the_microphone_of_a_client_without_partials_was_open_for_a_while() -> None:
    scripts: list[Script] = [[TextDelta("Sure.")], [TextDelta("It is done.")]]
    stage = await open_stage(make_services(scripts, open_microphone=4.0), deaf_to_speech)
    loop = asyncio.get_running_loop()
    stage.app.say("hi")
    speech = await stage.app.until("tts.speak")
    stage.app.agent_done("a-1")
    await later(3)
    stage.app.result(speech["payload"]["callId"], SPOKEN)  # from now on the microphone is open
    opened = loop.time()
    await later(3.9)
    assert len(stage.provider.requests) == 1
    await stage.app.until("assistant.speech.final", since=len(stage.app.log))
    assert loop.time() == pytest.approx(opened + 4.0)


async def test_news_waits_after_words_that_started_no_turn_and_after_a_connection() -> None:
    stage = await open_stage(make_services([[TextDelta("It is done.")]], open_microphone=4.0))
    loop = asyncio.get_running_loop()
    await later(3)
    stage.app.agent_done("a-1")
    stage.app.say(" ")
    await later(3)
    assert stage.app.error_codes() == ["invalid_transcript"]
    stage.app.line.cut()
    await stage.app.connect(stage.session)
    connected = loop.time()
    await stage.app.until("assistant.speech.final")
    assert loop.time() == pytest.approx(connected + 4.0)


async def test_news_that_comes_while_the_microphone_is_long_open_is_told_at_once() -> None:
    stage = await open_stage(make_services([[TextDelta("It is done.")]], open_microphone=4.0))
    await later(60)
    stage.app.agent_done("a-1")
    await steps(50)
    assert stage.app.finals() == ["It is done."]


async def test_news_beyond_the_rate_of_turns_waits_until_the_rate_allows_it() -> None:
    replies = [[TextDelta("Hello.")], [TextDelta("It is done.")]]
    stage = await open_stage(make_services(replies, turns_per_minute=1.0))
    await stage.ask("hello")
    asked = asyncio.get_running_loop().time()
    stage.app.agent_done("a-1")
    await later(50)
    assert stage.app.finals() == ["Hello."]
    await stage.app.until("assistant.speech.final", since=len(stage.app.log))
    assert asyncio.get_running_loop().time() == pytest.approx(asked + 60.0, abs=1.0)


async def test_a_transcript_goes_before_news() -> None:
    stage = await open_stage(make_services([[TextDelta("Hello.")], [TextDelta("It is done.")]]))
    stage.app.line.say(client.TranscriptPartial("he"))
    stage.app.agent_done("a-1")
    await stage.ask("hello")
    assert stage.app.finals() == ["Hello.", "It is done."]


async def test_news_waits_for_a_listener() -> None:
    stage = await open_stage(make_services([[TextDelta("It is done.")]]))
    line = stage.app.line
    await stage.quiet()
    line.cut()
    await handle(stage.session, inbound(client.AgentCompleted(agent_id="a-1", status="FINISHED")), line)
    await later(100)
    assert stage.provider.requests == []
    await stage.app.connect(stage.session)
    await stage.quiet()
    assert stage.app.finals() == ["It is done."]
    assert stage.app.states()[-1] == "idle"


async def test_at_most_sixteen_pieces_of_news_wait() -> None:
    hold = asyncio.Event()
    stage = await open_stage(make_services([[hold, TextDelta("Sure.")], [TextDelta("Done.")]]), say="hi")
    for number in range(20):
        stage.app.agent_done(f"agent-{number:02}")
    await steps(60)
    hold.set()
    await stage.quiet()
    (note,) = [m for m in stage.session.state.log if isinstance(m, Note)]
    assert [f"agent-{n:02}" in note.text for n in range(20)] == [False] * 4 + [True] * 16


async def test_news_that_is_too_old_to_be_told_by_itself_goes_with_the_next_turn() -> None:
    stage = await open_stage(make_services([[TextDelta("Hello.")], [TextDelta("x")]]))
    line = stage.app.line
    await stage.quiet()
    line.cut()
    await handle(stage.session, inbound(client.AgentCompleted(agent_id="a-1", status="FINISHED")), line)
    await later(700)
    await stage.app.connect(stage.session)
    await stage.quiet()
    assert stage.provider.requests == []
    await stage.ask("hello")
    assert any(isinstance(m, Note) and "a-1" in m.text for m in stage.session.state.log)


async def test_news_survives_a_store_that_is_away() -> None:
    store = SlowStore(fail=lambda o: StoreUnavailable("away") if logs(o, Note) else None)
    stage = await open_stage(make_services([[TextDelta("Hello.")], [TextDelta("It is done.")]], store=store))
    stage.app.agent_done("a-1")
    await later(1)
    store.fail = lambda operations: None
    await stage.ask("hello")
    assert any(isinstance(m, Note) and "a-1" in m.text for m in stage.session.state.log)


# -- the end


def fenced_after(messages: int) -> SlowStore:
    store = SlowStore()

    def fail(commit: Commit) -> StoreError | None:
        before = sum(isinstance(record, TurnStarted) for record in store.records)
        starts = any(isinstance(record, TurnStarted) for record in commit.records)
        return Fenced("taken over") if before >= messages and (before or starts) else None

    store.fail = fail
    return store


async def test_a_session_that_was_taken_over_does_not_apologise() -> None:
    stage = await open_stage(
        make_services([[ModelError("overloaded", "busy")]], store=fenced_after(1)), say="hi"
    )
    await stage.settled()
    assert stage.app.shapes()[-1] == "append user"


async def test_words_that_are_no_unicode_still_end_idle_where_failures_are_not_spoken() -> None:
    script: Script = [TextDelta("half a \ud83d pair")]
    stage = await open_stage(make_services([script], failures={}))
    since = len(stage.app.log)
    stage.app.say("hi")
    await stage.settled()
    assert stage.app.states(since)[-1] == "idle"
