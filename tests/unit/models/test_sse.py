"""Server-sent events are read from any pieces of a byte stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.plugins.models.sse import SSEError, SSEParser


def parse(stream: bytes, *cuts: int) -> list[bytes]:
    parser = SSEParser()
    edges = [0, *sorted(cuts), len(stream)]
    events = []
    for start, end in zip(edges, edges[1:], strict=False):
        events += parser.feed(stream[start:end])
    return events


STREAM = (
    "event: first\ndata: {}\n\n: a comment\n\n"
    "data:no space\n\nevent: none\n\nid: 7\nretry: 10\ndata: two\ndata: lines\n\n"
    "data:  a space and ünïcödé 😀\nevent: late\n\n"
).encode()
EVENTS = [b"{}", b"no space", b"two\nlines", " a space and ünïcödé 😀".encode()]


@pytest.mark.parametrize("end", [b"\r\n", b"\r", b"\n"])
def test_every_line_end_is_understood_at_every_cut(end: bytes) -> None:
    stream = STREAM.replace(b"\n", end)
    for cut in range(len(stream) + 1):
        assert parse(stream, cut) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=20), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_cuts_do_not_change_the_events(cuts: list[int], end: bytes) -> None:
    assert parse(STREAM.replace(b"\n", end), *cuts) == EVENTS


def test_an_event_is_given_as_soon_as_its_blank_line_is_there() -> None:
    parser = SSEParser()
    assert parser.feed(b"data: 1\n") == []
    assert parser.feed(b"\n") == [b"1"]
    assert parser.feed(b"data: 2\r\n\r") == [b"2"]
    assert parser.feed(b"\ndata: 3\r\n\r\n") == [b"3"]


def test_line_ends_may_change_and_the_halves_of_one_may_come_apart() -> None:
    first, second = b"1\n2", b"3"
    stream = b"data: 1\r\ndata: 2\r\n\rdata: 3\n\n"
    for cut in range(len(stream)):
        assert parse(stream, cut, cut, cut + 1) == [first, second]


def test_a_byte_order_mark_and_blank_lines_before_the_first_event_are_skipped() -> None:
    stream = b"\xef\xbb\xbf\n\n\ndata: 1\n\n"
    for cut in range(len(stream) + 1):
        assert parse(stream, cut) == [b"1"]
    assert parse(b"data: 1\n\n\xef\xbb\xbfdata: 2\n\n", 9) == [b"1"], "only at the beginning"
    assert parse(b"data: 1\n\ndata: 2\n") == [b"1"], "an event that the end cuts off is not given"


@pytest.mark.parametrize("piece", [b"x" * 60, b"data: x\n" * 10], ids=["one line", "many lines"])
def test_an_event_that_is_too_large_is_an_error(piece: bytes) -> None:
    parser = SSEParser(max_event_bytes=100)
    parser.feed(b"data: ")
    with pytest.raises(SSEError, match="100 bytes"):
        for _ in range(2):
            parser.feed(piece)


def test_many_small_events_are_not_too_large_together() -> None:
    parser = SSEParser(max_event_bytes=100)
    assert len(parser.feed(b"data: small\n\n" * 100)) == 100
