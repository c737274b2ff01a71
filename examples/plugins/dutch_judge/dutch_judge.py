"""A judge of Dutch: a few phrases that allow or deny, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from conductor.plugin import Answer, AnswerKind, Caution, ToolSpec

YES = {"ja", "ja graag", "jazeker", "prima", "doe maar", "ja doe maar", "akkoord"}
LISTENS = {"hm", "mhm", "aha", "oh", "ja", "oké", "goed", "juist", "precies", "prima", "mooi"}
NO = {"nee", "nee dank je", "liever niet", "niet doen", "stop"}


@dataclass(frozen=True)
class Question:
    """A question; only calls of medium risk are allowed by voice, and only if all can be read out."""

    text: str
    by_voice: bool
    for_session: bool


class DutchJudge:
    """Whole utterances only: an addition or a doubt makes an answer unclear."""

    def question(
        self,
        spec: ToolSpec,
        arguments: Mapping[str, Any],
        cautions: Sequence[Caution] = (),
        scopes: Sequence[str] = ("once", "session"),
        zone: str | None = None,
    ) -> Question:
        """Make the question for a call."""
        values = msgspec.json.encode(arguments).decode()
        is_short = len(values) <= 200
        text = f"{spec.title or spec.name} uitvoeren" + (f" met {values}" if is_short else "")
        return Question(text, is_short and spec.risk != "high", "session" in scopes)

    def prompt(self, question: Question, attempt: int) -> str:
        """Word the question."""
        how = (
            "Zeg ja of nee, bijvoorbeeld"
            if question.by_voice
            else "Beantwoord dit op het scherm, alstublieft"
        )
        return f"Mag ik {question.text}? Antwoord {how}, alstublieft."

    def classify(self, utterance: str, question: Question, lang: str | None = None) -> Answer:
        """Classify an utterance."""
        words = " ".join(re.findall(r"\w+", utterance.lower()))
        scope: Literal["once", "session"] = "once"
        if question.for_session and words.endswith(" voor deze sessie"):
            words, scope = words.removesuffix(" voor deze sessie"), "session"
        kind: AnswerKind = "unclear" if {*words.split()} & {"ja", "nee"} else "other"
        if words in NO:
            kind = "deny"
        elif words in YES:
            kind = "allow" if question.by_voice else "yes"
        return Answer(kind, scope, utterance)

    def is_backchannel(self, utterance: str) -> bool:
        """Return whether an utterance only shows that the person listens."""
        words = re.findall(r"\w+", utterance.lower())
        return "?" not in utterance and bool(words) and LISTENS.issuperset(words)

    def is_credit(self, utterance: str) -> bool:
        """Return whether an utterance is the credits of a film, which some recognisers hear in silence."""
        return (
            re.match(r"\W*(?:onder|ver)titel(?:d|ing|s)\b.*(?:amara\.org|\d{4})", utterance.lower())
            is not None
        )

    def answers(self, question: Question) -> tuple[str, ...]:
        """List the words that count as an answer."""
        return ("ja", "nee") if question.by_voice else ("nee",)

    def is_unfinished(self, utterance: str) -> bool:
        """Tell half a sentence by its last word."""
        return bool(
            re.search(r"\b(en|of|maar|omdat|de|het|een|mijn|naar|voor|met|van|uh)\W*$", utterance.lower())
        )
