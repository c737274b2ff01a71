"""Coming back to a session with the capability ``resume``: what is told, kept, sent again and dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from conductor.client import ClientLimits, Reconnect, ToolRun, connect
from tests.client.extended import soon, start
from tests.stand_ins.scripted_server import LIMIT_S, Json, Peer, ScriptedServer, scripted_server

AT_ONCE = Reconnect(first_s=0, most_s=0)
READ = {"name": "notes.read", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}


async def back(peer: Peer, resend: tuple[str, ...] = (), drop: tuple[str, ...] = ()) -> Json:
    """Take a client back that names ``resume``; give what it says it knows."""
    payload = await start(peer, "resume", resumed=True, resend=list(resend), drop=list(drop))
    return dict(payload["resume"])


async def ack(peer: Peer, *event_ids: str) -> None:
    """Say what is recorded, and wait until the client has read it."""
    await peer.send("event.ack", {"eventIds": list(event_ids)})
    await peer.arrived()


def cut(peer: Peer) -> None:
    """Break the connection off without a word."""
    peer.connection.transport.abort()


def results(server: ScriptedServer) -> list[tuple[str, str]]:
    """List envelope id and call id of the results of tools that a server heard."""
    heard = [event for event in server.heard if event["type"] == "tool.result"]
    ours = [event for event in heard if event["payload"]["result"] not in ('{"ok":true}', '{"spoken":true}')]
    return [(event["id"], event["payload"]["callId"]) for event in ours]


def said(server: ScriptedServer) -> list[str]:
    """List the envelope ids of the transcripts that a server heard."""
    return [event["id"] for event in server.heard if event["type"] == "user.audio.transcript.final"]


def counting(runs: list[str], name: str = "added") -> Callable[[Any], str]:
    """Make a handler that notes that it ran."""

    def handler(_arguments: Json) -> str:
        runs.append(name)
        return name

    return handler


# -- naming it


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, True),
        ({"resume": False}, False),
        ({"capabilities": ()}, False),
        ({"capabilities": ("resume",)}, True),
        ({"capabilities": ("resume", "late"), "resume": False}, False),
    ],
)
async def test_the_capability_is_named_unless_the_app_leaves_it_out(options: Json, named: bool) -> None:
    async with scripted_server() as server, connect(server.url, **options) as client:
        await client.reconnect()
    starts = [event["payload"] for event in server.heard if event["type"] == "session.start"]
    assert ["resume" in payload.get("capabilities", ()) for payload in starts] == [named, named]
    assert ["resume" in payload for payload in starts] == [False, named]


async def test_a_process_that_was_never_answered_tells_nothing() -> None:
    async def silent(peer: Peer) -> None:
        starts.append((await peer.receive("session.start"))["payload"])

    async def first(peer: Peer) -> None:
        starts.append(await start(peer, "resume"))

    starts: list[Json] = []
    async with scripted_server(silent, first) as server:
        client = connect(server.url, limits=ClientLimits(start_s=0.05))
        with pytest.raises(TimeoutError):
            await client.start()
        await client.start()
        await client.close()
    assert ["resume" in payload for payload in starts] == [False, False]


# -- results


async def test_a_result_that_could_not_be_sent_is_told_at_the_start_and_is_no_event_then() -> None:
    async def first(peer: Peer) -> None:
        await start(peer, "resume")
        await peer.begin()
        await peer.call("notes.add", {}, "evt_add")
        await soon(begun)
        cut(peer)

    async def second(peer: Peer) -> None:
        told.append(await back(peer))
        payload = {"callId": "call_evt_add", "name": "notes.add", "arguments": "{}"}
        await peer.send("tool.call", payload, "evt_add")
        await peer.send("tool.call", payload, "evt_under_another_id")
        await peer.answer("Added.")

    async def add(_arguments: Json) -> str:
        runs.append("added")
        begun.set()
        await client.wait_lost(LIMIT_S)
        ended.set()
        return "added"

    async def sleep(_seconds: float) -> None:
        await soon(ended)
        for _ in range(50):  # until the result is where results are kept
            await asyncio.sleep(0)

    begun, ended = asyncio.Event(), asyncio.Event()
    told: list[Json] = []
    runs: list[str] = []
    async with (
        scripted_server(first, second) as server,
        connect(server.url, handlers={"notes.add": add}, reconnect=Reconnect(sleep=sleep)) as client,
    ):
        turn = await client.say("add it")
        assert (await turn.wait(LIMIT_S)).text == "Added."
    assert told[0]["done"] == [{"callId": "call_evt_add", "result": "added"}]
    assert "pending" not in told[0]
    assert runs == ["added"]
    assert results(server) == []


@pytest.mark.parametrize("acknowledged", [True, False])
async def test_a_result_is_kept_until_it_is_acknowledged_whatever_else_came_back(acknowledged: bool) -> None:
    async def first(peer: Peer) -> None:
        await start(peer, "resume")
        await peer.begin()
        await peer.ask("notes.add", {})
        await peer.answer("Added.")
        await peer.begin()  # which answers a transcript that was sent after the result
        if acknowledged:
            await ack(peer, "somebody else's", results(peer.server)[0][0])
        await peer.arrived()
        cut(peer)

    async def second(peer: Peer) -> None:
        told.append(await back(peer))
        await peer.answer("Yes.")

    told: list[Json] = []
    async with (
        scripted_server(first, second) as server,
        connect(server.url, handlers={"notes.add": lambda _: "added"}, reconnect=AT_ONCE) as client,
    ):
        assert (await (await client.say("add it")).wait(LIMIT_S)).ok
        assert (await (await client.say("and now?")).wait(LIMIT_S)).ok
    assert ("done" in told[0]) is not acknowledged
    assert len(results(server)) == 1


async def test_a_start_whose_answer_was_lost_is_told_again_and_settles_nothing() -> None:
    async def first(peer: Peer) -> None:
        await start(peer, "resume")
        await peer.begin()
        await peer.ask("notes.add", {})
        cut(peer)

    async def unanswered(peer: Peer) -> None:
        told.append((await peer.receive("session.start"))["payload"]["resume"])
        cut(peer)

    async def last(peer: Peer) -> None:
        told.append(await back(peer))
        await peer.answer("Added.")
        await peer.begin()
        await peer.answer("Yes.")
        cut(peer)

    async def after(peer: Peer) -> None:
        told.append(await back(peer))
        lost.set()

    lost = asyncio.Event()
    told: list[Json] = []
    async with (
        scripted_server(first, unanswered, unanswered, last, after) as server,
        connect(server.url, handlers={"notes.add": lambda _: "added"}, reconnect=AT_ONCE) as client,
    ):
        assert (await (await client.say("add it")).wait(LIMIT_S)).ok
        assert (await (await client.say("well?")).wait(LIMIT_S)).ok
        await soon(lost)
    assert [[done["result"] for done in each.get("done", ())] for each in told] == [["added"]] * 3 + [[]]
    assert len(results(server)) == 1


async def test_a_result_that_is_asked_for_or_too_large_to_tell_comes_again_under_its_id() -> None:
    async def first(peer: Peer) -> None:
        await start(peer, "resume")
        await peer.begin()
        small, large = await peer.call("notes.small", {}), await peer.call("notes.large", {})
        await peer.result(small)
        await peer.result(large)
        names.extend((small, large))
        cut(peer)

    async def second(peer: Peer) -> None:
        told.append(await back(peer, resend=(names[0], names[1])))
        assert (await peer.result(names[0]))["result"] == "x"
        assert (await peer.result(names[1]))["result"] == "x" * 40_000
        await peer.answer("Done.")

    names: list[str] = []
    told: list[Json] = []
    handlers = {"notes.small": lambda _: "x", "notes.large": lambda _: "x" * 40_000}
    async with (
        scripted_server(first, second) as server,
        connect(server.url, handlers=handlers, reconnect=AT_ONCE) as client,
    ):
        assert (await (await client.say("go")).wait(LIMIT_S)).ok
    assert told[0]["done"] == [{"callId": names[0], "result": "x"}, {"callId": names[1]}]
    heard = results(server)
    assert heard[:2] == heard[2:] and [call_id for _, call_id in heard[:2]] == names


async def test_a_call_that_comes_again_under_another_id_is_answered_from_what_is_kept() -> None:
    async def script(peer: Peer) -> None:
        await start(peer, "resume")
        await peer.begin()
        payload = {"callId": "call_1", "name": "notes.add", "arguments": "{}"}
        for event_id in ("evt_a", "evt_b"):
            await peer.send("tool.call", payload, event_id)
            await peer.result("call_1")
        await ack(peer, results(peer.server)[0][0])
        await peer.send("tool.call", payload, "evt_c")
        await peer.answer("Added.")

    runs: list[str] = []
    async with (
        scripted_server(script) as server,
        connect(server.url, handlers={"notes.add": counting(runs)}) as client,
    ):
        assert (await (await client.say("add it")).wait(LIMIT_S)).ok
    assert runs == ["added"]
    heard = results(server)
    assert len(heard) == 2 and heard[0] == heard[1]


# -- calls that are not done


async def test_a_call_that_runs_over_several_connections_is_pending_on_each_and_ends_once() -> None:
    async def first(peer: Peer) -> None:
        await start(peer, "resume")
        await peer.begin()
        await peer.call("notes.slow", {}, "evt_slow")
        await peer.call("notes.add", {}, "evt_add")  # waits behind it
        await soon(begun)
        await peer.arrived()
        cut(peer)

    async def between(peer: Peer) -> None:
        told.append(await back(peer))
        await peer.arrived()
        cut(peer)

    async def last(peer: Peer) -> None:
        told.append(await back(peer))
        await peer.call("notes.slow", {}, "evt_slow")
        release.set()
        await peer.result("call_evt_slow")
        await peer.result("call_evt_add")
        await peer.answer("Done.")

    async def slow(_arguments: Json) -> str:
        runs.append("slow")
        begun.set()
        await release.wait()
        return "slow"

    begun, release = asyncio.Event(), asyncio.Event()
    told: list[Json] = []
    runs: list[str] = []
    handlers = {"notes.slow": slow, "notes.add": counting(runs)}
    async with (
        scripted_server(first, between, between, last) as server,
        connect(server.url, handlers=handlers, reconnect=AT_ONCE) as client,
    ):
        assert (await (await client.say("go")).wait(LIMIT_S)).ok
    assert [each["pending"] for each in told] == [["call_evt_slow", "call_evt_add"]] * 3
    assert not any("done" in each for each in told)
    assert runs == ["slow", "added"]
    assert [call_id for _, call_id in results(server)] == ["call_evt_slow", "call_evt_add"]


async def test_a_call_that_is_dropped_before_it_began_is_not_begun_and_the_next_ones_are() -> None:
    async def first(peer: Peer) -> None:
        await start(peer, "resume")
        await peer.begin()
        for name in ("slow", "unwanted", "wanted"):
            await peer.call(f"notes.{name}", {}, f"evt_{name}")
        await soon(begun)
        await peer.arrived()
        cut(peer)

    async def second(peer: Peer) -> None:
        await back(peer, drop=("call_evt_unwanted",))
        await peer.arrived()
        release.set()
        await peer.result("call_evt_wanted")
        await peer.answer("Done.")
        cut(peer)

    async def third(peer: Peer) -> None:
        told.append(await back(peer))
        done.set()

    async def slow(_arguments: Json) -> str:
        begun.set()
        await release.wait()
        return "slow"

    begun, release, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
    told: list[Json] = []
    runs: list[str] = []
    handlers = {
        "notes.slow": slow,
        "notes.unwanted": counting(runs, "unwanted"),
        "notes.wanted": counting(runs, "wanted"),
    }
    async with (
        scripted_server(first, second, third) as server,
        connect(server.url, handlers=handlers, reconnect=AT_ONCE) as client,
    ):
        assert (await (await client.say("go")).wait(LIMIT_S)).ok
        await soon(done)
    assert runs == ["wanted"]
    assert "call_evt_unwanted" not in str(told)
    assert [call_id for _, call_id in results(server)] == ["call_evt_slow", "call_evt_wanted"]


@pytest.mark.parametrize(("name", "stopped"), [("notes.read", True), ("notes.add", False)])
async def test_a_running_call_that_is_dropped_says_no_more_and_only_a_reading_one_is_stopped(
    name: str, stopped: bool
) -> None:
    async def first(peer: Peer) -> None:
        await start(peer, "resume", "lease", "cancel")
        await peer.begin()
        await peer.call(name, {}, "evt_run")
        await soon(begun)
        cut(peer)

    async def second(peer: Peer) -> None:
        await start(peer, "resume", "lease", "cancel", resumed=True, drop=["call_evt_run"])
        await peer.arrived()
        release.set()
        await peer.answer("Done.")

    async def run(_arguments: Json, run: ToolRun) -> str:
        begun.set()
        try:
            await release.wait()
        except asyncio.CancelledError:
            ends.append("stopped")
            raise
        await run.progress("more")
        ends.append("ended")
        return "result"

    begun, release = asyncio.Event(), asyncio.Event()
    ends: list[str] = []
    async with (
        scripted_server(first, second) as server,
        connect(server.url, tools=[READ], handlers={name: run}, reconnect=AT_ONCE) as client,
    ):
        result = await (await client.say("go")).wait(LIMIT_S)
    assert ends == ["stopped" if stopped else "ended"]
    assert results(server) == []
    assert not {"tool.cancelled", "tool.progress"} & set(server.types_heard())
    assert [(call.call_id, call.result, call.error) for call in result.calls] == [
        ("call_evt_run", None, None)
    ]


async def test_a_result_that_is_dropped_is_forgotten_with_all_else_about_its_call() -> None:
    async def first(peer: Peer) -> None:
        await start(peer, "resume", "async")
        await peer.begin()
        await peer.call("notes.index", {}, "evt_index")
        await peer.result("call_evt_index")
        cut(peer)

    async def second(peer: Peer) -> None:
        told.append(await start(peer, "resume", "async", resumed=True, drop=["call_evt_index"]))
        await peer.answer("Done.")
        cut(peer)

    async def third(peer: Peer) -> None:
        told.append(await start(peer, "resume", "async", resumed=True))
        done.set()

    async def index(_arguments: Json, run: ToolRun) -> str:
        await run.accept("job")
        return "indexed"

    done = asyncio.Event()
    told: list[Json] = []
    async with (
        scripted_server(first, second, third) as server,
        connect(server.url, handlers={"notes.index": index}, reconnect=AT_ONCE) as client,
    ):
        assert (await (await client.say("go")).wait(LIMIT_S)).ok
        await soon(done)
    assert ["done" in each["resume"] for each in told] == [True, False]
    assert len(results(server)) == 1
    assert server.types_heard().count("tool.accepted") == 1


# -- transcripts


async def test_a_transcript_is_kept_until_it_is_acknowledged_though_it_came_back() -> None:
    async def first(peer: Peer) -> None:
        await start(peer, "resume")
        await peer.begin()
        await peer.result(await peer.message("user", "hello"))
        cut(peer)

    async def second(peer: Peer) -> None:
        await back(peer)
        event = await peer.receive("user.audio.transcript.final")
        await ack(peer, event["id"])
        cut(peer)

    async def third(peer: Peer) -> None:
        await back(peer)
        await peer.answer("Hello.")

    async with (
        scripted_server(first, second, third) as server,
        connect(server.url, reconnect=AT_ONCE) as client,
    ):
        turn = await client.say("hello")
        assert (await turn.wait(LIMIT_S)).text == "Hello."
    assert said(server) == [turn.event_id] * 2


@pytest.mark.parametrize("resumed", [True, False])
async def test_a_recorded_transcript_is_lost_only_with_its_session(resumed: bool) -> None:
    async def first(peer: Peer) -> None:
        await start(peer, "resume")
        event = await peer.receive("user.audio.transcript.final")
        await ack(peer, event["id"])
        cut(peer)

    async def second(peer: Peer) -> None:
        await start(peer, "resume", resumed=resumed)
        await peer.result(await peer.state("idle"))  # of the turn before, or the fresh one
        if resumed:
            await peer.state("thinking")
            await peer.message("user", "hello")
            await peer.answer("Hello.")

    async with (
        scripted_server(first, second) as server,
        connect(server.url, reconnect=AT_ONCE) as client,
    ):
        turn = await client.say("hello")
        assert (await turn.wait(LIMIT_S)).ending == ("idle" if resumed else "lost")
    assert said(server) == [turn.event_id]


# -- how far the client has come


Part = Callable[[Peer], Awaitable[None]]


async def last_event(part: Part, pinged: asyncio.Event | None = None, **options: Any) -> str | None:
    """Play a part, cut the connection, and give the ``lastEventId`` of the next start.

    ``pinged`` is set when the client has handled a ping.
    """

    async def first(peer: Peer) -> None:
        await start(peer, "resume")
        await part(peer)
        cut(peer)

    async def second(peer: Peer) -> None:
        told.append(await back(peer))
        done.set()

    done = asyncio.Event()
    told: list[Json] = []
    async with (
        scripted_server(first, second) as server,
        connect(server.url, reconnect=AT_ONCE, **options) as client,
    ):
        if pinged is not None:
            client.on("session.ping", lambda _: pinged.set())
        await soon(done)
    last = told[0].get("lastEventId")
    return None if last is None else str(last)


async def test_the_last_event_is_the_last_that_a_replay_could_bring() -> None:
    async def part(peer: Peer) -> None:
        for kind, payload in events:
            await peer.send(kind, payload, f"evt_{kind}")
        await peer.send("session.ping", {})
        await soon(pinged)

    events: list[tuple[str, Json]] = []
    pinged = asyncio.Event()
    assert await last_event(part, pinged) is None
    events = [
        ("tool.activity", {"callId": "c", "name": "n", "source": "builtin", "status": "started"}),
        ("assistant.speech.final", {"text": "Four."}),
        ("assistant.speech.partial", {"text": "Mo"}),
        ("event.ack", {"eventIds": []}),
    ]
    pinged = asyncio.Event()
    assert await last_event(part, pinged) == "evt_assistant.speech.final"


@pytest.mark.parametrize(
    ("name", "beside", "expected"),
    [
        ("tts.speak", False, "evt_state"),
        ("tts.speak", True, "evt_state"),
        ("notes.add", False, "evt_state"),
        ("notes.add", True, "evt_idle"),  # a call that runs beside the others is told of as pending
    ],
)
async def test_an_event_behind_one_that_is_being_handled_is_not_the_last(
    name: str, beside: bool, expected: str
) -> None:
    async def part(peer: Peer) -> None:
        call_id = await peer.call("convo.setState", {"state": "thinking"}, "evt_state")
        await peer.result(call_id)
        await peer.call(name, {"text": "hello"}, "evt_long")
        await soon(begun)
        if beside:
            await peer.result(await peer.call("convo.setState", {"state": "idle"}, "evt_idle"))
        await peer.arrived()

    async def long(_what: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    begun = asyncio.Event()
    handlers = {"notes.add": long}
    assert await last_event(part, speak=long, handlers=handlers, serial=not beside) == expected


async def test_events_behind_a_speech_that_has_ended_count() -> None:
    async def part(peer: Peer) -> None:
        speech = await peer.call("tts.speak", {"text": "hello"})
        await peer.result(await peer.call("convo.setState", {"state": "idle"}, "evt_idle"))
        go_on.set()
        await peer.result(speech)
        await peer.arrived()

    async def speak(_text: str) -> None:
        await go_on.wait()

    go_on = asyncio.Event()
    assert await last_event(part, speak=speak, serial=False) == "evt_idle"
