"""What is stored comes back as it was, and a newer or older version's text can be read."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.errors import StoreUnavailable
from conductor.messages import AssistantMessage, ToolResult, UserMessage
from conductor.stores.base import (
    Amendment,
    AppendLog,
    Claim,
    OpenCall,
    Operation,
    PutOutbound,
    RememberInbound,
    SessionKey,
    SessionState,
    SetField,
)
from conductor.stores.records import SNAPSHOT_COMMITS, Draft, Meta, Record, Stored, encode
from tests.stores.contract import EVERYTHING, HISTORY, call, contents, outbound


def replayed(*records: Record | str | bytes) -> SessionState:
    """Give the state after some records."""
    encoded = [encode(record) if isinstance(record, Record) else record for record in records]
    texts = [record.encode() if isinstance(record, str) else record for record in encoded]
    return Stored(Meta("t", 1, len(texts), "c"), dict(enumerate(texts, 1))).state()


def recorded(*operations: Operation) -> SessionState:
    return replayed(Record("t", operations))


def test_a_conversation_comes_back_as_it_was() -> None:
    state = recorded(*map(AppendLog, HISTORY), AppendLog(Amendment(3, "It")))
    assert state.log == [*HISTORY[:3], AssistantMessage("It"), *HISTORY[4:]]


@pytest.mark.parametrize("result", [None, ToolResult("c-1", "日\x00\u2028", True, True)])
def test_a_call_comes_back_as_it_was(result: ToolResult | None) -> None:
    record = msgspec.structs.replace(call(result=result), notes=("changed", "ü"))
    assert recorded(OpenCall(record)).calls == {"c-1": record}


@pytest.mark.parametrize("frame", ['{"a":1}', '{ "a" : 1.50,\n"b":"\\ud83c\\udf89 日"}', "null"])
def test_a_frame_comes_back_byte_for_byte(frame: str) -> None:
    record = msgspec.structs.replace(outbound(), frame=msgspec.Raw(frame.encode()))
    state = recorded(PutOutbound(record))
    for copy in (state, replayed(Record("t", (), state))):
        (event,) = copy.outbound.values()
        assert bytes(event.frame) == frame.encode()
        assert msgspec.structs.astuple(event)[:5] == msgspec.structs.astuple(record)[:5]


def test_a_frame_that_was_read_keeps_no_larger_text_alive() -> None:
    data = bytearray(encode(Record("t", (PutOutbound(outbound()),))))
    state = Stored(Meta("t", 1, 1, "c"), {1: data}).state()  # type: ignore[dict-item]  # tells who refers to it
    data.clear()
    assert state.outbound["evt-1"].frame == outbound().frame


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_any_text_comes_back_as_it_was(text: str) -> None:
    state = recorded(AppendLog(UserMessage(text)), SetField("a", f"x{text}"), RememberInbound(text))
    assert (state.log, state.fields) == ([UserMessage(text)], {"a": f"x{text}"})
    assert list(state.seen) == [text]


@given(st.text(alphabet=st.characters(categories=["Cs", "L"]), min_size=1))
def test_lone_surrogates_are_replaced(text: str) -> None:
    plain = text.encode("utf-8", "replace").decode()
    record = msgspec.structs.replace(outbound(), call_id=text)
    operations: list[Operation] = [
        AppendLog(AssistantMessage(text)),
        PutOutbound(record),
        RememberInbound(text),
        SetField(text, "x"),
    ]
    state = recorded(*operations)
    assert state.log == [AssistantMessage(plain)] and list(state.seen) == [plain]
    assert state.outbound["evt-1"].call_id == plain and state.fields == {plain: "x"}
    assert bytes(state.outbound["evt-1"].frame) == bytes(record.frame)


def test_a_snapshot_has_the_state_of_all_earlier_records() -> None:
    claim = Claim(SessionKey("ann", "s-1"), "t", 1, 0, SessionState(), commits=SNAPSHOT_COMMITS)
    claim.state.advance([*map(AppendLog, HISTORY), *EVERYTHING], "earlier", 0)
    draft = Draft(claim, "commit-1", [SetField("c", "d")])
    data = draft.data
    draft.accept()
    state = Stored(Meta("t", 1, 1, "commit-1"), {1: data}).state()
    assert contents(state) == contents(claim.state) and state.authors == {"earlier": 0, "t": 1}
    assert (claim.commits, claim.size) == (1, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"by":"t","operations":[{"op":"unheard of"}]}',
        b"\xff",
        b'{"by":"\xff","operations":[]}',
        '{"by":"t","operations":[{"op":"finish","call_id":"c","result":{"type":"result","call_id":"c","content":""}}]}',
    ],
)
def test_an_unreadable_record_is_unavailable(text: str | bytes) -> None:
    with pytest.raises(StoreUnavailable, match="cannot read"):
        replayed(text)
