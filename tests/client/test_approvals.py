"""Approvals in the library: asked once, answered under the digest that was shown, and never by chance."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
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
from tests.client.extended import answered, asking, request, resolve, soon, start
from tests.stand_ins.scripted_server import LIMIT_S, Json, Peer, plain_turns, scripted_server

AT_ONCE = Reconnect(first_s=0, most_s=0)


async def test_the_capability_is_named_only_where_somebody_can_be_asked() -> None:
    for handler in (None, lambda _: deny()):
        async with scripted_server() as server, connect(server.url, on_approval=handler):
            pass
        named = server.heard[0]["payload"]["capabilities"]
        base = ["resume", "cancel", "lease", "late", "async", "activity", "diagnostics"]
        assert named == base + ["approval"] * (handler is not None)


async def test_a_client_of_the_base_protocol_names_none_and_a_server_may_accept_fewer() -> None:
    async with scripted_server(plain_turns) as server:
        async with connect(server.url, capabilities=()) as client:
            assert client.capabilities == frozenset()
        assert "capabilities" not in server.heard[0]["payload"]

    async def some(peer: Peer) -> None:
        await start(peer, "cancel")

    async with scripted_server(some) as server, connect(server.url) as client:
        assert client.capabilities == {"cancel"}


async def test_the_handler_gets_the_question_and_its_answer_echoes_the_digest() -> None:
    seen: list[Approval] = []
    got: list[Json] = []

    async def handler(approval: Approval) -> Any:
        seen.append(approval)
        return allow("session")

    async with (
        scripted_server(asking(request(), got=got)) as server,
        connect(server.url, on_approval=handler) as client,
    ):
        assert (await (await client.say("delete it")).wait(LIMIT_S)).text == "Done."
    assert seen == [
        Approval(
            approval_id="appr_1",
            call_id="call_of_appr_1",
            batch_id="batch_1",
            name="notes.delete",
            arguments={"path": "notes.txt"},
            risk="medium",
            reasons=("It cannot be undone.",),
            prompt="May I run notes delete, path notes.txt?",
            scopes=("once", "session", "always"),
            expires_at=datetime(2026, 3, 1, 12, 10, tzinfo=UTC),
        )
    ]
    assert got == [
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
async def test_what_is_decided_is_sent_as_the_protocol_has_it(answer: Any, expected: Json) -> None:
    got: list[Json] = []
    asked = request(scopes=["once", "session"])
    async with (
        scripted_server(asking(asked, got=got)) as server,
        connect(server.url, on_approval=lambda _: answer) as client,
    ):
        await (await client.say("delete it")).wait(LIMIT_S)
    assert got == [{"approvalId": "appr_1", "argumentsDigest": "digest of appr_1", **expected}]
    (decision,) = msgspec.convert(got[0], ApprovalResponse).all()
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
async def test_a_handler_that_fails_or_answers_oddly_refuses(handler: Any) -> None:
    got: list[Json] = []
    async with (
        scripted_server(asking(request(), got=got)) as server,
        connect(server.url, on_approval=handler) as client,
    ):
        await (await client.say("delete it")).wait(LIMIT_S)
    assert [(one["decision"], one.get("message")) for one in got] == [("deny", None)]


@pytest.mark.parametrize("limit_s", [0.01, LIMIT_S])
async def test_a_handler_that_runs_out_of_time_or_gives_nothing_sends_nothing(limit_s: float) -> None:
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
async def test_a_question_is_asked_while_a_tool_runs_and_ahead_of_what_waits_behind_it(
    together: bool,
) -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        slow = await peer.call("notes.slow", {})
        if not together:
            await soon(begun)
        await peer.send("assistant.speech.final", {"text": "waits"})
        await peer.send("approval.request", request())
        assert (await answered(peer))["decision"] == "allow"
        release.set()
        await peer.result(slow)
        await resolve(peer, "allowed")
        await peer.answer("Done.")

    async def slow(_arguments: Json) -> str:
        begun.set()
        await release.wait()
        return "ok"

    def handler(_approval: Approval) -> Any:
        assert finals == []
        return allow()

    begun, release = asyncio.Event(), asyncio.Event()
    finals: list[str] = []
    async with (
        scripted_server(script) as server,
        connect(server.url, on_approval=handler, handlers={"notes.slow": slow}) as client,
    ):
        client.on(SpeechFinal, lambda event: finals.append(event.text))
        await (await client.say("go")).wait(LIMIT_S)
    assert finals == ["waits", "Done."]


async def test_a_question_is_asked_after_what_was_said_before_it() -> None:
    order: list[str] = []

    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        for text in ("one", "two", "three"):
            await peer.send("assistant.speech.partial", {"text": text})
        await peer.send("approval.request", request())
        await answered(peer)
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
async def test_a_question_that_no_longer_stands_stops_its_handler_and_is_told(outcome: str) -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        await soon(begun)
        await resolve(peer, outcome, message="so it goes")
        await soon(stopped)
        await peer.send("approval.request", request())  # a replay asks nothing again
        await peer.answer("Done.")

    async def handler(_approval: Approval) -> Any:
        asked.append(1)
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()
            return allow()  # too late: nothing is sent

    begun, stopped = asyncio.Event(), asyncio.Event()
    asked: list[int] = []
    told: list[ApprovalResolved] = []
    async with scripted_server(script) as server, connect(server.url, on_approval=handler) as client:
        client.on(ApprovalResolved, told.append)
        await (await client.say("go")).wait(LIMIT_S)
    assert told == [ApprovalResolved("appr_1", outcome, "so it goes")]  # type: ignore[arg-type]  # one of them
    assert asked == [1]
    assert "approval.response" not in server.types_heard()


async def test_an_undecided_question_that_is_replayed_is_not_asked_twice() -> None:
    async def first(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request(), "evt_ask")
        await soon(begun)
        peer.connection.transport.abort()

    async def second(peer: Peer) -> None:
        await start(peer, resumed=True)
        await peer.send("approval.request", request(), "evt_ask")
        await peer.send("approval.request", request())  # under a new envelope id, too
        await peer.arrived()
        decide.set()
        got.append(await answered(peer))
        await resolve(peer, "allowed")
        await peer.answer("Done.")

    async def handler(_approval: Approval) -> Any:
        asked.append(1)
        begun.set()
        await decide.wait()
        return allow()

    begun, decide = asyncio.Event(), asyncio.Event()
    asked: list[int] = []
    got: list[Json] = []
    async with scripted_server(first, second) as server:
        async with connect(server.url, on_approval=handler, reconnect=AT_ONCE) as client:
            await (await client.say("go")).wait(LIMIT_S)
    assert asked == [1]
    assert len(got) == server.types_heard().count("approval.response") == 1


@pytest.mark.parametrize("replayed", [True, False])
async def test_a_decision_that_was_lost_is_sent_again_the_same_under_a_fresh_id(replayed: bool) -> None:
    async def first(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        lost.append(await peer.receive("approval.response"))
        peer.connection.transport.abort()

    async def second(peer: Peer) -> None:
        await start(peer, resumed=True)
        if replayed:
            await peer.send("approval.request", request())
        lost.append(await peer.receive("approval.response"))
        await peer.arrived()
        await resolve(peer, "edited")
        await peer.answer("Done.")

    async def third(peer: Peer) -> None:
        await start(peer, resumed=True)
        await peer.begin()
        await peer.answer("Nothing more.")

    def handler(_approval: Approval) -> Any:
        asked.append(1)
        return edit({"path": "a.txt"})

    lost: list[Json] = []
    asked: list[int] = []
    again = asyncio.Event()
    async with scripted_server(first, second, third) as server:
        async with connect(server.url, on_approval=handler, reconnect=AT_ONCE) as client:
            await (await client.say("go")).wait(LIMIT_S)
            client.on(Reconnected, lambda _event: again.set())
            client.drop()
            await soon(again)
            await (await client.say("and then?")).wait(LIMIT_S)
    assert asked == [1]
    assert lost[0]["payload"] == lost[1]["payload"]
    assert lost[0]["id"] != lost[1]["id"]
    assert server.types_heard().count("approval.response") == 2  # resolved: a third connection has none


async def test_a_decision_that_the_server_could_not_record_is_sent_again() -> None:
    async def serve(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        sent.append(await peer.receive("approval.response"))
        error = {"code": "store_unavailable", "message": "Later.", "eventId": sent[0]["id"]}
        await peer.send("error", error)
        sent.append(await peer.receive("approval.response"))
        await resolve(peer, "allowed")
        await peer.answer("Done.")

    sent: list[Json] = []
    async with scripted_server(serve) as server:
        limits = ClientLimits(retry_s=0.0)
        async with connect(server.url, on_approval=lambda _: allow(), limits=limits) as client:
            result = await (await client.say("go")).wait(LIMIT_S)
    assert result.text == "Done." and sent[0]["payload"] == sent[1]["payload"]


async def test_what_was_decided_without_a_connection_waits_for_the_next() -> None:
    async def first(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        await soon(begun)
        peer.connection.transport.abort()

    async def second(peer: Peer) -> None:
        await start(peer, resumed=True)
        assert (await answered(peer))["decision"] == "deny"
        await resolve(peer, "denied")
        await peer.answer("Done.")

    async def handler(_approval: Approval) -> Any:
        begun.set()
        await client.wait_lost(LIMIT_S)
        decided.set()
        return deny()

    begun, decided = asyncio.Event(), asyncio.Event()
    async with scripted_server(first, second) as server:
        async with connect(server.url, on_approval=handler) as client:
            turn = await client.say("go")
            await soon(decided)
            await client.reconnect()
            assert (await turn.wait(LIMIT_S)).text == "Done."


async def test_the_questions_of_a_session_that_is_gone_are_forgotten() -> None:
    async def first(peer: Peer) -> None:
        await start(peer)
        await peer.send("approval.request", request())
        await soon(begun)

    async def handler(_approval: Approval) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    begun, stopped = asyncio.Event(), asyncio.Event()
    async with scripted_server(first, plain_turns) as server:
        async with connect(server.url, on_approval=handler) as client:
            await soon(begun)
            await client.reconnect()
            await soon(stopped)


async def test_an_edit_that_is_refused_is_asked_again_with_the_reason_and_not_for_ever() -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        for _ in range(10):
            got.append(await answered(peer))
            await resolve(peer, "refused", message="path must be a text")
        got.append(await answered(peer))
        await resolve(peer, "denied")
        await peer.answer("Done.")

    def handler(approval: Approval) -> Any:
        refusals.append(approval.refused)
        return edit({"path": 7})

    got: list[Json] = []
    refusals: list[str | None] = []
    async with scripted_server(script) as server, connect(server.url, on_approval=handler) as client:
        await (await client.say("go")).wait(LIMIT_S)
    assert refusals == [None, *["path must be a text"] * 9]
    assert [one["decision"] for one in got] == [*["edit"] * 10, "deny"]


async def test_other_arguments_under_the_same_name_are_another_question() -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        for path in ("a.txt", "b.txt"):
            await peer.send("approval.request", request(arguments={"path": path}, argumentsDigest=path))
            got.append(await answered(peer))
        await resolve(peer, "allowed")
        await peer.answer("Done.")

    got: list[Json] = []
    async with (
        scripted_server(script) as server,
        connect(
            server.url, on_approval=lambda one: allow() if one.arguments["path"] == "a.txt" else deny()
        ) as client,
    ):
        await (await client.say("go")).wait(LIMIT_S)
    assert [(one["argumentsDigest"], one["decision"]) for one in got] == [
        ("a.txt", "allow"),
        ("b.txt", "deny"),
    ]


async def test_the_questions_that_are_remembered_are_bounded() -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        for number in range(5):
            await peer.send("approval.request", request(f"appr_{number}"))
            await peer.result(await peer.state("thinking"))  # it is asked
        await soon(stopped)
        await peer.answer("Done.")

    async def handler(approval: Approval) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(approval.approval_id)
            if len(ended) == 3:
                stopped.set()

    stopped = asyncio.Event()
    ended: list[str] = []
    async with (
        scripted_server(script) as server,
        connect(server.url, on_approval=handler, limits=ClientLimits(approvals=2)) as client,
    ):
        turn = await client.say("go")
        await soon(stopped)
        assert ended == ["appr_0", "appr_1", "appr_2"]
        assert not turn.is_done
    assert sorted(ended) == [f"appr_{number}" for number in range(5)]  # closing stops the rest


async def test_an_idle_that_opens_the_microphone_for_an_answer_does_not_end_the_turn() -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        await peer.result(await peer.state("idle"))
        decide.set()
        await answered(peer)
        await resolve(peer, "allowed")
        await peer.answer("Done.")

    async def handler(_approval: Approval) -> Any:
        await decide.wait()
        return allow()

    decide = asyncio.Event()
    async with scripted_server(script) as server, connect(server.url, on_approval=handler) as client:
        result = await (await client.say("go")).wait(LIMIT_S)
    assert (result.ending, result.text) == ("idle", "Done.")


# -- that the person can see it


SHOWN = "approval.shown"


async def test_the_server_is_told_that_a_question_is_shown_once_its_handler_waits() -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        assert (await peer.receive(SHOWN))["payload"] == {"approvalId": "appr_1"}
        assert drawn == ["May I run notes delete, path notes.txt?"]
        shown.set()
        await answered(peer)
        await resolve(peer, "allowed")
        await peer.answer("Done.")

    async def handler(approval: Approval) -> Any:
        drawn.append(approval.prompt)
        await shown.wait()
        return allow()

    drawn: list[str] = []
    shown = asyncio.Event()
    async with scripted_server(script) as server, connect(server.url, on_approval=handler) as client:
        await (await client.say("go")).wait(LIMIT_S)
    assert server.types_heard().count(SHOWN) == 1


async def at_once(_approval: Approval) -> Any:
    return allow()


def raises(_approval: Approval) -> Any:
    raise LookupError


@pytest.mark.parametrize("handler", [lambda _: allow(), at_once, raises])
async def test_what_is_decided_at_once_was_not_shown(handler: Any) -> None:
    got: list[Json] = []
    async with (
        scripted_server(asking(request(), got=got)) as server,
        connect(server.url, on_approval=handler) as client,
    ):
        await (await client.say("delete it")).wait(LIMIT_S)
    assert SHOWN not in server.types_heard()


async def leaves_open(_approval: Approval) -> None:
    """Leave the answer to the person's voice."""


@pytest.mark.parametrize("handler", [lambda _: None, leaves_open])
async def test_a_handler_that_leaves_the_question_to_the_voice_has_shown_it(handler: Any) -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        await peer.receive(SHOWN)
        await resolve(peer, "allowed")
        await peer.answer("Done.")

    async with scripted_server(script) as server, connect(server.url, on_approval=handler) as client:
        await (await client.say("go")).wait(LIMIT_S)


async def test_a_handler_may_say_itself_when_its_card_can_be_seen() -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        await soon(begun)
        await peer.result(await peer.state("idle"))
        assert SHOWN not in server.types_heard()
        draw.set()
        await peer.receive(SHOWN)
        drawn.set()
        await answered(peer)
        await resolve(peer, "allowed")
        await peer.answer("Done.")

    async def handler(_approval: Approval, shown: Any) -> Any:
        begun.set()
        await draw.wait()
        await shown()
        await shown()  # drawn once more
        await drawn.wait()
        return allow()

    begun, draw, drawn = asyncio.Event(), asyncio.Event(), asyncio.Event()
    async with scripted_server(script) as server, connect(server.url, on_approval=handler) as client:
        await (await client.say("go")).wait(LIMIT_S)
    assert server.types_heard().count(SHOWN) == 1


async def test_each_connection_is_told_what_is_shown_and_not_what_is_decided_or_was_not_drawn() -> None:
    async def first(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        for number in (1, 2, 3):
            await peer.send("approval.request", request(f"appr_{number}"))
        await peer.receive(SHOWN)
        await answered(peer)
        await soon(begun)
        peer.connection.transport.abort()

    async def second(peer: Peer) -> None:
        await start(peer, resumed=True)
        assert (await peer.receive(SHOWN))["payload"] == {"approvalId": "appr_1"}
        assert (await answered(peer))["approvalId"] == "appr_2"
        await peer.arrived()
        for number in (1, 2, 3):
            await resolve(peer, "expired", f"appr_{number}")
        await peer.answer("Done.")

    async def handler(approval: Approval, shown: Any) -> Any:
        if approval.approval_id == "appr_2":
            return deny()
        if approval.approval_id == "appr_1":
            await shown()
        else:
            begun.set()
        await asyncio.Event().wait()

    begun = asyncio.Event()
    async with scripted_server(first, second) as server:
        async with connect(server.url, on_approval=handler, reconnect=AT_ONCE) as client:
            await (await client.say("go")).wait(LIMIT_S)
    assert server.types_heard().count(SHOWN) == 2


async def test_words_that_are_sent_again_come_before_the_news_that_a_card_is_shown() -> None:
    async def first(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        await peer.receive(SHOWN)
        said.append((await peer.receive("user.audio.transcript.final"))["id"])
        peer.connection.transport.abort()

    async def second(peer: Peer) -> None:
        await start(peer, resumed=True)
        await peer.receive(SHOWN)
        await resolve(peer, "expired")
        await peer.answer("Done.")

    async def handler(_approval: Approval, shown: Any) -> Any:
        await shown()
        await client.say("yes please")
        await asyncio.Event().wait()

    said: list[str] = []
    async with scripted_server(first, second) as server:
        async with connect(server.url, on_approval=handler, reconnect=AT_ONCE) as client:
            await (await client.say("go")).wait(LIMIT_S)
    again = [event["type"] for event in server.heard if event["id"] in said or event["type"] == SHOWN]
    assert again == [SHOWN, "user.audio.transcript.final", "user.audio.transcript.final", SHOWN]
