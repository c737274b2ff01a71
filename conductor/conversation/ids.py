"""Ids of events, calls and speeches, made of the claim and the record's number.

Each thing that a record can show has its own slot, in the order of the wire: so an id always means the
same event, and ids of one claim are in the order of sending.
"""

from __future__ import annotations

from functools import lru_cache

from conductor.conversation.state import Conversation, Turn

_SLOT_BITS = 10
# In the order of the wire within a record. A group has 128 slots: a round has at most 100 calls.
SLOTS = {
    "cancel": 0,
    "resolved": 128,
    "results": 256,
    "opening": 384,
    "user": 385,  # and the resolved question
    "error": 387,
    "final": 388,
    "message": 389,
    "speaking": 390,
    "speak": 391,
    "thinking": 392,
    "idle": 393,
    "resume": 394,
    "state": 395,
    "late": 396,
    "hint": 397,
    "calls": 512,  # two for each: the call, and the news that it started
    "cards": 768,
    "cards_idle": 895,
    "ended": 896,
}


@lru_cache
def nonce(claim: str) -> str:
    """Return the part of a claim's token that its ids carry."""
    return claim.replace(".", ":").rpartition(":")[2][:16]


def slot_id(state: Conversation, slot: int = 0) -> str:
    """Name a slot of the record that is being applied."""
    return f"{nonce(state.claim)}_{state.record_count << _SLOT_BITS | slot:x}"


def ui_call_id(state: Conversation, slot: str) -> str:
    """Make the call id of a UI call of this record."""
    return f"call_{slot_id(state, SLOTS[slot])}"


def speech_id(state: Conversation) -> str:
    """Make the call id of this record's ``tts.speak``."""
    return ui_call_id(state, "speak")


def segments_id(turn: Turn, position: int) -> str:
    """Name the reply that a turn's model writes, which is to be at a position of the log."""
    return f"speech_{turn.id.removeprefix('turn_')}_{position:x}"


def reply_id(state: Conversation) -> str:
    """Name a speech of this record that is no reply of the model."""
    return f"speech_{slot_id(state)}"


def place_of(event_id: str) -> tuple[str, tuple[int, ...]]:
    """Read the claim and the place among its events from an event's id."""
    claim, _, numbers = event_id.rpartition("_")
    try:
        return claim, tuple(int(number, 16) for number in numbers.split("."))
    except ValueError:
        return "", ()
