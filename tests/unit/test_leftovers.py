"""A leftover of a test is reported where it was left and nowhere else; a program ends with its block."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, environment
from tests.stand_ins.programs import launched

LEAVES = """
import socket

def leave():
    left = [socket.socket()]
    left.append(left)  # not freed before the garbage is collected
    return left

def test_leaves(): {body}
"""
COLLECTS = """
import gc

def test_collects(): gc.collect()
"""


def summary(folder: Path, body: str) -> list[str]:
    """Run a test with this body, and one of another module that collects the garbage; list the red ones."""
    (folder / "test_a.py").write_text(LEAVES.format(body=body))
    (folder / "test_b.py").write_text(COLLECTS)
    options = ["-rfE", "-p", "tests.leftovers", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", str(folder), "test_a.py", "test_b.py"]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=60)
    red = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return [" ".join(line.split()[:2]) for line in red]


def test_a_leftover_is_an_error_of_the_module_that_leaves_it(tmp_path: Path) -> None:
    assert summary(tmp_path, "leave()") == ["ERROR test_a.py::test_leaves"]


def test_what_a_failed_test_leaves_fails_no_other(tmp_path: Path) -> None:
    assert summary(tmp_path, "left = leave(); assert not left") == ["FAILED test_a.py::test_leaves"]


async def test_a_program_ends_with_its_block_and_with_all_that_it_started() -> None:
    command = ("sh", "-c", "sleep 600 & echo begun; wait")
    with pytest.raises(RuntimeError, match="in the middle"):
        # The pipe's end, which is waited for, is that of the last process that has it.
        async with launched(*command, stdout=asyncio.subprocess.PIPE) as process:
            assert process.stdout is not None and await process.stdout.readline() == b"begun\n"
            raise RuntimeError("in the middle")
    assert process.returncode == -signal.SIGKILL
