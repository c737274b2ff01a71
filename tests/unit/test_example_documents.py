"""The client's documentation: its snippets are parts of the examples, and its names exist."""

from __future__ import annotations

import builtins
import re
from pathlib import Path

import pytest

import conductor.client
from conductor.client import Client, ClientLimits, Reconnect

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "clients" / "python.md").read_text(encoding="utf-8")
EXAMPLES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.py")}
# The first is a whole program, which another test runs.
_PROGRAM, *SNIPPETS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_there_are_snippets_and_examples() -> None:
    assert len(SNIPPETS) >= 11
    assert len(EXAMPLES) == 4


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_a_snippet_is_part_of_an_example(snippet: str) -> None:
    assert any(f"\n{snippet}" in example for example in EXAMPLES.values())


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_and_has_a_description(name: str) -> None:
    assert EXAMPLES[name].startswith('"""')
    assert EXAMPLES[name].count("\n") < 80
    assert name in TEXT


def test_names_in_the_text_exist() -> None:
    for field in re.findall(r"`ClientLimits\.(\w+)`", TEXT):
        assert field in ClientLimits.__dataclass_fields__
    for method in re.findall(r"`client\.(\w+)[`(]", TEXT):
        assert hasattr(Client, method)
    for name in re.findall(r"`([A-Z]\w+[a-z])`", TEXT):
        assert hasattr(conductor.client, name) or hasattr(builtins, name), name
    for field in ("first_s", "most_s", "jitter", "tries"):
        assert f"`{field}`" in TEXT
        assert field in Reconnect.__dataclass_fields__
