"""The capability ``resume``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from conductor.client import Reconnect, connect
from tests.server.client.extended import cut, payloads, play, soon, start, tool_results
from tests.stand_ins.scripted_server import LIMIT_S, Json, Peer, ScriptedServer, scripted_server

AT_ONCE = Reconnect(first_s=0, most_s=0)
RESUME = ("resume",)
READ = {"name": "notes.read", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}


async def ack(peer: Peer, *event_ids: str) -> None:
    """Acknowledge events, and wait until the client has read it."""
    await peer.send("event.ack", {"eventIds": list(event_ids)})
    await peer.arrived()


async def idle(_peer: Peer) -> None:
    """Do nothing on a connection."""


def resumes(server: ScriptedServer) -> list[Json]:
    """List the ``resume`` of each ``session.start`` after the first."""
    return [payload["resume"] for payload in payloads(server, "session.start")[1:]]


def done(server: ScriptedServer, name: str) -> list[bool]:
    """Tell for each ``session.start`` after the first whether it lists a call as done."""
    return [{"callId": f"call_{name}"} in resume.get("done", ()) for resume in resumes(server)]


def recorder(runs: list[str], name: str = "added") -> Callable[[Any], str]:
    """Make a handler that records its runs."""

    def handler(_arguments: Json) -> str:
        runs.append(name)
        return name

    return handler


# -- the capability


@pytest.mark.parametrize(
    ("options", "is_named"),
    [({}, True), ({"capabilities": ()}, False), ({"capabilities": ("resume",)}, True)],
)
async def test_the_capability_is_named_by_default(options: Json, is_named: bool) -> None:
    async with scripted_server() as server, connect(server.url, **options) as client:
        client.drop()
        await client.reconnect()
    starts = payloads(server, "session.start")
    assert ["resume" in payload.get("capabilities", ()) for payload in starts] == [is_named, is_named]
    assert ["resume" in payload for payload in starts] == [False, is_named]


# -- results


async def test_an_unsent_result_is_announced_by_session_start() -> None:
    async def first(peer: Peer) -> None:
        await peer.call("notes.add", {}, "evt_add")
        await soon(started)

    async def second(peer: Peer) -> None:
        payload = {"callId": "call_evt_add", "name": "notes.add", "arguments": "{}"}
        await peer.send("tool.call", payload, "evt_add")
        await peer.send("tool.call", payload, "evt_under_another_id")

    async def add(_arguments: Json) -> str:
        runs.append("added")
        started.set()
        await lost.wait()
        return "added"

    async def sleep(_seconds: float) -> None:
        lost.set()
        for _ in range(50):  # until the client has the result
            await asyncio.sleep(0)

    started, lost = asyncio.Event(), asyncio.Event()
    runs: list[str] = []
    server, _ = await play(
        first, second, capabilities=RESUME, handlers={"notes.add": add}, reconnect=Reconnect(sleep=sleep)
    )
    (resume,) = resumes(server)
    assert done(server, "evt_add") == [True]
    assert "pending" not in resume
    assert runs == ["added"]
    assert {call_id for _, call_id in tool_results(server)} == {"call_evt_add"}


@pytest.mark.parametrize("is_acknowledged", [True, False])
async def test_a_result_is_kept_until_it_is_acknowledged(is_acknowledged: bool) -> None:
    async def first(peer: Peer) -> None:
        await peer.result(await peer.call("notes.add", {}, "evt_add"))
        if is_acknowledged:
            await ack(peer, "of another client", tool_results(peer.server)[0][0])

    server, _ = await play(first, idle, capabilities=RESUME, handlers={"notes.add": lambda _: "added"})
    assert done(server, "evt_add") == [not is_acknowledged]
    assert len(set(tool_results(server))) == 1


async def test_a_full_session_start_lists_no_calls() -> None:
    async def first(peer: Peer) -> None:
        await peer.result(await peer.call("notes.add", {}, "evt_add"))

    tools = [{"name": "notes.add", "description": "x" * 64_450, "inputSchema": {"type": "object"}}]
    handlers = {"notes.add": lambda _: "added"}
    server, _ = await play(first, idle, capabilities=RESUME, tools=tools, handlers=handlers)
    assert [list(resume) for resume in resumes(server)] == [["lastEventId"]]


# -- pending calls


async def test_a_running_call_is_pending_on_each_connection() -> None:
    async def first(peer: Peer) -> None:
        await peer.call("notes.slow", {}, "evt_slow")
        await peer.call("notes.add", {}, "evt_add")  # queued
        await soon(started)
        await peer.arrived()

    async def last(peer: Peer) -> None:
        await peer.call("notes.slow", {}, "evt_slow")
        release.set()
        await peer.result("call_evt_slow")
        await peer.result("call_evt_add")

    async def slow(_arguments: Json) -> str:
        runs.append("slow")
        started.set()
        await release.wait()
        return "slow"

    started, release = asyncio.Event(), asyncio.Event()
    runs: list[str] = []
    handlers = {"notes.slow": slow, "notes.add": recorder(runs)}
    server, _ = await play(first, Peer.arrived, Peer.arrived, last, capabilities=RESUME, handlers=handlers)
    names = ["call_evt_slow", "call_evt_add"]
    assert [resume["pending"] for resume in resumes(server)] == [names] * 3
    assert not any(done(server, "evt_slow") + done(server, "evt_add"))
    assert runs == ["slow", "added"]
    assert {call_id for _, call_id in tool_results(server)} == set(names)


async def test_a_dropped_queued_call_does_not_run() -> None:
    async def first(peer: Peer) -> None:
        for name in ("slow", "unwanted", "wanted"):
            await peer.call(f"notes.{name}", {}, name)
        await soon(started)
        await peer.arrived()

    async def second(peer: Peer) -> None:
        await peer.arrived()
        release.set()
        await peer.result("call_wanted")

    async def slow(_arguments: Json) -> str:
        started.set()
        await release.wait()
        return "slow"

    started, release = asyncio.Event(), asyncio.Event()
    runs: list[str] = []
    handlers = {"notes.slow": slow} | {
        f"notes.{name}": recorder(runs, name) for name in ("unwanted", "wanted")
    }
    server, _ = await play(
        first, second, idle, capabilities=RESUME, fields=[{}, {"drop": ["call_unwanted"]}], handlers=handlers
    )
    assert runs == ["wanted"]
    assert "call_unwanted" not in str(resumes(server)[1])
    assert {call_id for _, call_id in tool_results(server)} == {"call_slow", "call_wanted"}


# -- transcripts


@pytest.mark.parametrize("resumed", [True, False])
async def test_a_recorded_transcript_is_lost_only_with_its_session(resumed: bool) -> None:
    async def first(peer: Peer) -> None:
        await start(peer, "resume")
        event = await peer.receive("user.audio.transcript.final")
        await ack(peer, event["id"])
        cut(peer)

    async def second(peer: Peer) -> None:
        await start(peer, "resume", resumed=resumed)
        await peer.result(await peer.state("idle"))  # of the previous turn, or of the resume
        if resumed:
            await peer.state("thinking")
            await peer.message("user", "hello")
            await peer.answer("Hello.")

    async with scripted_server(first, second) as server, connect(server.url, reconnect=AT_ONCE) as client:
        assert (await (await client.say("hello"))).ending == ("idle" if resumed else "lost")
    assert server.types_heard().count("user.audio.transcript.final") == 1


async def test_a_refused_transcript_ends_with_its_session() -> None:
    async def first(peer: Peer) -> None:
        await start(peer)
        event = await peer.receive("user.audio.transcript.final")
        await peer.send("error", {"code": "rate_limited", "message": "Slow.", "eventId": event["id"]})
        await peer.arrived()
        cut(peer)

    async def second(peer: Peer) -> None:
        await start(peer)

    async with scripted_server(first, second) as server, connect(server.url, reconnect=AT_ONCE) as client:
        result = await (await client.say("hello")).wait(LIMIT_S)
    assert (result.ending, len(result.errors)) == ("lost", 1)


async def test_a_replay_of_the_same_words_does_not_confirm_a_transcript() -> None:
    async def first(peer: Peer) -> None:
        await start(peer, "resume", "turns")
        await peer.receive("user.audio.transcript.final")  # the server has not recorded it
        await peer.result(await peer.message("user", "yes"))  # of an earlier process of the app
        cut(peer)

    async def second(peer: Peer) -> None:
        await start(peer, "resume", "turns", resumed=True)
        event = await peer.receive("user.audio.transcript.final")
        await peer.answer("Done.")
        await peer.send("turn.ended", {"turnId": "turn_1", "eventId": event["id"], "reason": "answered"})

    async with scripted_server(first, second) as server, connect(server.url, reconnect=AT_ONCE) as client:
        assert (await (await client.say("yes")).wait(LIMIT_S)).text == "Done."


# -- lastEventId


async def test_last_event_id_is_a_replayed_event() -> None:
    async def part(peer: Peer) -> None:
        await peer.send("assistant.speech.final", {"text": "Four."}, "evt_final")
        await peer.send("assistant.speech.partial", {"text": "Mo"})
        await peer.send("event.ack", {"eventIds": []})
        await peer.send("session.ping", {})
        await peer.arrived()

    server, _ = await play(part, idle, capabilities=RESUME)
    assert resumes(server)[0]["lastEventId"] == "evt_final"


@pytest.mark.parametrize(
    ("name", "serial", "expected"),
    [
        ("tts.speak", True, "evt_state"),
        ("tts.speak", False, "evt_state"),
        ("notes.add", True, "evt_state"),
        ("notes.add", False, "evt_idle"),  # a concurrent call is listed as pending
    ],
)
async def test_last_event_id_precedes_unfinished_events(name: str, serial: bool, expected: str) -> None:
    async def part(peer: Peer) -> None:
        await peer.result(await peer.call("convo.setState", {"state": "thinking"}, "evt_state"))
        await peer.call(name, {"text": "hello"}, "evt_long")
        await soon(started)
        if not serial:
            await peer.result(await peer.call("convo.appendMessage", {"role": "assistant"}, "evt_idle"))
        await peer.arrived()

    async def second(_peer: Peer) -> None:
        release.set()

    async def wait(_argument: Any) -> None:
        started.set()
        await release.wait()

    started, release = asyncio.Event(), asyncio.Event()
    server, _ = await play(
        part, second, capabilities=RESUME, speak=wait, handlers={"notes.add": wait}, serial=serial
    )
    assert resumes(server)[0]["lastEventId"] == expected
