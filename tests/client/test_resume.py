"""The capability ``resume``."""

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
    """Resume a client's session; return its ``resume``."""
    payload = await start(peer, "resume", resumed=True, resend=list(resend), drop=list(drop))
    return dict(payload["resume"])


async def ack(peer: Peer, *event_ids: str) -> None:
    """Acknowledge events, and wait until the client has read it."""
    await peer.send("event.ack", {"eventIds": list(event_ids)})
    await peer.arrived()


def cut(peer: Peer) -> None:
    """Cut the connection."""
    peer.connection.transport.abort()


def results(server: ScriptedServer) -> list[tuple[str, str]]:
    """List envelope id and call id of the tool results that a server received."""
    events = [event for event in server.heard if event["type"] == "tool.result"]
    ui = ('{"ok":true}', '{"spoken":true}')
    return [
        (event["id"], event["payload"]["callId"]) for event in events if event["payload"]["result"] not in ui
    ]


def transcript_ids(server: ScriptedServer) -> list[str]:
    """List the envelope ids of the transcripts that a server received."""
    return [event["id"] for event in server.heard if event["type"] == "user.audio.transcript.final"]


def recorder(runs: list[str], name: str = "added") -> Callable[[Any], str]:
    """Make a handler that records its runs."""

    def handler(_arguments: Json) -> str:
        runs.append(name)
        return name

    return handler


# -- the capability


@pytest.mark.parametrize(
    ("options", "is_named"),
    [
        ({}, True),
        ({"capabilities": ()}, False),
        ({"capabilities": ("resume",)}, True),
    ],
)
async def test_the_capability_is_named_by_default(options: Json, is_named: bool) -> None:
    async with scripted_server() as server, connect(server.url, **options) as client:
        await client.reconnect()
    starts = [event["payload"] for event in server.heard if event["type"] == "session.start"]
    assert ["resume" in payload.get("capabilities", ()) for payload in starts] == [is_named, is_named]
    assert ["resume" in payload for payload in starts] == [False, is_named]


async def test_a_process_without_an_answer_reports_nothing() -> None:
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


async def test_an_unsent_result_is_part_of_session_start() -> None:
    async def first(peer: Peer) -> None:
        await start(peer, "resume")
        await peer.begin()
        await peer.call("notes.add", {}, "evt_add")
        await soon(started)
        cut(peer)

    async def second(peer: Peer) -> None:
        starts.append(await back(peer))
        payload = {"callId": "call_evt_add", "name": "notes.add", "arguments": "{}"}
        await peer.send("tool.call", payload, "evt_add")
        await peer.send("tool.call", payload, "evt_under_another_id")
        await peer.answer("Added.")

    async def add(_arguments: Json) -> str:
        runs.append("added")
        started.set()
        await client.wait_lost(LIMIT_S)
        ended.set()
        return "added"

    async def sleep(_seconds: float) -> None:
        await soon(ended)
        for _ in range(50):  # until the outbox has the result
            await asyncio.sleep(0)

    started, ended = asyncio.Event(), asyncio.Event()
    starts: list[Json] = []
    runs: list[str] = []
    async with (
        scripted_server(first, second) as server,
        connect(server.url, handlers={"notes.add": add}, reconnect=Reconnect(sleep=sleep)) as client,
    ):
        turn = await client.say("add it")
        assert (await turn.wait(LIMIT_S)).text == "Added."
    assert starts[0]["done"] == [{"callId": "call_evt_add", "result": "added"}]
    assert "pending" not in starts[0]
    assert runs == ["added"]
    assert results(server) == []


@pytest.mark.parametrize("acknowledged", [True, False])
async def test_a_result_is_kept_until_it_is_acknowledged(acknowledged: bool) -> None:
    async def first(peer: Peer) -> None:
        await start(peer, "resume")
        await peer.begin()
        await peer.ask("notes.add", {})
        await peer.answer("Added.")
        await peer.begin()  # answers a transcript later than the result
        if acknowledged:
            await ack(peer, "somebody else's", results(peer.server)[0][0])
        await peer.arrived()
        cut(peer)

    async def second(peer: Peer) -> None:
        starts.append(await back(peer))
        await peer.answer("Yes.")

    starts: list[Json] = []
    async with (
        scripted_server(first, second) as server,
        connect(server.url, handlers={"notes.add": lambda _: "added"}, reconnect=AT_ONCE) as client,
    ):
        assert (await (await client.say("add it")).wait(LIMIT_S)).ok
        assert (await (await client.say("and now?")).wait(LIMIT_S)).ok
    assert ("done" in starts[0]) is not acknowledged
    assert len(results(server)) == 1


async def test_an_unanswered_start_is_repeated() -> None:
    async def first(peer: Peer) -> None:
        await start(peer, "resume")
        await peer.begin()
        await peer.ask("notes.add", {})
        cut(peer)

    async def unanswered(peer: Peer) -> None:
        starts.append((await peer.receive("session.start"))["payload"]["resume"])
        cut(peer)

    async def last(peer: Peer) -> None:
        starts.append(await back(peer))
        await peer.answer("Added.")
        await peer.begin()
        await peer.answer("Yes.")
        cut(peer)

    async def after(peer: Peer) -> None:
        starts.append(await back(peer))
        finished.set()

    finished = asyncio.Event()
    starts: list[Json] = []
    async with (
        scripted_server(first, unanswered, unanswered, last, after) as server,
        connect(server.url, handlers={"notes.add": lambda _: "added"}, reconnect=AT_ONCE) as client,
    ):
        assert (await (await client.say("add it")).wait(LIMIT_S)).ok
        assert (await (await client.say("well?")).wait(LIMIT_S)).ok
        await soon(finished)
    entries = [[entry["result"] for entry in resume.get("done", ())] for resume in starts]
    assert entries == [["added"]] * 3 + [[]]
    assert len(results(server)) == 1


async def test_a_requested_or_large_result_is_sent_again_under_its_id() -> None:
    async def first(peer: Peer) -> None:
        await start(peer, "resume")
        await peer.begin()
        small, large = await peer.call("notes.small", {}), await peer.call("notes.large", {})
        await peer.result(small)
        await peer.result(large)
        names.extend((small, large))
        cut(peer)

    async def second(peer: Peer) -> None:
        starts.append(await back(peer, resend=(names[0], names[1])))
        assert (await peer.result(names[0]))["result"] == "x"
        assert (await peer.result(names[1]))["result"] == "x" * 40_000
        await peer.answer("Done.")

    names: list[str] = []
    starts: list[Json] = []
    handlers = {"notes.small": lambda _: "x", "notes.large": lambda _: "x" * 40_000}
    async with (
        scripted_server(first, second) as server,
        connect(server.url, handlers=handlers, reconnect=AT_ONCE) as client,
    ):
        assert (await (await client.say("go")).wait(LIMIT_S)).ok
    assert starts[0]["done"] == [{"callId": names[0], "result": "x"}, {"callId": names[1]}]
    events = results(server)
    assert events[:2] == events[2:] and [call_id for _, call_id in events[:2]] == names


async def test_a_repeated_call_is_answered_from_the_outbox() -> None:
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
        connect(server.url, handlers={"notes.add": recorder(runs)}) as client,
    ):
        assert (await (await client.say("add it")).wait(LIMIT_S)).ok
    assert runs == ["added"]
    events = results(server)
    assert len(events) == 2 and events[0] == events[1]


# -- pending calls


async def test_a_running_call_is_pending_on_each_connection() -> None:
    async def first(peer: Peer) -> None:
        await start(peer, "resume")
        await peer.begin()
        await peer.call("notes.slow", {}, "evt_slow")
        await peer.call("notes.add", {}, "evt_add")  # queued
        await soon(started)
        await peer.arrived()
        cut(peer)

    async def between(peer: Peer) -> None:
        starts.append(await back(peer))
        await peer.arrived()
        cut(peer)

    async def last(peer: Peer) -> None:
        starts.append(await back(peer))
        await peer.call("notes.slow", {}, "evt_slow")
        release.set()
        await peer.result("call_evt_slow")
        await peer.result("call_evt_add")
        await peer.answer("Done.")

    async def slow(_arguments: Json) -> str:
        runs.append("slow")
        started.set()
        await release.wait()
        return "slow"

    started, release = asyncio.Event(), asyncio.Event()
    starts: list[Json] = []
    runs: list[str] = []
    handlers = {"notes.slow": slow, "notes.add": recorder(runs)}
    async with (
        scripted_server(first, between, between, last) as server,
        connect(server.url, handlers=handlers, reconnect=AT_ONCE) as client,
    ):
        assert (await (await client.say("go")).wait(LIMIT_S)).ok
    assert [resume["pending"] for resume in starts] == [["call_evt_slow", "call_evt_add"]] * 3
    assert not any("done" in resume for resume in starts)
    assert runs == ["slow", "added"]
    assert [call_id for _, call_id in results(server)] == ["call_evt_slow", "call_evt_add"]


async def test_a_dropped_queued_call_does_not_run() -> None:
    async def first(peer: Peer) -> None:
        await start(peer, "resume")
        await peer.begin()
        for name in ("slow", "unwanted", "wanted"):
            await peer.call(f"notes.{name}", {}, f"evt_{name}")
        await soon(started)
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
        starts.append(await back(peer))
        finished.set()

    async def slow(_arguments: Json) -> str:
        started.set()
        await release.wait()
        return "slow"

    started, release, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()
    starts: list[Json] = []
    runs: list[str] = []
    handlers = {
        "notes.slow": slow,
        "notes.unwanted": recorder(runs, "unwanted"),
        "notes.wanted": recorder(runs, "wanted"),
    }
    async with (
        scripted_server(first, second, third) as server,
        connect(server.url, handlers=handlers, reconnect=AT_ONCE) as client,
    ):
        assert (await (await client.say("go")).wait(LIMIT_S)).ok
        await soon(finished)
    assert runs == ["wanted"]
    assert "call_evt_unwanted" not in str(starts)
    assert [call_id for _, call_id in results(server)] == ["call_evt_slow", "call_evt_wanted"]


@pytest.mark.parametrize(("name", "stopped"), [("notes.read", True), ("notes.add", False)])
async def test_a_dropped_running_call_sends_no_result(name: str, stopped: bool) -> None:
    async def first(peer: Peer) -> None:
        await start(peer, "resume", "lease", "cancel")
        await peer.begin()
        await peer.call(name, {}, "evt_run")
        await soon(started)
        cut(peer)

    async def second(peer: Peer) -> None:
        await start(peer, "resume", "lease", "cancel", resumed=True, drop=["call_evt_run"])
        await peer.arrived()
        release.set()
        await peer.answer("Done.")

    async def run(_arguments: Json, run: ToolRun) -> str:
        started.set()
        try:
            await release.wait()
        except asyncio.CancelledError:
            ends.append("stopped")
            raise
        await run.progress("more")
        ends.append("ended")
        return "result"

    started, release = asyncio.Event(), asyncio.Event()
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


async def test_a_dropped_result_is_forgotten() -> None:
    async def first(peer: Peer) -> None:
        await start(peer, "resume", "async")
        await peer.begin()
        await peer.call("notes.index", {}, "evt_index")
        await peer.result("call_evt_index")
        cut(peer)

    async def second(peer: Peer) -> None:
        starts.append(await start(peer, "resume", "async", resumed=True, drop=["call_evt_index"]))
        await peer.answer("Done.")
        cut(peer)

    async def third(peer: Peer) -> None:
        starts.append(await start(peer, "resume", "async", resumed=True))
        finished.set()

    async def index(_arguments: Json, run: ToolRun) -> str:
        await run.accept("job")
        return "indexed"

    finished = asyncio.Event()
    starts: list[Json] = []
    async with (
        scripted_server(first, second, third) as server,
        connect(server.url, handlers={"notes.index": index}, reconnect=AT_ONCE) as client,
    ):
        assert (await (await client.say("go")).wait(LIMIT_S)).ok
        await soon(finished)
    assert ["done" in start_payload["resume"] for start_payload in starts] == [True, False]
    assert len(results(server)) == 1
    assert server.types_heard().count("tool.accepted") == 1


# -- transcripts


async def test_a_transcript_is_kept_until_it_is_acknowledged() -> None:
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
    assert transcript_ids(server) == [turn.event_id] * 2


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

    async with (
        scripted_server(first, second) as server,
        connect(server.url, reconnect=AT_ONCE) as client,
    ):
        turn = await client.say("hello")
        assert (await turn.wait(LIMIT_S)).ending == ("idle" if resumed else "lost")
    assert transcript_ids(server) == [turn.event_id]


# -- lastEventId


Part = Callable[[Peer], Awaitable[None]]


async def last_event(part: Part, pinged: asyncio.Event | None = None, **options: Any) -> str | None:
    """Play a part, cut the connection, and return the ``lastEventId`` of the next start.

    ``pinged`` is set when the client has handled a ping.
    """

    async def first(peer: Peer) -> None:
        await start(peer, "resume")
        await part(peer)
        cut(peer)

    async def second(peer: Peer) -> None:
        starts.append(await back(peer))
        finished.set()

    finished = asyncio.Event()
    starts: list[Json] = []
    async with (
        scripted_server(first, second) as server,
        connect(server.url, reconnect=AT_ONCE, **options) as client,
    ):
        if pinged is not None:
            client.on("session.ping", lambda _: pinged.set())
        await soon(finished)
    last = starts[0].get("lastEventId")
    return None if last is None else str(last)


async def test_last_event_id_is_a_replayed_event() -> None:
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
        ("notes.add", True, "evt_idle"),  # a concurrent call is listed as pending
    ],
)
async def test_last_event_id_precedes_unfinished_events(name: str, beside: bool, expected: str) -> None:
    async def part(peer: Peer) -> None:
        call_id = await peer.call("convo.setState", {"state": "thinking"}, "evt_state")
        await peer.result(call_id)
        await peer.call(name, {"text": "hello"}, "evt_long")
        await soon(started)
        if beside:
            await peer.result(await peer.call("convo.setState", {"state": "idle"}, "evt_idle"))
        await peer.arrived()

    async def long(_argument: Any) -> None:
        started.set()
        await asyncio.Event().wait()

    started = asyncio.Event()
    handlers = {"notes.add": long}
    assert await last_event(part, speak=long, handlers=handlers, serial=not beside) == expected
