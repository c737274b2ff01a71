"""Approvals by voice in English: the spoken prompt, and the closed grammar that classifies the answer."""

from __future__ import annotations

from conductor.plugins.judges.grammar import Question, classify_answer
from conductor.plugins.judges.prompt import make_question, prompt

__all__ = ["EnglishJudge", "Question", "classify_answer", "make_question", "prompt"]


class EnglishJudge:
    """The judge of English; a person of another language answers by a tap."""

    question = staticmethod(make_question)
    prompt = staticmethod(prompt)
    classify = staticmethod(classify_answer)
