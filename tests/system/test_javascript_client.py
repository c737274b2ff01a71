"""The JavaScript library against a real server: ``clients/js/test``, run by Node.

Node and its packages may be missing on a machine: then the tests are skipped and say so. ``.ci/run`` installs
them and sets ``CI_REQUIRE_CLIENTS=1``, with which a skip is a failure.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from websockets.asyncio.server import serve
from websockets.typing import Subprotocol

from conductor.app import make_services, running
from conductor.commands.verify_client import QUESTION, Play, verify
from conductor.events.envelope import SUBPROTOCOL
from conductor.messages import AssistantMessage, ToolResult, UserMessage
from conductor.plugins.models.demo import DemoProvider
from conductor.server.listener import Listener
from conductor.settings import load_settings
from tests.system.clients.programs import STARTING, missing, node_packages, program, started

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "clients" / "js"
TOKEN = "a-token-for-clients"
LIMIT_S = 500.0  # dozens of conversations with pauses, on a busy machine

pytestmark = pytest.mark.timeout(600)


@asynccontextmanager
async def demo() -> AsyncIterator[Listener]:
    """Run a server with the demo model and no limits of rate."""
    settings = load_settings(
        None,
        port=0,
        model_provider="demo",
        auth_tokens=TOKEN,
        session_rate_limit_per_min=1e5,
        subject_turns_per_min=1e6,
        log_level="warning",
    )
    async with running(settings, make_services(settings, DemoProvider(0))) as listener:
        yield listener


async def run(*command: str, **environment: str) -> str:
    """Run a program in the package's folder; returns its output."""
    async with started(["env", "-C", str(PACKAGE), *command], environment=environment) as process:
        output, errors = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert process.returncode == 0, output.decode() + errors.decode()
    return output.decode()


def address(listener: Listener) -> dict[str, str]:
    """Name a server in the environment of a program."""
    return {"CONDUCTOR_URL": f"ws://127.0.0.1:{listener.port}/ws", "CONDUCTOR_TOKEN": TOKEN}


async def node_tests(listener: Listener, *files: str, seed: int = 1) -> str:
    """Run test files against a server."""
    return await run(
        program("node"),
        *("--test", "--test-reporter=tap", *(f"test/{name}" for name in files)),
        NODE_PATH=node_packages(),
        CONDUCTOR_SEED=str(seed),
        **address(listener),
    )


async def test_it_holds_conversations() -> None:
    async with demo() as listener:
        await node_tests(listener, "conductor.test.js", "bridge.test.js", "utterances.test.js")
        sessions = {session.key.session_id: session.state.log for session in listener.registry.sessions}
        (told,) = [s for s in listener.registry.sessions if s.key.session_id == "js-facts"]
        facts = [(fact.key, fact.text, fact.untrusted) for fact in told.state.facts]
    assert facts == [("cart", "Four items.", False), ("message \ufffd", "A message.", True)]
    assert "Good morning." in str(sessions["js-facts"])
    texts = [message.text for message in sessions["js-reconnect"] if isinstance(message, UserMessage)]
    assert texts == ['call notes.find with {"number": 7}']
    (answer,) = (message for message in sessions["js-barge-in"] if isinstance(message, AssistantMessage))
    assert "one two" in answer.text and "three" not in answer.text


async def test_nothing_is_lost_or_doubled_by_300_cuts() -> None:
    seed = random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")  # noqa: T201 -- shown where the test fails
    async with demo() as listener:
        output = await node_tests(listener, "cuts.test.js", seed=seed)
        print(re.findall(r"seed .* places", output))  # noqa: T201
        sessions = [session for session in listener.registry.sessions if "cuts" in session.key.session_id]
    for session in sessions:
        number = session.key.session_id.rpartition("-")[2]
        texts = [message.text for message in session.state.log if isinstance(message, UserMessage)]
        results = [
            json.loads(message.content)["data"]
            for message in session.state.log
            if isinstance(message, ToolResult)
        ]
        assert texts == [f'call notes.add with {{"number": {number}}}']
        assert results == [f"number {number}"]
    assert len(sessions) >= 60


async def test_without_a_server_its_tests_say_what_they_need() -> None:
    command = ["env", "-C", str(PACKAGE), "-u", "CONDUCTOR_URL", "-u", "NODE_PATH", program("node"), "--test"]
    async with started(command) as process:
        output, _ = await asyncio.wait_for(process.communicate(), STARTING)
    text = output.decode()
    assert process.returncode == 1
    assert text.count("run tests/system/test_javascript_client.py with pytest") >= 2, text
    assert "MODULE_NOT_FOUND" not in text


ANSWERING = """
import { createRequire } from "node:module";
import { connect } from "./conductor.js";
const { WebSocket } = createRequire(process.cwd() + "/")("ws");
const client = connect({
  url: process.env.CONDUCTOR_URL,
  WebSocket,
  reconnect: { firstMs: 0, mostMs: 0 },
  onApproval: () => ({ decision: "allow" }),
  speak: (text) => { if (text === process.env.QUESTION) client.say("Anything."); },
});
"""


async def test_a_server_that_plays_against_it_finds_nothing_wrong() -> None:
    seed = random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")  # noqa: T201 -- shown where the test fails
    play = Play(seed, patience_s=20.0, quiet_s=0.1)
    async with serve(
        play.handle, "127.0.0.1", 0, subprotocols=[Subprotocol(SUBPROTOCOL)], close_timeout=1
    ) as server:
        url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/ws"
        command = ["env", "-C", str(PACKAGE), program("node"), "--input-type=module", "-e", ANSWERING]
        variables = {"CONDUCTOR_URL": url, "QUESTION": QUESTION, "NODE_PATH": node_packages()}
        async with started(command, environment=variables):
            steps = [step async for step in verify(play)]
    assert [(step.does, step.outcome) for step in steps if step.outcome != "right"] == []


async def test_the_program_of_the_document_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "clients" / "javascript.md").read_text(encoding="utf-8")
    (program_text,) = re.findall(r"^```js\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert program_text.count("\n") <= 35
    (tmp_path / "app.mjs").write_text(program_text, encoding="utf-8")
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "ws").symlink_to(Path(node_packages()) / "ws")
    (tmp_path / "node_modules" / "conductor-voice").symlink_to(PACKAGE)
    async with demo() as listener:
        output = await run(program("node"), str(tmp_path / "app.mjs"), **address(listener))
    assert "May I" in output
    assert output.endswith("1 call, and the lamp is true\n")


async def test_its_types_are_right() -> None:
    compiler = Path(node_packages()) / "typescript" / "bin" / "tsc"
    if not compiler.exists():
        missing("Node's package typescript")
    await run(program("node"), str(compiler), "--project", "tsconfig.json")


async def test_it_is_packed() -> None:
    output = await run(program("npm"), "pack", "--dry-run", "--json", "--offline")
    (pack,) = json.loads(output)
    assert {file["path"] for file in pack["files"]} == {
        *("LICENSE", "README.md", "package.json"),
        *("conductor.d.ts", "conductor.js", "conductor-elements.d.ts", "conductor-elements.js"),
        *("openai-live.d.ts", "openai-live.js", "utterances.js"),
    }


@pytest.mark.parametrize("name", ["conductor.js", "conductor-elements.js", "openai-live.js", "utterances.js"])
def test_the_server_has_the_same_file(name: str) -> None:
    assert (ROOT / "conductor" / "web" / name).read_bytes() == (PACKAGE / name).read_bytes()
