"""The outcomes of calls that did not run here, or not to their end."""

from __future__ import annotations

import json
from typing import Literal

import pytest

from conductor.events.client import ToolResultEvent
from conductor.tools.outcomes import (
    cancelled_outcome,
    denied,
    device_outcome,
    edits,
    interrupted_outcome,
    job_outcome,
    not_answered,
    returned,
)


def test_a_refusal_has_the_users_words_and_its_reason() -> None:
    outcome = denied("not now")
    assert (outcome.error_type, outcome.metadata.reason) == ("permission_denied", "denied")
    assert "The user said: 'not now'." in (outcome.error_message or "")
    assert "said" not in (denied(None).error_message or "")


@pytest.mark.parametrize("reason", ["expired", "unclear", "screen", "superseded", "interrupted"])
def test_a_question_without_an_answer_is_no_refusal(reason: str) -> None:
    outcome = not_answered(reason)  # type: ignore[arg-type]  # each of them is one
    assert (outcome.error_type, outcome.metadata.reason) == ("approval_timeout", reason)
    assert (outcome.error_message or "").endswith("Nothing was run.")


def test_the_model_reads_the_arguments_that_the_user_changed() -> None:
    note = edits({"same": 1, "other": 2, "gone": None}, {"same": 1, "other": 3, "new": None})
    assert json.loads(note.split(": ", 1)[1]) == {
        "gone": {"before": None, "after": None},
        "new": {"before": None, "after": None},
        "other": {"before": 2, "after": 3},
    }


def test_an_edit_that_changes_nothing_is_no_edit() -> None:
    assert edits({"same": 1, "n": 3}, {"n": 3.0, "same": 1}) == ""


def test_a_job_is_accepted_and_not_finished() -> None:
    outcome = job_outcome("job-7", 0.5)
    assert outcome.success and outcome.data == {"status": "accepted", "jobId": "job-7"}
    assert "not finished" in outcome.metadata.notes[0]


@pytest.mark.parametrize(
    ("effect", "success", "error_type", "says"),
    [
        ("none", False, "cancelled", "Nothing was done"),
        ("partial", False, "cancelled", "two of three"),
        ("complete", True, "none", "two of three"),
    ],
)
def test_a_cancelled_call_reports_its_effect(
    effect: Literal["none", "partial", "complete"], success: bool, error_type: str, says: str
) -> None:
    outcome = cancelled_outcome(effect, "two of three", 0.5)
    assert (outcome.success, outcome.error_type) == (success, error_type)
    assert says in outcome.content and ("Nothing was done" in outcome.content) == (effect == "none")


def test_the_devices_answer_is_not_parsed() -> None:
    outcome = device_outcome(ToolResultEvent("call_1", '{"state":"done"}'), 0.25)
    assert outcome.success and outcome.data == '{"state":"done"}'
    assert (outcome.metadata.execution_time_ms, outcome.metadata.data_size_bytes) == (250, 16)


def test_an_error_of_the_device_wins_even_if_it_is_empty() -> None:
    outcome = device_outcome(ToolResultEvent("call_1", "x", ""), 0.0)
    assert (outcome.success, outcome.error_type, outcome.error_message) == (False, "tool_error", "")
    assert outcome.data is None and outcome.metadata.reason == "device_error"


@pytest.mark.parametrize(
    ("effect", "was_sent", "error_type", "says"),
    [
        ("read", False, "cancelled", "Nothing was run"),
        ("write", False, "cancelled", "Nothing was run"),
        ("read", True, "cancelled", "before the result came"),
        ("write", True, "unknown", "may have happened"),
    ],
)
def test_a_call_of_an_ended_turn_reports_its_effect(
    effect: str, was_sent: bool, error_type: str, says: str
) -> None:
    outcome = interrupted_outcome(effect, was_sent=was_sent, reason="turn_timeout")
    assert (outcome.success, outcome.error_type, outcome.metadata.reason) == (
        False,
        error_type,
        "turn_timeout",
    )
    assert says in (outcome.error_message or "")


def test_values_that_come_one_by_one_are_given_once() -> None:
    outcome = returned((number for number in (1, 2)), "write")
    assert (outcome.data, outcome.metadata.notes) == ([1, 2], ())
    assert returned((number for number in (float("nan"),)), "write").metadata.notes != ()
