"""What is stored comes back as it was, and a newer or older version's text can be read."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.errors import StoreUnavailable
from conductor.messages import AssistantMessage, ToolResult, UserMessage
from conductor.stores.base import (
    Amendment,
    CallRecord,
    LogEntry,
    OutboundRecord,
    clean,
    decode_call,
    decode_entry,
    decode_outbound,
    encode_call,
    encode_entry,
    encode_outbound,
)
from tests.stores.contract import HISTORY, call, outbound


@pytest.mark.parametrize("entry", [*HISTORY, Amendment(3, "It is")])
def test_an_entry_comes_back_as_it_was(entry: LogEntry) -> None:
    assert decode_entry(encode_entry(entry)) == entry
    assert decode_entry(encode_entry(entry).encode()) == entry


@pytest.mark.parametrize("result", [None, ToolResult("c-1", "日\x00\u2028", True, True)])
def test_a_call_comes_back_as_it_was(result: ToolResult | None) -> None:
    record = msgspec.structs.replace(call(result=result), notes=("changed", "ü"))
    assert decode_call(encode_call(record)) == record


@pytest.mark.parametrize("frame", ['{"a":1}', '{ "a" : 1.50,\n"b":"\\ud83c\\udf89 日"}', "null"])
def test_a_frame_comes_back_byte_for_byte(frame: str) -> None:
    record = msgspec.structs.replace(outbound(), frame=msgspec.Raw(frame.encode()))
    again = decode_outbound(encode_outbound(record))
    assert bytes(again.frame) == frame.encode()
    assert msgspec.structs.astuple(again)[:5] == msgspec.structs.astuple(record)[:5]


def test_a_frame_that_was_read_keeps_no_larger_text_alive() -> None:
    text = bytearray(encode_outbound(outbound()).encode())
    kept = decode_outbound(text)  # type: ignore[arg-type]  # it can tell whether it is still referred to
    text.clear()
    assert kept.frame == outbound().frame


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_any_text_comes_back_as_it_was(text: str) -> None:
    assert decode_entry(encode_entry(UserMessage(text))) == UserMessage(text)
    assert clean(text) == text


@given(st.text(alphabet=st.characters(categories=["Cs", "L"]), min_size=1))
def test_half_characters_are_replaced_and_the_rest_stays(text: str) -> None:
    plain = text.encode("utf-8", "replace").decode()
    assert clean(text) == plain
    assert decode_entry(encode_entry(AssistantMessage(text))) == AssistantMessage(plain)
    record = msgspec.structs.replace(outbound(), call_id=text)
    again = decode_outbound(encode_outbound(record))
    assert again.call_id == plain and bytes(again.frame) == bytes(record.frame)


def test_what_a_newer_version_added_is_left_out() -> None:
    assert decode_entry('{"new":[1],"type":"user","text":"a"}') == UserMessage("a")
    text = encode_call(call())
    assert decode_call(f'{text[:-1]},"new":{{"a":null}}}}') == call()
    text = encode_outbound(outbound())
    assert decode_outbound(f'{text[:-1]},"new":1}}').event_id == "evt-1"


def test_what_an_older_version_left_out_has_its_default() -> None:
    assert decode_entry('{"type":"assistant"}') == AssistantMessage()
    old = '{"call_id":"c","name":"n","turn_id":"t","source":"s","effect":"read","opened_ms":1}'
    assert decode_call(old) == CallRecord("c", "n", "t", "s", "read", 1)
    old = '{"event_id":"e","kind":"speak","call_id":"","turn_id":"t","created_ms":1,"frame":{}}'
    assert isinstance(decode_outbound(old), OutboundRecord)


@pytest.mark.parametrize("decode", [decode_entry, decode_call, decode_outbound])
@pytest.mark.parametrize("text", ["", "{", "[]", '{"type":"unheard of"}', b"\xff", b'{"type":"\xff"}'])
def test_what_cannot_be_read_is_a_store_that_fails(
    decode: Callable[[str | bytes], object], text: str | bytes
) -> None:
    with pytest.raises(StoreUnavailable, match="cannot read"):
        decode(text)
