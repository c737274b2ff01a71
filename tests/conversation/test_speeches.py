"""An interruption finds the speech that it concerns."""

from __future__ import annotations

import pytest

from conductor.conversation.speech import Speech, SpeechTracker
from conductor.stores.base import Amendment, AppendLog

WINDOW = 0.15


def speech(call_id: str, position: int = 1) -> Speech:
    return Speech(call_id, "t1", position, "The text.", "The text.")


def several(*call_ids: str) -> SpeechTracker:
    speeches = SpeechTracker(WINDOW)
    for call_id in call_ids:
        speeches.add(speech(call_id))
    return speeches


def interrupted(speeches: SpeechTracker, now: float) -> str | None:
    speech_found = speeches.interrupt(now)
    return None if speech_found is None else speech_found.call_id


def test_an_interruption_concerns_the_oldest_running_speech() -> None:
    speeches = several("a", "b", "c")
    speeches.over("a", 10.0)
    assert interrupted(speeches, 20.0) == "b"
    assert interrupted(speeches, 20.0) == "c"
    assert interrupted(speeches, 20.0) is None


@pytest.mark.parametrize(("after", "concerned"), [(0.0, "a"), (0.15, "a"), (0.151, None)])
def test_a_speech_can_be_interrupted_just_after_it_was_acknowledged(
    after: float, concerned: str | None
) -> None:
    speeches = several("a")
    speeches.over("a", 0.0)
    assert interrupted(speeches, after) == concerned


def test_a_second_acknowledgement_does_not_open_the_window_again() -> None:
    speeches = several("a")
    speeches.over("a", 10.0)
    speeches.over("a", 20.0)
    speeches.over("nobody's", 20.0)
    assert interrupted(speeches, 20.1) is None


def test_ended_speeches_are_forgotten_with_the_next_one() -> None:
    speeches = several("a", "b")
    speeches.over("a", 10.0)
    speeches.over("b", 10.0)
    speeches.add(speech("c"))
    assert interrupted(speeches, 10.0) == "c"
    assert interrupted(speeches, 10.0) is None


def test_an_amendment_has_the_position_of_its_message() -> None:
    (operation,) = SpeechTracker(WINDOW).amend(speech("a", position=7), "The", None)
    assert isinstance(operation, AppendLog)
    assert isinstance(operation.entry, Amendment)
    assert operation.entry.position == 7
    assert operation.entry.text.startswith("The [")
