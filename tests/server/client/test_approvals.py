"""Approvals: each request is handled once, and the decision echoes its digest."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from conductor.client import (
    Approval,
    Client,
    ClientLimits,
    Reconnect,
    ToolCancelledError,
    allow,
    connect,
    deny,
    edit,
)
from conductor.events.client import ApprovalResponse
from conductor.events.server import ApprovalResolved, SpeechFinal
from conductor.messages import ToolCall, ToolResult
from conductor.models.base import ModelRequest, TextDelta
from conductor.stores.memory import MemoryStore
from tests.models import Script
from tests.server.client.extended import approval_response, payloads, play, request, resolve, soon, start
from tests.server.door import Door
from tests.server.nodes import node
from tests.stand_ins.scripted_server import LIMIT_S, Json, Peer, ScriptedServer, plain_turns, scripted_server

SHOWN = "approval.shown"


async def decided(peer: Peer, payload: Json | None = None) -> None:
    """Request a decision, and resolve it."""
    await peer.send("approval.request", payload or request())
    await approval_response(peer)
    await resolve(peer, "allowed")


def responses(server: ScriptedServer) -> list[Json]:
    return payloads(server, "approval.response")


async def test_capabilities_are_named_by_the_client_and_accepted_by_the_server() -> None:
    base = [
        "resume",
        "tools",
        "cancel",
        "lease",
        "late",
        "activity",
        "pause",
        "images",
        "turns",
        "context",
        "diagnostics",
    ]
    for handler in (None, lambda _: deny()):
        async with scripted_server() as server, connect(server.url, on_approval=handler):
            pass
        assert server.heard[0]["payload"]["capabilities"] == base + ["approval"] * (handler is not None)

    async with scripted_server(plain_turns) as server, connect(server.url, capabilities=()) as client:
        assert client.capabilities == frozenset()
    assert "capabilities" not in server.heard[0]["payload"]

    async def some(peer: Peer) -> None:
        await start(peer, "cancel")

    async with scripted_server(some) as server, connect(server.url) as client:
        assert client.capabilities == {"cancel"}


async def test_the_handler_receives_the_request() -> None:
    approvals: list[Approval] = []

    async def handler(approval: Approval) -> Any:
        approvals.append(approval)
        return allow("session")

    server, _ = await play(decided, on_approval=handler)
    assert approvals == [
        Approval(
            approval_id="appr_1",
            call_id="call_of_appr_1",
            batch_id="batch_1",
            name="notes.delete",
            arguments={"path": "notes.txt"},
            arguments_digest="digest of appr_1",
            risk="medium",
            reasons=["It cannot be undone."],
            prompt="May I run notes delete, path notes.txt?",
            scopes=["once", "session", "always"],
            expires_at="2026-03-01T12:10:00.000Z",
        )
    ]
    assert [payload["scope"] for payload in responses(server)] == ["session"]


def fails(_approval: Approval) -> Any:
    raise ToolCancelledError("none")


MESSAGE = "not \ud800 now" + "!" * 3_000
DENIAL = {"decision": "deny"}


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (lambda _: allow(), {"decision": "allow"}),
        (lambda _: allow("always"), {"decision": "allow"}),  # not offered: no more than once
        (lambda _: deny(MESSAGE), DENIAL | {"message": MESSAGE.replace("\ud800", "?")[:2_000]}),
        (
            lambda _: edit({"path": "a.txt"}),
            {"decision": "edit", "editedArguments": {"path": "a.txt"}},
        ),
        # A faulty handler refuses.
        (fails, DENIAL),
        (lambda _: True, DENIAL),
        (lambda _: "allow", DENIAL),
        (lambda _: edit([]), DENIAL),  # type: ignore[arg-type]  # what an app may do wrong
        (lambda _: edit({"path": object()}), DENIAL),
        (lambda _: edit({"path": "x" * 2**20}), DENIAL),
    ],
)
async def test_a_decision_echoes_the_digest_and_an_immediate_one_shows_no_card(
    handler: Any, expected: Json
) -> None:
    async def part(peer: Peer) -> None:
        await decided(peer, request(scopes=["once", "session"]))

    server, _ = await play(part, on_approval=handler)
    (payload,) = responses(server)
    assert payload == {"approvalId": "appr_1", "argumentsDigest": "digest of appr_1", **expected}
    assert msgspec.convert(payload, ApprovalResponse).all()[0].approval_id == "appr_1"
    assert SHOWN not in server.types_heard()


@pytest.mark.parametrize("limit_s", [0.01, LIMIT_S])
async def test_without_a_decision_no_response_is_sent(limit_s: float) -> None:
    async def part(peer: Peer) -> None:
        await peer.send("approval.request", request())
        await soon(over)
        await peer.receive(SHOWN)
        await resolve(peer, "expired")

    async def handler(_approval: Approval) -> None:
        try:
            if limit_s < LIMIT_S:
                await asyncio.Event().wait()
        finally:
            over.set()

    over = asyncio.Event()
    server, _ = await play(part, on_approval=handler, limits=ClientLimits(approval_s=limit_s))
    assert responses(server) == []


# -- the order of events


@pytest.mark.parametrize("together", [True, False])
async def test_a_request_is_handled_during_a_tool_and_before_waiting_events(together: bool) -> None:
    async def part(peer: Peer) -> None:
        clients[0].on(SpeechFinal, lambda event: finals.append(event.text))
        slow = await peer.call("notes.slow", {})
        if not together:
            await soon(started)
        await peer.send("assistant.speech.final", {"text": "waits"})
        await peer.send("approval.request", request())
        assert (await approval_response(peer))["decision"] == "allow"
        release.set()
        await peer.result(slow)
        await resolve(peer, "allowed")

    async def slow(_arguments: Json) -> str:
        started.set()
        await release.wait()
        return "ok"

    def handler(_approval: Approval) -> Any:
        assert finals == []
        return allow()

    started, release = asyncio.Event(), asyncio.Event()
    finals: list[str] = []
    clients: list[Client] = []
    await play(part, clients=clients, on_approval=handler, handlers={"notes.slow": slow})
    assert finals == ["waits", "Done."]


# -- the end of a request


@pytest.mark.parametrize("outcome", ["superseded", "expired", "allowed"])
async def test_a_resolved_request_stops_its_handler_and_is_reported(outcome: str) -> None:
    async def part(peer: Peer) -> None:
        await peer.send("approval.request", request())
        await soon(started)
        await resolve(peer, outcome, message="so it goes")
        await soon(stopped)
        await peer.send("approval.request", request())  # a replay

    async def handler(_approval: Approval) -> Any:
        calls.append(1)
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()
            return allow()  # too late

    started, stopped = asyncio.Event(), asyncio.Event()
    calls: list[int] = []
    server, result = await play(part, on_approval=handler)
    resolved = ApprovalResolved("appr_1", outcome, "so it goes")  # type: ignore[arg-type]  # one of them
    assert resolved in result.events
    assert calls == [1]
    assert responses(server) == []


async def test_requests_of_a_lost_session_are_dropped() -> None:
    async def first(peer: Peer) -> None:
        await start(peer)
        await peer.send("approval.request", request())
        await soon(started)

    async def handler(_approval: Approval) -> Any:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    started, stopped = asyncio.Event(), asyncio.Event()
    async with (
        scripted_server(first, plain_turns) as server,
        connect(server.url, on_approval=handler) as client,
    ):
        await soon(started)
        client.drop()
        await client.reconnect()
        await soon(stopped)


async def test_a_refused_edit_repeats_the_request_up_to_a_limit() -> None:
    async def part(peer: Peer) -> None:
        await peer.send("approval.request", request())
        for _ in range(10):
            await approval_response(peer)
            await resolve(peer, "refused", message="path must be a text")
        await approval_response(peer)
        await resolve(peer, "denied")

    def handler(approval: Approval) -> Any:
        refusals.append(approval.refused)
        return edit({"path": 7})

    refusals: list[str | None] = []
    server, _ = await play(part, on_approval=handler)
    assert refusals == [None, *["path must be a text"] * 9]
    assert [payload["decision"] for payload in responses(server)] == [*["edit"] * 10, "deny"]


async def test_other_arguments_under_the_same_id_are_a_new_request() -> None:
    async def part(peer: Peer) -> None:
        for path in ("a.txt", "b.txt"):
            await peer.send("approval.request", request(arguments={"path": path}, argumentsDigest=path))
            await approval_response(peer)
        await resolve(peer, "allowed")

    def handler(approval: Approval) -> Any:
        return allow() if approval.arguments["path"] == "a.txt" else deny()

    server, _ = await play(part, on_approval=handler)
    decisions = [(payload["argumentsDigest"], payload["decision"]) for payload in responses(server)]
    assert decisions == [("a.txt", "allow"), ("b.txt", "deny")]


@pytest.mark.parametrize("changes", [{"approvalId": "appr_2"}, {"argumentsDigest": "digest of another"}])
async def test_a_new_request_for_the_call_of_an_edit_that_was_sent_twice_is_put_to_the_app(
    changes: Json,
) -> None:
    card = request(arguments={"path": "b.txt"}, callId="call_of_appr_1") | changes

    async def first(peer: Peer) -> None:
        await peer.send("approval.request", request())
        await peer.receive("approval.response")

    async def second(peer: Peer) -> None:
        await peer.receive("approval.response")
        await peer.send("approval.request", card)
        await peer.receive("approval.response")
        await resolve(peer, "edited", card["approvalId"])
        await peer.arrived()

    def handler(approval: Approval) -> Any:
        paths.append(approval.arguments["path"])
        return edit({"path": "c.txt"})

    paths: list[str] = []
    server, _ = await play(first, second, on_approval=handler)
    assert paths == ["notes.txt", "b.txt"]
    assert responses(server)[2]["argumentsDigest"] == card["argumentsDigest"]


# -- reconnecting


async def test_a_replayed_request_is_handled_once() -> None:
    async def first(peer: Peer) -> None:
        await peer.send("approval.request", request(), "evt_ask")
        await soon(started)

    async def second(peer: Peer) -> None:
        await peer.send("approval.request", request(), "evt_ask")
        await peer.send("approval.request", request())  # under a new envelope id, too
        await peer.arrived()
        decide.set()
        await approval_response(peer)
        await resolve(peer, "allowed")

    async def handler(_approval: Approval) -> Any:
        calls.append(1)
        started.set()
        await decide.wait()
        return allow()

    started, decide = asyncio.Event(), asyncio.Event()
    calls: list[int] = []
    server, _ = await play(first, second, on_approval=handler)
    assert calls == [1]
    assert len(responses(server)) == 1


@pytest.mark.parametrize("is_replayed", [True, False])
async def test_a_lost_decision_is_sent_again_until_it_is_resolved(is_replayed: bool) -> None:
    async def first(peer: Peer) -> None:
        await peer.send("approval.request", request())
        await peer.receive("approval.response")

    async def second(peer: Peer) -> None:
        if is_replayed:
            await peer.send("approval.request", request())
        await peer.receive("approval.response")
        await peer.arrived()
        await resolve(peer, "edited")
        await peer.arrived()

    def handler(_approval: Approval) -> Any:
        calls.append(1)
        return edit({"path": "a.txt"})

    calls: list[int] = []
    server, _ = await play(first, second, Peer.arrived, on_approval=handler)
    assert calls == [1]
    events = [event for event in server.heard if event["type"] == "approval.response"]
    assert len(events) == 2 and events[0]["id"] == events[1]["id"]


async def test_a_refused_copy_of_an_edit_that_was_accepted_is_not_put_to_the_app() -> None:
    async def first(peer: Peer) -> None:
        await peer.send("approval.request", request())
        await peer.receive("approval.response")

    async def second(peer: Peer) -> None:
        await resolve(peer, "edited")
        await resolve(peer, "refused", message="This was decided before.")
        await peer.arrived()

    def handler(_approval: Approval) -> Any:
        calls.append(1)
        return edit({"path": "a.txt"})

    calls: list[int] = []
    await play(first, second, on_approval=handler)
    assert calls == [1]


async def test_a_repeated_edit_that_is_refused_is_asked_again_and_not_sent_again() -> None:
    async def first(peer: Peer) -> None:
        await peer.send("approval.request", request())
        event = await peer.receive("approval.response")
        await peer.send("event.ack", {"eventIds": [event["id"]]})
        await peer.arrived()

    async def second(peer: Peer) -> None:
        await peer.send("approval.request", request())  # its answer may have been lost
        await peer.receive("approval.response")
        await resolve(peer, "refused", message="path must be a text")
        await resolve(peer, "refused", message="path must be a text")  # another copy of it
        assert (await approval_response(peer))["editedArguments"] == {"path": "a.txt"}

    async def third(peer: Peer) -> None:
        assert (await approval_response(peer))["editedArguments"] == {"path": "a.txt"}
        await peer.arrived()
        await resolve(peer, "edited")

    def handler(approval: Approval) -> Any:
        refusals.append(approval.refused)
        return edit({"path": "a.txt" if approval.refused else 7})

    refusals: list[str | None] = []
    server, _ = await play(first, second, third, on_approval=handler)
    assert refusals == [None, "path must be a text"]
    assert [payload["editedArguments"]["path"] for payload in responses(server)] == [7, 7, "a.txt", "a.txt"]


def copying(request: ModelRequest) -> Script:
    """Copy a file once, and report where it went."""
    last = request.messages[-1]
    if isinstance(last, ToolResult):
        return [TextDelta("It is copied.")]
    return [ToolCall("c-1", "files_copy", '{"path":"a.txt"}')]


async def test_an_edit_sent_twice_that_the_server_refuses_is_asked_again() -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    tool = {"name": "files_copy", "description": "Copies a file.", "inputSchema": schema}
    refusals: list[str | None] = []
    runs: list[Any] = []

    async def handler(approval: Approval) -> Any:
        refusals.append(approval.refused)
        if approval.refused is None:
            door.cut_after(1)  # the answer to the edit is lost
            return edit({"path": 7})
        return edit({"path": "b.txt"})

    async with node(MemoryStore(), copying) as served:
        door = Door(served)
        async with (
            door.open() as url,
            connect(
                url,
                tools=[tool],
                handlers={"files_copy": runs.append},
                on_approval=handler,
                reconnect=Reconnect(first_s=0),
            ) as client,
        ):
            result = await (await client.say("copy it")).wait(LIMIT_S)
    assert refusals[0] is None and len(refusals) == 2 and "path" in str(refusals[1])
    assert runs == [{"path": "b.txt"}] and result.text == "It is copied."


async def test_an_acknowledged_decision_is_repeated_only_with_its_request() -> None:
    async def first(peer: Peer) -> None:
        await peer.send("approval.request", request())
        event = await peer.receive("approval.response")
        await peer.send("event.ack", {"eventIds": [event["id"]]})
        await peer.arrived()

    async def last(peer: Peer) -> None:
        await decided(peer)

    server, _ = await play(
        first,
        Peer.arrived,
        last,
        capabilities=("resume", "approval"),
        on_approval=lambda _: allow(),
    )
    assert len(responses(server)) == 2


async def test_a_decision_that_was_not_recorded_is_sent_again() -> None:
    async def part(peer: Peer) -> None:
        await peer.send("approval.request", request())
        event = await peer.receive("approval.response")
        error = {"code": "store_unavailable", "message": "Later.", "eventId": event["id"]}
        await peer.send("error", error)
        await approval_response(peer)
        await resolve(peer, "allowed")

    server, _ = await play(part, on_approval=lambda _: allow(), limits=ClientLimits(retry_s=0.0))
    first, second = responses(server)
    assert first == second


# -- approval.shown


async def test_approval_shown_is_sent_when_the_handler_waits() -> None:
    async def part(peer: Peer) -> None:
        await peer.send("approval.request", request())
        assert (await peer.receive(SHOWN))["payload"] == {"approvalId": "appr_1"}
        assert prompts == ["May I run notes delete, path notes.txt?"]
        decide.set()
        await approval_response(peer)
        await resolve(peer, "allowed")

    async def handler(approval: Approval) -> Any:
        prompts.append(approval.prompt)
        await decide.wait()
        return allow()

    prompts: list[str] = []
    decide = asyncio.Event()
    server, _ = await play(part, on_approval=handler)
    assert server.types_heard().count(SHOWN) == 1


async def test_a_handler_may_send_approval_shown_itself() -> None:
    async def part(peer: Peer) -> None:
        await peer.send("approval.request", request())
        await soon(started)
        await peer.result(await peer.state("idle"))
        assert SHOWN not in peer.server.types_heard()
        draw.set()
        await peer.receive(SHOWN)
        decide.set()
        await approval_response(peer)
        await resolve(peer, "allowed")

    async def handler(_approval: Approval, notify_shown: Any) -> Any:
        started.set()
        await draw.wait()
        await notify_shown()
        await notify_shown()  # drawn again
        await decide.wait()
        return allow()

    started, draw, decide = asyncio.Event(), asyncio.Event(), asyncio.Event()
    server, _ = await play(part, on_approval=handler)
    assert server.types_heard().count(SHOWN) == 1


async def test_each_connection_receives_approval_shown_of_open_cards() -> None:
    async def first(peer: Peer) -> None:
        for number in (1, 2, 3):
            await peer.send("approval.request", request(f"appr_{number}"))
        await peer.receive(SHOWN)
        await approval_response(peer)
        await soon(started)

    async def second(peer: Peer) -> None:
        assert (await peer.receive(SHOWN))["payload"] == {"approvalId": "appr_1"}
        assert (await approval_response(peer))["approvalId"] == "appr_2"
        await peer.arrived()
        for number in (1, 2, 3):
            await resolve(peer, "expired", f"appr_{number}")

    async def handler(approval: Approval, notify_shown: Any) -> Any:
        if approval.approval_id == "appr_2":
            return deny()
        if approval.approval_id == "appr_1":
            await notify_shown()
        else:
            started.set()
        await asyncio.Event().wait()

    started = asyncio.Event()
    server, _ = await play(first, second, on_approval=handler)
    assert server.types_heard().count(SHOWN) == 2


async def test_repeated_transcripts_precede_approval_shown() -> None:
    async def first(peer: Peer) -> None:
        await peer.send("approval.request", request())
        await peer.receive(SHOWN)
        event_ids.append((await peer.receive("user.audio.transcript.final"))["id"])

    async def second(peer: Peer) -> None:
        await peer.receive(SHOWN)
        await resolve(peer, "expired")

    async def handler(_approval: Approval, notify_shown: Any) -> Any:
        await notify_shown()
        await clients[0].say("yes please")
        await asyncio.Event().wait()

    event_ids: list[str] = []
    clients: list[Client] = []
    server, _ = await play(first, second, clients=clients, on_approval=handler)
    kinds = [event["type"] for event in server.heard if event["id"] in event_ids or event["type"] == SHOWN]
    assert kinds == [SHOWN, "user.audio.transcript.final", "user.audio.transcript.final", SHOWN]
