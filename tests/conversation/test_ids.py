"""Ids are made of the claim, the number of the record, and a slot: one thing has one id in every process."""

from __future__ import annotations

import pytest

from conductor.conversation import records as r
from conductor.conversation.ids import nonce, place_of, reply_id, segments_id, slot_id, speech_id, ui_call_id
from conductor.conversation.state import Turn
from tests.conversation.build import fold

# The claim of the tables is "token.1:claim"; this is its second record.
STATE = fold(r.StateShown("idle"))

IDS = [
    ("a slot", slot_id(STATE), "claim_800"),
    ("another slot", slot_id(STATE, 5), "claim_805"),
    ("a UI call", ui_call_id(STATE, "message"), "call_claim_985"),
    ("a speech", speech_id(STATE), "call_claim_987"),
    ("a speech that is no reply", reply_id(STATE), "speech_claim_800"),
    (
        "a reply at a place of the log",
        segments_id(Turn(id="turn_claim_800", cause="news", left_ms=9), 26),
        "speech_claim_800_1a",
    ),
]


@pytest.mark.parametrize(("actual", "expected"), [row[1:] for row in IDS], ids=[row[0] for row in IDS])
def test_an_id_is_made_of_claim_record_and_slot(actual: str, expected: str) -> None:
    assert actual == expected


@pytest.mark.parametrize(
    ("claim", "part"),
    [("token.1:claim", "claim"), ("1.b", "b"), ("a", "a"), ("x:0123456789abcdefghij", "0123456789abcdef")],
)
def test_an_id_holds_the_last_part_of_the_claim(claim: str, part: str) -> None:
    assert nonce(claim) == part


@pytest.mark.parametrize(
    ("event_id", "place"),
    [
        ("evt_claim_805", ("evt_claim", (0x805,))),
        ("evt_claim_805.1f", ("evt_claim", (0x805, 0x1F))),
        ("evt_claim_no", ("", ())),
        ("", ("", ())),
    ],
)
def test_the_place_of_an_event_is_read_from_its_id(event_id: str, place: tuple[str, tuple[int, ...]]) -> None:
    assert place_of(event_id) == place
