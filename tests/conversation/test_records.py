"""What records answer, and how commits are stored, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from conductor.conversation import records as r
from conductor.conversation.records import Commit, answers, decode, encode
from tests.conversation.build import CLAIM, NOW, STARTED, device, finished, fold, local, replied, result

REFUSED = result("c2", "permission_denied")

ANSWERS: list[tuple[str, Sequence[r.Record], list[tuple[str, Any]]]] = [
    ("nothing", [STARTED, r.StateShown("idle")], []),
    ("a result", [finished("c1")], [("c1", result("c1"))]),
    ("a call that was refused at once", [replied(device(), local("c2", result=REFUSED))], [("c2", REFUSED)]),
    (
        "the end of a turn with an open call and a question",
        [r.TurnEnded(reason="interrupted", results=(finished("c1"),), superseded=("q1",))],
        [("c1", result("c1")), ("q1", None)],
    ),
    (
        "a yes",
        [r.QuestionDecided(question_id="q1", call_id="c1", outcome="allowed", arguments="{}")],
        [("q1", "{}")],
    ),
    (
        "a yes to other arguments",
        [r.QuestionDecided(question_id="q1", call_id="c1", outcome="edited", arguments="[]")],
        [("q1", "[]")],
    ),
    (
        "a no",
        [r.QuestionDecided(question_id="q1", call_id="c1", outcome="denied", arguments="{}")],
        [("q1", None)],
    ),
    ("a speech that was cut", [r.SpeechCut("call_1", "Well.")], [("call_1", None)]),
    ("two records", [finished("c1"), finished("c2")], [("c1", result("c1")), ("c2", result("c2"))]),
]


@pytest.mark.parametrize(("records", "found"), [row[1:] for row in ANSWERS], ids=[row[0] for row in ANSWERS])
def test_records_answer_those_who_wait(records: Sequence[r.Record], found: list[tuple[str, Any]]) -> None:
    assert list(answers(records)) == found


CHANNELS = [
    ("words", r.QuestionDecided(question_id="q1", call_id="c1", outcome="allowed", text="yes"), "voice"),
    ("a tap", r.QuestionDecided(question_id="q1", call_id="c1", outcome="allowed"), "card"),
    (
        "a key of the backend",
        r.QuestionDecided(question_id="q1", call_id="c1", outcome="allowed", text="yes", decided_by="ops"),
        "ops",
    ),
]


@pytest.mark.parametrize(
    ("record", "channel"), [row[1:] for row in CHANNELS], ids=[row[0] for row in CHANNELS]
)
def test_a_decision_tells_where_it_came_from(record: r.QuestionDecided, channel: str) -> None:
    assert record.channel == channel


COMMITS: list[tuple[str, Commit, Commit]] = [
    ("nothing", Commit(), Commit()),
    ("records", *2 * (Commit(claim=CLAIM, at=NOW, records=(STARTED, finished("c1")), acked=("evt_1",)),)),
    ("a snapshot", *2 * (Commit(claim=CLAIM, at=NOW, state=fold(STARTED, replied(device()))),)),
    (
        "half a character",
        Commit(claim=CLAIM, at=NOW, records=(r.InputQueued("e1", "a\ud83d"),)),
        Commit(claim=CLAIM, at=NOW, records=(r.InputQueued("e1", "a?"),)),
    ),
    (
        "half a character in a snapshot",
        Commit(claim=CLAIM, at=NOW, state=fold(r.FieldSet("\ud83d", "\ude00"), r.StateShown("idle"))),
        Commit(claim=CLAIM, at=NOW, state=fold(r.FieldSet("?", "?"), r.StateShown("idle"))),
    ),
]


@pytest.mark.parametrize(("commit", "stored"), [row[1:] for row in COMMITS], ids=[row[0] for row in COMMITS])
def test_a_commit_is_read_as_it_was_stored(commit: Commit, stored: Commit) -> None:
    assert decode(encode(commit)) == stored
