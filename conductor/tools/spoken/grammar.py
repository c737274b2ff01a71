"""Classify spoken answers by a small closed grammar over a language's vocabulary.

No model takes part (tools, "Spoken approvals"). Pure and linear in time. An ambiguous answer is ``unclear``,
and the question is asked again.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from conductor.tools.spoken.vocabulary import Vocabulary, Words, phrase_at, vocabulary

Scope: TypeAlias = Literal["once", "session"]
AnswerKind: TypeAlias = Literal["allow", "deny", "unclear", "other"]

# Characters of an utterance that may be an answer.
MAX_CHARS = 600
# Words of an utterance: a longer one is never an approval.
MAX_WORDS = 40

# Letters shared by two forms of one word: "approve", "approval".
_STEM = 6

_LETTERS = {
    "hesitations": "h",
    "openings": "f",
    "openers": "o",
    "leads": "l",
    "please": "p",
    "and": "&",
    "courtesies": "t",
    "closers": "e",
    "session": "s",
    "cores": "c",
    "own": "v",
    "own_stop": "w",
    "addressed": "d",
}
_ITEM = "(?:[lp]{0,2}c(?:&?[lp]?w)?|[lp]{0,2}(?:v|d(?=[ep]*$)))"
_APPROVAL = re.compile(rf"f{{0,2}}[opt]{{0,3}}{_ITEM}(?:[&ot]?{_ITEM}){{0,3}}(?:[ept]{{0,2}}|p?s[pt]?)")
"""Over those letters. What consents is a core, or the tool's own verb with its object; a verb that also
refuses ("cancel it") counts after a core only. Where it ends in whom a text is for, what follows may be
dictated: "text her yes"."""


@dataclass(frozen=True, slots=True)
class Question:
    """A spoken question; made by `make_question`.

    ``action`` describes the call, ``brief`` does so in later attempts. ``said`` holds all words of the
    description, ``values`` those of short string arguments, which may be dictated text or a name.
    ``addressed``: words for the recipient. ``verb`` is the tool's verb; ``objects`` matches it with its
    object. ``repeat`` must be repeated at high risk and is empty otherwise. ``for_session``: whether the
    session scope may be granted. ``by_voice`` is False where only a tap may approve. ``asker`` is the
    untrusted MCP server whose tool it is, which is named first.
    """

    risk: Literal["medium", "high"]
    action: str
    brief: str
    objects: re.Pattern[str]
    verb: str = ""
    said: frozenset[str] = frozenset()
    values: frozenset[str] = frozenset()
    addressed: frozenset[str] = frozenset()
    repeat: str = ""
    for_session: bool = False
    irreversible: bool = False
    reasons: tuple[str, ...] = ()
    by_voice: bool = True
    language: str = "en"
    asker: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A classified utterance; ``scope`` applies to ``allow``, ``words`` are the person's."""

    kind: AnswerKind
    scope: Scope
    words: str


def classify_answer(utterance: str, question: Question) -> Answer:
    """Classify an utterance as an answer to an open question.

    ``allow``: the whole utterance approves, and at high risk repeats the question's words. ``deny``: a
    refusal, with or without reasons. ``other``: clearly another request. ``unclear``: anything else.
    """
    text = utterance.strip()
    known = vocabulary(question.language)
    if known is None:
        return Answer("unclear", "once", _shown(text[:MAX_CHARS]))
    said, words = known.words(text[:MAX_CHARS]), _shown(text[:MAX_CHARS])
    short = len(text) <= MAX_CHARS and len(said) <= MAX_WORDS
    # A long utterance is talk that may hold a yes, not an answer.
    scope = _approves(said, question, known) if short else None
    repeated = short and question.risk == "high" and _repeats(said, question, known)
    if question.by_voice and (repeated or (scope and question.risk != "high")):
        return Answer("allow", scope if scope and question.for_session else "once", words)
    if scope:  # a yes that is not enough
        return Answer("unclear", "once", words)
    # After approval, which must fit as a whole: "no problem, go ahead" is a yes.
    if _refuses(said, question, known):
        return Answer("deny", "once", words)
    return Answer("other" if _is_request(said, question, known) else "unclear", "once", words)


def _shown(text: str) -> str:
    kept = (c if c.isspace() or unicodedata.category(c)[0] != "C" else "" for c in text)
    return " ".join("".join(kept).split())


# -- approval


def _approves(said: Words, question: Question, known: Vocabulary) -> Scope | None:
    # "For this session" is the widest scope that voice grants.
    letters, at = "", 0
    stems = {word[:_STEM] for word in question.said if len(word) >= _STEM}
    while at < len(said):
        own = question.objects.match(" ".join(said[at:]) + " ")
        phrase = phrase_at(said, at, known.consent)
        length = own.group().count(" ") if own else 0
        if not max(length, len(phrase)):
            return None
        kind = own.lastgroup if own and length >= len(phrase) else known.consent[phrase]
        if kind == "own" and said[at + length - 1] in question.addressed:
            kind = "addressed"
        # It may end in a value ("yes, you may" with the guest May); a plain "yes" is always an answer.
        last = phrase[-1:]
        if kind == "cores" and question.values & {*last} and known.consent.get(last) != "cores":
            return None
        # "Approved" may be the folder that is asked about, and "approve the draft" the draft of an approval.
        if kind == "cores" or length >= len(phrase):
            words = {said[at], *(phrase if kind == "cores" else ())} - {question.verb}
            if stems & {word[:_STEM] for word in words if len(word) >= _STEM}:
                return None
        letters += _LETTERS[kind or ""]
        at += max(length, len(phrase))
    # It ends in a hesitation: the sentence goes on.
    if letters.endswith("h") or not _APPROVAL.fullmatch(letters.replace("h", "")):
        return None
    return "session" if "s" in letters else "once"


def _repeats(said: Words, question: Question, known: Vocabulary) -> bool:
    wanted = _joined(known.words(question.repeat))
    rest = tuple(word for word in said if known.consent.get((word,)) != "hesitations")
    ends = (n for n in range(len(rest), 0, -1) if _joined(rest[:n]) == wanted)
    return any(not rest[n:] or known.consent.get(rest[n:]) in ("courtesies", "please") for n in ends)


def _joined(words: Iterable[str]) -> str:
    # Numbers are spoken in groups: "0 49 151" is "049151".
    return re.sub(r"(?<=\d) (?=\d)", "", " ".join(word for word in words if word != "the"))


# -- refusal


def _refuses(said: Words, question: Question, known: Vocabulary) -> bool:
    asked = [at for at, word in enumerate(said[:-1]) if word == "?"]
    said = said[asked[-1] + 1 :] if asked else said  # "who is there? No."
    at, phrase, kind = 0, phrase_at(said, 0, known.refusal), "openers"
    while phrase and (kind := known.refusal[phrase]) == "openers":
        at += len(phrase)
        phrase = phrase_at(said, at, known.refusal)
    after = said[at + len(phrase) :]
    if not phrase or phrase[0] == question.verb or (kind == "others" and phrase[-1] != question.verb):
        return False
    if said[-1] == "?" and (kind == "stops" or len(said) < 3):
        return False
    stopped = known.sets["after_stops"] | question.said
    if kind == "stops" and after and after[0] not in stopped and not question.said & {*after[:3]}:
        return False
    return not _ends_in_consent(said, at + len(phrase), question, known)


def _ends_in_consent(said: Words, start: int, question: Question, known: Vocabulary) -> bool:
    # "No, wait, go ahead" takes the refusal back, "no, I will do it" does not.
    unfinished = known.sets["unfinished"]
    for at in range(max(start, len(said) - 12), len(said)):
        if said[at - 1] not in unfinished and "not" not in said[max(0, at - 4) : at]:
            if _approves(said[at:], question, known):
                return True
    return False


# -- another request


def _is_request(said: Words, question: Question, known: Vocabulary) -> bool:
    at = 0
    while phrase := phrase_at(said, at, known.request):
        if known.request[phrase] != "openers":
            return True
        at += len(phrase)
    if any(known.request.get(phrase_at(said, n, known.request)) == "corrections" for n in range(len(said))):
        return True
    rest = {word for word in said[at:] if word != "?"}
    if len(said) - at < 3 or said[at] not in known.sets["starts"] or question.said & rest:
        return False
    about, topics = known.sets["about"], known.sets["topics"]
    return bool(topics & rest) or not about & rest
