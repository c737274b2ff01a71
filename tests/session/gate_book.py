"""A model of the permitted runs, from declarations, cards, words and runs; it uses nothing of the gate.

The `Book` knows the declared tools, the model's wishes, the person's cards and words, and the runs. It holds
each run against the rules of permissions, approvals and unknown outcomes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from conductor.conversation.apply import apply
from conductor.conversation.records import (
    CallFinished,
    Commit,
    ProfileDeclared,
    QuestionDecided,
    Record,
    TurnEnded,
)
from conductor.conversation.state import Conversation, Profile, Question
from conductor.events import client
from conductor.messages import AssistantMessage, Message, ToolResult
from conductor.models.base import ModelRequest
from tests.session.helpers import faults
from tests.shapes import Event

STRANGER = "a stranger wrote"
WINDOW_S = 600.0
"""Tools, "Unknown outcomes": so long an identical call does not run silently."""
HEARD_S = 0.4
"""A yes may wait for 150 ms (protocol: "Heard means …"), and for a second prompt's as well."""
PROMPT = re.compile(r"May I (?:use the tool )?(?P<name>[a-z ]+?)(?:, with x (?P<x>\d+))?\?")
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
        """Whether it may run without a question by the rules of permission."""
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
        rng.random() < 0.12,
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


def version_of(description: str) -> int:
    return int(description.split()[-1].rstrip("."))


def digest_of(name: str, arguments: Mapping[str, Any]) -> str:
    """Compute the digest as the protocol states it."""
    canonical = json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(f"{name}\n{canonical}".encode()).hexdigest()


@dataclass(slots=True)
class Wish:
    """A call of the model, with the facts of its moment; ``versions`` are the tool's then.

    ``released`` are the arguments that the person allowed, once the question was decided.
    """

    name: str
    arguments: Arguments | None
    versions: range
    tainted: bool
    repeats_unknown: bool
    released: list[Arguments] = field(default_factory=list)
    ran: list[Arguments] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Consent:
    """A person's yes to a card's call, or to the call that a prompt named; with these arguments."""

    name: str
    arguments: Arguments
    scope: str
    call_id: str | None = None
    by_voice: bool = False


Meaning: TypeAlias = Callable[[], list[Consent]]
"""Gives the calls that a person agrees to by some words, in the present state."""


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
    phrase: str
    tapped: bool = False
    settled: str = ""
    outcome: str = ""


@dataclass(slots=True)
class Prompt:
    """A question whose text is shown, and which is spoken; ``is_heard``: to its end.

    What is shown and was never spoken counts ``late``, the loop's time at which the speech has failed (tools,
    "Spoken approvals", item 0).
    """

    name: str
    arguments: Arguments
    phrase: str
    text: str
    late: float = 0.0
    is_heard: bool = False
    interrupted: bool = False

    def __post_init__(self) -> None:
        self.unheard()

    def unheard(self) -> None:
        """Take the prompt as unheard."""
        self.is_heard, self.late = False, now() + 5.0 + 0.1 * len(self.text)

    @property
    def presented(self) -> bool:
        return not self.interrupted and (self.is_heard or now() >= self.late)


class Book:
    """The wishes, cards, words and runs; ``faults`` are the violations."""

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self.kinds = {kind.version: kind for kind in kinds}
        self.newest = {kind.name: kind.version for kind in kinds}
        self.local = {kind.name: kind for kind in LOCAL}
        self.wishes: dict[str, Wish] = {}
        self.log: list[Message] = []
        self.committed_ids: set[str] = set()
        self.state = Conversation()
        self.cards: dict[str, Card] = {}
        self.relaunched = False
        self.prompt: Prompt | None = None
        self.faults: list[str] = []
        self.tally: Counter[str] = Counter()
        self._declared: dict[str, int] | None = None
        self._consents: list[Consent] = []
        self._meanings: list[Meaning] = []
        self._grants: list[tuple[str, range, Arguments | None]] = []
        self._unknown: dict[str, tuple[str, Arguments, float]] = {}
        self._reported: set[str] = set()
        self._finished: dict[str, float] = {}
        self._request: tuple[dict[str, int], bool, list[tuple[str, Arguments]]] = ({}, False, [])

    def wrong(self, fault: str) -> None:
        self.faults.append(f"at {now():.2f}: {fault}")

    # -- tools

    def define(self, kind: Kind) -> Kind:
        """Note a tool's new definition; it may be in force from now on."""
        kind = replace(kind, version=max(self.kinds) + 1)
        self.kinds[kind.version] = kind
        self.newest[kind.name] = kind.version
        return kind

    def _has_changed(self, consent: Consent) -> bool:
        """Whether a tool's definition changed since the model made the call that a person agrees to."""
        if self._declared is None or consent.name in self.local:
            return False
        wishes = [self.wishes[consent.call_id]] if consent.call_id else list(self.wishes.values())[-20:]
        undecided = [wish for wish in wishes if wish.name == consent.name and not wish.results]
        return all(self._declared.get(consent.name) not in wish.versions for wish in undecided)

    def _candidates(self, name: str, versions: range) -> list[Kind]:
        if name in self.local:
            return [self.local[name]]
        return [self.kinds[v] for v in versions if v in self.kinds and self.kinds[v].name == name]

    def is_untrusted(self, call_id: str) -> bool:
        """Whether strangers write a call's result, by every definition that may apply."""
        wish = self.wishes.get(call_id)
        return wish is not None and all(item.untrusted for item in self._candidates(wish.name, wish.versions))

    # -- what the model wishes

    def asked_model(self, request: ModelRequest) -> None:
        """Note a request: the tools' versions, and whether strangers' words are in it."""
        versions = {
            t.name: version_of(t.description) for t in request.tools if t.description.startswith("Version")
        }
        self._request = (versions, STRANGER in repr(request.messages), self._unknown_now())

    def _unknown_now(self) -> list[tuple[str, Arguments]]:
        """List the calls that may have happened."""
        since = now() - WINDOW_S + 0.01
        return [(name, arguments) for name, arguments, at in self._unknown.values() if at > since]

    @property
    def questions(self) -> list[Question]:
        """The questions that are recorded and not decided."""
        return list(self.state.questions.values())

    def committed(self, commit: Commit) -> None:
        """Read a commit."""
        for event_id in commit.acked:
            self.state.outbound.pop(event_id, None)
        for record in commit.records:
            self._recorded(record)
            end = self.state.log_end
            self.committed_ids.update(event.id for event in apply(self.state, record, commit.at))
            for message in self.state.log[max(0, end - self.state.log_start) :]:
                self._logged(message)

    def _recorded(self, record: Record) -> None:
        match record:
            case ProfileDeclared(profile=Profile(tools=list(tools))):
                # Of lines that open or end at the same time, only the session knows whose tools count.
                self._declared = {item["name"]: version_of(item["description"]) for item in tools}
            case QuestionDecided(outcome="allowed" | "edited", call_id=call_id):
                self._released(call_id)
            case CallFinished(result=result):
                self._finished[result.call_id] = now()
            case TurnEnded(results=results):
                self._finished.update({finished.result.call_id: now() for finished in results})

    def _logged(self, message: Message) -> None:
        self.log.append(message)
        if isinstance(message, AssistantMessage):
            versions, tainted, unknown = self._request
            for item in message.calls:
                arguments = normal(item.arguments)
                first = versions.get(item.name, -1)
                span = range(first, self.newest.get(item.name, -1) + 1)
                # It was unknown when the model was asked, and when the gate was.
                wish = (item.name, arguments)
                repeats = wish in unknown and wish in self._unknown_now()
                self.wishes[item.call_id] = Wish(item.name, arguments, span, tainted, repeats)
        elif isinstance(message, ToolResult):
            self._has_result(message)

    def _has_result(self, message: ToolResult) -> None:
        wish = self.wishes.get(message.call_id)
        if wish is None:
            self.wrong(f"a result without a call: {message.call_id}")
            return
        outcome = json.loads(message.content)
        wish.results.append(outcome)
        self.tally[f"result {outcome['error_type']}"] += 1
        kinds = self._candidates(wish.name, wish.versions)
        changes = all(kind.effect != "read" for kind in kinds)
        if outcome["error_type"] == "unknown" and changes and kinds:
            arguments = [*wish.ran, *wish.released, wish.arguments][0]
            if arguments is not None and message.call_id not in self._reported:
                self._unknown[message.call_id] = (
                    wish.name,
                    arguments,
                    self._finished.get(message.call_id, now()),
                )

    def reported(self, call_id: str) -> None:
        """Note that the session learns the end of a call."""
        self._reported.add(call_id)
        self._unknown.pop(call_id, None)

    # -- what the person decides

    def add_card(self, event: Event) -> None:
        """Take a card."""
        payload = event["payload"]
        phrase = PHRASE.search(payload["prompt"])
        card = Card(
            payload["approvalId"],
            payload["callId"],
            payload["name"],
            payload["arguments"],
            payload["argumentsDigest"],
            payload["risk"],
            payload["scopes"],
            phrase["phrase"] if phrase else "",
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

    def add_prompt(self, text: str) -> None:
        """Take a prompt, if a text is one."""
        prompt_match = PROMPT.search(text)
        if prompt_match is None:
            return
        phrase = PHRASE.search(text)
        arguments = {} if prompt_match["x"] is None else {"x": int(prompt_match["x"])}
        words = prompt_match["name"].split()  # "move device" or "the tool device look"
        home = next(word for word in words if word in ("device", "local"))
        name = f"{home}.{next(word for word in words if word != home)}"
        self.prompt = Prompt(name, arguments, phrase["phrase"] if phrase else "", text)
        self.tally["prompt"] += 1

    @contextmanager
    def taking(
        self, event: client.ClientEvent | None, consents_before: Sequence[Consent], meaning: Meaning
    ) -> Iterator[None]:
        """Let an event's consents count while the session takes it, and no longer than words may wait.

        ``consents_before`` are those at the time of sending; ``meaning`` gives those at the time of hearing.
        """
        if isinstance(event, client.ToolResultEvent | client.ToolCancelled):
            self.reported(event.call_id)
        consents = list(consents_before)
        if isinstance(event, client.ApprovalResponse):
            first = {item.approval_id: item for item in reversed(event.all())}  # of a frame's about one card
            consents += [item for item in map(self._weigh, first.values()) if item is not None]
        consents = [item for item in consents if not self._has_changed(item)]
        self._consents += consents
        self._meanings.append(meaning)
        try:
            yield
        finally:
            self._meanings.remove(meaning)
            # Words count a little later, when it is sure that no interruption overtook them.
            wait = HEARD_S if isinstance(event, client.TranscriptFinal) else 0.0
            asyncio.get_running_loop().call_later(wait, self._forget, consents)

    def _forget(self, consents: Sequence[Consent]) -> None:
        self._consents = [item for item in self._consents if item not in consents]

    def _weigh(self, decision: client.Decision) -> Consent | None:
        """Give the consent of a decision: the first good one about a card settles it."""
        card = self.cards.get(decision.approval_id)
        if card is None or card.settled or decision.arguments_digest != card.digest:
            return None
        arguments: Arguments | None = card.arguments
        if decision.decision == "edit":
            arguments = normal(json.dumps(decision.edited_arguments))
        if arguments is None:
            return None
        card.settled = decision.decision
        if decision.decision == "deny":
            return None
        scope = decision.scope if decision.decision == "allow" and decision.scope in card.scopes else "once"
        return Consent(card.name, arguments, scope, card.call_id)

    # -- what runs

    def _released(self, call_id: str) -> None:
        """Find the person's yes to a call whose question is decided."""
        wish = self.wishes[call_id]
        if wish.released or wish.results:
            self.wrong(f"released when it was over: {call_id} {wish}")
        active = [
            *self._consents,
            *(item for meaning in self._meanings for item in meaning() if not self._has_changed(item)),
        ]
        active.sort(key=lambda item: item.scope == "once")  # of two such words either may have counted
        by_voice = (None, wish.name, wish.arguments)
        words = [c for c in active if c.call_id == call_id or (c.call_id, c.name, c.arguments) == by_voice]
        if wish.arguments is not None and self._is_covered(wish):
            wish.released.append(wish.arguments)  # by a lasting grant of a moment ago
        wish.released += [item.arguments for item in words]
        if words:
            self._use(words[0], wish)
        if not wish.released:
            self.wrong(f"released undecided: {call_id} {wish}; decided: {self._consents}")
            wish.released.append(wish.arguments or {})

    def _use(self, consent: Consent, wish: Wish) -> None:
        self._consents = [item for item in self._consents if item is not consent]
        by_card = "released by words to a card" if consent.by_voice else "released by card"
        self.tally["released by voice" if consent.call_id is None else by_card] += 1
        if consent.scope != "once":
            kinds = self._candidates(wish.name, wish.versions)
            exact = any(kind.effect == "irreversible" for kind in kinds)
            self._grants.append((wish.name, wish.versions, wish.arguments if exact else None))

    def _is_covered(self, wish: Wish) -> bool:
        """Whether a grant lets a call run, which strangers' words and a doubt about another one forbid."""
        kinds = self._candidates(wish.name, wish.versions)
        changes = all(kind.effect != "read" for kind in kinds)
        doubt = changes and (wish.tainted or wish.repeats_unknown)
        return not doubt and any(self._granted(kind, wish) for kind in kinds)

    def ran(self, call_id: str, name: str, arguments: Arguments) -> None:
        """Note that a call is run, on the device or here."""
        wish = self.wishes.get(call_id)
        if wish is None or wish.name != name:
            self.wrong(f"{name} ran without a call: {call_id}")
            return
        wish.ran.append(arguments)
        self.tally["ran"] += 1
        reads = any(kind.effect == "read" for kind in self._candidates(name, wish.versions))
        if len(wish.ran) > 1 and not (reads and self.relaunched):
            self.wrong(f"ran twice: {call_id} {wish}")
        if arguments != wish.arguments if not wish.released else arguments not in wish.released:
            self.wrong(f"ran with other arguments: {call_id} {wish}")
        if not wish.released:
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
        return any(
            name == kind.name
            and (arguments is None or arguments == wish.arguments)
            and (name in self.local or kind.version in versions)
            for name, versions, arguments in self._grants
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
            was_not_run = "Nothing was run" in (outcome["error_message"] or "")
            if was_not_run and wish.ran:
                self.wrong(f"it ran, and the model was told that nothing was run: {call_id} {wish}")
            if outcome["success"] and not wish.ran:
                self.wrong(f"it did not run, and the model was told that it had: {call_id} {wish}")
        for card in self.cards.values():
            wish = self.wishes[card.call_id]
            agrees = {"allowed": ("allow",), "edited": ("edit",)}.get(card.outcome)
            if agrees is None and card.outcome and wish.ran:
                self.wrong(f"{card.outcome}, and it ran: {card} {wish}")
            if card.outcome == "edited" and card.settled != "edit":
                self.wrong(f"edited without a person: {card}")
        self.faults += [f"left: {question}" for question in self.questions]


def now() -> float:
    return asyncio.get_running_loop().time()
