"""More turns than a session may have in a minute: refused with a time to wait, and the microphone opens."""

from __future__ import annotations

from conductor.messages import ToolCall, ToolResult
from conductor.models.base import TextDelta
from conductor.models.scripted import ScriptedProvider
from conductor.settings import load_settings
from tests.end_to_end.conftest import Serve
from tests.end_to_end.phone import PLAIN_TURN, Event, is_call


def chatty() -> ScriptedProvider:
    return ScriptedProvider(lambda _: [TextDelta("Hi.")])


def per_minute(turns: int) -> float:
    """Give the limit that SESSION_RATE_LIMIT_PER_MIN sets."""
    return load_settings(None, session_rate_limit_per_min=turns).limits.turns_per_minute


async def test_a_turn_too_many_is_refused_with_a_time_to_wait_and_the_microphone_opens(serve: Serve) -> None:
    provider = chatty()
    async with serve(provider, turns_per_minute=per_minute(2)) as served, served.phone() as phone:
        for _ in range(2):
            since = len(phone.log)
            await phone.ask("hi")
            assert phone.shape(since) == PLAIN_TURN
        since = len(phone.log)
        event_id = await phone.say("and again")
        await phone.idle(since=since)
        assert phone.shape(since) == ["error", "state idle"]
        (error,) = phone.errors()
        assert error["code"] == "rate_limited" and error["eventId"] == event_id
        assert 20_000 < error["retryAfterMs"] <= 30_000
        assert not phone.closed.is_set()
    assert len(provider.requests) == 2


async def test_what_was_refused_is_no_part_of_the_conversation(serve: Serve) -> None:
    async with serve(chatty(), turns_per_minute=per_minute(1)) as served, served.phone() as phone:
        await phone.ask("hi")
        await phone.ask("what nobody heard")
        (session,) = served.listener.hub.sessions
        assert len(session.messages) == 2
        assert "what nobody heard" not in str(list(session.messages))


async def test_a_result_is_taken_however_many_turns_there_were(serve: Serve) -> None:
    calls = [ToolCall(f"c-{n}", "agent.status", f'{{"id":"a-{n}"}}') for n in range(3)]
    provider = ScriptedProvider([calls, [TextDelta("They run.")]])
    async with serve(provider, turns_per_minute=per_minute(1)) as served, served.phone() as phone:
        await phone.say("how are they?")
        found: list[Event] = []
        for _ in calls:
            since = phone.log.index(found[-1]) + 1 if found else 0
            found.append(await phone.until(is_call("agent.status"), since=since))
        # The limit is reached; a refused transcript does not stop the running turn either.
        refused = await phone.say("hello?")
        await phone.until(lambda e: e["payload"].get("eventId") == refused)
        since = len(phone.log)
        for event in found:
            await phone.result(event["payload"]["callId"], "runs")
        await phone.idle(since=since)
        assert phone.finals() == ["They run."]
        assert [error["code"] for error in phone.errors()] == ["rate_limited"]
    results = [m for m in provider.requests[-1].messages if isinstance(m, ToolResult)]
    assert len(results) == 3 and all("runs" in result.content for result in results)


async def test_the_limit_is_the_sessions_and_a_new_connection_changes_nothing(serve: Serve) -> None:
    provider = chatty()
    async with serve(provider, turns_per_minute=per_minute(1)) as served, served.phone() as phone:
        await phone.ask("hi")
        for leave in (phone.cut, phone.close):
            await leave()
            await served.empty()
            since = len(phone.log)
            await phone.open()
            await phone.idle(since=since)
            since = len(phone.log)
            await phone.ask("hi again")
            assert [error["code"] for error in phone.errors(since)] == ["rate_limited"]
    assert len(provider.requests) == 1


async def test_another_session_has_a_limit_of_its_own(serve: Serve) -> None:
    async with serve(chatty(), turns_per_minute=per_minute(1)) as served:
        async with served.phone() as phone, served.phone("s-2") as other:
            await phone.ask("hi")
            await phone.ask("hi")
            assert [error["code"] for error in phone.errors()] == ["rate_limited"]
            await other.ask("hi")
            assert other.errors() == [] and other.finals() == ["Hi."]


async def test_what_starts_no_turn_does_not_count(serve: Serve) -> None:
    async with serve(chatty(), turns_per_minute=per_minute(2)) as served, served.phone() as phone:
        await phone.ask("   ")
        for _ in range(5):
            await phone.send("user.audio.transcript.partial", {"text": "h"})
        await phone.ask("hi")
        since = len(phone.log)
        said = await phone.say("hi again", id="said-once")
        await phone.idle(since=since)
        since = len(phone.log)
        for _ in range(3):
            await phone.say("hi again", id=said)
        await phone.start()
        await phone.until(lambda e: e["type"] == "session.started", since=since)
        assert phone.finals() == ["Hi."] * 2
        assert [error["code"] for error in phone.errors()] == ["invalid_transcript"]


async def test_a_transcript_that_was_refused_may_be_said_again_under_its_id(serve: Serve) -> None:
    async with serve(chatty(), turns_per_minute=per_minute(1)) as served, served.phone() as phone:
        await phone.ask("hi")
        for _ in range(2):
            since = len(phone.log)
            await phone.say("again", id="said-twice")
            await phone.idle(since=since)
            assert phone.shape(since) == ["error", "state idle"], "it is not taken for a repetition"
