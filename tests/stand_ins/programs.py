"""Programs and packages that tests need and a machine may not have."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest


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


def started(command: Sequence[str], *ready: bytes, cwd: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a server in a process group of its own, and wait until it writes one of these texts."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
        cwd=cwd,
    )
    assert process.stdout is not None
    lines = b""
    for line in iter(process.stdout.readline, b""):
        lines += line
        if any(text in line for text in ready):
            return process
    process.kill()
    process.communicate()
    raise AssertionError(f"The server did not start: {lines.decode()}")
