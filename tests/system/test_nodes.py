"""The nodes that scripts start, and the controls of chaos."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, environment
from tests.server.test_cli import START
from tests.server.wires import WAIT

sys.path.append(str(ROOT / "scripts"))

from benchmarks.nodes import DidNotStart, Node

ANSWER_S = 1.0


async def test_a_node_is_frozen_killed_and_started_again_where_it_was(tmp_path: Path) -> None:
    node = Node("node-1", tmp_path, "--provider", "demo")
    try:
        await node.start()
        first = node.pid
        assert await node.ready(WAIT)
        node.freeze()
        assert not await node.ready(ANSWER_S) and node.runs
        node.thaw()
        await node.wait_ready(START)
        await node.kill()
        assert not await node.ready(ANSWER_S)
        await node.start()
        assert await node.ready(WAIT) and node.pid != first
        assert node.log.read_text().count(f"address={node.url}") == 2
    finally:
        node.freeze()  # one that is frozen ends in good order all the same
        await node.stop()
    assert "stopping" in node.log.read_text()


async def test_a_node_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(DidNotStart, match="MODEL_PROVIDER 'parrot' is unknown"):
        await Node("node-1", tmp_path, "--provider", "parrot").start()


def test_the_controls_of_chaos_still_find_the_parts_that_they_break() -> None:
    code = "from benchmarks.chaos_nodes import CONTROLS; [control() for control in CONTROLS.values()]"
    variables = environment(PYTHONPATH=f"{ROOT}:{ROOT / 'scripts'}")
    run = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
