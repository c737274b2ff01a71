"""Approvals: put the server's requests to the app, and send its decisions."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec

from conductor.client.connection import ConnectionLost, describe_error
from conductor.client.state import ClientSession, Entry, clean, takes_two_arguments
from conductor.events.client import ApprovalResponse, ApprovalShown
from conductor.events.server import ApprovalRequest, ApprovalResolved, ErrorEvent

log = logging.getLogger(__name__)

Scope: TypeAlias = Literal["once", "session", "always"]

_MAX_MESSAGE = 2_000
_MAX_REQUESTS = 256
_MAX_ROUNDS = 10
"""How often one request is put to the app. It is repeated only after a refused edit."""


class Approval(ApprovalRequest, frozen=True, rename="camel", omit_defaults=True):
    """A request for consent to one tool call: the server's event, with plain arguments.

    ``refused`` gives the reason when the server refused the last edit. Texts come from a model and from the
    server: escape control characters.
    """

    refused: str | None = None


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
    # ``connection`` is the number of the socket that the request came on, ``last_shown`` that of the last
    # ``approval.shown``. ``entry`` is the decision as it was sent last.
    approval: Approval
    connection: int
    task: asyncio.Task[None] | None = None
    response: ApprovalResponse | None = None
    entry: Entry | None = None
    rounds: int = 0
    is_visible: bool = False
    last_shown: int = 0
    is_settled: bool = False

    @property
    def is_open(self) -> bool:
        return self.response is None and not self.is_settled


class Approvals:
    """The approval requests of one session, over all its connections.

    The handler runs once for each ``approvalId``. A decision is sent until it is confirmed, and again when
    its request is repeated. ``approval.shown`` is repeated on each connection while the request is undecided:
    a new connection may lead to another server process.
    """

    def __init__(self, session: ClientSession) -> None:
        self.handler: ApprovalHandler | None = None
        self._session = session
        self._questions: dict[str, _Question] = {}  # oldest first

    @property
    def asking(self) -> bool:
        return any(question.is_open for question in self._questions.values())

    def notice(self, event: ApprovalRequest | ApprovalResolved | ErrorEvent, connection: int) -> None:
        """Record a request, its outcome or a failed decision, as soon as it is read from this connection."""
        match event:
            case ApprovalRequest():
                self._record(event, connection)
            case ApprovalResolved():
                self._resolve(event)
            case ErrorEvent(code="store_unavailable"):
                for question in self._questions.values():
                    if (entry := question.entry) is not None and entry.event_id == event.event_id:
                        self._session.spawn(self._send_again(question, entry))

    def _record(self, request: ApprovalRequest, connection: int) -> None:
        question = self._questions.pop(request.approval_id, None)
        if question is not None and question.approval.arguments_digest == request.arguments_digest:
            self._questions[request.approval_id] = question
            is_kept = question.entry is not None and self._session.has(question.entry.event_id)
            if not question.is_settled and not question.is_open and not is_kept:
                self._session.spawn(self._send(question))
            return
        if question is not None:  # same id, other arguments: the decision does not apply
            self._settle(question)
        approval = Approval(**msgspec.structs.asdict(request))
        self._questions[request.approval_id] = _Question(approval, connection)
        if len(self._questions) > _MAX_REQUESTS:
            self._settle(self._questions.pop(next(iter(self._questions))))

    def ask(self) -> None:
        """Start a handler for each new request."""
        for question in self._questions.values():
            if self.handler is not None and not question.rounds and not question.is_settled:
                self._start_handler(question, self.handler)

    def _resolve(self, event: ApprovalResolved) -> None:
        question = self._questions.get(event.approval_id)
        if question is None or question.is_settled:
            return
        response, entry = question.response, question.entry
        if event.outcome != "refused":
            self._settle(question)
        elif response is None:
            return
        # A repeated edit may be refused because the first copy was accepted.
        elif response.decision != "edit" or entry is None or entry.sends != 1 or self.handler is None:
            self._settle(question)
        else:
            self._session.discard(entry.event_id)
            refused = event.message or "It was refused."
            question.approval = msgspec.structs.replace(question.approval, refused=refused)
            question.response = question.entry = None
            if question.rounds < _MAX_ROUNDS:
                self._start_handler(question, self.handler)
            else:  # a handler that repeats a refused edit must not block the turn
                question.response = _response(question.approval, deny())
                self._session.spawn(self._send(question))

    async def connected(self, *, resumed: bool) -> None:
        """Drop the requests of an expired session on a new connection, and report visible requests."""
        for question in list(self._questions.values()):
            # A new session does not know the requests of the old one.
            if not resumed and question.connection < self._session.connection:
                self._settle(question)
            elif question.is_visible:
                await self._show(question)

    def _start_handler(self, question: _Question, handler: ApprovalHandler) -> None:
        question.rounds += 1
        question.task = self._session.spawn(self._decide(question, handler))

    async def _decide(self, question: _Question, handler: ApprovalHandler) -> None:
        # A failed handler refuses the call: only a decision can allow it.
        limit = asyncio.timeout(self._session.limits.approval_s)
        try:
            async with limit:
                if takes_two_arguments(handler):
                    value = handler(question.approval, partial(self._show, question))
                else:
                    value = handler(question.approval)
                    self._session.spawn(self._show(question))  # runs at the handler's first await
                if inspect.isawaitable(value):
                    value = await value
            response = None if value is None else _response(question.approval, value)
            if response is not None:
                self._session.frame("check", response)  # an edit that exceeds the frame size is a refusal
        except Exception as error:
            log.warning("approval handler failed: %s", describe_error(error))
            if limit.expired():
                return  # the server's own time limit decides
            # Without a message, which the model would attribute to the person.
            response = _response(question.approval, deny())
        if response is not None and not question.is_settled:
            question.response = response
            await self._send(question)

    async def _send(self, question: _Question) -> None:
        if question.response is not None and not question.is_settled:
            question.entry = self._session.add(question.response, self._session.new_id())
            await self._session.flush()

    async def _send_again(self, question: _Question, entry: Entry) -> None:
        await asyncio.sleep(self._session.limits.retry_s)
        self._session.discard(entry.event_id)
        if question.entry is entry:
            await self._send(question)

    async def _show(self, question: _Question) -> None:
        question.is_visible = True
        connection = self._session.connection
        if question.is_open and self._session.connected and question.last_shown != connection:
            question.last_shown = connection
            try:
                await self._session.send(ApprovalShown(question.approval.approval_id))
            except ConnectionLost:
                log.debug("approval.shown deferred to the next connection")

    def _settle(self, question: _Question) -> None:
        # The question stays in the table, so that a replay does not start its handler again.
        question.is_settled = True
        if question.entry is not None:
            self._session.discard(question.entry.event_id)
        if question.task is not None and question.task is not asyncio.current_task():
            question.task.cancel()


def _response(approval: Approval, decision: Any) -> ApprovalResponse:
    # Only an `ApprovalDecision` allows a call. True does not.
    if not isinstance(decision, ApprovalDecision):
        raise TypeError("an approval handler returns allow(), deny(), edit() or None")
    if decision.decision == "edit" and not isinstance(decision.arguments, dict):
        raise TypeError("edit() needs the complete arguments as a dict")
    scope = decision.scope
    if decision.decision == "allow" and scope not in approval.scopes:
        log.warning("scope %s is not offered; the call is allowed once", scope)
        scope = "once"
    return ApprovalResponse(
        approval_id=approval.approval_id,
        arguments_digest=approval.arguments_digest,
        decision=decision.decision,
        scope=scope,
        edited_arguments=decision.arguments,
        message=None if decision.message is None else clean(decision.message)[:_MAX_MESSAGE],
    )
