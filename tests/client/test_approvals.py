"""Approvals: each request is handled once, and the decision echoes its digest."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from conductor.client import (
    Approval,
    ClientLimits,
    Reconnect,
    Reconnected,
    ToolCancelledError,
    allow,
    connect,
    deny,
    edit,
)
from conductor.events.client import ApprovalResponse
from conductor.events.server import ApprovalResolved, SpeechFinal
from tests.client.extended import approval_response, asking, request, resolve, soon, start
from tests.stand_ins.scripted_server import LIMIT_S, Json, Peer, plain_turns, scripted_server

AT_ONCE = Reconnect(first_s=0, most_s=0)


async def test_the_capability_needs_a_handler() -> None:
    for handler in (None, lambda _: deny()):
        async with scripted_server() as server, connect(server.url, on_approval=handler):
            pass
        capabilities = server.heard[0]["payload"]["capabilities"]
        base = ["resume", "cancel", "lease", "late", "async", "activity", "diagnostics"]
        assert capabilities == base + ["approval"] * (handler is not None)


async def test_a_client_may_name_no_capabilities_and_a_server_accept_fewer() -> None:
    async with scripted_server(plain_turns) as server:
        async with connect(server.url, capabilities=()) as client:
            assert client.capabilities == frozenset()
        assert "capabilities" not in server.heard[0]["payload"]

    async def some(peer: Peer) -> None:
        await start(peer, "cancel")

    async with scripted_server(some) as server, connect(server.url) as client:
        assert client.capabilities == {"cancel"}


async def test_the_handler_receives_the_request_and_its_decision_echoes_the_digest() -> None:
    approvals: list[Approval] = []
    payloads: list[Json] = []

    async def handler(approval: Approval) -> Any:
        approvals.append(approval)
        return allow("session")

    async with (
        scripted_server(asking(request(), payloads=payloads)) as server,
        connect(server.url, on_approval=handler) as client,
    ):
        assert (await (await client.say("delete it")).wait(LIMIT_S)).text == "Done."
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
    assert payloads == [
        {
            "approvalId": "appr_1",
            "argumentsDigest": "digest of appr_1",
            "decision": "allow",
            "scope": "session",
        }
    ]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (allow(), {"decision": "allow"}),
        (allow("always"), {"decision": "allow"}),  # not offered: no more than once
        (
            deny("not \ud800 now" + "!" * 3_000),
            {"decision": "deny", "message": ("not ? now" + "!" * 3_000)[:2_000]},
        ),
        (edit({"path": "a.txt"}), {"decision": "edit", "editedArguments": {"path": "a.txt"}}),
    ],
)
async def test_decisions_are_encoded_as_in_the_protocol(answer: Any, expected: Json) -> None:
    payloads: list[Json] = []
    calls = request(scopes=["once", "session"])
    async with (
        scripted_server(asking(calls, payloads=payloads)) as server,
        connect(server.url, on_approval=lambda _: answer) as client,
    ):
        await (await client.say("delete it")).wait(LIMIT_S)
    assert payloads == [{"approvalId": "appr_1", "argumentsDigest": "digest of appr_1", **expected}]
    (decision,) = msgspec.convert(payloads[0], ApprovalResponse).all()
    assert decision.approval_id == "appr_1"


def fails(_approval: Approval) -> Any:
    raise ToolCancelledError("none")


@pytest.mark.parametrize(
    "handler",
    [
        fails,
        lambda _: True,
        lambda _: "allow",
        lambda _: edit([]),  # type: ignore[arg-type]  # what an app may do wrong
        lambda _: edit({"path": object()}),
        lambda _: edit({"path": "x" * 2**20}),
    ],
)
async def test_a_faulty_handler_refuses(handler: Any) -> None:
    payloads: list[Json] = []
    async with (
        scripted_server(asking(request(), payloads=payloads)) as server,
        connect(server.url, on_approval=handler) as client,
    ):
        await (await client.say("delete it")).wait(LIMIT_S)
    assert [(payload["decision"], payload.get("message")) for payload in payloads] == [("deny", None)]


@pytest.mark.parametrize("limit_s", [0.01, LIMIT_S])
async def test_without_a_decision_no_response_is_sent(limit_s: float) -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        await soon(over)
        await resolve(peer, "expired")
        await peer.answer("Nobody answered.")

    async def handler(_approval: Approval) -> None:
        try:
            if limit_s < LIMIT_S:
                await asyncio.Event().wait()
        finally:
            over.set()

    over = asyncio.Event()
    limits = ClientLimits(approval_s=limit_s)
    async with (
        scripted_server(script) as server,
        connect(server.url, on_approval=handler, limits=limits) as client,
    ):
        await (await client.say("delete it")).wait(LIMIT_S)
    assert "approval.response" not in server.types_heard()


@pytest.mark.parametrize("together", [True, False])
async def test_a_request_is_handled_during_a_tool_and_before_waiting_events(
    together: bool,
) -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        slow = await peer.call("notes.slow", {})
        if not together:
            await soon(started)
        await peer.send("assistant.speech.final", {"text": "waits"})
        await peer.send("approval.request", request())
        assert (await approval_response(peer))["decision"] == "allow"
        release.set()
        await peer.result(slow)
        await resolve(peer, "allowed")
        await peer.answer("Done.")

    async def slow(_arguments: Json) -> str:
        started.set()
        await release.wait()
        return "ok"

    def handler(_approval: Approval) -> Any:
        assert finals == []
        return allow()

    started, release = asyncio.Event(), asyncio.Event()
    finals: list[str] = []
    async with (
        scripted_server(script) as server,
        connect(server.url, on_approval=handler, handlers={"notes.slow": slow}) as client,
    ):
        client.on(SpeechFinal, lambda event: finals.append(event.text))
        await (await client.say("go")).wait(LIMIT_S)
    assert finals == ["waits", "Done."]


async def test_a_request_is_handled_after_earlier_events() -> None:
    order: list[str] = []

    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        for text in ("one", "two", "three"):
            await peer.send("assistant.speech.partial", {"text": text})
        await peer.send("approval.request", request())
        await approval_response(peer)
        await resolve(peer, "denied")
        await peer.answer("Done.")

    def handler(_approval: Approval) -> Any:
        order.append("asked")
        return deny()

    async with scripted_server(script) as server, connect(server.url, on_approval=handler) as client:
        client.on("assistant.speech.partial", lambda event: order.append(event.text))
        await (await client.say("go")).wait(LIMIT_S)
    assert order[:4] == ["one", "two", "three", "asked"]


@pytest.mark.parametrize("outcome", ["superseded", "expired", "allowed"])
async def test_a_resolved_request_stops_its_handler_and_is_reported(outcome: str) -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        await soon(started)
        await resolve(peer, outcome, message="so it goes")
        await soon(stopped)
        await peer.send("approval.request", request())  # a replay
        await peer.answer("Done.")

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
    events: list[ApprovalResolved] = []
    async with scripted_server(script) as server, connect(server.url, on_approval=handler) as client:
        client.on(ApprovalResolved, events.append)
        await (await client.say("go")).wait(LIMIT_S)
    assert events == [ApprovalResolved("appr_1", outcome, "so it goes")]  # type: ignore[arg-type]  # one of them
    assert calls == [1]
    assert "approval.response" not in server.types_heard()


async def test_a_replayed_request_is_handled_once() -> None:
    async def first(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request(), "evt_ask")
        await soon(started)
        peer.connection.transport.abort()

    async def second(peer: Peer) -> None:
        await start(peer, resumed=True)
        await peer.send("approval.request", request(), "evt_ask")
        await peer.send("approval.request", request())  # under a new envelope id, too
        await peer.arrived()
        decide.set()
        payloads.append(await approval_response(peer))
        await resolve(peer, "allowed")
        await peer.answer("Done.")

    async def handler(_approval: Approval) -> Any:
        calls.append(1)
        started.set()
        await decide.wait()
        return allow()

    started, decide = asyncio.Event(), asyncio.Event()
    calls: list[int] = []
    payloads: list[Json] = []
    async with scripted_server(first, second) as server:
        async with connect(server.url, on_approval=handler, reconnect=AT_ONCE) as client:
            await (await client.say("go")).wait(LIMIT_S)
    assert calls == [1]
    assert len(payloads) == server.types_heard().count("approval.response") == 1


@pytest.mark.parametrize("replayed", [True, False])
async def test_a_lost_decision_is_sent_again_under_its_id(replayed: bool) -> None:
    async def first(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        responses.append(await peer.receive("approval.response"))
        peer.connection.transport.abort()

    async def second(peer: Peer) -> None:
        await start(peer, resumed=True)
        if replayed:
            await peer.send("approval.request", request())
        responses.append(await peer.receive("approval.response"))
        await peer.arrived()
        await resolve(peer, "edited")
        await peer.answer("Done.")

    async def third(peer: Peer) -> None:
        await start(peer, resumed=True)
        await peer.begin()
        await peer.answer("Nothing more.")

    def handler(_approval: Approval) -> Any:
        calls.append(1)
        return edit({"path": "a.txt"})

    responses: list[Json] = []
    calls: list[int] = []
    reconnected = asyncio.Event()
    async with scripted_server(first, second, third) as server:
        async with connect(server.url, on_approval=handler, reconnect=AT_ONCE) as client:
            await (await client.say("go")).wait(LIMIT_S)
            client.on(Reconnected, lambda _event: reconnected.set())
            client.drop()
            await soon(reconnected)
            await (await client.say("and then?")).wait(LIMIT_S)
    assert calls == [1]
    assert responses[0]["id"] == responses[1]["id"]
    assert responses[0]["payload"] == responses[1]["payload"]
    assert server.types_heard().count("approval.response") == 2  # the third connection follows the resolution


async def test_a_decision_that_was_not_recorded_is_sent_again() -> None:
    async def serve(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        responses.append(await peer.receive("approval.response"))
        error = {"code": "store_unavailable", "message": "Later.", "eventId": responses[0]["id"]}
        await peer.send("error", error)
        responses.append(await peer.receive("approval.response"))
        await resolve(peer, "allowed")
        await peer.answer("Done.")

    responses: list[Json] = []
    async with scripted_server(serve) as server:
        limits = ClientLimits(retry_s=0.0)
        async with connect(server.url, on_approval=lambda _: allow(), limits=limits) as client:
            result = await (await client.say("go")).wait(LIMIT_S)
    assert result.text == "Done." and responses[0]["payload"] == responses[1]["payload"]


async def test_a_decision_without_a_connection_waits_for_the_next() -> None:
    async def first(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        await soon(started)
        peer.connection.transport.abort()

    async def second(peer: Peer) -> None:
        await start(peer, resumed=True)
        assert (await approval_response(peer))["decision"] == "deny"
        await resolve(peer, "denied")
        await peer.answer("Done.")

    async def handler(_approval: Approval) -> Any:
        started.set()
        await client.wait_lost(LIMIT_S)
        decided.set()
        return deny()

    started, decided = asyncio.Event(), asyncio.Event()
    async with scripted_server(first, second) as server:
        async with connect(server.url, on_approval=handler) as client:
            turn = await client.say("go")
            await soon(decided)
            await client.reconnect()
            assert (await turn.wait(LIMIT_S)).text == "Done."


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
    async with scripted_server(first, plain_turns) as server:
        async with connect(server.url, on_approval=handler) as client:
            await soon(started)
            await client.reconnect()
            await soon(stopped)


async def test_a_refused_edit_repeats_the_request_up_to_a_limit() -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        for _ in range(10):
            payloads.append(await approval_response(peer))
            await resolve(peer, "refused", message="path must be a text")
        payloads.append(await approval_response(peer))
        await resolve(peer, "denied")
        await peer.answer("Done.")

    def handler(approval: Approval) -> Any:
        refusals.append(approval.refused)
        return edit({"path": 7})

    payloads: list[Json] = []
    refusals: list[str | None] = []
    async with scripted_server(script) as server, connect(server.url, on_approval=handler) as client:
        await (await client.say("go")).wait(LIMIT_S)
    assert refusals == [None, *["path must be a text"] * 9]
    assert [payload["decision"] for payload in payloads] == [*["edit"] * 10, "deny"]


async def test_other_arguments_under_the_same_id_are_a_new_request() -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        for path in ("a.txt", "b.txt"):
            await peer.send("approval.request", request(arguments={"path": path}, argumentsDigest=path))
            payloads.append(await approval_response(peer))
        await resolve(peer, "allowed")
        await peer.answer("Done.")

    payloads: list[Json] = []
    async with (
        scripted_server(script) as server,
        connect(
            server.url,
            on_approval=lambda approval: allow() if approval.arguments["path"] == "a.txt" else deny(),
        ) as client,
    ):
        await (await client.say("go")).wait(LIMIT_S)
    assert [(payload["argumentsDigest"], payload["decision"]) for payload in payloads] == [
        ("a.txt", "allow"),
        ("b.txt", "deny"),
    ]


async def test_the_idle_for_an_answer_does_not_end_the_turn() -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        await peer.result(await peer.state("idle"))
        decide.set()
        await approval_response(peer)
        await resolve(peer, "allowed")
        await peer.answer("Done.")

    async def handler(_approval: Approval) -> Any:
        await decide.wait()
        return allow()

    decide = asyncio.Event()
    async with scripted_server(script) as server, connect(server.url, on_approval=handler) as client:
        result = await (await client.say("go")).wait(LIMIT_S)
    assert (result.ending, result.text) == ("idle", "Done.")


# -- approval.shown


SHOWN = "approval.shown"


async def test_approval_shown_is_sent_when_the_handler_waits() -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        assert (await peer.receive(SHOWN))["payload"] == {"approvalId": "appr_1"}
        assert drawn == ["May I run notes delete, path notes.txt?"]
        notify_shown.set()
        await approval_response(peer)
        await resolve(peer, "allowed")
        await peer.answer("Done.")

    async def handler(approval: Approval) -> Any:
        drawn.append(approval.prompt)
        await notify_shown.wait()
        return allow()

    drawn: list[str] = []
    notify_shown = asyncio.Event()
    async with scripted_server(script) as server, connect(server.url, on_approval=handler) as client:
        await (await client.say("go")).wait(LIMIT_S)
    assert server.types_heard().count(SHOWN) == 1


async def at_once(_approval: Approval) -> Any:
    return allow()


def raises(_approval: Approval) -> Any:
    raise LookupError


@pytest.mark.parametrize("handler", [lambda _: allow(), at_once, raises])
async def test_an_immediate_decision_sends_no_approval_shown(handler: Any) -> None:
    payloads: list[Json] = []
    async with (
        scripted_server(asking(request(), payloads=payloads)) as server,
        connect(server.url, on_approval=handler) as client,
    ):
        await (await client.say("delete it")).wait(LIMIT_S)
    assert SHOWN not in server.types_heard()


async def leaves_open(_approval: Approval) -> None:
    """Leave the request open for an answer by voice."""


@pytest.mark.parametrize("handler", [lambda _: None, leaves_open])
async def test_a_handler_without_a_decision_sends_approval_shown(handler: Any) -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        await peer.receive(SHOWN)
        await resolve(peer, "allowed")
        await peer.answer("Done.")

    async with scripted_server(script) as server, connect(server.url, on_approval=handler) as client:
        await (await client.say("go")).wait(LIMIT_S)


async def test_a_handler_may_send_approval_shown_itself() -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        await soon(started)
        await peer.result(await peer.state("idle"))
        assert SHOWN not in server.types_heard()
        draw.set()
        await peer.receive(SHOWN)
        drawn.set()
        await approval_response(peer)
        await resolve(peer, "allowed")
        await peer.answer("Done.")

    async def handler(_approval: Approval, notify_shown: Any) -> Any:
        started.set()
        await draw.wait()
        await notify_shown()
        await notify_shown()  # drawn again
        await drawn.wait()
        return allow()

    started, draw, drawn = asyncio.Event(), asyncio.Event(), asyncio.Event()
    async with scripted_server(script) as server, connect(server.url, on_approval=handler) as client:
        await (await client.say("go")).wait(LIMIT_S)
    assert server.types_heard().count(SHOWN) == 1


async def test_each_connection_receives_approval_shown_of_open_cards() -> None:
    async def first(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        for number in (1, 2, 3):
            await peer.send("approval.request", request(f"appr_{number}"))
        await peer.receive(SHOWN)
        await approval_response(peer)
        await soon(started)
        peer.connection.transport.abort()

    async def second(peer: Peer) -> None:
        await start(peer, resumed=True)
        assert (await peer.receive(SHOWN))["payload"] == {"approvalId": "appr_1"}
        assert (await approval_response(peer))["approvalId"] == "appr_2"
        await peer.arrived()
        for number in (1, 2, 3):
            await resolve(peer, "expired", f"appr_{number}")
        await peer.answer("Done.")

    async def handler(approval: Approval, notify_shown: Any) -> Any:
        if approval.approval_id == "appr_2":
            return deny()
        if approval.approval_id == "appr_1":
            await notify_shown()
        else:
            started.set()
        await asyncio.Event().wait()

    started = asyncio.Event()
    async with scripted_server(first, second) as server:
        async with connect(server.url, on_approval=handler, reconnect=AT_ONCE) as client:
            await (await client.say("go")).wait(LIMIT_S)
    assert server.types_heard().count(SHOWN) == 2


async def test_repeated_transcripts_precede_approval_shown() -> None:
    async def first(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        await peer.receive(SHOWN)
        event_ids.append((await peer.receive("user.audio.transcript.final"))["id"])
        peer.connection.transport.abort()

    async def second(peer: Peer) -> None:
        await start(peer, resumed=True)
        await peer.receive(SHOWN)
        await resolve(peer, "expired")
        await peer.answer("Done.")

    async def handler(_approval: Approval, notify_shown: Any) -> Any:
        await notify_shown()
        await client.say("yes please")
        await asyncio.Event().wait()

    event_ids: list[str] = []
    async with scripted_server(first, second) as server:
        async with connect(server.url, on_approval=handler, reconnect=AT_ONCE) as client:
            await (await client.say("go")).wait(LIMIT_S)
    kinds = [event["type"] for event in server.heard if event["id"] in event_ids or event["type"] == SHOWN]
    assert kinds == [SHOWN, "user.audio.transcript.final", "user.audio.transcript.final", SHOWN]
