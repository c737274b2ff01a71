"""The verb and object that may follow a consent, in words of the tool's names and of the prompt."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from conductor.tools.spoken.calls import Call
from conductor.tools.spoken.values import Leaf
from conductor.tools.spoken.vocabulary import Vocabulary, singular

# Parts that may follow the verb: "send | her | the message | about the budget".
MAX_PARTS = 4

_FILLED = re.compile(r"(\w+) +\{([^{}]*)\}")


def object_pattern(
    call: Call, names: Sequence[Call], template: str, said: Sequence[Leaf], known: Vocabulary
) -> re.Pattern[str]:
    """Match the tool's own verb with its object, in words of its ``names`` and of the prompt.

    The group ``own`` consents by itself, ``own_stop`` only after a consent: "cancel it", or a verb alone.
    """
    sets, action = known.sets, known.data["action"]
    nouns = {noun for name in names for noun in name.nouns} - sets["reserved"]
    negated = any(sets["negations"] & {*name.words} for name in names)  # "do not call" calls no one
    heads = set() if negated else {name.verb for name in names} - {""}
    heads = (stops := heads & sets["stop_verbs"]) or heads - sets["reserved"]  # "cancel that" takes back
    deeds = _ways("doings", map(singular, nouns), known) if not negated and heads <= sets["light"] else ()
    verbs = sorted({*heads, *deeds})
    the = f"(?:{_any(sets['determiners'])})?"
    deed = _any([*verbs, *_ways("deeds", verbs, known)])  # "make the transfer"
    where = {word for name in names for word in name.rest} - sets["small_words"] | nouns
    nouns |= {*_ways("things", map(singular, nouns), known)}
    filled = {name: word for word, name in _FILLED.findall(template) if word in sets["prepositions"]}
    single = [leaf for leaf in _single(said, known) if not sets["origins"] & {*leaf.label}]
    where |= {way for leaf in single for way in _named(leaf, known)}
    where |= {*_ways("things", map(singular, where), known)}
    place = f"(?:{_any(sets['into'])}{the}(?:{_any(where)}){{1,3}}|{_any(_phrases(action['there'], known))})"
    personal = bool({*verbs} & sets["personal"])  # "block her", but not "delete her"
    people = _people(said, known) if personal else []
    things = [leaf for leaf in single if leaf.argument not in filled]
    things = [leaf for leaf in things if leaf in people or not _target(leaf, known)]
    thing = _thing(call, nouns, things, said, known, it="it" if stops else "")
    switches = _switches(names, said, known)
    unsure = sets["onoff"] if switches is None or switches else frozenset[str]()
    parts = "|".join([thing, *_tails(names, filled, unsure, said, personal, known)])
    others = (way for way in _ways("synonyms", verbs, known) if not unsure & {*way.split()})
    verb = _any([*verbs, *others])
    particles = {*_ways("tails", verbs, known)} - unsure | (switches or set())
    turned = f"(?:{_any(particles)})?"
    served = f"(?:{_any(sets['served'])})?" if {*verbs} & sets["serving"] else ""  # "book me a table"
    ends = f"(?:{_any(_phrases(action['ends'], known))})?"
    own = f"{verb}{served}{turned}(?:(?:{parts}){turned}){{1,{MAX_PARTS}}}"
    for pattern in (pattern for one in verbs for pattern in known.data["idioms"].get(one, ())):
        before, it, after = pattern.partition("{}")
        rest = _any(_unless(unsure, after, known))
        rest = f"(?:{place}|{rest})" if "{place}" in after else rest
        own = f"{_any(_unless(unsure, before, known))}{thing + rest if it else ''}|{own}"
    own = f"(?:{own}){ends}"
    permits, ahead = (_any(_phrases(action[key], known)) for key in ("permits", "ahead"))
    ways = [
        f"{permits}(?:{thing}|{the}{deed})",
        f"{_any(sets['makes'])}{_any(sets['determiners'])}{deed}",
        f"{ahead}{verb}",
    ]
    ways.append(_any(f"{run} {it}" for run in sets["generic"] for it in ("it", " ".join(call.words))))
    alone = _any(heads - sets["transitive"])
    # "Cancel it" may be meant for the call that is asked about, or for the question itself.
    if stops:
        return re.compile(f"(?P<own>{ahead}{own}|{'|'.join(ways)})|(?P<own_stop>{own})")
    return re.compile(f"(?P<own>(?:{ahead})?{own}|{'|'.join(ways)})|(?P<own_stop>{alone})")


def _thing(
    call: Call, nouns: set[str], things: Sequence[Leaf], said: Sequence[Leaf], known: Vocabulary, it: str
) -> str:
    sets, action = known.sets, known.data["action"]
    the = f"(?:{_any(sets['determiners'])})?"
    every = "(?:all )?" if "all" in call.words else ""
    # The nouns in the right number: "the files" are not one, and "the file" is not three.
    many = call.count > 1
    plural = many or any(sets["counts"] & {*leaf.label} for leaf in said)
    forms = {form for noun in nouns for form in _forms(noun, many, plural)}
    noun = _any(forms)
    counted = action["counted"] + (action["both"] if call.count == 2 else [])
    count = _any(form.format(call.count) for form in counted) if many else "(?!)"
    people = {way for leaf in things if leaf in _people(said, known) for way in _named(leaf, known)}
    others = {way for leaf in things for way in _named(leaf, known)} - people
    value = {form for way in others for form in _forms(way, many, plural)}
    lasts = [word for leaf in things for word in known.words(leaf.words)[-1:]]
    them = action["them"] if plural or any(form != singular(form) for form in (*forms, *lasts)) else []
    them = them + (action["everything"] if every else [])
    pronoun = _any([it] if it else [*sets["pronouns"], *_phrases(them, known)])
    named = f"{the}{_any(value)}(?:{noun})?|(?:my )?{_any(people)}"
    return f"(?:{every}{the}(?:{count})?(?:{noun}){{1,3}}|{named}|{the}{count}|{pronoun})"


def _switches(names: Sequence[Call], said: Sequence[Leaf], known: Vocabulary) -> set[str] | None:
    # None if on and off could be confused.
    words = {word for name in names for word in (*name.words[1:2], *name.words[-1:])}
    found = known.sets["particles"] & (words | {leaf.words for leaf in said})
    settings = {word for leaf in said for word in (*leaf.label, leaf.words.lower())} - found
    doubt = known.sets["contrary"] & settings or any(leaf.value == 0 for leaf in said)  # or False
    return None if doubt or len(found) > 1 else {*found}


def _tails(
    names: Sequence[Call],
    filled: Mapping[str, str],
    unsure: Set[str],
    said: Sequence[Leaf],
    personal: bool,
    known: Vocabulary,
) -> Iterator[str]:
    sets = known.sets
    the = f"(?:{_any(sets['determiners'])})?"
    if who := _persons(said, known):
        yield f"(?:to |with ){'?' if personal else ''}{_any(who)}"
    for name in names:
        ends = (" ".join(name.rest[at:]) for at in range(1, len(name.rest)))
        if name.rest and name.rest[0] in sets["prepositions"] and not sets["reserved"] & {*name.rest}:
            yield f"{name.rest[0]} {the}{_any(end for end in ends if not end[0].isdigit())}"  # "to my cart"
    single = _single(said, known)
    to = [leaf for leaf in single if _target(leaf, known)]
    for leaf in single:
        words = {*filled.get(leaf.argument, "").split()} | sets["joins"] & {*leaf.label}
        if leaf in to:
            words |= {"to"}
        elif not sets["sources"] & {*leaf.label}:
            words |= sets["beside"] - unsure
        yield f"{_any(words)}{the}{_any(_named(leaf, known))}"
    numbers = [leaf.words for leaf in said if any(map(str.isdigit, leaf.words))]
    if sets["adjusting"] & {name.verb for name in names} and len(numbers) == 1:
        yield f"to {_any([' '.join(known.words(numbers[0]))])}"


def addressed(said: Sequence[Leaf], known: Vocabulary) -> frozenset[str]:
    """Return the words for the recipient of a text, if the call has one."""
    if not any(known.sets["prose"] & {*leaf.label[-1:]} for leaf in said):
        return frozenset()
    names = {word for leaf in _people(said, known) for word in known.words(leaf.words)}
    return frozenset(names | _persons(said, known))


def _persons(said: Sequence[Leaf], known: Vocabulary) -> set[str]:
    people = _people(said, known)
    first = {word for leaf in people for word in known.words(leaf.words)[:1]}
    others = {"him": known.sets["women"], "her": known.sets["men"], "them": frozenset[str]()}
    return {who for who in others if not first & others[who]} if people else set()


def _single(said: Sequence[Leaf], known: Vocabulary) -> list[Leaf]:
    places = Counter(leaf.label for leaf in said)
    banned = known.sets["dictated"] | known.sets["particles"]
    return [leaf for leaf in said if places[leaf.label] == 1 and not banned & {leaf.words, *leaf.label[-1:]}]


def _target(leaf: Leaf, known: Vocabulary) -> bool:
    return leaf.label[:1] == ("to",) or bool(known.sets["destinations"] & {*leaf.label[-1:]})


def _people(said: Sequence[Leaf], known: Vocabulary) -> list[Leaf]:
    # Where something comes "from" somewhere, "to" is a place and not a person.
    trip = any(known.sets["origins"] & {*leaf.label} for leaf in said)
    labels = known.sets["people"] | ({"with"} if trip else {"with", "to"})
    return [leaf for leaf in said if labels & {*leaf.label[:1], *leaf.label[-1:]}]


def _named(leaf: Leaf, known: Vocabulary) -> list[str]:
    # A number, or a word that changes the sense, cannot be left out.
    words, sets = known.words(leaf.words), known.sets
    if sets["reserved"] & {*words}:
        return []
    cut = [words[:1]] if words[1:2] in (("dot",), ("at",)) else [words[:1], words[1:], words[:-1], words[-1:]]
    short = [part for part in cut if part and (len(words) < 5 or len(cut) == 1) and len(part[0]) > 2]
    kept = [part for part in short if part not in known.consent and part[-1] not in sets["determiners"]]
    return [" ".join(part) for part in (words, *kept) if part and not any(word.isdigit() for word in part)]


def _forms(noun: str, many: bool, plural: bool) -> set[str]:
    one = singular(noun)
    return {noun, *([] if many else [one]), *([f"{one}s"] if plural and noun == one else [])}


def _unless(unsure: Iterable[str], pattern: str, known: Vocabulary) -> Iterator[str]:
    yield from (" ".join(phrase) for phrase in known.phrases([pattern]) if not {*unsure} & {*phrase})


def _ways(table: str, words: Iterable[str], known: Vocabulary) -> Iterator[str]:
    for word in words:
        yield from _phrases(known.data[table].get(word, ()), known)


def _phrases(patterns: Iterable[str], known: Vocabulary) -> Iterator[str]:
    yield from map(" ".join, known.phrases(patterns))


def _any(phrases: Iterable[str]) -> str:
    found = sorted({*filter(None, phrases)}, key=lambda phrase: (-len(phrase), phrase))
    return f"(?:{'|'.join(map(re.escape, found))}) " if found else "(?!)"
