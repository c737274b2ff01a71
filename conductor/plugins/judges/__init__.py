"""Approvals by voice: the spoken prompt, and the closed grammar that classifies the answer."""

from conductor.plugins.judges.grammar import Answer, AnswerKind, Question, Scope, classify_answer
from conductor.plugins.judges.prompt import make_question, prompt

__all__ = ["Answer", "AnswerKind", "Question", "Scope", "classify_answer", "make_question", "prompt"]
