"""The examples as a user runs them: each in a process of its own, against a server with the demo model."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from conductor.app import running
from conductor.settings import load_settings
from tests.server.client.extended import approval_response, request, resolve, start
from tests.services.ports import free_port
from tests.stand_ins.programs import launched
from tests.stand_ins.scripted_server import Json, Peer, Script, scripted_server

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
START_S = 60.0  # an interpreter and its imports on a busy machine


@asynccontextmanager
async def serving(port: int = 0, **settings: object) -> AsyncIterator[int]:
    """Run a server; yields its port."""
    async with running(load_settings(None, port=port, model_provider="demo", **settings)) as listener:
        yield listener.port


class Process:
    """A running example."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def type(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        await self.process.stdin.drain()

    async def shows(self, start: str, limit_s: float = LIMIT_S) -> str:
        """Return the next line of output that begins with ``start``."""
        assert self.process.stdout is not None
        async with asyncio.timeout(limit_s):
            while line := (await self.process.stdout.readline()).decode():
                if line.startswith(start):
                    return line.rstrip("\n")
        raise AssertionError(f"the output ended without {start!r}")

    async def ends(self) -> tuple[int | None, str, str]:
        """Close its input and wait; returns status, output and errors."""
        async with asyncio.timeout(START_S):
            out, err = await self.process.communicate(b"")
        return self.process.returncode, out.decode(), err.decode()


@asynccontextmanager
async def example(name: str, port: int, *options: str) -> AsyncIterator[Process]:
    """Run an example for the block."""
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, str(ROOT / "examples" / name), f"ws://127.0.0.1:{port}/ws", *options]
    async with launched(*command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        yield Process(process)


async def test_the_device_declares_its_tools_and_the_model_calls_both() -> None:
    async with serving() as port, example("device_tools.py", port) as run:
        status, out, err = await run.ends()
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        'lamp.switch({"on":true,"room":"kitchen"}) -> {"on":true,"room":"kitchen"}',
        "Lamp switch answered: on is yes and room is kitchen.",
        'lamp.list({}) -> {"on":["kitchen"]}',
        "Lamp list answered: on is kitchen.",
    ]


async def test_the_bot_accepts_correct_answers() -> None:
    async with serving(auth_tokens=("secret",)) as port:
        async with example("scripted_bot.py", port, "--token", "secret") as run:
            status, out, err = await run.ends()
    assert (status, err) == (0, "")
    assert [line.split(":")[0] for line in out.splitlines()] == ["ok", "ok", "ok"]


async def test_a_wrong_answer_sets_the_bots_exit_status(tmp_path: Path) -> None:
    script = tmp_path / "script.tsv"
    script.write_text("what is 2 + 2\t5\nsay hello\thello\n")
    async with serving() as port, example("scripted_bot.py", port, "--script", str(script)) as run:
        status, out, _ = await run.ends()
    assert status == 1
    assert out.splitlines() == [
        "FAILED: what is 2 + 2: the answer is '2 + 2 is 4.'",
        "ok: say hello",
    ]


@pytest.mark.parametrize("name", ["scripted_bot.py", "device_tools.py", "voice_loop.py", "approvals.py"])
async def test_a_missing_token_is_one_sentence(name: str) -> None:
    async with serving(auth_tokens=("secret",)) as port, example(name, port) as run:
        status, out, err = await run.ends()
    assert (status, out) == (2 if name == "scripted_bot.py" else 1, "")
    assert err.count("\n") == 1
    assert "the token is missing or not accepted" in err


def deleting(received: list[Json]) -> Script:
    """Make a script: it asks for approval of the tool, runs it if allowed, and answers."""

    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        arguments = {"album": "Rome", "count": 3}
        await peer.send("approval.request", request(name="photos.delete", risk="high", arguments=arguments))
        decision = await approval_response(peer)
        received.append(decision)
        await resolve(peer, "denied" if decision["decision"] == "deny" else "allowed")
        if decision["decision"] != "deny":
            received.append(await peer.ask("photos.delete", decision.get("editedArguments", arguments)))
        await peer.answer("So be it.")

    return script


@pytest.mark.parametrize(
    ("typed", "decision", "deleted"),
    [
        ("allow", "allow", 3),
        ('{"album": "Rome", "count": 1}', "edit", 1),
        ("{", "deny", 0),
        ("yes", "deny", 0),
    ],
)
async def test_only_an_allowed_call_runs(typed: str, decision: str, deleted: int) -> None:
    received: list[Json] = []
    async with scripted_server(deleting(received)) as server:
        async with example("approvals.py", int(server.url.rpartition(":")[2].partition("/")[0])) as run:
            question = await run.shows("May photos.delete run?", START_S)
            await run.type(typed)
            status, out, err = await run.ends()
    assert question == 'May photos.delete run? high risk: {"album": "Rome", "count": 3}'
    assert status == 0
    assert ("handler failed" in err) == (typed == "{")
    photos = [f"deleting photo {number + 1} of Rome" for number in range(deleted)]
    assert out.splitlines() == [*photos, "So be it."]
    assert received[0]["decision"] == decision
    assert [json.loads(message["result"]) for message in received[1:]] == (
        [{"deleted": deleted}] if deleted else []
    )


async def test_the_server_asks_for_approval() -> None:
    async with serving() as port, example("approvals.py", port) as run:
        await run.shows("May photos.delete run? high risk", START_S)
        await run.type("allow")
        status, out, err = await run.ends()
    assert (status, err) == (0, "")
    assert out.splitlines()[-1] == "Photos delete answered: deleted is 3."


async def test_the_voice_loop_answers_and_can_be_interrupted() -> None:
    async with serving() as port, example("voice_loop.py", port) as run:
        await run.type(f"say {'a rather long story ' * 10}")
        await run.shows("... a rather", START_S)
        await run.shows("speaking: a rather")  # for many seconds without an interruption
        await run.type("what is 2 + 2")
        assert await run.shows("speaking:") == "speaking: 2 + 2 is 4."
        status, _, err = await run.ends()
    assert (status, err) == (0, "")


async def test_the_voice_loop_continues_after_a_restart_of_the_server() -> None:
    async with AsyncExitStack() as stack:
        port = free_port()
        first = serving(port)
        await first.__aenter__()
        try:
            run = await stack.enter_async_context(example("voice_loop.py", port))
            await run.type("say one")
            await run.shows("speaking: one", START_S)
        finally:
            await first.__aexit__(None, None, None)
        assert "1012" in await run.shows("lost:")
        await stack.enter_async_context(serving(port))
        await run.shows("connected again", START_S)
        await run.type("say two")
        await run.shows("speaking: two")
        status, _, err = await run.ends()
    assert (status, err) == (0, "")


async def test_the_smoke_test_passes_with_the_demo_model() -> None:
    async with serving() as port:
        script = str(ROOT / "scripts" / "smoke")
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, script, f"ws://127.0.0.1:{port}/ws")
        async with launched(*command, cwd=ROOT, stdout=pipe, stderr=pipe) as process:
            out, err = await process.communicate()
    assert (process.returncode, err) == (0, b""), out.decode()
    assert out.count(b"ok ") == 5
