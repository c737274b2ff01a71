"""What the backend does in a session: words, facts, decisions, the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from conductor.conversation.phrases import app_words
from conductor.conversation.records import NoticeTaken
from conductor.conversation.state import Notice
from conductor.messages import Note, ToolCall, ToolResult, UserMessage
from conductor.models.base import ModelRequest, TextDelta
from conductor.plugins.api import relay
from conductor.server.sessions import Visitor
from conductor.stores.base import SessionKey
from tests.app import App
from tests.models import Script
from tests.server.api import Backend, backend
from tests.server.nodes import MOVE, move
from tests.server.wires import WAIT, until

HELLO, AGAIN = [TextDelta("Good morning.")], [TextDelta("Of course.")]
PARCEL = "Your parcel is here."
SAY, CONTEXT = "/v1/sessions/s-1/say", "/v1/sessions/s-1/context"


async def history(served: Backend) -> list[tuple[str, str]]:
    body = (await served.ask("GET", "/v1/sessions/s-1")).body
    return [(message["role"], message["text"]) for message in body["history"]]


# -- words


async def test_words_are_spoken_as_they_are_without_the_model() -> None:
    async with backend() as served, served.phone() as phone:
        answer = await served.ask("POST", SAY, {"text": PARCEL}, key="say")
        assert answer.status == 200 and not answer.body["repeated"]
        await phone.until("tts.speak")
        await phone.idle()
        assert phone.speeches() == phone.finals() == [PARCEL] and not phone.events("state thinking")
        assert (await history(served))[-1] == ("assistant", PARCEL)
        assert not served.provider.requests


async def test_words_wait_for_the_floor() -> None:
    async with backend([HELLO]) as served, served.phone() as phone:
        phone.send("user.audio.transcript.partial", {"text": "Good"})
        await until(lambda: served.listener.registry.sessions[0].view.live.speech.sends_partials)
        assert (await served.ask("POST", SAY, {"text": PARCEL})).status == 200
        await phone.ask("Good morning.")
        await phone.until("tts.speak", **{})
        await until(lambda: len(phone.speeches()) == 2)
        assert phone.speeches() == ["Good morning.", PARCEL]


async def test_the_same_key_says_it_once() -> None:
    async with backend() as served, served.phone() as phone:
        answers = [
            await served.ask("POST", SAY, {"text": PARCEL}, Idempotency_Key="order-7") for _ in range(2)
        ]
        assert [answer.body["repeated"] for answer in answers] == [False, True]
        assert answers[0].body["eventId"] == answers[1].body["eventId"]
        await phone.until("tts.speak")
        await phone.idle()
        assert (await served.ask("POST", SAY, {"text": PARCEL}, Idempotency_Key="order-7")).body["repeated"]
        assert (await served.ask("POST", SAY, {"text": "Bye."}, Idempotency_Key="order-8")).status == 200
        await until(lambda: len(phone.speeches()) == 2)
        assert phone.speeches() == [PARCEL, "Bye."]


async def test_words_wait_for_a_client(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    async with backend(session_store_url=url, limits={"session_grace": 0.1}) as served:
        async with served.phone():
            pass
        await until(lambda: not served.listener.connections)
        assert (await served.ask("POST", SAY, {"text": PARCEL})).status == 200
        await served.released()
        assert (await served.ask("GET", "/v1/sessions/s-1")).body["waiting"] == 1
        async with served.phone() as phone:
            await phone.until("tts.speak")
            assert phone.speeches() == [PARCEL]


async def test_words_that_nobody_heard_in_time_are_told_to_the_model() -> None:
    async with backend([HELLO], limits={"open_microphone": 60.0}) as served, served.phone() as phone:
        (session,) = served.listener.registry.sessions
        notice = Notice(text=app_words(PARCEL), expires_at=session.view.now() - 1, words=PARCEL)
        await session.commits.decide(lambda: [NoticeTaken("event-1", notice)])
        await phone.ask("Hello.")
        assert phone.speeches() == ["Good morning."]
        assert PARCEL in str(served.provider.requests[0].messages[0])


async def test_too_many_words_are_refused() -> None:
    async with backend(limits={"open_microphone": 60.0}) as served, served.phone():
        statuses = [(await served.ask("POST", SAY, {"text": f"Word {n}."})).status for n in range(18)]
        assert statuses == [200] * 16 + [429] * 2


@pytest.mark.parametrize(
    "body", [None, b"", b"{", b"\xff", [], {}, {"text": ""}, {"text": "  "}, {"text": 1}, {"words": "x"}]
)
async def test_a_malformed_body_is_refused(body: Any) -> None:
    async with backend() as served, served.phone():
        answer = await served.ask("POST", SAY, body)
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert (await served.ask("POST", SAY, {"text": "x" * 70_000})).status == 413


# -- facts


async def test_facts_are_in_the_next_request_marked_as_data_and_start_no_turn() -> None:
    async with backend([HELLO, AGAIN]) as served, served.phone() as phone:
        await phone.ask("Hello.")
        for _ in range(2):
            answer = await served.ask("POST", CONTEXT, {"text": "The cart has 3 items."}, Idempotency_Key="a")
            assert answer.status == 200
        assert answer.body["repeated"]
        assert len(served.provider.requests) == 1
        await phone.ask("What is in my cart?")
        *_, note, words = served.provider.requests[1].messages
        assert words == UserMessage("What is in my cart?")
        assert isinstance(note, Note) and note.text.count("The cart has 3 items.") == 1
        assert "data" in note.text and "no instruction" in note.text
        assert phone.speeches() == ["Good morning.", "Of course."]


async def test_a_fact_of_the_backend_is_the_fact_of_the_app() -> None:
    fields = {"capabilities": ["context"]}
    async with backend([HELLO]) as served, served.phone(start_fields=fields) as phone:
        for body in ({"text": "It rains."}, {"text": "It is cold.", "ttlS": 60, "untrusted": False}):
            assert (await served.ask("POST", CONTEXT, {"key": "weather", **body})).status == 200
        (session,) = served.listener.registry.sessions
        (fact,) = session.state.facts
        assert (fact.key, fact.text, fact.untrusted) == ("weather", "It is cold.", False)
        assert 0 < fact.expires_at - session.view.now() <= 60_000
        phone.send("context.add", {"key": "weather", "text": "The sun shines."})
        await phone.ask("How is the weather?")
        note, _ = served.provider.requests[0].messages
        assert (
            isinstance(note, Note) and note.text.endswith("- weather: The sun shines.") and not note.untrusted
        )
        assert (await served.ask("POST", CONTEXT, {"key": "weather", "text": ""})).status == 200
        assert session.state.facts == ()


@pytest.mark.parametrize(
    "body", [{}, {"text": ""}, {"text": " \n"}, {"text": "x" * 2_001}, {"text": "x", "words": "y"}]
)
async def test_a_malformed_fact_is_refused(body: Any) -> None:
    async with backend() as served, served.phone():
        answer = await served.ask("POST", CONTEXT, body)
        assert (answer.status, answer.code) == (400, "invalid_request")


# -- decisions


def cards(served: Backend, *capabilities: str) -> App:
    start = {"capabilities": ["tools", "approval", *capabilities], "tools": [MOVE]}
    return served.phone(tools={"move_file": lambda _: "moved"}, start_fields=start)


async def approve(served: Backend, card: dict[str, Any], decision: str, **fields: Any) -> Any:
    body = {"decision": decision, "argumentsDigest": card["argumentsDigest"], **fields}
    return await served.ask("POST", f"/v1/sessions/s-1/approvals/{card['approvalId']}", body, key="approve")


@pytest.mark.parametrize(("decision", "outcome", "runs"), [("allow", "allowed", 1), ("deny", "denied", 0)])
async def test_the_backend_decides_as_a_card_and_is_named(
    tmp_path: Path, decision: str, outcome: str, runs: int
) -> None:
    audit = tmp_path / "audit.jsonl"
    async with backend(move, audit_log=audit) as served, cards(served) as phone:
        phone.say("Move it.")
        card = (await phone.until("approval.request"))["payload"]
        detail = (await served.ask("GET", "/v1/sessions/s-1")).body
        (waiting,) = detail["approvals"]
        assert waiting["argumentsDigest"] == card["argumentsDigest"] and detail["running"]
        assert (await approve(served, {**card, "argumentsDigest": "0"}, decision)).code == "refused"
        answer = await approve(served, card, decision)
        assert answer.status == 200 and answer.body["outcome"] == outcome
        await phone.until("approval.resolved", outcome=outcome)
        await phone.until("assistant.speech.final")
        assert len(phone.runs) == runs
        (report,) = (await served.ask("GET", "/v1/sessions/s-1")).body["calls"]
        assert report["decidedBy"] == "api:approve" and report["name"] == "move_file"
        assert report["outcome"] == ("succeeded" if runs else "failed")
        assert report["consent"] == ("given" if runs else "denied")
        assert (await approve(served, card, decision)).status in (200, 409)
    lines = audit.read_text()
    assert '"by":"api:approve"' in lines and '"event":"api"' in lines and "key-of-the-backend" not in lines


async def test_a_decision_for_the_session_decides_about_nine_cards() -> None:
    def nine(request: ModelRequest) -> Script:
        if isinstance(request.messages[-1], ToolResult):
            return [TextDelta("Moved.")]
        return [ToolCall(f"c-{n}", "move_file", f'{{"path":"notes-{n}.txt"}}') for n in range(9)]

    async with backend(nine) as served, cards(served) as phone:
        phone.say("Move them.")
        card = (await phone.until("approval.request"))["payload"]
        answer = await approve(served, card, "allow", scope="session")
        assert (answer.status, answer.body["outcome"]) == (200, "allowed")
        await phone.until("assistant.speech.final")
        assert len(phone.runs) == 9


async def test_of_a_card_and_the_backend_at_the_same_time_one_wins() -> None:
    async with backend(move) as served, cards(served) as phone:
        phone.say("Move it.")
        event = await phone.until("approval.request")
        phone.decide_card(event, "deny")
        answer = await approve(served, event["payload"], "allow")
        resolved = await phone.until("approval.resolved")
        await phone.until("assistant.speech.final")
        won = resolved["payload"]["outcome"] == "allowed"
        assert answer.status == (200 if won else 409) and len(phone.runs) == won


async def test_calls_before_a_snapshot_keep_their_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conductor.session.commits.SNAPSHOT_COMMITS", 1)
    async with backend(move) as served, cards(served) as phone:
        phone.say("Move it.")
        phone.decide_card(await phone.until("approval.request"), "allow")
        await phone.until("assistant.speech.final")
        await phone.idle()
        body = (await served.ask("GET", "/v1/sessions/s-1")).body
        (report,) = body["calls"]
        assert (report["outcome"], report["consent"], report["decidedBy"]) == ("succeeded", None, None)
        assert [message["role"] for message in body["history"]] == ["user", "assistant", "assistant"]


# -- the end


async def test_the_end_stops_the_turn_and_closes_the_connection(tmp_path: Path) -> None:
    hold = asyncio.Event()
    store = f"sqlite:///{tmp_path}/s.db"
    async with backend([[TextDelta("One moment."), hold]], session_store_url=store) as served:
        async with served.phone() as phone:
            phone.say("Hello.")
            await served.provider.record(0).started.wait()
            assert (await served.ask("POST", "/v1/sessions/s-1/end")).status == 200
            await asyncio.wait_for(phone.closed.wait(), WAIT)
            assert phone.close_code == 1000
        assert served.provider.record(0).closed_early
        detail = (await served.ask("GET", "/v1/sessions/s-1")).body
        assert not detail["running"] and detail["history"][0]["text"] == "Hello."


# -- a session of another process


@asynccontextmanager
async def two_backends(tmp_path: Path, replies: Any = (), **values: Any) -> AsyncIterator[list[Backend]]:
    """Run two servers with one store, as two processes."""
    url = f"sqlite:///{tmp_path}/s.db"
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(backend(replies, session_store_url=url, **values))
            for _ in range(2)
        ]


async def test_words_reach_the_client_of_another_process_and_keep_it_there(tmp_path: Path) -> None:
    async with two_backends(tmp_path, [HELLO, AGAIN]) as (owner, other):
        async with owner.phone(start_fields={"capabilities": ["resume"]}) as phone:
            await phone.ask("Hello.")
            answers = [await other.ask("POST", SAY, {"text": PARCEL}, Idempotency_Key="a") for _ in range(2)]
            assert [(answer.status, answer.body["repeated"]) for answer in answers] == [
                (200, False),
                (200, True),
            ]
            await until(lambda: PARCEL in phone.speeches())
            assert (await other.ask("POST", CONTEXT, {"text": "The cart has 3 items."})).status == 200
            await phone.idle()
            await phone.ask("What is in my cart?")
            assert "3 items" in str(owner.provider.requests[-1].messages)
            assert phone.speeches().count(PARCEL) == 1 and not phone.closed.is_set()
            assert not len(other.listener.registry)


async def test_a_decision_reaches_a_turn_of_another_process(tmp_path: Path) -> None:
    async with two_backends(tmp_path, move) as (owner, other):
        async with cards(owner, "resume") as phone:
            phone.say("Move the notes.")
            card = (await phone.until("approval.request"))["payload"]
            late = await approve(other, {**card, "argumentsDigest": "0" * 64}, "allow")
            assert (late.status, late.code) == (409, "refused")
            assert (await approve(other, card, "allow")).status == 200
            await phone.until("assistant.speech.final")
            assert [name for name, _ in phone.runs] == ["move_file"] and not phone.closed.is_set()


async def test_the_end_closes_the_connection_to_another_process(tmp_path: Path) -> None:
    async with two_backends(tmp_path, [HELLO]) as (owner, other), owner.phone() as phone:
        await phone.ask("Hello.")
        assert (await other.ask("POST", "/v1/sessions/s-1/end")).status == 200
        await asyncio.wait_for(phone.closed.wait(), WAIT)
        assert phone.close_code == 1000


async def test_words_for_a_session_whose_process_died_wait_for_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "ANSWER_S", 0.1)
    async with two_backends(tmp_path, [HELLO]) as (owner, other):
        phone = owner.phone()
        async with phone:
            await phone.ask("Hello.")
            monkeypatch.setattr(owner.listener.registry, "has", lambda _: False)  # it does not answer
            assert (await other.ask("POST", SAY, {"text": PARCEL}, Idempotency_Key="a")).status == 200
        phone.url = f"ws://127.0.0.1:{other.listener.port}/ws"
        async with phone:
            await until(lambda: PARCEL in phone.speeches())


async def test_a_client_whose_session_is_claimed_for_a_request_is_told_to_come_back(tmp_path: Path) -> None:
    async with two_backends(tmp_path, [HELLO]) as (owner, other):
        async with owner.phone(start_fields={"capabilities": ["resume"]}) as phone:
            await phone.ask("Hello.")
            visited, _ = await other.listener.registry.bind(SessionKey("anonymous", "s-1"), Visitor())
            await visited.commits.decide(list)
            phone.say("And now?")
            await asyncio.wait_for(phone.closed.wait(), WAIT)
            assert phone.close_code == 1012


async def test_facts_in_the_grace_period_end_no_session(tmp_path: Path) -> None:
    async with backend([HELLO], session_store_url=f"sqlite:///{tmp_path}/s.db") as served:
        async with served.phone() as phone:
            await phone.ask("Hello.")
        await until(lambda: not served.listener.connections)
        assert (await served.ask("POST", CONTEXT, {"text": "The cart has 3 items."})).status == 200
        (session,) = served.listener.registry.sessions
        await session.settled()
        await asyncio.sleep(0)
        assert len(served.listener.registry) == 1
