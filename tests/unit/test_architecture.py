"""What no tool says about the code; import-linter's contracts and ruff's rules are in pyproject.toml."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "conductor"

HEAVY = ("aiohttp", "anthropic", "mcp", "openai", "boto3", "redis", "opentelemetry")


def test_a_server_is_put_together_without_any_heavy_sdk() -> None:
    program = (
        "import sys, conductor.cli, conductor.app, conductor.client\n"
        "from conductor.commands import check, mcp, policy, sessions\n"
        f"print(sorted(set(sys.modules) & {set(HEAVY)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "[]", done.stderr


PURE_MODULES = 26
"""Fewer of our modules than these decide what comes next; none of them does anything."""


def test_deciding_the_next_step_loads_no_module_that_does_anything() -> None:
    program = "import sys, conductor.conversation.steps\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    loaded = set(done.stdout.split())
    assert not loaded & {"asyncio", "structlog", "pydantic_settings", "prometheus_client"}, done.stderr
    ours = sorted(name for name in loaded if name.startswith("conductor."))
    assert "conductor.conversation.steps" in ours
    assert len(ours) < PURE_MODULES, ours


CHAINS = {"conversation": 7, "session": 9}
"""Folder -> modules in its longest chain of imports. Imports of types alone are no part of a chain."""


def longest_chain(folder: str) -> list[str]:
    """Find the longest chain of imports within a folder, from the top."""

    @cache
    def chain(name: str) -> list[str]:
        tree = ast.parse((ROOT / folder / f"{name}.py").read_text(encoding="utf-8"))
        return [name, *max(map(chain, sorted(set(_neighbours(tree, folder)))), key=len, default=[])]

    modules = [path.stem for path in (ROOT / folder).glob("*.py") if path.stem != "__init__"]
    return max(map(chain, modules), key=len)


def _neighbours(tree: ast.AST, folder: str) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module == f"conductor.{folder}":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"conductor.{folder}."):
            yield (node.module or "").split(".")[2]
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from _neighbours(node, folder)


@pytest.mark.parametrize("folder", sorted(CHAINS))
def test_a_reader_of_a_room_climbs_few_floors(folder: str) -> None:
    chain = longest_chain(folder)
    assert 4 <= len(chain) <= CHAINS[folder], " -> ".join(chain)
