"""A client made with the client library, which reconnects and resumes by itself."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from benchmarks.chaos_app import LATE_S
from benchmarks.chaos_book import CLAIMS, Job, Person
from benchmarks.chaos_faults import World
from benchmarks.chaos_jobs import (
    ORDER,
    READ,
    WRITE,
    declarations,
    done_job_of,
    draw_plan,
    is_parallel,
    job_of,
    transcript,
)
from conductor.client import (
    Approval,
    Client,
    ClientError,
    ClientLimits,
    Reconnect,
    WaitTimeout,
    allow,
    connect,
)
from conductor.conversation.phrases import FAILURES
from conductor.events.server import ErrorEvent, SessionStarted, SpeechFinal, SpeechPartial, ToolCallEvent

_APOLOGIES = frozenset(FAILURES.values())
_LIMITS = ClientLimits(connect_s=3.0, start_s=5.0, close_s=0.5, resend_s=120.0)


class LibraryClient:
    """One client; it talks until it is told to be ``over``, in one session after the other."""

    def __init__(self, name: str, world: World, seed: str) -> None:
        self.name = name
        self.over = False
        self.person = Person(name, "")
        self._book, self._switch, self._injector = world.book, world.switch, world.injector
        self._patience_s = world.patience_s
        self._chance = random.Random(seed)
        self._sessions = 0
        self._job: Job | None = None
        self._resuming = False
        self._connections = 0

    async def run(self) -> None:
        """Live until the talk is over."""
        while not self.over:
            await self._session()

    async def _session(self) -> None:
        self._sessions += 1
        self._job, self._connections = None, 0
        self.person = Person(self.name, f"{self.name}-{self._sessions}")
        self._injector.persons[self.name] = self.person
        client = connect(
            f"ws://127.0.0.1:{self._switch.port}/ws?client={self.name}",
            self.person.session_id,
            tools=declarations() if self._chance.random() < 0.5 else (),
            handlers={name: self._tool(name) for name in (READ, WRITE, ORDER)},
            speak=self._speak,
            on_approval=self._approve,
            serial=self._chance.random() < 0.7,
            limits=_LIMITS,
            reconnect=Reconnect(first_s=0.03, most_s=0.3, steady_s=0.0, random=self._chance.random),
        )
        self.person.known = lambda: {received.id for received in client.received}
        client.on("*", self._event)
        client.on("client.lost", self._lost)
        try:
            await self._start(client)
            jobs = self._chance.randint(3, 10)
            while jobs and await self._one_job(client):
                jobs = 0 if self.over and jobs == 1 else jobs - 1
                if self.person.recent_claims() >= CLAIMS - 2:
                    jobs = 0
                if self.over:
                    jobs = min(jobs, 1)
            if self.over:
                self._book.figures["sessions through"] += 1
        finally:
            await client.close()

    def _lost(self, _: object) -> None:
        self.person.note("connection lost")

    async def _start(self, client: Client) -> None:
        while True:
            try:
                await client.start()
                return
            except ClientError:
                await asyncio.sleep(self._chance.uniform(0.05, 0.2))

    # -- the device

    def _tool(self, name: str) -> Any:
        async def run(arguments: dict[str, Any]) -> dict[str, Any]:
            number = arguments["n"]
            self._book.run(number, self.person, write=name != READ)
            job = self._book.jobs.get(number // 100)
            several = job is not None and number % 10 and is_parallel(job.plan[number // 10 % 10])
            self._injector.at("one of several answered" if several else "call received", self.name)
            await asyncio.sleep(self._chance.uniform(0.002, 0.02))
            self._book.sent(number, self)
            self._injector.soon("result sent", self.name)
            return {"done": number}

        return run

    async def _speak(self, text: str) -> None:
        self._injector.at("speech outstanding", self.name)
        await asyncio.sleep(self._chance.uniform(0.005, 0.03))

    def _approve(self, approval: Approval) -> Any:
        self._injector.at("approval asked", self.name)
        self._injector.soon("approval answered", self.name)
        return allow()

    # -- what comes

    def _event(self, event: Any) -> None:
        """Look at an event before it is handled."""
        if not isinstance(event, SpeechPartial):
            self.person.note(f"<- {str(event)[:150]}")
        match event:
            case SessionStarted():
                self._connections += 1
                self._resuming = True
                self.person.claims.append(_now())
                self.person.resumes = "resume" in (event.capabilities or ())
                return
            case ToolCallEvent(name="convo.setState") if '"thinking"' in event.arguments:
                self._injector.at("transcript committed", self.name)
            case ToolCallEvent(name="convo.appendMessage"):
                self._append(event)
            case SpeechPartial():
                self._injector.at("mid model stream", self.name)
            case SpeechFinal() if done_job_of(event.text) is not None:
                self._injector.at("final received", self.name)
            case ErrorEvent():
                self._book.figures[f"error {event.code}"] += 1
                if event.code == "store_unavailable" and event.event_id is None and self._job is not None:
                    self._book.store_failed(self._job)
        if self._resuming:
            self._resuming = False
            link = self._switch.latest.get(self.name)
            if link is not None:
                self._book.resumed(self.person, link.opened_at, self._connections)

    def _append(self, event: ToolCallEvent) -> None:
        job = self._job
        text = event.arguments
        done = done_job_of(text)
        number = done if done is not None else job_of(text)
        if number in self._book.jobs:
            job = self._book.jobs[number]
            self._book.shows(self.person, text)
        if job is None:
            return
        if done is not None:
            job.answered = True
        elif number is not None and '"user"' in text:
            job.acknowledged = True
        elif any(apology in text for apology in _APOLOGIES):
            self._book.apologised(job, text)

    # -- the person

    async def _one_job(self, client: Client) -> bool:
        """Ask for a job and wait for its end; False if the session is stuck."""
        plan = draw_plan(self._chance, self._injector.wants())
        number = self._book.next_number()
        self._job = job = self._book.say(number, plan, self.person)
        try:
            self.person.note(f"-> {transcript(number, plan)}")
            turn = await client.say(transcript(number, plan))
            self._injector.soon("transcript sent", self.name)
            barges = self._injector.wants_barge_in() or self._chance.random() < 0.03
            barging = asyncio.create_task(self._barge_in(client, job)) if barges else None
            while not turn.done:
                try:
                    await turn.wait(1.0)
                except WaitTimeout:
                    if self._book.is_silent(job, self._patience_s):
                        raise
            if barging is not None:
                barging.cancel()
                await asyncio.wait([barging])
        except WaitTimeout:
            job.blamed = True
            self._book.blame(self.person, "stuck", f"job {number} {plan}: no end")
            return False
        except ClientError as error:
            self._book.figures[f"library {type(error).__name__}"] += 1
            return False
        if job.acknowledged and not job.ended and not job.interrupted:
            await asyncio.sleep(LATE_S)
        self._book.judge(job)
        await asyncio.sleep(self._chance.uniform(0, 0.05))
        return True

    async def _barge_in(self, client: Client, job: Job) -> None:
        while not client.connected or client.state != "speaking":  # noqa: ASYNC110 -- the state has no event
            await asyncio.sleep(0.005)
        job.interrupted = True
        try:
            await client.interrupt()
            self._injector.soon("barge-in sent", self.name)
        except ClientError:
            pass


def _now() -> float:
    return asyncio.get_running_loop().time()
