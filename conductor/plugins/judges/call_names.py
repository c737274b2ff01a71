"""The spoken name of a call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile, takewhile

from conductor.plugins.judges.values import MAX_NAME_CHARS, Leaf, clean, is_framing, listed, name_words
from conductor.plugins.judges.vocabulary import Vocabulary, Words, singular
from conductor.tools.base import ToolSpec

# Words that a person may have to repeat: with more there is no approval by voice.
MAX_REPEATED_WORDS = 14

_VERSION = re.compile(r"v\d+")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Call:
    """A call in words: ``text`` names it and holds the values of ``arguments``.

    ``words`` are the tool's own; ``verb``, ``nouns`` and ``tail`` ("delete", "photo album", "from disk") are
    found in them. ``count`` is how many there are, 0 if that is not known.
    """

    text: str
    words: Words
    verb: str
    nouns: Words
    tail: Words
    count: int
    arguments: frozenset[str] = frozenset()


def name_call(spec: ToolSpec, leaves: Sequence[Leaf], lang: Vocabulary) -> Call:
    """Name a call by its template if it can be filled in, by its title if it can be read out, or its name."""
    parts = _PLACEHOLDER.split(spec.spoken or "")
    by_argument = {name: [leaf for leaf in leaves if leaf.argument == name] for name in parts[1::2]}
    literal = " ".join(map(clean, parts[::2])).strip()
    if all(
        matches and len(matches) >= matches[0].size and not matches[-1].nested
        for matches in by_argument.values()
    ):
        # The app's words must not pass for the server's question.
        if literal and not is_framing(literal, lang):
            texts = {name: listed([leaf.text for leaf in matches]) for name, matches in by_argument.items()}
            filled = (texts[part] if index % 2 else clean(part) for index, part in enumerate(parts))
            return _parsed(" ".join(" ".join(filled).split()), True, leaves, lang, frozenset(by_argument))
    title = [word.lower() if word[1:].islower() else word for word in clean(spec.title or "").split()]
    if title and len(" ".join(title)) <= MAX_NAME_CHARS and not is_framing(" ".join(title), lang):
        # A stranger's title that begins with a verb must not pass for the server's question.
        return _parsed(" ".join(title), _begins(title, lang) and not asker(spec, lang), leaves, lang)
    own_name = spec.name.partition(".")[2] if asker(spec, lang) else spec.name
    name = [word for word in name_words(own_name, lang) if not _VERSION.fullmatch(word)]
    return _parsed(" ".join(name) or lang.data["prompt"]["nameless"], False, leaves, lang)


def asker(spec: ToolSpec, lang: Vocabulary) -> str:
    """Name the MCP server that asks, if strangers wrote the call's title; else empty."""
    kind, _, server = spec.source.partition(":")
    return " ".join(name_words(server, lang)) or server if kind == "mcp" and spec.untrusted else ""


def _parsed(
    text: str,
    verb_first: bool,
    leaves: Sequence[Leaf],
    lang: Vocabulary,
    arguments: frozenset[str] = frozenset(),
) -> Call:
    sets, words = lang.sets, lang.words(text)
    verbs = (start for start, word in enumerate(words) if word in sets["verbs"] | sets["stop_verbs"])
    start = 0 if verb_first else next(verbs, 0 if sets["nouns"] & {*words[:1]} else -1)
    after = [*dropwhile(lambda word: word in sets["particles"], words[start + 1 :])]
    object_words = [*takewhile(lambda word: word not in sets["prepositions"], after)]
    region, tail = [*words[: max(start, 0)], *object_words], tuple(after[len(object_words) :])
    nouns = tuple(word for word in region if not word.isdigit() and word not in sets["determiners"])
    counted = region[:-1] if arguments else []  # "2 photos", but not "photo 2"
    counts = {int(word) for word in counted if word.isdigit() and len(word) < 5}
    lists = {(leaf.label[-1:], leaf.size) for leaf in leaves if leaf.size}
    for label, size in lists if len(lists) == 1 and nouns else ():
        if size == 1 or nouns[-1] != singular(nouns[-1]) or nouns[-1:] == label:
            counts.add(size)
    count = counts.pop() if len(counts) == 1 else 0
    text = text if verb_first else lang.data["prompt"]["run"].format(text)
    verb = words[start] if words and start >= 0 else ""
    return Call(text, words, verb, nouns, tail, count, arguments)


def own_names(call: Call, spec: ToolSpec, leaves: Sequence[Leaf], lang: Vocabulary) -> list[Call]:
    """Read the template's own words, the title and the name: a call may be called by any of them."""
    literal = " a ".join(map(clean, _PLACEHOLDER.split(spec.spoken or "")[::2]))
    title = clean(spec.title or "").lower()
    home, _, name = spec.name.rpartition(".")
    last = [word for word in name_words(name, lang) if not _VERSION.fullmatch(word)]
    # A title begins with its verb ("hide post" posts nothing), and so does a similar name or a single word.
    first = (len(last) == 1 and bool(home)) or last[:1] == title.split()[:1]
    from_name = _parsed(" ".join(last), first, leaves, lang)
    home_words = name_words(home, lang)  # "calendar.create_event": in the calendar
    home_words = home_words if call.count > 1 else tuple(map(singular, home_words))
    from_name = replace(from_name, nouns=from_name.nouns or home_words, tail=(*from_name.tail, *home_words))
    return [*(_parsed(text, True, leaves, lang) for text in (literal, title) if text.strip()), from_name]


def _begins(words: Sequence[str], lang: Vocabulary) -> bool:
    sets = lang.sets
    if {*words[:1]} & (sets["verbs"] | sets["stop_verbs"] | sets["nouns"]):
        return True
    # A word before "a", "the" or "my" is a verb, too: "instruct an agent", but not "sending a message".
    before, after = words[:1], words[1:2]
    inflected = any(word.endswith("ing") or singular(word) != word for word in before)
    return bool(sets["determiners"] & {*after}) and not inflected and not sets["reserved"] & {*before}


def repeated_words(call: Call, leaves: Sequence[Leaf], lang: Vocabulary) -> str:
    """Make the words that name the verb and the deciding values; empty if a value cannot be read out.

    "confirm delete three files"; the amount and the recipient of a payment.
    """
    by_role: dict[str, list[Leaf]] = {"amounts": [], "currency": [], "recipients": [], "prose": [], "": []}
    for leaf in leaves:
        role = next((role for role in by_role if role and lang.sets[role] & {*leaf.label[-1:]}), "")
        by_role["recipients" if leaf.label[:1] == ("to",) else role].append(leaf)
    prices, recipients = by_role["amounts"] + by_role["currency"], by_role["recipients"]
    if any(not leaf.words for leaf in (*prices, *recipients)):
        return ""
    if call.arguments:
        parts = [re.sub("[\u201c\u201d]", "", call.text)]
    else:
        noun = call.nouns[-1] if call.count > 1 else None
        parts = [f"{lang.number(call.count)} {word}" if word == noun else word for word in call.words]
        objects = by_role[""] if not by_role["amounts"] else []
        names = (
            name
            for leaf in objects
            if (name := _short_value(leaf, call, lang)) and name.lower() not in call.words
        )
        parts.append(next(names, ""))
    parts += [leaf.words for leaf in prices if leaf.argument not in call.arguments]
    recipients_text = listed([leaf.words for leaf in recipients if leaf.argument not in call.arguments])
    phrase = lang.spell(
        " ".join(filter(None, ["confirm", *parts, recipients_text and f"to {recipients_text}"]))
    )
    currencies = lang.data["words"]["currencies"]
    phrase = " ".join(currencies.get(word.lower(), word) for word in phrase.split())
    return phrase if len(lang.words(phrase)) <= MAX_REPEATED_WORDS else ""


def _short_value(leaf: Leaf, call: Call, lang: Vocabulary) -> str:
    if leaf.size > 1:
        return "" if call.count == leaf.size else " ".join((lang.number(leaf.size), *leaf.label[-1:]))
    return re.split(r"[/\\]", leaf.words.rstrip("/\\"))[-1]
