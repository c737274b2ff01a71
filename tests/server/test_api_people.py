"""Deletion and export of a person, and sessions that other processes hold."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

from conductor.messages import ToolCall
from conductor.models.base import TextDelta
from tests.server.api import backend
from tests.server.nodes import move
from tests.server.test_api_actions import cards
from tests.server.wires import WAIT, until

HELLO = [TextDelta("Good morning.")]
TOKEN = "a-token-of-a-person"
REMIND = ToolCall("c-1", "schedule_task", '{"text":"tea","in_minutes":500}')
TASK = ToolCall("c-2", "add_task", '{"title":"buy tea"}')
REMEMBER = ToolCall("c-3", "remember", '{"text":"I like green tea"}')


async def test_a_person_is_deleted_with_a_receipt_while_a_turn_runs(tmp_path: Path) -> None:
    hold = asyncio.Event()
    replies = [[REMIND, TASK, REMEMBER], HELLO, [TextDelta("One moment."), hold]]
    rule = tmp_path / "policies.json"
    rule.write_text(
        '{"version":1,"rules":[{"tool":"schedule_task","effect":"allow"},{"tool":"remember","effect":"allow"}]}'
    )
    values: dict[str, Any] = {
        "session_store_url": f"sqlite:///{tmp_path}/s.db",
        "auth_tokens": (TOKEN,),
        "audit_log": tmp_path / "audit.jsonl",
        "policies_file": rule,
        "memory": True,
    }
    async with backend(replies, **values) as served:
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        async with served.phone(headers=bearer) as phone, served.phone("s-2", headers=bearer):
            await phone.ask("Remind me of tea.")
            me = (await served.ask("GET", "/v1/sessions")).body["sessions"][0]["person"]
            exported = (await served.ask("GET", f"/v1/people/{me}")).body
            assert len(exported["sessions"]) == 2 and "tea" in exported["fields"]["reminders"]
            assert "green tea" in exported["fields"]["memory"]
            phone.say("Are you there?")
            await served.provider.record(2).started.wait()
            answer = await served.ask("DELETE", f"/v1/people/{me}", key="admin")
            assert answer.status == 200 and answer.body["person"] == me
            deleted = answer.body["deleted"]
            assert deleted == {"sessions": 2, "messages": 7, "memory": 1, "reminders": 1, "tasks": 1}
            assert set(answer.body["remaining"]) >= {"log lines", "audit lines"}
            records = served.listener.services.subject_records
            assert records is not None and not records.get(me, "tool:reminders")
            await asyncio.wait_for(phone.closed.wait(), WAIT)
        await until(lambda: not served.listener.connections)
        assert served.provider.record(2).closed_early
        assert (await served.ask("GET", f"/v1/people/{me}")).status == 404
        assert (await served.ask("GET", "/v1/sessions")).body["sessions"] == []
        assert (await served.ask("DELETE", f"/v1/people/{me}")).status == 404
        # A person who comes back is a new one.
        async with served.phone(headers=bearer) as phone:
            assert phone.events("session.started")[0]["payload"]["resumed"] is False


async def test_a_session_is_deleted_alone(tmp_path: Path) -> None:
    async with backend([HELLO], session_store_url=f"sqlite:///{tmp_path}/s.db") as served:
        async with served.phone() as phone, served.phone("s-2"):
            await phone.ask("Hello.")
            answer = await served.ask("DELETE", "/v1/sessions/s-1", key="admin")
            assert answer.body["deleted"] == {
                "sessions": 1,
                "messages": 2,
            }
            listed = (await served.ask("GET", "/v1/sessions")).body["sessions"]
            assert [item["id"] for item in listed] == ["s-2"]


# -- a session of another process


async def test_a_decision_at_another_process_counts(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    async with backend(move, session_store_url=store) as one, backend(move, session_store_url=store) as other:
        async with cards(one) as phone:
            phone.say("Move it.")
            event = await phone.until("approval.request")
            card = event["payload"]
            body = {"decision": "deny", "argumentsDigest": card["argumentsDigest"]}
            path = f"/v1/sessions/s-1/approvals/{card['approvalId']}"
            assert (await other.ask("POST", path, body)).status == 200
            phone.decide_card(event, "allow")
            await phone.until("assistant.speech.final")
            assert not phone.runs


async def test_a_call_that_another_process_allowed_runs_with_the_next_event(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    async with backend(move, session_store_url=store) as one, backend(move, session_store_url=store) as other:
        async with cards(one, "resume") as phone:
            phone.say("Move it.")
            event = await phone.until("approval.request")
            card = event["payload"]
            body = {"decision": "allow", "argumentsDigest": card["argumentsDigest"]}
            path = f"/v1/sessions/s-1/approvals/{card['approvalId']}"
            assert (await other.ask("POST", path, body)).status == 200
            await other.released()
            phone.decide_card(event, "deny")  # too late
            await phone.until("assistant.speech.final")
            assert len(phone.runs) == 1 and not phone.closed.is_set()


async def test_a_session_that_cannot_be_read_hides_no_other_and_can_be_deleted(tmp_path: Path) -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    store = f"sqlite:///{tmp_path}/s.db"
    async with backend([HELLO, HELLO], session_store_url=store, auth_tokens=(TOKEN,)) as served:
        for session in ("s-1", "s-2"):
            async with served.phone(session, headers=bearer) as phone:
                await phone.ask("Hello.")
    with sqlite3.connect(tmp_path / "s.db") as database:
        number = "(SELECT id FROM session WHERE session_id = 's-1')"
        database.execute(f"UPDATE record SET data = x'c1' WHERE session = {number}")
    async with backend(session_store_url=store, auth_tokens=(TOKEN,)) as served:
        listed = (await served.ask("GET", "/v1/sessions")).body["sessions"]
        assert [(item["id"], item["readable"]) for item in listed] == [("s-1", False), ("s-2", True)]
        person = listed[0]["person"]
        shown = await served.ask("GET", "/v1/sessions/s-1")
        assert (shown.status, shown.code) == (409, "unreadable")
        exported = (await served.ask("GET", f"/v1/people/{person}")).body
        assert [item["id"] for item in exported["sessions"]] == ["s-2"]
        assert exported["unreadable"] == ["s-1"]
        assert (await served.ask("DELETE", "/v1/sessions/s-1")).body["deleted"] == {"sessions": 1}
        assert (await served.ask("DELETE", f"/v1/people/{person}")).body["deleted"] == {
            "messages": 2,
            "sessions": 1,
        }
        assert (await served.ask("GET", "/v1/sessions")).body["sessions"] == []
