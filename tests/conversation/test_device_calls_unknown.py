"""Calls that may have happened: how long they are remembered, and that each is settled by itself."""

from __future__ import annotations

from conductor.conversation.device_calls import Unknowns


def test_an_identical_call_may_have_happened_until_its_time_is_over() -> None:
    unknowns = Unknowns(8, 600.0)
    unknowns.add("c1", "digest of one", now=10.0)
    assert unknowns.holds("digest of one", now=609.9)
    assert not unknowns.holds("digest of another", now=609.9)
    assert not unknowns.holds("digest of one", now=610.0)


def test_of_two_identical_calls_both_must_be_settled() -> None:
    unknowns = Unknowns(8, 600.0)
    unknowns.add("c1", "digest", now=0.0)
    unknowns.add("c2", "digest", now=0.0)
    unknowns.settle("c1")
    assert unknowns.holds("digest", now=1.0)
    unknowns.settle("c2")
    unknowns.settle("c2")
    unknowns.settle("nobody's")
    assert not unknowns.holds("digest", now=1.0)


def test_the_oldest_gives_way() -> None:
    unknowns = Unknowns(3, 600.0)
    for number in range(5):
        unknowns.add(f"c{number}", f"digest {number}", now=0.0)
    assert [unknowns.holds(f"digest {n}", now=1.0) for n in range(5)] == [False, False, True, True, True]
