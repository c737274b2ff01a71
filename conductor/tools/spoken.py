"""The judge of spoken answers: a closed grammar that approves only what is an approval from end to end.

No model has a part in it (tools, "Spoken approvals"). All of it is pure, English, and linear in time; what is
in doubt is unclear, and the question is asked again.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from conductor.tools import spoken_words as vocabulary
from conductor.tools.spoken_words import Words, plural, singular, words_of

Scope: TypeAlias = Literal["once", "session", "always"]
AnswerKind: TypeAlias = Literal["allow", "deny", "unclear", "other"]

MAX_CHARS = 600
MAX_WORDS = 60
"""What is longer is never an approval."""


@dataclass(frozen=True, slots=True)
class SpokenValue:
    """How people may name an argument's value.

    ``argument`` is the argument's place among all, ``name`` its words, ``item`` the place in a list,
    ``forms`` the ways to say the value.
    """

    argument: int
    name: Words
    forms: tuple[Words, ...]
    item: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """A question that was put to the user by voice; made by `make_question`.

    ``action`` is the call in the prompt's words, ``brief`` the same for later attempts. ``tool_words`` and
    ``values`` may occur in an approval; ``counts`` pairs the place of an argument that is a list with its
    length; ``arguments`` is how many there are. ``confirm_phrase`` is what must be repeated at high risk,
    and empty at others. ``reasons`` are sentences that come first in the prompt.
    """

    tool: str
    risk: Literal["medium", "high"]
    action: str
    brief: str
    tool_words: Words
    values: tuple[SpokenValue, ...] = ()
    counts: tuple[tuple[int, int], ...] = ()
    arguments: int = 0
    confirm_phrase: str = ""
    scopes: tuple[Scope, ...] = ("once",)
    irreversible: bool = False
    reasons: tuple[str, ...] = ()

    @property
    def action_words(self) -> frozenset[str]:
        """All words that the action brings into the vocabulary."""
        said = {word for value in self.values for form in value.forms for word in form}
        return frozenset(said.union(self.tool_words, *(tool_forms(self).values())))


@dataclass(frozen=True, slots=True)
class Answer:
    """What an utterance says to a question; ``scope`` is meant for ``allow``, ``words`` are the user's."""

    kind: AnswerKind
    scope: Scope
    words: str


def judge(utterance: str, question: Question) -> Answer:
    """Say what an utterance answers to the question that is open.

    ``allow`` only if every word of it belongs to an approval, and at high risk only if the question's
    confirm phrase was repeated. ``deny`` is a plain refusal, with or without reasons. ``other`` is plainly
    another request. All else is ``unclear``.
    """
    text = utterance.strip()
    said = words_of(text[:MAX_CHARS])
    words = _shown(text[:MAX_CHARS])
    if len(text) <= MAX_CHARS and 0 < len(said) <= MAX_WORDS:
        scope = _confirms(said, question) if question.risk == "high" else _Approval(said, question).scope()
        if scope is not None:
            return Answer("allow", scope, words)
    if denies(said, question):
        return Answer("deny", "once", words)
    return Answer("other" if _is_other(said, question) else "unclear", "once", words)


def _shown(text: str) -> str:
    kept = (c if c.isspace() or unicodedata.category(c)[0] != "C" else "" for c in text)
    return " ".join("".join(kept).split())


def phrase_at(
    said: Words, at: int, known: frozenset[Words] | dict[Words, vocabulary.Kind], longest: int
) -> Words:
    """Find the longest known phrase that begins at ``at``; empty if there is none."""
    for length in range(min(longest, len(said) - at), 0, -1):
        if (phrase := said[at : at + length]) in known:
            return phrase
    return ()


def tool_forms(question: Question) -> dict[bool, frozenset[str]]:
    """Give the single words for the action: by True what may follow a determiner, by False all of them.

    "The file" is none for three files, and "the files" none for one: they approve something else.
    """
    many = any(count > 1 for _, count in question.counts)
    one = [count for _, count in question.counts] == [1]
    free: set[str] = set()
    determined: set[str] = set()
    for word in question.tool_words:
        if word in vocabulary.RESERVED:
            continue
        free.add(word)
        for group in vocabulary.SYNONYMS:
            free.update(group.split() if word in group.split() else ())
        determined.update({singular(word), word} if one else {plural(singular(word))} if many else {word})
        if not many and word != question.tool_words[-1]:
            determined.add(singular(word))  # "notes.create" creates a note
    return {True: frozenset(determined), False: frozenset(free | determined)}


# -- approval at high risk


_LEADING = vocabulary.phrases("yes, okay, ok, yeah, sure, all right, alright")
_AFTER = vocabulary.POLITE | vocabulary.ONCE | vocabulary.SESSION | vocabulary.ALWAYS
_BEFORE = (vocabulary.FILLERS | _LEADING | _AFTER) - vocabulary.ENDINGS


def _confirms(said: Words, question: Question) -> Scope | None:
    """Approve a repeat-back; whatever scope was asked for, high risk is allowed once.

    Two variants of transcribers are taken: "confirmed", and a lost plural s after the number, which still
    says how many. An article adds nothing.
    """
    wanted = words_of(question.confirm_phrase)
    rest = list(_without_edges(said))
    if rest[:1] == ["i"]:
        rest = rest[1:]
    if rest[:1] == ["confirmed"]:
        rest[0] = "confirm"
    if "the" not in wanted:
        rest = [word for word in rest if word != "the"]
    lost_plural = len(wanted) > 1 and wanted[-2].isdigit() and rest[-1:] == [singular(wanted[-1])]
    if lost_plural:
        rest[-1] = wanted[-1]
    said_so = tuple(word for word in rest if word != "dot")
    return "once" if len(wanted) > 1 and said_so in _variants(wanted, question) else None


def _variants(wanted: Words, question: Question) -> Iterator[Words]:
    """Give the phrase, and the phrase with its value named in another way: notes.txt for notes."""
    yield wanted
    for value in question.values:
        for form in value.forms:
            if wanted[-len(form) :] == form:
                yield from (wanted[: -len(form)] + other for other in value.forms)


def _without_edges(said: Words) -> Words:
    start, end = 0, len(said)
    while phrase := phrase_at(said, start, _BEFORE, vocabulary.LONGEST_PHRASE):
        start += len(phrase)
    while end > start:
        ends = (n for n in range(vocabulary.LONGEST_PHRASE, 0, -1) if end - n >= start)
        length = next((n for n in ends if said[end - n : end] in _AFTER), 0)
        if not length:
            break
        end -= length
    return said[start:end]


# -- approval at medium risk


_APPROVING = ("yes", "verb", "done")


class _Approval:
    """One pass over an utterance; `scope` is None unless all of it is an approval."""

    def __init__(self, said: Words, question: Question) -> None:
        self._said = said
        self._question = question
        self._tool = tool_forms(question)
        self._many = any(n > 1 for _, n in question.counts) or (
            not question.counts and any(singular(word) != word for word in question.tool_words[-1:])
        )
        self._at = 0
        self._last = ""  # kind of the element before
        self._scope: Scope | None = None  # what the element asks for
        self._value_said = False
        self._ended = False
        self._unmarked = -1  # argument of the last value that nothing marked
        self._named: set[tuple[int, int]] = set()

    def scope(self) -> Scope | None:
        approved = False
        scopes: set[Scope] = set()
        while self._at < len(self._said):
            kind = self._element()
            if not kind or not self._may_follow(kind, approved):
                return None
            self._last = kind
            approved = approved or kind in _APPROVING
            if self._scope is not None:
                scopes.add(self._scope)
                self._scope = None
        if not approved or self._last in ("filler", "and") or len(scopes) > 1 or not self._lists_are_whole():
            return None
        scope = scopes.pop() if scopes else "once"
        return scope if scope in self._question.scopes else "once"

    def _may_follow(self, kind: str, approved: bool) -> bool:
        """Whether an element stands where it can only be meant as an approval.

        "Anna approved it" reports, so does "the agent approved"; "allow Anna" allows something else; "once
        approved, do it" is a condition.
        """
        if self._last == "and" and kind not in ("yes", "verb", "tool", "value"):
            return False
        if kind == "value":
            return approved and self._last not in ("verb", "done")
        if kind in _APPROVING and self._value_said:
            return False
        if kind == "done" and self._last in ("tool", "tail", "always"):
            return False
        if kind == "tail" and not approved:
            return False
        self._ended = self._ended or self._last == "end"
        return not self._ended or kind == "polite"

    def _lists_are_whole(self) -> bool:
        """Whoever names one item of a list and not the others means something else."""
        named = {argument for argument, _ in self._named}
        items = {(value.argument, value.item) for value in self._question.values if value.argument in named}
        lengths = all(
            sum(1 for argument, _ in items if argument == at) == count
            for at, count in self._question.counts
            if at in named
        )
        return items == self._named and lengths

    def _word(self, at: int) -> str:
        return self._said[at] if at < len(self._said) else ""

    def _element(self) -> str:
        """Read one element; returns its kind, or "" if there is none."""
        word = self._word(self._at)
        if word in vocabulary.OPENERS and self._last in ("", "filler") and self._at + 1 < len(self._said):
            if not phrase_at(self._said, self._at, vocabulary.PHRASES, vocabulary.LONGEST_PHRASE):
                self._at += 1
                return "weak" if word == "right" else "filler"
        if word == "and":
            self._at += 1
            return "and" if self._last in ("yes", "verb", "weak", "tool", "value") else ""
        action = self._action()
        phrase = phrase_at(self._said, self._at, vocabulary.PHRASES, vocabulary.LONGEST_PHRASE)
        if phrase and self._at + len(phrase) >= action[0]:
            return self._take(phrase)
        self._at = max(self._at, action[0])
        self._value_said = self._value_said or action[1] == "value"
        return action[1]

    def _take(self, phrase: Words) -> str:
        self._at += len(phrase)
        kind = vocabulary.PHRASES[phrase]
        if kind in ("once", "session", "always"):
            self._scope = kind
            return "end" if phrase in vocabulary.ENDINGS else kind
        bare = phrase[:-1] if phrase[-1] == "then" else phrase
        if bare in vocabulary.DONE:
            return "done"
        return "verb" if bare in vocabulary.VERBS else kind

    def _action(self) -> tuple[int, str]:
        """Read words of the action; returns where they end and what they are, or (0, "")."""
        at, word = self._at, self._word(self._at)
        if self._last in (*_APPROVING, "tool") and self._is_pronoun(word) and not self._thing_at(at):
            return at + 1, "tool"
        name = self._question.tool_words
        if len(name) > 1 and self._said[at : at + len(name)] == name and not vocabulary.HARD & set(name):
            return at + len(name), "tool"
        if word in vocabulary.GENERIC_VERBS:
            return at + 1, "tool"
        if word in vocabulary.STOP_VERBS and word in name and (end := self._thing_at(at + 1)):
            # "Cancel the request" may mean the question itself.
            return (0, "") if self._word(end - 1) in vocabulary.GENERIC_NOUNS else (end, "tool")
        if value_end := self._value(at):
            return value_end, "value"
        end = self._thing_at(at)
        return (end, "tool") if end else (0, "")

    def _is_pronoun(self, word: str) -> bool:
        return word in vocabulary.PRONOUNS or (self._many and word in vocabulary.PLURAL_PRONOUNS)

    def _thing_at(self, at: int) -> int:
        """Read "the three files", "both", "delete", "this action"; returns its end, or 0."""
        start = at
        determined = self._word(at) in vocabulary.DETERMINERS
        at += determined
        counted = self._counted(at)
        at = counted or at
        word = self._word(at)
        if determined and word == "1" and self._word(start) in ("this", "that"):
            return at + 1
        if determined and word in vocabulary.GENERIC_NOUNS:
            return at + 1
        if word in self._tool[determined or bool(counted)]:
            return at + 1
        if word in vocabulary.PREPOSITIONS and word in self._question.tool_words and not determined:
            return self._thing_at(at + 1)
        return counted

    def _counted(self, at: int) -> int:
        counts = {str(count) for _, count in self._question.counts}
        if self._word(at) == "both" and "2" in counts:
            return self._of_them(at + 1)
        if self._word(at) == "all" and self._word(at + 1) in counts - {"1"}:
            return self._of_them(at + 2)
        return at + 1 if self._word(at) in counts else 0

    def _of_them(self, at: int) -> int:
        return at + 2 if self._said[at : at + 2] == ("of", "them") else at

    def _value(self, at: int) -> int:
        """Read a value, with its preposition and argument's name if they are said; returns its end, or 0."""
        preposition = self._word(at) if self._word(at) in vocabulary.PREPOSITIONS else ""
        at += bool(preposition)
        at += self._word(at) in ("the", "my")
        best, found = 0, None
        for value in self._question.values:
            end, marked = self._value_end(value, at, preposition)
            if end > best and (marked or value.argument >= self._unmarked):
                best, found = end, (value, marked)
        if found is None:
            return 0
        value, marked = found
        if not marked:
            self._unmarked = value.argument
        self._named.add((value.argument, value.item))
        return best

    def _value_end(self, value: SpokenValue, at: int, preposition: str) -> tuple[int, bool]:
        """Match one value in its longest form; says too if its argument was marked by name or preposition."""
        name = len(value.name) if self._said[at : at + len(value.name)] == value.name else 0
        roles = vocabulary.ROLES.get(preposition)
        suits = roles is not None and bool(roles & set(value.name))
        strict = self._question.arguments > 1 or preposition in vocabulary.STRICT
        if strict and roles is not None and not suits and not name:
            return 0, False
        # A name that is itself a word of its value ("title" of "title page") is tried as both.
        starts = {at + name, at}
        ends = (self._form_end(form, start) for form in value.forms for start in starts)
        return max(ends, default=0), bool(name) or suits

    def _form_end(self, form: Words, at: int) -> int:
        for number, word in enumerate(form):
            if number and word != self._word(at) and self._word(at) in vocabulary.JOINERS:
                at += 1
            if word != self._word(at):
                return 0
            at += 1
        return at


# -- denial


def denies(said: Words, question: Question) -> bool:
    """Tell whether an utterance plainly refuses: a refusal from end to end, or one with its reasons."""
    at = 0
    while phrase := phrase_at(said, at, vocabulary.DENIAL_OPENERS, 4):
        at += len(phrase)
    rest = said[at:]
    if not rest or _assents(rest):
        return False
    if rest[0] in vocabulary.NO and rest[0] not in question.tool_words:
        only_no = set(rest) <= vocabulary.NO | {"?"}
        surprise = only_no and ("?" in rest or "oh" in said[:at])
        return not surprise and not (len(rest) > 1 and rest[1] in vocabulary.NOT_NO)
    return _is_denial(rest, question) or _forbids(rest, question)


def _is_denial(rest: Words, question: Question) -> bool:
    """Read denial phrases, as far as they go; the rest must be a reason."""
    at = 0
    things = tool_forms(question)[False] | vocabulary.DETERMINERS | vocabulary.GENERIC_NOUNS
    things |= {other for word in things for other in (singular(word), plural(word))}
    things |= vocabulary.PRONOUNS | vocabulary.PLURAL_PRONOUNS | vocabulary.DENIAL_THINGS
    denied = False
    while at < len(rest):
        phrase = phrase_at(rest, at, vocabulary.DENIALS, vocabulary.LONGEST_DENIAL)
        if phrase and not (phrase[0] in vocabulary.STOP_VERBS and phrase[0] in question.tool_words):
            at, denied = at + len(phrase), True
        elif around := phrase_at(rest, at, vocabulary.DENIAL_OPENERS, 4):
            at += len(around)
        elif denied and (rest[at] in things or rest[at] in question.tool_words):
            at += 1
        else:
            break
    ended = at == len(rest) or rest[at] in vocabulary.REASONS
    return denied and ended and "?" not in rest and not _turned(rest)


def _turned(rest: Words) -> bool:
    """Tell whether a "don't" refuses a refusal: "don't stop", "don't worry"."""
    return any(
        word in ("don't", "dont", "not") and rest[at + 1 : at + 2] and rest[at + 1] in vocabulary.NOT_A_DENIAL
        for at, word in enumerate(rest)
    )


def _forbids(rest: Words, question: Question) -> bool:
    """Tell whether it is "don't" with the action's verb, or "I don't want", whatever follows."""
    rest = tuple(word for word in rest if word != "please")
    if rest[:2] == ("do", "not"):
        rest = ("don't", *rest[2:])
    if rest[:3] == ("i", "do", "not"):
        rest = ("i", "don't", *rest[3:])
    verbs = vocabulary.DONT_VERBS | tool_forms(question)[False]
    forbids = rest[:1] in (("don't",), ("dont",)) and rest[1:2] != () and rest[1] in verbs
    forbids = forbids or rest[:3] in (("i", "don't", "want"), ("i", "dont", "want"))
    return forbids and "?" not in rest and not vocabulary.NOT_A_DENIAL & set(rest)


def _assents(rest: Words) -> bool:
    """Tell whether there is an approving word that no negation comes shortly before."""
    for at, word in enumerate(rest):
        pair = rest[at : at + 2] in vocabulary.ASSENT_PAIRS
        if not pair and word not in vocabulary.ASSENTS:
            continue
        own = pair and word == "do" and at > 0 and rest[at - 1] in vocabulary.SELF
        negated = (vocabulary.NEGATIONS - vocabulary.NO) & set(rest[max(0, at - 6) : at])
        after = rest[at + 1 : at + 2] == ("not",) or rest[at + 2 : at + 3] == ("not",)
        said_no = rest[max(0, at - 1) : at] == ("no",) and at > 1 and rest[at - 2] == "said"
        if not (own or negated or after or said_no):
            return True
    return False


# -- another request


def _is_other(said: Words, question: Question) -> bool:
    """Tell whether it is a request of its own; one about the open action is not."""
    at = 0
    opened = False
    while phrase := phrase_at(
        said, at, vocabulary.REQUEST_OPENERS | vocabulary.FILLERS, vocabulary.LONGEST_OPENER
    ):
        at += len(phrase)
        opened = opened or len(phrase) > 1
    rest = tuple(word for word in said[at:] if word != "?")
    if len(rest) < 3 and not (opened and len(rest) == 2):
        return False
    if not opened and rest[0] not in vocabulary.QUESTION_WORDS | vocabulary.REQUEST_VERBS:
        return False
    if (vocabulary.ASSENTS | vocabulary.NEGATIONS | {"cancel", "stop"}) & set(rest):
        return False
    if set(_own_words(question)) & set(rest):
        return False
    if vocabulary.TOPICS & set(rest):
        return True
    if vocabulary.ABOUT_THE_ACTION & set(rest) or rest[:2] in vocabulary.ASSENT_PAIRS:
        return False
    content = [word for word in rest if word not in vocabulary.CONTENTLESS]
    return len(content) >= 2 or (len(content) == 1 and content[0] not in vocabulary.REQUEST_VERBS)


def _own_words(question: Question) -> Iterator[str]:
    asked = question.action_words.union(words_of(question.action)) - vocabulary.CONTENTLESS
    for word in asked - vocabulary.PRONOUNS:
        yield from (word, plural(word), singular(word))
