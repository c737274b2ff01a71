"""Tests that start programs and open ports."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def collect_leftovers() -> Iterator[None]:
    """Report in each test what it left."""
    yield
    gc.collect()
