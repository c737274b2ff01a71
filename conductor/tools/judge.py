"""The interface of a judge, which words the spoken question about a call and classifies the answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from conductor.tools.base import ToolSpec
from conductor.tools.outcomes import Caution

AnswerKind: TypeAlias = Literal["allow", "deny", "yes", "wait", "repeat", "unclear", "other"]
"""``yes`` is a consent that is not enough: at high risk, or to a question that needs a screen. ``wait``
asks for time, ``repeat`` for the question, ``other`` is no answer; all else is ``unclear``."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A classified utterance; ``scope`` applies to ``allow``, ``words`` are the person's."""

    kind: AnswerKind
    scope: Literal["once", "session"]
    words: str


class SpokenQuestion(Protocol):
    """A question about one call."""

    @property
    def by_voice(self) -> bool:
        """Whether an utterance may allow the call; else only a tap on a screen does."""
        ...


_Question = TypeVar("_Question", bound=SpokenQuestion)


class ApprovalJudge(Protocol[_Question]):
    """The judge of one language: the entry point's name is the language's code, such as ``en``.

    Only ``allow`` runs a tool, so a judge that is not sure answers ``unclear``, and the question is asked
    again. No method may raise, await or take over 5 ms: they run between two events of a session. What takes
    longer is done when the judge is made, before the server is ready.
    """

    def question(
        self,
        spec: ToolSpec,
        arguments: Mapping[str, Any],
        *,
        cautions: Sequence[Caution] = (),
        scopes: Sequence[str] = ("once", "session"),
        zone: str | None = None,
    ) -> _Question:
        """Make the question for a call; ``zone`` is the person's time zone. ``scopes`` may be chosen from."""
        ...

    def prompt(self, question: _Question, attempt: int) -> str:
        """Word the question; ``attempt`` counts from 1, and is 0 where the person asks for the question."""
        ...

    def classify(self, utterance: str, question: _Question, lang: str | None = None) -> Answer:
        """Classify an utterance as an answer to the open question.

        ``lang`` is the code of the language that the transcriber heard: a consent in another one than the
        question's does not count, and a refusal counts in any.
        """
        ...

    def is_backchannel(self, utterance: str) -> bool:
        """Return whether an utterance only shows that the person listens, such as "mhm" or "okay, right".

        It is asked where no question stands: a paused speech then goes on.
        """
        ...

    def is_credit(self, utterance: str) -> bool:
        """Return whether an utterance is the credits of a film, which some recognisers hear in silence.

        It is then refused as a noise.
        """
        ...

    def answers(self, question: _Question) -> Sequence[str]:
        """List the words that count as an answer, for the recogniser to listen for."""
        ...

    def is_unfinished(self, utterance: str) -> bool:
        """Return whether an utterance ends in the middle of a sentence, such as "call my" or "so, um".

        The person is probably thinking: the server waits a moment for the other half.
        """
        ...


def language_of(judges: Mapping[str, ApprovalJudge[Any]], *tags: str | None) -> str:
    """Choose the language of a question: the first of the tags (BCP 47) with a judge, else English."""
    codes = (code_of(tag) for tag in tags)
    return next((code for code in codes if code in judges), "en")


def code_of(tag: str | None) -> str:
    """Return the language's code of a language tag."""
    return re.split("[-_]", (tag or "")[:10].lower())[0]
