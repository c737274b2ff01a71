"""What all tests share: how generated ones run, and the command line in the tests' own process."""

from __future__ import annotations

import os
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

ROOT = Path(__file__).resolve().parent.parent


def environment(**values: str) -> dict[str, str]:
    """Leave the developer's own settings out, and add some."""
    names = {name.upper() for name in Settings.model_fields}
    kept = {name: value for name, value in os.environ.items() if name.upper() not in names}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", **values}


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
