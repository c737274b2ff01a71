"""Live text: the first words at once, the rest no more often than the interval, nothing after the end."""

from __future__ import annotations

import asyncio
import random

import pytest

from conductor.conversation.speech import PartialThrottle, ReplyBuffer
from tests.conversation.helpers import later


class Shown:
    """The partials and their times."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.times: list[float] = []

    def __call__(self, text: str) -> None:
        self.texts.append(text)
        self.times.append(asyncio.get_running_loop().time())


def test_a_reply_is_the_sum_of_its_parts() -> None:
    reply = ReplyBuffer()
    assert reply.text == ""
    reply.add("a")
    assert reply.text == "a"
    reply.add("b")
    reply.add("")
    reply.add("c")
    assert (reply.text, reply.text) == ("abc", "abc")


@pytest.mark.parametrize("seed", range(10))
async def test_partials_are_cumulative_complete_and_not_too_many(seed: int) -> None:
    rng, screen = random.Random(seed), Shown()
    partials, reply = PartialThrottle(screen, 0.05), ReplyBuffer()
    start = asyncio.get_running_loop().time()
    for _ in range(200):
        reply.add(rng.choice(("word ", "a", " ", "")))
        partials.show(reply)
        await later(rng.choice((0.0, 0.001, 0.02, 0.2)))
    await later(1)
    assert screen.texts[-1] == reply.text.lstrip()
    assert all(b.startswith(a) for a, b in zip(screen.texts, screen.texts[1:], strict=False))
    gaps = [b - a for a, b in zip(screen.times, screen.times[1:], strict=False)]
    assert min(gaps) >= 0.05 - 1e-9
    assert screen.times[0] - start < 0.5


async def test_the_first_text_is_sent_at_once_without_blanks() -> None:
    screen = Shown()
    partials, reply = PartialThrottle(screen, 10.0), ReplyBuffer()
    reply.add(" \n")
    partials.show(reply)
    assert screen.texts == []
    reply.add("Hi")
    partials.show(reply)
    assert screen.texts == ["Hi"]
    partials.stop()


async def test_no_partial_is_sent_after_the_end() -> None:
    screen = Shown()
    partials, reply = PartialThrottle(screen, 0.05), ReplyBuffer()
    for word in ("one ", "two ", "three"):
        reply.add(word)
        partials.show(reply)
    partials.stop()
    partials.stop()
    await later(1)
    assert screen.texts == ["one "]
    following = ReplyBuffer()
    following.add("Next")
    partials.show(following)
    assert screen.texts == ["one ", "Next"]


async def test_the_next_reply_is_sent_at_once() -> None:
    screen = Shown()
    partials = PartialThrottle(screen, 0.05)
    for words in (("one ", "two "), ("Next", "!")):
        reply = ReplyBuffer()
        for word in words:
            reply.add(word)
            partials.show(reply)
        partials.stop()
    assert screen.texts == ["one ", "Next"]


async def test_without_an_interval_every_step_is_shown() -> None:
    screen = Shown()
    partials, reply = PartialThrottle(screen, 0.0), ReplyBuffer()
    for word in "abc":
        reply.add(word)
        partials.show(reply)
    assert screen.texts == ["a", "ab", "abc"]
