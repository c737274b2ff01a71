"""The files that docs/tools.md shows are read as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conductor.settings import load_settings
from conductor.tools.http_tools import HttpToolset, load_http_tools

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_http_tools_of_the_documents_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEATHER_KEY", "key")
    (block,) = re.findall(r"```toml\n(.*?)```", (DOCS / "tools.md").read_text(), re.S)
    path = tmp_path / "tools.toml"
    path.write_text(block)
    tools = load_http_tools(load_settings(None, http_tools_file=path)).tools
    specs = {spec.name: spec for spec in HttpToolset(tools).specs()}
    assert list(specs) == ["weather.today", "lights.set"]
    assert specs["lights.set"].spoken == "set the lights in the {room} to {level} percent"
