"""The tools pass the contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from house_tools import from_settings

from conductor.settings import load_settings
from conductor.testing.toolset import MakeToolset, ToolsetContract


class TestHouse(ToolsetContract):
    """The contract of toolsets."""

    @pytest.fixture
    def make(self, monkeypatch: pytest.MonkeyPatch) -> MakeToolset:
        monkeypatch.setenv("HOUSE_KEY", "key-of-the-house")
        return lambda: from_settings(load_settings(None))

    @pytest.fixture
    def calls(self) -> Mapping[str, Mapping[str, Any]]:
        return {"house.time": {}, "house.open_door": {"door": "front"}}
