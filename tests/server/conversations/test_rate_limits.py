"""More turns than a session may have in a minute: refused with a time to wait, and the microphone opens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conductor.app import make_services, running
from conductor.messages import ToolCall, ToolResult
from conductor.models.base import Finished, TextDelta, Usage
from conductor.plugins.stores.sqlite import SqliteStore
from conductor.settings import load_settings
from tests.app import App
from tests.models import ScriptedProvider
from tests.server.nodes import echo, node
from tests.server.wires import WiredStore
from tests.serving import serving
from tests.shapes import PLAIN_TURN, Event


def chatty() -> ScriptedProvider:
    return ScriptedProvider(lambda _: [TextDelta("Hi.")])


def per_minute(turns: int) -> float:
    """Give the limit that SESSION_RATE_LIMIT_PER_MIN sets."""
    return load_settings(None, session_rate_limit_per_min=turns).limits.turns_per_minute


async def test_a_turn_too_many_is_refused_with_a_time_to_wait_and_the_microphone_opens() -> None:
    provider = chatty()
    async with serving(provider, turns_per_minute=per_minute(2)) as served, served.phone() as phone:
        for _ in range(2):
            since = len(phone.log)
            await phone.ask("hi")
            assert phone.shapes(since) == PLAIN_TURN
        since = len(phone.log)
        event_id = phone.say("and again")
        await phone.idle(since=since)
        assert phone.shapes(since) == ["error", "state idle"]
        (error,) = phone.errors()
        assert error["code"] == "rate_limited" and error["eventId"] == event_id
        assert 20_000 < error["retryAfterMs"] <= 30_000
        assert not phone.closed.is_set()
        (session,) = served.listener.registry.sessions
        assert "and again" not in str(list(session.state.log))
    assert len(provider.requests) == 2


async def test_a_result_is_taken_however_many_turns_there_were() -> None:
    calls = [ToolCall(f"c-{n}", "agent.status", f'{{"id":"a-{n}"}}') for n in range(3)]
    provider = ScriptedProvider([calls, [TextDelta("They run.")]])
    limits: dict[str, Any] = {"turns_per_minute": per_minute(1), "subject_turns_per_minute": 1.0}
    async with (
        serving(provider, tokens=TOKENS, **limits) as served,
        served.phone(headers=bearer(TOKENS[0])) as phone,
    ):
        phone.say("how are they?")
        turn_events: list[Event] = []
        for _ in calls:
            since = phone.log.index(turn_events[-1]) + 1 if turn_events else 0
            turn_events.append(await phone.until("agent.status", since=since))
        # The limit is reached; a refused transcript does not stop the running turn either.
        refused = phone.say("hello?")
        await phone.until(lambda e: e["payload"].get("eventId") == refused)
        since = len(phone.log)
        for event in turn_events:
            phone.result(event["payload"]["callId"], "runs")
        await phone.idle(since=since)
        assert phone.finals() == ["They run."]
        assert [error["code"] for error in phone.errors()] == ["rate_limited"]
    results = [m for m in provider.requests[-1].messages if isinstance(m, ToolResult)]
    assert len(results) == 3 and all("runs" in result.content for result in results)


async def test_the_limit_is_the_sessions_and_a_new_connection_changes_nothing() -> None:
    provider = chatty()
    async with serving(provider, turns_per_minute=per_minute(1)) as served, served.phone() as phone:
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


async def test_a_transcript_that_starts_no_turn_does_not_count() -> None:
    async with serving(chatty(), turns_per_minute=per_minute(2)) as served, served.phone() as phone:
        await phone.ask("   ")
        for _ in range(5):
            phone.send("user.audio.transcript.partial", {"text": "h"})
        await phone.ask("hi")
        since = len(phone.log)
        words_id = phone.say("hi again", id="said-once")
        await phone.idle(since=since)
        since = len(phone.log)
        for _ in range(3):
            phone.say("hi again", id=words_id)
        phone.start()
        await phone.until("session.started", since=since)
        assert phone.finals() == ["Hi."] * 2
        assert [error["code"] for error in phone.errors()] == ["invalid_transcript"]


# -- one token, many sessions

TOKENS = ("first-token", "second-token")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_turns_of_all_sessions_with_one_token_count_together() -> None:
    provider, most = chatty(), load_settings(None, subject_turns_per_min=3).limits.subject_turns_per_minute
    async with serving(provider, tokens=TOKENS, subject_turns_per_minute=most) as served:
        for number in range(3):
            async with served.phone(f"s-{number}", headers=bearer(TOKENS[0])) as phone:
                await phone.ask("hi")
                assert phone.finals() == ["Hi."]
        async with served.phone("s-9", headers=bearer(TOKENS[0])) as phone:
            since = len(phone.log)
            phone.say("and again")
            await phone.idle(since=since)
            assert phone.shapes(since) == ["error", "state idle"]
            (error,) = phone.errors()
            assert error["code"] == "rate_limited" and 10_000 < error["retryAfterMs"] <= 20_000
        async with served.phone("s-9", headers=bearer(TOKENS[1])) as other_phone:
            await other_phone.ask("hi")
            assert other_phone.finals() == ["Hi."]
    assert len(provider.requests) == 4


# -- a day's tokens


async def test_a_turn_beyond_the_days_budget_says_so_and_asks_no_model() -> None:
    provider = ScriptedProvider(lambda _: [TextDelta("Hi."), Finished("end_turn", Usage(60, 50))])
    settings = load_settings(None, port=0, daily_token_budget=100, auth_tokens=",".join(TOKENS))
    async with running(settings, make_services(settings, provider)) as listener:
        url = f"ws://127.0.0.1:{listener.port}/ws"
        async with App(url, "s-1", headers=bearer(TOKENS[0])) as phone:
            await phone.ask("hi")
            assert phone.finals() == ["Hi."]
        async with App(url, "s-2", headers=bearer(TOKENS[0])) as phone:
            await phone.ask("hi")
            assert [error["code"] for error in phone.errors()] == ["rate_limited"]
            assert phone.speeches() == ["Sorry, today's allowance is used up. Please come back tomorrow."]
            assert phone.shapes()[-1] == "state idle"
            await phone.ask("hi again")
            assert [error["code"] for error in phone.errors()] == ["rate_limited"] * 2
            assert len(phone.speeches()) == 1, "it is spoken once"
        async with App(url, "s-3", headers=bearer(TOKENS[1])) as other_phone:
            await other_phone.ask("hi")
            assert other_phone.finals() == ["Hi."]
    assert len(provider.requests) == 2


# -- sessions


async def test_a_session_too_many_is_refused_clearly_and_existing_ones_can_be_resumed(tmp_path: Path) -> None:
    settings = load_settings(
        None, port=0, max_kept_sessions_per_subject=1, auth_tokens=TOKENS[0], data_dir=tmp_path
    )
    async with running(settings, make_services(settings, chatty())) as listener:
        url = f"ws://127.0.0.1:{listener.port}/ws"
        async with App(url, "s-1", headers=bearer(TOKENS[0])) as phone:
            await phone.ask("hi")
        async with App(url, "s-1", headers=bearer(TOKENS[0])) as phone:
            assert phone.log[0]["payload"]["resumed"] is True
        refused = App(url, "s-2", headers=bearer(TOKENS[0]))
        await refused.open(start=False)
        refused.start()
        error = await refused.until("error")
        assert error["payload"]["code"] == "rate_limited"
        assert error["payload"]["message"].startswith("1 sessions of this person are stored")
        assert error["payload"]["retryAfterMs"] == 60_000
        refused.say("hello?")
        await refused.idle()
        assert not refused.closed.is_set()
        await refused.close()


async def test_words_that_the_store_did_not_take_use_up_no_turn(tmp_path: Path) -> None:
    store = WiredStore(SqliteStore(tmp_path / "sessions.db"))
    async with node(store, echo, turns_per_minute=per_minute(1)) as served, served.phone() as phone:
        store.away = True
        phone.say("one")
        await phone.until("error")
        assert [error["code"] for error in phone.errors()] == ["store_unavailable"]
        store.away = False
        await phone.ask("two")
        assert phone.finals() == ["Heard two."]
