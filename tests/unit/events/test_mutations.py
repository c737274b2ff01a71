"""However a valid event is damaged, the codec accepts it or refuses it by name; nothing else comes out."""

from __future__ import annotations

import json
import random
import re
from collections import Counter

import pytest

from conductor.events.codec import Inbound, InvalidFrame, decode_event
from tests.unit.events.mutations import Mutator, valid_events

COUNT = 2_000
NAMED = re.compile(r"[a-z0-9_]+(: .*|:\d+)?|This server speaks protocol version 1\.", re.DOTALL)
"""A refusal's message: a name, and the reason."""


@pytest.fixture
def seed() -> int:
    """Choose a seed for this run; failures print it."""
    return random.SystemRandom().randrange(2**32)


def outcome(data: bytes) -> str:
    """Decode a frame; return the outcome in a word."""
    try:
        inbound = decode_event(data)
    except InvalidFrame as error:
        assert NAMED.fullmatch(str(error)), str(error)
        assert len(str(error)) < 500
        assert error.event_id is None or 0 < len(error.event_id) <= 128
        return str(error).partition(":")[0]
    assert type(inbound) is Inbound
    assert inbound.size == len(data)
    return "accepted" if inbound.event is not None else "unknown type"


def test_every_sample_is_valid_before_it_is_damaged() -> None:
    for event in valid_events():
        assert outcome(json.dumps(event).encode()) in ("accepted", "unknown type")


def test_a_damaged_event_is_accepted_or_refused_by_name(seed: int) -> None:
    mutator = Mutator(seed, largest=70_000)
    outcomes: Counter[str] = Counter()
    for number in range(COUNT):
        data = mutator.next()
        try:
            outcomes[outcome(data)] += 1
        except Exception as error:
            error.add_note(f"mutant {number} of seed {seed}: {data[:2_000]!r}")
            raise
    # The damage reaches all of the codec, not only its parser.
    assert outcomes["accepted"] > COUNT / 50, f"seed {seed}: {outcomes}"
    expected = {"invalid_json", "invalid_utf8", "too_deep", "too_many_values", "invalid_payload"}
    expected |= {"duplicate_key", "invalid_session_id", "event_too_large", "invalid_id", "missing_id"}
    assert expected <= set(outcomes), f"seed {seed}: {outcomes}"
