"""The tests' own rule that a leftover is reported where it was left, and nowhere else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT, environment

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
