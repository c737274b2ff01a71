"""A session that goes on in another process, at whatever step its own died: nothing lost or doubled."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from conductor.conversation.services import Services
from conductor.conversation.session import Session
from conductor.events import client
from conductor.messages import AssistantMessage, ToolCall, ToolResult, UserMessage
from conductor.models.base import ModelRequest, TextDelta
from conductor.models.scripted import Script
from conductor.tools.approvals import Approval
from tests.conversation.helpers import (
    SPOKEN,
    App,
    LocalTools,
    SlowStore,
    at_every_step,
    call,
    faults,
    later,
    loose_ends,
    make_services,
    open_session,
    run,
    shape_of,
    steps,
    tool,
)


def three_rounds(request: ModelRequest) -> Script:
    """Look and do at the device beside a sum here, then write here, then answer."""
    since = max(n for n, one in enumerate(request.messages) if isinstance(one, UserMessage))
    rounds = sum(isinstance(one, AssistantMessage) for one in request.messages[since:])
    if rounds == 0:
        return [
            TextDelta("I look."),
            call("device.look", '{"x":1}'),
            call("device.do", '{"x":2}'),
            call("local.sum", '{"x":3}'),
        ]
    if rounds == 1:
        return [call("local.write", '{"x":4}')]
    return [TextDelta("All "), TextDelta("done.")]


class Phone:
    """An app with its device, which outlives sessions; with ``resume`` it says what it has done."""

    def __init__(
        self, services: Services, store: SlowStore, *, resume: bool, capabilities: Sequence[str] = ()
    ) -> None:
        self.services = services
        self.ran: Counter[str] = Counter()
        self.done: dict[str, str] = {}
        self.resume = resume
        self.capabilities = [*capabilities, *(["resume"] if resume else [])]
        self.app = App(self._answer, store)

    def _answer(self, name: str, call_id: str) -> str | None:
        if not name.startswith("device."):
            return SPOKEN
        if self.resume and call_id in self.done:
            return None
        self.ran[call_id] += 1
        self.done[call_id] = f"{name} is done"
        return self.done[call_id]

    async def connect(self) -> Session:
        """Claim the session anew, as another process does, and start it."""
        session = await open_session(self.services)
        line = self.app.line
        if self.resume and line is not None:
            last = next((e["id"] for e in reversed(self.app.log) if shape_of(e) not in _UNCOUNTED), None)
            done = [client.ResumeDone(call_id, result) for call_id, result in self.done.items()]
            start = client.SessionStart(
                capabilities=self.capabilities, resume=client.Resume(last_event_id=last, done=done)
            )
            known = await session.learn(start)
            assert known is not None
            for call_id in known.drop:
                self.done.pop(call_id)
        self.app.capabilities = self.capabilities
        self.app.connect(session, resumed=line is not None)
        return session

    def writes(self) -> list[str]:
        return [e["payload"]["callId"] for e in self.app.log if shape_of(e) == "device.do"]


_UNCOUNTED = ("assistant.speech.partial", "session.ping", "event.ack")


def die(session: Session, app: App) -> None:
    """End a session as the death of its process does: nothing more is recorded, sent or waited for."""
    assert app.line is not None
    app.line.hang_up()
    session._outbox.close()
    session._hearing.close()
    session._questions.close()
    for task in list(session._parts.tasks._tasks):
        task.cancel()


async def at_rest(session: Session) -> None:
    """Wait until no turn runs and nothing is owed."""
    for _ in range(6_000):
        if not session.busy and not loose_ends(session, calls=False):
            return
        await later(0.5)
    raise AssertionError(f"busy: {session.busy}, {loose_ends(session)}")


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("delay", [0, 1, 3])
def test_a_turn_goes_on_in_another_process_at_whatever_step_its_own_dies(delay: int, resume: bool) -> None:
    async def scenario(after: int) -> bool:
        store = SlowStore(lambda: delay, lambda: delay)
        local = LocalTools()
        local.go.set()
        services = make_services(three_rounds, store=store, toolsets=[local])
        phone = Phone(services, store, resume=resume)
        session = await phone.connect()
        phone.app.say("go", "words-1")
        await steps(after)
        over = "state idle" in phone.app.shapes() and not loose_ends(session)
        die(session, phone.app)
        await steps(3)
        session = await phone.connect()
        if "append user" not in phone.app.shapes():
            phone.app.say("go", "words-1")  # nobody can know whether it arrived: it is said once more
        await at_rest(session)
        await check(session, phone, local)
        await session.close()
        await phone.app.close()
        return over

    at_every_step(scenario)


async def check(session: Session, phone: Phone, local: LocalTools) -> None:
    """Check that the words were answered once, and that nothing that counts was run twice."""
    app = phone.app
    assert faults(session.messages) == []
    assert [one.text for one in session.messages if isinstance(one, UserMessage)] == ["go"]
    assert app.shapes().count("append user") == 1
    assert app.finals().count("All done.") == 1, app.finals()
    assert app.states()[-1] == "idle"
    assert all(number == 1 for number in phone.ran.values()), phone.ran
    results = {
        one.call_id: json.loads(one.content) for one in session.messages if isinstance(one, ToolResult)
    }
    (write,) = [results[c.call_id] for c in calls(session) if c.name == "device.do"]
    if phone.resume:
        assert write["data"] == "device.do is done"
        assert len(phone.writes()) == 1
    else:
        assert write["data"] == "device.do is done" or write["error_type"] == "unknown"
    assert local.ran.count("local.write") <= 1
    assert not {"turn", "waiting", "approvals"} & session._ledger.state.fields.keys()


def calls(session: Session) -> list[ToolCall]:
    return [one for m in session.messages if isinstance(m, AssistantMessage) for one in m.calls]


def test_words_that_waited_are_answered_by_the_next_process() -> None:
    async def scenario() -> None:
        store, hold = SlowStore(), asyncio.Event()

        def reply(request: ModelRequest) -> Script:
            text = [one.text for one in request.messages if isinstance(one, UserMessage)][-1]
            return [hold, TextDelta(f"To {text}.")] if text == "one" else [TextDelta(f"To {text}.")]

        phone = Phone(make_services(reply, store=store, mode="queue"), store, resume=False)
        session = await phone.connect()
        phone.app.say("one", "words-1")
        await phone.app.until("append user")
        phone.app.say("two", "words-2")
        await steps(20)
        die(session, phone.app)
        hold.set()
        session = await phone.connect()
        assert phone.app.line is not None
        phone.app.say("two", "words-2")  # said again: it is known
        await at_rest(session)
        assert phone.app.finals() == ["To one.", "To two."]
        await session.close()
        await phone.app.close()

    run(scenario())


def test_a_model_that_brings_its_process_down_twice_is_not_begun_a_third_time() -> None:
    async def scenario() -> None:
        store, begun = SlowStore(), 0

        def reply(request: ModelRequest) -> Script:
            nonlocal begun
            begun += 1
            return [asyncio.Event()]

        phone = Phone(make_services(reply, store=store), store, resume=False)
        session = await phone.connect()
        phone.app.say("go")
        await phone.app.until("append user")
        for expected in (1, 2):
            await steps(20)
            assert begun == expected
            die(session, phone.app)
            session = await phone.connect()
        await at_rest(session)
        assert begun == 2
        assert phone.app.errors() == ["model_provider_failed"]
        assert phone.app.states()[-1] == "idle"
        await session.close()
        await phone.app.close()

    run(scenario())


def test_a_late_result_and_what_may_have_happened_are_known_to_the_next_process() -> None:
    async def scenario() -> None:
        store = SlowStore()

        def reply(request: ModelRequest) -> Script:
            if isinstance(request.messages[-1], ToolResult):
                return [TextDelta("I do not know.")]
            if isinstance(request.messages[-1], UserMessage):
                return [call("device.do", '{"x":1}')]
            return [TextDelta("It was done.")]

        services = make_services(reply, store=store)
        app = App(lambda name, call_id: None if name == "device.do" else SPOKEN, store)
        session = await open_session(services)
        app.connect(session)
        app.say("go")
        done = await app.until("device.do")
        await app.until("assistant.speech.final")
        await at_rest(session)
        die(session, app)
        session = await open_session(services)
        app.connect(session, resumed=True)
        unknown = session._device.unknowns
        assert unknown.kept()
        app.result(done["payload"]["callId"], "heron")
        await at_rest(session)
        assert app.finals() == ["I do not know.", "It was done."]
        assert not unknown.kept()
        await session.close()
        await app.close()

    run(scenario())


def test_an_interruption_after_the_takeover_cuts_what_was_not_heard() -> None:
    async def scenario() -> None:
        store = SlowStore()
        services = make_services([[TextDelta("One two three four.")]], store=store)
        app = App(lambda name, call_id: None if name == "tts.speak" else SPOKEN, store)
        session = await open_session(services)
        app.connect(session)
        app.say("go")
        await app.until("tts.speak")
        await steps(30)
        die(session, app)
        session = await open_session(services)
        app.connect(session, resumed=True)
        app.interrupt(spoken_text="One two")
        await steps(50)
        (said,) = [one.text for one in session.messages if isinstance(one, AssistantMessage)]
        assert said.startswith("One two [")
        await session.close()
        await app.close()

    run(scenario())


# -- questions


def move(request: ModelRequest) -> Script:
    """Ask for one call that a person must allow, and then say how it went."""
    last = request.messages[-1]
    if not isinstance(last, ToolResult):
        return [call("device.move", '{"x":1}')]
    return [TextDelta("Moved." if not last.is_error else "Not moved.")]


@pytest.mark.parametrize("card", [True, False])
@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("delay", [0, 2])
def test_a_question_stands_in_the_next_process_and_its_answer_counts(
    delay: int, resume: bool, card: bool
) -> None:
    async def scenario(after: int) -> bool:
        store = SlowStore(lambda: delay, lambda: delay)
        services = replace(make_services(move, store=store), catalog=[tool("device.move", risk="medium")])
        phone = Phone(services, store, resume=resume, capabilities=["approval"] if card else [])
        session = await phone.connect()
        phone.app.say("go", "words-1")
        await steps(after)
        over = session._questions.open and session._parts.tasks._tasks == {session._turns._runner}
        over = over and not session._outbox.outstanding
        die(session, phone.app)
        session = await phone.connect()
        if "append user" not in phone.app.shapes():
            phone.app.say("go", "words-1")
        if card:
            request = (await phone.app.until("approval.request"))["payload"]
            assert phone.app.line is not None
            phone.app.line.say(
                client.ApprovalResponse(request["approvalId"], request["argumentsDigest"], "allow")
            )
        else:
            await later(1)
            while not session._questions.standing or not prompt(session).presented:
                await later(1)
            phone.app.say("yes")
        await at_rest(session)
        assert faults(session.messages) == []
        assert phone.app.finals() == ["Moved."], (phone.app.shapes(), session.messages)
        assert len(phone.ran) == 1 and set(phone.ran.values()) == {1}
        await session.close()
        await phone.app.close()
        return over

    at_every_step(scenario)


def prompt(session: Session) -> Approval:
    focus = session._questions.focus
    assert focus is not None
    return focus.approval


@pytest.mark.parametrize("delay", [0, 2])
def test_an_allowed_call_runs_once_at_whatever_step_the_process_dies(delay: int) -> None:
    async def scenario(after: int) -> bool:
        store = SlowStore(lambda: delay, lambda: delay)
        services = replace(make_services(move, store=store), catalog=[tool("device.move", risk="medium")])
        phone = Phone(services, store, resume=True, capabilities=["approval"])
        session = await phone.connect()
        phone.app.say("go")
        request = (await phone.app.until("approval.request"))["payload"]
        answer = client.ApprovalResponse(request["approvalId"], request["argumentsDigest"], "allow")
        await at_calm(session)
        assert phone.app.line is not None
        phone.app.line.say(answer)
        await steps(after)
        over = "state idle" in phone.app.shapes() and not loose_ends(session)
        die(session, phone.app)
        session = await phone.connect()
        phone.app.line.say(answer)  # once more, since it is not known to have arrived
        await at_rest(session)
        assert phone.app.finals() == ["Moved."]
        assert len(phone.ran) == 1 and set(phone.ran.values()) == {1}
        await session.close()
        await phone.app.close()
        return over

    at_every_step(scenario)


async def at_calm(session: Session) -> None:
    """Wait until everything that was begun is recorded."""
    for _ in range(1_000):
        await steps(5)
        if session._parts.tasks._tasks == {session._turns._runner}:
            return
    raise AssertionError("it does not come to rest")


def test_a_tool_that_was_defined_anew_meanwhile_is_not_run_by_an_old_answer() -> None:
    async def scenario() -> None:
        store = SlowStore()
        services = replace(make_services(move, store=store), catalog=[tool("device.move", risk="medium")])
        phone = Phone(services, store, resume=True, capabilities=["approval"])
        session = await phone.connect()
        phone.app.say("go")
        await phone.app.until("approval.request")
        await at_calm(session)
        die(session, phone.app)
        phone.services = replace(services, catalog=[tool("device.move", risk="medium", timeout_s=1.0)])
        session = await phone.connect()
        await at_rest(session)
        assert phone.app.finals() == ["Not moved."]
        assert not phone.ran
        await session.close()
        await phone.app.close()

    run(scenario())
