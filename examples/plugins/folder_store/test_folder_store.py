"""The store passes the contract."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from folder_store import from_url

from conductor.testing.store import MakeStore, StoreContract


class TestFolder(StoreContract):
    """The contract of stores."""

    @pytest.fixture
    def make(self, tmp_path: Path) -> MakeStore:
        numbers = count()
        return lambda options: from_url(f"folder://{tmp_path}/{next(numbers)}", options)
