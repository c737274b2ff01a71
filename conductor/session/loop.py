"""The loop of a session: it does the next step of the conversation, commits its records, and asks again.

It remembers no place in a turn. After a takeover it does the same with the same state. It waits for the app's
results and for the person's answers by the Futures of its session.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from conductor.conversation import consent
from conductor.conversation import records as r
from conductor.conversation.state import Call
from conductor.conversation.steps import (
    AskModel,
    AskPerson,
    AwaitResults,
    PrepareRequest,
    RunCalls,
    Step,
    next_step,
)
from conductor.conversation.turns import goes_on_until, turn_started
from conductor.conversation.view import finish, finish_without_result
from conductor.images import take
from conductor.messages import AssistantMessage
from conductor.session import programs
from conductor.session.fields import Fields
from conductor.session.model import ModelSteps
from conductor.session.spoken import word_form, word_questions
from conductor.speech import for_the_ear
from conductor.tools.base import CallContext, PersonQuestion
from conductor.tools.outcomes import ToolOutcome, definition_changed, interrupted_outcome, with_images
from conductor.tools.validation import Valid, validate

if TYPE_CHECKING:  # its parts are below it
    from conductor.session.session import Session

log = structlog.get_logger(__name__)


class Loop:
    """Runs while a turn runs or waits; an idle session has no loop."""

    def __init__(self, session: Session, on_end: Callable[[], None]) -> None:
        self._session = session
        self._on_end = on_end
        self._model = ModelSteps(session)
        self._work: asyncio.Task[None] | None = None
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Look at the state again: it has changed."""
        self._changed.set()

    def forget_draft(self) -> None:
        """Drop the reply that the model is writing: it will not be recorded."""
        self._model.forget_draft()

    def stop(self) -> None:
        """Stop the work for a turn that has ended."""
        if self._work is not None and self._work is not asyncio.current_task():
            self._work.cancel()
        for task in self._calls.values():
            if task is not asyncio.current_task():
                task.cancel()
        self._model.stop()

    async def run(self) -> None:
        """Do the steps until nothing is to be done."""
        session = self._session
        try:
            while not session.is_closed:
                self._changed.clear()
                step = next_step(session.view)
                if step == AwaitResults():
                    return
                await self._do(step)
        except Exception as error:
            log.error("turns failed", session=session.key.session_id, exc_info=error)
            retry_s = session.limits.failed_turn_retry
            session.view.live.loop.notices_after = session.view.now() + round(retry_s * 1000)
            session.spawn(session.end_turn("failed", "internal_error"))
            await asyncio.sleep(retry_s)
        finally:
            self._on_end()

    async def _do(self, step: Step) -> None:
        session = self._session
        match step:
            case AskModel():
                self._model.begin(step)
                await self._cancellable(self._model.ask(step))
            case PrepareRequest():
                await self._cancellable(self._prepare_request(step))
            case AskPerson():
                await self._cancellable(self._ask_person(step))
            case RunCalls():
                for call in step.calls:
                    session.view.live.loop.calls.add(call.id)
                    self._calls[call.id] = session.spawn(self._run_call(call))
            case AwaitResults():
                await self._await_results(step)
            case _:
                await session.commits.insist(self._records, gives_up=True)

    def _records(self) -> list[r.Record]:
        step = next_step(self._session.view)
        return step if isinstance(step, list) else []

    async def _cancellable(self, work: Any) -> None:
        session = self._session
        self._work = session.spawn(work)
        try:
            while not (await asyncio.wait([self._work], timeout=self._bridge_wait_s()))[0]:
                await session.commits.insist(self._bridge)
            if not self._work.cancelled() and (error := self._work.exception()) is not None:
                raise error
        finally:
            self._work.cancel()
            self._work = None

    async def _await_results(self, step: AwaitResults) -> None:
        """Wait for the first result, another change, or the moment for a bridging phrase."""
        session = self._session
        changed = asyncio.ensure_future(self._changed.wait())
        waits = {self._session.expect(call_id) for call_id in step.calls}
        try:
            done, _ = await asyncio.wait(
                {changed, *waits},
                timeout=self._bridge_wait_s(),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            changed.cancel()
        if not done:
            await session.commits.insist(self._bridge)

    def _bridge_wait_s(self) -> float | None:
        """Return the seconds until a bridging phrase; None without one."""
        session, turn = self._session, self._session.state.turn
        if turn is None or not session.services.bridge_phrases or turn.bridged or turn.segments:
            return None
        calls = [call for call in turn.calls if call.is_open and call.started_at]
        asked_at = None if turn.calls else self._model.silent_since
        since = min((call.started_at for call in calls), default=asked_at)
        transport = session.outbox.transport
        if since is None or turn.cause == "request" or session.state.questions or transport is None:
            return None
        device = any(call.is_device for call in calls)
        has_spoken = any(speech.turn_id == turn.id for speech in session.state.speeches.values())
        if (device and not transport.segments) or has_spoken:
            return None  # the app would say it after the call
        due_ms = max(since + round(session.limits.bridge_after * 1000), goes_on_until(session.view))
        return max(0.0, (due_ms - session.view.now()) / 1000)

    def _bridge(self) -> list[r.Record]:
        session = self._session
        if self._bridge_wait_s() != 0.0:
            return []
        phrase = for_the_ear(random.choice(session.services.bridge_phrases))
        return [r.BridgeSpoken(phrase)] if phrase else []

    # -- a program's call

    async def _prepare_request(self, step: PrepareRequest) -> None:
        session, call = self._session, step.call
        try:
            prepared = await session.gate.prepare([call], is_whole=True, by_program=True)
        except Exception:
            programs.drop(session, call.call_id)  # it would be tried again and again
            raise

        def records() -> list[r.Record]:
            started = turn_started(session.view, "request", tool=call.name)
            return [
                started,
                r.ReplyLogged(
                    message=AssistantMessage(text="", calls=(call,), untrusted=True), calls=prepared
                ),
            ]

        await session.commits.take(step, records, gives_up=False)

    # -- questions

    async def _ask_person(self, step: AskPerson) -> None:
        session, state = self._session, self._session.state
        calls = [call for call in state.calls if call.id in step.calls]
        card = "approval" in state.profile.capabilities
        expires_at = session.view.now() + session.conduct.question_ms
        questions = await word_questions(
            session.gate,
            calls,
            expires_at,
            lang=session.state.turn.lang if session.state.turn else "",
            with_preview=card,
        )

        def records() -> list[r.Record]:
            call_ids = {question.call_id for question in questions}
            without_question = [call for call in calls if call.id not in call_ids and call.is_open]
            refused = [finish(session.view, call, definition_changed()) for call in without_question]
            return [*refused, *(consent.ask(state, questions) if questions else [])]

        await session.commits.take(step, records)

    async def _fill_in(self, call: Call, request: PersonQuestion) -> Mapping[str, Any] | None:
        """Ask the person on behalf of a running tool, by a card with a form."""
        session = self._session
        if "approval" not in session.state.profile.capabilities:
            return None  # text by outsiders is never spoken
        expires_at = session.view.now() + session.conduct.question_ms
        question = word_form(session.gate, call, request, expires_at)
        answer = session.expect(question.id)

        def decision() -> list[r.Record]:
            if session.state.open_call(call.id) is None:
                return []
            question.card = True
            return [r.QuestionsAsked((question,))]

        await session.commits.insist(decision)
        if question.id not in session.state.questions and not answer.done():
            del session.pending[question.id]
            return None
        arguments, spec = await answer, session.gate.spec_of(question)
        checked = validate(spec, arguments) if spec is not None and arguments is not None else None
        return checked.arguments if isinstance(checked, Valid) else None

    # -- the server's tools

    async def _run_call(self, call: Call) -> None:
        session = self._session
        try:
            outcome = await self._outcome(call)
            taken = take(outcome.pictures)
            try:
                outcome = with_images(outcome, taken)
                await session.commits.insist(partial(self._finished, call, outcome), taken=taken)
            except Exception:
                # It has run: without a result it would run again.
                log.exception("result not recorded", session=session.key.session_id, tool=call.name)
                unknown = interrupted_outcome(call.effect, was_sent=True, reason="interrupted")
                await session.commits.insist(partial(self._finished, call, unknown))
        finally:  # it runs until its result is recorded
            session.view.live.loop.calls.discard(call.id)
            self._calls.pop(call.id, None)
            self.wake()

    def _finished(self, call: Call, outcome: ToolOutcome) -> list[r.Record]:
        session = self._session
        current = session.state.open_call(call.id)
        if current is None:
            return []
        # A question of the tool ends with it.
        questions = [
            question.id for question in session.state.questions.values() if question.call_id == call.id
        ]
        records: list[r.Record] = [
            r.QuestionDecided(question_id=key, call_id=call.id, outcome="superseded") for key in questions
        ]
        if outcome.error_type == "unknown":
            result = finish_without_result(session.view, current, outcome, starts_turn=False)
        else:
            result = finish(session.view, current, outcome)
        return [*records, result]

    async def _outcome(self, call: Call) -> ToolOutcome:
        session = self._session
        ready = session.gate.ready(call)
        if ready is not None and call.fingerprint not in ("", ready.spec.fingerprint):
            return definition_changed()
        if ready is None:
            return interrupted_outcome(
                call.effect, was_sent=call.consent == "given", reason="connection_lost"
            )
        context = context_of(session, call.id, partial(self._fill_in, call))
        return await session.gate.executor.run(ready, context)


def context_of(
    session: Session, call_id: str, ask: Callable[[PersonQuestion], Awaitable[Mapping[str, Any] | None]]
) -> CallContext:
    """Make the context of a call; ``ask`` asks the person on its behalf."""
    profile = session.state.profile
    return CallContext(
        session_id=session.key.session_id,
        call_id=call_id,
        time_zone=profile.time_zone,
        locale=profile.locale,
        fields=Fields(session.state, session.commits.decide),
        person=session.person_fields,
        subject=session.key.subject,
        tainted=session.gate.is_tainted,
        ask=ask,
    )
