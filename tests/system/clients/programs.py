"""Finds and runs clients that are separate programs; a missing program skips the test with the reason."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, NoReturn

import pytest

from tests.stand_ins.programs import launched
from tests.system.clients.conversation import QUESTION, RESULT_LENGTH

CLIENTS = Path(__file__).resolve().parent
PACKAGES = Path(__file__).resolve().parents[3] / "build" / "clients" / "node_modules"
STARTING = 60.0
"""Bound for a client that is a program of its own: a browser on a busy machine takes seconds to start."""


def missing(program_name: str) -> NoReturn:
    """Skip, or fail where the clients are required."""
    reason = f"{program_name} is not on this machine; .ci/run installs it"
    if os.environ.get("CI_REQUIRE_CLIENTS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def program(*names: str) -> str:
    """Find a program; its test is skipped without it."""
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return path
    missing(names[0])


def node_packages() -> str:
    """Find where the package ``ws`` lies; its test is skipped without it."""
    for folder in (*filter(None, os.environ.get("NODE_PATH", "").split(os.pathsep)), str(PACKAGES)):
        if (Path(folder) / "ws" / "package.json").exists():
            return folder
    missing("Node's package ws")


@asynccontextmanager
async def started(
    command: Sequence[str],
    output: int | IO[bytes] = asyncio.subprocess.PIPE,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program for the time of the block; it goes with everything that it started."""
    variables, silent = {**os.environ, **(environment or {})}, asyncio.subprocess.DEVNULL
    async with launched(*command, stdin=silent, stdout=output, stderr=output, env=variables) as process:
        yield process


async def node(url: str, token: str, *, pieces: bool = False) -> dict[str, Any]:
    """Hold the conversation with Node's ``ws``; returns its observations."""
    command = [program("node"), str(CLIENTS / "node_client.js"), url, "s-node", QUESTION]
    command += [str(RESULT_LENGTH), token]
    environment = {"NODE_PATH": node_packages(), "PIECES": "1" if pieces else "0"}
    async with started(command, environment=environment) as process:
        output, errors = await asyncio.wait_for(process.communicate(), STARTING)
    assert process.returncode == 0, errors.decode()
    observations: dict[str, Any] = json.loads(output)
    return observations
