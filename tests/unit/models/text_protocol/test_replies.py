"""A corpus of replies of small models (replies.toml): their calls, speech and retries."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterable
from contextlib import aclosing
from pathlib import Path
from random import Random
from typing import Any

from conductor.errors import ModelError
from conductor.messages import ToolCall, UserMessage
from conductor.models.base import ModelRequest, TextDelta, ToolDefinition
from conductor.plugins.models.text_protocol import TextProtocol
from conductor.plugins.models.text_protocol.parser import WrittenCall
from conductor.plugins.models.text_protocol.scanner import ReplyScanner
from conductor.plugins.models.thought_filter import ThoughtFilter
from tests.models import ScriptedProvider

CORPUS: dict[str, list[dict[str, Any]]] = tomllib.loads(
    Path(__file__).with_name("replies.toml").read_text(encoding="utf-8")
)
TOOLS = [
    ToolDefinition(
        name,
        "A tool.",
        {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}},
    )
    for name, properties in {
        "lamp.switch": {"room": "string", "on": "boolean"},
        "clock.now": {"zone": "string"},
        "mail.send": {"to": "string", "body": "string"},
        "notes.add": {"title": "string", "text": "string"},
    }.items()
]
SEED = 20_261_124
SPLITS = 4
NOISE = [*"\"{}[]\\:,\n <`x“'()", "```", "<tool>", "lamp.switch", "Action: ", "User:"]


async def play(pieces: Iterable[str]) -> tuple[str, list[tuple[str, Any]], bool]:
    """Return the words spoken, the calls, and whether the model is asked again: here, or by the turn."""
    thoughts = ThoughtFilter()  # as in every provider
    texts = [*map(thoughts.feed, pieces), thoughts.finish()]
    model = ScriptedProvider([[*map(TextDelta, texts)], [ModelError("refused", "Asked again.")]])
    words: list[str] = []
    calls: list[tuple[str, Any]] = []
    request = ModelRequest("", [UserMessage("Hello.")], TOOLS)
    try:
        async with aclosing(TextProtocol(model).stream(request)) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    words.append(event.text)
                elif isinstance(event, ToolCall):
                    calls.append((event.name, json.loads(event.arguments)))
    except ModelError as error:
        assert error.reason == "refused"
    is_silent = not calls and not "".join(words).strip()
    return "".join(words), calls, is_silent or len(model.requests) == 2


def split(text: str, random: Random) -> list[str]:
    cuts = sorted(random.randrange(len(text) + 1) for _ in range(random.randrange(1, 12)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def cases(call: str) -> tuple[str, Any]:
    name, _, arguments = call.partition(" ")
    return name, json.loads(arguments)


async def test_the_corpus_of_replies() -> None:
    """Whole, by characters, and in random pieces: the same words, the same calls."""
    random = Random(SEED)
    right: Counter[str] = Counter()
    wrong = []
    for group, replies in CORPUS.items():
        for reply in replies:
            output = reply["output"]
            expected = (
                reply.get("speech", "").strip(),
                list(map(cases, reply.get("calls", ()))),
                reply.get("again", False),
            )
            speech = await play([output])
            pieces = [list(output), *(split(output, random) for _ in range(SPLITS))]
            remaining = [(cut, played) for cut in pieces if (played := await play(cut)) != speech]
            if remaining or (speech[0].strip(), *speech[1:]) != expected:
                wrong.append(
                    f"{group}: {output!r}\n  expected {expected}\n  whole    {speech}\n  {remaining[:1]}"
                )
            else:
                right[group] += 1
    table = [f"{group:>10} {right[group]:3} of {len(replies)}" for group, replies in CORPUS.items()]
    print(f"\nseed {SEED}", *table, f"       all {right.total():3}", sep="\n")  # noqa: T201 -- the figures
    assert wrong == [], "\n".join(wrong)


def test_damaged_replies_give_the_same_in_any_pieces() -> None:
    """And a call counts only where the scanner has no problem with its reply."""
    random = Random(SEED)
    outputs = [reply["output"] for replies in CORPUS.values() for reply in replies]
    for _ in range(500):
        text = random.choice(outputs) + random.choice(("", "\n", " ")) + random.choice(outputs)
        for _ in range(random.randrange(4)):
            at = random.randrange(len(text) + 1)
            text = text[:at] + random.choice(NOISE) + text[at + random.randrange(3) :]
        assert scan(list(text)) == scan(split(text, random)) == scan([text]), text


def scan(pieces: Iterable[str]) -> tuple[str, list[WrittenCall], str | None]:
    scanner = ReplyScanner({tool.name: tool.input_schema for tool in TOOLS})
    words = [scanner.feed(piece) for piece in pieces if not scanner.is_over]
    words.append(scanner.end())
    return "".join(words), scanner.calls, scanner.problem
