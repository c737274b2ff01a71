"""A client that behaves as the shipped app does: one event at a time, no memory of what it has sent."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec

from benchmarks.chaos_book import CLAIMS, Job, Person
from benchmarks.chaos_faults import World
from benchmarks.chaos_jobs import (
    NOTED,
    READ,
    done_job_of,
    draw_plan,
    is_parallel,
    job_of,
    job_of_round,
    transcript,
)
from benchmarks.chaos_line import Line
from conductor.conversation.phrases import FAILURES

LATE_S = 3.0
"""So long after ``idle`` a final may still come, before it counts as lost."""
_APOLOGIES = frozenset(FAILURES.values())


class App:
    """One app: it talks until it is told to ``stop``, in one session after the other."""

    def __init__(self, name: str, world: World, seed: str) -> None:
        self.name = name
        self.over = False
        self._book, self._injector = world.book, world.injector
        self._patience_s = world.patience_s
        self._chance = random.Random(seed)
        self._line = Line(name, world, self._chance, self)
        self._stuck = False
        self._new_session()

    @property
    def person(self) -> Person:
        """The session that it is in."""
        return self._line.person

    def _new_session(self) -> None:
        self._line.renew()
        self.relaunched()
        self._stuck = False
        self._job: Job | None = None
        self._prompted = False
        self._said_job = False
        self._consented_on = 0
        self._jobs_left = self._chance.randint(3, 10)

    def relaunched(self) -> None:
        """Forget the state of the app; the person remembers."""
        self._idle = False
        self._idles = 0
        self._refused = False

    async def run(self) -> None:
        """Live until the talk is over."""
        self._line.start()
        try:
            await self._talk()
        finally:
            await self._line.close()

    # -- what comes

    async def handle(self, kind: str, payload: dict[str, Any]) -> None:
        """Do what an event says."""
        if kind == "tool.call":
            arguments = msgspec.json.decode(payload["arguments"])
            if payload["name"] == "convo.setState":
                self._set_state(arguments["state"])
            elif payload["name"] == "convo.appendMessage":
                self._append(arguments)
            elif payload["name"] == "tts.speak":
                await self._speak()
            else:
                await self._run_tool(payload["name"], payload["callId"], arguments["n"])
                return
            self._answer(payload["callId"])
        elif kind == "assistant.speech.partial":
            self._injector.at("mid model stream", self.name)
            if self._job is not None and self._injector.wants_barge_in():
                self._interrupt()
        elif kind == "assistant.speech.final" and done_job_of(payload["text"]) is not None:
            self._injector.at("final received", self.name)
        elif kind == "session.started":
            self._take_start(payload["resumed"])
        elif kind == "error":
            self._take_error(payload["code"], payload.get("eventId"))

    def _take_start(self, resumed: bool) -> None:
        """See that nobody has recorded what was said: no microphone is opened, so the person says it again.

        It is a known limit, which README names, and is counted.
        """
        job = self._job
        if not resumed and job is not None and not job.acknowledged and self._line.connections > 1:
            self._book.figures["new sessions of which nobody knew"] += 1
            self._idle = True
            self._idles += 1

    def _take_error(self, code: str, event_id: str | None) -> None:
        self._book.figures[f"error {code}"] += 1
        self._refused = True
        if code == "store_unavailable" and event_id is None and self._job is not None:
            self._book.store_failed(self._job)

    def _answer(self, call_id: str) -> bool:
        result = {"callId": call_id, "result": '{"done":true}', "error": None}
        return self._line.send("tool.result", result)

    def _set_state(self, state: str) -> None:
        self._idle = state == "idle"
        self._idles += self._idle
        if state == "thinking":
            self._injector.at("transcript committed", self.name)

    def _append(self, message: dict[str, Any]) -> None:
        text = message["text"]
        number = job_of(text) if message["role"] == "user" else done_job_of(text)
        job = self._book.jobs.get(number or 0)
        if job is not None:
            self._book.shows(self.person, text)
        if message["role"] == "user":
            if job is not None:
                job.acknowledged = True
        elif job is not None:
            job.answered = True
        elif text in _APOLOGIES:
            if self._job is not None:
                self._book.apologised(self._job, text)
        elif job_of_round(text) is None and text != NOTED:
            self._take_prompt(text)

    def _take_prompt(self, text: str) -> None:
        """Be asked about a call. What was said may have been taken for an unclear answer to it."""
        if self._job is not None and self._said_job and text.startswith("I did not catch"):
            self._job.superseded = True
            self._book.figures["taken for an answer"] += 1
        self._prompted, self._consented_on = True, 0
        self._injector.at("approval asked", self.name)

    async def _speak(self) -> None:
        self._injector.at("speech outstanding", self.name)
        await asyncio.sleep(self._chance.uniform(0.005, 0.03))
        if not self._asks and (self._injector.wants_barge_in() or self._chance.random() < 0.03):
            self._interrupt()

    def _interrupt(self) -> None:
        if self._job is not None:
            self._job.interrupted = True
        self._line.send("audio.output.interrupted", {"reason": "user"})
        self._injector.soon("barge-in sent", self.name)

    async def _run_tool(self, name: str, call_id: str, number: int) -> None:
        self._book.run(number, self.person, write=name != READ)
        job = self._book.jobs.get(number // 100)
        step = "call received"
        if job is not None and number % 10 and is_parallel(job.plan[number // 10 % 10]):
            step = "one of several answered"
        self._injector.at(step, self.name)
        await asyncio.sleep(self._chance.uniform(0.002, 0.02))
        self._book.sent(number, self._line.socket if self._answer(call_id) else None)
        self._injector.soon("result sent", self.name)

    # -- the person

    async def _talk(self) -> None:
        while not self.over:
            if self._jobs_left <= 0 or self._stuck or self.person.recent_claims() >= CLAIMS - 2:
                self._new_session()
            self._jobs_left -= 1
            await self.one_job()
            await asyncio.sleep(self._chance.uniform(0, 0.05))
        await self.one_job()  # the faults are over: this one must get through
        self._book.figures["sessions through"] += 1

    async def one_job(self) -> None:
        """Ask for jobs until one is taken, and wait for its end."""
        for _ in range(50):
            await self._pause(idle=self._line.connections > 1)
            plan = draw_plan(self._chance, self._injector.wants())
            number = self._book.next_number()
            self._idles, self._refused, self._prompted, self._said_job = 0, False, False, True
            before = self._line.connections
            job = self._book.say(number, plan, self.person)
            previous, self._job = self._job, job
            if previous is not None and not previous.ended:
                previous.superseded = True
            if self._line.send("user.audio.transcript.final", {"text": transcript(number, plan)}):
                self._injector.soon("transcript sent", self.name)
            await self._until_end(job, before)
            self._book.judge(job)
            if self._stuck or job.acknowledged:
                return

    async def _pause(self, *, idle: bool) -> None:
        """Wait until there is a connection, and the microphone is open if ``idle``."""
        deadline = _now() + self._patience_s
        while (not self._line.connected or (idle and not self._idle)) and _now() < deadline:
            await self._line.change(deadline)

    async def _until_end(self, job: Job, connections: int) -> None:
        """Wait until a job has ended, or was not taken. Silence for too long is a fault."""
        late: float | None = None
        while True:
            idle = self._idle and self._idles > 0
            if idle and job.ended:
                return
            anew = self._line.connections > connections or self._refused
            if idle and not job.acknowledged and anew and self._line.connected:
                return
            if idle and job.acknowledged and self._asks:
                self._consent()
            elif idle and job.acknowledged and self._line.connected:
                late = late or _now() + LATE_S
                if job.interrupted or _now() > late:
                    return
            else:
                late = None
            if self._book.is_silent(job, self._patience_s):
                self._stuck = True
                job.blamed = True
                self._book.blame(self.person, "stuck", f"job {job.number} {job.plan}: silence")
                return
            await self._line.change((late or _now() + self._patience_s) + 0.05)

    @property
    def _asks(self) -> bool:
        """Whether there is a question that was not answered, or on another connection only."""
        return self._prompted and self._consented_on < self._line.connections

    def _consent(self) -> None:
        self._idles, self._consented_on, self._said_job = 0, self._line.connections, False
        if self._line.send("user.audio.transcript.final", {"text": "Yes."}):
            self._injector.soon("approval answered", self.name)


def _now() -> float:
    return asyncio.get_running_loop().time()
