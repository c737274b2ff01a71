"""Citations that no search has returned do not reach the person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from conductor.messages import AssistantMessage, Message, ToolResult
from conductor.models.base import TextDelta
from conductor.session.model import without_invented
from conductor.tools.base import CallContext, Toolset, ToolSpec
from conductor.tools.outcomes import ToolOutcome, succeeded
from tests.models import Script
from tests.session.helpers import call, make_services, open_stage, tool


class Library(Toolset):
    """A tool that finds two passages."""

    def specs(self) -> Sequence[ToolSpec]:
        return [tool("library.search", source="builtin", effect="read", risk="safe")]

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        passages = ['Herons fish. {"number":7}', "Ducks dive."]
        numbered = [{"number": number, "text": text} for number, text in enumerate(passages, 1)]
        return succeeded({"results": numbered})


def results(*numbers: int) -> Message:
    data = {"results": [{"path": "a.md", "number": number, "text": "x"} for number in numbers]}
    return ToolResult("c", succeeded(data).content)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Herons fish [1].", "Herons fish [1]."),
        ("Herons fish [3].", "Herons fish."),
        ("Herons fish [1, 3] and [4,5] stand [2][9].", "Herons fish [1] and stand [2]."),
        ("Fish[9] is [7](https://a.example).", "Fish is [7](https://a.example)."),
        ("`a[0]` and [0]\n```\nb[0]\n```\n[0] c", "`a[0]` and\n```\nb[0]\n```\n c"),
        ("No citation [sic], [a1] or [2026].", "No citation [sic], [a1] or [2026]."),
    ],
)
def test_invented_citations_are_dropped(text: str, expected: str) -> None:
    assert without_invented(text, [results(1), AssistantMessage(text="x"), results(1, 2)]) == expected


def test_a_search_without_results_leaves_no_citation() -> None:
    assert without_invented("Herons fish [1].", [results()]) == "Herons fish."


def test_without_a_search_numbers_in_brackets_stay() -> None:
    result = ToolResult("c", succeeded({"number": 1}).content)
    assert without_invented("The list is [3].", [result]) == "The list is [3]."


async def test_the_final_reply_and_its_speech_have_only_returned_citations() -> None:
    scripts: list[Script] = [
        [call("library.search")],
        [TextDelta("Herons fish [1], ducks fly [7]. See [3].")],
    ]
    stage = await open_stage(make_services(scripts, toolsets=[Library()]), say="what do herons do")
    await stage.quiet()
    final_text = "Herons fish [1], ducks fly. See."
    assert stage.app.finals() == [final_text]
    assert stage.session.state.log[-1] == AssistantMessage(text=final_text, provider="scripted")
    assert "[7]" not in stage.app.speeches()[-1]
