"""Definitions and fingerprints of tools, and outcomes as the model reads them."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.tools.base import ToolSpec, canonical_json
from conductor.tools.outcomes import ToolOutcome, failed, succeeded, truncate

SCHEMA = {"type": "object", "properties": {"id": {"type": "string"}, "n": {"type": "integer"}}}
SPEC = ToolSpec(name="agent.status", description="Tell an agent's state.", input_schema=SCHEMA)


def _turned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _turned(value[key]) for key in reversed(value)}
    return [_turned(item) for item in value] if isinstance(value, list) else value


# -- canonical JSON


def test_canonical_json_has_sorted_keys_no_spaces_and_utf8() -> None:
    assert (
        canonical_json({"b": [1, {"d": 1, "c": None}], "a": "ü"})
        == '{"a":"ü","b":[1,{"c":null,"d":1}]}'.encode()
    )


# -- definitions


def test_a_definition_has_the_fields_for_the_model() -> None:
    assert SPEC.definition.name == "agent.status"
    assert SPEC.definition.description == "Tell an agent's state."
    assert dict(SPEC.definition.input_schema)["properties"].keys() == {"id", "n"}
    assert SPEC.definition is SPEC.definition, "it is made once"


def test_the_fingerprint_is_the_same_for_the_same_tool() -> None:
    turned = ToolSpec(name="agent.status", description="Tell an agent's state.", input_schema=_turned(SCHEMA))
    assert turned.fingerprint == SPEC.fingerprint
    assert len(SPEC.fingerprint) == 64 and int(SPEC.fingerprint, 16)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "agent.state"},
        {"description": "Delete everything."},
        {"input_schema": {"type": "object"}},
        {"source": "mcp:other"},
        {"risk": "high"},
        {"effect": "read"},
        {"title": "Look up"},
        {"spoken": "look up {id}"},
    ],
)
def test_a_changed_tool_has_a_new_fingerprint(change: dict[str, Any]) -> None:
    assert replace(SPEC, **change).fingerprint != SPEC.fingerprint


# -- outcomes


def content(outcome: ToolOutcome) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(outcome.content)
    return decoded


def test_a_success_reads_like_this() -> None:
    before = time.time_ns() // 1_000_000
    read = content(succeeded({"state": "done"}, took_s=0.0126, notes=["id: 7 was read as '7'"]))
    stamp = read["metadata"].pop("timestamp")
    assert before <= stamp <= time.time_ns() // 1_000_000
    assert read == {
        "success": True,
        "data": {"state": "done"},
        "error_message": None,
        "error_type": "none",
        "metadata": {"execution_time_ms": 13, "data_size_bytes": 16, "notes": ["id: 7 was read as '7'"]},
    }


def test_a_failure_reads_like_this() -> None:
    read = content(failed("unknown", "No result came.", reason="tool_result_timeout", took_s=1.5))
    del read["metadata"]["timestamp"]
    assert read == {
        "success": False,
        "data": None,
        "error_message": "No result came.",
        "error_type": "unknown",
        "metadata": {"execution_time_ms": 1500, "data_size_bytes": 0, "reason": "tool_result_timeout"},
    }


@pytest.mark.parametrize(
    ("data", "size"), [("", 0), ("abc", 3), ("日本", 6), (None, 4), ({"a": 1}, 7), ([1, 2], 5), (7, 1)]
)
def test_the_size_is_counted_in_bytes(data: Any, size: int) -> None:
    assert succeeded(data).metadata.data_size_bytes == size


# -- truncation


def test_half_a_surrogate_pair_is_replaced_in_a_shortened_text() -> None:
    assert truncate("\ud800" * 100, 60).startswith("?")


@given(st.text(max_size=300), st.integers(60, 400))
def test_a_shortened_text_keeps_its_beginning_and_counts_the_missing_bytes(text: str, limit: int) -> None:
    text *= 5
    shortened = truncate(text, limit)
    size = len(text.encode())
    if size <= limit:
        assert shortened == text
        return
    assert len(shortened.encode()) <= limit
    match = re.search(r"\n\[shortened: ([\d,]+) of ([\d,]+) bytes are missing\]\Z", shortened)
    assert match is not None
    beginning = shortened[: match.start()]
    assert text.startswith(beginning)
    assert int(match[1].replace(",", "")) == size - len(beginning.encode())
    assert int(match[2].replace(",", "")) == size
    assert len(beginning.encode()) > limit - 70
