"""The words of a reply that could not be read, without its calls; pure."""

from __future__ import annotations

import re

from conductor.plugins.models.text_protocol.parser import Tools, texts_of
from conductor.plugins.models.text_protocol.scanner import MAX_CHARS, MAX_SPANS
from conductor.plugins.models.text_protocol.span import Brackets

# A call in another notation, or an invented turn: no words follow.
_END = re.compile(
    r"<(?:tool|function|invoke|parameter)|\[TOOL_CALLS\]|\|\|call:|^[ \t]*(?:Action|Observation|User|Human):",
    re.MULTILINE,
)
_MARK = re.compile(r"```\w*|^[ \t]*(?:Thought:.*|Final Answer:)|</?\w+>", re.MULTILINE)


def words_of(text: str, tools: Tools, *, with_prose: bool) -> str:
    """Return the values of objects that are no calls, and the prose around them."""
    text = text[:MAX_CHARS]
    end = _END.search(text)
    text = text[: end.start()] if end is not None else text
    prose: list[str] = []
    words: list[str] = []
    position = 0
    while len(words) < MAX_SPANS and (start := text.find("{", position)) >= 0:
        span_end = Brackets(text, start).end(text) or len(text)
        prose.append(text[position:start])
        words.append(texts_of(text[start:span_end], tools))
        position = span_end
    prose.append(text[position:])
    if with_prose:
        words = [part for pair in zip(prose, [*words, ""], strict=True) for part in pair]
    plain = " ".join(_MARK.sub(" ", " ".join(words)).split())
    return plain if re.search(r"\w", plain) else ""
