"""Calls with a life of their own: leases, progress, cancellations and jobs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from conductor.client import ClientLimits, Reconnect, ToolCancelledError, ToolRun, connect
from conductor.client.calls import Calls, takes_two_arguments
from conductor.client.outbox import Outbox, Sender
from conductor.events.client import ToolResultEvent
from conductor.events.envelope import IdGenerator
from conductor.events.server import SessionStarted, ToolActivity, ToolCallEvent, ToolCancel, ToolLate
from tests.client.extended import soon, start
from tests.stand_ins.scripted_server import LIMIT_S, Json, Peer, ScriptedServer, scripted_server

AT_ONCE = Reconnect(first_s=0, most_s=0)
TOOLS = [
    {"name": "notes.read", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    {"name": "notes.add", "inputSchema": {"type": "object"}},
]

Part = Callable[[Peer], Awaitable[None]]


async def conversation(part: Part, *capabilities: str, **options: Any) -> ScriptedServer:
    """Play one turn with this part in its middle; give what the server heard."""

    async def script(peer: Peer) -> None:
        await start(peer, *capabilities)
        await peer.begin()
        await part(peer)
        await peer.answer("Done.")

    async with scripted_server(script) as server, connect(server.url, tools=TOOLS, **options) as client:
        assert (await (await client.say("go")).wait(LIMIT_S)).text == "Done."
    return server


def of_calls(server: ScriptedServer) -> list[Json]:
    """List what the server heard about tools, UI calls left out."""
    ui = ('{"ok":true}', '{"spoken":true}')
    heard = [event for event in server.heard if event["type"].startswith("tool.")]
    return [event for event in heard if event["payload"].get("result") not in ui]


# -- the second argument


def one(_arguments: Json) -> None: ...
def two(_arguments: Json, _run: ToolRun) -> None: ...
def optional(_arguments: Json, retries: int = 3) -> None: ...
def many(*_arguments: Any) -> None: ...
def keyword(_arguments: Json, *, dry: bool = False) -> None: ...


class Tool:
    """A handler with a method that is one, too."""

    def method(self, _arguments: Json, _run: ToolRun) -> None: ...
    def __call__(self, _arguments: Json) -> None: ...


@pytest.mark.parametrize(
    ("handler", "takes"),
    [
        (one, False),
        (two, True),
        (optional, False),
        (many, False),
        (keyword, False),
        (Tool().method, True),
        (Tool(), False),
        (functools.partial(two, {}), False),
        ([].append, False),
        (dict, False),
    ],
)
def test_a_handler_with_a_second_parameter_and_no_default_for_it_takes_the_run(
    handler: Any, takes: bool
) -> None:
    assert takes_two_arguments(handler) is takes


# -- leases


async def test_the_handler_begins_after_tool_started_and_its_progress_is_sent_between() -> None:
    async def part(peer: Peer) -> None:
        await peer.ask("notes.add", {})

    async def add(_arguments: Json, run: ToolRun) -> str:
        await run.progress("half \ud800", 50)
        await run.progress()
        return run.name

    server = await conversation(part, handlers={"notes.add": add}, limits=ClientLimits(progress_s=0))
    assert [(event["type"], event["payload"]) for event in of_calls(server)] == [
        ("tool.started", {"callId": "call_6"}),
        ("tool.progress", {"callId": "call_6", "message": "half ?", "percent": 50}),
        ("tool.progress", {"callId": "call_6"}),
        ("tool.result", {"callId": "call_6", "result": "notes.add", "error": None}),
    ]


async def test_progress_is_not_sent_too_often_nor_to_a_server_without_leases() -> None:
    async def part(peer: Peer) -> None:
        await peer.ask("notes.add", {})

    async def add(_arguments: Json, run: ToolRun) -> None:
        for percent in range(100):
            await run.progress(percent=percent)

    often = await conversation(part, handlers={"notes.add": add}, limits=ClientLimits(progress_s=60))
    none = await conversation(part, "cancel", handlers={"notes.add": add})
    assert often.types_heard().count("tool.progress") == 1
    assert {event["type"] for event in of_calls(none)} == {"tool.result"}


@pytest.mark.parametrize("percent", [-1, 101, float("nan")])
async def test_a_percentage_that_is_none_is_the_handlers_error(percent: float) -> None:
    async def part(peer: Peer) -> None:
        errors.append((await peer.ask("notes.add", {}))["error"])

    async def add(_arguments: Json, run: ToolRun) -> None:
        await run.progress(percent=percent)

    errors: list[str] = []
    await conversation(part, handlers={"notes.add": add})
    assert errors == ["percent must be from 0 to 100"]


async def test_a_call_without_a_handler_and_a_ui_call_start_nothing() -> None:
    async def part(peer: Peer) -> None:
        await peer.ask("notes.none", {})
        await peer.ask("notes.add", "[")

    server = await conversation(part, handlers={"notes.add": one})
    assert "tool.started" not in server.types_heard()


async def test_progress_while_the_connection_is_away_is_left_out_and_the_result_comes_later() -> None:
    async def first(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.call("notes.add", {}, "evt_add")
        await soon(begun)
        peer.connection.transport.abort()

    async def second(peer: Peer) -> None:
        await start(peer, resumed=True)
        assert (await peer.result("call_evt_add"))["result"] == "added"
        await peer.answer("Done.")

    async def add(_arguments: Json, run: ToolRun) -> str:
        begun.set()
        await client.wait_lost(LIMIT_S)
        await run.progress("unheard")
        return "added"

    begun = asyncio.Event()
    async with scripted_server(first, second) as server:
        async with connect(server.url, handlers={"notes.add": add}) as client:
            turn = await client.say("go")
            await client.wait_lost(LIMIT_S)
            await client.reconnect()
            await turn.wait(LIMIT_S)
    assert "tool.progress" not in server.types_heard()


# -- cancellations


async def cancelled(peer: Peer) -> Json:
    return dict((await peer.receive("tool.cancelled"))["payload"])


async def wait_for_ever(_arguments: Json) -> None:
    await asyncio.Event().wait()


async def says_partial(_arguments: Json) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ToolCancelledError("partial", {"written": 3}) from None


async def has_no_effect_yet(_arguments: Json, run: ToolRun) -> None:
    run.effect = "none"
    await asyncio.Event().wait()


async def ends_all_the_same(_arguments: Json) -> str:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    return "added"


async def fails_then(_arguments: Json) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise OSError("the disk is gone")


async def notes_the_reason(_arguments: Json, run: ToolRun) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        assert run.cancelled.is_set()
        raise ToolCancelledError("complete", run.reason) from None


@pytest.mark.parametrize(
    ("name", "handler", "expected"),
    [
        ("notes.read", wait_for_ever, {"effect": "none"}),
        ("notes.add", wait_for_ever, {"effect": "partial"}),
        ("notes.undeclared", wait_for_ever, {"effect": "partial"}),
        ("notes.read", says_partial, {"effect": "partial", "result": '{"written":3}'}),
        ("notes.add", has_no_effect_yet, {"effect": "none"}),
        ("notes.add", ends_all_the_same, {"effect": "complete", "result": "added"}),
        ("notes.add", fails_then, {"effect": "partial"}),
        ("notes.add", notes_the_reason, {"effect": "complete", "result": "barge_in"}),
    ],
)
async def test_a_cancelled_call_says_how_much_of_it_happened(name: str, handler: Any, expected: Json) -> None:
    async def part(peer: Peer) -> None:
        call_id = await peer.call(name, {})
        await peer.receive("tool.started")
        await soon(begun)
        await peer.send("tool.cancel", {"callId": call_id, "reason": "barge_in"})
        got.append(await cancelled(peer))
        assert got[0].pop("callId") == call_id

    def begins(arguments: Json, run: ToolRun) -> Any:
        begun.set()
        return handler(arguments, run) if takes_two_arguments(handler) else handler(arguments)

    begun = asyncio.Event()
    got: list[Json] = []
    server = await conversation(part, handlers={name: begins})
    assert got == [expected]
    assert [event["type"] for event in of_calls(server)] == ["tool.started", "tool.cancelled"]


class Road:
    """A way whose frames are on it until they are let through."""

    connection = 1
    connected = True
    acknowledges = False
    started = SessionStarted("s", resumed=False, capabilities=["lease", "cancel"])

    def __init__(self) -> None:
        self.sent: asyncio.Queue[Json] = asyncio.Queue()
        self.through = asyncio.Event()

    async def send(self, frame: bytes) -> None:
        await self.sent.put(json.loads(frame))
        await self.through.wait()


async def test_a_call_that_is_cancelled_while_its_start_is_told_had_no_effect() -> None:
    road, limits = Road(), ClientLimits()
    sender = Sender("s", IdGenerator("cevt"), road, Outbox(road, limits))
    results: list[ToolResultEvent] = []
    runs: list[Json] = []

    async def speak(_text: str) -> None: ...

    calls = Calls(limits, speak, sender, results.append, lambda _name: False)
    calls.handlers["notes.add"] = runs.append
    call = ToolCallEvent("c", "notes.add", "{}")
    calls.record(call)
    async with asyncio.timeout(LIMIT_S):
        answering = asyncio.create_task(calls.answer(call, 1))
        assert (await road.sent.get())["type"] == "tool.started"
        calls.cancel(ToolCancel("c", "barge_in"))
        road.through.set()
        assert (await road.sent.get())["payload"] == {"callId": "c", "effect": "none"}
        await answering
    assert runs == []
    assert [result.error for result in results] == ["cancelled: none"]


async def test_a_call_that_waits_behind_another_is_cancelled_at_once_and_never_begun() -> None:
    async def part(peer: Peer) -> None:
        first = await peer.call("notes.slow", {})
        waiting = await peer.call("notes.add", {})
        await peer.send("tool.cancel", {"callId": waiting, "reason": "superseded"})
        assert await cancelled(peer) == {"callId": waiting, "effect": "none"}
        release.set()
        await peer.result(first)

    async def slow(_arguments: Json) -> None:
        await release.wait()

    release = asyncio.Event()
    runs: list[Json] = []
    server = await conversation(part, handlers={"notes.slow": slow, "notes.add": runs.append})
    assert runs == []
    assert server.types_heard().count("tool.cancelled") == 1


async def test_a_call_that_was_cancelled_before_it_came_is_not_begun() -> None:
    async def part(peer: Peer) -> None:
        await peer.send("tool.cancel", {"callId": "call_evt_late", "reason": "timeout"})
        await peer.call("notes.add", {}, "evt_late")
        assert await cancelled(peer) == {"callId": "call_evt_late", "effect": "none"}
        await peer.call("notes.add", {}, "evt_late")  # nor when it is replayed

    runs: list[Json] = []
    await conversation(part, handlers={"notes.add": runs.append})
    assert runs == []


async def test_of_a_call_that_has_ended_or_was_never_seen_nothing_is_said() -> None:
    async def part(peer: Peer) -> None:
        call_id = await peer.call("notes.add", {})
        await peer.result(call_id)
        for name in (call_id, "call_of_an_earlier_process"):
            await peer.send("tool.cancel", {"callId": name, "reason": "timeout"})

    server = await conversation(part, handlers={"notes.add": one})
    assert "tool.cancelled" not in server.types_heard()


async def test_a_handler_that_is_cancelled_on_the_device_is_an_error_that_says_so() -> None:
    async def part(peer: Peer) -> None:
        errors.append((await peer.ask("notes.add", {}))["error"])

    def add(_arguments: Json) -> None:
        raise ToolCancelledError("none")

    errors: list[str] = []
    await conversation(part, handlers={"notes.add": add})
    assert errors == ["The tool was cancelled on the device; effect: none."]


async def test_what_a_cancelled_call_gave_is_shortened_to_what_an_event_may_hold() -> None:
    async def part(peer: Peer) -> None:
        call_id = await peer.call("notes.add", {})
        await soon(begun)
        await peer.send("tool.cancel", {"callId": call_id, "reason": "barge_in"})
        got.append((await cancelled(peer))["result"])

    async def add(_arguments: Json) -> str:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "x" * 100_000

    begun = asyncio.Event()
    got: list[str] = []
    await conversation(part, handlers={"notes.add": add})
    assert got[0].endswith("x… [91808 characters left out by the device]")


# -- jobs


async def test_a_job_frees_the_turn_and_its_result_is_sent_when_it_is_done() -> None:
    async def part(peer: Peer) -> None:
        call_id = await peer.call("notes.index", {})
        accepted.append((await peer.receive("tool.accepted"))["payload"])
        await peer.ask("notes.add", {})  # another call runs beside it
        release.set()
        accepted.append(await peer.result(call_id))

    async def index(_arguments: Json, run: ToolRun) -> dict[str, int]:
        assert await run.accept("job-7")
        assert await run.accept("job-7")
        await release.wait()
        return {"notes": 3}

    release = asyncio.Event()
    accepted: list[Json] = []
    server = await conversation(part, handlers={"notes.index": index, "notes.add": one})
    call_id = accepted[0]["callId"]
    assert accepted == [
        {"callId": call_id, "jobId": "job-7"},
        {"callId": call_id, "result": '{"notes":3}', "error": None},
    ]
    assert server.types_heard().count("tool.accepted") == 1


async def test_a_job_may_take_longer_than_a_call_and_is_bounded_all_the_same() -> None:
    async def part(peer: Peer) -> None:
        errors.append((await peer.ask("notes.index", {}))["error"])

    async def index(_arguments: Json, run: ToolRun) -> None:
        assert await run.accept("job-7")
        await asyncio.Event().wait()

    errors: list[str] = []
    limits = ClientLimits(tool_s=LIMIT_S, job_s=0.01)
    await conversation(part, handlers={"notes.index": index}, limits=limits)
    assert errors == ["The device's tool did not end within 0.01 s."]


async def test_a_server_without_jobs_and_a_device_with_enough_of_them_keep_a_call_a_call() -> None:
    async def part(peer: Peer) -> None:
        answers.append((await peer.ask("notes.index", {}))["result"])

    async def index(_arguments: Json, run: ToolRun) -> bool:
        return await run.accept("job-7")

    answers: list[str] = []
    server = await conversation(part, "lease", handlers={"notes.index": index})
    full = await conversation(part, handlers={"notes.index": index}, limits=ClientLimits(jobs=0))
    assert answers == ["false", "false"]
    assert "tool.accepted" not in [*server.types_heard(), *full.types_heard()]


@pytest.mark.parametrize("name", ["", "x" * 257, "\ud800"])
async def test_a_job_needs_a_name_that_can_be_sent(name: str) -> None:
    async def part(peer: Peer) -> None:
        errors.append((await peer.ask("notes.index", {}))["error"])

    async def index(_arguments: Json, run: ToolRun) -> None:
        await run.accept(name)

    errors: list[str] = []
    await conversation(part, handlers={"notes.index": index})
    assert errors == ["job_id must have 1 to 256 characters"]


async def test_a_job_can_be_cancelled_and_closing_the_client_stops_one() -> None:
    async def part(peer: Peer) -> None:
        call_id = await peer.call("notes.index", {"number": 1})
        await peer.receive("tool.accepted")
        await peer.send("tool.cancel", {"callId": call_id, "reason": "session_end"})
        assert await cancelled(peer) == {"callId": call_id, "effect": "partial"}
        await peer.call("notes.index", {"number": 2})
        await peer.receive("tool.accepted")

    async def index(arguments: Json, run: ToolRun) -> None:
        await run.accept("job")
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(arguments["number"])

    stopped: list[int] = []
    await conversation(part, handlers={"notes.index": index})
    assert stopped == [1, 2]


async def test_an_acceptance_and_a_result_that_were_lost_are_sent_again_under_their_ids() -> None:
    async def first(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.call("notes.index", {}, "evt_index")
        ids.append((await peer.receive("tool.accepted"))["id"])
        peer.connection.transport.abort()

    async def second(peer: Peer) -> None:
        await start(peer, resumed=True)
        ids.append((await peer.receive("tool.accepted"))["id"])
        release.set()
        await peer.result("call_evt_index")
        await peer.answer("Done.")

    async def index(_arguments: Json, run: ToolRun) -> str:
        await run.accept("job")
        await release.wait()
        return "indexed"

    release = asyncio.Event()
    ids: list[str] = []
    async with scripted_server(first, second) as server:
        async with connect(server.url, handlers={"notes.index": index}, reconnect=AT_ONCE) as client:
            await (await client.say("go")).wait(LIMIT_S)
    assert ids[0] == ids[1]


async def test_progress_and_acceptance_after_the_end_send_nothing() -> None:
    async def part(peer: Peer) -> None:
        await peer.ask("notes.add", {})
        await runs[0].progress("too late")
        assert not await runs[0].accept("job")

    def add(_arguments: Json, run: ToolRun) -> None:
        runs.append(run)

    runs: list[ToolRun] = []
    server = await conversation(part, handlers={"notes.add": add})
    assert not {"tool.progress", "tool.accepted"} & set(server.types_heard())


# -- the rest


async def test_the_response_is_cancelled_by_an_event_where_the_server_takes_it() -> None:
    async def script(peer: Peer) -> None:
        await start(peer, *taken)
        await peer.begin()
        await soon(said)
        if taken == ("cancel",):
            await peer.receive("response.cancel")
        await peer.result(await peer.state("idle"))

    for taken in (("cancel",), ("lease",)):
        said = asyncio.Event()
        async with scripted_server(script) as server, connect(server.url) as client:
            turn = await client.say("go")
            assert await client.cancel_response() is (taken == ("cancel",))
            said.set()
            assert (await turn.wait(LIMIT_S)).interrupted is (taken == ("cancel",))
        assert server.types_heard().count("response.cancel") == (taken == ("cancel",))


async def test_activity_and_late_results_are_told_as_typed_events() -> None:
    activity = {
        "callId": "c",
        "name": "calculator",
        "source": "builtin",
        "status": "finished",
        "errorType": "none",
        "executionTimeMs": 2,
        "dataSizeBytes": 21,
        "display": "calculator: done, 21 bytes, 2 ms",
    }

    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("tool.activity", activity)
        await peer.send("tool.late", {"callId": "c", "deliveredAs": "turn"})
        await peer.answer("Done.")

    told: list[Any] = []
    async with scripted_server(script) as server, connect(server.url) as client:
        client.on(ToolActivity, told.append)
        client.on(ToolLate, told.append)
        await (await client.say("go")).wait(LIMIT_S)
    assert told == [
        ToolActivity("c", "calculator", "builtin", "finished", "none", 2, 21, activity["display"]),  # type: ignore[arg-type]  # a text
        ToolLate("c", "turn"),
    ]


async def test_without_serial_a_cancelled_call_leaves_its_neighbour_alone() -> None:
    async def part(peer: Peer) -> None:
        first = await peer.call("notes.wait", {})
        second = await peer.call("notes.slow", {})
        await soon(begun)
        await peer.send("tool.cancel", {"callId": first, "reason": "barge_in"})
        assert (await cancelled(peer))["callId"] == first
        release.set()
        assert (await peer.result(second))["result"] == "ok"

    async def slow(_arguments: Json) -> str:
        begun.set()
        await release.wait()
        return "ok"

    begun, release = asyncio.Event(), asyncio.Event()
    await conversation(part, serial=False, handlers={"notes.wait": wait_for_ever, "notes.slow": slow})
