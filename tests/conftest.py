"""Shared fixtures: settings of generated tests, and the command line in the tests' own process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
import structlog
from hypothesis import settings

from conductor.cli import main
from conductor.settings import Settings

# Without a deadline, as machines may be busy, and half the usual examples.
settings.register_profile("conductor", deadline=None, print_blob=True, max_examples=50)
settings.load_profile("conductor")

# A shell without job control starts background commands with SIGINT ignored, and their children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent


EXTENDED = (
    "end_to_end/test_chaos",
    "end_to_end/test_independent_clients",
    "end_to_end/test_javascript_client",
    "end_to_end/test_llama_cpp",
    "end_to_end/test_local_servers",
    "end_to_end/test_many_sessions",
    "end_to_end/test_mcp",
    "examples/test_openapi",
    "server/test_prometheus",
    "stores/test_postgres.",
    "stores/test_redis.",
    "stores/test_redis_c",
    "stores/test_redis_faults",
    "stores/test_redis_nodes",
    "test_workers",
    "tools/mcp/test_real_servers",
    "tools/mcp/test_toolset",
    "web/",
)
"""Files whose tests ``scripts/test --extended`` runs, and ``scripts/test`` does not."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of these files."""
    for item in items:
        if item.path.relative_to(ROOT / "tests").as_posix().startswith(EXTENDED):
            item.add_marker("extended")


def environment(**values: str) -> dict[str, str]:
    """Leave the developer's own settings out, and add some."""
    names = {name.upper() for name in Settings.model_fields}
    inherited = {name: value for name, value in os.environ.items() if name.upper() not in names}
    return {**inherited, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", **values}


Main: TypeAlias = Callable[..., tuple[int, str, str]]


@pytest.fixture
def conductor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Main]:
    """Run a command that ends by itself in this process, which saves a second; gives the same as `run`."""

    def run_here(*arguments: str, **values: str) -> tuple[int, str, str]:
        for name in os.environ.keys() - environment():
            monkeypatch.delenv(name)
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        try:
            code = main(arguments)
        except SystemExit as end:
            assert isinstance(end.code, int)
            code = end.code
        return code, *capfd.readouterr()

    monkeypatch.chdir(tmp_path)
    logging = structlog.get_config()
    yield run_here
    structlog.configure(**logging)
