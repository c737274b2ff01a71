"""The server that plays against an app: our library does all right, and a wrong app is told why."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect as open_websocket
from websockets.asyncio.server import serve

from conductor.cli import main
from conductor.client import Approval, ApprovalDecision, Client, Reconnect, allow, connect
from conductor.client.options import DEFAULT_CAPABILITIES
from conductor.commands.verify_client import QUESTION, STEPS, Play, Step, verify

FIRST = STEPS[0]
DOCS = Path(__file__).parents[2] / "docs" / "protocol.md"


@asynccontextmanager
async def playing(seed: int, patience_s: float = 5.0) -> AsyncIterator[tuple[Play, str]]:
    play = Play(seed, patience_s, quiet_s=0.05)
    async with serve(play.handle, "127.0.0.1", 0, close_timeout=1) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield play, f"ws://127.0.0.1:{port}/ws"


@asynccontextmanager
async def app(url: str, **options: Any) -> AsyncIterator[Client]:
    """Our library, with a person who answers each question."""

    async def hear(text: str) -> None:
        if text == QUESTION:
            await client.say("Anything.")

    client = connect(url, speak=hear, reconnect=Reconnect(first_s=0, most_s=0), **options)
    async with client:
        yield client


async def shown_and_allowed(_approval: Approval, shown: Callable[[], Awaitable[None]]) -> ApprovalDecision:
    await shown()
    return allow()


def outcomes(steps: list[Step]) -> dict[str, str]:
    return {step.does: step.outcome for step in steps}


@pytest.mark.parametrize("seed", [1, 2])
async def test_our_library_does_all_right(seed: int) -> None:
    capabilities = (*DEFAULT_CAPABILITIES, "segments", "goaway")
    async with (
        playing(seed) as (play, url),
        app(url, capabilities=capabilities, on_approval=shown_and_allowed),
    ):
        steps = await verify(play)
    assert [(step.does, step.outcome) for step in steps if step.outcome != "right"] == []
    assert {step.does for step in steps} == {step.does for step in STEPS}


async def test_what_a_capability_needs_is_skipped_for_an_app_without_it() -> None:
    async with playing(1) as (play, url), app(url, capabilities=()):
        found = outcomes(await verify(play))
    assert {outcome for outcome in found.values() if outcome != "right"} == {
        "skipped: no resume",
        "skipped: no approval",
        "skipped: no cancel",
        "skipped: no segments",
        "skipped: no goaway",
    }


def frame(number: int, kind: str, payload: dict[str, Any]) -> str:
    return json.dumps(
        {"id": f"e{number}", "type": kind, "timestamp": "t", "sessionId": "s-1", "payload": payload}
    )


async def careless(url: str) -> None:
    """Be an app that knows no ids, never comes back, and sends what is no event."""
    async with open_websocket(url) as connection:
        await connection.send(frame(0, "session.start", {"sessionId": "s-1"}))
        await connection.send("[]")
        number = 0
        async for text in connection:
            event = json.loads(text)
            if event["type"] == "tool.call":
                number += 1
                result = {"callId": event["payload"]["callId"], "result": "ok", "error": None}
                await connection.send(frame(number, "tool.result", result))


async def test_a_careless_app_is_told_what_the_reference_says() -> None:
    async with playing(1, patience_s=0.1) as (play, url):
        talking = asyncio.create_task(careless(url))
        steps = await verify(play)
        await asyncio.wait({talking})
    found = outcomes(steps)
    assert found["starts its session by its first event"] == "right"
    assert found["sends valid events only"] == "wrong"
    assert found["connects again after a restart, for the same session"] == "wrong"
    assert found["runs a call once though the socket is cut"] == "skipped: no resume"


async def test_a_call_that_came_twice_and_ran_twice_is_wrong() -> None:
    step = next(step for step in STEPS if "comes twice" in step.does)
    async with playing(1, patience_s=1) as (play, url):
        talking = asyncio.create_task(careless(url))
        await play.until(lambda: play.starts)
        assert await step.play(play) is False
        talking.cancel()
        await asyncio.wait({talking})


def test_each_sentence_stands_in_the_reference() -> None:
    reference = " ".join(DOCS.read_text(encoding="utf-8").split())
    assert [step.reference for step in STEPS if step.reference not in reference] == []


def test_an_app_that_never_comes_is_exit_code_1_with_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify-client", "--port", "0", "--patience", "0.01"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("Connect the app to ws://127.0.0.1:")
    assert f"wrong        {FIRST.does}" in out
    assert FIRST.reference in out


def test_a_port_that_is_taken_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["verify-client", "--port", str(taken.getsockname()[1])]) == 2
    assert "cannot be listened on" in capsys.readouterr().err
