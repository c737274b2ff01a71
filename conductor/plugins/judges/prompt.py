"""The spoken question about a tool call: a template with all arguments, and no text of the model.

A call that cannot be read out in full cannot be approved by voice at high risk; at medium risk the omitted
values are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, islice
from typing import Any

from conductor.plugins.judges.call_names import (
    asker,
    name_call,
    own_names,
    repeated_words,
)
from conductor.plugins.judges.grammar import Question
from conductor.plugins.judges.objects import addressed, object_pattern
from conductor.plugins.judges.values import MAX_COUNTED, MAX_LEAVES, Leaf, iter_leaves, listed, render
from conductor.plugins.judges.vocabulary import Vocabulary, load_vocabulary
from conductor.tools.base import Caution, ToolSpec

# Characters of the values that are read out; further values are counted.
MAX_SAID_CHARS = 240
SHORT_VALUE_WORDS = 3
# Values that are repeated after an unclear answer.
BRIEF = 2


def make_question(
    spec: ToolSpec,
    arguments: Mapping[str, Any],
    reasons: Sequence[Caution] = (),
    scopes: Sequence[str] = ("once", "session"),
    locale: str | None = None,
) -> Question:
    """Make the question for a call; ``locale`` is the person's, English if it is not known.

    A safe tool that asks is treated as medium risk. ``scopes`` may be chosen from at medium risk; at high
    risk there is only once.
    """
    lang = load_vocabulary(locale or "en") or _english()
    leaves, omitted = _first(arguments, spec, lang)
    call = name_call(spec, leaves, lang)
    details = _details([leaf for leaf in leaves if leaf.argument not in call.arguments], lang)
    brief = details[:BRIEF]
    if unsaid := len(details) - len(brief) + omitted:
        brief.append(_count(unsaid, "more", lang))
    names = own_names(call, spec, leaves, lang)
    action_words = {
        *lang.words(_with(call.text, details, lang)),
        *(noun for name in names for noun in name.nouns),
    }
    is_high = spec.risk == "high"
    repeat = repeated_words(call, leaves, lang) if is_high else ""
    exact = not omitted and all(leaf.exact for leaf in leaves)
    return Question(
        risk="high" if is_high else "medium",
        action=_with(call.text, [*details, *([_count(omitted, "unsaid", lang)] if omitted else [])], lang),
        brief=_with(call.text, brief, lang),
        objects=object_pattern(call, names, spec.spoken or "", leaves, lang),
        verb=call.verb,
        action_words=frozenset(action_words) - lang.sets["small_words"],
        addressed=addressed(leaves, lang),
        dictated=any((lang.sets["prose"] | lang.sets["dictated"]) & {*leaf.label[-1:]} for leaf in leaves),
        values=_short_values(leaves, lang),
        repeat=repeat,
        for_session="session" in scopes and not is_high,
        irreversible=spec.effect == "irreversible",
        reasons=tuple(lang.data["prompt"]["reasons"][reason] for reason in reasons),
        by_voice=load_vocabulary(locale or "en") is not None and (not is_high or bool(exact and repeat)),
        locale=locale or "en",
        asker=asker(spec, lang),
    )


def prompt(question: Question, attempt: int = 1) -> str:
    """Render the question; ``attempt`` counts from 1, later ones are shorter.

    Only the first attempt describes the call in full. None ends with words that approve, since a microphone
    may pick up the prompt's end.
    """
    words = (load_vocabulary(question.locale) or _english()).data["prompt"]
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
    english = load_vocabulary("en")
    assert english is not None, "it comes with the package"
    return english


def _first(arguments: Mapping[str, Any], spec: ToolSpec, lang: Vocabulary) -> tuple[list[Leaf], int]:
    remaining = iter_leaves(arguments, spec.input_schema, lang)
    leaves: list[Leaf] = []
    length = 0
    for scalar in remaining:
        leaf = render(scalar, lang)
        length += len(leaf.text) + (0 if leaf.index else len(" ".join(leaf.label)))
        if len(leaves) == MAX_LEAVES or length > MAX_SAID_CHARS:
            return leaves, 1 + sum(1 for _ in islice(remaining, MAX_COUNTED))
        leaves.append(leaf)
    return leaves, 0


def _short_values(leaves: Sequence[Leaf], lang: Vocabulary) -> frozenset[str]:
    texts = (lang.words(leaf.value[:MAX_SAID_CHARS]) for leaf in leaves if isinstance(leaf.value, str))
    return frozenset(word for words in texts if len(words) <= SHORT_VALUE_WORDS for word in words)


def _count(number: int, noun: str, lang: Vocabulary) -> str:
    words = lang.data["prompt"]
    is_more = number > MAX_COUNTED and noun != "item"
    amount = words["many"].format(MAX_COUNTED) if is_more else number
    return str(words["counts"][noun][number != 1].format(amount))


def _with(action: str, details: Sequence[str], lang: Vocabulary) -> str:
    *before, last = details or ("",)
    joined = lang.data["prompt"]["and"].format("; ".join(before), last) if before else last
    return lang.data["prompt"]["with"].format(action, joined) if details else action


def _details(leaves: Sequence[Leaf], lang: Vocabulary) -> list[str]:
    details = []
    groups = groupby(leaves, key=lambda leaf: (leaf.label, leaf.size, None if leaf.size else id(leaf)))
    for (label, size, _), group in groups:
        name = " ".join(label) or lang.data["prompt"]["placeless"]
        texts = listed([leaf.text for leaf in group])
        details.append(f"{name} {_count(size, 'item', lang)}: {texts}" if size else f"{name} {texts}")
    return details
