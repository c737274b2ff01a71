"""Requests to the model: the growing reply, its partials and segments, retries, and the end of it."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import structlog

from conductor.clock import epoch_ns
from conductor.conversation.history import cut_point, estimate_tokens, request_of, shortened
from conductor.conversation.ids import segments_id
from conductor.conversation.phrases import SpokenFailure, in_about
from conductor.conversation.records import Record, ReplyBroken, SegmentSpoken
from conductor.conversation.state import Turn
from conductor.conversation.steps import AskModel
from conductor.conversation.turns import ended, goes_on_until, replied
from conductor.errors import BudgetSpent, ConductorError, ModelError
from conductor.events.envelope import new_call_id
from conductor.events.server import ErrorEvent, SpeechPartial
from conductor.messages import AssistantMessage, Message, ToolCall, ToolResult
from conductor.models.base import (
    CACHE_S,
    Finished,
    Kept,
    ModelRequest,
    TextDelta,
    ToolDefinition,
    whole_characters,
)
from conductor.models.bounds import Phrases, estimate
from conductor.models.failures import BROKEN_OFF, rest_of
from conductor.segments import SegmentSplitter
from conductor.speech import CODE_PHRASE, TABLE_PHRASE, for_the_ear

if TYPE_CHECKING:  # its parts are below it
    from conductor.session.session import Session

log = structlog.get_logger(__name__)

_NO_ANSWER, _DONE = "I have nothing to say to that.", "Done."
_LIMIT_REACHED = "The limit of tool calls is reached; the model answers with what it has."
_CITATION = re.compile(r"[ \t]?\[(\d{1,3}(?:, ?\d{1,3})*)\](?!\()")
_CODE = re.compile(r"(```.*?(?:```|\Z)|`[^`\n]*`)", re.DOTALL)
# Of a result as JSON; the quotes of a document are escaped there.
_RESULTS = '"results":['
_NUMBER = re.compile(r'(?<=[{,])"number":(\d{1,3})(?=[,}])')


def without_invented(text: str, messages: Iterable[Message]) -> str:
    """Drop the citations of a reply that no search in the history has returned.

    Without a search, numbers in brackets are no citations, and stay.
    """
    if not _CITATION.search(text):
        return text
    results = [
        message.content
        for message in messages
        if isinstance(message, ToolResult) and _RESULTS in message.content
    ]
    returned = {number for content in results for number in _NUMBER.findall(content)}
    if not results:
        return text

    def valid(citation: re.Match[str]) -> str:
        numbers = [number for number in re.findall(r"\d+", citation[1]) if number in returned]
        begin = citation[0][: citation[0].index("[")]
        return f"{begin}[{', '.join(numbers)}]" if numbers else ""

    prose_and_code = _CODE.split(text)
    prose_and_code[::2] = [_CITATION.sub(valid, prose) for prose in prose_and_code[::2]]
    return "".join(prose_and_code)


class ModelSteps:
    """Asks the model for the replies of a session.

    Within a turn the prompt, the tools and the messages that were sent stay as they were: the service's cache
    and a model's reasoning depend on them. Changes reach the model in the next turn.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._turn_prompt: tuple[str, str, Sequence[ToolDefinition]] | None = None
        self._last_messages: tuple[list[Message], int] | None = None
        self._kept: Kept = {}
        self._avoid: str | None = None
        self._partial_timer: asyncio.TimerHandle | None = None
        self._partial_at = 0.0
        self._start_ns = self._first_ns = self._asked_at = 0

    @property
    def silent_since(self) -> int | None:
        """The time of the request that has brought no words yet, in epoch milliseconds; None if it has."""
        return None if self._session.view.live.model.draft.strip() else self._asked_at

    def forget_draft(self) -> None:
        """Drop the reply that the model is writing."""
        self._session.view.live.model.draft = ""

    def stop(self) -> None:
        """End the request, and send no more partials of its reply."""
        self._observe()
        self._partial_at = 0.0
        if self._partial_timer is not None:
            self._partial_timer.cancel()
            self._partial_timer = None

    # -- one request

    def begin(self, step: AskModel) -> None:
        """Record a request before `ask`."""
        session = self._session
        session.view.live.model.draft = ""
        session.view.live.model.request = (step.turn_id, step.rounds, step.retries)
        if step.retries == 0:
            self._asked_at = session.view.now()

    async def ask(self, step: AskModel) -> None:
        """Ask for a reply, and commit its meaning."""
        if not step.with_tools:
            self._note_limit(step)
        reply: list[str] = []
        calls: list[ToolCall] = []
        try:
            finished = await self._read(step, reply, calls)
        except ModelError as error:
            await self._take_failure(step, error, has_reply=bool(reply or calls))
            return
        except ConductorError as error:
            await self._fail(step, error)
            return
        self.stop()
        await _listen(self._session)
        await self._take_reply(step, "".join(reply).strip(), calls, finished)

    def _note_limit(self, step: AskModel) -> None:
        """Report to the client that the turn's tool calls are used up."""
        session, turn, conduct = self._session, self._session.state.turn, self._session.conduct
        if turn is not None and step.retries == 0 and turn.refused_rounds < conduct.max_refused_rounds:
            if turn.rounds >= conduct.max_tool_rounds or turn.calls_made >= conduct.max_calls_per_turn:
                session.observer.note("limit")
                session.flash(ErrorEvent(code="tool_round_limit_exceeded", message=_LIMIT_REACHED))

    async def _read(self, step: AskModel, reply: list[str], calls: list[ToolCall]) -> Finished:
        session = self._session
        request = await self._request(step)
        speaker = Speaker(session, step) if _in_segments(session) else None
        self._start_ns, self._first_ns = epoch_ns(), 0
        session.cached_until = asyncio.get_running_loop().time() + CACHE_S
        finished: Finished | None = None
        text = error_code = ""
        phrases = Phrases()
        try:
            # Closed on every way out: until then the request goes on, and holds a connection.
            async with aclosing(session.provider.stream(request)) as stream:
                async for event in stream:
                    self._first_ns = self._first_ns or epoch_ns()
                    if isinstance(event, TextDelta):
                        if not text:
                            session.observer.first("token")
                        piece = whole_characters(event.text)
                        reply.append(piece)
                        session.view.live.model.draft = text = text + piece
                        self._show_partial()
                        if speaker is not None:
                            await speaker.add(piece)
                        if phrases.repeat(piece):
                            session.observer.note("repeats")
                            finished = Finished("max_tokens", estimate(request, len(text)))
                            break
                    elif isinstance(event, ToolCall):
                        session.observer.first("token")
                        calls.append(msgspec.structs.replace(event, call_id=new_call_id()))
                    else:
                        finished = event
        except ModelError as error:
            error_code = error.reason
            raise
        finally:
            self._observe(finished, error_code)
        if finished is None:
            raise ModelError("protocol", "The model's reply did not end.")
        if finished.stop == "context_window" and not (text.strip() or calls):
            raise ModelError("context_too_long", "The conversation is too long for the model.")
        session.observer.replied(finished)
        session.view.live.model.history.learn(request, finished.usage, finished.profile)
        return finished

    def _observe(self, finished: Finished | None = None, error_code: str = "") -> None:
        """Observe the end of a request, once."""
        start_ns, self._start_ns = self._start_ns, 0
        if start_ns:
            self._session.observer.requested(start_ns, self._first_ns, finished, error_code)

    async def _request(self, step: AskModel) -> ModelRequest:
        session = self._session
        state, turn = session.state, session.state.turn
        assert turn is not None
        if self._turn_prompt is None or self._turn_prompt[0] != turn.id:
            self._turn_prompt = (turn.id, session.gate.system_prompt, session.gate.executor.definitions)
            self._last_messages, self._kept = None, {}
        if step.retries == 0:
            self._avoid = None
        if self._last_messages is None:
            begin = session.view.live.model.history.begin(state.log, state.log_start, session.view.now())
            messages = request_of(state, begin)
        else:
            prefix, position = self._last_messages
            messages = [*prefix, *state.log[max(0, position - state.log_start) :]]
        self._last_messages = messages, state.log_end
        return ModelRequest(
            self._turn_prompt[1],
            messages,
            self._turn_prompt[2],
            "auto" if step.with_tools else "none",
            silence_s=session.limits.model_silence,
            deadline_s=_left_s(session),
            profile=state.profile.model,
            avoid=self._avoid,
            cache_key=session.cache_key,
            images=await session.images.read(messages),
            kept=self._kept,
        )

    # -- the reply

    async def _take_reply(self, step: AskModel, text: str, calls: list[ToolCall], finished: Finished) -> None:
        session, state = self._session, self._session.state
        if finished.stop == "refusal":
            await self._fail(step, ModelError("refused", "The model declined to answer."))
            return
        provider = finished.provider or session.provider.name
        message = AssistantMessage(text=text, opaque=finished.opaque, provider=provider)
        if calls and step.with_tools:
            is_whole = finished.stop == "tool_use"
            prepared = await session.gate.prepare(calls, is_whole=is_whole)
            message = msgspec.structs.replace(message, calls=tuple(calls))
        else:
            prepared = ()
        paused = not prepared and finished.stop == "pause_turn" and bool(text) and step.with_tools
        if not prepared and not paused:
            answer = without_invented(text, state.log)
            has_words = bool(for_the_ear(answer))
            is_lost = not calls and (not has_words or finished.stop == "tool_use")
            if is_lost and step.retries == 0:
                session.observer.lost(finished)
                await self._ask_again(step, is_lost=True)
                return
            if not has_words:
                answer = _DONE if state.turn is not None and state.turn.succeeded else _NO_ANSWER
            message = msgspec.structs.replace(message, text=answer) if answer != text else message

        usage = finished.usage.read_tokens, finished.usage.output_tokens, finished.cost

        def records() -> list[Record]:
            speech_text = self._speech_of(message.text)
            return replied(session.view, message, prepared, speech_text, paused=paused, usage=usage)

        await session.commits.take(step, records)

    def _speech_of(self, text: str) -> str:
        """Make the rest of a reply in segments, or the whole reply, for the ear."""
        turn = self._session.state.turn
        assert turn is not None
        tail = text
        if turn.reply_id and turn.segments:
            tail = text[len(turn.reply_text.strip()) :] if text.startswith(turn.reply_text.strip()) else ""
        return for_the_ear(tail) if tail else ""

    async def _take_failure(self, step: AskModel, error: ModelError, *, has_reply: bool) -> None:
        session = self._session
        self.stop()
        if error.reason == "context_too_long" and self._shorten(step, error):
            await self._ask_again(step)
            return
        backoff_s = session.limits.model_retry * random.uniform(0.5, 1.0)
        # Another profile may reply sooner than a service that rests.
        pause_s = backoff_s if rest_of(error) else max(backoff_s, error.retry_after or 0.0)
        broke_off = error.reason in BROKEN_OFF and has_reply
        if step.retries == 0 and broke_off and pause_s < _left_s(session):
            session.observer.note(f"retry:{error.reason}")
            self._avoid = error.profile
            await self._ask_again(step)
            await asyncio.sleep(pause_s)
            return
        await self._fail(step, error)

    def _shorten(self, step: AskModel, error: ModelError) -> bool:
        """Shorten the messages of a request that was too long; False if nothing more can be left out.

        Earlier turns go first, half of them and then all, and then parts of this turn's results and
        arguments. The history itself stays.
        """
        session, state = self._session, self._session.state
        if self._last_messages is None or self._turn_prompt is None or step.retries > 1:
            return False
        messages, position = self._last_messages
        size = sum(map(estimate_tokens, messages))
        session.view.live.model.history.refuse(size, error.profile, session.view.now())
        log.warning(
            "history too long for the model",
            session=session.key.session_id,
            profile=error.profile,
            tokens=size,
        )
        cut = cut_point(messages, len(messages), 0 if step.retries else size - 1)
        shorter = messages[cut:]
        if cut and state.summary is not None:
            shorter.insert(0, messages[0])
        if step.retries or not cut:
            _, system, tools = self._turn_prompt
            shorter = shortened(shorter, session.view.live.model.history.room(system, tools, size))
        self._last_messages = shorter, position
        return shorter != messages

    async def _ask_again(self, step: AskModel, *, is_lost: bool = False) -> None:
        """Let the loop request the reply once more; the spoken part stays. ``is_lost``: see `ReplyBroken`."""
        session, turn = self._session, self._session.state.turn
        text = turn.reply_text.strip() if turn is not None else ""
        await session.commits.take(step, lambda: [ReplyBroken(text, is_lost=is_lost)])
        # An interruption still finds the text; a spoken part is in the history.
        if text:
            self.forget_draft()
        session.view.live.model.request = (step.turn_id, step.rounds, step.retries + 1)

    async def _fail(self, step: AskModel, error: ConductorError) -> None:
        session = self._session
        session.observer.failed(error)
        failure: SpokenFailure = error.code
        if isinstance(error, BudgetSpent):
            failure = "budget_spent"
        elif isinstance(error, ModelError) and rest_of(error):
            failure = "model_busy"
        back = in_about(rest_of(error)) if isinstance(error, ModelError) else ""
        await session.commits.take(
            step, lambda: [ended(session.view, "failed", error=error.code, failure=failure, back=back)]
        )

    # -- partials

    def _show_partial(self) -> None:
        if self._partial_timer is None and self._session.is_connected:
            loop = asyncio.get_running_loop()
            if loop.time() >= self._partial_at:
                self._send_partial()
            else:
                self._partial_timer = loop.call_at(self._partial_at, self._send_partial)

    def _send_partial(self) -> None:
        self._partial_timer = None
        session = self._session
        text = session.view.live.model.draft.lstrip()
        if not text:
            return
        interval = session.limits.partial_interval
        self._partial_at = asyncio.get_running_loop().time() + interval
        turn = session.state.turn
        speech_id = ""
        if turn is not None and "segments" in session.state.profile.capabilities:
            speech_id = turn.reply_id or segments_id(turn, session.state.log_end)
        session.observer.first("partial")
        session.flash(SpeechPartial(text, speech_id or None), partial=True)


def _in_segments(session: Session) -> bool:
    """Return whether replies are spoken in segments."""
    return "segments" in session.state.profile.capabilities or session.services.speak_segments


async def _listen(session: Session) -> None:
    """Wait while the person goes on with the sentence; their words then take the place of this turn."""
    while (left_ms := goes_on_until(session.view) - session.view.now()) > 0:  # noqa: ASYNC110 -- a partial moves it
        await asyncio.sleep(left_ms / 1000)


def _left_s(session: Session) -> float:
    """Return the seconds that are left of the turn."""
    turn = session.state.turn
    if turn is None:
        return 0.0
    used_ms = session.view.now() - turn.running_since if turn.running_since else 0
    return max(0.0, (turn.left_ms - used_ms) / 1000)


class Speaker:
    """Speaks a reply in segments while the model writes it."""

    def __init__(self, session: Session, step: AskModel) -> None:
        self._session = session
        self._step = step
        self._splitter = SegmentSplitter(session.state.profile.locale)
        self._phrases: set[str] = set()

    async def add(self, text: str) -> None:
        """Append text of the model, and speak the segments that it completes."""
        for segment in self._splitter.feed(text):
            speech_text = for_the_ear(without_invented(segment, self._session.state.log))
            if speech_text in self._phrases:
                speech_text = ""
            if speech_text in (CODE_PHRASE, TABLE_PHRASE):
                self._phrases.add(speech_text)
            await _listen(self._session)
            if (turn := self._session.state.turn) is not None:
                work = partial(_segment_records, turn, turn.reply_text, SegmentSpoken(segment, speech_text))
                await self._session.commits.take(self._step, work)


def _segment_records(turn: Turn, preceding: str, segment: SegmentSpoken) -> list[Record]:
    # A commit that seemed to have failed is decided again.
    return [segment] if turn.reply_text == preceding else []
