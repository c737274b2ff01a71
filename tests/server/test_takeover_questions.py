"""Open questions of a session that moves or is loaded again: each is decided once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conductor.messages import ToolCall, ToolResult
from conductor.models.base import ModelRequest, TextDelta
from tests.app import App
from tests.models import Script
from tests.server.nodes import (
    LosesReplies,
    Node,
    Shelf,
    calm,
    node,
    recorded,
    session_of,
    stored_log,
    two_nodes,
)
from tests.server.wires import until
from tests.session.helpers import faults
from tests.shapes import Event, shape_of

MOVE = {
    "name": "move_file",
    "description": "Moves a file.",
    "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}},
    "annotations": {"destructiveHint": False},
}


def move(request: ModelRequest) -> Script:
    """Move the notes, and return the outcome."""
    last = request.messages[-1]
    if isinstance(last, ToolResult):
        result = json.loads(last.content)
        return [TextDelta(f"It said {result['data'] or result['error_type']}.")]
    return [ToolCall("c-1", "move_file", '{"path":"notes.txt"}')]


def phone_at(served: Node, *capabilities: str, **options: Any) -> App:
    start = {"capabilities": ["tools", *capabilities], "tools": [MOVE]}
    return served.phone(tools={"move_file": lambda _: "moved"}, start_fields=start, **options)


async def goes(phone: App, to: Node) -> int:
    """Lose the network and reconnect to another node; returns the start of its new log."""
    since = len(phone.log)
    await phone.cut()
    phone.url = to.url
    if "resume" in phone.start_fields["capabilities"]:
        phone.start_fields = {**phone.start_fields, "resume": {"lastEventId": phone.log[-1]["id"]}}
    await phone.open()
    return since


async def question(phone: App) -> Event:
    """Send a transcript that leads to a question; returns its card."""
    phone.say("move it")
    return await phone.until("approval.request")


async def decides(phone: App, card: Event, decision: str) -> None:
    answer = {key: card["payload"][key] for key in ("approvalId", "argumentsDigest")}
    phone.send("approval.response", {**answer, "decision": decision})


async def is_told(phone: App, card: Event, decision: str, outcome: str) -> None:
    """Decide, and wait until the server confirms the outcome."""
    since = len(phone.log)
    await decides(phone, card, decision)
    await resolved(phone, card, outcome, since)


async def resolved(phone: App, card: Event, outcome: str, since: int) -> None:
    expected = {"approvalId": card["payload"]["approvalId"], "outcome": outcome}
    await phone.until(
        lambda e: bool(e["type"] == "approval.resolved" and expected.items() <= e["payload"].items()),
        since=since,
    )


async def prompted(phone: App, served: Node, number: int = 1) -> None:
    """Wait until a question was spoken this number of times and recorded as heard."""
    await until(lambda: len(phone.speeches()) >= number)
    prompt = phone.events("tts.speak")[number - 1]
    assert "May I" in prompt["payload"]["arguments"]
    await phone.until("state idle", since=phone.log.index(prompt))
    questions = session_of(served).state.questions
    await until(lambda: all(question.presented_at for question in questions.values()))
    await recorded(served)


async def reply_to(phone: App, since: int = 0) -> str:
    """Wait for the final and the end of its turn."""
    final = await phone.until("assistant.speech.final", since=since)
    await phone.idle(since=phone.log.index(final))
    return str(final["payload"]["text"])


async def is_fine(shelf: Shelf, results: int = 1) -> None:
    """Check that the stored session is valid and has no open question."""
    log = await stored_log(shelf)
    assert (
        faults(log) == [] and len([message for message in log if isinstance(message, ToolResult)]) == results
    )


# -- by card


async def test_a_card_is_shown_again_by_the_other_node_and_decided_once(shelf: Shelf) -> None:
    async with two_nodes(shelf, move, move) as (a, b):
        async with phone_at(a, "approval") as phone:
            card = await question(phone)
            since = await goes(phone, b)
            await until(lambda: card["id"] in [event["id"] for event in phone.repeated])
            await is_told(phone, card, "allow", "allowed")
            assert await reply_to(phone, since) == "It said moved."
            await is_told(phone, card, "allow", "refused")  # it has been told already
            await is_told(phone, card, "deny", "refused")
            await calm(b)
            await goes(phone, a)
            await is_told(phone, card, "allow", "allowed")
            await is_told(phone, card, "deny", "refused")
            assert len(phone.runs) == 1 and len(phone.finals()) == 1
            assert not phone.errors()
    await is_fine(shelf)


async def test_the_other_node_reports_a_decision_that_the_client_missed(
    shelf: Shelf,
) -> None:
    async with two_nodes(shelf, move, move) as (a, b):
        async with phone_at(a, "approval", "resume") as phone:
            card = await question(phone)
            await recorded(a)
            phone.socket.transport.pause_reading()
            await decides(phone, card, "allow")
            session = session_of(a)
            await until(lambda: not session.state.questions)
            assert not phone.runs
            since = await goes(phone, b)
            await is_told(phone, card, "allow", "allowed")
            assert await reply_to(phone, since) == "It said moved."
            assert len(phone.runs) == 1
    await is_fine(shelf)


async def test_a_repeated_decision_after_a_lost_reply_is_reported(
    file_shelf: Shelf,
) -> None:
    store = LosesReplies(file_shelf.make())
    async with node(store, move) as served:
        async with phone_at(served, "approval", "resume") as phone:
            card = await question(phone)
            await recorded(served)
            store.lose()
            since = len(phone.log)
            await decides(phone, card, "allow")
            await resolved(phone, card, "allowed", since)
            assert store.lost_replies == 1
            assert await reply_to(phone, since) == "It said moved."
            await is_told(phone, card, "allow", "refused")  # it has been told already
            await is_told(phone, card, "deny", "refused")
            assert len(phone.runs) == 1
            await calm(served)
    await is_fine(file_shelf)


# -- by voice


@pytest.mark.parametrize("elsewhere", [True, False])
async def test_a_prompt_behind_a_lost_acknowledgement_is_spoken_after_a_reconnect(
    shelf: Shelf, elsewhere: bool
) -> None:
    """The app has played the speech, and ignores the repeated event."""

    def replies(request: ModelRequest) -> Script:
        reply = move(request)
        return reply if isinstance(request.messages[-1], ToolResult) else [TextDelta("I move it."), *reply]

    async with two_nodes(shelf, replies, replies, ui_timeout=600.0, speech_timeout=600.0) as (a, b):
        async with phone_at(a, acknowledge=lambda name: False) as phone:
            phone.say("move it")
            await phone.until(lambda e: shape_of(e) == "append assistant" and "May I" in str(e["payload"]))
            phone.acknowledge = lambda name: True
            await goes(phone, b if elsewhere else a)
            await prompted(phone, b if elsewhere else a, 2)
            since = len(phone.log)
            phone.say("yes")
            assert await reply_to(phone, since) == "It said moved."
            assert len(phone.runs) == 1
        await calm(b if elsewhere else a)
    await is_fine(shelf)


@pytest.mark.parametrize("resumes", [True, False])
async def test_a_yes_with_a_lost_reply_counts_once(file_shelf: Shelf, resumes: bool) -> None:
    store = LosesReplies(file_shelf.make())
    async with node(store, move, tool_timeout=0.3, heard_window=0.0) as served:
        async with phone_at(served, *(["resume"] if resumes else [])) as phone:
            phone.say("move it")
            await prompted(phone, served)
            store.lose()
            since = len(phone.log)
            event_id = phone.say("yes")
            await until(lambda: store.lost_replies == 1)
            phone.say("yes", id=event_id)
            assert await reply_to(phone, since) == "It said moved."
            assert len(phone.runs) == 1
            await calm(served)
    await is_fine(file_shelf)
