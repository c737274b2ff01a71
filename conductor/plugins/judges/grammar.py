"""The closed grammar of answers to a spoken question.

Whatever is not in it approves nothing. An answer approves only if every word of it belongs to a lead, a
consent, a restatement of the question, or a courtesy; if it holds a consent, or the tool's own verb with an
object; and if it does not end in the middle.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field
from itertools import groupby

from conductor.plugins.judges.page import Page, Words, load_page
from conductor.plugins.judges.question import QuestionWords, SpokenValue
from conductor.tools.judge import Answer

# Characters of an utterance that may be an answer, and of one that is read in other languages; words of an
# approval, and of a refusal at its end.
MAX_CHARS = 600
MAX_REFUSED_CHARS = 200
MAX_WORDS = 30
MAX_REFUSED_WORDS = 12
# Digits of a number that people say in groups, such as a telephone's.
MIN_GROUPED_DIGITS = 6


def classify(
    utterance: str, question: QuestionWords, languages: tuple[str, ...], lang: str | None = None
) -> Answer:
    """Classify an utterance as an answer to an open question.

    ``languages`` are all that have a page: a refusal is heard in each, a consent only in the question's
    language, and not where the transcriber names another one (``lang``).
    """
    text = utterance.strip()
    start = text[:MAX_CHARS]
    said = _printable(start)
    page = load_page(question.language)
    words = _fluent(page.words(start), question, page)
    is_short = len(text) <= MAX_CHARS and len(words) <= MAX_WORDS and "?" not in words
    is_ours = lang is None or lang == question.language
    reading = read(words, question, page) if is_short and is_ours else None
    if (
        question.risk == "high"
        and is_short
        and is_ours
        and question.by_voice
        and repeats(words, question, page)
    ):
        return Answer("allow", "once", said)
    if reading is not None:
        if question.risk == "high" or not question.by_voice:
            return Answer("yes", "once", said)
        return Answer("allow", "session" if reading.session and question.for_session else "once", said)
    if _consists_of(("waits",), words, page):
        return Answer("wait", "once", said)
    if _consists_of(("repeats",), tuple(word for word in words if word != "?"), page):
        return Answer("repeat", "once", said)
    others = [load_page(name) for name in languages if name != question.language]
    heard = ((other, _fluent(other.words(text[:MAX_REFUSED_CHARS]), question, other)) for other in others)
    # "No hay problema" is no refusal in the person's own language, nor is "no, wait, go ahead".
    is_none = _has(words, "no_refusals", page) or _ends_in_consent(words, 0, page)
    if refuses(words, question, page) or (
        not is_none and any(refuses(words, question, other) for other, words in heard)
    ):
        return Answer("deny", "once", said)
    if _asks_about(words, question, page):
        return Answer("repeat", "once", said)
    return Answer("other" if is_request(words, question, page) else "unclear", "once", said)


def _printable(text: str) -> str:
    printable = (c if c.isspace() or unicodedata.category(c)[0] != "C" else "" for c in text)
    return " ".join("".join(printable).split())


# -- approval


@dataclass
class Reading:
    """What has been read of an answer so far; ``values`` are positions in the question's values."""

    consent: bool = False
    lead: bool = False
    verb: str = ""
    infinitive: bool = False
    pronoun: bool = False
    session: bool = False
    nouns: list[str] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    link: str = ""
    is_open: bool = False

    def approves(self, question: QuestionWords) -> bool:
        """Whether what was read is a consent, and restates nothing in part."""
        if self.is_open or self.link or (self.nouns and tuple(self.nouns) not in question.nouns):
            return False
        has_object = bool(self.pronoun or self.nouns or self.values)
        if self.verb and not has_object and not (self.consent and self.infinitive):
            return False
        has_long = any(question.values[at].is_long for at in self.values)
        if (self.values or self.nouns) and not (self.verb or len(self.values) > 1 or has_long):
            return False  # "Go ahead, Anna"; "yes, at five"
        return self.consent or bool(self.verb)


def read(words: Words, question: QuestionWords, page: Page) -> Reading | None:
    """Read an answer to its end; None if it is not an approval."""
    reading, at, length = Reading(), 0, 0
    while at < len(words):
        length = _step(reading, words, at, question, page)
        if not length:
            return None
        at += length
    is_cut = length == 1 and (words[-1] in page.lists["final"] or (words[-1],) in page.phrases["hesitations"])
    return reading if not is_cut and reading.approves(question) else None


def _fluent(words: Words, question: QuestionWords, page: Page) -> Words:
    """Leave out stutters, words that are said twice, and hesitations before another word."""
    own = _own_words(question)
    short = page.lists["small"] | page.lists["links"] | page.lists["articles"]
    fluent: list[str] = []
    for before, word, after in zip(("", *words), words, (*words[1:], ""), strict=False):
        is_digit = word.isdigit() and (
            before.isdigit() or after.isdigit()
        )  # "oh" in "one oh seven" is a zero
        if after and (word,) in page.phrases["hesitations"] and word not in own and not is_digit:
            continue
        is_stutter = word == after or (len(word) == 1 and after.startswith(word) and word not in short)
        if is_stutter and word.isalpha() and word not in own:
            continue
        fluent.append(word)
    return tuple(fluent)


def _own_words(question: QuestionWords) -> frozenset[str]:
    return frozenset(word for value in question.values for word in value.words)


def _step(reading: Reading, words: Words, at: int, question: QuestionWords, page: Page) -> int:
    """Take the next words into the reading; returns how many, and 0 if they have no place in an approval."""
    own = _own_words(question)
    if length := _value_at(reading, words, at, question, page):
        return max(length, 0)
    if reading.link:
        return _behind_link(reading, words[at], question, page)
    dictates = any(value.is_long for value in question.values)
    if dictates and reading.verb and any(question.values[n].is_long for n in reading.values):
        return 0  # it may belong to the dictated text
    length = page.phrase_at("consents", words, at)
    is_plain = at == 0 and words[:1] in page.phrases["consents"]  # a bare "yes" is always an answer
    if length and not (dictates and reading.verb) and (is_plain or not {*words[at : at + length]} <= own):
        reading.consent, reading.is_open = True, False
        return length
    if not reading.verb and (verb := _verb_at(words[at], question, page)) and words[at] not in own:
        if not reading.consent and _is_stopping(words[at], page):
            return 0  # "cancel it" also takes back
        reading.verb, reading.is_open = verb, False
        reading.pronoun = page.form_of(words[at], verb) == "clinging"
        # An infinitive names the action without an object, "ja, löschen"; an imperative may be cut.
        ends = tuple(page.sentences["infinitives"].split("|"))
        reading.infinitive = bool(ends[0]) and words[at].endswith(ends) and not _is_stopping(words[at], page)
        return 1
    if length := page.phrase_at("session", words, at):
        reading.session = True
        return length
    lead, courtesy = page.phrase_at("leads", words, at), page.phrase_at("courtesies", words, at)
    if not reading.verb and lead and lead >= courtesy:  # "just" leads on, "just this once" does not
        reading.lead = reading.is_open = True
        return lead
    if courtesy:
        return courtesy
    length = page.phrase_at("weak", words, at)
    if length and not reading.verb and not {*words[at : at + length]} <= own:
        return length
    if reading.verb and (length := page.phrase_at("pronouns", words, at)):
        reading.pronoun = True
        return length
    return _own_word(reading, words, at, question, page)


def _own_word(reading: Reading, words: Words, at: int, question: QuestionWords, page: Page) -> int:
    word = words[at]
    if word in page.lists["particles"] and question.particles:
        return 1 if reading.verb and word in question.particles else 0
    if any(word in nouns for nouns in question.nouns):
        reading.nouns.append(word)
        return 1
    if word in page.lists["links"]:
        reading.link = word
        return 1
    # A small word leads to the question's words: "ist ja gut" is no yes.
    leads_on = at + 1 < len(words) and words[at + 1 : at + 2] not in page.phrases["consents"]
    return 1 if word in page.lists["small"] and leads_on else 0


def _behind_link(reading: Reading, word: str, question: QuestionWords, page: Page) -> int:
    """Take a word behind a link that is no value: an article, or a noun of the tool."""
    if any(word in nouns for nouns in question.nouns):
        reading.link = ""
        reading.nouns.append(word)
        return 1
    return 1 if word in page.lists["articles"] else 0


def _value_at(reading: Reading, words: Words, at: int, question: QuestionWords, page: Page) -> int:
    """Take a whole value, which its label may precede; 0 without one, -1 if one stands in a wrong place."""
    best: tuple[int, SpokenValue, int] | None = None
    for number, value in enumerate(question.values):
        for label in (0, len(value.label)):
            start = at + label
            fits = label == 0 or words[at:start] == value.label
            fits = (
                fits
                and number not in reading.values
                and words[start : start + len(value.words)] == value.words
            )
            if fits and (best is None or label + len(value.words) > best[2]):
                best = number, value, label + len(value.words)
    if best is None or (len(best[1].words) == 1 and words[at] in page.lists["small"] | page.lists["links"]):
        return 0
    number, value, length = best
    texts = [n for n in reading.values if not question.values[n].is_number]
    end = at + length
    is_labelled = length > len(value.words)
    # A link stands before a value only as it does in the question; before a text, "for Anna" is free.
    is_object = reading.verb and not (reading.link or reading.pronoun or reading.nouns or reading.values)
    is_adjective = end < len(words) and any(
        words[end] in nouns for nouns in question.nouns
    )  # "the hall lamp"
    if (
        is_object
        and not is_labelled
        and not is_adjective
        and not value.is_number
        and _has_text_before(question, number)
    ):
        return -1  # "move the archive", which is where the file goes
    directed = page.lists["directed"]
    fits = reading.link == value.before
    fits = fits or (
        value.before not in directed if not reading.link else not value.before and not value.is_number
    )
    if not is_labelled and (not fits or (reading.link in directed and reading.link != value.before)):
        return -1
    if not value.is_number and texts and number < texts[-1]:
        return -1
    # A number beside another one is another number.
    if words[at][:1].isdigit() and at and words[at - 1][:1].isdigit():
        return -1
    if words[end - 1][:1].isdigit() and end < len(words) and words[end][:1].isdigit():
        return -1
    reading.values.append(number)
    reading.link = ""
    return length


def _has_text_before(question: QuestionWords, number: int) -> bool:
    particles = question.particles
    return any(not value.is_number and not {*value.words} <= particles for value in question.values[:number])


def _verb_at(word: str, question: QuestionWords, page: Page) -> str:
    return next((verb for verb in sorted(question.verbs) if page.form_of(word, verb)), "")


def _is_stopping(verb: str, page: Page) -> bool:
    return (verb,) in page.phrases["refusals"] or any(
        phrase[:1] == (verb,) for phrase in page.phrases["refusals"]
    )


def repeats(words: Words, question: QuestionWords, page: Page) -> bool:
    """Return whether the words to repeat are said, with a yes before and courtesies behind them at most."""
    expected = _told(page.words(question.repeat), question, page)
    words = _told(words, question, page)
    at = 0
    while at < len(words):
        for end in range(len(words), at, -1):
            if expected and words[at:end] == expected:
                return _consists_of(("courtesies",), words[end:], page, may_be_empty=True)
        length = page.phrase_at("before_repeat", words, at)
        if not length:
            return False
        at += length
    return False


def _told(words: Words, question: QuestionWords, page: Page) -> Words:
    """Leave out articles and hesitations that are no part of a value."""
    hesitations = {word for phrase in page.phrases["hesitations"] for word in phrase}
    left_out = (page.lists["articles"] | hesitations) - _own_words(question)
    return _glued(tuple(word for word in words if word.isdigit() or word not in left_out))


def _glued(words: Words) -> Words:
    """Write a long number in groups as one: "0 49 151" is "049151", while "1 5" is not "15"."""
    glued: list[str] = []
    for is_number, group in groupby(words, str.isdigit):
        run = tuple(group)
        digits = "".join(run)
        glued += [digits] if is_number and len(digits) >= MIN_GROUPED_DIGITS else run
    return tuple(glued)


def _consists_of(lists: tuple[str, ...], words: Words, page: Page, *, may_be_empty: bool = False) -> bool:
    """Return whether phrases of the lists, hesitations and courtesies are all of it."""
    at, found = 0, may_be_empty
    while at < len(words):
        length = max(page.phrase_at(name, words, at) for name in lists)
        found = found or length > 0
        if not length and not words[at].isdigit():  # a zero is written as "oh"
            length = max(page.phrase_at(name, words, at) for name in ("hesitations", "courtesies"))
        if not length:
            return False
        at += length
    return found


# -- refusals, and what is no answer


def refuses(words: Words, question: QuestionWords, page: Page) -> bool:
    """Return whether an utterance refuses in the language of a page, and does not take the refusal back."""
    if not words or words[-1] == "?":
        return False
    if not _has(words, "no_refusals", page) and _negates(words, question, page):
        return True
    at = 0
    while at < len(words):
        if page.phrase_at("no_refusals", words, at):
            return False
        if length := page.phrase_at("refusals", words, at):
            is_own = (
                length == 1 and page.language == question.language and _verb_at(words[at], question, page)
            )
            return not is_own and not _ends_in_consent(words, at + length, page)
        length = page.phrase_at("before_refusals", words, at)
        if not length:
            break
        at += length
    while length := next((n for n in (3, 2, 1) if words[-n:] in page.phrases["courtesies"]), 0):
        words = words[:-length]
    for name in ("no_refusals", "last_refusals"):
        if any(page.phrase_at(name, words, n) == len(words) - n for n in range(len(words))):
            return name == "last_refusals" and len(words) <= MAX_REFUSED_WORDS
    return False


def _has(words: Words, name: str, page: Page) -> bool:
    return any(page.phrase_at(name, words, at) for at in range(len(words)))


def _ends_in_consent(words: Words, start: int, page: Page) -> bool:
    # "No, wait, go ahead" takes the refusal back, "no, don't do that" does not.
    return any(
        page.phrase_at("consents", words, n) == len(words) - n and words[n - 1] not in page.lists["negations"]
        for n in range(start, len(words))
    )


def _negates(words: Words, question: QuestionWords, page: Page) -> bool:
    """Return whether the question's own words are denied, and nothing else is said: "don't switch it on"."""
    negations = page.lists["negations"] | {
        phrase[0]
        for phrase in page.phrases["refusals"]
        if len(phrase) == 1 and phrase[0] not in question.verbs
    }
    if negations.isdisjoint(words) or len(words) > MAX_REFUSED_WORDS:
        return False
    own = _nouns(question) | _own_words(question)
    lists = page.lists["small"] | page.lists["links"] | page.lists["particles"] | negations
    at = 0
    while at < len(words):
        length = max(
            page.phrase_at(name, words, at)
            for name in ("pronouns", "leads", "courtesies", "hesitations", "weak")
        )
        if not length and words[at] not in lists | own and not _verb_at(words[at], question, page):
            return False
        at += length or 1
    return True


def _nouns(question: QuestionWords) -> frozenset[str]:
    labels = (value.label for value in question.values)
    return frozenset(word for words in (*question.nouns, *labels) for word in words)


def _asks_about(words: Words, question: QuestionWords, page: Page) -> bool:
    """Return whether an utterance asks about a value or another word of the question."""
    while words and (words[0],) in page.phrases["hesitations"]:
        words = words[1:]
    if not words or words[0] not in page.lists["questions"]:
        return False
    own = _nouns(question) | _own_words(question)
    return not own.isdisjoint(words) or any(_verb_at(word, question, page) for word in words)


def is_request(words: Words, question: QuestionWords, page: Page) -> bool:
    """Return whether an utterance is plainly another request."""
    while words and (words[0],) in page.phrases["hesitations"]:
        words = words[1:]
    is_other = bool(words) and words[0] in page.lists["questions"]
    while words and (words[0],) in page.phrases["weak"]:  # behind it "que" is "for", not "what"
        words = words[1:]
    is_other = is_other or (bool(words) and words[0] in page.lists["requests"])
    own = _nouns(question) | _own_words(question)
    return is_other and len(words) > 2 and own.isdisjoint(words)
