"""Sentences about any tool, which the demo model understands by the words of the tool's definition."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from conductor.models.base import ToolDefinition

# Words of a tool's name or description that a sentence must have are at most so many.
MAX_WORDS = 6
_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()
_IDLE = frozenset(
    "a about an and are at by called current for from in is it its me my named now of off on or our please s "
    "some that the this to today up us with your".split()
)
# A question stands for a verb that reads.
_READS = frozenset("fetch find get give list look read search show tell what where which who".split())
# Between the texts of a sentence with several.
_BETWEEN = re.compile(r"(?i)\s(?:saying|that says|with|to|about)\s")
_MARKS = "\"'\u201c\u201d,.!? "
# What a proposed sentence holds, by the kind of a parameter: texts stand one after the other.
_SAMPLES = {"integer": "2", "number": "2", "boolean": "on"}
_TEXTS = ("named Alpha", "with Beta", "with Gamma", "with Delta")


def match_words(text: str, tools: Sequence[ToolDefinition]) -> tuple[str, dict[str, Any]] | None:
    """Find the tool that a request speaks of, and its arguments; of several the one with the most words.

    The sentence has every word of the tool's title, of the beginning of its description or of its name. It
    begins with one of these, and holds each required argument and nothing else.
    """
    matches = [
        (len(own), tool.name, arguments)
        for tool in tools
        for own in map(_stems, _phrases(tool))
        if (arguments := _arguments(text, own, tool.input_schema)) is not None
    ]
    # A client's tools come last, and win.
    _, name, arguments = max(reversed(matches), key=lambda match: match[0], default=(0, "", {}))
    return (name, arguments) if name else None


def example_of(tool: ToolDefinition) -> str:
    """Make a sentence that `match_words` understands, without an identifier; empty if there is none."""
    is_word = tool.name.isalpha() and tool.name.islower()
    for phrase in _phrases(tool):
        texts = iter(_TEXTS)
        samples = [
            str(schema["enum"][0])
            if schema.get("enum")
            else next(texts, "")
            if _kind(schema) == "string"
            else _SAMPLES.get(_kind(schema), "")
            for _, schema in _parameters(tool.input_schema, optional=False)
        ]
        example = " ".join([f"{phrase[:1].lower()}{phrase[1:]}", *samples])
        if (is_word or tool.name not in example) and match_words(example, [tool]):
            return example
    return ""


def spaced(name: str) -> str:
    """Split an identifier: "battery.level" and "batteryLevel" are "battery level"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", re.sub(r"[._]", " ", name))


def _phrases(tool: ToolDefinition) -> Iterator[str]:
    noun, _, verb = spaced(tool.name.replace(".", "\0")).rpartition("\0")
    head = re.split(r"[.,:;(]", tool.description)[0].strip()
    name = f"{verb} the {noun}" if noun else verb
    yield from (phrase for phrase in (tool.title or "", head, name) if 0 < len(_stems(phrase)) <= MAX_WORDS)


def _stem(word: str) -> str:
    return re.sub(r"(?<=..)(?:y|ies)\Z|(?<=...)s\Z", "", word.casefold())


def _words(text: str) -> list[str]:
    return [word for word in re.findall(r"[^\W_]+", text) if word.casefold() not in _IDLE]


def _stems(text: str) -> frozenset[str]:
    return frozenset(map(_stem, _words(spaced(text))))


def _arguments(text: str, own: frozenset[str], schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Read the arguments from what a sentence holds besides a tool's own words; None if it does not fit."""
    words = _words(text)
    if words and words[0].casefold() in _READS:
        own, words = own - _READS, words[1:]
    if not (own and words and _stem(words[0]) in own and own <= {_stem(word) for word in words}):
        return None
    rest = _without(text, own)
    arguments, texts, names = {}, [], set(_IDLE | _READS)
    for name, parameter in _parameters(schema):
        names |= _stems(name)
        if _kind(parameter) == "string" and not parameter.get("enum"):
            texts.append(name)
        elif (found := _read(parameter, rest)) is not None:
            arguments[name], (start, end) = found
            rest = f"{rest[:start]}{rest[end:]}"
    required = [name for name, _ in _parameters(schema, optional=False)]
    wanted = [name for name in texts if name in required] or texts[:1]
    parts = _BETWEEN.split(_trimmed(rest, names), len(wanted) - 1) if len(wanted) > 1 else [rest]
    parts = [_trimmed(part, names) for part in parts]
    arguments |= {name: part for name, part in zip(wanted, parts, strict=False) if part}
    is_whole = all(name in arguments for name in required) and (wanted or not any(parts))
    return arguments if is_whole else None


def _without(text: str, own: Collection[str]) -> str:
    for stem in own:  # the first word of each: the others may be a text's
        found = next((word for word in re.finditer(r"[^\W_]+", text) if _stem(word[0]) == stem), None)
        if found is not None:
            text = f"{text[: found.start()]}{text[found.end() :]}"
    return text


def _parameters(
    schema: Mapping[str, Any], *, optional: bool = True
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    properties, required = schema.get("properties"), schema.get("required") or ()
    for name, parameter in properties.items() if isinstance(properties, Mapping) else ():
        if optional or name in required:
            yield name, parameter if isinstance(parameter, Mapping) else {}


def _kind(schema: Mapping[str, Any]) -> str:
    """Return a parameter's type, the first one but null; a text without any."""
    for part in (schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())):
        kinds = part.get("type") if isinstance(part, Mapping) else None
        for kind in [kinds] if isinstance(kinds, str) else kinds or ():
            if kind != "null":
                return str(kind)
    return "string"


def _read(schema: Mapping[str, Any], text: str) -> tuple[Any, tuple[int, int]] | None:
    """Find the value of a parameter that is no free text, and its place."""
    choices, kind = schema.get("enum"), _kind(schema)
    value: Any
    values: dict[str, Any] = {}
    if isinstance(choices, list):
        values = {re.escape(str(choice)).replace("_", "[ _]"): choice for choice in choices}
    elif kind == "boolean":
        values = {"on|yes|true": True, "off|no|false": False}
    elif kind in ("integer", "number"):
        if found := re.search(r"(?<![\w.])-?\d{1,15}(\.\d{1,15})?(?![\w.])", text):
            is_whole = found[1] is None
            value = int(found[0]) if is_whole else float(found[0])
            return (value, found.span()) if is_whole or kind == "number" else None
        values = {word: number for number, word in enumerate(_NUMBERS)}
    for pattern, value in values.items():
        if found := re.search(rf"\b(?:{pattern})\b", text, re.I):
            return value, found.span()
    return None


def _trimmed(text: str, idle: Collection[str]) -> str:
    def is_idle(word: str) -> bool:
        word = word.strip(_MARKS).casefold()
        return not word or word in idle or _stem(word) in idle

    words = text.split()
    while words and is_idle(words[0]):
        words.pop(0)
    while words and is_idle(words[-1]):
        words.pop()
    return " ".join(words).strip(_MARKS)
