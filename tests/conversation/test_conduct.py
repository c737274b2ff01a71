"""The settings that decide, as a table: what of the limits each field of `Conduct` follows."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from conductor.conversation.conduct import Conduct
from tests.session.helpers import make_services

# A limit, its value, the field that follows it, and the field's value.
FOLLOWS: list[tuple[str, float, str, int]] = [
    ("turn_timeout", 9.5, "turn_ms", 9_500),
    ("approval_timeout", 61.0, "question_ms", 61_000),
    ("heard_window", 0.3, "window_ms", 300),
    ("hold_unfinished", 1.2, "hold_ms", 1_200),
    ("floor_timeout", 4.0, "floor_ms", 4_000),
    ("max_turns", 7, "max_turns", 7),
    ("max_tool_rounds", 3, "max_tool_rounds", 3),
    ("max_calls_per_turn", 11, "max_calls_per_turn", 11),
]


@pytest.mark.parametrize(("limit", "given", "field", "value"), FOLLOWS, ids=[row[0] for row in FOLLOWS])
def test_a_field_follows_its_limit_and_no_other_does(
    limit: str, given: float, field: str, value: int
) -> None:
    own: dict[str, Any] = {limit: given}
    before, after = make_services().conduct, make_services(**own).conduct
    assert {f.name for f in fields(Conduct) if getattr(before, f.name) != getattr(after, f.name)} == {field}
    assert getattr(after, field) == value


def test_words_interrupt_a_turn_unless_they_wait_for_it() -> None:
    assert [make_services(mode=mode).conduct.cancels for mode in ("cancel", "queue")] == [True, False]
