"""Ask the app about calls that need a person's consent, and send each decision to the server."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypeAlias

from conductor.client.calls import takes_two
from conductor.client.errors import ConnectionLost
from conductor.client.options import ClientLimits
from conductor.client.outbox import Sender, clean
from conductor.client.tasks import where
from conductor.events.client import ApprovalResponse, ApprovalShown
from conductor.events.server import ApprovalRequest, ApprovalResolved, ErrorEvent

log = logging.getLogger(__name__)

Scope: TypeAlias = Literal["once", "session", "always"]

# Characters of what a person says about a decision: the event has to stay below the soft limit of 64 KiB.
MAX_MESSAGE = 2_000
# Times that one question is put to the app: more than once only when the server refused an edit.
MAX_ASKED = 10


@dataclass(frozen=True, slots=True)
class Approval:
    """What a person is asked: whether this tool may run with these arguments.

    ``reasons`` say why consent is needed, ``prompt`` is the question in words, ``scopes`` are those that an
    `allow` may have. ``preview`` says what the call would do, in lines, if the tool can say it. Requests with
    the same ``batch_id`` belong to one reply of the model. ``refused`` is set when the question is asked
    again: it says why the server refused the last edit. Texts come from a model and from the server: a screen
    must escape control characters in them.
    """

    approval_id: str
    call_id: str
    batch_id: str
    name: str
    arguments: dict[str, Any]
    risk: Literal["safe", "medium", "high"]
    reasons: tuple[str, ...]
    prompt: str
    scopes: tuple[Scope, ...]
    expires_at: datetime | None
    refused: str | None = None
    preview: str = ""


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """What the person decided; made by `allow`, `deny` and `edit`."""

    decision: Literal["allow", "deny", "edit"]
    scope: Scope = "once"
    arguments: dict[str, Any] | None = None
    message: str | None = None


ApprovalHandler: TypeAlias = Callable[..., Any]
"""A function, async or not, that takes an `Approval` and returns an `ApprovalDecision` or None.

None leaves the question open: the person answers by voice, or not at all. The handler is cancelled when the
question is settled elsewhere.

A yes by voice counts only after ``approval.shown``: the server must know that the person can see the card.
The client sends it when the handler returns or first awaits, because the card has been drawn by then. A
handler that draws the card later takes a second parameter, an async function, and awaits it after drawing.
"""


def allow(scope: Scope = "once") -> ApprovalDecision:
    """Allow the call as it was shown; a scope that was not offered counts as ``once``."""
    return ApprovalDecision("allow", scope)


def deny(message: str | None = None) -> ApprovalDecision:
    """Refuse the call; ``message`` is what the person says about it, for the model."""
    return ApprovalDecision("deny", message=message)


def edit(arguments: dict[str, Any]) -> ApprovalDecision:
    """Allow the call with other arguments, all of them, this once."""
    return ApprovalDecision("edit", arguments=arguments)


@dataclass(slots=True, eq=False)
class _Question:
    # ``came_on``, ``sent_on`` and ``shown_on`` are numbers of connections: the one that the request came on,
    # and the last ones that the decision and ``approval.shown`` were sent on.
    approval: Approval
    digest: str
    came_on: int
    task: asyncio.Task[None] | None = None
    decision: ApprovalDecision | None = None
    asked: int = 0
    sent: int = 0
    sent_on: int = 0
    response_id: str = ""
    shown: bool = False
    shown_on: int = 0
    settled: bool = False


class Approvals:
    """The approval requests of one session, over all its connections.

    The app is asked once for each ``approvalId``. A decision is sent on every connection, under a new
    envelope id, until the server has resolved the request: it may have been lost, and a second one is
    harmless. ``approval.shown`` is sent again in the same way while the request is undecided, because a new
    connection may lead to another server process.
    """

    def __init__(self, limits: ClientLimits, sender: Sender) -> None:
        self.handler: ApprovalHandler | None = None
        self._limits = limits
        self._sender = sender
        self._questions: OrderedDict[str, _Question] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def asking(self) -> bool:
        return any(one.decision is None and not one.settled for one in self._questions.values())

    def arrived(self, request: ApprovalRequest, connection: int) -> None:
        """Record a request as soon as it is read; `ask` asks it. ``connection`` is the socket's number."""
        known = self._questions.get(request.approval_id)
        if known is not None and known.digest == request.arguments_digest:
            if known.decision is not None and not known.settled:
                self._spawn(self._send(known))
            return
        if known is not None:  # same id, other arguments: the decision does not apply
            self._settle(known)
        self._questions[request.approval_id] = _Question(
            _approval(request), request.arguments_digest, connection
        )
        self._questions.move_to_end(request.approval_id)
        if len(self._questions) > self._limits.approvals:
            _, oldest = self._questions.popitem(last=False)
            self._settle(oldest)

    def ask(self) -> None:
        """Start a handler for each request that was not asked yet."""
        if self.handler is None:
            return
        for question in self._questions.values():
            if not question.asked and not question.settled:
                self._ask(question, self.handler)

    def resolved(self, event: ApprovalResolved) -> None:
        """Settle a request that the server has resolved; ask again if it refused an edit."""
        question = self._questions.get(event.approval_id)
        if question is None or question.settled:
            return
        if event.outcome != "refused":
            self._settle(question)
        elif question.decision is not None:
            # A second copy of an edit may be refused because the first one was accepted.
            if question.decision.decision != "edit" or question.sent != 1 or self.handler is None:
                self._settle(question)
                return
            question.approval = replace(question.approval, refused=event.message or "It was refused.")
            question.decision, question.sent, question.sent_on = None, 0, 0
            if question.asked < MAX_ASKED:
                self._ask(question, self.handler)
            else:  # a handler that repeats a refused edit must not block the turn
                question.decision = deny()
                self._spawn(self._send(question))

    def failed(self, error: ErrorEvent) -> None:
        """Send a decision again that the server could not record."""
        if error.code != "store_unavailable":
            return
        for question in self._questions.values():
            if question.response_id == error.event_id and not question.settled:
                self._spawn(self._send_again(question))

    async def flush(self, connection: int, *, resumed: bool) -> None:
        """Send what a new connection has not had; drop the requests of a session that expired."""
        for question in list(self._questions.values()):
            # A new session knows none of the former one's requests.
            if not resumed and question.came_on < connection:
                self._settle(question)
            elif question.decision is not None and not question.settled:
                await self._send(question)
            elif question.shown:
                await self._show(question)

    async def close(self, seconds: float) -> None:
        """Cancel the handlers and wait at most ``seconds`` for them."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    def _ask(self, question: _Question, handler: ApprovalHandler) -> None:
        question.asked += 1
        question.task = self._spawn(self._decide(question, handler))

    async def _decide(self, question: _Question, handler: ApprovalHandler) -> None:
        # A handler that fails refuses the call: only a decision can allow it.
        limit = asyncio.timeout(self._limits.approval_s)
        try:
            async with limit:
                if takes_two(handler):
                    value = handler(question.approval, partial(self._show, question))
                else:
                    value = handler(question.approval)
                    self._spawn(self._show(question))  # runs at the handler's first await
                if inspect.isawaitable(value):
                    value = await value
            decision = _checked(value, question.approval)
            if decision is not None:
                # An edit too large for a frame is noticed here, where it still becomes a refusal.
                self._sender.frame("check", _response(question, decision))
        except Exception as error:
            log.warning("approval handler failed: %s", where(error))
            if limit.expired():
                return  # no answer is no refusal: the server's own time limit decides
            decision = deny()  # without words: the model would take them for the person's
        if decision is not None and not question.settled:
            question.decision = decision
            await self._send(question)

    async def _send(self, question: _Question) -> None:
        connection = self._sender.connection
        if question.decision is None or connection is None or question.sent_on == connection:
            return
        # Before the await, so that `flush` does not send it a second time.
        question.sent_on = connection
        question.sent += 1
        try:
            question.response_id = self._sender.new_id()
            await self._sender.once(_response(question, question.decision), question.response_id)
        except ConnectionLost:
            log.debug("decision kept for the next connection")

    async def _send_again(self, question: _Question) -> None:
        await asyncio.sleep(self._limits.retry_s)
        if not question.settled:
            question.sent_on = 0
            await self._send(question)

    async def _show(self, question: _Question) -> None:
        question.shown = True
        connection = self._sender.connection
        undecided = question.decision is None and not question.settled
        if not undecided or connection is None or question.shown_on == connection:
            return
        question.shown_on = connection
        try:
            await self._sender.once(ApprovalShown(question.approval.approval_id))
        except ConnectionLost:
            log.debug("approval.shown kept for the next connection")

    def _settle(self, question: _Question) -> None:
        # The question stays in the table, so that a replay does not ask it again.
        question.settled = True
        if question.task is not None and question.task is not asyncio.current_task():
            question.task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _approval(request: ApprovalRequest) -> Approval:
    try:
        expires_at = datetime.fromisoformat(request.expires_at)
    except ValueError:
        expires_at = None
    return Approval(
        approval_id=request.approval_id,
        call_id=request.call_id,
        batch_id=request.batch_id,
        name=request.name,
        arguments=dict(request.arguments),
        risk=request.risk,
        reasons=tuple(request.reasons),
        prompt=request.prompt,
        scopes=tuple(request.scopes),
        expires_at=expires_at,
        preview=request.preview,
    )


def _checked(value: Any, approval: Approval) -> ApprovalDecision | None:
    # Only an `ApprovalDecision` allows a call: a handler that returns True by mistake does not.
    if value is None:
        return None
    if not isinstance(value, ApprovalDecision):
        raise TypeError("an approval handler returns allow(), deny(), edit() or None")
    if value.decision == "edit" and not isinstance(value.arguments, dict):
        raise TypeError("an edit needs all of the arguments, as a dict")
    if value.decision == "allow" and value.scope not in approval.scopes:
        log.warning("the scope %s was not offered: the call is allowed once", value.scope)
        return replace(value, scope="once")
    return value


def _response(question: _Question, decision: ApprovalDecision) -> ApprovalResponse:
    message = clean(decision.message)
    return ApprovalResponse(
        approval_id=question.approval.approval_id,
        arguments_digest=question.digest,
        decision=decision.decision,
        scope=decision.scope,
        edited_arguments=decision.arguments,
        message=None if message is None else message[:MAX_MESSAGE],
    )
