"""Approvals: put the server's requests to the app, and send its decisions."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec

from conductor.client.connection import ConnectionLost, describe_error
from conductor.client.session import Entry, Session, clean, takes_two_arguments
from conductor.events.client import ApprovalResponse, ApprovalShown
from conductor.events.server import ApprovalRequest, ApprovalResolved

log = logging.getLogger(__name__)

Scope: TypeAlias = Literal["once", "session", "always"]

_MAX_MESSAGE = 2_000
_MAX_REQUESTS = 256
_MAX_ROUNDS = 10  # of one request: it is put to the app again after a refused edit


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
"""Takes an `Approval`; returns an `ApprovalDecision`, or None for no answer. It may be async.

An exception is a refusal. The handler is cancelled when the request is resolved elsewhere. A yes by voice
counts only after ``approval.shown``: the client sends it when the handler returns or first awaits. A handler
that draws the card later takes a second parameter, an async function, and awaits it after drawing.
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
    # ``entry`` is the decision, ``connection`` the number of the socket that the request came on, and
    # ``last_shown`` that of the last ``approval.shown``.
    approval: Approval
    connection: int
    task: asyncio.Task[None] | None = None
    entry: Entry | None = None
    rounds: int = 0
    last_shown: int = 0
    is_settled: bool = False

    @property
    def is_open(self) -> bool:
        return self.entry is None and not self.is_settled


class Approvals:
    """The approval requests of one session. The handler runs once for each ``approvalId``.

    A decision is sent until it is confirmed, and again when its request is repeated. ``approval.shown`` is
    repeated on each connection: it may lead to another server process.
    """

    def __init__(self, session: Session, handler: ApprovalHandler | None) -> None:
        self.handler = handler
        self._session = session
        self._questions: dict[str, _Question] = {}  # oldest first

    @property
    def asking(self) -> bool:
        return any(question.is_open for question in self._questions.values())

    def ask(self, request: ApprovalRequest, connection: int) -> None:
        """Put a request to the app, as soon as it is read."""
        question = self._questions.get(request.approval_id)
        if question is not None and question.approval.arguments_digest == request.arguments_digest:
            if question.entry is not None and not question.is_settled:
                if question.entry not in self._session.entries:
                    self._session.spawn(self._send(question, question.entry.event))
            return
        if question is not None:  # same id, other arguments: the decision does not apply
            self._settle(question)
        approval = Approval(**msgspec.structs.asdict(request))
        question = self._questions[request.approval_id] = _Question(approval, connection)
        if len(self._questions) > _MAX_REQUESTS:
            self._settle(self._questions.pop(next(iter(self._questions))))
        self._start_handler(question)

    def resolve(self, event: ApprovalResolved) -> None:
        """Record the outcome of a request, as soon as it is read."""
        question = self._questions.get(event.approval_id)
        if question is None:
            return
        if event.outcome != "refused":
            self._settle(question)
        elif (entry := question.entry) is not None:
            # A repeated edit may be refused because the first copy was accepted.
            if entry.sends != 1 or getattr(entry.event, "decision", None) != "edit":
                return self._settle(question)
            self._session.discard(entry.event_id)
            refused = event.message or "It was refused."
            question.approval = msgspec.structs.replace(question.approval, refused=refused)
            question.entry = None
            self._start_handler(question)

    def welcome(self, *, resumed: bool) -> None:
        """Drop the requests of an expired session on a new connection, and report visible requests."""
        for question in self._questions.values():
            # A new session does not know the requests of the old one.
            if not resumed and question.connection < self._session.connection:
                self._settle(question)
            elif question.last_shown:
                self._session.spawn(self._show(question))

    def _start_handler(self, question: _Question) -> None:
        question.rounds += 1
        if self.handler is not None:
            question.task = self._session.spawn(self._decide(question, self.handler))

    async def _decide(self, question: _Question, handler: ApprovalHandler) -> None:
        # A failed handler refuses the call: only a decision can allow it.
        limit = asyncio.timeout(self._session.limits.approval_s)
        try:
            if question.rounds > _MAX_ROUNDS:
                raise ValueError("The handler repeats a refused edit.")  # it would block the turn
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
            # Without a message, which the model would attribute to the person. At the time limit the
            # server's own decides.
            response = None if limit.expired() else _response(question.approval, deny())
        if response is not None and not question.is_settled:
            await self._send(question, response)

    async def _send(self, question: _Question, response: Any) -> None:
        question.entry = self._session.add(response, self._session.new_id())
        await self._session.flush()

    async def _show(self, question: _Question) -> None:
        connection = self._session.connection
        if question.is_open and question.last_shown != connection:
            question.last_shown = connection
            with contextlib.suppress(ConnectionLost):  # it is sent on the next connection
                await self._session.send(ApprovalShown(question.approval.approval_id))

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
    return ApprovalResponse(
        approval_id=approval.approval_id,
        arguments_digest=approval.arguments_digest,
        decision=decision.decision,
        scope=decision.scope if decision.scope in approval.scopes else "once",
        edited_arguments=decision.arguments,
        message=None if decision.message is None else clean(decision.message)[:_MAX_MESSAGE],
    )
