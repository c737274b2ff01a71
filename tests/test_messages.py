"""The history's items: values that survive being written down."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conductor.messages import AssistantMessage, Message, Note, ToolCall, ToolResult, UserMessage

texts = st.text(st.characters(exclude_categories=["Cs"]))
calls = st.builds(ToolCall, texts, texts, texts)
messages = st.one_of(
    st.builds(UserMessage, texts),
    st.builds(Note, texts),
    st.builds(
        AssistantMessage,
        texts,
        st.lists(calls, max_size=3).map(tuple),
        st.none() | texts,
        st.none() | texts,
    ),
    st.builds(ToolResult, texts, texts, st.booleans()),
)


@settings(deadline=None)
@given(st.lists(messages, max_size=5))
def test_a_history_comes_back_as_it_was_written(history: list[Message]) -> None:
    data = msgspec.json.encode(history)
    assert msgspec.json.decode(data, type=list[Message]) == history


@settings(deadline=None)
@given(messages)
def test_equal_messages_have_equal_hashes(message: Message) -> None:
    again = msgspec.json.decode(msgspec.json.encode(message), type=Message)
    assert hash(again) == hash(message)


def test_the_kinds_are_told_apart_by_their_tag() -> None:
    kinds = [UserMessage("a"), Note("a"), AssistantMessage("a"), ToolResult("c", "a")]
    tags = [msgspec.to_builtins(kind)["type"] for kind in kinds]
    assert tags == ["user", "note", "assistant", "result"]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (UserMessage("a"), "text"),
        (Note("a"), "text"),
        (AssistantMessage("a"), "text"),
        (ToolCall("c", "n", "{}"), "arguments"),
        (ToolResult("c", "a"), "content"),
    ],
)
def test_a_message_cannot_be_changed(message: Message | ToolCall, field: str) -> None:
    with pytest.raises(AttributeError):
        setattr(message, field, "b")
