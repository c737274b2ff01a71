"""Runs Apple's ``mlx_lm.server`` on loopback.

It serves the tiny models of ``tiny_models/``, which were trained on a few sentences: they switch a lamp, say
hello, and count to sixty. The server is installed in an environment of its own, ``build/models``. Without it
the tests are skipped; with ``CI_REQUIRE_MLX=1``, which ``.ci/run`` sets, a skip is a failure.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT
from tests.services.ports import free_port
from tests.stand_ins.programs import launched, missing

PYTHON = ROOT / "build" / "models" / "venv" / "bin" / "python"
MODELS = Path(__file__).parent / "tiny_models"


@dataclass
class LocalServer:
    """A server that runs. ``base_url`` ends in ``/v1``; ``model`` is the name that it answers to."""

    process: Process
    base_url: str
    model: str


@asynccontextmanager
async def mlx_server(model: str) -> AsyncIterator[LocalServer]:
    """Run ``mlx_lm.server`` with one of the tiny models."""
    if not PYTHON.with_name("mlx_lm.server").exists():
        missing("mlx-lm 'mlx[cpu]' in build/models/venv", "MLX")
    folder, port = str(MODELS / model), free_port()
    options = ["--model", folder, "--host", "127.0.0.1", "--port", str(port), "--prefill-step-size", "256"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1"}
    command = [str(PYTHON), "-m", "mlx_lm.server", *options]
    async with launched(*command, stdout=DEVNULL, stderr=DEVNULL, env=environment) as process:
        async with asyncio.timeout(60):
            await _listening(process, port)
        yield LocalServer(process, f"http://127.0.0.1:{port}/v1", folder)


async def _listening(process: Process, port: int) -> None:
    while process.returncode is None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
    raise AssertionError(f"the server ended with code {process.returncode} before it listened")
