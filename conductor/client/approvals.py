"""Approvals: put the server's requests to the app, and send its decisions."""

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

from conductor.client.calls import takes_two_arguments
from conductor.client.errors import ConnectionLost, describe_error, stop
from conductor.client.options import ClientLimits
from conductor.client.outbox import Sender, clean
from conductor.events.client import ApprovalResponse, ApprovalShown
from conductor.events.server import ApprovalRequest, ApprovalResolved, ErrorEvent

log = logging.getLogger(__name__)

Scope: TypeAlias = Literal["once", "session", "always"]

# Characters of a decision's message: the event must stay below the soft limit of 64 KiB.
MAX_MESSAGE = 2_000
# How often one request is put to the app. It is repeated only after a refused edit.
MAX_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Approval:
    """A request for consent to one tool call.

    ``reasons`` explain why consent is needed. ``prompt`` is the question in words. ``scopes`` are the scopes
    that `allow` accepts. ``preview`` describes the effect of the call, in lines, if the tool provides it.
    Requests with the same ``batch_id`` belong to one reply of the model. ``refused`` gives the reason when
    the server refused the last edit. Texts come from a model and from the server: escape control characters.
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
    """A person's decision, made by `allow`, `deny` or `edit`."""

    decision: Literal["allow", "deny", "edit"]
    scope: Scope = "once"
    arguments: dict[str, Any] | None = None
    message: str | None = None


ApprovalHandler: TypeAlias = Callable[..., Any]
"""A function, async or not, that takes an `Approval` and returns an `ApprovalDecision` or None.

None leaves the request open for an answer by voice. The handler is cancelled when the request is resolved
elsewhere.

A yes by voice counts only after ``approval.shown``: the person must be able to see the card. The client sends
it when the handler returns or first awaits. A handler that draws the card later takes a second parameter, an
async function, and awaits it after drawing.
"""


def allow(scope: Scope = "once") -> ApprovalDecision:
    """Allow the call as requested. A scope that is not offered counts as ``once``."""
    return ApprovalDecision("allow", scope)


def deny(message: str | None = None) -> ApprovalDecision:
    """Refuse the call. ``message`` gives the model the person's reason."""
    return ApprovalDecision("deny", message=message)


def edit(arguments: dict[str, Any]) -> ApprovalDecision:
    """Allow the call once, with ``arguments`` in place of all its arguments."""
    return ApprovalDecision("edit", arguments=arguments)


@dataclass(slots=True, eq=False)
class _Question:
    # ``origin``, ``last_send`` and ``last_shown`` are numbers of connections: of the request, of the last
    # decision sent, and of the last ``approval.shown``.
    approval: Approval
    digest: str
    origin: int
    task: asyncio.Task[None] | None = None
    decision: ApprovalDecision | None = None
    rounds: int = 0
    sends: int = 0
    last_send: int = 0
    response_id: str = ""
    is_visible: bool = False
    last_shown: int = 0
    is_settled: bool = False


class Approvals:
    """The approval requests of one session, over all its connections.

    The handler runs once for each ``approvalId``. A decision may be lost and a second copy is harmless, so it
    is sent on every connection, under a new envelope id, until the server has resolved the request.
    ``approval.shown`` is repeated likewise while the request is undecided: a new connection may lead to
    another server process.
    """

    def __init__(self, limits: ClientLimits, sender: Sender) -> None:
        self.handler: ApprovalHandler | None = None
        self._limits = limits
        self._sender = sender
        self._questions: OrderedDict[str, _Question] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def asking(self) -> bool:
        return any(
            question.decision is None and not question.is_settled for question in self._questions.values()
        )

    def record(self, request: ApprovalRequest, connection: int) -> None:
        """Record a request as soon as it is read. ``connection`` is the socket's number."""
        question = self._questions.get(request.approval_id)
        if question is not None and question.digest == request.arguments_digest:
            if question.decision is not None and not question.is_settled:
                self._spawn(self._send(question))
            return
        if question is not None:  # same id, other arguments: the decision does not apply
            self._settle(question)
        self._questions[request.approval_id] = _Question(
            _approval(request), request.arguments_digest, connection
        )
        self._questions.move_to_end(request.approval_id)
        if len(self._questions) > self._limits.approvals:
            _, oldest = self._questions.popitem(last=False)
            self._settle(oldest)

    def ask(self) -> None:
        """Start a handler for each new request."""
        if self.handler is None:
            return
        for question in self._questions.values():
            if not question.rounds and not question.is_settled:
                self._start_handler(question, self.handler)

    def resolve(self, event: ApprovalResolved) -> None:
        """Settle a resolved request. Start its handler again if an edit was refused."""
        question = self._questions.get(event.approval_id)
        if question is None or question.is_settled:
            return
        if event.outcome != "refused":
            self._settle(question)
        elif question.decision is not None:
            # A repeated edit may be refused because the first copy was accepted.
            if question.decision.decision != "edit" or question.sends != 1 or self.handler is None:
                self._settle(question)
                return
            question.approval = replace(question.approval, refused=event.message or "It was refused.")
            question.decision, question.sends, question.last_send = None, 0, 0
            if question.rounds < MAX_ROUNDS:
                self._start_handler(question, self.handler)
            else:  # a handler that repeats a refused edit must not block the turn
                question.decision = deny()
                self._spawn(self._send(question))

    def retry(self, error: ErrorEvent) -> None:
        """Repeat a decision that the server could not record."""
        if error.code != "store_unavailable":
            return
        for question in self._questions.values():
            if question.response_id == error.event_id and not question.is_settled:
                self._spawn(self._send_again(question))

    async def flush(self, connection: int, *, resumed: bool) -> None:
        """Send the decisions that are due on a new connection. Drop the requests of an expired session."""
        for question in list(self._questions.values()):
            # A new session does not know the requests of the old one.
            if not resumed and question.origin < connection:
                self._settle(question)
            elif question.decision is not None and not question.is_settled:
                await self._send(question)
            elif question.is_visible:
                await self._show(question)

    async def close(self, seconds: float) -> None:
        """Cancel the handlers and wait at most ``seconds`` for them."""
        await stop(self._tasks, seconds)

    def _start_handler(self, question: _Question, handler: ApprovalHandler) -> None:
        question.rounds += 1
        question.task = self._spawn(self._decide(question, handler))

    async def _decide(self, question: _Question, handler: ApprovalHandler) -> None:
        # A failed handler refuses the call: only a decision can allow it.
        limit = asyncio.timeout(self._limits.approval_s)
        try:
            async with limit:
                if takes_two_arguments(handler):
                    value = handler(question.approval, partial(self._show, question))
                else:
                    value = handler(question.approval)
                    self._spawn(self._show(question))  # runs at the handler's first await
                if inspect.isawaitable(value):
                    value = await value
            decision = _checked(value, question.approval)
            if decision is not None:
                # An edit that exceeds the frame size raises here, and becomes a refusal.
                self._sender.frame("check", _response(question, decision))
        except Exception as error:
            log.warning("approval handler failed: %s", describe_error(error))
            if limit.expired():
                return  # the server's own time limit decides
            decision = deny()  # without a message, which the model would attribute to the person
        if decision is not None and not question.is_settled:
            question.decision = decision
            await self._send(question)

    async def _send(self, question: _Question) -> None:
        connection = self._sender.connection
        if question.decision is None or connection is None or question.last_send == connection:
            return
        # Before the await, so that `flush` does not send it a second time.
        question.last_send = connection
        question.sends += 1
        try:
            question.response_id = self._sender.new_id()
            await self._sender.once(_response(question, question.decision), question.response_id)
        except ConnectionLost:
            log.debug("decision deferred to the next connection")

    async def _send_again(self, question: _Question) -> None:
        await asyncio.sleep(self._limits.retry_s)
        if not question.is_settled:
            question.last_send = 0
            await self._send(question)

    async def _show(self, question: _Question) -> None:
        question.is_visible = True
        connection = self._sender.connection
        undecided = question.decision is None and not question.is_settled
        if not undecided or connection is None or question.last_shown == connection:
            return
        question.last_shown = connection
        try:
            await self._sender.once(ApprovalShown(question.approval.approval_id))
        except ConnectionLost:
            log.debug("approval.shown deferred to the next connection")

    def _settle(self, question: _Question) -> None:
        # The question stays in the table, so that a replay does not start its handler again.
        question.is_settled = True
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
    # Only an `ApprovalDecision` allows a call. True does not.
    if value is None:
        return None
    if not isinstance(value, ApprovalDecision):
        raise TypeError("an approval handler returns allow(), deny(), edit() or None")
    if value.decision == "edit" and not isinstance(value.arguments, dict):
        raise TypeError("edit() needs the complete arguments as a dict")
    if value.decision == "allow" and value.scope not in approval.scopes:
        log.warning("scope %s is not offered; the call is allowed once", value.scope)
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
