"""Stored approvals, and the outcomes of undecided and denied calls."""

from __future__ import annotations

import json

import pytest

from conductor.tools.approvals import (
    Approval,
    decode_approvals,
    denied,
    edits,
    encode_approvals,
    not_answered,
)

QUESTION = Approval(
    approval_id="appr-1",
    batch_id="batch-1",
    call_id="c-1",
    turn_id="turn-1",
    tool="photos.delete",
    arguments={"count": 3},
    digest="d",
    risk="high",
    reasons=("It cannot be undone.",),
    scopes=("once",),
    expires_ms=1_800_000_000_007,
    cautions=("untrusted",),
)


def test_a_question_is_read_as_it_was_kept() -> None:
    assert decode_approvals(encode_approvals([QUESTION, QUESTION])) == (QUESTION, QUESTION)
    assert encode_approvals([]) == "" and decode_approvals("") == ()


def test_a_question_that_an_earlier_version_kept_is_read() -> None:
    stored = json.loads(encode_approvals([QUESTION]))
    for added in ("presentations", "unclear", "fingerprint", "cautions"):
        del stored[0][added]
    (question,) = decode_approvals(json.dumps(stored))
    assert (question.fingerprint, question.cautions) == ("", ())


def test_its_end_is_written_as_the_wire_has_it() -> None:
    assert QUESTION.expires_at == "2027-01-15T08:00:00.007Z"


def test_a_refusal_has_the_users_words_and_its_reason() -> None:
    outcome = denied("not now", "definition_changed")
    assert (outcome.error_type, outcome.metadata.reason) == ("permission_denied", "definition_changed")
    assert "The user said: 'not now'." in (outcome.error_message or "")
    assert denied(None).metadata.reason == "denied" and "said" not in (denied(None).error_message or "")


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
