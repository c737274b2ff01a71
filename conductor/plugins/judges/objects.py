"""The words of a call that an answer may contain, as a pattern."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from conductor.plugins.judges.call_names import Call
from conductor.plugins.judges.values import Leaf
from conductor.plugins.judges.vocabulary import Vocabulary, Words, singular

# Parts that may follow the verb: "send | her | the message | about the budget".
MAX_PARTS = 6

# Words of a dictated text that is repeated without the rest of the prompt.
MIN_TEXT_WORDS = 4

_FILLED = re.compile(r"(\w+) +\{([^{}]*)\}")


def object_pattern(
    call: Call, names: Sequence[Call], template: str, leaves: Sequence[Leaf], lang: Vocabulary
) -> re.Pattern[str]:
    """Match the tool's own verb with its object, in words of its ``names`` and of the prompt.

    The group ``own`` consents by itself, ``own_stop`` and ``restated`` only after a consent: "cancel it", a
    verb alone, or all words of a prompt that holds a "not" or a dictated text.
    """
    sets, action = lang.sets, lang.data["action"]
    nouns = {noun for name in names for noun in name.nouns} - sets["reserved"]
    negated = any(sets["negations"] & {*name.words} for name in names)  # "do not call" calls no one
    heads = set() if negated else {name.verb for name in names} - {""}
    heads = (stops := heads & sets["stop_verbs"]) or heads - sets["reserved"]  # "cancel that" takes back
    deeds = _ways("doings", map(singular, nouns), lang) if not negated and heads <= sets["light"] else ()
    settings = map(str.lower, (leaf.words for leaf in leaves if heads & sets["adjusting"]))
    verbs = sorted({*heads, *deeds, *_ways("settings", settings, lang)})
    deed = _choice([*verbs, *_ways("deeds", verbs, lang)])  # "make the transfer"
    single = [leaf for leaf in _single(leaves, lang) if not sets["origins"] & {*leaf.label}]
    direct = re.match(r"\w+ \{([^{}]*)\}", template)  # "play {playlist}" plays a playlist
    things = lang.data["things"].keys()
    nouns |= things & {leaf.label[-1] for leaf in single if direct and leaf.argument == direct[1]}
    location = _location(names, nouns, single, lang)
    nouns |= {*_ways("things", map(singular, nouns), lang)}
    prepositions = {name: word for word, name in _FILLED.findall(template) if word in sets["prepositions"]}
    personal = bool({*verbs} & sets["personal"])  # "block her", but not "delete her"
    people = _people(leaves, lang) if personal else []
    objects = [leaf for leaf in single if leaf in people or not _target(leaf, lang)]
    objects = [leaf for leaf in objects if leaf.argument not in prepositions]
    switches = _switches(names, leaves, lang)
    unsure = sets["onoff"] - (switches or set()) if switches is None or switches else frozenset[str]()
    phrases, whole = _restated(call, switches or set(), leaves, lang)
    noun_phrase = _noun_phrase(call, nouns, objects, leaves, lang, only_pronoun="it" if stops else "")
    if not sets["heading"] & {*call.words[1:2]}:
        noun_phrase = f"(?:{'|'.join([*phrases[:1], noun_phrase])})"
    parts = "|".join([*phrases, noun_phrase, *_tails(names, prepositions, unsure, leaves, personal, lang)])
    synonyms = {phrase for phrase in _ways("synonyms", verbs, lang) if not unsure & {*phrase.split()}}
    if adjusting := {*verbs} & sets["adjusting"] and re.search(r"\d", str([leaf.words for leaf in leaves])):
        synonyms |= sets["adjusts"]
    verb = _choice([*verbs, *synonyms])
    # "Turn it up" is not "turn it to 24".
    own_switches = (switches or set()) & {*call.words} if adjusting else switches or set()
    particles = {*_ways("tails", verbs, lang)} - (sets["onoff"] if adjusting else unsure) | own_switches
    turned = f"(?:{_choice(particles)})?"
    served = f"(?:{_choice(sets['served'])})?" if {*verbs} & sets["serving"] else ""  # "book me a table"
    own = f"{verb}{served}{turned}(?:(?:{parts}){turned}){{1,{MAX_PARTS}}}"
    settled = [f"{_choice(sets['settles'])}{noun_phrase}{_number(leaves, lang)}"] if adjusting else []
    idioms = [*_idioms(verbs, unsure, location, noun_phrase, leaves, lang), *settled]
    own = f"(?:(?:{'|'.join(idioms) or '(?!)'})(?:{parts}){{0,2}}|{own})"
    text = _choice(_texts(leaves, lang) if call.arguments else ())
    text = f"(?:{own}|{verb}{turned})(?:{_choice(sets['introduces'])})?{text}(?:{parts}){{0,2}}"
    own += f"(?:{_choice(_phrases(action['ends'], lang))})?"
    ahead = _choice(_phrases(action["ahead"], lang))
    further = f"{_permission(noun_phrase, deed, call, lang)}|{ahead}{verb}"
    if stops:
        return re.compile(f"(?P<own>{ahead}{own}|{further})|(?P<own_stop>{own})")
    switched = f"(?:{noun_phrase})?{_choice(own_switches & sets['onoff'])}"
    restated = f"(?P<restated>(?:{ahead})?(?:{verb}{turned}{whole}|{text})|{switched})"
    affirmed = f"(?P<affirmed>{_choice(_figures(single, lang))}{_choice(_phrases(action['fits'], lang))})"
    bare = f"(?P<own_stop>{_choice(heads - sets['transitive'])})"
    return re.compile(f"{restated}|(?P<own>(?:{ahead})?{own}|{further})|{affirmed}|{bare}")


def _location(names: Sequence[Call], nouns: set[str], single: Sequence[Leaf], lang: Vocabulary) -> str:
    sets = lang.sets
    things = {*_ways("things", map(singular, nouns), lang)}
    words = {word for name in names for word in name.tail} - sets["small_words"] | nouns
    words |= _all_names(single, lang) | {*_ways("places", map(singular, nouns | things), lang)}
    words |= {*_ways("things", map(singular, words), lang)}
    into, the = _choice(sets["into"]), _choice(sets["determiners"])
    adverb = _choice(_phrases(lang.data["action"]["there"], lang))
    return f"(?:{into}(?:{the})?(?:{_choice(words)}){{1,3}}|{adverb})"


def _permission(noun_phrase: str, deed: str, call: Call, lang: Vocabulary) -> str:
    sets = lang.sets
    permits, the = _choice(_phrases(lang.data["action"]["permits"], lang)), _choice(sets["determiners"])
    generic = [f"{run} {text}" for run in sets["generic"] for text in ("it", " ".join(call.words))]
    deeds = f"{_choice(sets['makes'])}{the}{deed}"
    return f"{permits}(?:{noun_phrase}|(?:{the})?{deed})|{deeds}|{_choice(generic)}"


def _texts(leaves: Sequence[Leaf], lang: Vocabulary) -> list[str]:
    # What the template dictates, if it is read out as a whole and could be nothing else, as a condition.
    texts = [lang.words(leaf.words) for leaf in leaves if lang.sets["dictated"] & {*leaf.label[-1:]}]
    changing, sets = lang.sets["excepting"], lang.sets
    whole = [text for text in texts if len(text) >= MIN_TEXT_WORDS and not changing & {*text}]
    return [" ".join(text) for text in whole if not sets["reserved"] - sets["subjects"] & {*text[:1]}]


def _figures(leaves: Sequence[Leaf], lang: Vocabulary) -> Iterator[str]:
    for leaf in leaves:
        figure = " ".join(lang.words(leaf.words))
        number = figure.rpartition(" ")[0]  # "2" of "2 pm"
        if any(map(str.isdigit, figure)) or " ".join(leaf.label) in lang.data["dates"]:
            yield from (figure, *(f"{figure} {unit}" for unit in _ways("units", leaf.label, lang)))
            yield from [number] if number.replace(":", "").isdigit() else ()


def _idioms(
    verbs: Sequence[str],
    unsure: Set[str],
    location: str,
    noun_phrase: str,
    leaves: Sequence[Leaf],
    lang: Vocabulary,
) -> list[str]:
    """Match the everyday forms of the verbs: "put it in the calendar", "let Marcus know"."""
    people = _all_names(_people(leaves, lang), lang) | _persons(leaves, lang)
    objects = {"": noun_phrase, "who": f"(?:my )?{_choice(people)}"}
    idioms = []
    for pattern in (pattern for verb in verbs for pattern in lang.data["idioms"].get(verb, ())):
        before, *rest = re.split(r"\{(|who)\}", pattern)
        tail = _choice(_unless(unsure, rest[1], lang)) if rest and rest[1].strip() else ""
        tail = f"(?:{location}|{tail})" if "{place}" in pattern else tail
        idioms.append(_choice(_unless(unsure, before, lang)) + (objects[rest[0]] + tail if rest else ""))
    return idioms


def _restated(call: Call, switches: Set[str], leaves: Sequence[Leaf], lang: Vocabulary) -> tuple[Words, str]:
    """Match the phrases that follow the verb in the prompt, or all of them where a part means something else.

    "turn | the nursery thermostat | to 24": a phrase keeps its preposition and its order, articles are free.
    """
    sets, action, words = lang.sets, lang.data["action"], call.words[1:]
    verb_first = lang.words(call.text)[:1] == call.words[:1] == (call.verb,)
    numbers = {*filter(str.isdigit, words)}
    conflict = numbers and {str(leaf.size) for leaf in leaves if leaf.size} - numbers
    if conflict or not verb_first or not (call.arguments or sets["reserved"].isdisjoint(words)):
        return (), "(?!)"
    text = sets["dictated"] & {"".join(leaf.label[-1:]) for leaf in leaves if leaf.argument in call.arguments}
    free = sets["articles"] if text else sets["determiners"] | sets["owned"]
    the = f"(?:{_choice(free)}){{0,2}}"
    names = {lang.words(leaf.words): _short_names(leaf, lang) for leaf in _people(leaves, lang) if leaf.words}
    phrases, start = [""], 1 if {*words[:1]} & switches else 0
    # What "and" joins stays together: the rest of "move the note to A and the list to B" is said as a whole.
    joined = sets["joining"] & {*words}
    limit, strict = 2 if joined else len(words), text or joined or sets["excepting"] & {*words}
    while start < len(words):
        word = words[start]
        name = next((name for name in names if words[start : start + len(name)] == name), ())
        phrases += [""] if word in sets["heading"] and len(phrases) < limit else []
        if name:
            phrases[-1] += f"(?:my )?{_choice([' '.join(name), *names[name], *_persons(leaves, lang)])}"
        elif word not in free:
            unit = f"{the}{_choice(action['alike' if start else 'mirrored'].get(word, word).split('|'))}"
            # "To 24" is "to 24 degrees", and "the thermostat" is "the nursery thermostat".
            is_last = {*words[start + 1 : start + 2]} <= sets["heading"]
            is_free = not (is_last or strict or phrases[1:] or word in numbers)
            is_unit = is_last and {*words[:start][-1:]} & numbers
            is_free = is_free or lang.consent.get((word,)) == "and"  # "milk, eggs, bread"
            phrases[-1] += f"(?:{unit})?" if is_free or is_unit else unit
        start += len(name) or 1
    if text or sets["excepting"] & {*words}:
        return (), "".join(phrases) or "(?!)"
    return tuple(filter(None, phrases)), "(?!)"


def _noun_phrase(
    call: Call,
    nouns: set[str],
    objects: Sequence[Leaf],
    leaves: Sequence[Leaf],
    lang: Vocabulary,
    only_pronoun: str,
) -> str:
    sets, action = lang.sets, lang.data["action"]
    the = f"(?:{_choice(sets['determiners'])})?"
    every = "(?:all )?" if "all" in call.words else ""
    listed = call.verb in sets["serving"] and any(leaf.size > 1 for leaf in leaves)  # "order all of it"
    # The nouns in the right number: "the files" are not one, and "the file" is not three.
    many = call.count > 1
    plural = many or any(sets["counts"] & {*leaf.label} for leaf in leaves)
    forms = {form for noun in nouns for form in _forms(noun, many, plural)}
    noun = _choice(forms)
    counted = action["counted"] + (action["both"] if call.count == 2 else [])
    count = _choice(form.format(call.count) for form in counted) if many else "(?!)"
    people = _all_names([leaf for leaf in objects if leaf in _people(leaves, lang)], lang)
    value = {form for name in _all_names(objects, lang) - people for form in _forms(name, many, plural)}
    lasts = [word for leaf in objects for word in lang.words(leaf.words)[-1:]]
    plurals = action["them"] if plural or any(form != singular(form) for form in (*forms, *lasts)) else []
    plurals = plurals + (action["everything"] if every or listed else [])
    pronouns = [only_pronoun] if only_pronoun else [*sets["pronouns"], *_phrases(plurals, lang)]
    # "Delete it, it is old" names it once, and "send it, Ann" is said to Ann.
    first = "".join(f"(?<!{word} )" for word in pronouns)
    pronoun = first + _choice(pronouns)
    before = sorted(
        {f"{word} {form}" for word in sets["determiners"] for form in forms} | _persons(leaves, lang)
    )
    addressee = first + "".join(f"(?<!{word} )" for word in before) if people else ""
    names = f"{the}{_choice(value)}(?:{noun})?|{addressee}(?:my )?{_choice(people)}"
    return f"(?:{every}{the}(?:{count})?(?:{noun}){{1,3}}|{names}|{the}{count}|{pronoun})"


def _switches(names: Sequence[Call], leaves: Sequence[Leaf], lang: Vocabulary) -> set[str] | None:
    # None if on and off could be confused.
    words = {word for name in names for word in (*name.words[1:2], *name.words[-1:])}
    switches = lang.sets["particles"] & (words | {leaf.words for leaf in leaves})
    settings = {word for leaf in leaves for word in (*leaf.label, leaf.words.lower())} - switches
    doubt = lang.sets["contrary"] & settings or any(leaf.value == 0 for leaf in leaves)  # or False
    return None if doubt or len(switches) > 1 else {*switches}


def _tails(
    names: Sequence[Call],
    prepositions: Mapping[str, str],
    unsure: Set[str],
    leaves: Sequence[Leaf],
    personal: bool,
    lang: Vocabulary,
) -> Iterator[str]:
    sets = lang.sets
    the = f"(?:{_choice(sets['determiners'])})?"
    if pronouns := _persons(leaves, lang):
        yield f"(?:to |with ){'?' if personal else ''}{_choice(pronouns)}"
    for name in names:
        ends = (" ".join(name.tail[start:]) for start in range(1, len(name.tail)))
        if name.tail and name.tail[0] in sets["prepositions"] and not sets["reserved"] & {*name.tail}:
            # "to my cart"
            yield f"{name.tail[0]} {the}{_choice(end for end in ends if not end[0].isdigit())}"
    single = _single(leaves, lang)
    targets = [leaf for leaf in single if _target(leaf, lang)]
    for leaf in single:
        words = {*prepositions.get(leaf.argument, "").split()} - {"to"} | sets["joins"] & {*leaf.label}
        if leaf in targets:
            words |= {"to"}
        elif not sets["sources"] & {*leaf.label}:
            words |= sets["beside"] - unsure
        yield f"{_choice(words)}{the}{_choice(_short_names(leaf, lang))}"
    if sets["adjusting"] & {name.verb for name in names}:
        yield f"(?:to|at) {_number(leaves, lang)}"
    moving = "|to" if sets["moving"] & {name.verb for name in names} else ""
    for leaf in single:
        # A day and a time are said as they are in the prompt.
        if joins := lang.data["dates"].get(" ".join(leaf.label)):
            yield f"(?:{joins}{moving}) {the}{_choice([' '.join(lang.words(leaf.words))])}"


def _number(leaves: Sequence[Leaf], lang: Vocabulary) -> str:
    numbers = [leaf.words for leaf in leaves if any(map(str.isdigit, leaf.words))]
    units = _choice(_ways("units", (word for leaf in leaves for word in leaf.label), lang))
    return f"{_choice(' '.join(lang.words(number)) for number in numbers if not numbers[1:])}(?:{units})?"


def addressed(leaves: Sequence[Leaf], lang: Vocabulary) -> frozenset[str]:
    """Return the words for the recipient of a text, if the call has one."""
    if not any(lang.sets["prose"] & {*leaf.label[-1:]} for leaf in leaves):
        return frozenset()
    names = {word for leaf in _people(leaves, lang) for word in lang.words(leaf.words)}
    return frozenset(names | _persons(leaves, lang))


def _persons(leaves: Sequence[Leaf], lang: Vocabulary) -> set[str]:
    people = _people(leaves, lang)
    first = {word for leaf in people for word in lang.words(leaf.words)[:1]}
    excluded = {"him": lang.sets["women"], "her": lang.sets["men"], "them": frozenset[str]()}
    return {pronoun for pronoun in excluded if not first & excluded[pronoun]} if people else set()


def _single(leaves: Sequence[Leaf], lang: Vocabulary) -> list[Leaf]:
    label_counts = Counter(leaf.label for leaf in leaves)
    banned = lang.sets["dictated"] | lang.sets["particles"]
    return [
        leaf
        for leaf in leaves
        if label_counts[leaf.label] == 1 and not banned & {leaf.words, *leaf.label[-1:]}
    ]


def _target(leaf: Leaf, lang: Vocabulary) -> bool:
    return leaf.label[:1] == ("to",) or bool(lang.sets["destinations"] & {*leaf.label[-1:]})


def _people(leaves: Sequence[Leaf], lang: Vocabulary) -> list[Leaf]:
    # With an origin ("from"), "to" is a place and not a person.
    trip = any(lang.sets["origins"] & {*leaf.label} for leaf in leaves)
    labels = lang.sets["people"] | ({"with"} if trip else {"with", "to"})
    return [leaf for leaf in leaves if labels & {*leaf.label[:1], *leaf.label[-1:]}]


def _all_names(leaves: Iterable[Leaf], lang: Vocabulary) -> set[str]:
    return {name for leaf in leaves for name in _short_names(leaf, lang)}


def _short_names(leaf: Leaf, lang: Vocabulary) -> list[str]:
    # A number or a reserved word cannot be left out.
    words, sets = lang.words(leaf.words), lang.sets
    if sets["reserved"] & {*words}:
        return []
    cut = [words[:1]] if words[1:2] in (("dot",), ("at",)) else [words[:1], words[1:], words[:-1], words[-1:]]
    short = [part for part in cut if part and (len(words) < 5 or len(cut) == 1) and len(part[0]) > 2]
    usable = [part for part in short if part not in lang.consent and part[-1] not in sets["determiners"]]
    return [" ".join(part) for part in (words, *usable) if part and not any(word.isdigit() for word in part)]


def _forms(noun: str, many: bool, plural: bool) -> set[str]:
    base = singular(noun)
    return {noun, *([] if many else [base]), *([f"{base}s"] if plural and noun == base else [])}


def _unless(unsure: Iterable[str], pattern: str, lang: Vocabulary) -> Iterator[str]:
    yield from (" ".join(phrase) for phrase in lang.phrases([pattern]) if not {*unsure} & {*phrase})


def _ways(table: str, words: Iterable[str], lang: Vocabulary) -> Iterator[str]:
    for word in words:
        yield from _phrases(lang.data[table].get(word, ()), lang)


def _phrases(patterns: Iterable[str], lang: Vocabulary) -> Iterator[str]:
    yield from map(" ".join, lang.phrases(patterns))


def _choice(phrases: Iterable[str]) -> str:
    ordered = sorted({*filter(None, phrases)}, key=lambda phrase: (-len(phrase), phrase))
    return f"(?:{'|'.join(map(re.escape, ordered))}) " if ordered else "(?!)"
