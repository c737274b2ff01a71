"""The spoken question about a tool call: a template with all arguments.

It contains no text of the model (tools, "Spoken approvals"). A call that cannot be said in full cannot be
approved by voice at high risk; at medium risk the values left out are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, islice
from typing import Any

from conductor.tools.base import Caution, ToolSpec
from conductor.tools.spoken.calls import asker, name_call, own_names, repeated_words
from conductor.tools.spoken.grammar import Question
from conductor.tools.spoken.objects import addressed, object_pattern
from conductor.tools.spoken.values import MAX_COUNTED, MAX_LEAVES, Leaf, leaves, listed, said
from conductor.tools.spoken.vocabulary import Vocabulary, vocabulary

# Characters of the values that are said; the rest is counted.
MAX_SAID_CHARS = 240
SHORT_VALUE_WORDS = 3
# Values that are repeated after an unclear answer.
BRIEF = 2


def make_question(
    spec: ToolSpec,
    arguments: Mapping[str, Any],
    reasons: Sequence[Caution] = (),
    scopes: Sequence[str] = ("once", "session"),
    language: str | None = None,
) -> Question:
    """Make the question for a call; ``language`` is the person's locale, English if it is not known.

    A safe tool that asks is treated as medium risk. ``scopes`` may be chosen from at medium risk; at high
    risk there is only once.
    """
    known = vocabulary(language or "en") or _english()
    told, left = _first(arguments, spec, known)
    call = name_call(spec, told, known)
    details = _details([leaf for leaf in told if leaf.argument not in call.arguments], known)
    brief = details[:BRIEF]
    if rest := len(details) - len(brief) + left:
        brief.append(_count(rest, "more", known))
    names = own_names(call, spec, told, known)
    heard = {*known.words(_with(call.text, details, known)), *(noun for name in names for noun in name.nouns)}
    high = spec.risk == "high"
    repeat = repeated_words(call, told, known) if high else ""
    exact = not left and all(leaf.told for leaf in told)
    return Question(
        risk="high" if high else "medium",
        action=_with(call.text, [*details, *([_count(left, "unsaid", known)] if left else [])], known),
        brief=_with(call.text, brief, known),
        objects=object_pattern(call, names, spec.spoken or "", told, known),
        verb=call.verb,
        said=frozenset(heard) - known.sets["small_words"],
        addressed=addressed(told, known),
        values=_short_values(told, known),
        repeat=repeat,
        for_session="session" in scopes and not high,
        irreversible=spec.effect == "irreversible",
        reasons=tuple(known.data["prompt"]["reasons"][reason] for reason in reasons),
        by_voice=vocabulary(language or "en") is not None and (not high or bool(exact and repeat)),
        language=language or "en",
        asker=asker(spec, known),
    )


def prompt(question: Question, attempt: int = 1) -> str:
    """Render the question; ``attempt`` counts from 1, later ones are shorter.

    Only the first attempt describes the call in full. None ends with words that approve, since a microphone
    may pick up the prompt's end.
    """
    words = (vocabulary(question.language) or _english()).data["prompt"]
    key = "screen" if not question.by_voice else "high" if question.risk == "high" else "medium"
    parts = [*question.reasons] if attempt == 1 else [words["unclear"][key]] if attempt == 2 else []
    action = question.action if attempt == 1 else question.brief
    parts.append(
        words["asks"].format(question.asker, action) if question.asker else words["ask"].format(action)
    )
    if attempt == 1 and (question.irreversible or question.risk == "high"):
        parts.append(words["irreversible" if question.irreversible else "risky"])
    parts.append(words["answer" if attempt == 1 else "answer_again"][key].format(question.repeat))
    return " ".join(filter(None, parts))


def _english() -> Vocabulary:
    english = vocabulary("en")
    assert english is not None, "it comes with the package"
    return english


def _first(arguments: Mapping[str, Any], spec: ToolSpec, known: Vocabulary) -> tuple[list[Leaf], int]:
    walk = leaves(arguments, spec.input_schema, known)
    told: list[Leaf] = []
    length = 0
    for found in walk:
        leaf = said(found, known)
        length += len(leaf.text) + (0 if leaf.index else len(" ".join(leaf.label)))
        # Bounded: people do not listen to a long question to its end. The rest is counted.
        if len(told) == MAX_LEAVES or length > MAX_SAID_CHARS:
            return told, 1 + sum(1 for _ in islice(walk, MAX_COUNTED))
        told.append(leaf)
    return told, 0


def _short_values(told: Sequence[Leaf], known: Vocabulary) -> frozenset[str]:
    texts = (known.words(leaf.value[:MAX_SAID_CHARS]) for leaf in told if isinstance(leaf.value, str))
    return frozenset(word for words in texts if len(words) <= SHORT_VALUE_WORDS for word in words)


def _count(number: int, noun: str, known: Vocabulary) -> str:
    amount = (
        known.data["prompt"]["many"].format(MAX_COUNTED)
        if number > MAX_COUNTED and noun != "item"
        else number
    )
    return str(known.data["prompt"]["counts"][noun][number != 1].format(amount))


def _with(action: str, details: Sequence[str], known: Vocabulary) -> str:
    *before, last = details or ("",)
    joined = known.data["prompt"]["and"].format("; ".join(before), last) if before else last
    return known.data["prompt"]["with"].format(action, joined) if details else action


def _details(told: Sequence[Leaf], known: Vocabulary) -> list[str]:
    details = []
    groups = groupby(told, key=lambda leaf: (leaf.label, leaf.size, None if leaf.size else id(leaf)))
    for (label, size, _), group in groups:
        place = " ".join(label) or known.data["prompt"]["placeless"]
        texts = listed([leaf.text for leaf in group])
        details.append(f"{place} {_count(size, 'item', known)}: {texts}" if size else f"{place} {texts}")
    return details
