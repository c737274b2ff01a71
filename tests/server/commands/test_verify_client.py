"""``conductor verify-client`` against the library and against faulty apps."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import serve

from conductor.cli import main
from conductor.client import DEFAULT_CAPABILITIES, Client, Reconnect, connect
from conductor.client.approvals import Approval, ApprovalDecision, allow
from conductor.commands.verify_client import QUESTION, STEPS, Play, VerifiedStep, verify
from tests.app import App
from tests.hasty import SHORT_S

FIRST = STEPS[0]
DOCS = Path(__file__).parents[3] / "docs"


@asynccontextmanager
async def playing(seed: int, patience_s: float = 60.0) -> AsyncIterator[tuple[Play, str]]:
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


def outcomes(steps: list[VerifiedStep]) -> dict[str, str]:
    return {step.does: step.outcome for step in steps}


@pytest.mark.parametrize("seed", [1, 2])
async def test_the_library_passes_all_steps(seed: int) -> None:
    capabilities = (*DEFAULT_CAPABILITIES, "segments", "goaway")
    async with (
        playing(seed) as (play, url),
        app(url, capabilities=capabilities, on_approval=shown_and_allowed),
    ):
        steps = [step async for step in verify(play)]
    assert [(step.does, step.outcome) for step in steps if step.outcome != "right"] == []
    assert {step.does for step in steps} == {step.does for step in STEPS}


async def test_steps_of_missing_capabilities_are_skipped() -> None:
    async with playing(1) as (play, url), app(url, capabilities=()):
        steps = [step async for step in verify(play)]
    assert {step.seen for step in steps if step.outcome == "skipped"} == {
        f"no {name} in session.start" for name in ("resume", "approval", "cancel", "segments", "goaway")
    }
    assert {step.outcome for step in steps} == {"right", "skipped"}


class CarelessApp(App):
    """Ignores ids, does not reconnect, and sends an invalid event."""

    def receive(self, data: bytes) -> None:
        self.event_ids.clear()
        super().receive(data)


async def careless(url: str) -> None:
    phone = CarelessApp(url, answer=lambda call: "ok")
    await phone.open(start=False)
    phone.start()
    phone.socket.write(b"[]")
    await phone.closed.wait()


async def test_the_steps_that_a_careless_app_fails() -> None:
    async with playing(1, patience_s=SHORT_S) as (play, url):
        talking = asyncio.create_task(careless(url))
        steps = [step async for step in verify(play)]
        await asyncio.wait({talking})
    results = outcomes(steps)
    assert results["starts its session by its first event"] == "right"
    assert results["sends valid events only"] == "wrong"
    assert results["connects again after a restart, for the same session"] == "wrong"
    assert results["runs a call once despite a cut connection"] == "skipped"
    (restart,) = [number for number, step in enumerate(steps) if step.does.startswith("connects again")]
    assert steps[restart].seen == "nothing within 1 s"
    later = [step for step in steps[restart + 1 : -1] if step.outcome != "skipped"]
    assert later and {step.outcome for step in later} == {"not tried"}
    assert {step.seen for step in later} == {"the app was not connected"}


async def test_an_app_that_runs_a_repeated_call_twice_fails() -> None:
    step = next(step for step in STEPS if step.does == "runs a repeated call once")
    async with playing(1, patience_s=1) as (play, url):
        talking = asyncio.create_task(careless(url))
        await play.until(lambda: play.starts)
        assert await step.play(play) == "2 results with different ids for one call"
        talking.cancel()
        await asyncio.wait({talking})


def test_each_section_is_in_the_documentation_of_the_protocol() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in DOCS.glob("protocol*.md"))
    headings = {line.lstrip("# ").replace("`", "") for line in text.splitlines() if line.startswith("##")}
    assert {step.section for step in STEPS} <= headings


def test_without_an_app_the_exit_code_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify-client", "--port", "0", "--patience", "0.01"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("Connect the app to ws://127.0.0.1:")
    assert out.splitlines()[1].startswith(f"wrong      {FIRST.does}  ")
    assert out.splitlines()[1].endswith(
        f"  nothing within 0.01 s (see {FIRST.section} in docs/protocol-reference.md)"
    )
    assert out.splitlines()[-1] == f"1 wrong, {len(STEPS) - 1} not tried"


def test_a_port_in_use_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert main(["verify-client", "--port", str(listener.getsockname()[1])]) == 2
    assert "cannot listen on port" in capsys.readouterr().err
