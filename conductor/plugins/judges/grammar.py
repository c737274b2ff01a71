"""Classify spoken answers by a small closed grammar over a language's vocabulary.

No model takes part. Pure and linear in time. An ambiguous answer is ``unclear``, and the question is asked
again.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from conductor.plugins.judges.vocabulary import Vocabulary, Words, load_vocabulary, phrase_at
from conductor.tools.judge import Answer

# Characters of an utterance that may be an answer.
MAX_CHARS = 600
# Words of an utterance: a longer one is never an approval.
MAX_WORDS = 40

# First letters that two forms of one word share: "approve", "approval".
_STEM = 6

# A beginning of a word before the word: "y-yes".
_STUTTER = re.compile(r"(?i)(?<![\w'])([^\W\d_]|ye|go|th|pl)(?:[-\u2014\u2026]|\.{2,3}) ?(?=\1)")

_LETTERS = {
    "hesitations": "h",
    "openings": "f",
    "openers": "o",
    "nods": "n",
    "affirmed": "m",
    "leads": "l",
    "assured": "cl",
    "please": "p",
    "and": "&",
    "courtesies": "t",
    "closers": "e",
    "session": "s",
    "cores": "c",
    "own": "v",
    "own_stop": "w",
    "restated": "x",
    "address": "a",
    "reasons": "r",
    "causes": "?",
    "questions": "?",
    "departures": "r",
    "wishes": "r",
    "addressed": "d",
}
# After a bare yes an address stands before a core alone, and a reason not at all.
_WEAK = str.maketrans("ar", "b?")
_ITEM = "(?:[lp]{0,2}c(?:&?[lp]?[wx])?|n[lp]?x|[lp]{0,2}(?:v|d(?=[ep]*$)))"
_END = "(?:[ept]{0,2}[ra]?t?|p?s[pt]?)"
_APPROVAL = re.compile(rf"f{{0,2}}[onmptab]{{0,5}}{_ITEM}(?:[&onmtab]?f?{_ITEM}){{0,3}}{_END}")
"""A pattern of these letters. A core consents, or the tool's own verb with its object; a verb that also
refuses ("cancel it") counts only after a core, and all words of the prompt after any yes. After the recipient
of a text the words may be dictated: "text her yes"."""


@dataclass(frozen=True, slots=True)
class Question:
    """A spoken question; made by `make_question`.

    ``action`` describes the call, ``brief`` does so in later attempts. ``action_words`` are the words of the
    description, ``values`` the words of short string arguments, which may be dictated text or a name.
    ``addressed``: words for the recipient. ``dictated``: whether the call holds a text. ``verb`` is the
    tool's verb; ``objects`` matches it with its object. ``repeat`` must be repeated at high risk and is empty
    otherwise. ``for_session``: whether the session scope may be granted. ``by_voice`` is False where only a
    tap may approve. ``asker`` is the untrusted MCP server whose tool it is, which is named first.
    """

    risk: Literal["medium", "high"]
    action: str
    brief: str
    objects: re.Pattern[str]
    verb: str = ""
    action_words: frozenset[str] = frozenset()
    values: frozenset[str] = frozenset()
    addressed: frozenset[str] = frozenset()
    dictated: bool = False
    repeat: str = ""
    for_session: bool = False
    irreversible: bool = False
    reasons: tuple[str, ...] = ()
    by_voice: bool = True
    locale: str = "en"
    asker: str = ""


def classify_answer(utterance: str, question: Question) -> Answer:
    """Classify an utterance as an answer to an open question.

    ``allow``: the whole utterance approves, and at high risk repeats the question's words. ``deny``: a
    refusal, with or without reasons. ``other``: clearly another request. ``unclear``: anything else.
    """
    text = utterance.strip()
    lang = load_vocabulary(question.locale)
    if lang is None:
        return Answer("unclear", "once", _printable(text[:MAX_CHARS]))
    tokens, words = _fluent(text[:MAX_CHARS], question, lang), _printable(text[:MAX_CHARS])
    short = len(text) <= MAX_CHARS and len(tokens) <= MAX_WORDS
    # A long utterance is not an answer, although it may contain a yes.
    scope = _approves(tokens, question, lang) if short else None
    repeats = short and question.risk == "high" and _repeats(tokens, question, lang)
    if question.by_voice and (repeats or (scope and question.risk != "high")):
        return Answer("allow", scope if scope and question.for_session else "once", words)
    if scope:  # a yes that is not enough
        return Answer("unclear", "once", words)
    # After approval, which must fit as a whole: "no problem, go ahead" is a yes.
    if _refuses(tokens, question, lang):
        return Answer("deny", "once", words)
    return Answer("other" if _is_request(tokens, question, lang) else "unclear", "once", words)


def _fluent(text: str, question: Question, lang: Vocabulary) -> Words:
    # "Y-yes" and "y yes" are "yes", and "add, add it" is "add it". A name or a word of consent is no stutter.
    words, spoken = lang.words(_STUTTER.sub("", text)), lang.words(question.action)
    doubled, names = {*zip(spoken, spoken[1:], strict=False)}, lang.sets["men"] | lang.sets["women"]
    addressees = {*re.findall(r"\w{3,}(?=,)", text.lower())}  # "Cal, call her" is said to Cal
    fluent = []
    for word, after, third in zip(words, (*words, "")[1:], (*words, "", "")[2:], strict=True):
        if word == after:
            is_whole = (word, word) in doubled or word in names or not word.isalpha()
            is_whole = is_whole or third in lang.sets["clauses"]  # "set it, it is cold"
            listed = (word,) in lang.consent or (word,) in lang.refusal
            is_whole = is_whole or (listed and word not in lang.sets["stammered"])
        else:
            is_part = after.startswith(word) and word.isalpha() and word not in names | addressees
            is_whole = not is_part or word in lang.known | {*spoken}
        fluent += [word] if is_whole else []
    return tuple(fluent)


def _printable(text: str) -> str:
    printable = (c if c.isspace() or unicodedata.category(c)[0] != "C" else "" for c in text)
    return " ".join("".join(printable).split())


def _approves(words: Words, question: Question, lang: Vocabulary) -> Literal["once", "session"] | None:
    # "For this session" is the widest scope that voice grants.
    letters, start, strong = "", 0, False
    stems = {word[:_STEM] for word in question.action_words if len(word) >= _STEM}
    while start < len(words):
        own_match = _longest(question.objects, words[start:], lang)
        phrase = phrase_at(words, start, lang.consent)
        length = own_match.group().count(" ") if own_match else 0
        if not max(length, len(phrase)):
            return None
        kind = own_match.lastgroup if own_match and length >= len(phrase) else lang.consent[phrase]
        if kind == "own" and words[start + length - 1] in question.addressed:
            kind = "addressed"
        if kind == "causes":
            phrase += tuple(takewhile(lang.sets["circumstances"].__contains__, words[start + len(phrase) :]))
            kind = "reasons" if phrase[-1] in lang.sets["states"] else kind
        letter = _LETTERS[kind or ""].translate({} if strong else _WEAK)
        if letter in "bra" and not _fits(kind or "", phrase, letters[-1:], question, lang):
            return None
        strong = strong or length > 0 or len(phrase) > 1
        # It may end in a value ("yes, you may" with the guest May); a plain "yes" is always an answer.
        if kind == "cores" and question.values & {*phrase[-1:]} and lang.consent.get(phrase[-1:]) != "cores":
            return None
        # "Approved" may be the folder in question, and "approve the draft" the draft of an approval.
        is_core, first = kind == "cores", {words[start]}
        named = {*phrase} - lang.sets["neutral"] if is_core else first & lang.sets["assents"]
        if stems & {word[:_STEM] for word in named - {question.verb} if len(word) >= _STEM}:
            return None
        letters += letter
        start += max(length, len(phrase))
    # It ends in a hesitation: the sentence goes on.
    if letters.endswith("h") or not _APPROVAL.fullmatch(letters.replace("h", "")):
        return None
    return "session" if "s" in letters else "once"


def _fits(kind: str, phrase: Words, before: str, question: Question, lang: Vocabulary) -> bool:
    # A reason could belong to a dictated text, and "call her, mate" may name another person.
    if (question.values | question.action_words) & {*phrase} - lang.sets["neutral"]:
        return False
    if kind == "address":
        return before not in "vwd" or (before == "v" and question.verb not in {"", *lang.sets["personal"]})
    removes = question.verb in lang.sets["removing"]
    return not question.dictated and (kind == "reasons" or (kind == "departures") is removes)


def _longest(pattern: re.Pattern[str], words: Words, lang: Vocabulary) -> re.Match[str] | None:
    # The alternatives overlap: "add it on" begins "add it on Thursday". "It is" begins a clause of its own.
    pronouns, verbs = lang.sets["pronouns"], lang.sets["clauses"]
    ends = range(len(words), 0, -1)
    whole = (end for end in ends if words[end - 1] not in pronouns or not verbs & {*words[end : end + 1]})
    texts = (" ".join(words[:end]) + " " for end in whole)
    return next(filter(None, map(pattern.fullmatch, texts)), None)


def _repeats(words: Words, question: Question, lang: Vocabulary) -> bool:
    expected = _joined(lang.words(question.repeat))
    answer = tuple(word for word in words if lang.consent.get((word,)) != "hesitations")
    ends = (n for n in range(len(answer), 0, -1) if _joined(answer[:n]) == expected)
    return any(not answer[n:] or lang.consent.get(answer[n:]) in ("courtesies", "please") for n in ends)


def _joined(words: Iterable[str]) -> str:
    # Numbers are spoken in groups: "0 49 151" is "049151".
    return re.sub(r"(?<=\d) (?=\d)", "", " ".join(word for word in words if word != "the"))


def _refuses(words: Words, question: Question, lang: Vocabulary) -> bool:
    question_marks = [index for index, word in enumerate(words[:-1]) if word == "?"]
    words = words[question_marks[-1] + 1 :] if question_marks else words  # "who is there? No."
    start, phrase, kind = 0, phrase_at(words, 0, lang.refusal), "openers"
    while phrase and (kind := lang.refusal[phrase]) == "openers":
        start += len(phrase)
        phrase = phrase_at(words, start, lang.refusal)
    tail = words[start + len(phrase) :]
    if not phrase or phrase[0] == question.verb or (kind == "others" and phrase[-1] != question.verb):
        return False
    if words[-1] == "?" and (kind == "stops" or len(words) < 3):
        return False
    expected = lang.sets["after_stops"] | question.action_words
    if kind == "stops" and tail and tail[0] not in expected and not question.action_words & {*tail[:3]}:
        return False
    return not _ends_in_consent(words, start + len(phrase), question, lang)


def _ends_in_consent(words: Words, start: int, question: Question, lang: Vocabulary) -> bool:
    # "No, wait, go ahead" takes the refusal back, "no, I will do it" does not.
    unfinished = lang.sets["unfinished"]
    for position in range(max(start, len(words) - 12), len(words)):
        if words[position - 1] not in unfinished and "not" not in words[max(0, position - 4) : position]:
            if _approves(words[position:], question, lang):
                return True
    return False


def _is_request(words: Words, question: Question, lang: Vocabulary) -> bool:
    start = 0
    while phrase := phrase_at(words, start, lang.request):
        if lang.request[phrase] != "openers":
            return True
        start += len(phrase)
    if any(lang.request.get(phrase_at(words, n, lang.request)) == "corrections" for n in range(len(words))):
        return True
    tail = {word for word in words[start:] if word != "?"}
    if len(words) - start < 3 or words[start] not in lang.sets["starts"] or question.action_words & tail:
        return False
    about, topics = lang.sets["about"], lang.sets["topics"]
    return bool(topics & tail) or not about & tail
