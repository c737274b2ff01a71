"""One turn at a time: which comes next, what it says, and how each of them ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from conductor.conversation.heard import Speech
from conductor.conversation.history import cut_point
from conductor.conversation.host import ENDED, Host, speech_events, turn_memo
from conductor.conversation.ids import new_call_id
from conductor.conversation.memos import LATE, TURN, WAITING, TurnMemo, decode
from conductor.conversation.questions import FIELD as APPROVALS
from conductor.conversation.recovery import Recovered, unfinished
from conductor.conversation.sentences import CUT_OFF, MESSAGES
from conductor.conversation.services import Services
from conductor.conversation.tasks import Tasks
from conductor.conversation.turn import EndReason, Turn
from conductor.conversation.waiting import Transcript, Waiting
from conductor.errors import Duplicate, ErrorCode, Fenced, StoreError
from conductor.events.envelope import IdSource
from conductor.events.server import (
    ErrorEvent,
    ServerEvent,
    SpeechFinal,
    append_message,
    set_state,
)
from conductor.messages import AssistantMessage, Note, UserMessage
from conductor.stores.base import AppendLog, Operation, RememberInbound, TrimLog
from conductor.tools.shorten import shorten

log = structlog.get_logger(__name__)

APOLOGY_RETRY_S = 1.0
"""Between two tries to record that a turn failed, while the store is away and so is the client."""
NEWS_RETRY_S = 5.0
"""How long news waits after the session could not go on."""

_new_turn_id = IdSource("turn")


class Turns:
    """Runs the turns of one session.

    ``may_tell_news`` says whether the session is idle enough for a turn that nobody asked for, ``on_news``
    is told when one begins.
    """

    def __init__(
        self,
        services: Services,
        host: Host,
        tasks: Tasks,
        may_tell_news: Callable[[], bool],
        on_news: Callable[[], None],
    ) -> None:
        self._limits = services.limits
        self._host = host
        self.waiting = Waiting(self._limits.max_queued_transcripts, self._limits.max_queued_notes)
        self.speeches = host.speeches
        self._cancels = services.interruption_mode == "cancel"
        self._failures = services.failures
        self._log_content = services.log_content
        self._pending = host.pending
        self._ledger = host.ledger
        self._delivery = host.delivery
        self._device = host.device
        self._questions = host.questions
        self._tasks = tasks
        self._may_tell_news = may_tell_news
        self._on_news = on_news
        self._runner: asyncio.Task[None] | None = None
        self._beginning: str | None = None
        self._begun: asyncio.Event | None = None
        self._closed = False
        self._lays_down = False
        self._no_news_until = 0.0
        self._retry: asyncio.TimerHandle | None = None
        self._ledger.keep(WAITING, self.waiting.kept)

    def restore(self) -> None:
        """Go on with what another process had begun, and with what waited there."""
        state = self._ledger.state
        self.waiting.restore(state.fields.get(WAITING), state.seen)
        self._questions.recall()
        memo = decode(state.fields.get(TURN), TurnMemo)
        if memo is None:
            if self.waiting.transcripts:
                self._runner = self._tasks.spawn(self._run_turns(None))
            return
        was_sent = self._delivery.outbox.is_outstanding
        approvals = state.fields.get(APPROVALS, "")
        found = unfinished(state, self._host.executor, was_sent, approvals)
        recovered = Recovered(memo, None)
        if found is not None:
            for ready in found.round.device_calls:
                self._pending.expect(ready.call.call_id)
            for ready, outcome in found.unknown:
                self._host.ends(ready, outcome)
            memo = msgspec.structs.replace(memo, actions=(*memo.actions, *found.changes))
            recovered = Recovered(memo, found.round, self._questions.restore(found.standing))
        turn = Turn(self._host, memo.turn_id, memo.cause, recovered)
        self._turn = turn
        self._runner = self._tasks.spawn(self._run_turns(turn))

    # -- what the session asks for

    @property
    def _turn(self) -> Turn | None:
        return self._host.turn

    @_turn.setter
    def _turn(self, turn: Turn | None) -> None:
        self._host.turn = turn

    @property
    def busy(self) -> bool:
        """Whether a turn is running or about to."""
        return self._runner is not None or self._beginning is not None

    @property
    def waits_for_device(self) -> bool:
        """Whether a turn runs that does nothing but wait for results from the device."""
        return self._turn is not None and self._turn.waits_for_device

    async def answer(self, text: str, event_id: str) -> bool:
        """Answer a transcript, now or after the running turn; False if too many wait already."""
        if not (self.busy or self.waiting.transcripts or self._lays_down):
            self._beginning = event_id
            self._begun = begun = asyncio.Event()
            try:
                await self._withdraw_speeches()
                turn = await self._begin("transcript", UserMessage(text), event_id)
            finally:
                self._beginning = self._begun = None
                begun.set()
            self._runner = self._tasks.spawn(self._run_turns(turn))
            return True
        if not self.waiting.add_transcript(Transcript(text, event_id)):
            return False
        running = self._turn
        if self._ledger.durable:
            try:
                await self._ledger.commit([], memos={WAITING: self.waiting.kept})
            except StoreError:
                self.waiting.drop_transcript(event_id)
                raise
        if self._cancels and self._turn is running and self.waiting.knows(event_id):
            self.interrupt()
            await self._withdraw_speeches()
        self._go_on()
        return True

    def lay_down(self) -> None:
        """Begin no more turns: what waits is kept, and another process will go on with it."""
        self._lays_down = True

    def knows(self, event_id: str) -> bool:
        """Tell whether a transcript was taken already, although it may not be recorded yet."""
        return event_id == self._beginning or self.waiting.knows(event_id)

    def interrupt(self, speech: Speech | None = None, heard: str | None = None) -> None:
        """Stop the running turn for a barge-in, if the interrupted speech is its own, or is none.

        Nothing more of its answer is shown. ``heard`` is what the client says was spoken of it.
        """
        turn = self._turn
        if turn is None or (speech is not None and speech.turn_id != turn.id):
            return
        turn.stop("interrupted", heard)
        self._ledger.changed(TURN)
        self._host.hush()
        if self._delivery.outbox.transport is not None:
            self._delivery.outbox.transport.drop_partials()

    def tell_news(self) -> None:
        """Begin a turn of the server's own, if there is something to tell and nobody is in the way."""
        now = asyncio.get_running_loop().time()
        if self.busy or self._closed or now < self._no_news_until or not self._has_news(now):
            return
        if self._may_tell_news():
            self._runner = self._tasks.spawn(self._run_turns(None))

    def _has_news(self, now: float) -> bool:
        return self._device.wants_turn or self.waiting.has_news(now)

    async def _first_step(self) -> None:
        """Wait until a turn that is about to begin has begun."""
        if self._begun is not None:
            await self._begun.wait()

    async def settled(self) -> None:
        """Wait until no turn is running or waiting."""
        while self.busy:
            await self._first_step()
            if self._runner is not None:
                await asyncio.wait([self._runner])

    async def close(self) -> None:
        """Stop the running turn, and wait until it has ended.

        What a store keeps is only laid down: another process goes on with it.
        """
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        await self._first_step()
        if self._runner is None:
            return
        if self._ledger.durable:
            if self._turn is not None:
                self._turn.hand_over()
                self._ledger.changed(TURN)
            self._runner.cancel()
        elif self._turn is not None:
            self._turn.stop("session_end")
        await asyncio.wait([self._runner], timeout=2 * self._limits.close_timeout)

    # -- one turn after the other

    async def _run_turns(self, turn: Turn | None) -> None:
        """Run this turn and those that wait, until there is nothing to do."""
        session = self._ledger.key.session_id
        healthy = False
        try:
            while turn is not None or not self._is_closed():
                turn = turn or await self._next()
                if turn is None:
                    break
                if self._is_closed():
                    turn.stop("session_end")
                await self._run(turn)
                turn = None
            healthy = True
        except Fenced:
            log.warning("session taken over", session=session)
        except StoreError as error:
            log.error("session store failed", session=session, error=type(error).__name__)
            self._fail(error.code)
        except Exception:
            log.exception("turns failed", session=session)
            self._fail("internal_error")
        finally:
            if not (self._closed and self._ledger.durable):
                self._turn = None  # else its memo is still to be kept
            self._runner = None
        if healthy:
            self.tell_news()
        else:
            # Else the acknowledgement of each failure's "idle" would begin the next one.
            loop = asyncio.get_running_loop()
            self._no_news_until = loop.time() + NEWS_RETRY_S
            self._retry = loop.call_later(NEWS_RETRY_S, self._go_on)

    def _go_on(self) -> None:
        """Answer what still waits, after a failure: it was recorded, so somebody relies on it."""
        idle = not (self.busy or self._closed or self._lays_down or self._ledger.lost)
        if idle and self.waiting.transcripts:
            self._runner = self._tasks.spawn(self._run_turns(None))

    def _is_closed(self) -> bool:
        return self._closed

    def _fail(self, code: ErrorCode) -> None:
        """Give up what waits, and say so by frames that need not be recorded."""
        if not self._ledger.durable:
            self.waiting.drop_transcripts()
        self._host.show_at_once(ErrorEvent(code, MESSAGES.get(code, MESSAGES["internal_error"])))
        self._host.show_at_once(set_state(new_call_id(), "idle"))

    async def _next(self) -> Turn | None:
        if self._lays_down:
            return None
        transcript = self.waiting.next_transcript
        if transcript is not None:
            try:
                return await self._begin("transcript", UserMessage(transcript.text), transcript.event_id)
            except Duplicate:
                self.waiting.drop_transcript(transcript.event_id)  # it was taken already, by another way
                return await self._next()
        now = asyncio.get_running_loop().time()
        if not self._has_news(now) or not self._may_tell_news():
            return None
        self._on_news()
        return await self._begin("news", None)

    async def _begin(self, cause: str, message: UserMessage | None, event_id: str | None = None) -> Turn:
        """Commit what is to be answered and show it; the turn itself has not run a step.

        Without a message it is all the news that waits; with one, only news too old for a turn of its own.
        """
        turn = Turn(self._host, _new_turn_id(), cause)
        state = self._ledger.state
        now = asyncio.get_running_loop().time()
        told = list(self._device.news)
        news = self.waiting.news() if message is None else self.waiting.news(before=now)
        cut = cut_point(state.log, self._limits.max_turns - 1, self._limits.history_tokens)
        operations: list[Operation] = [TrimLog(state.log_start + cut)] if cut else []
        if event_id is not None:
            operations.append(RememberInbound(event_id))
        operations += [AppendLog(note) for note in told]
        if news:
            text = shorten("\n\n".join(one.text for one in news), self._limits.max_observation_bytes)
            operations.append(AppendLog(Note(text)))
        events: list[ServerEvent] = []
        if message is not None:
            turn.figures.said = message.text
            operations.append(AppendLog(message))
            # A turn of the server's own leaves "thinking" out: it would stop the transcriber.
            events.append(set_state(new_call_id(), "thinking"))
            events.append(append_message(new_call_id(), "user", message.text))

        def begun() -> None:
            del self._device.news[: len(told)]
            self._device.wants_turn = self._device.wants_turn and bool(self._device.news)
            self.waiting.drop_news(news)
            self.waiting.drop_transcript(event_id)
            self._turn = turn

        memos = {TURN: lambda: turn_memo(turn)}
        if told:
            memos[LATE] = lambda: self._device.kept(len(told))
        if news or self.waiting.transcripts:
            memos[WAITING] = lambda: self.waiting.kept(event_id, news)
        await self._ledger.commit(operations, events, turn.id, memos=memos, then=begun)
        return turn

    async def _run(self, turn: Turn) -> None:
        if self._cancels and self.waiting.transcripts:
            turn.stop("interrupted")
        started = asyncio.get_running_loop().time()
        reason = await turn.run()
        if reason in ("failed", "timed_out"):
            await self._apologise(turn)
        elif reason != "answered" and not self.follow():
            idle = set_state(new_call_id(), "idle")
            await self._ledger.commit([], [idle], turn.id, memos=ENDED, then=turn.end)
        self._turn = None
        self._log(turn, reason, asyncio.get_running_loop().time() - started)

    def follow(self) -> bool:
        """Whether another turn follows at once: then the ``idle`` between is left out."""
        return self.waiting.transcripts > 0 and not (self._closed or self._lays_down)

    async def _withdraw_speeches(self) -> None:
        """Take back speeches that were not sent yet, where the person interrupts: they have moved on."""
        if not self._cancels:
            return
        outbox = self._delivery.outbox
        operations: list[Operation] = []
        for speech in self.speeches.unsent(outbox.was_written):
            if outbox.withdraw(speech.call_id):
                self.speeches.forget(speech.call_id)
                operations += self.speeches.amend(speech, "", None)
        if operations:
            await self._ledger.commit(operations)

    async def _apologise(self, turn: Turn) -> None:
        """Tell of a turn that failed: an error for the app, one short sentence for the person."""
        code = turn.error or "internal_error"
        sentence = self._failures.get(code, "")
        error = ErrorEvent(code, MESSAGES.get(code, MESSAGES["internal_error"]))
        unspoken = turn.unspoken
        kept = " ".join(part for part in (unspoken and f"{unspoken} {CUT_OFF}", sentence) if part)
        shown = sentence or unspoken
        operations: list[Operation] = [AppendLog(AssistantMessage(kept))] if kept else []
        events: list[ServerEvent] = [error]
        if shown:
            events += [SpeechFinal(shown), append_message(new_call_id(), "assistant", shown)]
        speech = self._host.speech(turn, kept, sentence)
        events += speech_events(speech)
        if not self.follow():
            events.append(set_state(new_call_id(), "idle"))
        memos = {**ENDED, **self._host.spoken_memo(speech)}
        while True:
            try:
                await self._ledger.commit(operations, events, turn.id, memos=memos, then=turn.end)
            except Fenced:
                raise
            except StoreError:
                if self._delivery.outbox.transport is not None:
                    break
                await asyncio.sleep(APOLOGY_RETRY_S)  # nobody is there to be told otherwise
            else:
                self.speeches.add(speech)
                return
        # Nothing that must arrive may leave without a commit; these two need not.
        turn.end()
        self._ledger.changed(TURN)
        self._host.show_at_once(error)
        self._host.show_at_once(set_state(new_call_id(), "idle"))

    def _log(self, turn: Turn, reason: EndReason, seconds: float) -> None:
        figures = turn.figures
        first = figures.first_token_s
        content = {"said": figures.said, "answered": figures.answered} if self._log_content else {}
        log.info(
            "turn",
            session=self._ledger.key.session_id,
            turn=turn.id,
            end=reason,
            error=turn.error,
            ms=round(seconds * 1000),
            first_token_ms=None if first is None else round(first * 1000),
            rounds=figures.rounds,
            input_tokens=figures.usage.input_tokens,
            output_tokens=figures.usage.output_tokens,
            trace=" -> ".join(figures.trace),
            **content,
        )
