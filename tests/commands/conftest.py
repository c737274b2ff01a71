"""Fixtures of the commands: a folder and an environment without settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from conductor.settings import Settings


@pytest.fixture(autouse=True)
def remove_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the developer's own settings."""
    for name in Settings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def restore_logs() -> Iterator[None]:
    """Restore the logging configuration."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)
