"""The drain: running turns end and are heard before their connections close."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conductor.app import make_services
from conductor.conversation.replay import replay
from conductor.messages import AssistantMessage, ToolCall, UserMessage
from conductor.models.base import TextDelta
from conductor.plugins.auth.tokens import TokenAuthenticator
from conductor.plugins.stores.sqlite import SqliteStore
from conductor.server.listener import Listener
from conductor.settings import load_settings
from conductor.stores.base import NO_ATTACHMENTS, Attachments, Claim
from tests.app import App
from tests.conftest import IOS_CATALOG
from tests.hasty import SHORT_S, hasten
from tests.models import Script, ScriptedProvider
from tests.server.nodes import KEY, Shelf, node, session_of, still_open
from tests.server.wires import WAIT, WiredStore, until
from tests.serving import Served, serving

LONG = 60.0
"""Seconds; no test waits that long."""


def silent_about(*names: str) -> Callable[[str], bool]:
    return lambda name: name not in names


async def closed(phone: App) -> int | None:
    """Wait until the server has closed a connection; returns the code."""
    await asyncio.wait_for(phone.closed.wait(), WAIT)
    return phone.close_code


async def speech_of(phone: App, since: int = 0) -> str:
    call = await phone.until("tts.speak", since=since)
    return str(call["payload"]["callId"])


def hi(_: object) -> Sequence[TextDelta]:
    return [TextDelta("Hi.")]


@asynccontextmanager
async def stopping(served: Served, phone: App) -> AsyncIterator[None]:
    """Drain a server during the block, after which it closes the phone's connection and stops."""
    stop = asyncio.create_task(served.listener.stop(drain_s=LONG))
    assert await still_open(phone) and not stop.done()
    yield
    assert await closed(phone) == 1012
    await asyncio.wait_for(stop, WAIT)


# -- the time of the close


async def test_idle_connections_close_at_once_and_others_after_their_speech() -> None:
    async with serving(ScriptedProvider(hi)) as served:
        quiet, unbound = served.phone("s-2"), served.phone("s-3")
        older, talking = served.phone(), served.phone(acknowledge=silent_about("tts.speak"))
        async with quiet, older, talking:  # the older one is parked
            await unbound.open(start=False)
            await quiet.ask("hi")
            since = len(talking.log)
            await talking.ask("hi")
            speech = await speech_of(talking, since)
            async with stopping(served, talking):
                assert [await closed(quiet), await closed(unbound)] == [1012, 1012]
                assert await still_open(talking)
                talking.result(speech, '{"spoken":true}')
            assert await closed(older) == 1012
            await unbound.close()


async def test_a_connection_with_a_turn_closes_after_its_answer_was_heard() -> None:
    go_on = asyncio.Event()
    provider = ScriptedProvider([[TextDelta("One, "), go_on, TextDelta("two.")]])
    async with serving(provider) as served:
        async with served.phone(acknowledge=silent_about("tts.speak")) as phone:
            since = len(phone.log)
            phone.say("count")
            await asyncio.wait_for(provider.record(0).started.wait(), WAIT)
            async with stopping(served, phone):
                event_id = phone.say("faster")  # it is refused, and the turn goes on
                await phone.until(lambda e: e["payload"].get("eventId") == event_id)
                go_on.set()
                speech = await speech_of(phone)
                assert await still_open(phone)
                phone.result(speech, '{"spoken":true}')
            assert phone.finals() == ["One, two."] and len(provider.requests) == 1
            assert [error["code"] for error in phone.errors()] == ["rate_limited"]
            assert [shape for shape in phone.shapes(since) if shape != "error"][-1] == "state idle"


@pytest.mark.parametrize("calls", ["tts.speak", ""], ids=["speeches", "all calls"])
async def test_calls_without_an_answer_delay_the_stop_until_they_time_out(calls: str) -> None:
    limits: dict[str, Any] = {"ui_timeout": 0.02, "speech_timeout": 0.1, "speech_seconds_per_char": 0.0}
    async with serving(ScriptedProvider(hi), **limits) as served:
        async with served.phone(acknowledge=lambda name: not name.startswith(calls)) as phone:
            await phone.ask("hi")
            await asyncio.wait_for(served.listener.stop(drain_s=LONG), WAIT)
            assert await closed(phone) == 1012


async def test_the_end_of_a_speech_is_recorded_before_its_connection_closes(tmp_path: Path) -> None:
    shelf = Shelf(lambda: SqliteStore(tmp_path / "sessions.db"))
    acknowledge, next_node = silent_about("tts.speak"), shelf.make()
    await next_node.open()
    async with node(shelf.make(), hi) as served, served.phone(acknowledge=acknowledge) as phone:
        await phone.ask("hi")
        session = session_of(served)
        speech = await speech_of(phone)
        async with served.phone("s-2", acknowledge=acknowledge) as talking:  # the stop waits for it
            await talking.ask("hi")
            phone.result(speech, '{"spoken":true}')
            await until(lambda: not session.outbox.outstanding)
            stop = asyncio.create_task(served.listener.stop(drain_s=LONG))
            assert await closed(phone) == 1012
            # Otherwise the app's next speech would wait there for the end of this one.
            outbound = replay((await next_node.claim(KEY)).commits).outbound.values()
            assert "speak" not in [event.kind for event in outbound]
            talking.result(await speech_of(talking), '{"spoken":true}')
            await asyncio.wait_for(stop, WAIT)
    await next_node.aclose()


async def test_during_a_drain_speech_may_be_interrupted_and_starts_no_turn() -> None:
    provider = ScriptedProvider(hi)
    async with serving(provider) as served:
        async with served.phone(acknowledge=silent_about("tts.speak")) as phone:
            await phone.ask("hi")
            speech = await speech_of(phone)
            async with stopping(served, phone):
                phone.send("agent.completed", {"agentId": "a", "status": "done", "summary": "Built."})
                for number in range(3):
                    since = len(phone.log)
                    event_id = phone.say(f"one more thing, {number}")
                    await phone.idle(since=since)
                    assert phone.shapes(since) == ["error", "state idle"]
                    (error,) = phone.errors(since)
                    assert error["code"] == "rate_limited" and error["eventId"] == event_id
                    assert 0 < error["retryAfterMs"] <= 10_000
                phone.interrupt()
                phone.result(speech, '{"spoken":true}')
            assert len(provider.requests) == 1


async def test_a_stop_waits_for_a_device_call_and_its_turn() -> None:
    provider = ScriptedProvider([[ToolCall("c-1", "agent.status", '{"id":"a"}')], [TextDelta("It runs.")]])
    async with serving(provider) as served, served.phone() as phone:
        phone.say("how is it?")
        call = await phone.until("agent.status")
        async with stopping(served, phone):
            phone.result(call["payload"]["callId"], "runs")
        assert phone.speeches() == ["It runs."] and phone.shapes()[-1] == "state idle"


async def test_a_turn_without_a_client_ends_before_the_stop() -> None:
    go_on = asyncio.Event()
    provider = ScriptedProvider([[TextDelta("One, "), go_on, TextDelta("two.")]])
    async with serving(provider) as served:
        phone = served.phone()
        await phone.open()
        phone.say("count")
        await asyncio.wait_for(provider.record(0).started.wait(), WAIT)
        (session,) = served.listener.registry.sessions
        await phone.cut()
        await served.empty()
        stop = asyncio.create_task(served.listener.stop(drain_s=LONG))
        await asyncio.wait([stop], timeout=0)
        go_on.set()
        await asyncio.wait_for(stop, WAIT)
        assert session.state.log[-1] == AssistantMessage(text="One, two.", provider=provider.name)
        assert not provider.record(0).closed_early


async def test_a_queued_transcript_is_answered_before_the_stop() -> None:
    go_on = asyncio.Event()
    provider = ScriptedProvider([[go_on, TextDelta("One.")], [TextDelta("Two.")]])
    async with serving(provider, mode="queue") as served, served.phone() as phone:
        phone.say("count")
        await asyncio.wait_for(provider.record(0).started.wait(), WAIT)
        phone.say("go on")
        assert await still_open(phone)
        async with stopping(served, phone):
            go_on.set()
        assert phone.finals() == ["One.", "Two."] and phone.errors() == []


# -- the limit of a drain


@pytest.mark.parametrize("waits_for", ["the model", "a speech", "a call"])
async def test_the_drain_has_a_time_limit(waits_for: str) -> None:
    scripts: dict[str, list[Script]] = {
        "the model": [[TextDelta("One, "), asyncio.Event()]],
        "a speech": [[TextDelta("Hi.")]],
        "a call": [[ToolCall("c-1", "agent.status", '{"id":"a"}')], [TextDelta("It runs.")]],
    }
    provider = ScriptedProvider(scripts[waits_for])
    async with serving(provider, close_timeout=1.0) as served:
        async with served.phone(acknowledge=silent_about("tts.speak")) as phone:
            phone.say("go")
            if waits_for == "the model":
                await phone.until("assistant.speech.partial")
            else:
                await phone.until("tts.speak" if waits_for == "a speech" else "agent.status")
            hasten()
            await asyncio.wait_for(served.listener.stop(drain_s=SHORT_S), WAIT)
            assert await closed(phone) == 1012
            await asyncio.wait_for(provider.record(0).closed.wait(), WAIT)
            assert phone.shapes()[-1] == "state idle", "the microphone is open again"
        assert served.listener.connections == 0 and len(served.listener.registry) == 0


# -- a slow store


class SlowStore(WiredStore):
    """A store whose commits wait for a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.committing = asyncio.Event()
        self.commit_gate = asyncio.Event()
        self.commit_gate.set()

    async def append(
        self,
        claim: Claim,
        commit_id: str,
        data: bytes,
        *,
        snapshot: bool = False,
        attachments: Attachments = NO_ATTACHMENTS,
    ) -> None:
        self.committing.set()
        await self.commit_gate.wait()
        await super().append(claim, commit_id, data, snapshot=snapshot, attachments=attachments)


@pytest.mark.parametrize("present", [True, False])
async def test_a_turn_whose_transcript_is_being_recorded_is_answered(present: bool) -> None:
    store = SlowStore()
    services = replace(
        make_services(load_settings(None, device_tools_file=IOS_CATALOG), ScriptedProvider(hi)), store=store
    )
    listener = Listener(services, TokenAuthenticator([]))
    await listener.start("127.0.0.1", 0)
    phone = App(f"ws://127.0.0.1:{listener.port}/ws")
    await phone.open()
    (session,) = listener.registry.sessions
    store.commit_gate.clear()
    store.committing.clear()
    phone.say("hi")
    await asyncio.wait_for(store.committing.wait(), WAIT)
    if not present:
        await phone.cut()
    stop = asyncio.create_task(listener.stop(drain_s=LONG))
    if present:
        assert await still_open(phone), "no client is delayed"
    store.commit_gate.set()
    await asyncio.wait_for(stop, WAIT)
    assert [type(message) for message in session.state.log] == [UserMessage, AssistantMessage]
    if present:
        assert await closed(phone) == 1012 and phone.speeches() == ["Hi."]
        await phone.close()
