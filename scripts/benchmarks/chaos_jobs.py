"""The jobs that clients ask for under faults, and the model that does them."""

from __future__ import annotations

import random
import re
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from conductor.conversation.heard import HEARD_NOTHING
from conductor.conversation.phrases import CONTINUE
from tests.models import Call, JsonObject, Reply
from tests.pictures import png

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
ASIDE = "Is that all right?"
"""Some answers end in this question. A murmur over it may be an answer, so the voice must not just go on."""
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
class Sight:
    """A place in a request where a picture may be: the words of a job, or the result of a read.

    ``turns`` began since then. ``shown``: the picture is there; ``told``: a line of text stands for it.
    """

    name: str
    job: int
    turns: int
    shown: bool
    told: bool


@dataclass(frozen=True)
class ModelRequest:
    """A request: the jobs in its history with their answers, the results, and the state of the last job.

    ``jobs`` are in order. ``answers``: jobs with a final answer; ``repeated``: jobs asked or answered twice;
    ``unheard``: jobs in whose answer's place stands that the user has heard nothing of it.
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
    unheard: frozenset[int]
    facts: tuple[int, ...] = ()
    sights: tuple[Sight, ...] = ()


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
            rest = f"{REST} {ASIDE}" if state.job % 3 == 1 else REST
            text = REST if state.job in state.answers else f"Job {state.job} is done. {rest}"
            return Reply(text=text, delay_s=self._pause_s, first_delay_s=first)
        words = f"Job {state.job} goes on with round {state.rounds}. {REST}" if state.job % 3 == 0 else ""
        calls = calls_of(state.job, state.rounds, state.plan[state.rounds])
        return Reply(words, calls, delay_s=self._pause_s, first_delay_s=first)


def fact_of(job: int) -> str:
    """Make the fact that an app tells before it asks for a job."""
    return f"The app asks for job number {job}."


FACTS = "[The app reports what holds now."
_FACT = re.compile(r"The app asks for job number (\d+)\.")


def said(job: int) -> str:
    """Name the picture that comes with the words of a job."""
    return f"said {job}"


def read(call: int) -> str:
    """Name the picture that comes with the result of a read."""
    return f"read {call}"


def picture_of(name: str) -> bytes:
    """Make a picture that can be told from all others."""
    return png() + f"<{name}>".encode()


_NAME = re.compile(rb"<(\w+ \d+)>$")
_GONE = "[an image that is no longer shown"


def sights_of(messages: Sequence[JsonObject], uses: dict[str, JsonObject]) -> tuple[Sight, ...]:
    """Find the places where a picture may be, and whether it is there. ``uses`` are the calls by id."""
    places: list[tuple[str, int, int, str]] = []
    shown: set[str] = set()
    turn = 0
    for block in (block for message in messages if message["role"] == "user" for block in _blocks(message)):
        if block["type"] == "tool_result":
            result = _result(block, uses)
            if result.success and result.tool == "device_read" and result.number is not None:
                places.append((read(result.number), result.number // 100, turn, _text(block)))
            shown |= {_name(part) for part in _parts(block) if part["type"] == "image"}
        elif block["type"] == "image":
            shown.add(_name(block))
        elif not block["text"].startswith("["):  # no note of the server
            turn += 1
            if (job := job_of(block["text"])) is not None:
                places.append((said(job), job, turn, block["text"]))
    return tuple(Sight(name, job, turn - at, name in shown, _GONE in text) for name, job, at, text in places)


def _name(image: JsonObject) -> str:
    found = _NAME.search(b64decode(image["source"]["data"]))
    return found[1].decode() if found else ""


def read_request(request: JsonObject) -> ModelRequest:
    """Read a request."""
    messages = request["messages"]
    jobs: list[int] = []
    answers: Counter[int] = Counter()
    uses: dict[str, JsonObject] = {}
    results: list[Seen] = []
    plan, rounds, over, consent_last = "", 0, False, False
    facts: list[int] = []
    unheard: set[int] = set()
    for message in messages:
        calls = unspoken = False
        for block in _blocks(message):
            if block["type"] == "tool_use":
                uses[block["id"]] = block
                calls = True
            elif block["type"] == "tool_result":
                results.append(_result(block, uses))
            elif block["type"] == "image":
                continue
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
            else:
                unspoken = block["text"].startswith(HEARD_NOTHING)
        if message["role"] == "assistant":
            rounds += calls
            if unspoken and jobs and not (calls or over):
                unheard.add(jobs[-1])
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
        frozenset(unheard),
        tuple(facts),
        sights_of(messages, uses),
    )


def _blocks(message: JsonObject) -> Iterator[JsonObject]:
    content = message["content"]
    if isinstance(content, str):
        yield {"type": "text", "text": content}
    else:
        yield from content


def _parts(result: JsonObject) -> list[JsonObject]:
    content = result.get("content", "")
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _text(result: JsonObject) -> str:
    return "".join(part["text"] for part in _parts(result) if part["type"] == "text")


def _result(block: JsonObject, uses: dict[str, JsonObject]) -> Seen:
    use = uses.get(block["tool_use_id"], {"name": "", "input": {}})
    try:
        outcome = msgspec.json.decode(_text(block).partition(f"\n{_GONE}")[0], type=dict[str, Any])
    except msgspec.MsgspecError:
        outcome = {}
    return Seen(
        block["tool_use_id"],
        use["name"],
        use["input"].get("n"),
        outcome.get("success") is True,
        str(outcome.get("error_type", "")),
    )
