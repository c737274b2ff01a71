"""Tests of folds: a turn's later request takes only the messages that are new."""

from __future__ import annotations

from conductor.messages import Message, Note, UserMessage
from conductor.models.base import Kept, ModelRequest, folded

ONE, TWO, THREE = UserMessage("One."), Note("Two."), UserMessage("Three.")


class Taken:
    """Notes the messages that it takes."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def add(self, message: Message) -> None:
        if message == Note("Bad."):
            raise ValueError
        self.messages.append(message)


def fold(kept: Kept, *messages: Message, key: str = "") -> Taken:
    return folded(ModelRequest("", messages, kept=kept), key, Taken)


def test_a_history_that_has_grown_is_folded_from_where_it_ended() -> None:
    kept: Kept = {}
    first = fold(kept, ONE)
    assert fold(kept, ONE, TWO, THREE) is first
    assert first.messages == [ONE, TWO, THREE]
    assert fold(kept, ONE, TWO, THREE) is first
    assert first.messages == [ONE, TWO, THREE]


def test_another_history_key_or_turn_is_folded_from_its_beginning() -> None:
    kept: Kept = {}
    first = fold(kept, ONE, TWO)
    assert fold(kept, ONE, TWO, key="other").messages == [ONE, TWO]
    assert fold({}, ONE, TWO) is not first
    shorter = fold(kept, ONE)
    assert shorter is not first and shorter.messages == [ONE]
    equal = fold(kept, UserMessage("One."), TWO)
    assert equal is not shorter and equal.messages == [ONE, TWO]


def test_a_fold_that_failed_is_not_used_again() -> None:
    kept: Kept = {}
    first = fold(kept, ONE)
    try:
        fold(kept, ONE, TWO, Note("Bad."))
    except ValueError:
        again = fold(kept, ONE, TWO)
    assert again is not first and again.messages == [ONE, TWO]
