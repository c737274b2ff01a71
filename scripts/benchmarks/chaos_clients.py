"""The clients under faults: the voice app, and one made with the client library."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
from websockets.exceptions import WebSocketException

from benchmarks.chaos_book import CLAIMS, Job, Person
from benchmarks.chaos_faults import World
from benchmarks.chaos_jobs import (
    CONSENT,
    NOTED,
    ORDER,
    READ,
    REST,
    WRITE,
    declarations,
    done_job_of,
    draw_plan,
    is_parallel,
    job_of,
    job_of_round,
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
from tests.app import App
from tests.shapes import Call, Event

LATE_S = 3.0
"""A final may come this long after ``idle`` before it counts as lost.

Only time in which the server can answer counts: a frozen node still holds its events.
"""
_RELAUNCHED = 0.1
"""The share of lost connections at which the app is relaunched."""
_CONNECT_S = 3.0
_WAITS_S = (0.02, 0.3)
_LIMITS = ClientLimits(connect_s=3.0, start_s=5.0, close_s=0.5, resend_s=120.0)
_APOLOGIES = frozenset(FAILURES.values())


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

    async def _speak(self) -> None:
        self._injector.at("speech outstanding", self.name)
        await asyncio.sleep(self._chance.uniform(0.005, 0.03))

    def _append(self, role: str, text: str, call_id: str) -> bool:
        """Show a message; False for one that is neither about a job nor an apology."""
        number = job_of(text) if role == "user" else done_job_of(text)
        job = self._book.jobs.get(number or 0)
        if job is not None:
            self._book.note_message(self.person, text)
            if role == "user":
                job.is_acknowledged = True
                self._answering = job
            else:
                self._book.note_answer(job)
        elif text in _APOLOGIES and (answering := self._answering or self._job) is not None:
            if call_id not in self._apologies:  # a relaunched app may get an earlier one again
                self._apologies.add(call_id)
                self._book.note_apology(answering, text)
        return job is not None or role == "user" or text in _APOLOGIES

    def _take_error(self, code: str, event_id: str | None) -> None:
        self._book.figures[f"error {code}"] += 1
        if code == "store_unavailable" and event_id is None and self._job is not None:
            self._book.note_store_apology(self._job)


# -- the app


class ChaosApp(SimulatedClient, App):
    """Behaves as the shipped app does: it handles one event at a time, and connects again after each loss.

    It keeps the ids of events while it lives, and no event that it sends. What it has not handled is lost
    with the connection. After some losses it is relaunched, and forgets everything but its session.
    """

    def __init__(self, name: str, world: World, seed: str) -> None:
        SimulatedClient.__init__(self, name, world, seed)
        App.__init__(self, f"ws://127.0.0.1:{self._switch.port}/ws?client={name}", answer=self._perform)
        self._changed = asyncio.Event()
        """Set by every event, connection and loss."""
        self._resuming: float | None = None
        self._new_session()

    async def run(self) -> None:
        connecting = asyncio.create_task(self._keep_connected())
        try:
            await self._talk()
        finally:
            connecting.cancel()
            await asyncio.wait([connecting], timeout=5)
            if self.link is not None:
                self.link.cut()
                await self.close()

    # -- the connection

    @property
    def is_connected(self) -> bool:
        return self.link is not None and not self.link.closed.is_set()

    def send(self, event_type: str, payload: Any, **envelope: Any) -> str:
        if self.is_connected:
            self.person.note(f"-> {event_type} {payload.get('text') or payload.get('callId') or ''}")
        return super().send(event_type, payload, **envelope)

    async def _change(self, until: float) -> None:
        """Wait for a change, at most a second and until a time of the loop."""
        self._changed.clear()
        try:
            async with asyncio.timeout(max(0.02, min(until - _now(), 1.0))):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _keep_connected(self) -> None:
        wait = _WAITS_S[0]
        while True:
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await self.open(start=False)
            except (OSError, TimeoutError, WebSocketException):
                await asyncio.sleep(wait)
                wait = min(wait * 2, _WAITS_S[1])
                continue
            wait = _WAITS_S[0]
            self._begin()
            await self.closed.wait()
            self._lose()
            await asyncio.sleep(self._chance.uniform(0.01, 0.1))

    def _begin(self) -> None:
        self._connections += 1
        node = self._switch.node_of(self.name)
        self.person.note(f"connected to {node.name if node else 'no node'}")
        self._resuming = _now()
        self.person.claims.append(self._resuming)
        self.start()
        self._changed.set()

    def _lose(self) -> None:
        self.person.note("connection lost")
        while not self._inbox.empty():
            self._inbox.get_nowait()
        if self._chance.random() < _RELAUNCHED:
            self.person.note("relaunched")
            self._book.note_relaunch(self.person)
            self.relaunch()
            self._forget()
        self._changed.set()

    def receive(self, data: bytes) -> None:
        if not self.is_connected:
            return
        event = msgspec.json.decode(data)
        if event["sessionId"] != self.session_id:
            return
        self._received_ids.add(event["id"])
        if self._resuming is not None and event["type"] not in ("session.started", "session.ping"):
            self._book.note_resume(self.person, self._resuming, self._connections)
            self._resuming = None
        self._inbox.put_nowait(event)

    async def handle(self, event: Event) -> None:
        if event["id"] in self.event_ids:
            self._book.figures["repeats left out"] += 1
            return
        self.event_ids[event["id"]] = None
        kind, payload = event["type"], event["payload"]
        if kind != "assistant.speech.partial":
            values = " ".join(str(value)[:70] for value in payload.values())
            self.person.note(f"<- {kind} {values}")
        self._look(kind, payload)
        await super().handle(event)
        self._changed.set()

    # -- a session

    def _new_session(self) -> None:
        """Begin a new session, on a new connection."""
        if self.link is not None:
            self.link.cut()
            self.link = None
        self._new_person()
        self.session_id = self.person.session_id
        self._received_ids = ids = set[str]()
        self.person.received_ids = lambda: ids
        self.event_ids.clear()
        self._resuming = None
        self._forget()
        self._is_stuck = False
        self._prompted = False
        self._job_asked = False
        self._consented_on = 0
        self._jobs_left = self._chance.randint(3, 10)

    def _forget(self) -> None:
        """Forget the state of the app; the person remembers."""
        self._idle = False
        self._idles = 0
        self._refused = False

    # -- events of the server

    def _look(self, kind: str, payload: dict[str, Any]) -> None:
        """Look at an event before it is handled."""
        if kind == "assistant.speech.partial":
            self._injector.at("mid model stream", self.name)
            if self._job is not None and self._injector.wants_barge_in():
                self._barge_in()
        elif kind == "assistant.speech.final" and done_job_of(payload["text"]) is not None:
            self._injector.at("final received", self.name)
        elif kind == "session.started":
            self._take_start(payload["resumed"])
        elif kind == "error":
            self._refused = True
            self._take_error(payload["code"], payload.get("eventId"))

    def _take_start(self, resumed: bool) -> None:
        """Notice a session that has lost the words: no microphone opens, so the person says them again.

        It is a known limit, and is counted.
        """
        job = self._job
        if not resumed and job is not None and not job.is_acknowledged and self._connections > 1:
            self._book.figures["new sessions without the words"] += 1
            self._idle = True
            self._idles += 1

    async def _perform(self, call: Call) -> str | None:
        match call.name:
            case "convo.setState":
                self._set_state(call.arguments["state"])
            case "convo.appendMessage":
                self._show(call.arguments["role"], call.arguments["text"], call.call_id)
            case "tts.speak":
                await self._speak()
                if not self._asks and (self._injector.wants_barge_in() or self._chance.random() < 0.03):
                    self._barge_in()
            case _:
                number = call.arguments["n"]
                await self._use_device(call.name, number)
                self._book.note_result(number, self.link if self.is_connected else None)
                self.result(call.call_id, '{"done":true}')
                self._injector.soon("result sent", self.name)
                return None
        return '{"done":true}'

    def _set_state(self, state: str) -> None:
        self._idle = state == "idle"
        self._idles += self._idle
        if state == "thinking":
            self._injector.at("transcript committed", self.name)

    def _show(self, role: str, text: str, call_id: str) -> None:
        if self._append(role, text, call_id):
            return
        if text == NOTED:
            if self._job is not None:
                self._book.note_other_answer(self._job)
        elif job_of_round(text) is None and text not in REST:
            self._take_prompt(text)

    def _take_prompt(self, text: str) -> None:
        """Be asked about a call. The job's words may have been taken for an unclear answer to it."""
        if self._job is not None and self._job_asked and text.startswith("I did not catch"):
            self._job.is_superseded = True
            self._book.figures["taken for an answer"] += 1
        self._prompted, self._consented_on = True, 0
        self._injector.at("approval asked", self.name)

    def _barge_in(self) -> None:
        if self._job is not None:
            self._job.is_interrupted = True
        self.interrupt()
        self._injector.soon("barge-in sent", self.name)

    # -- the person

    async def _talk(self) -> None:
        while not self.over:
            if self._jobs_left <= 0 or self._is_stuck or self.person.recent_claims() >= CLAIMS - 2:
                self._new_session()
            self._jobs_left -= 1
            await self._one_job()
            await asyncio.sleep(self._chance.uniform(0, 0.05))
        await self._one_job()  # the faults are over: this one must get through
        self._book.figures["sessions through"] += 1

    async def _one_job(self) -> None:
        """Ask for jobs until the server takes one, and wait for its end."""
        for _ in range(50):
            await self._pause(idle=self._connections > 1)
            self._idles, self._refused, self._prompted, self._job_asked = 0, False, False, True
            before = self._connections
            job = self._new_job()
            previous, self._job = self._job, job
            if previous is not None and not previous.ended:
                previous.is_superseded = True
            self._tell(transcript(job.number, job.plan), "transcript sent")
            await self._until_end(job, before)
            self._book.judge(job)
            if self._is_stuck or job.is_acknowledged:
                return

    def _tell(self, text: str, step: str) -> None:
        """Say something; without a connection it is lost."""
        is_sent = self.is_connected
        self.say(text)
        if is_sent:
            self._injector.soon(step, self.name)

    async def _pause(self, *, idle: bool) -> None:
        """Wait for a connection, and for an open microphone if ``idle``."""
        deadline = _now() + self._patience_s
        while (not self.is_connected or (idle and not self._idle)) and _now() < deadline:
            await self._change(deadline)

    async def _until_end(self, job: Job, connections: int) -> None:
        """Wait until a job has ended, or was not taken. Too long a silence is a fault."""
        late: float | None = None
        while True:
            idle = self._idle and self._idles > 0
            if idle and job.ended:
                return
            is_interrupted = self._connections > connections or self._refused
            if idle and not job.is_acknowledged and is_interrupted and self.is_connected:
                return
            if idle and job.is_acknowledged and self._asks:
                self._consent()
            elif idle and job.is_acknowledged and self._is_served():
                late = late or _now() + LATE_S
                if job.is_interrupted or _now() > late:
                    return
            else:
                late = None
            if self._book.is_silent(job, self._patience_s):
                self._is_stuck = True
                job.is_blamed = True
                self._book.blame(self.person, "stuck", f"job {job.number} {job.plan}: silence")
                return
            await self._change((late or _now() + self._patience_s) + 0.05)

    @property
    def _asks(self) -> bool:
        """Whether a question has no answer, or has one on another connection only."""
        return self._prompted and self._consented_on < self._connections

    def _consent(self) -> None:
        self._idles, self._consented_on, self._job_asked = 0, self._connections, False
        self._tell(CONSENT, "approval answered")


# -- the library


class LibraryClient(SimulatedClient):
    """A client of the client library, which reconnects and resumes by itself."""

    _resuming = False

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
            speak=lambda text: self._speak(),
            on_approval=self._approve,
            serial=self._chance.random() < 0.7,
            limits=_LIMITS,
            reconnect=Reconnect(first_s=0.03, most_s=0.3, steady_s=0.0, random=self._chance.random),
        )
        self.person.received_ids = lambda: {received.id for received in client.received}
        client.on("*", self._event)
        client.on("client.lost", self._note_loss)
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

    # -- the device

    def _tool(self, name: str) -> Any:
        async def run(arguments: dict[str, Any]) -> dict[str, Any]:
            number = arguments["n"]
            await self._use_device(name, number)
            self._book.note_result(number, self)
            self._injector.soon("result sent", self.name)
            return {"done": number}

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
        try:
            self.person.note(f"-> {words}")
            turn = await client.say(words)
            self._injector.soon("transcript sent", self.name)
            barges = self._injector.wants_barge_in() or self._chance.random() < 0.03
            barging = asyncio.create_task(self._barge_in(client, job)) if barges else None
            while not turn.is_done:
                try:
                    await turn.wait(1.0)
                except WaitTimeout:
                    if self._book.is_silent(job, self._patience_s):
                        raise
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

    async def _wait_late(self, job: Job) -> None:
        late = _now() + LATE_S
        while not job.ended and _now() < late and not self._book.is_silent(job, self._patience_s):
            await asyncio.sleep(0.02)
            if not self._is_served():
                late = _now() + LATE_S

    async def _barge_in(self, client: Client, job: Job) -> None:
        while not client.connected or client.state != "speaking":  # noqa: ASYNC110 -- the state has no event
            await asyncio.sleep(0.005)
        job.is_interrupted = True
        try:
            await client.interrupt()
            self._injector.soon("barge-in sent", self.name)
        except ClientError:
            pass


def _now() -> float:
    return asyncio.get_running_loop().time()
