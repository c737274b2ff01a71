"""What no tool says about the code; import-linter's contracts and ruff's rules are in pyproject.toml."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("aiohttp", "anthropic", "mcp", "openai", "boto3", "redis", "opentelemetry")


def test_a_server_is_put_together_without_any_heavy_sdk() -> None:
    program = (
        "import sys, conductor.cli, conductor.app, conductor.client\n"
        "from conductor.commands import check, mcp, policy, sessions\n"
        f"print(sorted(set(sys.modules) & {set(HEAVY)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "[]", done.stderr


PURE_MODULES = 25
"""Fewer of our modules than these decide what comes next; none of them does anything."""


def test_deciding_the_next_step_loads_no_module_that_does_anything() -> None:
    program = "import sys, conductor.conversation.steps\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    loaded = set(done.stdout.split())
    assert not loaded & {"asyncio", "structlog", "pydantic_settings", "prometheus_client"}, done.stderr
    ours = sorted(name for name in loaded if name.startswith("conductor."))
    assert "conductor.conversation.steps" in ours
    assert len(ours) < PURE_MODULES, ours
