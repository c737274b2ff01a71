"""Fixtures of the commands: a folder and an environment without settings; commands in this process."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest
import structlog

from conductor.cli import main
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


class Terminal(io.StringIO):
    """The input or the output of a person at a terminal."""

    def isatty(self) -> bool:
        return True


def run(*arguments: str, answers: str | None = None, code: int = 0) -> str:
    """Run a command that ends with this code; return its output. ``answers`` are typed at a terminal."""
    stdin = io.StringIO() if answers is None else Terminal(answers)
    with redirect_stdout(io.StringIO()) as out, patch.object(sys, "stdin", stdin):
        assert main(arguments) == code, out.getvalue()
    return out.getvalue()


def mistake(*arguments: str, code: int = 2) -> str:
    """Run a command that ends with one sentence; return the sentence."""
    with redirect_stderr(io.StringIO()) as err:
        assert run(*arguments, code=code) == ""
    sentence = err.getvalue().removeprefix("conductor: ").removesuffix("\n")
    assert "\n" not in sentence and sentence.endswith((".", '"'))
    return sentence
