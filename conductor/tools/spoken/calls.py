"""How a call is named, and the words of it that an answer may hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile, takewhile

from conductor.tools.base import ToolSpec
from conductor.tools.spoken.values import MAX_NAME_CHARS, Leaf, clean, is_framing, listed, name_words
from conductor.tools.spoken.vocabulary import Vocabulary, Words, singular

# Words that a person may have to repeat: with more there is no approval by voice.
MAX_REPEATED_WORDS = 14

_VERSION = re.compile(r"v\d+")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Call:
    """A call in words: ``text`` names it and holds the values of ``arguments``.

    ``words`` are the tool's own; ``verb``, ``nouns`` and ``rest`` ("delete", "photo album", "from disk") are
    found in them. ``count`` is how many there are, 0 if that is not known.
    """

    text: str
    words: Words
    verb: str
    nouns: Words
    rest: Words
    count: int
    arguments: frozenset[str] = frozenset()


def name_call(spec: ToolSpec, said: Sequence[Leaf], known: Vocabulary) -> Call:
    """Name a call by its template if that can be filled in, by its title if that can be said, or its name."""
    parts = _PLACEHOLDER.split(spec.spoken or "")
    own = {name: [leaf for leaf in said if leaf.argument == name] for name in parts[1::2]}
    literal = " ".join(map(clean, parts[::2])).strip()
    if all(found and len(found) >= found[0].size and not found[-1].nested for found in own.values()):
        # An app's own words must not pass for the server's question.
        if literal and not is_framing(literal, known):
            texts = {name: listed([leaf.text for leaf in found]) for name, found in own.items()}
            filled = (texts[part] if at % 2 else clean(part) for at, part in enumerate(parts))
            return _parsed(" ".join(" ".join(filled).split()), True, said, known, frozenset(own))
    title = [word.lower() if word[1:].islower() else word for word in clean(spec.title or "").split()]
    if title and len(" ".join(title)) <= MAX_NAME_CHARS and not is_framing(" ".join(title), known):
        # A stranger's title that begins with a verb must not pass for the server's question.
        return _parsed(" ".join(title), _begins(title, known) and not asker(spec, known), said, known)
    own_name = spec.name.partition(".")[2] if asker(spec, known) else spec.name
    name = [word for word in name_words(own_name, known) if not _VERSION.fullmatch(word)]
    return _parsed(" ".join(name) or known.data["prompt"]["nameless"], False, said, known)


def asker(spec: ToolSpec, known: Vocabulary) -> str:
    """Name the MCP server that asks, if strangers wrote the call's title; else empty."""
    kind, _, server = spec.source.partition(":")
    return " ".join(name_words(server, known)) or server if kind == "mcp" and spec.untrusted else ""


def _parsed(
    text: str,
    verb_first: bool,
    said: Sequence[Leaf],
    known: Vocabulary,
    arguments: frozenset[str] = frozenset(),
) -> Call:
    sets, words = known.sets, known.words(text)
    verbs = (at for at, word in enumerate(words) if word in sets["verbs"] | sets["stop_verbs"])
    at = 0 if verb_first else next(verbs, 0 if sets["nouns"] & {*words[:1]} else -1)
    after = [*dropwhile(lambda word: word in sets["particles"], words[at + 1 :])]
    things = [*takewhile(lambda word: word not in sets["prepositions"], after)]
    region, rest = [*words[: max(at, 0)], *things], tuple(after[len(things) :])
    nouns = tuple(word for word in region if not word.isdigit() and word not in sets["determiners"])
    counts = {int(word) for word in region if arguments and word.isdigit() and len(word) < 5}
    lists = {(leaf.label[-1:], leaf.size) for leaf in said if leaf.size}
    for label, size in lists if len(lists) == 1 and nouns else ():
        if size == 1 or nouns[-1] != singular(nouns[-1]) or nouns[-1:] == label:
            counts.add(size)
    count = counts.pop() if len(counts) == 1 else 0
    text = text if verb_first else known.data["prompt"]["run"].format(text)
    verb = words[at] if words and at >= 0 else ""
    return Call(text, words, verb, nouns, rest, count, arguments)


def own_names(call: Call, spec: ToolSpec, said: Sequence[Leaf], known: Vocabulary) -> list[Call]:
    """Read the template's own words, the title and the name: a call may be called by any of them."""
    literal = " a ".join(map(clean, _PLACEHOLDER.split(spec.spoken or "")[::2]))
    title = clean(spec.title or "").lower()
    home, _, name = spec.name.rpartition(".")
    last = [word for word in name_words(name, known) if not _VERSION.fullmatch(word)]
    # A title begins with its verb ("hide post" posts nothing), and so does a name like it or of one word.
    first = (len(last) == 1 and bool(home)) or last[:1] == title.split()[:1]
    named = _parsed(" ".join(last), first, said, known)
    around = name_words(home, known)  # "calendar.create_event": in the calendar
    around = around if call.count > 1 else tuple(map(singular, around))
    named = replace(named, nouns=named.nouns or around, rest=(*named.rest, *around))
    return [*(_parsed(text, True, said, known) for text in (literal, title) if text.strip()), named]


def _begins(words: Sequence[str], known: Vocabulary) -> bool:
    sets = known.sets
    if {*words[:1]} & (sets["verbs"] | sets["stop_verbs"] | sets["nouns"]):
        return True
    # What stands before "a", "the" or "my" is a verb, too: "instruct an agent", but not "sending a message".
    before, after = words[:1], words[1:2]
    inflected = any(word.endswith("ing") or singular(word) != word for word in before)
    return bool(sets["determiners"] & {*after}) and not inflected and not sets["reserved"] & {*before}


# -- what must be repeated at high risk


def repeated_words(call: Call, said: Sequence[Leaf], known: Vocabulary) -> str:
    """Make the words that name the verb and the deciding values; empty if these cannot be said.

    "confirm delete three files"; the amount and the recipient of a payment.
    """
    by_role: dict[str, list[Leaf]] = {"amounts": [], "currency": [], "recipients": [], "prose": [], "": []}
    for leaf in said:
        role = next((role for role in by_role if role and known.sets[role] & {*leaf.label[-1:]}), "")
        by_role["recipients" if leaf.label[:1] == ("to",) else role].append(leaf)
    prices, to = by_role["amounts"] + by_role["currency"], by_role["recipients"]
    if any(not leaf.words for leaf in (*prices, *to)):
        return ""
    if call.arguments:
        parts = [re.sub("[\u201c\u201d]", "", call.text)]
    else:
        noun = call.nouns[-1] if call.count > 1 else None
        parts = [f"{known.number(call.count)} {word}" if word == noun else word for word in call.words]
        things = by_role[""] if not by_role["amounts"] else []
        names = (
            name for leaf in things if (name := _thing(leaf, call, known)) and name.lower() not in call.words
        )
        parts.append(next(names, ""))
    parts += [leaf.words for leaf in prices if leaf.argument not in call.arguments]
    recipients = listed([leaf.words for leaf in to if leaf.argument not in call.arguments])
    phrase = known.spell(" ".join(filter(None, ["confirm", *parts, recipients and f"to {recipients}"])))
    currencies = known.data["words"]["currencies"]
    phrase = " ".join(currencies.get(word.lower(), word) for word in phrase.split())
    return phrase if len(known.words(phrase)) <= MAX_REPEATED_WORDS else ""


def _thing(leaf: Leaf, call: Call, known: Vocabulary) -> str:
    if leaf.size > 1:
        return "" if call.count == leaf.size else " ".join((known.number(leaf.size), *leaf.label[-1:]))
    return re.split(r"[/\\]", leaf.words.rstrip("/\\"))[-1]
