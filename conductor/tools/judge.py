"""The interface of a judge, which words the spoken question about a call and classifies the answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from conductor.entry_points import JUDGES, plugins
from conductor.tools.base import Caution, ToolSpec

AnswerKind: TypeAlias = Literal["allow", "deny", "unclear", "other"]


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
    again. No method may raise, await or take long: they run between two events of a session.
    """

    def question(
        self,
        spec: ToolSpec,
        arguments: Mapping[str, Any],
        cautions: Sequence[Caution] = (),
        scopes: Sequence[str] = ("once", "session"),
        locale: str | None = None,
    ) -> _Question:
        """Make the question for a call; ``locale`` is the person's. ``scopes`` may be chosen from."""
        ...

    def prompt(self, question: _Question, attempt: int) -> str:
        """Word the question; ``attempt`` counts from 1."""
        ...

    def classify(self, utterance: str, question: _Question) -> Answer:
        """Classify an utterance as an answer to the open question; ``other`` is not an answer."""
        ...


def load_judges() -> Mapping[str, ApprovalJudge[Any]]:
    """Make the installed judges, by language. Raises `SettingsError`."""
    return {name: plugin.make(ApprovalJudge) for name, plugin in plugins(JUDGES).items()}


def judge_of(judges: Mapping[str, ApprovalJudge[Any]], locale: str | None) -> ApprovalJudge[Any]:
    """Choose the judge of a locale's language, else the English one, which then leaves answers to taps."""
    language = re.split("[-_]", (locale or "en")[:10].lower())[0]
    return judges.get(language) or judges["en"]
