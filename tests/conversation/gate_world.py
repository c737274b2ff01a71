"""A world in which anything may happen to a call, and a book in which it is checked that nothing wrong does.

The `Book` is a model of its own: it knows the tools as they were declared, what the model wished, what the
person saw and said, and what ran where. It holds each run against that, and uses nothing of the gate.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from conductor.conversation.lasting import LastingGrants
from conductor.conversation.services import Services
from conductor.conversation.session import Session
from conductor.conversation.transport import Frame
from conductor.errors import ModelError
from conductor.events import client
from conductor.events.codec import Inbound
from conductor.messages import AssistantMessage, Message, Note, ToolResult, UserMessage
from conductor.models.base import ModelRequest, TextDelta
from conductor.models.scripted import Script
from conductor.stores.base import (
    AppendLog,
    Claim,
    FinishCall,
    ForgetCall,
    OpenCall,
    Operation,
    PutOutbound,
    SessionKey,
    SetField,
)
from conductor.stores.memory import MemoryStore
from conductor.tools.base import CallContext, ToolOutcome, ToolSpec, failed, succeeded
from conductor.tools.declarations import parse_declarations
from tests.conversation.helpers import (
    SPOKEN,
    Event,
    SlowStore,
    arguments_of,
    call,
    faults,
    inbound,
    later,
    loose_ends,
    make_services,
    open_session,
    randomly_slow,
    shape_of,
    steps,
    tool,
)

CARDS = ["tools", "approval", "cancel", "lease", "late", "async", "activity"]
VOICE = ["tools", "cancel", "lease", "late", "async"]
STRANGER = "a stranger wrote"
ARGUMENTS = ("{}", '{"x":1}', '{"x":1}', '{"x":2}', '{"x":"3"}', '{"x":null}', '{"x":"many"}', "{")
WINDOW_S = 600.0
"""Tools, "Unknown outcomes": so long an identical call does not run silently."""
PROMPT = re.compile(r"May I run (?P<name>[a-z ]+?)(?:, with x (?P<x>\d+))?\?")
PHRASE = re.compile(r"say: (?P<phrase>[^.]+)\.", re.IGNORECASE)

Arguments = dict[str, Any]


# -- what is known of tools and calls


@dataclass(frozen=True, slots=True)
class Kind:
    """A tool as the person knows it; ``version`` is in its description, so that each request names it."""

    name: str
    effect: Literal["read", "write", "irreversible"]
    approval: Literal["never", "ask"] | None = None
    interactive: bool = False
    untrusted: bool = False
    on_interrupt: Literal["cancel", "keep"] = "keep"
    version: int = 0

    @property
    def silent(self) -> bool:
        """Whether it may run without a question (tools, "Permissions")."""
        return self.approval == "never" or (self.approval is None and self.effect == "read")

    @property
    def description(self) -> str:
        return f"Version {self.version}."

    @property
    def declaration(self) -> dict[str, Any]:
        wishes = {
            "interactive": self.interactive,
            "onInterrupt": self.on_interrupt,
            "approval": self.approval,
        }
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": {"type": "object", "properties": {"x": {"type": "integer"}}},
            "annotations": {
                "readOnlyHint": self.effect == "read",
                "destructiveHint": self.effect == "irreversible",
                "openWorldHint": self.untrusted,
            },
            "_meta": {"conductor": {key: value for key, value in wishes.items() if value is not None}},
        }


LOCAL = (
    Kind("local.sum", "read"),
    Kind("local.page", "read", untrusted=True),
    Kind("local.keep", "write"),
    Kind("local.drop", "irreversible"),
)


def random_kind(rng: random.Random, name: str, version: int = 0) -> Kind:
    return Kind(
        name,
        rng.choice(("read", "write", "write", "irreversible")),
        rng.choices((None, "never", "ask"), (6, 3, 1))[0],
        rng.random() < 0.15,
        rng.random() < 0.08,
        rng.choice(("cancel", "keep")),
        version,
    )


def normal(text: str) -> Arguments | None:
    """Read arguments as a tool takes them: a number in quotes is one, null is left out."""
    try:
        x = json.loads(text).get("x")
        return {} if x is None else {"x": int(x)}
    except (ValueError, AttributeError):
        return None


def digest_of(name: str, arguments: Mapping[str, Any]) -> str:
    """Compute the digest as the protocol states it."""
    canonical = json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(f"{name}\n{canonical}".encode()).hexdigest()


@dataclass(slots=True)
class Wish:
    """A call that the model made, with what was known when it did; ``versions`` are the tool's then."""

    name: str
    arguments: Arguments | None
    versions: range
    tainted: bool
    repeats_unknown: bool
    released: Arguments | None = None
    ran: list[Arguments] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Consent:
    """What a person said yes to: a card's call, or what a prompt named; with these arguments."""

    name: str
    arguments: Arguments
    scope: str
    call_id: str | None = None


@dataclass(slots=True)
class Card:
    """A request for approval, as the client got it."""

    approval_id: str
    call_id: str
    name: str
    arguments: Arguments
    digest: str
    risk: str
    scopes: Sequence[str]
    tapped: bool = False
    settled: str = ""
    outcome: str = ""


@dataclass(slots=True)
class Prompt:
    """A question that was spoken; ``heard`` to its end, or shown by a device that says nothing of it."""

    name: str
    arguments: Arguments
    phrase: str
    heard: bool = False
    interrupted: bool = False


class Book:
    """What was wished, shown, said and run; ``faults`` says what was wrong with that."""

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self.kinds = {kind.version: kind for kind in kinds}
        self.newest = {kind.name: kind.version for kind in kinds}
        self.local = {kind.name: kind for kind in LOCAL}
        self.wishes: dict[str, Wish] = {}
        self.log: list[Message] = []
        self.kept: set[str] = set()
        self.fields: dict[str, str] = {}
        self.cards: dict[str, Card] = {}
        self.relaunched = False
        self.prompt: Prompt | None = None
        self.faults: list[str] = []
        self.tally: Counter[str] = Counter()
        self._consents: list[Consent] = []
        self._grants: list[tuple[str, range, Arguments | None]] = []
        self._unknown: dict[str, tuple[str, Arguments, float]] = {}
        self._reported: set[str] = set()
        self._finished: dict[str, float] = {}
        self._request: tuple[dict[str, int], bool, list[tuple[str, Arguments]]] = ({}, False, [])

    def wrong(self, what: str) -> None:
        self.faults.append(f"at {_now():.2f}: {what}")

    # -- tools

    def define(self, kind: Kind) -> Kind:
        """Note a tool's new definition; it may be in force from now on."""
        kind = replace(kind, version=max(self.kinds) + 1)
        self.kinds[kind.version] = kind
        self.newest[kind.name] = kind.version
        return kind

    def _candidates(self, name: str, versions: range) -> list[Kind]:
        if name in self.local:
            return [self.local[name]]
        return [self.kinds[v] for v in versions if v in self.kinds and self.kinds[v].name == name]

    # -- what the model wishes

    def asked_model(self, request: ModelRequest) -> None:
        """Note what a request shows: the tools' versions, and whether strangers' words are in it."""
        versions = {
            t.name: int(t.description.split()[-1].rstrip("."))
            for t in request.tools
            if t.description.startswith("Version")
        }
        now = _now()
        unknown = [(name, x) for name, x, at in self._unknown.values() if now - at < WINDOW_S - 0.01]
        self._request = (versions, STRANGER in repr(request.messages), unknown)

    def committed(self, operations: Sequence[Operation]) -> None:
        """Read what was recorded."""
        forgotten: set[str] = set()
        for operation in operations:
            match operation:
                case AppendLog(entry=AssistantMessage() | ToolResult() | UserMessage() | Note() as message):
                    self._logged(message)
                case ForgetCall(call_id=call_id):
                    forgotten.add(call_id)
                case OpenCall(call=record) if record.call_id in forgotten:
                    self._released(record.call_id)
                case FinishCall(call_id=call_id):
                    self._finished[call_id] = _now()
                case PutOutbound(event=event):
                    self.kept.add(event.event_id)
                case SetField(name=name, value=value):
                    self.fields[name] = value

    def _logged(self, message: Message) -> None:
        self.log.append(message)
        if isinstance(message, AssistantMessage):
            versions, tainted, unknown = self._request
            for one in message.calls:
                arguments = normal(one.arguments)
                first = versions.get(one.name, -1)
                span = range(first, self.newest.get(one.name, -1) + 1)
                # It was unknown when the model was asked, and when the gate was.
                repeats = (one.name, arguments) in unknown and any(
                    (one.name, arguments) == (name, x) for name, x, _ in self._unknown.values()
                )
                self.wishes[one.call_id] = Wish(one.name, arguments, span, tainted, repeats)
        elif isinstance(message, ToolResult):
            self._has_result(message)

    def _has_result(self, message: ToolResult) -> None:
        wish = self.wishes.get(message.call_id)
        if wish is None:
            self.wrong(f"a result of a call that nobody made: {message.call_id}")
            return
        outcome = json.loads(message.content)
        wish.results.append(outcome)
        self.tally[f"result {outcome['error_type']}"] += 1
        kinds = self._candidates(wish.name, wish.versions)
        changes = all(kind.effect != "read" for kind in kinds)
        if outcome["error_type"] == "unknown" and changes and kinds:
            arguments = wish.released if wish.released is not None else wish.arguments
            if arguments is not None and message.call_id not in self._reported:
                self._unknown[message.call_id] = (
                    wish.name,
                    arguments,
                    self._finished.get(message.call_id, _now()),
                )

    def reported(self, call_id: str) -> None:
        """Note that the session is told what became of a call."""
        self._reported.add(call_id)
        self._unknown.pop(call_id, None)

    # -- what the person decides

    def shown(self, event: Event) -> None:
        """Take a card."""
        payload = event["payload"]
        card = Card(
            payload["approvalId"],
            payload["callId"],
            payload["name"],
            payload["arguments"],
            payload["argumentsDigest"],
            payload["risk"],
            payload["scopes"],
        )
        wish = self.wishes.get(card.call_id)
        if wish is None or (wish.name, wish.arguments) != (card.name, card.arguments):
            self.wrong(f"a card about another call than the model's: {card}, {wish}")
        if card.digest != digest_of(card.name, card.arguments):
            self.wrong(f"a card whose digest is not that of its arguments: {card}")
        self.cards.setdefault(card.approval_id, card)
        self.tally["card"] += 1

    def resolved(self, approval_id: str, outcome: str) -> None:
        self.tally[f"resolved {outcome}"] += 1
        card = self.cards.get(approval_id)
        if card is not None and outcome != "refused" and not card.outcome:
            card.outcome = outcome

    @property
    def standing(self) -> list[Card]:
        """The cards that the person still sees."""
        return [card for card in self.cards.values() if not card.outcome and not card.settled]

    def spoke(self, text: str) -> Prompt | None:
        """Take a prompt, if a speech is one."""
        found = PROMPT.search(text)
        if found is None:
            return None
        phrase = PHRASE.search(text)
        arguments = {} if found["x"] is None else {"x": int(found["x"])}
        name = found["name"].strip().replace(" ", ".")
        self.prompt = Prompt(name, arguments, phrase["phrase"] if phrase else "")
        self.tally["prompt"] += 1
        return self.prompt

    @contextmanager
    def taking(self, event: client.ClientEvent | None, said: Consent | None) -> Iterator[None]:
        """Let what an event says count while the session takes it, and no longer."""
        if isinstance(event, client.ToolResultEvent | client.ToolCancelled):
            self.reported(event.call_id)
        consents = [said] if said is not None else []
        if isinstance(event, client.ApprovalResponse):
            consents += [one for one in map(self._weigh, event.all()) if one is not None]
        self._consents += consents
        try:
            yield
        finally:
            self._consents = [one for one in self._consents if one not in consents]

    def _weigh(self, decision: client.Decision) -> Consent | None:
        """Say what a decision allows: the first good one about a card settles it."""
        card = self.cards.get(decision.approval_id)
        if card is None or card.settled or decision.arguments_digest != card.digest:
            return None
        arguments: Arguments | None = card.arguments
        if decision.decision == "edit":
            arguments = normal(json.dumps(decision.edited_arguments))
        elif decision.decision == "allow" and decision.scope not in card.scopes:
            return None
        if arguments is None:
            return None
        card.settled = decision.decision
        if decision.decision == "deny":
            return None
        scope = decision.scope if decision.decision == "allow" else "once"
        return Consent(card.name, arguments, scope, card.call_id)

    # -- what runs

    def _released(self, call_id: str) -> None:
        """A call that was asked about is let go: there must be somebody's word for it."""
        wish = self.wishes[call_id]
        for consent in self._consents:
            by_card = consent.call_id == call_id
            by_voice = consent.call_id is None and (consent.name, consent.arguments) == (
                wish.name,
                wish.arguments,
            )
            if by_card or by_voice:
                break
        else:
            self.wrong(f"released undecided: {call_id} {wish}; decided: {self._consents}")
            wish.released = wish.arguments
            return
        self._consents.remove(consent)
        if wish.released is not None or wish.results:
            self.wrong(f"released when it was over: {call_id} {wish}")
        wish.released = consent.arguments
        self.tally["released by card" if by_card else "released by voice"] += 1
        if consent.scope != "once":
            kinds = self._candidates(wish.name, wish.versions)
            exact = any(kind.effect == "irreversible" for kind in kinds)
            self._grants.append((wish.name, wish.versions, wish.arguments if exact else None))

    def ran(self, call_id: str, name: str, arguments: Arguments) -> None:
        """Note that a call is run, on the device or here."""
        wish = self.wishes.get(call_id)
        if wish is None or wish.name != name:
            self.wrong(f"{name} ran, and nobody called it: {call_id}")
            return
        wish.ran.append(arguments)
        self.tally["ran"] += 1
        reads = any(kind.effect == "read" for kind in self._candidates(name, wish.versions))
        if len(wish.ran) > 1 and not (reads and self.relaunched):
            self.wrong(f"ran twice: {call_id} {wish}")
        expected = wish.released if wish.released is not None else wish.arguments
        if arguments != expected:
            self.wrong(f"ran with other arguments: {call_id} {wish}")
        if wish.released is None:
            self._check_silent(call_id, wish)

    def _check_silent(self, call_id: str, wish: Wish) -> None:
        kinds = self._candidates(wish.name, wish.versions)
        if not any(kind.silent or self._granted(kind, wish) for kind in kinds):
            self.wrong(f"ran unasked: {call_id} {wish} {kinds}")
        if all(kind.effect == "read" for kind in kinds):
            return
        writes = [kind for kind in kinds if kind.effect != "read"]
        if len(writes) == len(kinds) and wish.tainted:
            self.wrong(f"ran unasked after strangers' words: {call_id} {wish}")
        if len(writes) == len(kinds) and wish.repeats_unknown:
            self.wrong(f"ran again silently though it may have happened: {call_id} {wish}")
        self.tally["ran silently"] += 1

    def _granted(self, kind: Kind, wish: Wish) -> bool:
        versions = [kind.version]
        return any(
            name == kind.name
            and (arguments is None or arguments == wish.arguments)
            and (name in self.local or any(v in span for v in versions))
            for name, span, arguments in self._grants
        )

    # -- what must hold at rest

    def check(self) -> None:
        """Check every call's history, once nothing is under way."""
        self.faults += faults(self.log)
        for call_id, wish in self.wishes.items():
            if len(wish.results) != 1:
                self.wrong(f"{len(wish.results)} results: {call_id} {wish}")
                continue
            outcome = wish.results[0]
            nothing = "Nothing was run" in (outcome["error_message"] or "")
            if nothing and wish.ran:
                self.wrong(f"it ran, and the model was told that nothing was run: {call_id} {wish}")
            if outcome["success"] and not wish.ran:
                self.wrong(f"it did not run, and the model was told that it had: {call_id} {wish}")
        for card in self.cards.values():
            wish = self.wishes[card.call_id]
            agrees = {"allowed": ("allow",), "edited": ("edit",)}.get(card.outcome)
            if agrees is None and card.outcome and wish.ran:
                self.wrong(f"{card.outcome}, and it ran: {card} {wish}")
            if card.outcome == "edited" and card.settled != "edit":
                self.wrong(f"edited by nobody: {card}")
        self.faults += (
            [f"left in the field: {self.fields['approvals']}"] if self.fields.get("approvals") else []
        )


def _now() -> float:
    return asyncio.get_running_loop().time()


class Recorded:
    """A store whose commits the book reads."""

    def __init__(self, inner: SlowStore | MemoryStore, book: Book) -> None:
        self.inner = inner
        self.suspends = inner.suspends
        self._book = book

    async def claim(self, key: SessionKey) -> Claim:
        return await self.inner.claim(key)

    async def commit(self, claim: Claim, commit_id: str, operations: Sequence[Operation]) -> None:
        await self.inner.commit(claim, commit_id, operations)
        self._book.committed(operations)

    async def release(self, claim: Claim) -> None:
        await self.inner.release(claim)

    async def aclose(self) -> None:
        await self.inner.aclose()


class LocalTools:
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


class Wire:
    """A connection: a `Transport`, and a reader that takes one event at a time as the server's does."""

    def __init__(self, phone: Phone, session: Session, capabilities: Sequence[str], *, slow: bool) -> None:
        self.phone = phone
        self.session = session
        self.capabilities = capabilities
        self.slow = slow
        self.cut = False
        self.parked = False
        self.decisions: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.born: set[str] = set()
        self._queue: deque[Frame] = deque()
        self._up: asyncio.Queue[tuple[Inbound, Consent | None]] = asyncio.Queue()
        self._reader = asyncio.create_task(self._read())

    def send(self, frame: Frame) -> None:
        if self.cut or self.parked:
            return
        self._queue.append(frame)
        if not self.slow:
            self.flush()

    def drop_partials(self) -> None:
        for frame in self._queue:
            frame.withdrawn = frame.withdrawn or frame.partial

    def park(self) -> None:
        self.parked = True
        self._queue.clear()

    def close(self, code: int, reason: str) -> None:
        raise AssertionError("no session closes a line by itself")

    def flush(self, number: int = 1_000) -> None:
        """Hand frames on to the phone."""
        while self._queue and number:
            frame = self._queue.popleft()
            if not frame.withdrawn:
                frame.written = True
                self.phone.receive(json.loads(frame.data), self)
                number -= 1

    def say(self, event: client.ClientEvent | None, said: Consent | None = None) -> None:
        self._up.put_nowait((inbound(event), said))

    async def drained(self) -> None:
        await self._up.join()

    def hang_up(self) -> None:
        """Lose the line, and what is on its way in either direction; an event that was taken is finished."""
        self.cut = True
        self._queue.clear()
        self.say(None)
        self.session.detach(self)

    async def _read(self) -> None:
        while not self.cut:
            item, said = await self._up.get()
            served = self.session.transport is self or isinstance(item.event, client.ToolResultEvent)
            try:
                if not self.cut and served:
                    if isinstance(item.event, client.ApprovalResponse) and "approval" in self.capabilities:
                        self.decisions.update(one.approval_id for one in item.event.all())
                    event = item.event
                    if isinstance(event, client.ToolCancelled) and "cancel" not in self.capabilities:
                        event = None
                    with self.phone.book.taking(event, said):
                        await self.session.receive(item, self)
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
        self._seen: set[str] = set()
        self._inbox: asyncio.Queue[Event] = asyncio.Queue()
        self._speeches: dict[str, bool] = {}
        self._prompts: dict[str, Prompt | None] = {}

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.jobs.add(task)
        task.add_done_callback(self.jobs.discard)

    def connect(self, session: Session, capabilities: Sequence[str], tools: list[Any] | None) -> Wire:
        """Open a line, and start or resume the session on it."""
        again = self.wire is not None
        for card in self.book.standing:
            card.tapped = False  # the tap may have been lost with the line
        self.wire = Wire(self, session, capabilities, slow=self.rng.random() < 0.15)
        self.wires.append(self.wire)
        start = client.SessionStart(capabilities=list(capabilities), tools=tools)
        session.start(start, self.wire, resumed=again)
        return self.wire

    def receive(self, event: Event, wire: Wire) -> None:
        book, kind = self.book, event["type"]
        durable = kind in ("tool.call", "assistant.speech.final", "approval.request")
        if durable and event["id"] not in book.kept and shape_of(event) != "state idle":
            book.wrong(f"sent, and not committed: {shape_of(event)}")
        if kind.startswith("approval.") and "approval" not in wire.capabilities:
            return
        if kind == "approval.resolved":
            wire.answers[event["payload"]["approvalId"]] += 1
            book.resolved(event["payload"]["approvalId"], event["payload"]["outcome"])
        if event["id"] in self._seen:
            return
        self._seen.add(event["id"])
        self.events.append(event)
        if kind == "approval.request":
            if event["payload"]["approvalId"] not in book.cards:
                wire.born.add(event["payload"]["approvalId"])
            book.shown(event)
        elif kind == "error" and event["payload"]["code"] == "internal_error":
            book.wrong("internal_error")
        if kind == "tool.call":
            if shape_of(event).startswith("state "):
                self.states.append(arguments_of(event)["state"])
            if event["payload"]["name"] == "tts.speak":
                self._speeches[event["payload"]["callId"]] = False
                self._prompts[event["payload"]["callId"]] = book.spoke(arguments_of(event)["text"])
            self._inbox.put_nowait(event)
        elif kind == "tool.cancel":
            self.spawn(self._cancel(event["payload"]["callId"]))

    def relaunch(self) -> None:
        """Forget which events were handled, as an app does that was ended."""
        self._seen.clear()
        self.book.relaunched = True

    @property
    def speaking_only(self) -> bool:
        """Whether the last speech is beyond doubt the one that an interruption concerns."""
        done = list(self._speeches.values())
        return bool(done) and not done[-1] and all(done[:-1])

    def say(self, event: client.ClientEvent, said: Consent | None = None) -> None:
        if self.wire is not None and not self.wire.cut:
            self.wire.say(event, said)

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
                await self._run(call_id, name)

    async def _speak(self, call_id: str) -> None:
        prompt, how = self._prompts[call_id], self.rng.random()
        says_nothing = self.mute or how < 0.04
        if not says_nothing:
            await later(self.rng.choice((0.0, 0.5, 3.0)))
        self._speeches[call_id] = not says_nothing
        if prompt is not None:
            prompt.heard = True
        if not says_nothing:
            error = "no voice" if how < 0.08 else None
            self.say(client.ToolResultEvent(call_id, None if error else SPOKEN, error))

    async def _run(self, call_id: str, name: str) -> None:
        """Do a call, or not; say so in time, late, twice or never."""
        rng = self.rng
        result = self._result(call_id, name)
        if rng.random() < 0.2:
            self.say(client.ToolStarted(call_id))
        how = rng.choices(("now", "soon", "twice", "late", "never", "job", "busy"), (6, 3, 1, 1, 1, 1, 1))[0]
        self.book.tally[f"device {how}"] += 1
        if how in ("now", "twice"):
            self.say(result)
        if how == "twice":
            self.say(self._result(call_id, name))
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

    def _result(self, call_id: str, name: str) -> client.ToolResultEvent:
        untrusted = self.book.kinds[self.book.newest[name]].untrusted
        text = f"{STRANGER} {call_id}" if untrusted else f"did {call_id}"
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
            if not wire.cut:
                wire.hang_up()
        await steps(20)


# -- the world

YES = ("yes", "yes please", "go ahead", "yes, just this once")
YES_FOR_LONG = {"yes, always allow that": "always", "yes, for this session": "session"}
NO = ("no", "no thanks", "no, leave it")
UNCLEAR = ("okay", "um", "yes but not now", "I am not sure")
OTHER = ("what time is it in Paris", "what is the weather like in Oslo tomorrow")


class World:
    """A session, a model, a device and a person who all do as they like, from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        names = rng.sample(
            ("look", "move", "copy", "wipe", "send", "pick", "burn", "list"), rng.randint(3, 7)
        )
        kinds = [
            replace(random_kind(rng, f"device.{name}"), version=number) for number, name in enumerate(names)
        ]
        self.book = Book(kinds)
        self.declared = {kind.name: kind for kind in kinds}
        self.mode = rng.choice(("cards", "cards", "voice", "voice", "mixed"))
        self.said: list[tuple[str, str]] = []
        self.trail: list[str] = []
        self.resting = False
        self.store = randomly_slow(rng) if rng.random() < 0.7 else MemoryStore()
        self.services = self._services(kinds)
        self.phone = Phone(rng, self.book, mute=rng.random() < 0.1)
        self.session: Session

    def _services(self, kinds: Sequence[Kind]) -> Services:
        rng = self.rng
        store: Any = Recorded(self.store, self.book)
        lasting: Any = randomly_slow(rng) if rng.random() < 0.5 else MemoryStore()
        made = make_services(
            self.reply,
            store=store,
            toolsets=[LocalTools(rng, self.book)],
            mode=rng.choice(("cancel", "cancel", "queue")),
            max_turns=rng.choice((3, 8, 20)),
            stale_speech=rng.choice((-1.0, 10.0)),
            turn_timeout=rng.choice((120.0, 120.0, 15.0)),
            tool_timeout=rng.choice((30.0, 30.0, 3.0)),
            interactive_timeout=rng.choice((600.0, 60.0)),
            max_tool_rounds=rng.choice((8, 2)),
            max_calls_per_round=rng.choice((15, 3)),
            turns_per_minute=100_000.0,
            calls_per_minute=1_000_000.0,
        )
        catalog = parse_declarations([kind.declaration for kind in kinds]).accepted
        lasting_grants = LastingGrants(lasting) if rng.random() < 0.6 else None
        return replace(made, catalog=catalog, lasting_grants=lasting_grants)

    # -- the model

    def reply(self, request: ModelRequest) -> Script:
        """Say something, call something, fail, or take time; end after some rounds."""
        rng = self.rng
        self.book.asked_model(request)
        rounds = 0
        for message in reversed(request.messages):
            if isinstance(message, UserMessage | Note):
                break
            rounds += isinstance(message, AssistantMessage)
        script: list[Any] = []
        for _ in range(rng.randint(0, 2)):
            script += [TextDelta(f"{rng.choice(('alpha', 'bravo'))} "), rng.choice((0.0, 0.0, 0.1, 3.0))]
        if rng.random() < 0.04:
            return [*script, ModelError("overloaded", "busy")]
        if not self.resting and request.tool_choice == "auto" and rounds < 4 and rng.random() < 0.65:
            names = [one.name for one in request.tools] + ["nobody.home"]
            for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
                again = self.said and rng.random() < 0.4
                wish = rng.choice(self.said[-4:]) if again else (rng.choice(names), rng.choice(ARGUMENTS))
                self.said.append(wish)
                script.append(call(*wish))
        return script

    # -- the person

    async def play(self, turns: Callable[[], int]) -> None:
        """Let things happen until ``turns`` says that it is enough; rest now and then, and at the end."""
        self.session = await open_session(self.services)
        self.phone.spawn(self.phone.handle())
        self.connect()
        try:
            number = 0
            while turns() > 0:
                number += 1
                await self.step()
                if number % 60 == 0:
                    await self.rest()
            await self.rest()
            await self.tap_what_is_over()
        finally:
            await self.session.close()
            await self.phone.close()

    def connect(self) -> None:
        by_card = self.mode == "cards" or (self.mode == "mixed" and self.rng.random() < 0.5)
        capabilities = CARDS if by_card else VOICE if self.rng.random() < 0.8 else []
        tools = [kind.declaration for kind in self.declared.values()] if self.rng.random() < 0.5 else None
        self.phone.connect(self.session, capabilities, tools)

    @property
    def wire(self) -> Wire:
        assert self.phone.wire is not None
        return self.phone.wire

    async def step(self) -> None:
        rng = self.rng
        asked = self.book.standing if "approval" in self.wire.capabilities else self.book.prompt
        if asked and self.session.busy and rng.random() < 0.35:
            if isinstance(asked, list) and rng.random() < 0.75:
                self.tap(asked)
            else:
                self.speak()
            await self.pause()
            return
        if rng.random() < 0.02:
            await self.listen()
            return
        actions: dict[str, tuple[int, Callable[[], None]]] = {
            "say": (6, self.request),
            "interrupt": (2, self.interrupt),
            "agent": (1, lambda: self.phone.say(client.AgentCompleted(f"a-{rng.randint(0, 9)}", "FINISHED"))),
            "partial": (1, lambda: self.phone.say(client.TranscriptPartial("hm"))),
            "cancel": (1, lambda: self.phone.say(client.ResponseCancel())),
            "declare": (1, self.declare),
            "hang up": (1, self.hang_up),
            "second line": (1, self.connect),
            "flush": (3, lambda: self.wire.flush(rng.randint(1, 5))),
            "speak": (1, self.speak),
            "old tap": (1, self.tap_again),
            "pause": (10, lambda: None),
        }
        name = rng.choices(list(actions), [weight for weight, _ in actions.values()])[0]
        self.note(name)
        actions[name][1]()
        await self.pause()

    async def listen(self) -> None:
        """Do nothing for a while: by then a question that stands must have been put."""
        self.note("listen")
        wire, asked = self.wire, self.book.fields.get("approvals", "")
        await later(70.0)
        if not asked or wire is not self.wire or wire.cut or wire.slow:
            return
        if asked != self.book.fields.get("approvals", ""):
            return
        self.book.tally["listened to a question"] += 1
        questions = json.loads(asked)
        if "approval" in wire.capabilities:
            if any(one["approval_id"] not in self.book.cards for one in questions):
                self.book.wrong(f"not shown: {questions}")
            return
        prompt, focus = self.book.prompt, questions[0]
        if prompt is None or (prompt.name, prompt.arguments) != (focus["tool"], focus["arguments"]):
            self.book.wrong(f"not put: {focus}; the last prompt: {prompt}")
        if self.phone.states[-1] != "idle":
            self.book.wrong(f"the microphone is not open for an answer: {self.phone.states[-1]}")

    def note(self, what: str) -> None:
        self.trail.append(f"{_now():.2f} {what}")
        self.book.tally[what.split(":")[0]] += 1

    async def pause(self) -> None:
        if self.rng.random() < 0.6:
            await steps(self.rng.randint(0, 12))
            return
        await later(self.rng.choices((0.01, 0.2, 1.0, 4.0, 40.0, 100.0, 650.0), (8, 8, 8, 6, 2, 1, 0.4))[0])

    def request(self) -> None:
        self.phone.say(client.TranscriptFinal(f"do number {len(self.trail)}"), self.meaning(""))

    def interrupt(self) -> None:
        if self.phone.speaking_only and self.book.prompt is not None and not self.book.prompt.heard:
            self.book.prompt.interrupted = True
        fields: dict[str, Any] = self.rng.choice(({}, {"spoken_text": "al"}, {"played_ms": 100.0}))
        self.phone.say(client.OutputInterrupted(**fields))

    def declare(self) -> None:
        """Define a tool anew, take it away, or bring it back."""
        rng = self.rng
        name = rng.choice(sorted(self.book.newest))
        if name in self.declared and rng.random() < 0.2:
            del self.declared[name]
        else:
            old = self.book.kinds[self.book.newest[name]]
            self.declared[name] = self.book.define(old if rng.random() < 0.6 else random_kind(rng, name))
        self.phone.say(client.SessionUpdate([kind.declaration for kind in self.declared.values()]))

    def hang_up(self) -> None:
        self.wire.hang_up()
        if self.rng.random() < 0.15:
            self.phone.relaunch()
        self.phone.spawn(self._come_back(self.wire))

    async def _come_back(self, lost: Wire) -> None:
        await later(self.rng.choice((0.0, 0.0, 1.0, 20.0, 700.0)))
        if self.phone.wire is lost:
            self.connect()

    # -- answers

    def tap(self, cards: Sequence[Card]) -> None:
        rng = self.rng
        chosen = rng.sample(list(cards), rng.randint(1, len(cards)))
        decisions = [self.decision(card) for card in chosen for _ in range(rng.choice((1, 1, 1, 2)))]
        self.note(f"tap: {[(d.approval_id, d.decision) for d in decisions]}")
        if len(decisions) > 1 and rng.random() < 0.7:
            self.phone.say(client.ApprovalResponse(decisions=decisions))
            return
        for one in decisions:
            self.phone.say(
                client.ApprovalResponse(
                    one.approval_id,
                    one.arguments_digest,
                    one.decision,
                    one.scope,
                    one.edited_arguments,
                    one.message,
                )
            )

    def decision(self, card: Card) -> client.Decision:
        rng = self.rng
        digest = card.digest if rng.random() < 0.85 else digest_of(card.name, {"x": 9})
        how: Any = rng.choices(("allow", "deny", "edit"), (6, 2, 2))[0]
        self.book.tally[f"decision {how}"] += 1
        if how == "edit":
            edited = rng.choice(({"x": 4}, {"x": 5}, {}, {"x": "many"}))
            card.tapped = card.tapped or (digest == card.digest and edited != {"x": "many"})
            return client.Decision(card.approval_id, digest, "edit", edited_arguments=edited)
        scope: Any = rng.choices(("once", "session", "always"), (6, 1, 1))[0] if how == "allow" else "once"
        card.tapped = card.tapped or (digest == card.digest and scope in (*card.scopes, "once"))
        message = rng.choice((None, "as I said"))
        return client.Decision(card.approval_id, digest, how, scope, message=message)

    def tap_again(self) -> None:
        """Decide what was decided, or what never was asked."""
        cards = list(self.book.cards.values())
        if cards and "approval" in self.wire.capabilities:
            self.tap([self.rng.choice(cards[-3:])])
            stranger = client.ApprovalResponse("appr-nobody", "0" * 64, "allow")
            self.phone.say(stranger)

    def speak(self) -> None:
        """Say something that may answer a question."""
        rng, prompt = self.rng, self.book.prompt
        choices = [*YES, *YES, *YES_FOR_LONG, *NO, *UNCLEAR, *OTHER]
        if prompt is not None and prompt.phrase:
            choices += [prompt.phrase] * 8
        text = rng.choice(choices)
        self.note(f"speak: {text}")
        self.phone.say(client.TranscriptFinal(text), self.meaning(text))

    def meaning(self, text: str) -> Consent | None:
        """Say what the person agrees to with this, by what they were shown and told."""
        scope = "once" if text in YES else YES_FOR_LONG.get(text)
        if "approval" in self.wire.capabilities:
            # Of one that was decided while the line was lost nobody told the person.
            open_now = self.book.fields.get("approvals", "")
            cards = [c for c in self.book.standing if c.approval_id in open_now and not c.tapped]
            if scope is None or len(cards) != 1 or cards[0].risk == "high":
                return None
            scope = scope if scope in cards[0].scopes else "once"
            return Consent(cards[0].name, cards[0].arguments, scope, cards[0].call_id)
        prompt = self.book.prompt
        if prompt is None or prompt.interrupted or not prompt.heard:
            return None
        if prompt.phrase:
            return Consent(prompt.name, prompt.arguments, "once") if text == prompt.phrase else None
        return None if scope is None else Consent(prompt.name, prompt.arguments, scope)

    # -- rest

    async def rest(self) -> None:
        """Let everything come to its end, and check what is left."""
        self.note("rest")
        self.resting = True
        if self.wire.cut:
            self.connect()
        self.wire.slow = False
        self.wire.flush()
        for _ in range(3_000):
            if self.wire.cut:
                self.connect()
            self.wire.slow = False
            self.wire.flush()
            await self.wire.drained()
            if not self.session.busy and not loose_ends(self.session, calls=False):
                break
            await later(1.0)
        book = self.book
        ends = loose_ends(self.session, calls=False)
        if self.session.busy or ends:
            book.wrong(f"no rest: busy {self.session.busy}, {ends}")
        if self.phone.states[-1] != "idle":
            book.wrong(f"the last state is {self.phone.states[-1]}")
        book.faults += faults(self.session.messages)
        if self.session._questions.open:
            book.wrong("a question stands")
        book.check()
        self.check_answers(self.wire)
        self.resting = False
        assert not book.faults

    def check_answers(self, wire: Wire) -> None:
        """Every decision has one answer, and every card that the line has seen from its birth one end."""
        for approval_id in {*wire.decisions, *wire.answers, *wire.born}:
            sent, got = wire.decisions[approval_id], wire.answers[approval_id]
            card = self.book.cards.get(approval_id)
            if not sent <= got <= sent + 1:
                self.book.wrong(f"{sent} decisions and {got} answers: {card or approval_id}")
            ended_by_tap = card is not None and bool(card.settled)
            if approval_id in wire.born and got == sent and not ended_by_tap:
                self.book.wrong(f"no end of {card}")

    async def tap_what_is_over(self) -> None:
        """Decide every card once more: each decision is answered, and runs nothing."""
        self.phone.connect(self.session, CARDS, None)
        self.wire.slow = False
        self.wire.flush()
        for card in self.book.cards.values():
            self.phone.say(client.ApprovalResponse(card.approval_id, card.digest, "allow"))
        await self.wire.drained()
        for approval_id in self.book.cards:
            if self.wire.answers[approval_id] != 1:
                self.book.wrong(f"{self.wire.answers[approval_id]} answers to a late tap")
        await self.rest()
