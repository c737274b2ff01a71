"""Several nodes with one store: a session moves with its client and has one owner at a time."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from websockets.protocol import State

from conductor.conversation.records import decode
from conductor.errors import Fenced
from conductor.messages import ToolCall, ToolResult, UserMessage
from conductor.models.base import ModelRequest, TextDelta
from conductor.plugins.stores.sqlite import SqliteStore
from conductor.rate_limit import Admission
from conductor.stores.base import NO_ATTACHMENTS, Attachments, Claim, SessionLog
from tests.app import WAIT
from tests.hasty import SHORT_S, hasten
from tests.models import Script
from tests.server.nodes import (
    KEY,
    LosesReplies,
    Shelf,
    calm,
    comes,
    echo,
    moves,
    node,
    recorded,
    session_of,
    shapes_sent,
    still_open,
    stored_log,
    two_nodes,
)
from tests.server.wires import WiredStore, until
from tests.shapes import Event

LONG = 600.0


def looks(request: ModelRequest) -> Script:
    """Look an agent up on the device."""
    last = request.messages[-1]
    if isinstance(last, ToolResult):
        return [TextDelta("It runs.")]
    return [ToolCall("c-1", "agent.status", '{"id":"a"}')]


# -- in the middle of a turn


# -- return to the first node


async def test_a_parked_client_takes_its_session_back_by_a_transcript(shelf: Shelf) -> None:
    async with two_nodes(shelf) as (a, b):
        async with a.phone() as old, b.phone() as new:
            await old.ask("one")
            await calm(a)
            await new.ask("two")
            await calm(b)
            since = len(old.log)
            old.send("user.audio.transcript.partial", {"text": "th"})
            old.result("call-nobody-knows", "{}")
            assert await still_open(old) and shapes_sent(old, since) == []
            await new.ask("three")
            await calm(b)
            since, since_new = len(old.log), len(new.log)
            await old.ask("four")
            assert old.finals(since) == ["Heard one, two, three, four."]
            await calm(a)
            assert await still_open(new) and shapes_sent(new, since_new) == []
            await new.ask("five")
            assert new.finals(since_new) == ["Heard one, two, three, four, five."]
            assert await still_open(old)


async def test_a_resuming_client_is_closed_when_another_takes_its_session(shelf: Shelf) -> None:
    resume = {"capabilities": ["resume"]}
    async with two_nodes(shelf) as (a, b):
        async with a.phone(start_fields=resume) as old:
            await recorded(a)  # it is acknowledged before that
            async with b.phone(start_fields=resume) as new:
                await new.idle()  # it has come back to a session that was there
                await new.ask("one")
                old.say("two")
                await asyncio.wait_for(old.closed.wait(), WAIT)
                assert old.close_code == 4409
                since = len(new.log)
                await new.ask("three")
                assert new.finals(since)[-1].endswith("three.") and await still_open(new)


async def test_a_second_start_takes_the_session_back(shelf: Shelf) -> None:
    async with two_nodes(shelf) as (a, b):
        async with a.phone() as old, b.phone() as new:
            await new.ask("one")
            since = len(old.log)
            old.start()
            started = await old.until("session.started", since=since)
            assert started["payload"]["resumed"] is True
            await old.idle(since=since)
            since = len(old.log)
            await old.ask("two")
            assert old.finals(since) == ["Heard one, two."]


async def test_an_invalid_transcript_of_a_parked_client_claims_nothing(file_shelf: Shelf) -> None:
    async with two_nodes(file_shelf) as (a, b):
        async with a.phone() as old, b.phone() as new:
            await old.ask("one")
            await calm(a)
            await new.ask("two")
            old.interrupt()
            await a.until_lost()
            since = len(old.log)
            old.send("user.audio.transcript.final", {"text": 5})
            await old.idle(since=since)
            assert not len(a.listener.registry)


# -- an app that has lost its state


async def test_the_ids_of_an_app_that_has_lost_its_state_may_begin_again(shelf: Shelf) -> None:
    async with two_nodes(shelf) as (a, b):
        async with a.phone() as phone:
            phone.say("one", id="e-1")
            await phone.until("assistant.speech.final", text="Heard one.")
        async with a.phone() as reinstalled:
            reinstalled.say("two", id="e-1")
            await reinstalled.until("assistant.speech.final", text="Heard one, two.")
            await calm(a)
        async with b.phone() as moved:
            await moved.until("session.started")
            since = len(moved.log)
            for text in "one", " two ", "three":  # the first two were answered
                moved.say(text, id="e-1")
            await moved.until("assistant.speech.final", since=since)
            assert moved.finals(since) == ["Heard one, two, three."]


async def test_an_id_counts_once_on_a_connection_and_after_a_resume(shelf: Shelf) -> None:
    async with two_nodes(shelf) as (a, b):
        async with a.phone(start_fields={"capabilities": ["resume"]}) as phone:
            phone.say("one", id="e-1")
            await phone.until("assistant.speech.final", text="Heard one.")
            for served, text, heard in (a, "two", "one, two"), (b, "three", "one, two, three"):
                await calm(a)
                await moves(phone, served)
                phone.say("once more", id="e-1")
                phone.say(text)
                await phone.until("assistant.speech.final", text=f"Heard {heard}.")


# -- the reason of a start


async def test_a_start_reports_whether_the_session_was_kept(shelf: Shelf) -> None:
    resume = {"capabilities": ["resume"], "resume": {"lastEventId": None, "done": [], "pending": []}}
    async with two_nodes(shelf) as (a, b):
        first = a.phone(start_fields={"capabilities": ["resume"]})
        assert result_of(await comes(first)) == (False, "new")
        await first.ask("one")
        await calm(a)
        first.start_fields = resume
        await first.cut()
        assert result_of(await comes(first)) == (True, None)
        assert result_of(await moves(first, b)) == (True, None)
        assert result_of(await moves(first, a)) == (True, None)
        await first.close()
        stranger = b.phone("s-2", start_fields=resume)
        assert result_of(await comes(stranger)) == (False, "not_kept")
        await stranger.close()


def result_of(started: Event) -> tuple[bool, str | None]:
    return started["resumed"], started.get("reason")


async def test_a_deleted_or_expired_session_is_reported_as_not_kept(tmp_path: Path) -> None:
    resume = {"capabilities": ["resume"], "resume": {"lastEventId": None, "done": [], "pending": []}}
    now = [1_000_000.0]
    path = tmp_path / "sessions.db"
    shelf = Shelf(lambda: SqliteStore(path, session_ttl=60.0, now=lambda: now[0]), path)
    async with two_nodes(shelf) as (a, b):
        phone = a.phone()
        await comes(phone)
        await phone.ask("one")
        await calm(a)
        assert isinstance(b.store, SqliteStore)
        assert await b.store.delete(KEY.subject, KEY.session_id) == 1
        phone.start_fields = resume
        await phone.cut()
        assert result_of(await comes(phone)) == (False, "not_kept")
        await phone.ask("two")
        await calm(a)
        await phone.cut()
        now[0] += 61.0
        phone.url = b.url
        assert result_of(await comes(phone)) == (False, "not_kept")
        since = len(phone.log)
        await phone.ask("three")
        assert phone.finals(since) == ["Heard three."]
        await phone.close()


# -- dead clients and rivals


async def test_late_events_of_a_dead_client_claim_nothing(shelf: Shelf) -> None:
    async with two_nodes(shelf, alive_timeout=SHORT_S) as (a, b):
        async with a.phone() as dead, b.phone() as phone:
            dead.say("one")  # which takes the session back, and that opens its microphone at once
            await dead.until("assistant.speech.final")
            await calm(a)
            await phone.ask("two")
            await calm(b)
            dead.socket.transport.pause_reading()  # no ping reaches it any more
            with structlog.testing.capture_logs() as lines:
                dead.say("late words")
                dead.send("user.audio.transcript.partial", {"text": "more"})
                hasten()
                # A connection takes one event at a time: the transcript was dropped before.
                await until(lambda: any(".partial" in str(line.get("type")) for line in lines))
            since = len(phone.log)
            await phone.ask("three")
            assert phone.finals(since) == ["Heard one, two, three."]
            assert len(a.provider.requests) == 1
            dead.socket.transport.abort()


class Contested(LosesReplies):
    """A store in which a rival claims the session just before the commit of a client's event."""

    def __init__(self, inner: SessionLog, rival: SessionLog) -> None:
        super().__init__(inner)
        self.rival = rival
        self.contests = 0

    async def append(
        self,
        claim: Claim,
        commit_id: str,
        data: bytes,
        *,
        snapshot: bool = False,
        attachments: Attachments = NO_ATTACHMENTS,
    ) -> None:
        if self.contests and any(getattr(record, "event_id", "") for record in decode(data).records):
            self.contests -= 1
            await self.rival.claim(KEY)
        await super().append(claim, commit_id, data, snapshot=snapshot, attachments=attachments)


async def test_a_transcript_that_rivals_prevent_ends_in_an_error(shelf: Shelf) -> None:
    store = Contested(shelf.make(), shelf.make())
    await store.rival.open()
    async with node(store, echo, free_takeovers=1_000) as a, a.phone() as phone:
        store.contests = 5
        await phone.ask("tea")  # it is recorded despite them
        await calm(a)
        since = len(phone.log)
        store.contests = 1_000
        event_id = phone.say("more")
        await phone.idle(since=since)
        (error,) = [e["payload"] for e in phone.log[since:] if e["type"] == "error"]
        assert (error["code"], error["eventId"]) == ("store_unavailable", event_id)
        store.contests = 0
        await phone.ask("milk")
        assert phone.finals() == ["Heard tea.", "Heard tea, milk."]
    await store.rival.aclose()


async def test_repeated_claims_are_delayed(
    shelf: Shelf,
) -> None:
    async with two_nodes(shelf, takeover_backoff=0.01) as (a, b):
        phone = a.phone()
        await comes(phone)
        await phone.ask("one")
        await calm(a)
        with structlog.testing.capture_logs() as lines:
            for number in range(1, 10):
                served = b if number % 2 else a
                assert (await moves(phone, served))["resumed"] is True
                await calm(served)
        waits = [line["wait_s"] for line in lines if "changes owner" in line["event"]]
        assert waits == [0.01, 0.02, 0.04, 0.08], waits
        await phone.close()


# -- a restored backup


@pytest.mark.parametrize("how", ["content", "file"])
async def test_a_restored_older_file_gets_the_lost_commits(file_shelf: Shelf, how: str) -> None:
    path = file_shelf.path
    assert path is not None
    older = path.with_name("older.db")
    async with node(SqliteStore(path), echo) as served, served.phone() as phone:
        await phone.ask("one")
        await calm(served)
        copied(path, older)
        await phone.ask("two")
        await calm(served)
        if how == "content":
            copied(older, path)
        else:
            for file in path.parent.glob(f"{path.name}-*"):
                file.unlink()
            older.replace(path)
        since = len(phone.log)
        await phone.ask("three")
        assert phone.finals(since) == ["Heard one, two, three."] and not phone.errors()
        assert "append user" in phone.shapes(since)
    texts = [m.text for m in await stored_log(file_shelf) if isinstance(m, UserMessage)]
    assert texts == ["one", "two", "three"]


def copied(source: Path, target: Path) -> None:
    """Copy a database's content into another, as a restored backup does."""
    with closing(sqlite3.connect(source)) as reader, closing(sqlite3.connect(target)) as writer:
        reader.backup(writer)


# -- a stopping node


async def test_a_stopping_node_does_not_wait_for_a_disconnected_client(
    shelf: Shelf,
) -> None:
    async with two_nodes(shelf, looks, looks) as (a, b):
        async with a.phone() as phone:
            phone.say("how is it?")
            call = await phone.until("agent.status")
            stopping = asyncio.create_task(a.listener.stop(drain_s=LONG))
            assert await still_open(phone), "it may answer"
            await phone.cut()
            await asyncio.wait_for(stopping, WAIT)
            phone.event_ids.pop(call["id"])
            phone.tools["agent.status"] = lambda _: '{"status":"running"}'
            phone.url = b.url
            await comes(phone)
            assert phone.finals() == ["It runs."]
            assert len(phone.runs) == 2 and {name for name, _ in phone.runs} == {"agent.status"}


class Gate(Admission):
    """Admits clients while it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()
        self.open.set()

    async def enter(self) -> None:
        await self.open.wait()
        await super().enter()


@pytest.mark.parametrize("capabilities", [[], ["resume"]])
async def test_a_client_that_left_before_its_admission_claims_nothing(
    shelf: Shelf, capabilities: list[str]
) -> None:
    async with two_nodes(shelf) as (a, b):
        admission = Gate()
        a.listener.services = replace(a.listener.services, admission=admission)
        old = a.phone(start_fields={"capabilities": capabilities})
        await old.open(start=False)
        admission.open.clear()
        with structlog.testing.capture_logs() as lines:
            old.start()
            await until(lambda: any(line.get("type") == "session.start" for line in lines))
        await old.cut()
        async with b.phone(start_fields={"capabilities": capabilities}) as phone:
            await phone.ask("one")
            await calm(b)
            (connection,) = a.listener._connections
            await until(lambda: connection._socket.state is not State.OPEN)
            admission.open.set()
            await until(lambda: not a.listener.connections)
            since = len(phone.log)
            await phone.ask("two")
            assert phone.finals(since) == ["Heard one, two."] and not len(a.listener.registry)


async def test_an_old_connection_that_binds_again_yields_to_a_newer_one(file_shelf: Shelf) -> None:
    store = WiredStore(file_shelf.make())
    resumes = {"capabilities": ["resume"]}
    async with node(store, echo) as served:
        async with served.phone(start_fields=resumes) as old:
            await old.ask("one")
            await calm(served)
            (connection,) = served.listener._connections
            store.away = True
            session_of(served).commits.lose(Fenced("It is stale.", gone=True))
            await asyncio.wait_for(store.refused.wait(), WAIT)  # it tries again in a while
            store.away = False
            async with served.phone(start_fields=resumes) as new:
                recovering = connection._recovering
                assert recovering is not None
                await asyncio.wait_for(asyncio.shield(recovering), WAIT)
                since = len(new.log)
                await new.ask("two")
                assert new.finals(since) == ["Heard one, two."] and new.close_code is None
