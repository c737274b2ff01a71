"""Redis commands are written, and replies read, however the bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.stores.redis_protocol import ProtocolError, Reply, ReplyError, ReplyReader, write_command

replies = st.recursive(
    st.one_of(
        st.none(), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=20), st.just(b"\r\n$3\r\n*1\r\n")
    ),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


def written(reply: Reply) -> bytes:
    """Write a reply as a server does."""
    match reply:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % reply
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(reply), reply)
        case list():
            return b"*%d\r\n%b" % (len(reply), b"".join(map(written, reply)))
    raise AssertionError(reply)


@given(st.lists(replies, max_size=5), st.lists(st.integers(0, 200), max_size=8))
def test_replies_are_the_same_however_the_bytes_are_cut(expected: list[Reply], cuts: list[int]) -> None:
    data = b"".join(map(written, expected))
    reader = ReplyReader()
    found: list[Reply] = []
    at = 0
    for cut in [*sorted(cuts), len(data)]:
        found += reader.feed(data[at : max(at, cut)])
        at = max(at, min(cut, len(data)))
    assert found == expected


def test_byte_by_byte() -> None:
    reader = ReplyReader()
    data = b"*3\r\n$2\r\nOK\r\n*0\r\n*1\r\n:-7\r\n+PONG\r\n*-1\r\n"
    found = [reply for each in data for reply in reader.feed(bytes([each]))]
    assert found == [[b"OK", [], [-7]], b"PONG", None]


def test_an_error_is_a_value_with_a_code() -> None:
    (error,) = ReplyReader().feed(b"-NOSCRIPT No matching script.\r\n")
    assert isinstance(error, ReplyError) and error.code == "NOSCRIPT"
    ((inner,),) = ReplyReader().feed(b"*1\r\n-ERR x\r\n")  # type: ignore[misc]  # a list of one
    assert isinstance(inner, ReplyError)


@pytest.mark.parametrize("data", [b"HTTP/1.1 400 Bad Request\r\n", b"$x\r\n", b"*\r\n", b":1.5\r\n", b"\r\n"])
def test_what_is_no_reply_is_said(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        ReplyReader().feed(data)


def test_commands_are_written_by_length() -> None:
    assert (
        write_command("SET", "ü", b"\r\n", "")
        == b"*4\r\n$3\r\nSET\r\n$2\r\n\xc3\xbc\r\n$2\r\n\r\n\r\n$0\r\n\r\n"
    )
    assert write_command("\ud800") == b"*1\r\n$1\r\n?\r\n"
