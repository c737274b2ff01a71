"""The scripted model of scripts/tau2, and the score: what the model was told against what the phone ran."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.chaos_book import now
from tests.models import Call, JsonObject, Reply

END = "The task is over."
FAULTS = ("wrong hashes", "doubled", "lost", "false", "without consent", "stuck")
"""What must not happen. ``false``: the model was told the contrary of what happened."""
_TASK = re.compile(r"Task (\d+)\.")
_ERROR = re.compile(r"error_type\W+(\w+)")
_PARTIAL = "part of it had been done"


@dataclass(eq=False)
class Task:
    """One task of a run: its actions as (tool, arguments), and the writes that the phone ran."""

    domain: str
    name: str
    kind: str
    actions: Sequence[tuple[str, dict[str, Any]]]
    writes: frozenset[str]
    """The tools that write."""
    runs: Counter[str] = field(default_factory=Counter)
    """How often each write ran, by call id."""
    keys: dict[str, str] = field(default_factory=dict)
    """The `key` of each write that ran, by call id."""
    outcomes: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The action's number and the outcome that the model was told, by call id."""
    call_times: dict[int, float] = field(default_factory=dict)
    """The times of the model's calls without a result."""
    is_stuck: bool = False
    hash: str = ""
    gold: str = ""

    def writes_at(self, number: int) -> bool:
        """Whether an action writes."""
        return self.actions[number][0] in self.writes

    @property
    def effects(self) -> list[int]:
        """The numbers of the writes that ran; one that the model was not told of is found by its `key`."""
        numbers = {number for call_id, (number, _) in self.outcomes.items() if self.runs[call_id]}
        for call_id in self.runs.keys() - self.outcomes.keys():
            alike = (n for n, action in enumerate(self.actions) if key(*action) == self.keys[call_id])
            numbers |= set([n for n in alike if n not in numbers][:1])
        return sorted(numbers)


def key(name: str, arguments: Mapping[str, Any]) -> str:
    """Name a call by its tool and arguments."""
    return f"{name} {json.dumps(arguments, sort_keys=True)}"


def outcome_of(content: Any) -> str:
    """Read the outcome in a result for the model: ``ran``, or an ``error_type`` of a call that did not run.

    A failure of the tool itself ran; a call that was cancelled in the middle is ``unknown``.
    """
    text = json.dumps(content)
    match = _ERROR.search(text)
    if match is None or match[1] in ("none", "internal_error", "tool_error"):
        return "ran"
    return "unknown" if match[1] == "cancelled" and _PARTIAL in text else match[1]


def score(tasks: Sequence[Task]) -> dict[str, int]:
    """Count the `FAULTS`, and the outcomes of writes that were not told as ``ran``."""
    count = Counter[str]()
    for task in tasks:
        writes = {i: outcome for i, (number, outcome) in task.outcomes.items() if task.writes_at(number)}
        gold = Counter(key(*action) for number, action in enumerate(task.actions) if task.writes_at(number))
        ran = Counter(task.keys.values())
        if task.kind == "denied":
            count["without consent"] += task.runs.total()
        count["doubled"] += (task.runs.total() - len(task.runs)) + (ran - gold).total()
        count["stuck"] += task.is_stuck
        count.update(
            outcome
            for outcome in writes.values()
            if outcome not in ("ran", "permission_denied" if task.kind == "denied" else "")
        )
        for call_id, outcome in writes.items():
            count["false"] += outcome != "unknown" and (outcome == "ran") != bool(task.runs[call_id])
        count["wrong hashes"] += task.hash != task.gold
        if not task.is_stuck:  # else the model had not been told everything
            count["false"] += len(task.runs.keys() - writes.keys())
            numbers = {number for number, _ in task.outcomes.values()}
            count["lost"] += sum(map(task.writes_at, set(range(len(task.actions))) - numbers))
    errors = sorted(count.keys() - set(FAULTS) - {"unknown"})
    return {name: count[name] for name in (*FAULTS, "unknown", *errors)}


class GoldModel:
    """The script of the stand-in: the next action of the task that the person named, one a request."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        """By number."""
        self.call_s: list[float] = []
        """The seconds from the model's call to the result in its next request."""

    def __call__(self, request: JsonObject) -> Reply:
        task, results = None, 0
        for message in request["messages"]:
            content = message["content"]
            for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
                if block["type"] == "tool_result" and task is not None:
                    task.outcomes[block["tool_use_id"]] = results, outcome_of(block.get("content", ""))
                    results += 1
                elif block["type"] == "text" and message["role"] == "user":
                    if match := _TASK.search(block["text"]):
                        task, results = self.tasks[int(match[1])], 0
        if task is None:
            return Reply(text=END)
        if (asked_at := task.call_times.pop(results - 1, None)) is not None:
            self.call_s.append(now() - asked_at)
        if results >= len(task.actions):
            return Reply(text=END)
        task.call_times.setdefault(results, now())
        name, arguments = task.actions[results]
        return Reply("", (Call(name.replace(".", "_"), arguments),))
