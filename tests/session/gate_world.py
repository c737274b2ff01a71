"""A session, a model, a device and a person who all do as they like, from one seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from conductor.errors import ModelError
from conductor.events import client
from conductor.messages import AssistantMessage, Note, UserMessage
from conductor.models.base import ModelRequest, TextDelta
from conductor.session.fields import SubjectRecords
from conductor.session.services import Services
from conductor.session.session import Session
from conductor.stores.memory import MemoryStore
from conductor.tools.declarations import parse_declarations
from tests.models import Script
from tests.session.gate_book import Book, Card, Consent, Kind, digest_of, now, random_kind
from tests.session.gate_phone import LocalTools, Phone, Recorded, Wire
from tests.session.helpers import (
    call,
    faults,
    later,
    loose_ends,
    make_services,
    open_session,
    randomly_slow,
    steps,
)

CARDS = ["tools", "approval", "cancel", "lease", "late", "async", "activity"]
VOICE = ["tools", "cancel", "lease", "late", "async"]
ARGUMENTS = ("{}", '{"x":1}', '{"x":1}', '{"x":2}', '{"x":"3"}', '{"x":null}', '{"x":"many"}', "{")
YES = ("yes", "yes please", "go ahead", "yes, just this once")
YES_FOR_LONG = {"yes, for this session": "session"}
NO = ("no", "no thanks", "no, leave it")
UNCLEAR = ("okay", "um", "yes but not now", "I am not sure", "yes, always allow that")
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
        self.wishes: list[tuple[str, str]] = []
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
        services = make_services(
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
        subject_records = SubjectRecords(lasting) if rng.random() < 0.6 else None
        return replace(services, catalog=catalog, subject_records=subject_records)

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
            names = [item.name for item in request.tools] + ["nobody.home"]
            for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
                repeats = self.wishes and rng.random() < 0.4
                wish = rng.choice(self.wishes[-4:]) if repeats else (rng.choice(names), rng.choice(ARGUMENTS))
                self.wishes.append(wish)
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
                    await self.settle()
            await self.settle()
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
        standing_questions = self.book.standing if "approval" in self.wire.capabilities else self.book.prompt
        if standing_questions and self.session.busy and rng.random() < 0.4:
            await self.answer()
            await self.pause()
            return
        if rng.random() < (0.1 if self.book.questions else 0.01):
            await self.listen()
            return
        actions: dict[str, tuple[int, Callable[[], None]]] = {
            "say": (6, self.request),
            "interrupt": (1, self.interrupt),
            "agent": (
                1,
                lambda: self.phone.say(
                    client.AgentCompleted(agent_id=f"a-{rng.randint(0, 9)}", status="FINISHED")
                ),
            ),
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

    async def answer(self) -> None:
        """Answer a question; sometimes the line is lost, or another one opens, just then."""
        repeats = self.rng.random() < 0.15
        standing_questions = [item.name for item in self.book.standing] or [
            item.name for item in (self.book.prompt,) if item
        ]
        if standing_questions and self.rng.random() < 0.1:
            self.declare(standing_questions[0])
        for _ in range(1 + repeats):
            cards = self.book.standing
            if "approval" in self.wire.capabilities and cards and self.rng.random() < 0.75:
                self.tap(cards)
            else:
                self.speak()
            if repeats:
                await steps(self.rng.randint(0, 4))
                self.rng.choice((self.connect, self.hang_up))()
                self.connect()

    async def listen(self) -> None:
        """Do nothing for a while: by then a question that stands must have been put."""
        self.note("listen")
        wire, questions = self.wire, self.book.questions
        await later(70.0)
        if not questions or wire is not self.wire or wire.is_cut or wire.slow:
            return
        if [item.id for item in questions] != [item.id for item in self.book.questions]:
            return
        self.book.tally["listened to a question"] += 1
        if "approval" in wire.capabilities:
            if any(item.id not in self.book.cards for item in questions):
                self.book.wrong(f"not shown: {questions}")
            if self.phone.states[-1] != "idle":
                self.book.wrong(f"the microphone is not open beside a card: {self.phone.states[-1]}")
            return
        prompt, focus = self.book.prompt, questions[0]
        if not self.phone.is_listening:
            return
        if prompt is None or (prompt.name, prompt.arguments) != (focus.tool, json.loads(focus.arguments)):
            self.book.wrong(f"not put: {focus}; the last prompt: {prompt}")
        if self.phone.states[-1] != "idle":
            self.book.wrong(f"the microphone is not open for an answer: {self.phone.states[-1]}")

    def note(self, event_name: str) -> None:
        self.trail.append(f"{now():.2f} {event_name}")
        self.book.tally[event_name.split(":")[0]] += 1

    async def pause(self) -> None:
        if self.rng.random() < 0.6:
            await steps(self.rng.randint(0, 12))
            return
        await later(self.rng.choices((0.01, 0.2, 1.0, 4.0, 40.0, 100.0, 650.0), (8, 8, 8, 6, 2, 1, 0.4))[0])

    def request(self) -> None:
        self.phone.say(client.TranscriptFinal(f"do number {len(self.trail)}"))

    def interrupt(self) -> None:
        self.phone.interrupted()
        fields: dict[str, Any] = self.rng.choice(({}, {"spoken_text": "al"}, {"played_ms": 100.0}))
        self.phone.say(client.OutputInterrupted(**fields))

    def declare(self, name: str = "") -> None:
        """Change a tool's definition, take the tool away, or bring it back."""
        rng = self.rng
        name = name if name in self.book.newest else rng.choice(sorted(self.book.newest))
        if name in self.declared and rng.random() < 0.2:
            del self.declared[name]
        else:
            old = self.book.kinds[self.book.newest[name]]
            self.declared[name] = self.book.define(old if rng.random() < 0.6 else random_kind(rng, name))
        self.phone.say(client.SessionUpdate([kind.declaration for kind in self.declared.values()]))

    def hang_up(self) -> None:
        self.wire.cut()
        if self.rng.random() < 0.3:
            self.phone.relaunch()
        self.phone.spawn(self._come_back(self.wire))

    async def _come_back(self, previous: Wire) -> None:
        await later(self.rng.choice((0.0, 0.0, 1.0, 20.0, 700.0)))
        if self.phone.wire is previous:
            self.connect()

    # -- answers

    def tap(self, cards: Sequence[Card]) -> None:
        rng = self.rng
        sample = rng.sample(list(cards), rng.randint(1, len(cards)))
        decisions = [self.decision(card) for card in sample for _ in range(rng.choice((1, 1, 1, 2)))]
        self.note(f"tap: {[(d.approval_id, d.decision) for d in decisions]}")
        framed = len(decisions) > 1 and rng.random() < 0.7
        firsts = {item.approval_id: item for item in reversed(decisions)}  # the others of a frame are refused
        for item in firsts.values() if framed else decisions:
            card = next(card for card in sample if card.approval_id == item.approval_id)
            valid = item.arguments_digest == card.digest and item.edited_arguments != {"x": "many"}
            card.tapped = card.tapped or valid
        if framed:
            self.phone.say(client.ApprovalResponse(decisions=decisions))
            return
        for item in decisions:
            self.phone.say(
                client.ApprovalResponse(
                    approval_id=item.approval_id,
                    arguments_digest=item.arguments_digest,
                    decision=item.decision,
                    scope=item.scope,
                    edited_arguments=item.edited_arguments,
                    message=item.message,
                )
            )

    def decision(self, card: Card) -> client.Decision:
        rng = self.rng
        digest = card.digest if rng.random() < 0.85 else digest_of(card.name, {"x": 9})
        how: Any = rng.choices(("allow", "deny", "edit"), (6, 2, 2))[0]
        self.book.tally[f"decision {how}"] += 1
        if how == "edit":
            edited = rng.choice(({"x": 4}, {"x": 5}, {}, {"x": "many"}))
            return client.Decision(
                approval_id=card.approval_id,
                arguments_digest=digest,
                decision="edit",
                edited_arguments=edited,
            )
        scope: Any = rng.choices(("once", "session", "always"), (6, 1, 1))[0] if how == "allow" else "once"
        message = rng.choice((None, "as I said"))
        return client.Decision(
            approval_id=card.approval_id, arguments_digest=digest, decision=how, scope=scope, message=message
        )

    def tap_again(self) -> None:
        """Decide an old question again, and one that does not exist."""
        cards = list(self.book.cards.values())
        if cards and "approval" in self.wire.capabilities:
            self.tap([self.rng.choice(cards[-3:])])
            stranger = client.ApprovalResponse(
                approval_id="appr-nobody", arguments_digest="0" * 64, decision="allow"
            )
            self.phone.say(stranger)

    def speak(self) -> None:
        """Say something that may answer a question."""
        rng, prompt = self.rng, self.book.prompt
        choices = [*YES, *YES, *YES_FOR_LONG, *NO, *UNCLEAR, *OTHER]
        phrases = [prompt.phrase if prompt is not None else "", *(card.phrase for card in self.book.standing)]
        choices += [phrase for phrase in phrases if phrase for _ in range(8)]
        text = rng.choice(choices)
        self.note(f"speak: {text}")
        visible = frozenset(self.wire.visible_cards)  # cards that appear later are not meant
        self.phone.say(client.TranscriptFinal(text), lambda: self.meaning(text, visible))

    def meaning(self, text: str, visible: frozenset[str]) -> list[Consent]:
        """Give the calls that the person agrees to, by the cards they see and the prompt they heard."""
        scope = "once" if text in YES else YES_FOR_LONG.get(text)
        # The person does not know of a decision that was made while the line was lost.
        open_now = self.book.state.questions
        cards = [c for c in self.book.standing if c.approval_id in open_now and not c.tapped]
        standing_questions: list[tuple[str, dict[str, Any], str | None]] = []
        if len(cards) == 1 and cards[0].approval_id in visible:
            card = cards[0]
            if card.risk == "high":
                is_phrase = text == card.phrase
                return (
                    [Consent(card.name, card.arguments, "once", card.call_id, by_voice=True)]
                    if is_phrase
                    else []
                )
            standing_questions.append((card.name, card.arguments, card.call_id))
        prompt = self.book.prompt
        is_presented = prompt is not None and prompt.presented
        if prompt is not None and is_presented and prompt.phrase and text == prompt.phrase:
            return [Consent(prompt.name, prompt.arguments, "once")]
        if prompt is not None and is_presented and not prompt.phrase:
            standing_questions.append((prompt.name, prompt.arguments, None))
        return [
            Consent(name, arguments, scope or "once", call_id, by_voice=call_id is not None)
            for name, arguments, call_id in standing_questions
            if scope is not None
        ]

    # -- rest

    async def settle(self) -> None:
        """Let everything come to its end, and check that nothing is left."""
        self.note("rest")
        self.resting = True
        if self.wire.is_cut:
            self.connect()
        self.wire.slow = False
        self.wire.flush()
        for _ in range(3_000):
            if self.wire.is_cut:
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
        book.faults += faults(self.session.state.log)
        if self.session.state.questions:
            book.wrong("a question stands")
        if any(event.kind == "approval" for event in self.session.state.outbound.values()):
            book.wrong("a card that is over would be shown to the next line")
        book.check()
        self.check_answers(self.wire)
        self.resting = False
        assert not book.faults

    def check_answers(self, wire: Wire) -> None:
        """Every decision has one answer, and every card that the line has seen from its birth one end."""
        for approval_id in {*wire.decisions, *wire.answers, *wire.born}:
            decisions_sent, got = wire.decisions[approval_id], wire.answers[approval_id]
            card = self.book.cards.get(approval_id)
            if not decisions_sent <= got <= decisions_sent + 1:
                self.book.wrong(f"{decisions_sent} decisions and {got} answers: {card or approval_id}")
            ended_by_tap = card is not None and bool(card.settled)
            if approval_id in wire.born and got == decisions_sent and not ended_by_tap:
                self.book.wrong(f"no end of {card}")

    async def tap_what_is_over(self) -> None:
        """Decide every card once more: each decision is answered, and runs nothing."""
        self.phone.connect(self.session, CARDS, None)
        self.wire.slow = False
        self.wire.flush()
        for card in self.book.cards.values():
            self.phone.say(
                client.ApprovalResponse(
                    approval_id=card.approval_id, arguments_digest=card.digest, decision="allow"
                )
            )
        await self.wire.drained()
        for approval_id in self.book.cards:
            if self.wire.answers[approval_id] not in (1, 2):  # the replayed end of a card, and the answer
                self.book.wrong(f"{self.wire.answers[approval_id]} answers to a late tap")
        await self.settle()
