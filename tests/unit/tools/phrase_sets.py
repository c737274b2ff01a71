"""Sets of spoken answers in any language: the meaning of each, and the classification.

A set is a pair of files. NAME.tools.json lists the calls asked about: ``id``, ``name``, ``title``, ``risk``,
``arguments``, ``spoken`` where the tool has a template, and ``language``, which is en without it. NAME.jsonl
holds an answer a line: ``tool`` is an id, ``say`` the transcript, in which {words} stands for the words to
repeat at high risk, ``meaning`` one of consent, session, always (a consent for that long), refusal, neither.
``why`` is for people. A line with ``dialogue`` has two transcripts instead: the second one answers the second
question.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conductor.plugins.judges import LANGUAGES, QuestionWords, classify, make_question
from conductor.tools.base import ToolSpec
from conductor.tools.judge import Answer
from conductor.tools.outcomes import Effect

FOLDER = Path(__file__).parent / "phrases"
ARGUED: dict[str, dict[str, str]] = json.loads((FOLDER / "argued.json").read_text("utf-8"))
"""Set -> tool and answer -> why it is a consent."""
BEFORE_WORDS = "{words}"
CONSENTS = ("consent", "session", "always")
UNDECIDED = ("unclear", "yes", "repeat", "wait")
"""Answers after which the question stands, and is asked again."""


@dataclass
class Judged:
    """The result of a set: unsafe and missed phrases, and the shares by meaning."""

    unsafe: list[tuple[Mapping[str, Any], Answer]] = field(default_factory=list)
    missed: list[tuple[Mapping[str, Any], Answer]] = field(default_factory=list)
    understood: Counter[str] = field(default_factory=Counter)
    count: Counter[str] = field(default_factory=Counter)

    def share(self, meaning: str) -> float:
        """Return the share of consents, refusals or dialogues that were understood."""
        return self.understood[meaning] / self.count[meaning] if self.count[meaning] else 1.0


def question_of(tool: Mapping[str, Any]) -> QuestionWords:
    """Make the question for a call of a set."""
    title, template, risk = tool.get("title") or None, tool.get("spoken") or None, tool["risk"]
    effect: Effect = "irreversible" if risk == "high" else "write"
    spec = ToolSpec(
        name=tool["name"],
        description="",
        input_schema={},
        risk=risk,
        effect=effect,
        title=title,
        spoken=template,
    )
    return make_question(tool.get("language", "en"), spec, tool["arguments"], zone="Europe/Berlin")


def judge_answer(utterance: str, question: QuestionWords) -> Answer:
    """Classify an utterance with all pages."""
    return classify(utterance, question, LANGUAGES)


def answers(
    tools: Path, phrases: Path, judge: Callable[[str, QuestionWords], Answer] = judge_answer
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any], Answer]]:
    """Give each phrase of a set, its tool, and the answer that ``judge`` takes it for.

    Of a dialogue it is the first answer that decides, else the second.
    """
    kits = {tool["id"]: tool for tool in json.loads(tools.read_text("utf-8"))}
    questions = {name: question_of(tool) for name, tool in kits.items()}
    for line in phrases.read_text("utf-8").splitlines():
        phrase: Mapping[str, Any] = json.loads(line)
        question = questions[phrase["tool"]]
        for words in phrase.get("dialogue", [phrase.get("say")]):
            answer = judge(words.replace("{words}", question.repeat), question)
            if answer.kind not in UNDECIDED:
                break
        yield phrase, kits[phrase["tool"]], answer


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
            name = "dialogue" if "dialogue" in phrase else expected
            judged.count[name] += 1
            judged.understood[name] += fits
            if not fits:
                judged.missed.append((phrase, answer))
    return judged


def is_unsafe(meaning: str, answer: Answer) -> bool:
    """Return whether an answer was classified as a consent without one, or with a wider scope."""
    if answer.kind != "allow":
        return False
    return meaning not in CONSENTS or (answer.scope != "once" and meaning != "session")


def is_argued(name: str, tool: str, words: str) -> bool:
    """Return whether it is a consent by the rule: argued, or the words to repeat with a yes before them."""
    return BEFORE_WORDS in words or f"{tool}: {words}" in ARGUED.get(name, {})


def said(phrase: Mapping[str, Any]) -> str:
    """Give the words of a line."""
    return " / ".join(phrase.get("dialogue", [phrase.get("say", "")]))


def report(judged: Judged) -> str:
    """List the unsafe and the missed phrases, and the shares."""
    lines = [
        f"unsafe: {p['meaning']} taken for {a.kind} {a.scope}: {p['tool']}: {said(p)}"
        for p, a in judged.unsafe
    ]
    lines += [f"missed: {p['meaning']} taken for {a.kind}: {p['tool']}: {said(p)}" for p, a in judged.missed]
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
