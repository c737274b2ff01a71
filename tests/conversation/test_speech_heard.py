"""The history of an interrupted speech."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.conversation.phrases import (
    CHARS_PER_SECOND,
    CUT_HERE,
    CUT_SOMEWHERE,
    HEARD_NOTHING,
    heard_text,
)
from conductor.conversation.state import Speech

SPOKEN = "The lamp is on and the door is locked."


def speech(*actions: str, text: str = f"**{SPOKEN}**", voice_text: str = SPOKEN) -> Speech:
    return Speech("c1", "t1", voice_text, text, actions=actions)


def heard_of(cut: Speech, spoken_text: str | None, played_ms: float | None) -> str:
    return heard_text(cut, spoken_text, played_ms, finished=False)


def test_the_clients_spoken_text_has_priority() -> None:
    assert heard_of(speech(), "The lamp is", 9_999_999) == f"The lamp is {CUT_HERE}"


@pytest.mark.parametrize("blank", ["", "  \n"])
def test_nothing_spoken_is_nothing_heard(blank: str) -> None:
    assert heard_of(speech(), blank, None) == HEARD_NOTHING


def test_a_client_cannot_lengthen_the_history() -> None:
    assert heard_of(speech(), "x" * 5_000, None) == f"{'x' * len(SPOKEN)} {CUT_HERE}"


def test_without_information_the_whole_text_is_kept_and_marked() -> None:
    assert heard_of(speech(), None, None) == f"**{SPOKEN}** {CUT_SOMEWHERE}"


def test_completed_actions_are_named_if_nothing_was_heard() -> None:
    text = heard_of(speech("lamp.on", "door.lock"), "", None)
    assert text.startswith(HEARD_NOTHING)
    assert "lamp.on, door.lock" in text


@given(st.text(), st.floats(min_value=0, max_value=1e12))
def test_the_time_played_gives_whole_words(voice_text: str, played_ms: float) -> None:
    text = heard_of(speech(text=voice_text, voice_text=voice_text), None, played_ms)
    if text == HEARD_NOTHING:
        return
    assert text.endswith(f" {CUT_HERE}")
    text_heard = text.removesuffix(f" {CUT_HERE}")
    assert voice_text.startswith(text_heard)
    assert len(text_heard) <= max(0, played_ms / 1000 * CHARS_PER_SECOND)
    assert text_heard == voice_text or voice_text[len(text_heard)] == " "


@given(st.floats(min_value=0, max_value=1e4), st.floats(min_value=0, max_value=1e4))
def test_the_longer_it_played_the_more_was_heard(first: float, second: float) -> None:
    shorter, longer = (heard_of(speech(), None, ms) for ms in sorted((first, second)))
    if shorter != HEARD_NOTHING:
        assert longer.removesuffix(CUT_HERE).startswith(shorter.removesuffix(f" {CUT_HERE}"))


def test_a_completed_speech_is_heard_completely() -> None:
    assert heard_of(speech(), None, 60_000) == f"{SPOKEN} {CUT_HERE}"
