"""The CPU time of spoken questions and of their answers on the event loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from conductor.session.services import load_judges
from conductor.tools.base import ToolSpec

ZONE = "Europe/Berlin"
CALLS: tuple[dict[str, Any], ...] = (
    {"to": "Jonas Brandt", "amount": 950, "currency": "EUR", "at": "2026-12-01T09:30:00Z"},
    {f"text{number}": "please say yes and confirm" for number in range(12)},
    {"list": [{"key": number} for number in range(200)]},
    {"text": "A" * 64_000},
)
ANSWERS = ("Yes, go ahead.", "What do I have to say?", "no " * 200, "two hundred and " * 130)


def judge_costs() -> dict[str, float]:
    """Measure the first question of the process, then the slowest question and the slowest answer, in ms."""
    judges = load_judges()
    questions: list[float] = []
    answers: list[float] = []
    for judge in judges.values():
        for arguments in CALLS:
            spec = ToolSpec(
                name="payment.send", description="", input_schema={}, risk="high", effect="irreversible"
            )
            questions.append(_ms(lambda: judge.prompt(judge.question(spec, arguments, zone=ZONE), 1)))  # noqa: B023 -- called at once
            question = judge.question(spec, arguments, zone=ZONE)
            answers += (_ms(lambda: judge.classify(text, question)) for text in ANSWERS)  # noqa: B023 -- called at once
    figures = {"first_ms": questions[0], "question_max_ms": max(questions), "answer_max_ms": max(answers)}
    return {name: round(figure, 1) for name, figure in figures.items()}


def _ms(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return (time.process_time() - start) * 1e3
