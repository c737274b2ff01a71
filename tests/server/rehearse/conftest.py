"""A fixture that plays a rehearsal in this process."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from conductor.plugins.models import demo
from tests.conftest import Main

Rehearse: TypeAlias = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def quicken_demo_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pause after each word."""
    monkeypatch.setattr(demo, "PACE_S", 0.005)


@pytest.fixture
def rehearse(conductor: Main, tmp_path: Path) -> Rehearse:
    """Write a file and rehearse it; returns the exit code, the output and the errors."""

    def write_and_run(text: str, *options: str, **values: str) -> tuple[int, str, str]:
        (tmp_path / "one.yaml").write_text(textwrap.dedent(text), encoding="utf-8")
        return conductor("rehearse", "run", "one.yaml", *options, **values)

    return write_and_run
