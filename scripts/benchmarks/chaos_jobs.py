"""The jobs that clients ask for under faults, and the model that does them."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from conductor.conversation.phrases import CONTINUE
from tests.models import Call, JsonObject, Reply

READ, WRITE, ORDER = "device.read", "device.write", "device.order"
"""The device's tools: a read, a write that never asks, and one that asks."""
ROUNDS = ("read", "write", "both", "pair", "calc", "task", "ask")
"""The kinds of a job's rounds; ``pair`` and ``both`` call several tools at once."""
_JOB = re.compile(r"\bJob (\d+): ([a-z ]+)")
_DONE = re.compile(r"\bJob (\d+) is done\b")
_ROUND = re.compile(r"\bJob (\d+) goes on with round\b")
NOTED = "Noted."
"""The model's answer to anything but a job."""
CONSENT = "Yes."
REST = "There is a little more to say about it. That is all there is to say."
"""The rest of an answer after its first sentence; the whole answer if that sentence was spoken already."""
_NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def declarations() -> list[JsonObject]:
    """Declare the device's tools, for a catalog or a client that declares its own."""
    hints: dict[str, JsonObject] = {READ: {"readOnlyHint": True}}
    wishes: dict[str, JsonObject] = {WRITE: {"conductor": {"approval": "never"}}}
    return [
        {
            "name": name,
            "description": "Does something with a number.",
            "inputSchema": _NUMBER,
            "annotations": hints.get(name, {}),
            "_meta": wishes.get(name, {}),
        }
        for name in (READ, WRITE, ORDER)
    ]


def transcript(number: int, plan: Sequence[str]) -> str:
    """Word a job: its unique number and the kinds of its rounds."""
    return f"Job {number}: {' then '.join(plan) or 'just talk'}"


def job_of(text: str) -> int | None:
    """Find the job that a person's words ask for."""
    match = _JOB.search(text)
    return None if match is None else int(match[1])


def done_job_of(text: str) -> int | None:
    """Find the job that a final answer is about."""
    match = _DONE.search(text)
    return None if match is None else int(match[1])


def job_of_round(text: str) -> int | None:
    """Find the job of words before calls."""
    match = _ROUND.search(text)
    return None if match is None else int(match[1])


def draw_plan(chance: random.Random, required: str | None) -> tuple[str, ...]:
    """Draw the rounds of a job, one of which is ``wanted`` if that is given."""
    weights = [3, 4, 3, 3, 1, 1, 1]
    plan = chance.choices(ROUNDS, weights, k=chance.choice((0, 1, 1, 2, 2, 3)))
    if required is not None:
        plan.insert(chance.randint(0, len(plan)), required)
    return tuple(plan)


def is_parallel(kind: str) -> bool:
    """Whether a round calls the device more than once."""
    return kind in ("both", "pair")


def calls_of(number: int, index: int, kind: str) -> tuple[Call, ...]:
    """Give the calls of a job's round; a repeated request gets the same numbers."""
    first = number * 100 + index * 10
    device: dict[str, Sequence[tuple[str, JsonObject]]] = {
        "read": [("device_read", {"n": first})],
        "write": [("device_write", {"n": first})],
        "both": [("device_read", {"n": first}), ("device_write", {"n": first + 1})],
        "pair": [
            ("device_write", {"n": first}),
            ("device_write", {"n": first + 1}),
            ("calculator", {"expression": f"{first} + 1"}),
        ],
        "calc": [("calculator", {"expression": f"{first} * 2"})],
        "task": [("add_task", {"title": f"task of job {number} round {index}"})],
        "ask": [("device_order", {"n": first})],
    }
    return tuple(Call(name, arguments) for name, arguments in device[kind])


@dataclass(frozen=True)
class Seen:
    """A tool's result as the model reads it; ``number`` is the call's, None for the server's own tools."""

    call_id: str
    tool: str
    number: int | None
    success: bool
    error_type: str


@dataclass(frozen=True)
class ModelRequest:
    """A request: the jobs in its history with their answers, the results, and the state of the last job.

    ``jobs`` are in order. ``answers``: jobs with a final answer; ``repeated``: jobs asked or answered twice.
    ``consent_last``: a consent follows the last job, without a question. ``facts``: the jobs of the app's
    facts.
    """

    jobs: tuple[int, ...]
    answers: frozenset[int]
    repeated: frozenset[int]
    results: tuple[Seen, ...]
    job: int | None
    plan: tuple[str, ...]
    rounds: int
    over: bool
    consent_last: bool
    facts: tuple[int, ...] = ()


class JobModel:
    """The script of the stand-in: does the last job's rounds, one a request, and says that it is done.

    Its replies are streamed with pauses, so that faults fall into them. ``judge`` gets each request, and
    whether the reply is the job's final answer.
    """

    def __init__(self, judge: Callable[[ModelRequest, bool], None], seed: int, pause_s: float) -> None:
        self._judge = judge
        self._chance = random.Random(seed)
        self._pause_s = pause_s

    def __call__(self, request: JsonObject) -> Reply:
        state = read_request(request)
        off = request.get("tool_choice", {}).get("type") == "none"
        working = state.job is not None and not state.over
        last = working and (off or state.rounds >= len(state.plan))
        self._judge(state, last)
        first = self._chance.uniform(0.5, 3) * self._pause_s
        if state.job is None or state.over:
            return Reply(text=NOTED, first_delay_s=first)
        if last:
            text = REST if state.job in state.answers else f"Job {state.job} is done. {REST}"
            return Reply(text=text, delay_s=self._pause_s, first_delay_s=first)
        words = f"Job {state.job} goes on with round {state.rounds}. {REST}" if state.job % 3 == 0 else ""
        calls = calls_of(state.job, state.rounds, state.plan[state.rounds])
        return Reply(words, calls, delay_s=self._pause_s, first_delay_s=first)


def fact_of(job: int) -> str:
    """Make the fact that an app tells before it asks for a job."""
    return f"The app asks for job number {job}."


FACTS = "[The app reports what holds now."
_FACT = re.compile(r"The app asks for job number (\d+)\.")


def read_request(request: JsonObject) -> ModelRequest:
    """Read a request."""
    messages = request["messages"]
    jobs: list[int] = []
    answers: Counter[int] = Counter()
    uses: dict[str, JsonObject] = {}
    results: list[Seen] = []
    plan, rounds, over, consent_last = "", 0, False, False
    facts: list[int] = []
    for message in messages:
        calls = False
        for block in _blocks(message):
            if block["type"] == "tool_use":
                uses[block["id"]] = block
                calls = True
            elif block["type"] == "tool_result":
                results.append(_result(block, uses))
            elif message["role"] == "user" and block["text"].startswith(FACTS):
                facts += [int(number) for number in _FACT.findall(block["text"])]
            elif message["role"] == "user":
                over = over and CONTINUE not in block["text"]
                match = _JOB.search(block["text"])
                consent_last = match is None and CONSENT in block["text"]
                if match:
                    jobs.append(int(match[1]))
                    plan, rounds, over = match[2], 0, False
            elif (job_number := done_job_of(block["text"])) is not None:
                answers[job_number] += 1
        if message["role"] == "assistant":
            rounds += calls
            over = over or not calls
    words = tuple(word for word in plan.split() if word in ROUNDS)
    job = jobs[-1] if jobs else None
    repeated = {number for counts in (answers, Counter(jobs)) for number in counts if counts[number] > 1}
    return ModelRequest(
        tuple(jobs),
        frozenset(answers),
        frozenset(repeated),
        tuple(results),
        job,
        words,
        rounds,
        over,
        consent_last,
        tuple(facts),
    )


def _blocks(message: JsonObject) -> Iterator[JsonObject]:
    content = message["content"]
    if isinstance(content, str):
        yield {"type": "text", "text": content}
    else:
        yield from content


def _result(block: JsonObject, uses: dict[str, JsonObject]) -> Seen:
    use = uses.get(block["tool_use_id"], {"name": "", "input": {}})
    content: Any = block.get("content", "")
    try:
        outcome = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.MsgspecError, TypeError):
        outcome = {}
    return Seen(
        block["tool_use_id"],
        use["name"],
        use["input"].get("n"),
        outcome.get("success") is True,
        str(outcome.get("error_type", "")),
    )
