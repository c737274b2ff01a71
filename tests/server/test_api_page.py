"""docs/api.md: each of its commands runs as written."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from conductor.plugins.api.routes import ROUTES
from tests.conftest import ROOT, environment
from tests.server.api import KEYS, backend
from tests.server.nodes import move
from tests.server.test_api_actions import cards
from tests.server.wires import WAIT
from tests.stand_ins.programs import launched

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def commands() -> list[str]:
    """Cut the commands out of the page."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in re.split(r"(?<!\\)\n", block) if line]


async def run(command: str, port: int, **names: str) -> Any:
    """Run a command; returns its answer."""
    command, pipe = command.replace("127.0.0.1:8080", f"127.0.0.1:{port}"), asyncio.subprocess.PIPE
    variables = environment(KEY=KEYS["all"], **names)
    async with launched("sh", "-c", command, stdout=pipe, stderr=pipe, env=variables) as process:
        output, errors = await asyncio.wait_for(process.communicate(), WAIT)
    assert process.returncode == 0, (command, errors.decode())
    return json.loads(output)


async def test_every_command_of_the_page_runs(tmp_path: Path) -> None:
    async with backend(move, session_store_url=f"sqlite:///{tmp_path}/s.db") as served:
        async with cards(served) as phone:
            phone.say("Move it.")
            card = (await phone.until("approval.request"))["payload"]
            names = {"PERSON": "anonymous", "APPROVAL": card["approvalId"], "DIGEST": card["argumentsDigest"]}
            for command in commands():
                if "-X DELETE http://127.0.0.1:8080/v1/people" in command:
                    async with served.phone("s-2"):  # the session was deleted above
                        await run(command, served.listener.port, **names)
                    continue
                if "/v1/tokens" in command:
                    async with backend(auth=("one_time",)) as server:
                        answer = await run(command, server.listener.port, **names)
                else:
                    answer = await run(command, served.listener.port, **names)
                if "/approvals/" in command:
                    assert answer["outcome"] == "allowed"
                    await phone.until("assistant.speech.final")
            assert phone.runs


def test_the_page_has_every_endpoint() -> None:
    text = PAGE.replace("\\\n", " ")
    for route in ROUTES:
        last = route.path.removeprefix("/v1").replace("{id}", "s-1")
        last = last.replace("{person}", "$PERSON").replace("{approval}", "$APPROVAL")
        method = "-X DELETE" if route.method == "DELETE" else "curl"
        assert re.search(rf"{method}.*/v1{re.escape(last)}(?![/\w])", text), route.path
