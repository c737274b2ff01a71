"""The network goes and comes back; nothing is lost and nothing is done twice."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.app import App
from tests.end_to_end.conftest import provider_for, serving
from tests.end_to_end.dialogues import results_of
from tests.models import AnthropicService, Call, Reply
from tests.server.wires import until
from tests.shapes import PLAIN_TURN, shape_of


async def test_a_cut_in_the_middle_of_an_answer_loses_nothing(claude: AnthropicService) -> None:
    going_on = asyncio.Event()
    claude.replies.append(Reply(text="One two three.", hold=going_on, hold_at=1))
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        phone.say("count")
        await phone.until("assistant.speech.partial")
        await phone.cut()
        going_on.set()
        await served.quiet()
        since = len(phone.log)
        await phone.open()
        await phone.idle(since=since)
        assert phone.finals() == ["One two three."]
        assert phone.speeches() == ["One two three."]
        assert phone.shapes(since)[:3] == ["session.started", "assistant.speech.final", "append assistant"]
        started = phone.log[since]
        assert started["payload"] == {"sessionId": "s-1", "resumed": True}


async def test_a_cut_while_a_reading_tool_runs_replays_the_call_with_its_id(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(Call("agent_status", {"id": "a"}),)), Reply(text="It runs.")]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        phone.say("how is it?")
        call = await phone.until("agent.status")
        await phone.cut()
        await phone.open()
        phone.result(call["payload"]["callId"], "runs")
        await phone.until("state idle", since=phone.log.index(call))
        assert phone.runs == [("agent.status", {"id": "a"})]
        assert [e["id"] for e in phone.repeated if shape_of(e) == "agent.status"] == [call["id"]]
        assert phone.finals() == ["It runs."]
    assert results_of(claude.requests[-1])[0]["data"] == "runs"


async def test_a_cut_while_a_writing_tool_runs_does_not_send_it_again(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(Call("agent_cancel", {"id": "a"}),)), Reply(text="Gone.")]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        phone.say("cancel it")
        call = await phone.until("agent.cancel")
        await phone.cut()
        await phone.open()
        phone.result(call["payload"]["callId"], "cancelled")
        await phone.until("assistant.speech.final")
        assert not [e for e in phone.repeated if shape_of(e) == "agent.cancel"]
        assert phone.runs == [("agent.cancel", {"id": "a"})]


async def test_a_relaunched_app_is_not_asked_to_write_again(claude: AnthropicService) -> None:
    claude.replies += [
        Reply(calls=(Call("agent_cancel", {"id": "a"}), Call("agent_status", {"id": "b"}))),
        Reply(text="I don't know."),
    ]
    async with serving(provider_for(claude), tool_timeout=0.3) as served:
        first = served.phone()
        await first.open()
        first.say("cancel a")
        await first.until("agent.status")
        await first.cut()
        async with served.phone(tools={"agent.status": lambda a: "runs"}) as relaunched:
            await relaunched.until("assistant.speech.final")
            assert [name for name, _ in relaunched.runs] == ["agent.status"]
    cancelled, status = results_of(claude.requests[-1])
    assert (cancelled["error_type"], status["data"]) == ("unknown", "runs")


async def test_a_write_call_that_no_socket_ever_had_is_sent_on_reconnect(claude: AnthropicService) -> None:
    going_on = asyncio.Event()
    claude.replies += [
        Reply(calls=(Call("agent_cancel", {"id": "a"}),), hold=going_on),
        Reply(text="Gone."),
    ]
    async with serving(provider_for(claude)) as served:
        async with served.phone(tools={"agent.cancel": lambda a: "cancelled"}) as phone:
            phone.say("cancel it")
            await claude.wait_open(1)
            await phone.cut()
            await served.empty()
            going_on.set()
            await claude.wait_open(0)
            await phone.open()
            await phone.until("assistant.speech.final")
            assert phone.runs == [("agent.cancel", {"id": "a"})]


async def test_a_result_may_overtake_the_session_start(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(Call("agent_cancel", {"id": "a"}),)), Reply(text="Gone.")]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        phone.say("cancel it")
        call = await phone.until("agent.cancel")
        await phone.cut()
        await phone.open(start=False)
        phone.result(call["payload"]["callId"], "cancelled")
        phone.start()
        await phone.until("session.started", since=phone.log.index(call))
        await phone.idle()
        assert phone.finals() == ["Gone."]


async def test_stale_speech_is_left_out_of_a_replay_and_its_text_is_not(claude: AnthropicService) -> None:
    going_on = asyncio.Event()
    claude.replies.append(Reply(text="Old news.", hold=going_on))
    async with serving(provider_for(claude), stale_speech=0.0) as served, served.phone() as phone:
        phone.say("news?")
        await claude.wait_open(1)
        await phone.cut()
        await served.empty()
        going_on.set()
        await served.quiet()
        await phone.open()
        await phone.idle()
        assert phone.finals() == ["Old news."]
        assert phone.speeches() == []


async def test_a_replay_has_the_latest_state_and_a_speech_its_own(claude: AnthropicService) -> None:
    going_on = asyncio.Event()
    claude.replies.append(Reply(text="Hello.", hold=going_on))
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        phone.say("hi")
        await claude.wait_open(1)
        await phone.cut()
        await served.empty()
        going_on.set()
        await served.quiet()
        since = len(phone.log)
        await phone.open()
        await phone.idle(since=since)
        fence = phone.say("")
        await phone.until(lambda e: e["payload"].get("eventId") == fence)
        states = [shape for shape in phone.shapes(since) if shape.startswith("state")]
        assert states[0] == "state speaking" and set(states[1:]) == {"state idle"}


async def test_a_resume_with_no_turn_running_opens_the_microphone(claude: AnthropicService) -> None:
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await phone.ask("hi")
        await phone.cut()
        since = len(phone.log)
        await phone.open()
        await phone.idle(since=since)
        assert phone.shapes(since) == ["session.started", "state idle"]


async def test_a_repeated_or_unknown_result_changes_nothing(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(Call("agent_status", {"id": "a"}),)), Reply(text="It runs.")]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        phone.say("how is it?")
        call = await phone.until("agent.status")
        phone.result("call-unknown", "what?")
        for answer in ("runs", "exploded", "runs"):
            phone.result(call["payload"]["callId"], answer)
        await phone.idle()
        await phone.ask("thanks")
        assert phone.errors() == []
    assert results_of(claude.requests[-2])[0]["data"] == "runs"
    assert "exploded" not in json.dumps(claude.requests[-1])


async def test_a_session_ends_when_its_grace_is_over(claude: AnthropicService) -> None:
    async with serving(provider_for(claude), session_grace=0.0) as served:
        async with served.phone() as phone:
            await phone.ask("hi")
        await until(lambda: not len(served.listener.registry))
        async with served.phone() as phone:
            assert phone.log[0]["payload"]["resumed"] is False


async def test_the_newer_of_two_sockets_is_served_and_the_older_falls_silent(
    claude: AnthropicService,
) -> None:
    async with serving(provider_for(claude)) as served:
        async with served.phone() as older, served.phone() as newer:
            since = len(older.log)
            await newer.ask("hi")
            assert older.shapes(since) == []
            assert not older.closed.is_set()
            await older.ask("and now me")  # what starts a turn takes the session back
            assert older.shapes(since) == PLAIN_TURN
            mark = len(newer.log)
            await older.ask("once more")
            assert newer.shapes(mark) == []


async def test_a_parked_socket_may_still_bring_a_result(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(Call("agent_cancel", {"id": "a"}),)), Reply(text="Gone.")]
    async with serving(provider_for(claude)) as served, served.phone() as older:
        older.say("cancel it")
        call = await older.until("agent.cancel")
        async with served.phone() as newer:
            older.result(call["payload"]["callId"], "cancelled")
            await newer.until("assistant.speech.final")
            assert newer.finals() == ["Gone."]


async def test_another_subjects_session_is_another_session(claude: AnthropicService) -> None:
    async with serving(provider_for(claude), tokens=("alpha", "beta")) as served:
        alpha = served.phone("shared", headers={"Authorization": "Bearer alpha"})
        beta = served.phone("shared", headers={"Authorization": "Bearer beta"})
        async with alpha, beta:
            await alpha.ask("my secret")
            assert beta.log[0]["payload"]["resumed"] is False
            await beta.ask("what did I say?")
    assert "my secret" not in json.dumps(claude.requests[-1])


async def test_a_connection_without_a_token_is_refused(claude: AnthropicService) -> None:
    async with serving(provider_for(claude), tokens=("alpha",)) as served:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            with pytest.raises(Exception, match="401"):
                await served.phone(headers=headers).open()
        async with App(f"{served.url}?token=alpha") as phone:
            await phone.ask("hi")
