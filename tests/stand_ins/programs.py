"""Programs and packages that tests need and a machine may not have."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest

WAIT = 60.0
"""The longest time in seconds for a server to start, stop or answer."""


def missing(name: str, group: str) -> NoReturn:
    """Skip the test, or fail where ``CI_REQUIRE_`` with the group is 1, as ``.ci/run`` sets it."""
    reason = f"{name} is not here; .ci/run installs it"
    if os.environ.get(f"CI_REQUIRE_{group}") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def program(group: str, *names: str, path: str | None = None) -> str:
    """Give the path of the first of these programs; its test is skipped without it."""
    for name in names:
        if (executable := shutil.which(name, path=path)) is not None:
            return executable
    missing(names[0], group)


@asynccontextmanager
async def launched(*command: str | Path, **options: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program for the time of the block; it ends with everything that it started.

    ``options`` are those of `asyncio.create_subprocess_exec`.
    """
    process = await asyncio.create_subprocess_exec(*command, start_new_session=True, **options)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.wait_for(process.communicate(), WAIT)


def started(command: Sequence[str], *ready: bytes, cwd: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a server in a process group of its own, and wait until it writes one of these texts.

    Its output goes to a file: a pipe that nobody reads would block a server that writes much.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
            cwd=cwd,
        )
        try:
            deadline = time.monotonic() + WAIT
            while True:  # another process: there is nothing to wait on
                has_ended = process.poll() is not None or time.monotonic() > deadline
                text = os.pread(output.fileno(), 1_000_000, 0)
                if any(line in text for line in ready):
                    return process
                assert not has_ended, f"The server did not start: {text.decode()}"
                time.sleep(0.005)
        except BaseException:
            end(process)
            raise


def end(process: subprocess.Popen[bytes], signum: signal.Signals = signal.SIGKILL) -> None:
    """End a server by a signal, and by SIGKILL where that fails or takes too long."""
    try:
        process.send_signal(signum)
        process.wait(WAIT)
    finally:
        process.kill()
        process.wait()
