"""The common parts of requests to all model services."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from conductor.messages import AssistantMessage, Message, Note, ToolCall, ToolResult, UserMessage
from conductor.models.base import running_turn

WORDS, NOTE, REPLY, RESULT = (
    UserMessage("Go."),
    Note("It ended."),
    AssistantMessage("Yes."),
    ToolResult("c", "ok"),
)
CALL = AssistantMessage("", (ToolCall("c", "agent.spawn", "{}"),))


@pytest.mark.parametrize(
    ("messages", "index"),
    [
        ([], 0),
        ([CALL, RESULT], 0),
        ([WORDS], 1),
        ([WORDS, REPLY, WORDS], 3),
        ([WORDS, REPLY, WORDS, CALL, RESULT, CALL, RESULT], 3),
        ([WORDS, CALL, RESULT, NOTE], 4),
        ([NOTE, WORDS, CALL, RESULT], 2),
    ],
)
def test_a_turn_runs_since_the_last_words_that_are_not_the_models(
    messages: Sequence[Message], index: int
) -> None:
    assert running_turn(messages) == index
