"""The network goes and comes back; nothing is lost and nothing is done twice."""

from __future__ import annotations

import asyncio
import json

from tests.dialogues import results_of
from tests.models import AnthropicService, Call, Reply
from tests.serving import provider_for, serving
from tests.shapes import PLAIN_TURN, shape_of


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
