"""The envelope: its bytes, its timestamps and its ids."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime, timedelta

from conductor.events.envelope import IdGenerator, encode_event, timestamp
from conductor.events.server import SpeechPartial

TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def test_timestamps_tell_the_present_time_and_never_go_back() -> None:
    before = datetime.now(UTC)
    stamps = [timestamp() for _ in range(500)]
    after = datetime.now(UTC)
    assert all(map(TIMESTAMP.fullmatch, stamps))
    times = [datetime.fromisoformat(stamp) for stamp in stamps]
    assert before - timedelta(milliseconds=1) <= times[0] and times[-1] <= after
    assert times == sorted(times)


def test_a_timestamp_that_enters_a_new_second_says_so() -> None:
    start = time.time()
    first = timestamp()
    while (now := timestamp())[:19] == first[:19]:  # at most a second
        assert time.time() - start < 5
    assert datetime.fromisoformat(now) - datetime.fromisoformat(first) <= timedelta(seconds=1.5)


def test_the_envelope_has_its_six_fields_in_order_and_no_more() -> None:
    event = json.loads(encode_event("evt_1", "s-1", SpeechPartial("Hi")))
    assert list(event) == ["id", "type", "timestamp", "sessionId", "protocolVersion", "payload"]
    assert event["protocolVersion"] == 1 and type(event["protocolVersion"]) is int
    assert TIMESTAMP.fullmatch(event["timestamp"])


def test_a_frame_is_one_line_of_utf8_without_spaces() -> None:
    frame = encode_event("e", "s", SpeechPartial("line\nfeed, ünïcode \u2028"))
    assert b"\n" not in frame and b'": ' not in frame
    assert "ünïcode" in frame.decode()


def test_ids_are_unique_and_fit_the_protocol() -> None:
    first, second = IdGenerator("evt"), IdGenerator("evt")
    ids = [make() for make in (first, second) for _ in range(5_000)]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"evt_[0-9a-f]{16}_[0-9a-f]+", event_id) for event_id in ids)
