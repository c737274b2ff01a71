"""How a question about a tool call is put into spoken words: a template, the tool's name and the arguments.

No prose of a model, a server or a tool gets into it (tools, "Spoken approvals"). Values are cut down to what
can be said and cannot pass for the prompt's own words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from conductor.tools.base import Effect, Risk
from conductor.tools.spoken import Question, Scope, SpokenValue
from conductor.tools.spoken_words import (
    DETERMINERS,
    NUMBER_WORDS,
    PEOPLE,
    PREPOSITIONS,
    RESERVED,
    Words,
    plural,
    singular,
    words_of,
)

Reason: TypeAlias = Literal["may_have_happened", "untrusted", "changed", "outside", "overwrites"]

REASONS: Mapping[Reason, str] = {
    "may_have_happened": "An earlier identical call may have happened already.",
    "untrusted": "This conversation holds text from strangers.",
    "changed": "This tool has changed since you last used it.",
    "outside": "This sends data to the outside.",
    "overwrites": "This replaces what is there.",
}
"""What may be said in front of a question: our own sentences only."""

MAX_ARGUMENTS = 5
BRIEF_ARGUMENTS = 2
MAX_VALUE_CHARS = 60
MAX_VALUE_WORDS = 6
MAX_NAME_WORDS = 4
MAX_NAME_CHARS = 40
MAX_TOOL_WORDS = 6
MAX_LIST = 3
MAX_FORMS = 12
"""Items of a list that an approval may name; a longer list is approved by its count."""
MAX_CONFIRM_WORDS = 5
FALLBACK_CONFIRM = "confirm this action"

_SECRET_WORDS = frozenset(
    "token tokens password passwords passwd pwd passphrase passcode secret secrets key keys apikey credential"
    " credentials auth authorization bearer pin otp cookie cookies cvv cvc".split()
)
_CAMEL = re.compile(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NAME_WORD = re.compile(r"[^\W_]+")
# What a voice would read as the end of a sentence, or as a mark: never part of a value that is read out.
_ENDS = re.compile(r"[.:]+(?=\s|$)|[.]{2,}")
_MARKS = re.compile(
    r"[^\w\s.:/\\@+\-&=%#$\u20ac\u00a3]|[#=](?=\s|$)|(?<!\S)[#=:.\-+]+(?=\s|$)|(?<!\S)_+|_+(?!\S)"
)
_SPOKEN_QUOTES = frozenset("quote unquote quoted".split())
_PROMPT_WORDS = frozenset(
    "yes no say said may confirm confirmed approve approved allow allowed already permission answer".split()
)
_PLAIN = re.compile(r"[a-z]{2,12}")


def spoken_name(name: str) -> str:
    """Read a dotted, underscored or camel-case name as words: ``agent.spawn`` is "agent spawn"."""
    return " ".join(_name_words(name, MAX_TOOL_WORDS)) or "this tool"


def _name_words(name: str, limit: int) -> Words:
    cut = _CAMEL.sub(" ", unicodedata.normalize("NFKC", name[:200]))
    kept: list[str] = []
    for word in _NAME_WORD.findall(cut):
        if len(kept) == limit or sum(map(len, kept)) + len(word) > MAX_NAME_CHARS:
            break
        kept.append(word.lower())
    return tuple(kept)


def describe(arguments: Mapping[str, Any], limit: int = MAX_ARGUMENTS) -> tuple[str, ...]:
    """Describe arguments, each as its name and a value that can be said; what is over the limit is counted.

    Secrets are not read out, long texts and nested values are described.
    """
    said = [
        f"{_argument_name(name)} {_spoken_value(name, value)}" for name, value in _first(arguments, limit)
    ]
    more = len(arguments) - len(said)
    if more:
        said.append("1 more argument" if more == 1 else f"{more} more arguments")
    return tuple(said)


def _first(arguments: Mapping[str, Any], limit: int) -> Iterator[tuple[str, Any]]:
    for _, pair in zip(range(limit), arguments.items(), strict=False):
        yield pair


def _argument_name(name: str) -> str:
    return " ".join(_name_words(name, MAX_NAME_WORDS)) or "an argument"


def _is_secret(name: str) -> bool:
    return bool(_SECRET_WORDS & set(_name_words(name, 20)))


def _spoken_value(name: str, value: Any) -> str:
    if _is_secret(name):
        return "a secret"
    match value:
        case str():
            return _spoken_text(value)
        case bool():
            return "true" if value else "false"
        case int() | float():
            text = str(value)
            return text if len(text) <= MAX_VALUE_CHARS else "a long number"
        case None:
            return "nothing"
        case Mapping():
            return _count(len(value), "field")
        case Sequence() if not isinstance(value, bytes | bytearray):
            return _spoken_list(name, value)
    return "a value"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {plural(noun)}"


def _spoken_list(name: str, items: Sequence[Any]) -> str:
    count = _count(len(items), "item")
    if not 0 < len(items) <= MAX_LIST or not all(isinstance(item, str | int | float) for item in items):
        return count
    *first, last = (_spoken_value(name, item) for item in items)
    return f"{count}: {', '.join(first)} and {last}" if first else f"{count}: {last}"


def clean(text: str) -> str:
    """Take out of a value what is not seen and what a voice reads as punctuation; spaces become single."""
    text = unicodedata.normalize("NFKC", text[: 4 * MAX_VALUE_CHARS])
    seen = "".join(" " if c.isspace() else c if unicodedata.category(c)[0] != "C" else "" for c in text)
    return " ".join(_ENDS.sub(" ", _MARKS.sub(" ", _ENDS.sub(" ", seen))).split())


def _spoken_text(text: str) -> str:
    """Read a short text out, several words in quotes; what could pass for the prompt, in spoken ones."""
    if not text.strip():
        return "an empty text"
    size = len(text.encode(errors="replace"))
    said = clean(text) if len(text) <= 4 * MAX_VALUE_CHARS else ""
    words = said.split()
    if said and len(said) <= MAX_VALUE_CHARS and len(words) <= MAX_VALUE_WORDS:
        known = set(words_of(said))
        if known & _PROMPT_WORDS and not known & _SPOKEN_QUOTES:
            return f"quote {said} end quote"
        if not known & _PROMPT_WORDS:
            return said if len(words) == 1 else f"\u201c{said}\u201d"
    if len(words) == 1 and (ending := _last_part(said)) and len(ending) <= MAX_VALUE_CHARS:
        return f"a long path that ends in {ending}"
    if size >= 1024:
        return f"a {round(size / 1024)} kilobyte text"
    return f"a text of {_count(len(text), 'character')}"


def _last_part(path: str) -> str:
    parts = re.split(r"[/\\]", path.rstrip("/\\"))
    return parts[-1] if len(parts) > 1 and not set(words_of(parts[-1])) & _PROMPT_WORDS else ""


def make_question(
    name: str,
    risk: Risk,
    effect: Effect,
    arguments: Mapping[str, Any],
    reasons: Sequence[Reason] = (),
    scopes: Sequence[Scope] = ("once", "session", "always"),
) -> Question:
    """Make the question for a call. A safe tool that asks is asked about as one of medium risk.

    ``scopes`` are those that a medium answer may choose from; at high risk there is none but once.
    """
    high = risk == "high"
    return Question(
        tool=name,
        risk="high" if high else "medium",
        action=_action(name, describe(arguments)),
        brief=_action(name, describe(arguments, BRIEF_ARGUMENTS)),
        tool_words=words_of(" ".join(_name_words(name, MAX_TOOL_WORDS))),
        values=tuple(_values(arguments)),
        counts=tuple(_counts(arguments)),
        arguments=len(arguments),
        confirm_phrase=_confirm_phrase(name, arguments) if high else "",
        scopes=("once",) if high else tuple(scopes),
        irreversible=effect == "irreversible",
        reasons=tuple(REASONS[reason] for reason in reasons),
    )


def _action(name: str, said: Sequence[str]) -> str:
    if not said:
        return f"run {spoken_name(name)}"
    joined = said[0] if len(said) == 1 else f"{'; '.join(said[:-1])}; and {said[-1]}"
    return f"run {spoken_name(name)}, with {joined}"


def prompt(question: Question, attempt: int = 1) -> str:
    """Put the question into words; ``attempt`` counts from 1, and later ones say what is missing.

    The first names the call in full; whoever hears a later one has heard it. None ends with words that
    approve: a microphone may hear the prompt's end.
    """
    reasons = " ".join((*question.reasons, "")) if attempt == 1 else ""
    if question.risk == "high":
        undone = " This cannot be undone." if question.irreversible else " This is a high risk action."
        phrase = question.confirm_phrase
        if attempt == 1:
            return f"{reasons}May I {question.action}?{undone} To go ahead say: {phrase}. Or say no."
        opening = "I did not hear the exact words. " if attempt == 2 else ""
        return f"{opening}May I {question.brief}? Say: {phrase}. Or say no."
    undone = " This cannot be undone." if question.irreversible and attempt == 1 else ""
    if attempt == 1:
        return f"{reasons}May I {question.action}?{undone} Say yes or no."
    if attempt == 2:
        return f"I did not catch a clear yes or no. May I {question.brief}? Say yes or no."
    return f"May I {question.brief}? Please say just yes or no."


# -- what may be said in an answer


def _counts(arguments: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    for at, value in enumerate(arguments.values()):
        if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray) and value:
            yield at, len(value)


def _values(arguments: Mapping[str, Any]) -> Iterator[SpokenValue]:
    for at, (name, value) in enumerate(_first(arguments, 2 * MAX_ARGUMENTS)):
        if _is_secret(name):
            continue
        words = words_of(" ".join(_name_words(name, MAX_NAME_WORDS)))
        items = list(value) if isinstance(value, list | tuple) and len(value) <= MAX_FORMS else [value]
        for item, one in enumerate(items):
            if forms := _forms(one, words):
                yield SpokenValue(at, words, forms, item)


def _forms(value: Any, name: Words) -> tuple[Words, ...]:
    """Say how people may name a value: in full, a path by its end, an address or a person by the first name.

    A form that holds a word which means something else in an answer is none.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ()
    text = str(value)
    if not 0 < len(text) <= 4 * MAX_VALUE_CHARS:
        return ()
    ways = [text]
    if isinstance(value, str):
        ways += _shorter(text, name)
    forms = {tuple(word for word in words_of(_signed(way)) if word[0].isalnum()) for way in ways}
    return tuple(sorted(form for form in forms if form and len(form) <= 8 and _is_innocent(form)))


def _is_innocent(form: Words) -> bool:
    inner = set(form[1:-1]) - PREPOSITIONS - DETERMINERS
    return not RESERVED & {form[0], form[-1], *inner}


def _signed(text: str) -> str:
    return f"minus {text[1:]}" if re.fullmatch(r"-\d[\d.,]*", text) else text


def _shorter(text: str, name: Words) -> Iterator[str]:
    last = re.split(r"[/\\]", text.rstrip("/\\"))[-1] if "://" not in text else ""
    yield last
    stem, dot, ending = last.rpartition(".")
    if dot and stem and re.fullmatch(r"[A-Za-z]\w{0,4}", ending) and "@" not in last:
        yield stem
    local, at, _ = text.partition("@")
    if at and re.fullmatch(r"[A-Za-z]+", local):
        yield local
    first, space, rest = text.partition(" ")
    if space and set(name) & PEOPLE and re.fullmatch(r"[^\W\d]+( [^\W\d]+)?", rest) and first.isalpha():
        yield first


# -- what must be repeated


def _confirm_phrase(name: str, arguments: Mapping[str, Any]) -> str:
    """Make the words to repeat, two to five: "confirm delete three files", "confirm delete file notes"."""
    spoken = [word for word in _name_words(name, MAX_TOOL_WORDS) if re.fullmatch(r"[a-z]{2,16}", word)]
    tool = spoken[-(MAX_CONFIRM_WORDS - 1) :]
    if not tool:
        return FALLBACK_CONFIRM
    lists = [(key, len(value)) for key, value in arguments.items() if isinstance(value, list | tuple)]
    if len(lists) == 1 and lists[0][1] > 1:
        if len(tool) == 1:
            nouns = [w for w in _name_words(lists[0][0], MAX_NAME_WORDS) if re.fullmatch(r"[a-z]{2,16}", w)]
            tool += nouns[-1:] or ["item"]
        count = NUMBER_WORDS.get(lists[0][1], str(lists[0][1]))
        verbs = tool[:-1][-(MAX_CONFIRM_WORDS - 3) :]
        return " ".join(["confirm", *verbs, count, plural(singular(tool[-1]))])
    room = MAX_CONFIRM_WORDS - 1 - len(tool)
    return " ".join(["confirm", *tool, *_said_value(arguments, room)])


_PROSE = frozenset(("content", "text", "body", "message", "data", "notes", "description"))
"""Arguments that do not say what is acted upon: their words are not those to repeat."""


def _said_value(arguments: Mapping[str, Any], room: int) -> Words:
    """Pick the first value that is short and plain enough to be repeated and heard right."""
    for name, value in arguments.items():
        items = value if isinstance(value, list | tuple) else [value]
        if name in _PROSE or _is_secret(name) or len(items) != 1 or not isinstance(items[0], str):
            continue
        words = words_of(" ".join(_name_words(name, MAX_NAME_WORDS)))
        forms = sorted(_forms(items[0], words), key=lambda form: (len(form), form))
        plain = [form for form in forms if len(form) <= room and all(map(_PLAIN.fullmatch, form))]
        if plain:
            return plain[0]
    return ()
