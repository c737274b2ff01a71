"""The voice app under faults."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from websockets.exceptions import WebSocketException

from benchmarks.chaos_book import CLAIMS, Job, now
from benchmarks.chaos_clients import LATE_S, SimulatedClient
from benchmarks.chaos_faults import World
from benchmarks.chaos_jobs import (
    CONSENT,
    NOTED,
    REST,
    done_job_of,
    job_of_round,
    transcript,
)
from tests.app import App
from tests.shapes import Call, Event

_RELAUNCHED = 0.1
"""The share of lost connections at which the app is relaunched."""
_CONNECT_S = 3.0
_WAITS_S = (0.02, 0.3)


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
            async with asyncio.timeout(max(0.02, min(until - now(), 1.0))):
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
        self._resuming = now()
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
                await self._speak(call.arguments["text"])
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
        """Handle a spoken question. The job's words may have counted as an unclear answer to it."""
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
        deadline = now() + self._patience_s
        while (not self.is_connected or (idle and not self._idle)) and now() < deadline:
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
                late = late or now() + LATE_S
                if job.is_interrupted or now() > late:
                    return
            else:
                late = None
            if self._book.is_silent(job, self._patience_s):
                self._is_stuck = True
                job.is_blamed = True
                self._book.blame(self.person, "stuck", f"job {job.number} {job.plan}: silence")
                return
            await self._change((late or now() + self._patience_s) + 0.05)

    @property
    def _asks(self) -> bool:
        """Whether a question has no answer, or has one on another connection only."""
        return self._prompted and self._consented_on < self._connections

    def _consent(self) -> None:
        self._idles, self._consented_on, self._job_asked = 0, self._connections, False
        self._tell(CONSENT, "approval answered")
