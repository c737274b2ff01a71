"""A client that does as it likes, the lines that it talks by, and a store whose commits are read."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from conductor.conversation.records import decode
from conductor.events import client
from conductor.events.codec import Inbound
from conductor.session.inbound import handle
from conductor.session.session import Session
from conductor.stores.base import NO_ATTACHMENTS, Attachments, Claim
from conductor.stores.memory import MemoryStore
from conductor.tools.base import CallContext, Toolset, ToolSpec
from conductor.tools.outcomes import ToolOutcome, failed, succeeded
from tests.links import Pipe
from tests.session.gate_book import LOCAL, STRANGER, Book, Consent, Meaning, Prompt
from tests.session.helpers import SPOKEN, SlowStore, StoreProxy, inbound, later, steps, tool
from tests.shapes import Event, arguments_of, shape_of


class Recorded(StoreProxy):
    """A store whose commits the book reads."""

    def __init__(self, inner: SlowStore | MemoryStore, book: Book) -> None:
        super().__init__(inner)
        self.durable = inner.durable
        self._book = book

    async def append(
        self,
        claim: Claim,
        commit_id: str,
        data: bytes,
        *,
        snapshot: bool = False,
        attachments: Attachments = NO_ATTACHMENTS,
    ) -> None:
        await self.inner.append(claim, commit_id, data, snapshot=snapshot, attachments=attachments)
        self._book.committed(decode(data))


class LocalTools(Toolset):
    """Tools that run in the server, and take their time."""

    def __init__(self, rng: random.Random, book: Book) -> None:
        self._rng = rng
        self._book = book

    def specs(self) -> Sequence[ToolSpec]:
        risks: dict[str, Any] = {"read": "safe", "write": "medium", "irreversible": "high"}
        return [
            tool(k.name, source="builtin", effect=k.effect, risk=risks[k.effect], untrusted=k.untrusted)
            for k in LOCAL
        ]

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        self._book.ran(context.call_id, name, dict(arguments))
        await later(self._rng.choice((0.0, 0.0, 0.3, 45.0)))
        if self._rng.random() < 0.1:
            return failed("io_error", "It did not work.")
        return succeeded(f"{STRANGER} {context.call_id}" if name == "local.page" else context.call_id)


# -- the client


class Wire(Pipe):
    """A line that a session sends by; ``slow``: frames wait until they are let.

    ``decisions`` and ``answers`` count by question; ``born`` are the questions that this line saw first.
    """

    def __init__(self, phone: Phone, session: Session, capabilities: Sequence[str], *, slow: bool) -> None:
        super().__init__(lambda data: phone.receive(json.loads(data), self), session, slow=slow)
        self.phone = phone
        self.capabilities = capabilities
        self.decisions: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.born: set[str] = set()
        self.visible_cards: set[str] = set()
        self.opened = asyncio.Event()
        self._up: asyncio.Queue[tuple[Inbound, list[Consent], Meaning]] = asyncio.Queue()

    @property
    def is_cut(self) -> bool:
        return self.closed.is_set()

    def say(self, event: client.ClientEvent | None, meaning: Meaning = list) -> None:
        """Send an event; its meaning is that of the time of sending or of hearing."""
        self._up.put_nowait((inbound(event), meaning(), meaning))

    def write(self, data: bytes) -> None:
        self.say(None)  # wakes the reader

    async def drained(self) -> None:
        await self.opened.wait()
        await self._up.join()

    async def start(self, event: client.SessionStart, *, resumed: bool) -> None:
        """Start or resume the session."""
        await self.session.clients.start(event, self, resumed=resumed)
        self.opened.set()
        if self.is_cut:
            self.session.clients.detach(self)

    async def _read(self) -> None:
        await self.opened.wait()
        while not self.is_cut:
            item, consents, meaning = await self._up.get()
            await self.session.clients.is_superseded(self)  # waits for a line that opens
            served = self.session.outbox.transport is self or isinstance(item.event, client.ToolResultEvent)
            try:
                if not self.is_cut and served:
                    if isinstance(item.event, client.ApprovalResponse) and "approval" in self.capabilities:
                        self.decisions.update(decision.approval_id for decision in item.event.all())
                    event = item.event
                    if isinstance(event, client.ToolCancelled) and "cancel" not in self.capabilities:
                        event = None
                    with self.phone.book.taking(event, consents, meaning):
                        await handle(self.session, item, self)
            finally:
                self._up.task_done()


class Phone:
    """A client that does as it likes: it answers calls at once, late, twice or never, one after the other.

    ``mute``: it acknowledges nothing of the interface.
    """

    def __init__(self, rng: random.Random, book: Book, *, mute: bool) -> None:
        self.rng = rng
        self.book = book
        self.mute = mute
        self.wire: Wire | None = None
        self.wires: list[Wire] = []
        self.events: list[Event] = []
        self.states: list[str] = ["idle"]
        self.jobs: set[asyncio.Task[None]] = set()
        self._handled_ids: set[str] = set()
        self._inbox: asyncio.Queue[Event] = asyncio.Queue()
        self._speeches: dict[str, bool] = {}
        self._prompts: dict[str, Prompt | None] = {}
        self._message_ids: set[str] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.jobs.add(task)
        task.add_done_callback(self.jobs.discard)

    def connect(self, session: Session, capabilities: Sequence[str], tools: list[Any] | None) -> Wire:
        """Open a line, and start or resume the session on it."""
        is_reconnect = self.wire is not None
        for card in self.book.standing:
            card.tapped = False  # the tap may have been lost with the line
        if self.book.prompt is not None:
            self.book.prompt.unheard()  # it may be another process of the app that comes
        self.wire = Wire(self, session, capabilities, slow=self.rng.random() < 0.2)
        self.wires.append(self.wire)
        start = client.SessionStart(capabilities=list(capabilities), tools=tools)
        self.spawn(self.wire.start(start, resumed=is_reconnect))
        return self.wire

    def receive(self, event: Event, wire: Wire) -> None:
        book, kind = self.book, event["type"]
        durable = kind in ("tool.call", "assistant.speech.final", "approval.request")
        if durable and event["id"] not in book.committed_ids and shape_of(event) != "state idle":
            book.wrong(f"sent, and not committed: {shape_of(event)}")
        if kind.startswith("approval.") and "approval" not in wire.capabilities:
            return
        if kind == "approval.resolved":
            wire.answers[event["payload"]["approvalId"]] += 1
            book.resolved(event["payload"]["approvalId"], event["payload"]["outcome"])
        if kind == "approval.request":
            self.spawn(self._look(event["payload"]["approvalId"], wire))
        if event["id"] in self._handled_ids:
            return
        self._handled_ids.add(event["id"])
        self.events.append(event)
        if kind == "approval.request":
            if event["payload"]["approvalId"] not in book.cards:
                wire.born.add(event["payload"]["approvalId"])
            book.add_card(event)
        elif kind == "error" and event["payload"]["code"] == "internal_error":
            book.wrong("internal_error")
        elif kind == "tool.call":
            self._take_call(event)
        elif kind == "tool.cancel":
            self.spawn(self._cancel(event["payload"]["callId"]))

    async def _look(self, approval_id: str, wire: Wire) -> None:
        """Have the person look at a card, if they do, and tell the session."""
        await later(self.rng.choice((0.0, 0.2, 2.0)))
        if self.rng.random() < 0.9 and not wire.is_cut:
            wire.visible_cards.add(approval_id)
            wire.say(client.ApprovalShown(approval_id))

    def _take_call(self, event: Event) -> None:
        """Take a call: the person sees its text at once, the device comes to it in its turn."""
        book, shape, call_id = self.book, shape_of(event), event["payload"]["callId"]
        if shape.startswith("state "):
            self.states.append(shape.removeprefix("state "))
        elif shape == "append assistant" and call_id not in self._message_ids:
            self._message_ids.add(call_id)
            book.add_prompt(arguments_of(event)["text"])
        elif shape == "tts.speak":
            self._speeches[call_id] = False
            is_prompt = book.prompt is not None and book.prompt.text == arguments_of(event)["text"]
            self._prompts[call_id] = book.prompt if is_prompt else None
        self._inbox.put_nowait(event)

    def relaunch(self) -> None:
        """Forget which events were handled, as an app does that was ended."""
        self._handled_ids.clear()
        self.book.relaunched = True

    def interrupted(self) -> None:
        """Note that the person interrupts: the last prompt, where that is beyond doubt the one they hear."""
        speeches = list(self._speeches.values())
        prompt = self._prompts[list(self._speeches)[-1]] if speeches else None
        if prompt is not None and not prompt.is_heard and not speeches[-1] and all(speeches[:-1]):
            prompt.interrupted = True

    @property
    def is_listening(self) -> bool:
        """Whether it has answered its last speech: what follows on a silent one has to wait."""
        return not self._speeches or list(self._speeches.values())[-1]

    def say(self, event: client.ClientEvent, meaning: Meaning = list) -> None:
        if self.wire is not None and not self.wire.is_cut:
            self.wire.say(event, meaning)

    # -- the device

    async def handle(self) -> None:
        while True:
            event = await self._inbox.get()
            call_id, name = event["payload"]["callId"], event["payload"]["name"]
            if name == "tts.speak":
                await self._speak(call_id)
            elif name.startswith("convo."):
                if not self.mute:
                    self.say(client.ToolResultEvent(call_id, SPOKEN))
            else:
                self.book.ran(call_id, name, arguments_of(event))
                await self._run(call_id)

    async def _speak(self, call_id: str) -> None:
        prompt, how = self._prompts[call_id], self.rng.random()
        says_nothing = self.mute or how < 0.04
        if not says_nothing:
            await later(self.rng.choice((0.0, 0.5, 3.0)))
        self._speeches[call_id] = not says_nothing
        if prompt is not None:
            prompt.is_heard = True
        if not says_nothing:
            error = "no voice" if how < 0.08 else None
            self.say(client.ToolResultEvent(call_id, None if error else SPOKEN, error))

    async def _run(self, call_id: str) -> None:
        """Do a call, or not; say so in time, late, twice or never."""
        rng = self.rng
        result = self._result(call_id)
        if rng.random() < 0.2:
            self.say(client.ToolStarted(call_id))
        how = rng.choices(("now", "soon", "twice", "late", "never", "job", "busy"), (6, 3, 1, 1, 1, 1, 1))[0]
        self.book.tally[f"device {how}"] += 1
        if how in ("now", "twice"):
            self.say(result)
        if how == "twice":
            self.say(self._result(call_id))
        if how == "soon":
            await later(rng.choice((0.2, 2.0, 20.0)))
            self.say(result)
        if how == "late":
            self.spawn(self._say_later(rng.choice((31.0, 90.0, 400.0, 650.0)), result))
        if how == "job":
            self.say(client.ToolAccepted(call_id, f"job {call_id}"))
            self.spawn(self._say_later(rng.choice((0.1, 60.0)), result))
        if how == "busy":
            self.spawn(self._work(call_id, result))

    def _result(self, call_id: str) -> client.ToolResultEvent:
        text = f"{STRANGER} {call_id}" if self.book.is_untrusted(call_id) else f"did {call_id}"
        return client.ToolResultEvent(call_id, *((None, text) if self.rng.random() < 0.1 else (text, None)))

    async def _say_later(self, seconds: float, event: client.ClientEvent) -> None:
        await later(seconds)
        self.say(event)

    async def _work(self, call_id: str, result: client.ClientEvent) -> None:
        for percent in range(0, 100, 30):
            await later(self.rng.choice((5.0, 25.0)))
            self.say(client.ToolProgress(call_id, percent=float(percent)))
        self.say(result)

    async def _cancel(self, call_id: str) -> None:
        effect: Any = self.rng.choice(("none", "partial", "complete", "silence"))
        if effect != "silence":
            await later(self.rng.choice((0.0, 1.0)))
            self.book.tally[f"cancelled {effect}"] += 1
            self.say(client.ToolCancelled(call_id, effect, f"did {call_id}" if effect != "none" else None))

    async def close(self) -> None:
        for task in list(self.jobs):
            task.cancel()
        for wire in self.wires:
            if not wire.is_cut:
                wire.cut()
        await steps(20)
