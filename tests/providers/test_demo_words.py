"""What the demo model understands and says: sums, times and any words."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.messages import AssistantMessage, ToolCall, ToolResult, UserMessage
from conductor.models.base import ModelRequest
from conductor.plugins.models.demo import output_for
from tests.providers.test_demo import TOOLS, TerminalChat, clock, result_is


@pytest.mark.parametrize(
    ("hour", "minute", "words"),
    [
        (0, 0, "midnight"),
        (0, 7, "12:07 at night"),
        (6, 0, "6 o'clock in the morning"),
        (12, 0, "noon"),
        (12, 30, "12:30 in the afternoon"),
        (15, 42, "3:42 in the afternoon"),
        (19, 1, "7:01 in the evening"),
        (23, 59, "11:59 at night"),
    ],
)
async def test_times_in_words(hour: int, minute: int, words: str) -> None:
    talk = TerminalChat(get_current_time=clock(datetime(2031, 1, 1, hour, minute)))
    assert await talk.hear("what time is it") == f"It is {words}, Wednesday, January 1, 2031."


@pytest.mark.parametrize(
    ("phrase", "expression"),
    [
        ("what is 17% of 2340", "17% of 2340"),
        ("12 times 7", "12 * 7"),
        ("the square root of 144 plus 3", "sqrt(144) + 3"),
        ("3 + 4 * (2 - 1)", "3 + 4 * (2 - 1)"),
        ("1,250,000 divided by 4", "1250000 / 4"),
        ("5 squared minus 2 to the power of 3", "5 ** 2 - 2 ** 3"),
        ("10 % 3", "10 % 3"),
        ("2 × 8 − .5", "2 × 8 − .5"),
        ("(6+2) percent of 50", "(6+2)% of 50"),
    ],
)
async def test_a_sum_as_people_say_it_reaches_the_calculator(phrase: str, expression: str) -> None:
    talk = TerminalChat(calculator=result_is({"result": "8675"}))
    words = await talk.hear(phrase)
    assert talk.calls == [("calculator", {"expression": expression})]
    assert words.endswith(" is 8675.")


@pytest.mark.parametrize(
    "phrase", ["what is 5", "2 plus", "((3)", "what is love", "3 4", "plus", "", "times 2", "%"]
)
async def test_other_words_are_no_sum(phrase: str) -> None:
    talk = TerminalChat()
    await talk.hear(phrase)
    assert talk.calls == []


async def test_a_negative_result_is_spoken_as_minus() -> None:
    talk = TerminalChat(calculator=result_is({"result": "-29"}))
    assert await talk.hear("12 - 41") == "12 minus 41 is minus 29."


@pytest.mark.parametrize("task", ["fix src/main.py", "tidy up in src/main", "fix it in handlers/login.py"])
async def test_a_file_is_not_taken_for_a_repository(task: str) -> None:
    assert (await TerminalChat().hear(f"start an agent to {task}")).startswith("In which repository")


@given(st.text(max_size=200))
def test_any_utterance_gets_some_words_or_a_call(text: str) -> None:
    reply = output_for(ModelRequest("", (UserMessage(text),), TOOLS))
    assert reply.text or reply.calls


@given(
    st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=9)
)
def test_any_result_gets_words(data: Any) -> None:
    call = ToolCall("c", "lamp.dim", "{}")
    content = msgspec.json.encode(
        {"success": True, "data": data, "error_message": None, "error_type": "none"}
    )
    messages = (
        UserMessage("call lamp.dim"),
        AssistantMessage("", (call,)),
        ToolResult("c", content.decode()),
    )
    assert output_for(ModelRequest("", messages, TOOLS)).text.startswith("Lamp dim answered: ")


@pytest.mark.parametrize(
    "piece", ["and ", "a/", "what ", "start an agent ", "tell agent ", "call ", "1 + ", "((", ". "]
)
def test_a_huge_transcript_is_answered_in_bounded_time(piece: str) -> None:
    reply = output_for(ModelRequest("", (UserMessage(piece * (60_000 // len(piece))),), TOOLS))
    assert reply.text or reply.calls
