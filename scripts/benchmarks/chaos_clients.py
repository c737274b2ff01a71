"""The clients under faults: the voice app, and one made with the client library."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from typing import Any

import msgspec

from benchmarks.chaos_book import CLAIMS, Job, Person, now
from benchmarks.chaos_faults import World
from benchmarks.chaos_jobs import (
    ASIDE,
    ORDER,
    READ,
    WRITE,
    declarations,
    done_job_of,
    draw_plan,
    fact_of,
    is_parallel,
    job_of,
    picture_of,
    read,
    said,
    transcript,
)
from benchmarks.chaos_murmurs import MURMUR, Floor, Murmur
from conductor.client import (
    Approval,
    Client,
    ClientError,
    ClientLimits,
    Reconnect,
    Shown,
    WaitTimeout,
    allow,
    connect,
)
from conductor.conversation.phrases import FAILURES
from conductor.events.server import ErrorEvent, SessionStarted, SpeechFinal, SpeechPartial, ToolCallEvent

LATE_S = 3.0
"""A final may come this long after ``idle`` before it is lost.

Only time in which the server can answer counts: a frozen node still holds its events.
"""
HALF, HOLD_MS = "Please do the", 10_000
"""The first half of a sentence, and how long it waits for the other half: longer than a takeover takes."""
_LIMITS = ClientLimits(connect_s=3.0, start_s=5.0, close_s=0.5, resend_s=120.0)
_APOLOGIES = tuple(sentence.partition("{")[0] for sentence in FAILURES.values())
"""The beginnings of all apologies; some go on with what has run."""


class SimulatedClient:
    """A person who asks for jobs, and a device.

    It talks until it is ``over``, in one session (`person`) after the other.
    """

    def __init__(self, name: str, world: World, seed: str) -> None:
        self.name = name
        self.over = False
        self.person = Person(name, name)
        self._book, self._switch, self._injector = world.book, world.switch, world.injector
        self._patience_s = world.patience_s
        self._chance = random.Random(seed)
        self._sessions = 0
        self._connections = 0
        """Of the present session."""
        self._job: Job | None = None
        self._answering: Job | None = None
        """The job that an apology is about: a relaunched app may get an older job and its apology again."""
        self._apologies: set[str] = set()

    def _new_person(self) -> None:
        self._sessions += 1
        self._connections = 0
        self._job = self._answering = None
        self.person = Person(self.name, f"{self.name}-{self._sessions}")
        self._injector.persons[self.name] = self.person

    def _new_job(self) -> Job:
        return self._book.add_job(draw_plan(self._chance, self._injector.wants()), self.person)

    def _is_served(self) -> bool:
        """Whether its node runs and has its store."""
        node = self._switch.node_of(self.name)
        return node is not None and node.state == "up" and not self._injector.store_is_down

    async def _use_device(self, name: str, number: int) -> None:
        self._book.note_run(number, self.person, write=name != READ)
        job = self._book.jobs.get(number // 100)
        several = job is not None and number % 10 and is_parallel(job.plan[number // 10 % 10])
        self._injector.at("one of several answered" if several else "call received", self.name)
        await asyncio.sleep(self._chance.uniform(0.002, 0.02))

    async def _speak(self, text: str) -> None:
        if (answered := self._book.jobs.get(done_job_of(text) or 0)) is not None:
            self._book.note_voice(answered)
        self._injector.at("speech outstanding", self.name)
        await asyncio.sleep(self._chance.uniform(0.005, 0.03))

    def _append(self, role: str, text: str, call_id: str) -> bool:
        """Show a message; False for one that is neither about a job nor an apology."""
        number = job_of(text) if role == "user" else done_job_of(text)
        self._book.figures["half sentences answered alone"] += role == "user" and text == HALF
        self._book.figures["half sentences joined"] += role == "user" and text.startswith(f"{HALF} ")
        job = self._book.jobs.get(number or 0)
        if job is not None:
            self._book.note_message(self.person, text)
            if role == "user":
                job.is_acknowledged = True
                self._answering = job
            else:
                self._book.note_answer(job)
        elif text.startswith(_APOLOGIES) and (answering := self._answering or self._job) is not None:
            if call_id not in self._apologies:  # a relaunched app may get an earlier one again
                self._apologies.add(call_id)
                self._book.note_apology(answering, text)
        return job is not None or role == "user" or text.startswith(_APOLOGIES)

    def _take_error(self, code: str, event_id: str | None) -> None:
        self._book.figures[f"error {code}"] += 1
        if code == "store_unavailable" and event_id is None and self._job is not None:
            self._book.note_store_apology(self._job)


# -- the library


class LibraryClient(SimulatedClient):
    """A client of the client library, which reconnects and resumes by itself."""

    _resuming = False
    _client: Client
    _murmured: Job | None = None
    """The job that was asked for at the last murmur, which ends its turn if it is taken for words."""

    def __init__(self, name: str, world: World, seed: str) -> None:
        super().__init__(name, world, seed)
        self._goes_on = asyncio.Event()
        self._floor = Floor()
        self._spoken: set[int] = set()
        """The jobs whose answers were spoken."""

    async def run(self) -> None:
        while not self.over:
            await self._session()

    async def _session(self) -> None:
        self._new_person()
        client = connect(
            f"ws://127.0.0.1:{self._switch.port}/ws?client={self.name}",
            self.person.session_id,
            tools=declarations() if self._chance.random() < 0.5 else (),
            handlers={name: self._tool(name) for name in (READ, WRITE, ORDER)},
            speak=self._say,
            on_approval=self._approve,
            serial=self._chance.random() < 0.7,
            limits=_LIMITS,
            hold_unfinished_ms=HOLD_MS,
            reconnect=Reconnect(first_s=0.03, most_s=0.3, steady_s=0.0, random=self._chance.random),
        )
        self.person.received_ids = lambda: set(client.received_ids)
        self._client = client
        client.on("*", self._event)
        client.on("client.lost", self._note_loss)
        client.on_resume(self._goes_on.set)
        self._spoken, self._floor = set(), Floor()
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

    def _note_loss(self, _: object) -> None:
        self.person.note("connection lost")

    async def _start(self, client: Client) -> None:
        while True:
            try:
                await client.start()
                return
            except ClientError:
                await asyncio.sleep(self._chance.uniform(0.05, 0.2))

    # -- the voice

    async def _say(self, text: str) -> None:
        """Speak a text. The person may speak over it, and mean nothing by it."""
        number = done_job_of(text)
        if number in self._spoken:
            self._book.blame(self.person, "shown twice", f"spoken again: {text[:60]!r}")
        if number is not None:
            self._spoken.add(number)
        since = self._floor.begun
        await self._speak(text)
        client, answered = self._client, self._book.jobs.get(number or 0)
        while not client.asking and (self._injector.wants_pause() or self._chance.random() < 0.1):
            if answered is not None:
                answered.is_voiced = False
            await self._pause_voice(client, asks=text.endswith(ASIDE), since=since)
            if answered is not None:
                self._book.note_voice(answered)

    async def _pause_voice(self, client: Client, *, asks: bool, since: int) -> None:
        """Pause the voice until the server lets it go on; words that interrupt it cancel the voice."""
        self._goes_on.clear()
        if not await client.pause(spoken_text=""):
            return
        self._book.figures["pauses"] += 1
        self.person.note("-> audio.output.paused")
        self._injector.soon("pause sent", self.name)
        if self._chance.random() < 0.7:
            await asyncio.sleep(self._chance.uniform(0, 0.05))
            await self._murmur(client, asks=asks, since=since)
        began, self.person.paused_until = now(), math.inf
        try:
            while not self._goes_on.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._goes_on.wait(), 1.0)
                if now() - max(began, self.person.hit_at) > self._patience_s:
                    self._book.blame(self.person, "stuck", "a pause without an end")
                    return
        finally:
            self.person.paused_until = now()
        self.person.note("the voice goes on")

    async def _murmur(self, client: Client, *, asks: bool, since: int) -> None:
        """Murmur; the text that is spoken ``asks`` something, and began after ``since`` words."""
        behind, answers = self._floor.behind(since), self._floor.answers
        try:
            self.person.note(f"-> {MURMUR}")
            turn = await client.say(MURMUR)
        except ClientError:
            return
        self._injector.soon("words in a pause sent", self.name)
        self._murmured = self._job
        murmur = Murmur(turn, self._job, asks=asks, behind=behind, answers=answers)
        self._floor.add(murmur)
        self._murmurs = asyncio.create_task(self._note_murmur(murmur))

    async def _note_murmur(self, murmur: Murmur) -> None:
        """Note whether a backchannel was one; else it interrupts the job, as other words do."""
        person, turn = self.person, murmur.turn
        try:
            await turn.wait(_LIMITS.resend_s)
        except WaitTimeout:
            self._book.blame(person, "stuck", "a murmur without an end")
        except ClientError:
            pass  # the session has ended before
        is_resumed = turn.reason == "resumed"
        asks = murmur.asks and self._floor.answers == murmur.answers
        self._book.note_murmur(person, resumed=is_resumed, asks=asks, ground=murmur.ground)
        if murmur.job is not None and not is_resumed:
            murmur.job.is_interrupted = True

    # -- the device

    def _tool(self, name: str) -> Any:
        async def run(arguments: dict[str, Any]) -> Any:
            number = arguments["n"]
            await self._use_device(name, number)
            self._book.note_result(number, self)
            self._injector.soon("result sent", self.name)
            result = {"done": number}
            job = self._book.jobs.get(number // 100)
            has_picture = name == READ and job is not None and job.has_pictures
            return Shown([picture_of(read(number))], result) if has_picture else result

        return run

    def _approve(self, approval: Approval) -> Any:
        self._injector.at("approval asked", self.name)
        self._injector.soon("approval answered", self.name)
        return allow()

    # -- what comes

    def _event(self, event: Any) -> None:
        """Look at an event before it is handled."""
        if not isinstance(event, SpeechPartial):
            self.person.note(f"<- {str(event)[:150]}")
        self._floor.note(event)
        match event:
            case SessionStarted():
                self._connections += 1
                self._resuming = True
                self.person.claims.append(now())
                self.person.resumes = "resume" in (event.capabilities or ())
                return
            case ToolCallEvent(name="convo.setState") if '"thinking"' in event.arguments:
                self._injector.at("transcript committed", self.name)
            case ToolCallEvent(name="convo.appendMessage"):
                message = msgspec.json.decode(event.arguments)
                self._append(message["role"], message["text"], event.call_id)
            case SpeechPartial():
                self._injector.at("mid model stream", self.name)
            case SpeechFinal() if done_job_of(event.text) is not None:
                self._injector.at("final received", self.name)
            case ErrorEvent():
                self._take_error(event.code, event.event_id)
        if self._resuming:
            self._resuming = False
            link = self._switch.latest.get(self.name)
            if link is not None:
                self._book.note_resume(self.person, link.opened_at, self._connections)

    # -- the person

    async def _one_job(self, client: Client) -> bool:
        """Ask for a job and wait for its end; False if the session is stuck."""
        self._job = job = self._new_job()
        words = transcript(job.number, job.plan)
        job.has_pictures = self._chance.random() < 0.4
        pictures = [picture_of(said(job.number))] if job.has_pictures else []
        try:
            if self._chance.random() < 0.25:
                await self._say_half(client)
            self.person.note(f"-> {words}")
            await client.add_context(fact_of(job.number), key="job")
            job.has_fact = True
            self._floor.words += 1
            turn = await client.say(words, images=pictures)
            self._injector.soon("transcript sent", self.name)
            barges = self._injector.wants_barge_in() or self._chance.random() < 0.03
            barging = asyncio.create_task(self._barge_in(client, job)) if barges else None
            while not turn.is_done:
                try:
                    await turn.wait(1.0)
                except WaitTimeout:
                    if self._book.is_silent(job, self._patience_s):
                        raise
            job.is_interrupted |= turn.reason == "interrupted" and job is self._murmured
            if barging is not None:
                barging.cancel()
                await asyncio.wait([barging])
        except WaitTimeout:
            job.is_blamed = True
            self._book.blame(self.person, "stuck", f"job {job.number} {job.plan}: no end")
            return False
        except ClientError as error:
            self._book.figures[f"library {type(error).__name__}"] += 1
            return False
        if job.is_acknowledged and not job.is_interrupted:
            await self._wait_late(job)
        self._book.judge(job)
        await asyncio.sleep(self._chance.uniform(0, 0.05))
        return True

    async def _say_half(self, client: Client) -> None:
        """Say the first half of a sentence; the job is the other half."""
        self._floor.words += 1
        await client.say(HALF)
        self._book.figures["half sentences"] += 1
        self._injector.soon("half sent", self.name)
        await asyncio.sleep(self._chance.uniform(0, 0.1))

    async def _wait_late(self, job: Job) -> None:
        late = now() + LATE_S
        while not job.ended and now() < late and not self._book.is_silent(job, self._patience_s):
            await asyncio.sleep(0.02)
            if not self._is_served():
                late = now() + LATE_S

    async def _barge_in(self, client: Client, job: Job) -> None:
        while not client.connected or client.state != "speaking":  # noqa: ASYNC110 -- the state has no event
            await asyncio.sleep(0.005)
        job.is_interrupted = True
        self._floor.interrupted_at = self._floor.words
        self.person.note("-> audio.output.interrupted")
        try:
            await client.interrupt()
            self._injector.soon("barge-in sent", self.name)
        except ClientError:
            pass
