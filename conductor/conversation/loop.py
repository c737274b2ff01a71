"""The loop of a session: it does the next step of the conversation, commits its records, and asks again.

It remembers no place in a turn. After a takeover it does the same with the same state.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from conductor.conversation import approvals
from conductor.conversation.receive import finish, lost
from conductor.conversation.records import (
    BridgeSpoken,
    QuestionsAsked,
    Record,
    ReplyLogged,
    TurnEnded,
)
from conductor.conversation.state import Call, Question
from conductor.conversation.steps import (
    AskModel,
    AskPerson,
    AwaitResults,
    PrepareRequest,
    RunCalls,
    StartTurn,
    Step,
    next_step,
)
from conductor.events.envelope import IdGenerator
from conductor.messages import AssistantMessage
from conductor.tools.base import PersonQuestion, ToolOutcome
from conductor.tools.executor import interrupted_outcome
from conductor.tools.validation import Valid, validate

if TYPE_CHECKING:
    from conductor.conversation.session import Session

new_turn_id = IdGenerator("turn")


class Loop:
    """Runs while a turn runs or waits; an idle session has no task."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._task: asyncio.Task[None] | None = None
        self._work: asyncio.Task[None] | None = None
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    @property
    def busy(self) -> bool:
        """Whether a turn runs, or is about to."""
        return self._task is not None

    def wake(self) -> None:
        """Look at the state again: it has changed."""
        if self._task is not None:
            self._changed.set()
        elif not self._session.is_closed and self._next() != AwaitResults():
            self._task = self._session.spawn(self._run())

    def stop(self) -> None:
        """Stop the work for a turn that has ended."""
        if self._work is not None and self._work is not asyncio.current_task():
            self._work.cancel()
        for task in self._calls.values():
            if task is not asyncio.current_task():
                task.cancel()
        self._session.model.stop()

    async def finished(self) -> None:
        """Wait until nothing runs."""
        while self._task is not None:
            await asyncio.wait([self._task])

    @property
    def waits_for_device(self) -> bool:
        """Whether only the app's answers are missing."""
        calls = [call for call in self._session.state.calls if call.is_open]
        return bool(calls) and all(call.is_device and call.started_at for call in calls)

    def _next(self) -> Step:
        session = self._session
        return next_step(session.state, session.live, session.rules)

    async def _run(self) -> None:
        session = self._session
        try:
            while not session.is_closed:
                self._changed.clear()
                step = self._next()
                if step == AwaitResults():
                    return
                await self._do(step)
        except Exception as error:
            session.fail(error)
            await asyncio.sleep(session.rules.limits.failed_turn_retry)
        finally:
            self._task = None
            session.after_turn()

    async def _do(self, step: Step) -> None:
        session = self._session
        match step:
            case StartTurn():
                await session.start_turn(step, new_turn_id())
            case AskModel():
                await self._cancellable(session.model.ask(step))
            case PrepareRequest():
                await self._cancellable(self._prepare_request(step))
            case AskPerson():
                await self._cancellable(self._ask_person(step))
            case RunCalls():
                for call in step.calls:
                    session.live.running_calls.add(call.id)
                    self._calls[call.id] = session.spawn(self._run_call(call))
            case AwaitResults():
                await self._await_results(step)
            case _:
                await session.insist(self._records, gives_up=True)

    def _records(self) -> list[Record]:
        step = self._next()
        return step if isinstance(step, list) else []

    async def _cancellable(self, work: Any) -> None:
        self._work = self._session.spawn(work)
        try:
            await asyncio.wait([self._work])
            if not self._work.cancelled() and (error := self._work.exception()) is not None:
                raise error
        finally:
            self._work.cancel()
            self._work = None

    async def _await_results(self, step: AwaitResults) -> None:
        """Wait for the first result, another change, or the moment for a bridging phrase."""
        session = self._session
        changed = asyncio.ensure_future(self._changed.wait())
        waits = {session.pending.expect(call_id) for call_id in step.calls}
        try:
            done, _ = await asyncio.wait(
                {changed, *waits},
                timeout=session.bridge_wait_s(),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            changed.cancel()
        if not done:
            await session.insist(self._bridge)

    def _bridge(self) -> list[Record]:
        session = self._session
        if session.bridge_wait_s() != 0.0:
            return []
        phrase = session.tools.spoken(random.choice(session.services.bridge_phrases))
        return [BridgeSpoken(phrase)] if phrase else []

    # -- a program's call

    async def _prepare_request(self, step: PrepareRequest) -> None:
        session = self._session
        call = session.request_call(step.turn_id)
        if call is None:
            await session.insist(lambda: self._end_request(step))
            return
        prepared = await session.tools.prepare(session.live, [call], whole=True)
        message = AssistantMessage("", (call,))
        await session.insist(lambda: [ReplyLogged(message, prepared)] if self._next() == step else [])

    def _end_request(self, step: PrepareRequest) -> list[Record]:
        return [TurnEnded("answered")] if self._next() == step else []

    # -- questions

    async def _ask_person(self, step: AskPerson) -> None:
        session, state = self._session, self._session.state
        calls = [call for call in state.calls if call.id in step.calls]
        questions = await session.tools.questions(session.live, calls)

        def decision() -> list[Record]:
            if self._next() != step:
                return []
            asked = {question.call_id for question in questions}
            gone = [call for call in calls if call.id not in asked and call.is_open]
            records: list[Record] = [
                lost(
                    call,
                    session.live,
                    session.rules,
                    interrupted_outcome(call.effect, sent=False, reason="connection_lost"),
                    starts_turn=False,
                )
                for call in gone
            ]
            return [*records, *(approvals.ask(state, questions) if questions else [])]

        await session.insist(decision, gives_up=True)

    async def _fill_in(self, call: Call, asked: PersonQuestion) -> Mapping[str, Any] | None:
        """Ask the person on behalf of a running tool, by a card with a form."""
        session = self._session
        if "approval" not in session.state.profile.capabilities:
            return None  # text by outsiders is never spoken
        question = session.tools.form(session.live, call, asked)
        answer = session.pending.expect(question.id)

        def decision() -> list[Record]:
            if session.state.open_call(call.id) is None:
                return []
            question.card = True
            return [QuestionsAsked((question,))]

        await session.insist(decision)
        if question.id not in session.state.questions and not answer.done():
            session.pending.forget(question.id)
            return None
        arguments = await answer
        return None if arguments is None else self._checked(question, arguments)

    def _checked(self, question: Question, arguments: str) -> Mapping[str, Any] | None:
        spec = self._session.tools.spec_of(question)
        checked = validate(spec, arguments) if spec is not None else None
        return checked.arguments if isinstance(checked, Valid) else None

    # -- the server's tools

    async def _run_call(self, call: Call) -> None:
        session, live = self._session, self._session.live
        try:
            outcome = await self._outcome(call)

            def decision() -> list[Record]:
                current = session.state.open_call(call.id)
                if current is None:
                    return []
                if outcome.error_type == "unknown":
                    return [lost(current, live, session.rules, outcome, starts_turn=False)]
                return [finish(current, live, outcome)]

            await session.insist(decision)  # until it is recorded it counts as running
        finally:
            live.running_calls.discard(call.id)
            self._calls.pop(call.id, None)
            self.wake()

    async def _outcome(self, call: Call) -> ToolOutcome:
        session = self._session
        ready = session.tools.ready(call)
        if ready is None:
            return interrupted_outcome(call.effect, sent=call.consent == "given", reason="connection_lost")
        context = replace(session.tools.context(call.id), ask=partial(self._fill_in, call))
        return await session.tools.executor.run(ready, context)
