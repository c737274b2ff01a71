"""What tests of the commands share: a folder without settings, and no settings of the developer's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from conductor.settings import Settings


@pytest.fixture(autouse=True)
def no_settings_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the developer's own environment and .env out of the tests."""
    for name in Settings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """Undo what a command does to the process's log: others look at theirs."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)
