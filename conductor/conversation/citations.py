"""Citations in a reply: numbers in brackets, which stand for the results of a search."""

from __future__ import annotations

import re
from collections.abc import Iterable

from conductor.messages import Message, ToolResult

_CITATION = re.compile(r"[ \t]?\[(\d{1,3}(?:, ?\d{1,3})*)\](?!\()")
_CODE = re.compile(r"(```.*?(?:```|\Z)|`[^`\n]*`)", re.DOTALL)
# Of a result as JSON; what a document says has its quotes escaped.
_RESULTS = '"results":['
_NUMBER = re.compile(r'(?<=[{,])"number":(\d{1,3})(?=[,}])')


def without_invented(text: str, messages: Iterable[Message]) -> str:
    """Drop the citations of a reply that no search in the history has returned.

    Without a search, numbers in brackets are no citations, and stay.
    """
    if not _CITATION.search(text):
        return text
    found = [one.content for one in messages if isinstance(one, ToolResult) and _RESULTS in one.content]
    returned = {number for content in found for number in _NUMBER.findall(content)}
    if not found:
        return text

    def kept(citation: re.Match[str]) -> str:
        numbers = [number for number in re.findall(r"\d+", citation[1]) if number in returned]
        begin = citation[0][: citation[0].index("[")]
        return f"{begin}[{', '.join(numbers)}]" if numbers else ""

    prose_and_code = _CODE.split(text)
    prose_and_code[::2] = [_CITATION.sub(kept, prose) for prose in prose_and_code[::2]]
    return "".join(prose_and_code)
