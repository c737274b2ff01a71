"""The spoken question about a call: what is consented to, all of it, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

from conductor.plugins.judges.page import Page, Words, load_page
from conductor.plugins.judges.values import (
    DICTATED_WORDS,
    MAX_LEAVES,
    MAX_SAID_CHARS,
    Leaf,
    amount,
    is_latin,
    leaves,
    name_words,
    said,
    say,
)
from conductor.tools.base import ToolSpec
from conductor.tools.outcomes import Caution

# Words that a person repeats at most, and values of a later question.
MAX_REPEATED_WORDS = 14
MAX_BRIEF = 4
MAX_COUNTED = 100

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_VERSION = re.compile(r"v\d+|v|\d+")


@dataclass(frozen=True, slots=True)
class SpokenValue:
    """A value of the question in words, which its ``label`` may precede. ``before``: a link before it."""

    words: Words
    before: str = ""
    label: Words = ()

    @property
    def is_number(self) -> bool:
        """Whether it begins with a digit."""
        return self.words[0][:1].isdigit()

    @property
    def is_long(self) -> bool:
        """Whether it counts alone, and whether words behind it may belong to it."""
        return len(self.words) >= DICTATED_WORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionWords:
    """A spoken question; made by `make_question`.

    ``action`` describes the call with all its values, ``brief`` with four at most. An answer may contain the
    ``verbs`` of the tool, all ``nouns`` of one of its names, and whole ``values`` in their order. ``repeat``
    must be repeated at high risk, and is empty otherwise. ``by_voice`` is False where only a tap may approve.
    ``asker`` is the untrusted MCP server whose tool it is, which is named first.
    """

    language: str
    risk: Literal["medium", "high"]
    action: str
    brief: str
    verbs: frozenset[str] = frozenset()
    nouns: tuple[Words, ...] = ()
    particles: frozenset[str] = frozenset()
    values: tuple[SpokenValue, ...] = ()
    repeat: str = ""
    for_session: bool = False
    irreversible: bool = False
    reasons: tuple[str, ...] = ()
    by_voice: bool = True
    asker: str = ""


@dataclass(frozen=True, slots=True)
class _CallName:
    """The name of a call: what "May I" asks for, the tool's own words and verbs, and the arguments within."""

    action: str
    own: str
    verbs: frozenset[str]
    arguments: frozenset[str] = frozenset()


def make_question(
    language: str,
    spec: ToolSpec,
    arguments: Mapping[str, Any],
    reasons: Sequence[Caution] = (),
    *,
    scopes: Sequence[str] = ("once", "session"),
    zone: str | None = None,
) -> QuestionWords:
    """Make the question for a call in a language; times are told in the time zone ``zone``.

    A safe tool that asks is treated as medium risk. ``scopes`` may be chosen from at medium risk; at high
    risk there is only once.
    """
    page = load_page(language)
    every = list(islice(leaves(arguments, spec.input_schema, page), MAX_LEAVES + MAX_COUNTED + 1))
    spoken = _amounts([said(leaf, page, zone) for leaf in every[:MAX_LEAVES]], page)
    asker = _asker(spec)
    name = _name(spec, spoken, page, is_strange=bool(asker))
    others = [leaf for leaf in spoken if leaf.argument not in name.arguments]
    details = [_detail(leaf, page) for leaf in others]
    unsaid = max(0, len(every) - MAX_LEAVES)
    is_whole = not unsaid and all(leaf.text is not None for leaf in spoken)
    is_whole = is_whole and sum(map(len, details)) + len(name.action) <= MAX_SAID_CHARS + 60
    repeat = _repeated(name, others, page) if spec.risk == "high" and is_whole else ""
    action = _with(name.action, [*details, *([_more(unsaid, page)] if unsaid else [])], page)
    rest = len(details) + unsaid - MAX_BRIEF + 1
    brief = [*details[: MAX_BRIEF - 1], _more(rest, page)] if rest > 1 else details
    verbs = name.verbs | _own_verbs(spec, page)
    return QuestionWords(
        language=language,
        risk="high" if spec.risk == "high" else "medium",
        action=action,
        brief=_with(name.action, brief, page),
        verbs=verbs,
        nouns=_nouns(spec, name, verbs, page),
        particles=page.lists["particles"] & _turns(name, spoken, page),
        values=tuple(_values(spoken, page.words(action), page)),
        repeat=repeat,
        for_session="session" in scopes and spec.risk != "high",
        irreversible=spec.effect == "irreversible",
        reasons=tuple(page.sentences[reason] for reason in reasons),
        by_voice=is_whole and (spec.risk != "high" or bool(repeat)),
        asker=asker,
    )


def prompt(question: QuestionWords, attempt: int = 1) -> str:
    """Word the question; ``attempt`` counts from 1, and 0 repeats the whole question on request.

    None ends with words that approve, since a microphone may pick up the end.
    """
    page = load_page(question.language)
    words = page.sentences
    kind = "screen" if not question.by_voice else question.risk
    parts = [*question.reasons] if attempt == 1 else [words[f"unclear_{kind}"]] if attempt == 2 else []
    action = question.action if attempt < 2 else question.brief
    parts.append(
        words["asks"].format(question.asker, action) if question.asker else words["ask"].format(action)
    )
    if attempt < 2 and (question.irreversible or question.risk == "high"):
        parts.append(words["irreversible" if question.irreversible else "risky"])
    parts.append(words[f"answer_{kind}" if attempt < 2 else f"again_{kind}"].format(question.repeat))
    return " ".join(filter(None, parts))


# -- the name of a call


def _asker(spec: ToolSpec) -> str:
    """Name the MCP server that asks, if strangers wrote the call's title; else empty."""
    kind, _, server = spec.source.partition(":")
    return " ".join(name_words(server)) or server if kind == "mcp" and spec.untrusted else ""


def _name(spec: ToolSpec, spoken: Sequence[Leaf], page: Page, *, is_strange: bool) -> _CallName:
    """Name a call by its template, else by its title, else by its name."""
    if not is_strange and (filled := _filled(spec.spoken or "", spoken, page)):
        return filled
    title = _plain(spec.title or "", page)
    if title and not is_strange and (verb := _verb_of(page.words(title), title.split(), page)):
        return _CallName(_lowered(title, page), _lowered(title, page), frozenset({verb}))
    if title:
        return _CallName(page.sentences["tool"].format(title), title, frozenset())
    name = spec.name.partition(".")[2] if is_strange else spec.name
    home, _, last = name.rpartition(".")
    words = [word for word in name_words(last) if not _VERSION.fullmatch(word)]
    place = list(name_words(home))
    text = _plain(" ".join([*words, *place] if len(words) == 1 else words), page)
    if len(words) > 1 and place and text:
        text = page.sentences["inside"].format(text, " ".join(place))
    if words and text and not is_strange and words[0] in load_page("en").lists["verbs"]:
        return _CallName(
            text if page.language == "en" else page.sentences["tool"].format(text), text, frozenset(words[:1])
        )
    text = _plain(" ".join([*place, *words]), page)
    action = page.sentences["tool"].format(text) if text else page.sentences["nameless"]
    return _CallName(action, text, frozenset())


def _filled(template: str, spoken: Sequence[Leaf], page: Page) -> _CallName | None:
    parts = _PLACEHOLDER.split(template)
    by_argument = {name: [leaf for leaf in spoken if leaf.argument == name] for name in parts[1::2]}
    literal = _plain(" ".join(page.words(" ".join(parts[::2]))), page)
    plain = all(
        len(found) == 1 and found[0].text and len(found[0].label) <= 2 for found in by_argument.values()
    )
    if not literal or not plain:
        return None
    texts = [by_argument[part][0].text or "" if index % 2 else part for index, part in enumerate(parts)]
    action = " ".join("".join(texts).split())
    words = page.words(" ".join(parts[::2]))
    is_last = page.sentences["verb_at"] == "last" and words[-1].endswith(
        tuple(page.sentences["infinitives"].split("|"))
    )
    verb = words[-1] if is_last else words[0]
    return _CallName(_lowered(action, page), literal, _without_clitics(verb, page), frozenset(by_argument))


def _without_clitics(verb: str, page: Page) -> frozenset[str]:
    """Return an infinitive, and the one without the pronoun that clings to it: "mandarle" is "mandar"."""
    stems = (verb.removesuffix(clitic) for clitic in page.clitics if verb.endswith(clitic))
    ends = tuple(page.sentences["infinitives"].split("|"))
    return frozenset({verb, *(stem for stem in stems if stem.endswith(ends))})


def _plain(text: str, page: Page) -> str:
    """Return a name that can be said as it is and cannot pass for our own sentences; else nothing."""
    spoken = say(text, page, None) if text.strip() else None
    is_fit = spoken is not None and is_latin(text) and len(text) <= 60
    return spoken if spoken and is_fit and page.framing.isdisjoint(page.words(text)) else ""


def _lowered(text: str, page: Page) -> str:
    if page.sentences["verb_at"] == "last":  # it begins with a noun, which German writes large
        return text
    first, _, rest = text.partition(" ")
    return f"{first.lower() if first[1:].islower() or len(first) == 1 else first} {rest}".strip()


def _verb_of(words: Words, written: Sequence[str], page: Page) -> str:
    """Find the verb that a title begins or ends with, as its language does; empty without one."""
    if not words:
        return ""
    ends = tuple(page.sentences["infinitives"].split("|"))
    if page.sentences["verb_at"] == "last":
        return words[-1] if written[-1].islower() and ends[0] and words[-1].endswith(ends) else ""
    after = words[2:] if words[1:2] and words[1] in page.lists["particles"] else words[1:]
    has_article = bool(after) and after[0] in page.lists["articles"] and not words[0].endswith(("ing", "s"))
    is_verb = words[0] in page.lists["verbs"] or bool(ends[0] and words[0].endswith(ends))
    return words[0] if is_verb or has_article else ""


def _own_verbs(spec: ToolSpec, page: Page) -> frozenset[str]:
    title = _verb_of(page.words(spec.title or ""), (spec.title or "").split(), page)
    last = name_words(spec.name.rpartition(".")[2])[:1]
    return frozenset({title} - {""}) | ({*last} & load_page("en").lists["verbs"])


def _nouns(spec: ToolSpec, name: _CallName, verbs: frozenset[str], page: Page) -> tuple[Words, ...]:
    """Return the nouns of each name of the call. A name that forbids ("do not call") has none."""
    last = spec.name.rpartition(".")[2]
    texts = [name.own, *([] if name.arguments else [spec.title or "", *map(_spaced, (spec.name, last))])]
    names = [page.words(text) for text in texts]
    if any(not page.lists["negations"].isdisjoint(words) for words in names):
        return ()
    links = page.lists["links"]
    free = page.lists["small"] | links | page.lists["particles"]
    found: dict[Words, None] = {}
    for words in names:
        nouns = tuple(word for word in words if word not in free and not _is_verb(word, verbs, page))
        found[nouns] = None
        if not name.arguments and links.isdisjoint(words):  # "lawn sprinkler" is a sprinkler
            found[nouns[-1:]] = None
    return tuple(filter(None, found))


def _turns(name: _CallName, spoken: Sequence[Leaf], page: Page) -> frozenset[str]:
    """Return the words of the name and of values, not of labels, that may turn a verb, such as "off"."""
    return frozenset(page.words(name.action)) | {word for leaf in spoken for word in leaf.words}


def _spaced(name: str) -> str:
    return " ".join(name_words(name))


def _is_verb(word: str, verbs: frozenset[str], page: Page) -> bool:
    return any(page.form_of(word, verb) for verb in verbs)


# -- the values


def _amounts(spoken: Sequence[Leaf], page: Page) -> list[Leaf]:
    """Join an amount and its currency: 950 and EUR are "950 euros", 1250 cents "12 pounds 50"."""
    found = [
        leaf for leaf in spoken if not leaf.is_list and page.currency(str(leaf.values[0])) and leaf.values[0]
    ]
    numbers = [
        leaf for leaf in spoken if not leaf.is_list and type(leaf.values[0]) in (int, float) and leaf.text
    ]
    if len(found) != 1 or len(numbers) != 1 or numbers[0].values[0] < 0:
        return list(spoken)
    money, leaf = page.currency(str(found[0].values[0])), numbers[0]
    is_minor = leaf.label[-1:] and leaf.label[-1] in page.sentences["minor"].split()
    cents = round(leaf.values[0] * (1 if is_minor else 100))
    if not is_minor and cents / 100 != leaf.values[0]:
        return list(spoken)
    text = amount(cents // 100, cents % 100, money, page)
    label = leaf.label[:-1] if is_minor else leaf.label
    joined = replace(leaf, label=label, text=text, words=page.words(text))
    return [joined if item is leaf else item for item in spoken if item is not found[0]]


def _detail(leaf: Leaf, page: Page) -> str:
    label = " ".join(leaf.label) or page.sentences["placeless"]
    if leaf.text is None:
        return page.sentences["unsaid"].format(label)
    if isinstance(leaf.values[0], bool) and not leaf.is_list:
        return f"{label}: {leaf.text}"
    if leaf.is_list and len(leaf.values) > 1:
        return f"{label} {page.sentences['items'].format(len(leaf.values))}: {leaf.text}"
    return f"{label} {leaf.text}"


def _more(number: int, page: Page) -> str:
    if number > MAX_COUNTED:
        return page.sentences["many"].format(MAX_COUNTED)
    return page.sentences["more" if number > 1 else "one_more"].format(number)


def _with(action: str, details: Sequence[str], page: Page) -> str:
    if not details:
        return action
    *before, last = details
    joined = f"{'; '.join(before)}; {page.sentences['and']} {last}" if before else last
    return page.sentences["with"].format(action, joined)


def _values(spoken: Sequence[Leaf], action: Words, page: Page) -> list[SpokenValue]:
    """Return the values that may be restated, each with the link that stands before it in the question."""
    found = []
    for leaf in spoken:
        words = leaf.words
        if not words or isinstance(leaf.values[0], bool) or not leaf.values[0] and leaf.values[0] != 0:
            continue
        at = next((n for n in range(len(action)) if action[n : n + len(words)] == words), 0)
        before = [word for word in action[max(0, at - 3) : at] if word not in page.lists["articles"]]
        link = before[-1] if before and before[-1] in page.lists["links"] else ""
        found.append(SpokenValue(words, link, page.words(" ".join(leaf.label))))
    return found


def _repeated(name: _CallName, others: Sequence[Leaf], page: Page) -> str:
    """Make the words that name the call and all its values; empty if they are too many to repeat."""
    parts = [page.sentences["confirm"], name.action if name.arguments else name.own]
    for leaf in others:
        is_plain = isinstance(leaf.values[0], str) and leaf.values[0] != ""
        is_money = bool(leaf.words) and leaf.words[-1] in {page.currency(name) for name in page.currencies}
        label = "" if is_plain or is_money or leaf.is_list and is_plain else " ".join(leaf.label)
        if is_plain and page.words(" ".join(leaf.label[-1:])) and {*leaf.label[-1:]} <= page.lists["links"]:
            label = leaf.label[-1]
        parts += [label, (leaf.text or "").replace(",", "")]
    phrase = " ".join(" ".join(parts).split())
    return phrase if name.own and len(page.words(phrase)) <= MAX_REPEATED_WORDS else ""
