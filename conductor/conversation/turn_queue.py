"""Runs a session's turns one at a time: transcripts first, then notices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from conductor.conversation.background_requests import HistorySummarizer
from conductor.conversation.context import ENDED, TurnContext
from conductor.conversation.history import cut_point
from conductor.conversation.pending_inputs import (
    MAX_NOTICES,
    MAX_REQUESTS,
    MAX_TRANSCRIPTS,
    PendingInputs,
    ToolRequest,
)
from conductor.conversation.phrases import CUT_OFF, MESSAGES, Failure
from conductor.conversation.recovery import recover
from conductor.conversation.reminders import Reminders
from conductor.conversation.services import Services
from conductor.conversation.snapshot import DECIDED, LATE, TURN, WAITING, Transcript, TurnSnapshot, decode
from conductor.conversation.speech import FloorControl, Speech
from conductor.conversation.tasks import Tasks
from conductor.conversation.turn import Turn
from conductor.errors import Duplicate, ErrorCode, Fenced, StoreError
from conductor.events.envelope import IdGenerator, new_call_id
from conductor.events.server import ErrorEvent, ServerEvent, SpeechFinal, set_state
from conductor.messages import AssistantMessage, Note, ToolCall, ToolResult, UserMessage
from conductor.rate_limit import SharedRate
from conductor.stores.base import AppendLog, Operation, RememberInbound, TrimLog
from conductor.tools.base import SessionFields, failed, truncate

log = structlog.get_logger(__name__)

_new_turn_id = IdGenerator("turn")


class TurnQueue:
    """Runs the turns of one session.

    A turn about notices starts when the ``floor`` is free, and counts against the session's ``bucket``.
    ``person`` holds the person's reminders.
    """

    def __init__(
        self,
        services: Services,
        context: TurnContext,
        tasks: Tasks,
        floor: FloorControl,
        bucket: SharedRate,
        person: SessionFields,
    ) -> None:
        self._limits = services.limits
        self._context = context
        self.waiting = PendingInputs(MAX_TRANSCRIPTS, MAX_NOTICES)
        self._speeches = context.speeches
        self._cancels = services.interruption_mode == "cancel"
        self._failures = services.failures
        self._committer = context.committer
        self._outbox = context.outbox
        self._device = context.device
        self._tasks = tasks
        self._floor = floor
        self._bucket = bucket
        self._summarizer: HistorySummarizer | None = None
        if services.summarize_history:
            self._summarizer = HistorySummarizer(context, tasks, self._limits.max_turns)
        self._turn: Turn | None = None
        self.draining = False
        self._runner: asyncio.Task[None] | None = None
        self._beginning: str | None = None
        self._started: asyncio.Event | None = None
        self._refused = False
        self._closed = False
        self._requested: ToolRequest | None = None
        self._no_notices_until = 0.0
        self._retry: asyncio.TimerHandle | None = None
        self._committer.register(WAITING, self.waiting.dump)
        self._reminders = Reminders(
            person, self._committer, self.waiting, self._outbox, tasks, self.deliver_notices
        )

    def restore(self) -> None:
        """Resume the turn of another process, and restore its queues."""
        state = self._committer.state
        self.waiting.restore(state.fields.get(WAITING), state.seen)
        self._context.approvals.closed.restore(state.fields.get(DECIDED))
        snapshot = decode(state.fields.get(TURN), TurnSnapshot)
        if snapshot is None:
            if self.waiting.transcripts:
                self._runner = self._tasks.spawn(self._run_turns(None))
            return
        recovered = recover(self._context, snapshot)
        turn = Turn(self._context, snapshot.turn_id, snapshot.cause, self.follow, recovered)
        self._set_turn(turn)
        self._runner = self._tasks.spawn(self._run_turns(turn))

    @property
    def busy(self) -> bool:
        return self._runner is not None or self._beginning is not None

    @property
    def waits_for_device(self) -> bool:
        return self._turn is not None and self._turn.waits_for_device

    async def answer(self, text: str, event_id: str) -> bool:
        """Answer a transcript, now or after the running turn; False if the queue is full."""
        if not (self.busy or self.waiting.transcripts or self._suspended):
            self._beginning = event_id
            self._started = started = asyncio.Event()
            try:
                await self._withdraw_speeches()
                turn = await self._begin("transcript", UserMessage(text), event_id)
            finally:
                self._beginning = self._started = None
                started.set()
            self._runner = self._tasks.spawn(self._run_turns(turn))
            return True
        if not self.waiting.add_transcript(Transcript(text, event_id)):
            self._refused = bool(self._failures.get("rate_limited"))
            return False
        running = self._turn
        if self._committer.durable:
            try:
                await self._committer.commit([], snapshots={WAITING: self.waiting.dump})
            except StoreError:
                self.waiting.drop_transcript(event_id)
                raise
        if self._cancels and self._turn is running and self.waiting.knows(event_id):
            self.interrupt()
            await self._withdraw_speeches()
        self._go_on()
        return True

    def drain(self) -> None:
        """Start no more turns; with a durable store another process answers the queued transcripts, too."""
        self.draining = True
        self._reminders.close()

    @property
    def _suspended(self) -> bool:
        return self.draining and self._committer.durable

    def _set_turn(self, turn: Turn | None) -> None:
        self._turn = turn
        self._context.turn = None if turn is None else turn.state

    def knows(self, event_id: str) -> bool:
        """Tell whether a transcript is queued or starting, though it may not be recorded yet."""
        return event_id == self._beginning or self.waiting.knows(event_id)

    def interrupt(self, speech: Speech | None = None, heard_text: str | None = None) -> None:
        """Stop the running turn for a barge-in, unless the interrupted speech is another turn's.

        No more partials are sent. ``heard_text`` is the part of its reply that was heard, if known.
        """
        turn = self._turn
        if turn is None or (speech is not None and speech.turn_id != turn.state.id):
            return
        if heard_text is None:
            heard_text = self._speeches.heard_of(turn.state.speech_id)
        turn.state.stop("interrupted", heard_text)
        self._committer.mark_dirty(TURN)
        self._context.stop_partials()
        if self._outbox.transport is not None:
            self._outbox.transport.drop_partials()

    def deliver_notices(self) -> None:
        """Start a turn about notices, if there are any and the session is idle."""
        self._reminders.look()
        now = asyncio.get_running_loop().time()
        if not (self.busy or self._closed or now < self._no_notices_until) and self._may_deliver(now):
            self._runner = self._tasks.spawn(self._run_turns(None))

    def _may_deliver(self, now: float) -> bool:
        has_notices = self._device.wants_turn or self.waiting.has_notices(now)
        return has_notices and not self.draining and self._floor.is_free()

    async def _first_step(self) -> None:
        if self._started is not None:
            await self._started.wait()

    async def settled(self) -> None:
        """Wait until no turn is running or waiting."""
        while self.busy:
            await self._first_step()
            if self._runner is not None:
                await asyncio.wait([self._runner])

    async def close(self) -> None:
        """Stop the running turn, and wait for its end.

        With a durable store it is only released: another process resumes it.
        """
        self._closed = True
        self._reminders.close()
        if self._retry is not None:
            self._retry.cancel()
        await self._first_step()
        if self._runner is None:
            return
        if self._committer.durable:
            if self._turn is not None:
                self._turn.state.release()
                self._committer.mark_dirty(TURN)
            self._runner.cancel()
        elif self._turn is not None:
            self._turn.state.stop("session_end")
        await asyncio.wait([self._runner], timeout=2 * self._limits.close_timeout)

    async def request(self, name: str, arguments: str) -> ToolResult:
        """Make a call for a program of the person, after the running turn; ``arguments`` is JSON.

        Cancelling stops the call. It is refused if too many wait, or the server is about to stop.
        """
        call_id = new_call_id()
        if self.draining or self._closed or len(self.waiting.requests) >= MAX_REQUESTS:
            refused = failed("rate_limited", "Too many calls wait, or the server stops. Nothing was run.")
            return self._context.executor.to_result(call_id, refused)
        result: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
        request = ToolRequest(ToolCall(call_id, name, arguments), result)
        self.waiting.requests.append(request)
        self._go_on()
        try:
            return await result
        finally:
            if request in self.waiting.requests:
                self.waiting.requests.remove(request)
            elif self._turn is not None and self._requested is request:
                self._turn.state.stop("interrupted")

    async def _run_turns(self, turn: Turn | None) -> None:
        session = self._committer.key.session_id
        healthy = False
        try:
            while turn is not None or not self._is_closed():
                turn = turn or await self._next()
                if turn is None:
                    break
                if self._is_closed():
                    turn.state.stop("session_end")
                await self._run(turn)
                turn = None
            healthy = True
        except Fenced:
            log.warning("session taken over", session=session)
        except StoreError as error:
            log.error("session store failed", session=session, error=type(error).__name__)
            self._fail(error.code)
        except Exception:
            log.exception("turn queue failed", session=session)
            self._fail("internal_error")
        finally:
            self._answer_request()
            if not (self._closed and self._committer.durable):
                self._set_turn(None)  # else `release` still writes its snapshot
            self._runner = None
        if healthy:
            self.deliver_notices()
        else:
            # Without the wait, the client's answer to each failure's "idle" would start the next turn.
            loop = asyncio.get_running_loop()
            self._no_notices_until = loop.time() + self._limits.failed_turn_retry
            self._retry = loop.call_later(self._limits.failed_turn_retry, self._go_on)

    def _go_on(self) -> None:
        idle = not (self.busy or self._closed or self._suspended or self._committer.is_lost)
        if idle and (self.waiting.transcripts or self.waiting.requests):
            self._runner = self._tasks.spawn(self._run_turns(None))

    def _is_closed(self) -> bool:
        return self._closed

    def _fail(self, code: ErrorCode) -> None:
        if not self._committer.durable:
            self.waiting.drop_transcripts()
        self._context.show_at_once(ErrorEvent(code, MESSAGES.get(code, MESSAGES["internal_error"])))
        self._context.show_at_once(set_state(new_call_id(), "idle"))

    async def _next(self) -> Turn | None:
        if self._suspended:
            return None
        transcript = self.waiting.next_transcript
        if transcript is not None:
            try:
                return await self._begin("transcript", UserMessage(transcript.text), transcript.event_id)
            except Duplicate:
                self.waiting.drop_transcript(transcript.event_id)  # an approval's answer recorded it
                return await self._next()
        if self._refused:
            # Say once that transcripts were refused, when the queue has room again: an error event is silent.
            self._refused = False
            await self._apologise(Turn(self._context, _new_turn_id(), "refused", self.follow), "rate_limited")
            return await self._next()
        if self.waiting.requests:
            return await self._begin_request()
        now = asyncio.get_running_loop().time()
        if not self._may_deliver(now):
            return None
        self._bucket.take(now)
        return await self._begin("news", None)

    async def _begin(self, cause: str, message: UserMessage | None, event_id: str | None = None) -> Turn:
        # Records the input; the turn runs later. Without a message it takes all notices, else the expired
        # ones.
        turn = Turn(self._context, _new_turn_id(), cause, self.follow)
        state = self._committer.state
        now = asyncio.get_running_loop().time()
        notes = list(self._device.notes)
        notices = self.waiting.notices() if message is None else self.waiting.notices(before=now)
        covered, operations = self._summarizer.take() if self._summarizer is not None else (0, [])
        cut = max(covered, cut_point(state.log, self._limits.max_turns - 1, self._context.history.tokens))
        if cut:
            operations.append(TrimLog(state.log_start + cut))
        if event_id is not None:
            operations.append(RememberInbound(event_id))
        operations += [AppendLog(note) for note in notes]
        if notices:
            text = truncate(
                "\n\n".join(notice.text for notice in notices), self._limits.max_observation_bytes
            )
            operations.append(AppendLog(Note(text)))
        events: list[ServerEvent] = []
        if message is not None:
            turn.state.stats.transcript = message.text
            operations.append(AppendLog(message))
            # A turn about notices sends no "thinking": that would stop the transcriber.
            events.append(set_state(new_call_id(), "thinking"))
            events.append(self._context.profile.append_message("user", message.text))

        def recorded() -> None:
            del self._device.notes[: len(notes)]
            self._device.wants_turn = self._device.wants_turn and bool(self._device.notes)
            self.waiting.drop_notices(notices)
            self.waiting.drop_transcript(event_id)
            self._set_turn(turn)

        snapshots: dict[str, Callable[[], str]] = {TURN: turn.state.dump}
        if notes:
            snapshots[LATE] = lambda: self._device.dump(len(notes))
        if notices or self.waiting.transcripts:
            snapshots[WAITING] = lambda: self.waiting.dump(event_id, notices)
        await self._committer.commit(operations, events, turn.state.id, snapshots=snapshots, after=recorded)
        return turn

    async def _begin_request(self) -> Turn:
        self._requested = request = self.waiting.requests.pop(0)
        turn = Turn(self._context, _new_turn_id(), "request", self.follow, request=request.call)
        note = Note(f"A program of the user calls {request.call.name[:128]}. This is not the user speaking.")
        await self._committer.commit(
            [AppendLog(note)],
            [],
            turn.state.id,
            snapshots={TURN: turn.state.dump},
            after=lambda: self._set_turn(turn),
        )
        return turn

    def _answer_request(self) -> None:
        request, self._requested = self._requested, None
        if request is not None:
            request.answer(self._committer.state.log)

    async def _run(self, turn: Turn) -> None:
        if self._cancels and self.waiting.transcripts:
            turn.state.stop("interrupted")
        reason = await turn.run()
        if reason in ("failed", "timed_out") and turn.state.cause != "request":
            code = turn.error or "internal_error"
            error = ErrorEvent(code, MESSAGES.get(code, MESSAGES["internal_error"]))
            # Within a turn only the subject's budget raises ``rate_limited``.
            await self._apologise(turn, "budget_spent" if code == "rate_limited" else code, error)
        elif reason != "answered" and not self.follow():
            idle = set_state(new_call_id(), "idle")
            await self._committer.commit([], [idle], turn.state.id, snapshots=ENDED, after=turn.state.end)
        self._set_turn(None)
        self._answer_request()
        if self._summarizer is not None:
            self._summarizer.start()
        self._context.report(turn.state, reason, turn.error)

    def follow(self) -> bool:
        """Whether another turn starts at once: then no ``idle`` is sent between them."""
        return self.waiting.transcripts > 0 and not (self._closed or self._suspended)

    async def _withdraw_speeches(self) -> None:
        operations = self._speeches.withdraw_unsent(self._outbox) if self._cancels else []
        if operations:
            await self._committer.commit(operations)

    async def _apologise(self, turn: Turn, failure: Failure, *errors: ErrorEvent) -> None:
        sentence = self._failures.get(failure, "")
        unspoken = turn.unspoken
        message = " ".join(part for part in (unspoken and f"{unspoken} {CUT_OFF}", sentence) if part)
        visible = sentence or unspoken
        operations: list[Operation] = [AppendLog(AssistantMessage(message))] if message else []
        events: list[ServerEvent] = [*errors]
        speech = self._context.speech(turn.state, message, sentence)
        if speech is not None:
            speech.before = message.removesuffix(sentence).strip() if turn.state.spoken_text else ""
        if visible:
            speech_id = speech.speech_id if speech is not None else None
            events.append(SpeechFinal(visible))
            events.append(self._context.profile.append_message("assistant", visible, speech_id))
        events += self._context.speech_events(speech)
        if not self.follow():
            events.append(set_state(new_call_id(), "idle"))
        snapshots = {**ENDED, **self._context.speech_snapshot(speech)}
        position = self._committer.state.log_end

        def finish() -> None:
            self._speeches.logged(turn.state.speech_id, position)
            self._speeches.add(speech)
            turn.state.end()

        while True:
            try:
                await self._committer.commit(
                    operations, events, turn.state.id, snapshots=snapshots, after=finish
                )
            except Fenced:
                raise
            except StoreError:
                if self._outbox.transport is not None:
                    break
                await asyncio.sleep(self._limits.store_retry)  # no client to send an error to
            else:
                return
        # Durable events need a commit; these two may be lost.
        turn.state.end()
        self._committer.mark_dirty(TURN)
        for error in errors:
            self._context.show_at_once(error)
        self._context.show_at_once(set_state(new_call_id(), "idle"))
