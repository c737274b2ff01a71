"""A reply that its service or its model does not end is ended."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from conductor.models.base import Finished, ModelRequest, TextDelta, Usage
from conductor.models.bounds import LEAST_MOST_CHARS, MOST_CHARS_PER_TOKEN, Phrases, bounded
from tests.cpu import least_cpu_s
from tests.models import ScriptedProvider
from tests.unit.models.replies import SPAWN, collect, finished_of, text_of


def repeats_after(text: str, size: int) -> int | None:
    """Give the characters after which a text is found to repeat itself; None if it is not."""
    phrases = Phrases()
    for at in range(0, len(text), size):
        if phrases.repeat(text[at : at + size]):
            return min(at + size, len(text))
    return None


PHRASE = "I am sorry about that. "


@pytest.mark.parametrize("size", [1, 3, 16, 50])
@pytest.mark.parametrize(
    "phrase",
    [
        PHRASE,
        "Yes. ",
        "Ja!\n",
        "よろしくお願いします。",
        "and so on and on ",
        "".join(f"w{number} " for number in range(45)),
    ],
)
def test_twenty_equal_phrases_are_a_repetition(phrase: str, size: int) -> None:
    found = repeats_after("Well, let me see. " + phrase * 60, size)
    assert found is not None and 20 * len(phrase) <= found <= 18 + 22 * len(phrase) + 2 * size + 16


@pytest.mark.parametrize(
    "text",
    [
        PHRASE * 19,
        "ha " * 40,
        "-" * 400,
        "| 0 | 1 |\n" * 40,
        "0" * 400,
        "".join(f"Line {number} of them. " for number in range(60)),
        "" * 40,
    ],
)
def test_other_texts_are_none(text: str) -> None:
    assert repeats_after(text, 1) is None


def test_watching_a_long_text_takes_little_time() -> None:
    text = "".join(f"Line {number} of them. " for number in range(2_000))
    assert least_cpu_s(lambda: repeats_after(text, 1), 0.2) < 1.0


@pytest.mark.parametrize(("max_tokens", "most"), [(1, LEAST_MOST_CHARS), (1000, 1000 * MOST_CHARS_PER_TOKEN)])
async def test_a_reply_beyond_the_tokens_that_were_asked_for_is_ended(max_tokens: int, most: int) -> None:
    inner = ScriptedProvider([[TextDelta("0123456789")] * 10_000])
    request = ModelRequest("x" * 350, [], (SPAWN,))
    async with aclosing(bounded(inner.stream(request), request, max_tokens)) as events:
        got = [event async for event in events]
    assert len(text_of(got)) == most + 10
    assert finished_of(got) == Finished("max_tokens", Usage(100, int((most + 10) / 3.5)))
    assert inner.record(0).closed_early


async def test_a_reply_within_its_limit_passes() -> None:
    inner = ScriptedProvider([[TextDelta("Hello."), Finished("end_turn", Usage(1, 2))]])
    expected = await collect(ScriptedProvider([[TextDelta("Hello."), Finished("end_turn", Usage(1, 2))]]))
    request = ModelRequest("", [])
    assert [event async for event in bounded(inner.stream(request), request, 16)] == expected
