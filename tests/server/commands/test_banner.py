"""The banner's address and Python command."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from conductor.commands.banner import python_command, server_address
from conductor.settings import Settings


@pytest.mark.parametrize(
    ("host", "address"),
    [("0.0.0.0", "127.0.0.1:81"), ("::", "[::1]:81"), ("::1", "[::1]:81"), ("localhost", "127.0.0.1:81")],
)
def test_a_server_on_all_addresses_has_a_local_address(host: str, address: str) -> None:
    assert server_address(Settings(host=host, port=81)) == address


def test_the_python_command_is_relative_to_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    monkeypatch.chdir(tmp_path)
    assert python_command() == ".venv/bin/python"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert python_command() == sys.executable
