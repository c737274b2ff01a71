"""Approvals by voice: the spoken question, and the closed grammar of answers; two pages a language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from conductor.plugins.judges.backchannels import is_backchannel, is_credit
from conductor.plugins.judges.grammar import classify
from conductor.plugins.judges.halves import is_unfinished
from conductor.plugins.judges.page import load_page
from conductor.plugins.judges.question import QuestionWords, make_question, prompt
from conductor.tools.base import ToolSpec
from conductor.tools.judge import Answer
from conductor.tools.outcomes import Caution

__all__ = [
    "LANGUAGES",
    "PageJudge",
    "QuestionWords",
    "classify",
    "english",
    "french",
    "german",
    "make_question",
    "prompt",
    "spanish",
]

LANGUAGES = ("en", "de", "es", "fr")


class PageJudge:
    """The judge of a language that has a page."""

    def __init__(self, language: str) -> None:
        load_page(language)  # before the server is ready: it takes 50 ms
        self._language = language

    def question(
        self,
        spec: ToolSpec,
        arguments: Mapping[str, Any],
        *,
        cautions: Sequence[Caution] = (),
        scopes: Sequence[str] = ("once", "session"),
        zone: str | None = None,
    ) -> QuestionWords:
        """Make the question for a call (`ApprovalJudge`)."""
        return make_question(self._language, spec, arguments, cautions, scopes=scopes, zone=zone)

    prompt = staticmethod(prompt)

    def classify(self, utterance: str, question: QuestionWords, lang: str | None = None) -> Answer:
        """Classify an utterance (`ApprovalJudge`)."""
        return classify(utterance, question, LANGUAGES, lang)

    def is_backchannel(self, utterance: str) -> bool:
        """Return whether an utterance only shows that the person listens (`ApprovalJudge`)."""
        return is_backchannel(utterance, load_page(self._language))

    def is_credit(self, utterance: str) -> bool:
        """Return whether an utterance is the credits of a film (`ApprovalJudge`)."""
        return is_credit(utterance, load_page(self._language))

    def answers(self, question: QuestionWords) -> Sequence[str]:
        """List the words to repeat, or yes, and no (`ApprovalJudge`)."""
        sentences = load_page(self._language).sentences
        return question.repeat or sentences["true"], sentences["false"]

    def is_unfinished(self, utterance: str) -> bool:
        """Tell half a sentence by its end (`ApprovalJudge`)."""
        return is_unfinished(utterance, load_page(self._language))


def english() -> PageJudge:
    """Make the judge of English."""
    return PageJudge("en")


def german() -> PageJudge:
    """Make the judge of German."""
    return PageJudge("de")


def spanish() -> PageJudge:
    """Make the judge of Spanish."""
    return PageJudge("es")


def french() -> PageJudge:
    """Make the judge of French."""
    return PageJudge("fr")
