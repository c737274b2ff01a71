"""Sets of spoken answers: the meaning of each, and the classification.

A set is a pair of files. NAME.tools.json lists the calls asked about: ``id``, ``name``, ``title``, ``risk``,
``arguments``, and ``spoken`` where the tool has a template. NAME.jsonl holds an answer a line: ``tool`` is an
id, ``say`` the transcript, in which {words} stands for the words to repeat at high risk, ``meaning`` one of
consent, session, always (a consent for that long), refusal, neither. ``why`` is for people.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conductor.plugins.judges import Question, classify_answer, make_question
from conductor.tools.base import Effect, ToolSpec
from conductor.tools.judge import Answer

CONSENTS = ("consent", "session", "always")


@dataclass
class Judged:
    """The result of a set: unsafe and missed phrases, and the shares by meaning."""

    unsafe: list[tuple[Mapping[str, Any], Answer]] = field(default_factory=list)
    missed: list[tuple[Mapping[str, Any], Answer]] = field(default_factory=list)
    understood: Counter[str] = field(default_factory=Counter)
    count: Counter[str] = field(default_factory=Counter)

    def share(self, meaning: str) -> float:
        """Return the share of consents or refusals that were understood at once."""
        return self.understood[meaning] / self.count[meaning] if self.count[meaning] else 1.0


def question_of(tool: Mapping[str, Any]) -> Question:
    """Make the question for a call of a set."""
    title, template, risk = tool.get("title") or None, tool.get("spoken") or None, tool["risk"]
    effect: Effect = "irreversible" if risk == "high" else "write"
    spec = ToolSpec(tool["name"], "", {}, risk=risk, effect=effect, title=title, spoken=template)
    return make_question(spec, tool["arguments"])


def answers(
    tools: Path, phrases: Path, classify: Callable[[str, Question], Answer] = classify_answer
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any], Answer]]:
    """Give each phrase of a set, its tool, and the answer that ``classify`` takes it for."""
    kits = {tool["id"]: tool for tool in json.loads(tools.read_text("utf-8"))}
    questions = {name: question_of(tool) for name, tool in kits.items()}
    for line in phrases.read_text("utf-8").splitlines():
        phrase: Mapping[str, Any] = json.loads(line)
        question = questions[phrase["tool"]]
        words = phrase["say"].replace("{words}", question.repeat)
        yield phrase, kits[phrase["tool"]], classify(words, question)


def judge_set(tools: Path, phrases: Path) -> Judged:
    """Judge all phrases of a set."""
    judged = Judged()
    for phrase, _, answer in answers(tools, phrases):
        meaning = phrase["meaning"]
        if is_unsafe(meaning, answer):
            judged.unsafe.append((phrase, answer))
        expected = {"consent": "consent", "session": "consent", "refusal": "refusal"}.get(meaning)
        if expected is not None:
            fits = answer.kind == ("allow" if expected == "consent" else "deny")
            judged.count[expected] += 1
            judged.understood[expected] += fits
            if not fits:
                judged.missed.append((phrase, answer))
    return judged


def is_unsafe(meaning: str, answer: Answer) -> bool:
    """Return whether an answer was classified as a consent without one, or with a wider scope."""
    if answer.kind != "allow":
        return False
    return meaning not in CONSENTS or (answer.scope != "once" and meaning != "session")


def report(judged: Judged) -> str:
    """List the unsafe and the missed phrases, and the shares."""
    lines = [
        f"unsafe: {p['meaning']} taken for {a.kind} {a.scope}: {p['tool']}: {p['say']}"
        for p, a in judged.unsafe
    ]
    lines += [f"missed: {p['meaning']} taken for {a.kind}: {p['tool']}: {p['say']}" for p, a in judged.missed]
    for meaning, count in judged.count.items():
        lines.append(
            f"{meaning}: {judged.understood[meaning]} of {count} understood, {judged.share(meaning):.1%}"
        )
    return "\n".join([*lines, f"unsafe: {len(judged.unsafe)}"])


def main(arguments: Sequence[str]) -> int:
    """Print the result of a set; returns 1 if a phrase is unsafe, 2 without two files."""
    if len(arguments) != 2:
        print("usage: scripts/phrases TOOLS.json PHRASES.jsonl")  # noqa: T201 -- it is the script's main
        return 2
    judged = judge_set(Path(arguments[0]), Path(arguments[1]))
    print(report(judged))  # noqa: T201 -- it is the script's main
    return 1 if judged.unsafe else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
