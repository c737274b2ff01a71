"""The record of every job, call and fault of a run, and the findings."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from benchmarks.chaos_jobs import ModelRequest
from conductor.conversation.phrases import FAILURES

Column = Literal[
    "lost",
    "doubled",
    "shown twice",
    "unknown?",
    "stuck",
    "gave up",
    "history",
    "zombie",
    "untrue",
    "facts",
    "pictures",
    "over a question",
    "cut off",
]
Row: TypeAlias = tuple[str, str]
"""A fault's kind, and the step of a turn that it fell on."""
NO_FAULT: Row = ("none", "no fault before")
BYSTANDER = "elsewhere in a turn"
TRACE = 150  # lines kept of a session's story
CALL_S = 3.0
"""Seconds that a call of a device may take."""
CLAIMS, CLAIMS_S = 6, 30.0
"""The server delays further claims in these seconds: two clients may fight for a session."""
IN_FLIGHT_S = 6.0
"""A connection that ends this soon after a result may have lost the result."""
STORE_AWAY_S = 12.0
"""A node may be frozen for 3 s, with the lock of a file that it shares; two commits then wait 2 s each."""


@dataclass(eq=False)
class Job:
    """A transcript. It is acknowledged when the app has shown its words."""

    number: int
    plan: tuple[str, ...]
    person: Person
    asked_at: float
    is_acknowledged: bool = False
    is_answered: bool = False
    is_apologised: bool = False
    is_interrupted: bool = False
    is_superseded: bool = False
    is_blamed: bool = False
    is_lost: bool = False
    is_voiced: bool = False
    """The voice has begun its answer, and is not paused."""
    is_withdrawn: bool = False
    """A later request has said that nothing of its answer was heard."""
    has_fact: bool = False
    """The app has told a fact about it; the session's earlier jobs had one, too."""
    has_pictures: bool = False
    """Its words and its reads come with a picture each."""
    row: Row = NO_FAULT

    @property
    def ended(self) -> bool:
        """Whether the job has an answer or an apology."""
        return self.is_answered or self.is_apologised


@dataclass
class Device:
    """A call on the device, by the call's number."""

    person: Person
    write: bool
    runs: int = 0
    sent_at: float | None = None
    sent_by: object = None
    relaunched: bool = False


@dataclass(eq=False)
class Person:
    """A session of a client, as the book knows it. ``resumes``: the server has accepted ``resume``.

    ``losses`` are the times at which its connection was lost, ``claims`` those at which it had a new one.
    ``received_ids`` gives the ids of its events. Its voice was paused last until ``paused_until``: a client
    that takes its events one by one begins no call meanwhile.
    """

    name: str
    session_id: str
    resumes: bool = False
    row: Row = NO_FAULT
    hit_at: float = 0.0
    paused_until: float = 0.0
    losses: list[float] = field(default_factory=list)
    claims: list[float] = field(default_factory=list)
    received_ids: Callable[[], Collection[str]] = tuple
    unknowns: list[float] = field(default_factory=list)
    messages: Counter[str] = field(default_factory=Counter)
    trace: deque[str] = field(default_factory=lambda: deque(maxlen=TRACE))

    def recent_claims(self, before: float | None = None) -> int:
        """Count the claims of half a minute, until now or until a time."""
        end = now() if before is None else before
        return sum(1 for at in self.claims if 0 <= end - at < CLAIMS_S)

    def note(self, line: str) -> None:
        """Keep a line for the stories of findings."""
        self.trace.append(f"{now() % 1000:7.3f} {line}")


Resume: TypeAlias = tuple[float, float, Person]
"""The start of a connection, the seconds until its first event, and its person."""


class Book:
    """Keeps the record and judges it.

    ``bad`` counts by row and column, ``stories`` tell of the first few. ``unknown`` counts write calls with
    an unknown outcome, by cause. ``finding`` is set by the first finding of ``until``.
    """

    def __init__(self, until: Collection[Column] = ()) -> None:
        self.finding = asyncio.Event()
        self._until = until
        self.jobs: dict[int, Job] = {}
        self.devices: dict[int, Device] = {}
        self.bad: Counter[tuple[Row, Column]] = Counter()
        self.stories: list[str] = []
        self.traces: list[list[str]] = []
        self.faults: Counter[Row] = Counter()
        self.unknown: Counter[str] = Counter()
        self.figures: Counter[str] = Counter()
        self.resumes: list[Resume] = []
        self.delayed: list[Resume] = []
        self.on_answering: Callable[[Person], None] = lambda person: None
        self._call_ids: set[str] = set()
        self._repeated: set[int] = set()
        self._recorded: set[int] = set()
        """Jobs whose answer was in a history."""
        self._facts: set[int] = set()
        self._pictures: set[str] = set()
        self._zombies: list[tuple[Person, Row, str, str]] = []
        self._store_away_at = float("-inf")

    # -- jobs

    def add_job(self, plan: tuple[str, ...], person: Person) -> Job:
        """Note that a transcript was sent."""
        number = 1001 + len(self.jobs)
        self.jobs[number] = job = Job(number, plan, person, now())
        self.figures["transcripts"] += 1
        return job

    def blame(self, person: Person, column: Column, story: str, row: Row | None = None) -> None:
        """Note a finding after the person's last fault, or after ``row``."""
        fault = row or person.row
        self.bad[fault, column] += 1
        if column in self._until:
            self.finding.set()
        if len(self.stories) < 60:
            ago = now() - person.hit_at if person.hit_at else 0.0
            after = ": ".join(fault)
            self.stories.append(
                f"{column}: {story} [{person.session_id}; {after}; the last {ago:.1f} s before]"
            )
            self.traces.append([self.stories[-1], *person.trace])

    def is_silent(self, job: Job, patience_s: float) -> bool:
        """Whether a job is stuck: ``patience_s`` seconds after its session's last fault without an event."""
        return now() - max(job.asked_at, job.person.hit_at) > patience_s

    def note_fault(self, person: Person, row: Row) -> None:
        """Note a fault of a session; one that was aimed at it counts more than others."""
        if row[1] != BYSTANDER or person.row[1] in (BYSTANDER, NO_FAULT[1]):
            person.row = row
        person.hit_at = now()
        person.note(f"-- {row[0]}: {row[1]}")

    def judge(self, job: Job) -> None:
        """Judge a job when its client has stopped waiting."""
        job.row, job.person.row = job.person.row, NO_FAULT
        if job.is_blamed or job.ended or job.is_interrupted or job.is_superseded:
            return
        if job.is_acknowledged:
            job.is_blamed = job.is_lost = True
            self.blame(job.person, "lost", f"job {job.number} {job.plan} was not answered", job.row)
        else:
            self.figures["said again"] += 1

    def note_answer(self, job: Job) -> None:
        """Note that a job's answer was shown; a lost job was only late."""
        job.is_answered = True
        if job.is_lost:
            self.figures["lost, and answered later"] += 1

    def note_other_answer(self, job: Job) -> None:
        """Note that the model has answered something other than a job.

        A second consent, after the question was answered, is a new transcript and interrupts the turn. An
        answer in the history must still be shown.
        """
        if job.is_acknowledged and not job.ended and job.number not in self._recorded:
            job.is_superseded = True
            self.figures["interrupted by a second yes"] += 1

    def note_voice(self, job: Job) -> None:
        """Note that the voice begins a job's answer, or goes on with it."""
        job.is_voiced = True
        if job.is_withdrawn:
            self.blame(job.person, "history", f"job {job.number} is spoken, and was told to be unheard")

    def note_murmur(self, person: Person, *, resumed: bool, asks: bool, ground: str | None) -> None:
        """Note whether a murmur over a speech that ``asks`` something was one, or on which ``ground`` not.

        Without a ground it was not taken for words: the session has ended before, or it was refused.
        """
        self.figures["murmurs over a question"] += asks
        if resumed:
            self.figures["backchannels"] += 1
        else:
            figure = "murmurs without an end" if ground is None else f"murmurs taken for words {ground}"
            self.figures[figure] += 1
        if asks and resumed:
            told = "the voice went on over a murmur that may be an answer"
            self.blame(person, "over a question", told)
        if ground == "":
            self.blame(person, "cut off", "a murmur has cut a speech that asked nothing")

    def note_resume(self, person: Person, start: float, connections: int) -> None:
        """Note the first event of a resumed connection."""
        if connections < 2:
            return
        (self.delayed if person.recent_claims(start + 0.001) > CLAIMS else self.resumes).append(
            (start, now() - start, person)
        )

    def resume_times(self) -> list[float]:
        """List the seconds of resumes, except those with a wait for a call's time limit."""
        times = []
        for start, elapsed, person in self.resumes:
            is_delayed = any(start <= at <= start + elapsed + 0.5 for at in person.unknowns)
            if not is_delayed:
                times.append(elapsed)
        return sorted(times)

    def note_store_fault(self) -> None:
        """Note a fault that may take the store away from all nodes for a while."""
        self._store_away_at = now()

    def note_store_apology(self, job: Job) -> None:
        """Note that a job has ended because the store was away too long."""
        if job.is_apologised or not job.is_acknowledged:
            return
        job.is_apologised = True
        self.figures["apologies for the store"] += 1
        if now() - self._store_away_at > STORE_AWAY_S:
            self.blame(job.person, "gave up", f"job {job.number}: the store was not away")

    def note_apology(self, job: Job, text: str) -> None:
        """Note that a job ended with an apology. That takes two faults, since the model is asked twice.

        An absent store is one: the commit of the second attempt may be recorded and seem to fail.
        """
        if FAILURES["store_unavailable"] in text:
            self.note_store_apology(job)
            return
        if job.is_apologised:
            return
        job.is_apologised = True
        losses = sum(1 for at in job.person.losses if at > job.asked_at)
        self.figures[f"apologies after {min(losses, 3)}{'+' if losses > 2 else ''} lost connections"] += 1
        if losses + (self._store_away_at > job.asked_at) < 2:
            self.blame(job.person, "gave up", f"job {job.number} after {losses} lost connections")

    # -- the device

    def note_run(self, number: int, person: Person, *, write: bool) -> None:
        """Note that the device runs a call."""
        self.figures["runs"] += 1
        device = self.devices.setdefault(number, Device(person, write))
        device.runs += 1
        if write and device.runs > 1:
            self.blame(person, "doubled", f"call {number} ran {device.runs} times")

    def note_result(self, number: int, link: object) -> None:
        """Note that a call's result was sent on a connection, or None without one."""
        device = self.devices[number]
        device.sent_at = now()
        device.sent_by = link

    def note_relaunch(self, person: Person) -> None:
        """Note that an app was restarted and has forgotten its calls."""
        self.figures["relaunches"] += 1
        person.messages.clear()
        for device in self.devices.values():
            if device.person is person:
                device.relaunched = True

    def note_message(self, person: Person, text: str) -> None:
        """Note that an app shows a unique message."""
        person.messages[text] += 1
        if person.messages[text] == 2:
            self.blame(person, "shown twice", repr(text[:60]))

    def note_zombie(self, person: Person, event: str, call_id: str) -> None:
        """Note an event of a node that was frozen, after its session was taken over.

        A tool call is judged at the end by its ``call_id``: the next owner knows a call that was recorded
        before the freeze.
        """
        story = f"a frozen node sent {event}"
        if call_id:
            self._zombies.append((person, person.row, story, call_id))
        else:
            self.blame(person, "zombie", story)

    def close(self) -> None:
        """Judge the calls of zombies."""
        for person, row, story, call_id in self._zombies:
            if call_id in self._call_ids:
                self.figures["zombie calls recorded before"] += 1
            else:
                self.blame(person, "zombie", story, row)

    # -- the model's side

    def _check_facts(self, request: ModelRequest) -> None:
        """Check that a request has the fact of its job once, and no other one."""
        job = self.jobs.get(request.job or 0)
        if job is None or not job.has_fact:
            return
        self._facts.add(job.number)
        self.figures["facts"] = len(self._facts)
        self.figures["requests with the fact of their job"] += request.facts == (job.number,)
        if request.facts != (job.number,):
            told = f"the request for job {job.number} has the facts of {request.facts}"
            self.blame(job.person, "facts", told)

    def _check_pictures(self, request: ModelRequest) -> None:
        """Check that a request shows each picture of two turns, and has a line of text for older ones."""
        for sight in request.sights:
            job = self.jobs.get(sight.job)
            if job is None or not job.has_pictures:
                continue
            is_due = sight.turns < 2
            self._pictures.add(sight.name)
            self.figures["pictures"] = len(self._pictures)
            self.figures[f"pictures looked for after {min(sight.turns, 2)}{'+' * (not is_due)} turns"] += 1
            if (sight.shown, sight.told) != (is_due, not is_due):
                state = f"shown {sight.shown}, told {sight.told} after {sight.turns} turns"
                self.blame(job.person, "pictures", f"{sight.name}: {state}")

    def check_request(self, request: ModelRequest, last: bool) -> None:
        """Check a request's history. ``last``: the model's reply is the job's final answer."""
        self.figures["model requests"] += 1
        self._recorded |= request.answers
        for result in request.results:
            if result.call_id in self._call_ids:
                continue
            self._call_ids.add(result.call_id)
            self.figures["calls"] += 1
            if result.number is None or result.tool == "device_read":
                continue
            device = self.devices.get(result.number)
            if result.error_type == "unknown":
                self._take_unknown(result.number, device, interrupted=request.consent_last)
            elif result.success and device is None:
                owner = self.jobs[result.number // 100].person
                self.blame(owner, "untrue", f"call {result.number} succeeded, and never ran")
        for number in request.repeated - self._repeated:
            self._repeated.add(number)
            self.blame(self.jobs[number].person, "history", f"job {number} stands in the history twice")
        self._check_facts(request)
        self._check_pictures(request)
        if last and request.job in self.jobs:
            self.on_answering(self.jobs[request.job].person)
        for earlier in request.jobs[:-1]:
            job = self.jobs.get(earlier)
            if job is None or not job.is_answered or job.is_interrupted or job.is_blamed:
                continue
            if earlier in request.answers or job.is_withdrawn:
                continue
            if earlier in request.unheard and not job.is_voiced:
                # It was held behind another speech, or paused, when the person's next words came.
                job.is_withdrawn = True
                self.figures["answers withdrawn unheard"] += 1
            else:
                job.is_blamed = True
                self.blame(job.person, "history", f"the answer of job {earlier} is not there", job.row)

    def _take_unknown(self, number: int, device: Device | None, *, interrupted: bool) -> None:
        """Count an unknown call by its cause; ``interrupted`` by a second consent."""
        person = device.person if device is not None else self.jobs[number // 100].person
        job = self.jobs.get(number // 100)
        barged = interrupted or (job is not None and job.is_interrupted)
        cause = "barge-in" if barged else self._cause(person, device)
        if cause == "other" and job is not None and job.is_apologised:
            cause = "turn given up"  # which is judged by itself
        self.unknown[cause] += 1
        person.unknowns.append(now())
        if cause == "other":
            state = "never came" if device is None else f"sent {device.sent_at}, losses {person.losses[-3:]}"
            self.blame(person, "unknown?", f"call {number} became unknown: {state}")

    @staticmethod
    def _cause(person: Person, device: Device | None) -> str:
        """Name the cause that kept a write call's result from the server."""
        if device is not None and device.relaunched:
            return "relaunch"
        if device is None and person.paused_until > now() - CALL_S:
            return "call behind a paused voice"
        if person.resumes:
            return "other"  # such a client gets the call again, and sends its result again
        if device is None:
            recent = [loss for loss in person.losses if now() - loss < 30]
            return "call on its way" if recent else "other"
        if device.sent_at is None or device.sent_by is None:
            return "result on its way" if person.losses else "other"
        after = [loss for loss in person.losses if -0.5 <= loss - device.sent_at <= IN_FLIGHT_S]
        return "result on its way" if after else "other"


def now() -> float:
    """Give the time of the loop."""
    return asyncio.get_running_loop().time()
