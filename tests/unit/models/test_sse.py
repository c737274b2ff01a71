"""Server-sent events are read from any pieces of a byte stream."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conductor.errors import ModelError
from conductor.plugins.models.decoding import SSEParser

STREAM = (
    "event: first\ndata: {}\n\n: a comment\n\n"
    "data:no space\n\n\nevent: none\n\ndata: \n\nid: 7\nretry: 10\ndata: two\ndata: lines\n\n"
    "data: ünïcödé 😀\nevent: late\n\ndata: an event that the end cuts off is not given\n"
).encode()
EVENTS = [b"{}", b"no space", b"two\nlines", "ünïcödé 😀".encode()]


@given(
    st.lists(st.integers(0, len(STREAM)), max_size=20),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
)
@example([113, 113], b"\r\n", b"")  # an empty piece between CR and LF
def test_cuts_do_not_change_the_events(cuts: list[int], end: bytes, mark: bytes) -> None:
    parser, stream = SSEParser(), mark + STREAM.replace(b"\n", end)
    edges = [0, *sorted(cuts), len(stream)]
    pieces = (stream[start:stop] for start, stop in zip(edges, edges[1:], strict=False))
    assert [event for piece in pieces for event in parser.feed(piece)] == EVENTS


def test_an_event_is_given_as_soon_as_its_blank_line_is_there() -> None:
    parser = SSEParser()
    assert [parser.feed(piece) for piece in (b"data: 1\n", b"\n", b"data: 2\r\n\r", b"\n")] == [
        [], [b"1"], [b"2"], [],
    ]  # fmt: skip


@pytest.mark.parametrize("piece", [b"x" * 60, b"data: x\n" * 10], ids=["one line", "many lines"])
def test_only_a_single_event_may_be_too_large(piece: bytes) -> None:
    parser = SSEParser(max_event_bytes=100)
    assert len(parser.feed(b"data: small\n\n" * 100)) == 100
    parser.feed(b"data: ")
    with pytest.raises(ModelError, match="could not be decoded"):
        for _ in range(2):
            parser.feed(piece)
