"""The jobs that clients ask for under faults: what their transcripts say, and the model that does them."""

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
"""The device's tools: one changes nothing, one may run unasked, one is asked about."""
ROUNDS = ("read", "write", "both", "pair", "calc", "task", "ask")
"""What a round of a job may call: of ``pair`` and ``both`` several at once."""
_JOB = re.compile(r"\bJob (\d+): ([a-z ]+)")
_DONE = re.compile(r"\bJob (\d+) is done\b")
_ROUND = re.compile(r"\bJob (\d+) goes on with round\b")
NOTED = "Noted."
"""What the model says to anything but a job."""
CONSENT = "Yes."
REST = "There is a little more to say about it. That is all there is to say."
"""What follows the first sentence of an answer, and where that was spoken already, all that is said."""
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
    """Say a job: its unique number, and what each round is to call."""
    return f"Job {number}: {' then '.join(plan) or 'just talk'}"


def job_of(text: str) -> int | None:
    """Find the job that a person's words ask for."""
    found = _JOB.search(text)
    return None if found is None else int(found[1])


def done_job_of(text: str) -> int | None:
    """Find the job that a final answer is about."""
    found = _DONE.search(text)
    return None if found is None else int(found[1])


def job_of_round(text: str) -> int | None:
    """Find the job that words beside calls are about."""
    found = _ROUND.search(text)
    return None if found is None else int(found[1])


def draw_plan(chance: random.Random, wanted: str | None) -> tuple[str, ...]:
    """Draw the rounds of a job, one of which is ``wanted`` if that is given."""
    weights = [3, 4, 3, 3, 1, 1, 1]
    plan = chance.choices(ROUNDS, weights, k=chance.choice((0, 1, 1, 2, 2, 3)))
    if wanted is not None:
        plan.insert(chance.randint(0, len(plan)), wanted)
    return tuple(plan)


def is_parallel(kind: str) -> bool:
    """Whether a round calls the device more than once."""
    return kind in ("both", "pair")


def calls_of(number: int, index: int, kind: str) -> tuple[Call, ...]:
    """Give the calls of a job's round; their numbers are the same however often the model is asked."""
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
    """A request, read: the jobs in the history with their answers, the results, and what comes next.

    ``jobs`` are in order; ``answered`` are those whose final answer follows, ``repeated`` those that were
    said or answered twice. ``consent_last``: a consent was said after the last job, when none was asked for.
    """

    jobs: tuple[int, ...]
    answered: frozenset[int]
    repeated: frozenset[int]
    results: tuple[Seen, ...]
    job: int | None
    plan: tuple[str, ...]
    rounds: int
    over: bool
    consent_last: bool


class JobModel:
    """The script of the stand-in: does the last job's rounds, one a request, and says that it is done.

    Its replies are streamed with pauses, so that faults fall into them. ``judge`` is given each request, and
    whether what is given now is the job's final answer.
    """

    def __init__(self, judge: Callable[[ModelRequest, bool], None], seed: int, pause_s: float) -> None:
        self._judge = judge
        self._chance = random.Random(seed)
        self._pause_s = pause_s

    def __call__(self, request: JsonObject) -> Reply:
        asked = read_request(request)
        off = request.get("tool_choice", {}).get("type") == "none"
        working = asked.job is not None and not asked.over
        last = working and (off or asked.rounds >= len(asked.plan))
        self._judge(asked, last)
        first = self._chance.uniform(0.5, 3) * self._pause_s
        if asked.job is None or asked.over:
            return Reply(text=NOTED, first_delay_s=first)
        if last:
            text = REST if asked.job in asked.answered else f"Job {asked.job} is done. {REST}"
            return Reply(text=text, delay_s=self._pause_s, first_delay_s=first)
        words = f"Job {asked.job} goes on with round {asked.rounds}. {REST}" if asked.job % 3 == 0 else ""
        calls = calls_of(asked.job, asked.rounds, asked.plan[asked.rounds])
        return Reply(words, calls, delay_s=self._pause_s, first_delay_s=first)


def read_request(request: JsonObject) -> ModelRequest:
    """Read what the model is asked."""
    messages = request["messages"]
    jobs: list[int] = []
    answered: Counter[int] = Counter()
    uses: dict[str, JsonObject] = {}
    results: list[Seen] = []
    plan, rounds, over, consent_last = "", 0, False, False
    for message in messages:
        calls = False
        for block in _blocks(message):
            if block["type"] == "tool_use":
                uses[block["id"]] = block
                calls = True
            elif block["type"] == "tool_result":
                results.append(_result(block, uses))
            elif message["role"] == "user":
                over = over and CONTINUE not in block["text"]
                found = _JOB.search(block["text"])
                consent_last = found is None and CONSENT in block["text"]
                if found:
                    jobs.append(int(found[1]))
                    plan, rounds, over = found[2], 0, False
            elif (done := done_job_of(block["text"])) is not None:
                answered[done] += 1
        if message["role"] == "assistant":
            rounds += calls
            over = over or not calls
    words = tuple(word for word in plan.split() if word in ROUNDS)
    job = jobs[-1] if jobs else None
    repeated = {number for counts in (answered, Counter(jobs)) for number in counts if counts[number] > 1}
    return ModelRequest(
        tuple(jobs),
        frozenset(answered),
        frozenset(repeated),
        tuple(results),
        job,
        words,
        rounds,
        over,
        consent_last,
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
