"""Tool calls: leases, progress, cancellations and jobs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import Any

import pytest

from conductor.client import Client, ClientLimits, ToolCancelledError, ToolRun, connect
from conductor.client.calls import takes_two_arguments
from tests.server.client.extended import Part, play, soon, start
from tests.stand_ins.scripted_server import LIMIT_S, Json, Peer, ScriptedServer, scripted_server

TOOLS = [
    {"name": "notes.read", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    {"name": "notes.add", "inputSchema": {"type": "object"}},
]


async def conversation(*parts: Part, **options: Any) -> ScriptedServer:
    """Play one turn with the tools; return the server with its events."""
    server, _ = await play(*parts, tools=TOOLS, **options)
    return server


def of_calls(server: ScriptedServer) -> list[Json]:
    """List the server's inbound events about tools, without UI calls."""
    ui = ('{"ok":true}', '{"spoken":true}')
    events = [event for event in server.heard if event["type"].startswith("tool.")]
    return [event for event in events if event["payload"].get("result") not in ui]


# -- the second argument


def ignore(_arguments: Json) -> None: ...
def ignore_with_run(_arguments: Json, _run: ToolRun) -> None: ...
def optional(_arguments: Json, retries: int = 3) -> None: ...
def many(*_arguments: Any) -> None: ...
def keyword(_arguments: Json, *, dry: bool = False) -> None: ...


class Tool:
    """A handler with a method that is also a handler."""

    def method(self, _arguments: Json, _run: ToolRun) -> None: ...
    def __call__(self, _arguments: Json) -> None: ...


@pytest.mark.parametrize(
    ("handler", "takes"),
    [
        (ignore, False),
        (ignore_with_run, True),
        (optional, False),
        (many, False),
        (keyword, False),
        (Tool().method, True),
        (Tool(), False),
        (functools.partial(ignore_with_run, {}), False),
        ([].append, False),
        (dict, False),
    ],
)
def test_a_second_parameter_without_a_default_receives_the_run(handler: Any, takes: bool) -> None:
    assert takes_two_arguments(handler) is takes


# -- leases


async def test_progress_is_sent_between_tool_started_and_the_result() -> None:
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


async def test_progress_is_limited_and_needs_the_capability() -> None:
    async def part(peer: Peer) -> None:
        await peer.ask("notes.add", {})

    async def add(_arguments: Json, run: ToolRun) -> None:
        for percent in range(100):
            await run.progress(percent=percent)

    limited = await conversation(part, handlers={"notes.add": add}, limits=ClientLimits(progress_s=60))
    without = await conversation(part, capabilities=("cancel",), handlers={"notes.add": add})
    assert limited.types_heard().count("tool.progress") == 1
    assert {event["type"] for event in of_calls(without)} == {"tool.result"}


@pytest.mark.parametrize("percent", [-1, 101])
async def test_an_invalid_report_is_the_handlers_error(percent: float) -> None:
    async def part(peer: Peer) -> None:
        errors.append((await peer.ask("notes.add", {}))["error"])

    async def add(_arguments: Json, run: ToolRun) -> None:
        await run.progress(percent=percent)

    errors: list[str] = []
    await conversation(part, handlers={"notes.add": add})
    assert errors == ["percent must be from 0 to 100"]


async def test_an_invalid_call_sends_no_tool_started() -> None:
    async def part(peer: Peer) -> None:
        await peer.ask("notes.none", {})
        await peer.ask("notes.add", "[")

    server = await conversation(part, handlers={"notes.add": ignore})
    assert "tool.started" not in server.types_heard()


async def test_without_a_connection_progress_is_skipped_and_the_result_kept() -> None:
    async def first(peer: Peer) -> None:
        await peer.call("notes.add", {}, "evt_add")
        await soon(started)

    async def second(peer: Peer) -> None:
        assert (await peer.result("call_evt_add"))["result"] == "added"

    async def add(_arguments: Json, run: ToolRun) -> str:
        started.set()
        await asyncio.wait_for(clients[0].wait_lost(), LIMIT_S)
        await run.progress("unheard")
        return "added"

    started = asyncio.Event()
    clients: list[Client] = []
    server = await conversation(first, second, clients=clients, handlers={"notes.add": add})
    assert "tool.progress" not in server.types_heard()


# -- cancellations


async def cancellation(peer: Peer) -> Json:
    return dict((await peer.receive("tool.cancelled"))["payload"])


async def wait_for_ever(_arguments: Json) -> None:
    await asyncio.Event().wait()


async def reports_partial(_arguments: Json) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ToolCancelledError("partial", {"written": 3}) from None


async def has_no_effect_yet(_arguments: Json, run: ToolRun) -> None:
    run.effect = "none"
    await asyncio.Event().wait()


async def ignores_the_cancellation(_arguments: Json) -> str:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    return "added"


async def fails_after_the_cancellation(_arguments: Json) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise OSError("the disk is gone")


async def returns_the_reason(_arguments: Json, run: ToolRun) -> None:
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
        ("notes.read", reports_partial, {"effect": "partial", "result": '{"written":3}'}),
        ("notes.add", has_no_effect_yet, {"effect": "none"}),
        ("notes.add", ignores_the_cancellation, {"effect": "complete", "result": "added"}),
        ("notes.add", fails_after_the_cancellation, {"effect": "partial"}),
        ("notes.add", returns_the_reason, {"effect": "complete", "result": "barge_in"}),
    ],
)
async def test_a_cancelled_call_reports_its_effect(name: str, handler: Any, expected: Json) -> None:
    async def part(peer: Peer) -> None:
        call_id = await peer.call(name, {})
        await peer.receive("tool.started")
        await soon(started)
        await peer.send("tool.cancel", {"callId": call_id, "reason": "barge_in"})
        got.append(await cancellation(peer))
        assert got[0].pop("callId") == call_id

    def begins(arguments: Json, run: ToolRun) -> Any:
        started.set()
        return handler(arguments, run) if takes_two_arguments(handler) else handler(arguments)

    started = asyncio.Event()
    got: list[Json] = []
    server = await conversation(part, handlers={name: begins})
    assert got == [expected]
    assert [event["type"] for event in of_calls(server)] == ["tool.started", "tool.cancelled"]


async def test_a_call_that_waits_behind_another_is_cancelled_at_once_and_never_started() -> None:
    async def part(peer: Peer) -> None:
        first = await peer.call("notes.slow", {})
        waiting = await peer.call("notes.add", {})
        await peer.send("tool.cancel", {"callId": waiting, "reason": "superseded"})
        assert await cancellation(peer) == {"callId": waiting, "effect": "none"}
        release.set()
        await peer.result(first)

    async def slow(_arguments: Json) -> None:
        await release.wait()

    release = asyncio.Event()
    runs: list[Json] = []
    server, result = await play(part, tools=TOOLS, handlers={"notes.slow": slow, "notes.add": runs.append})
    assert runs == []
    assert [call.error for call in result.calls] == [None, "cancelled: none"]
    assert server.types_heard().count("tool.cancelled") == 1


async def test_a_call_that_arrives_after_its_cancellation_does_not_run() -> None:
    async def part(peer: Peer) -> None:
        await peer.send("tool.cancel", {"callId": "call_evt_late", "reason": "timeout"})
        await peer.call("notes.add", {}, "evt_late")

    runs: list[Json] = []
    await conversation(part, handlers={"notes.add": runs.append})
    assert runs == []


async def test_the_cancellation_of_an_unknown_or_finished_call_is_ignored() -> None:
    async def part(peer: Peer) -> None:
        call_id = await peer.call("notes.add", {})
        await peer.result(call_id)
        for name in (call_id, "call_of_an_earlier_process"):
            await peer.send("tool.cancel", {"callId": name, "reason": "timeout"})

    server = await conversation(part, handlers={"notes.add": ignore})
    assert "tool.cancelled" not in server.types_heard()


async def test_a_cancellation_is_sent_again_until_it_is_acknowledged() -> None:
    async def first(peer: Peer) -> None:
        await peer.call("notes.wait", {}, "evt_wait")
        await peer.send("tool.cancel", {"callId": "call_evt_wait", "reason": "timeout"})
        await cancellation(peer)

    async def second(peer: Peer) -> None:
        await cancellation(peer)
        await peer.ask("notes.add", {})
        later = of_calls(peer.server)[-1]["id"]
        await peer.send("event.ack", {"eventIds": [later]})  # which says nothing about the cancellation
        await peer.arrived()

    async def third(peer: Peer) -> None:
        await cancellation(peer)
        await peer.send("event.ack", {"eventIds": [of_calls(peer.server)[-1]["id"]]})
        await peer.arrived()

    capabilities = ("resume", "cancel")
    parts = (first, second, third, Peer.arrived)
    handlers = {"notes.add": ignore, "notes.wait": wait_for_ever}
    server = await conversation(*parts, capabilities=capabilities, handlers=handlers)
    ids = [event["id"] for event in of_calls(server) if event["type"] == "tool.cancelled"]
    assert len(ids) == 3 and len(set(ids)) == 1


async def test_reports_after_the_end_of_a_call_are_ignored() -> None:
    async def part(peer: Peer) -> None:
        await peer.ask("notes.add", {})
        await runs[0].progress("too late")

    def add(_arguments: Json, run: ToolRun) -> None:
        runs.append(run)

    runs: list[ToolRun] = []
    server = await conversation(part, handlers={"notes.add": add})
    assert "tool.progress" not in server.types_heard()


# -- the response


async def test_a_response_is_cancelled_with_the_capability() -> None:
    async def script(peer: Peer) -> None:
        await start(peer, *capabilities)
        await peer.begin()
        await soon(requested)
        if capabilities == ("cancel",):
            await peer.receive("response.cancel")
        await peer.result(await peer.state("idle"))

    for capabilities in (("cancel",), ("lease",)):
        requested = asyncio.Event()
        async with scripted_server(script) as server, connect(server.url) as client:
            turn = await client.say("go")
            assert await client.cancel_response() is (capabilities == ("cancel",))
            requested.set()
            assert (await turn.wait(LIMIT_S)).interrupted is (capabilities == ("cancel",))
        assert server.types_heard().count("response.cancel") == (capabilities == ("cancel",))
