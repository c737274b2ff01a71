"""The demo model: it needs no key and no network, and matches words of a sentence to the tools on offer.

It is a demonstration and a test fake, not an assistant. It knows no tool beforehand: names, titles,
descriptions and parameters are all that it reads.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from conductor.messages import AssistantMessage, Message, Note, ToolCall, ToolResult, UserMessage
from conductor.models.base import Finished, ModelEvent, ModelRequest, TextDelta, ToolDefinition, Usage
from conductor.plugins.models.demo_match import best_match, spaced

if TYPE_CHECKING:
    from conductor.models.profiles import ModelProfile
    from conductor.settings import Settings

# The demo counts aloud up to this number, matches this much of a sentence, and says this much of a result.
MAX_COUNT, MAX_CHARS, MAX_CLAUSES, MAX_SPOKEN, MAX_ITEMS = 1000, 2000, 8, 300, 5


class DemoOutput(NamedTuple):
    """The reply's text, and its calls: (name, arguments as JSON text)."""

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()


# -- from an utterance to calls and words


def _call(match: re.Match[str], request: ModelRequest) -> DemoOutput:
    text = (match["arguments"] or "").strip()
    arguments = _decoded(text[: text.rfind("}") + 1] or text or "{}")
    if not isinstance(arguments, dict):
        return DemoOutput("The arguments after the word with must be a JSON object. I called no tool.")
    name = match["tool"].rstrip(".").replace(".", "_").casefold()  # a person may say an underscore for a dot
    tools = [tool for tool in request.tools if tool.name.replace(".", "_").casefold() == name]
    if not tools:
        return DemoOutput(f"The tool {spaced(match['tool'])} is not available here.")
    return _call_output(min(tools, key=lambda tool: tool.name != match["tool"]), arguments, request)


def _call_output(tool: ToolDefinition, arguments: Mapping[str, Any], request: ModelRequest) -> DemoOutput:
    if request.tool_choice == "none":
        return DemoOutput("I may not use any tools just now.")
    return DemoOutput(calls=((tool.name, msgspec.json.encode(arguments).decode()),))


def _count(match: re.Match[str], _: ModelRequest) -> DemoOutput:
    last = int(match["last"])
    if not 1 <= last <= MAX_COUNT:
        return DemoOutput(f"I count upwards, and to {MAX_COUNT} at most.")
    return DemoOutput(", ".join(str(number) for number in range(1, last + 1)) + ".")


def _recall(_: re.Match[str], request: ModelRequest) -> DemoOutput:
    texts = [message.text for message in request.messages if isinstance(message, UserMessage)][:-1]
    return DemoOutput(f"You said: {texts[-1]}" if texts else "You have not said anything before that.")


# Sentences of their own. The first one that matches is taken, before any tool.
SENTENCES: Sequence[tuple[str, Callable[[re.Match[str], ModelRequest], DemoOutput]]] = (
    (r"(?:repeat after me|say)\b[:,]?\s+(?P<text>\S.*)", lambda match, _: DemoOutput(match["text"])),
    (r"call\s+(?:the\s+)?(?:tool\s+)?(?P<tool>[\w.-]+)(?:\s+with\b\s*(?P<arguments>.*)|[.!?\s]*)$", _call),
    (r"what did i (?:just )?say[.!?\s]*$", _recall),
    (r"count\s+(?:up\s+)?to\s+(?P<last>\d{1,9})[.!?\s]*$", _count),
)
_POLITE = re.compile(
    r"(?i)\A\s*(?:(?:please|hey|hi|hello|ok|okay|so|well|now|and|then|also|(?:can|could|would) you)\b"
    r"[\s,.!:]*){1,6}"
)
_CUT = re.compile(r"(?i)(?:[;?!]+|[.,](?=\s)|\s(?:and|then|also)(?=\s))\s*")


def understand(text: str, request: ModelRequest) -> list[DemoOutput]:
    """Read the requests of an utterance; a clause without a request belongs to the former."""
    if output := _sentence(text, request):
        return [output]
    text = text[:MAX_CHARS]
    cuts = [cut.span() for cut in list(_CUT.finditer(text))[:MAX_CLAUSES]]
    starts, ends = [0], [len(text)]
    for (end, start), (following, _) in zip(cuts, [*cuts[1:], (len(text), 0)], strict=False):
        takes_all = _sentence(text[start:], request)
        match = best_match(text[start:following], request.tools)
        if takes_all or (match and not match.missing):
            starts.append(start)
            ends.insert(-1, end)
        if takes_all:
            break
    return [_read(text[start:end], request) for start, end in zip(starts, ends, strict=True)]


def _sentence(text: str, request: ModelRequest) -> DemoOutput | None:
    text = _POLITE.sub("", text).strip()
    matches = ((re.match(rf"(?is){pattern}", text), read) for pattern, read in SENTENCES)
    return next((read(match, request) for match, read in matches if match), None)


def _read(clause: str, request: ModelRequest) -> DemoOutput:
    if output := _sentence(clause, request):
        return output
    match = best_match(clause, request.tools)
    if match is None:
        return DemoOutput(_help(request))
    if not match.missing:
        return _call_output(match.tool, match.arguments, request)
    name = match.missing[0]
    choices = match.parameters.get(name, {}).get("enum")
    listed = f" ({', '.join(map(str, choices[:MAX_ITEMS]))})" if isinstance(choices, list) else ""
    need = f"{spaced(name).lower()}{listed}"
    return DemoOutput(f"For {spaced(match.tool.name)} I need a {need}. Please say all in one sentence.")


def _help(request: ModelRequest) -> str:
    names = [spaced(tool.name) for tool in reversed(request.tools)]  # a client's tools come last
    more = [f"{len(names) - MAX_ITEMS} more"] if len(names) > MAX_ITEMS else []
    offer = f"Here I have {_joined([*names[:MAX_ITEMS], *more])}." if names else "Here I have no tools."
    return (
        "I'm the demo model: I match words to tools, and these words match none. "
        f"{offer} Set ANTHROPIC_API_KEY for Claude."
    )


# -- from results to words


def _report(messages: Sequence[Message]) -> list[DemoOutput]:
    results: dict[str, ToolResult] = {}
    for message in reversed(messages):
        if isinstance(message, ToolResult):
            results[message.call_id] = message
        elif isinstance(message, AssistantMessage):
            return [
                DemoOutput(_answer(call, results[call.call_id]))
                for call in message.calls
                if call.call_id in results
            ]
    return []


_FAILURES = {
    "unknown": "I don't know whether that happened. It may have, so I am not trying again.",
    "permission_denied": "All right, I left it.",
    "approval_timeout": "I had no clear yes from you, so I left it.",
}


def _answer(call: ToolCall, result: ToolResult) -> str:
    """Put a result into words: a tool outcome as JSON, or other text, which is data or an error's message."""
    outcome = _decoded(result.content)
    if not isinstance(outcome, dict) or not isinstance(outcome.get("success"), bool):
        kind = "unknown" if "may or may not" in result.content else "internal_error"
        error = {"error_type": kind, "error_message": result.content}
        outcome = {"success": not result.is_error, "data": outcome, **(error if result.is_error else {})}
    name = spaced(call.name).capitalize()
    if not outcome["success"]:
        kind, message = str(outcome.get("error_type")), str(outcome.get("error_message") or "")
        return _FAILURES[kind] if kind in _FAILURES else f"{name} did not work: {_ended(message or kind)}"
    data = outcome.get("data")
    data = _decoded(data) if isinstance(data, str) and data[:1] in "{[" else data
    match data, _decoded(call.arguments):
        case {"result": value}, {"expression": str(expression)}:
            return _say_sum(expression, str(value))
        case str(), _ if re.fullmatch(r"[A-Z].*[.!?]", data.strip(), re.S):  # already a sentence
            return _ended(data)
    return f"{name} answered: {_ended(_in_words(data))}"


def _say_sum(text: str, value: str) -> str:
    # A voice reads "*" as "asterisk".
    for symbol, word in (("**", "to the power of"), ("*", "times"), ("/", "divided by"), ("+", "plus")):
        text = text.replace(symbol, f" {word} ")
    text = re.sub(r"sqrt\(([\d.]+)\)", r"the square root of \1", text.replace(" - ", " minus "))
    text = " ".join(text.split())
    return f"{text[:1].upper()}{text[1:]} is {value.replace('-', 'minus ', 1)}."


def _say_note(text: str) -> str:
    reminder = re.match(r"The user asked to be reminded on .*? of this: (.*)$", text, re.M)
    return f"You asked me to remind you: {_ended(reminder[1])}" if reminder else _ended(text)


def _in_words(value: Any, depth: int = 4) -> str:
    match value:
        case None | "":
            return "done"
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return f"{'minus ' if value < 0 else ''}{abs(value):.15g}"
        case list() | dict() if not depth:
            return "more"
        case list():
            labels = [isinstance(item, dict) and (item.get("name") or item.get("title")) for item in value]
            words = [_in_words(label or item, depth - 1) for label, item in zip(labels, value, strict=True)]
            more = [f"{len(words) - MAX_ITEMS} more"] if len(words) > MAX_ITEMS else []
            return _joined([*words[:MAX_ITEMS], *more]) if words else "none"
        case dict():
            parts = [(key, part) for key, part in value.items() if part is not None][:MAX_ITEMS]
            words = [f"{spaced(str(key)).lower()} is {_in_words(part, depth - 1)}" for key, part in parts]
            return _joined(words) or "done"
    with suppress(ValueError):
        if re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d", str(value)):
            moment = datetime.fromisoformat(str(value))
            return f"{moment:%H:%M} on {moment:%B} {moment.day}, {moment.year}"
    return " ".join(str(value).split())


def _joined(words: Sequence[str]) -> str:
    separator = "; " if any(", " in word for word in words) else ", "
    return separator.join([*words[:-2], " and ".join(words[-2:])])


def _ended(text: str) -> str:
    text = " ".join(text.split())
    text = text if len(text) <= MAX_SPOKEN else f"{text[:MAX_SPOKEN].rpartition(' ')[0]}, and there is more."
    return text if text.endswith((".", "!", "?", "\u2026")) else f"{text}."


def _decoded(text: str) -> Any:
    """Read JSON, or leave the text as it is."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


# -- the provider


class DemoProvider:
    """The demo model as a provider. ``pace_s`` is the pause after each word, in seconds."""

    name = "demo"

    def __init__(self, pace_s: float = 0.02) -> None:
        self._pace_s = pace_s

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream the reply's words, then its calls."""
        output = output_for(request)
        for word in re.findall(r"\s*\S+(?:\s+\Z)?", output.text):
            yield TextDelta(word)
            await asyncio.sleep(self._pace_s)
        for name, arguments in output.calls:
            yield ToolCall(f"call_{uuid.uuid4().hex}", name, arguments)
        # A token is about four characters.
        characters = sum(len(repr(part)) for part in (request.system, *request.messages, *request.tools))
        usage = Usage(1 + characters // 4, 1 + len(repr(output)) // 4)
        yield Finished("tool_use" if output.calls else "end_turn", usage)

    async def start(self) -> None:
        """Do nothing."""

    async def aclose(self) -> None:
        """Do nothing."""


def from_profile(profile: ModelProfile, settings: Settings) -> DemoProvider:
    """Make the provider; it has no settings."""
    return DemoProvider()


def output_for(request: ModelRequest) -> DemoOutput:
    """Give the output of a request; the same request gives the same output."""
    messages = request.messages
    outputs: list[DemoOutput] = []
    for message in reversed(messages):
        match message:
            case Note():
                outputs.insert(0, DemoOutput(_say_note(message.text)))
            case UserMessage():
                outputs += understand(message.text, request)
                break
            case _:
                break
    if messages and isinstance(messages[-1], Note):
        outputs.insert(0, DemoOutput("Here is some news."))
    outputs = outputs or _report(messages)
    outputs = outputs or [DemoOutput(_help(request))]
    text = " ".join(dict.fromkeys(output.text for output in outputs if output.text))
    return DemoOutput(text, tuple(dict.fromkeys(call for output in outputs for call in output.calls)))
