"""Approvals: put the server's requests to the app, and send its decisions."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias

from msgspec.structs import asdict, replace

from conductor.client.calls import clean, takes_two_arguments
from conductor.client.connection import describe_error
from conductor.client.session import Connections, Unconfirmed, remember
from conductor.events.client import ApprovalResponse, ApprovalShown
from conductor.events.server import ApprovalRequest, ApprovalResolved

log = logging.getLogger(__name__)

ApprovalScope: TypeAlias = Literal["once", "session", "always"]

_MAX_MESSAGE = 2_000
_MAX_EDITS = 10  # of one request: it is put to the app again after a refused edit


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
    scope: ApprovalScope = "once"
    arguments: dict[str, Any] | None = None
    message: str | None = None


ApprovalHandler: TypeAlias = Callable[..., Any]
"""Takes an `Approval`; returns an `ApprovalDecision`, or None for no answer. It may be async.

An exception is a refusal. The handler is cancelled when the request is resolved elsewhere. A yes by voice
counts only after ``approval.shown``: the client sends it when the handler returns or first awaits. A handler
that draws the card later takes a second parameter, an async function, and awaits it after drawing.
"""


def allow(scope: ApprovalScope = "once") -> ApprovalDecision:
    """Allow the call as requested. A scope that is not offered becomes ``once``."""
    return ApprovalDecision("allow", scope)


def deny(message: str | None = None) -> ApprovalDecision:
    """Refuse the call. ``message`` gives the model the person's reason."""
    return ApprovalDecision("deny", message=message)


def edit(arguments: dict[str, Any]) -> ApprovalDecision:
    """Allow the call once, with ``arguments`` in place of all its arguments."""
    return ApprovalDecision("edit", arguments=arguments)


@dataclass(slots=True, eq=False)
class _Question:
    approval: Approval
    task: asyncio.Task[None] | None = None
    card: Unconfirmed | None = None  # ``approval.shown``
    decision: Unconfirmed | None = None
    refused: asyncio.Event = field(default_factory=asyncio.Event)  # the edit in ``decision``
    is_settled: bool = False


class Approvals:
    """The approval requests of one session. The handler runs once for each ``approvalId``.

    A decision is sent until it is confirmed, and again when its request is repeated. ``approval.shown`` is
    repeated on each connection: it may lead to another server process.
    """

    def __init__(self, session: Connections, handler: ApprovalHandler | None) -> None:
        self.handler = handler
        self._session = session
        self._questions: dict[str, _Question] = {}

    @property
    def asking(self) -> bool:
        return any(not (q.decision or q.is_settled) for q in self._questions.values())

    def ask(self, request: ApprovalRequest) -> None:
        question = self._questions.get(request.approval_id)
        if question is None or question.approval.arguments_digest != request.arguments_digest:
            if question is not None:  # same id, other arguments: the decision does not apply
                self._settle(question)
            question = _Question(Approval(**asdict(request)))
            remember(self._questions, request.approval_id, question)
            if self.handler is not None:
                question.task = self._session.spawn(self._decide(question, self.handler))
        elif not question.is_settled and question.decision and question.decision not in self._session.entries:
            self._session.spawn(self._send(question, question.decision.event))

    def resolve(self, event: ApprovalResolved) -> None:
        question = self._questions.get(event.approval_id)
        if question is None or question.is_settled:  # as is an accepted edit, of which a copy is refused
            return
        entry, is_refused = question.decision, event.outcome == "refused"
        if is_refused and entry is not None and getattr(entry.event, "decision", None) == "edit":
            self._session.discard(entry.event_id)
            question.decision = None
            question.approval = replace(question.approval, refused=event.message or "It was refused.")
            question.refused.set()
        elif not is_refused or entry is not None:
            self._settle(question)

    def close(self) -> None:
        """Drop the requests of a session that the server has forgotten."""
        for question in self._questions.values():
            self._settle(question)

    async def _decide(self, question: _Question, handler: ApprovalHandler) -> None:
        for _ in range(_MAX_EDITS):
            response = await self._consult(question, handler)
            if response is None or question.is_settled:
                return
            question.refused.clear()
            await self._send(question, response)
            await question.refused.wait()
        await self._send(question, _response(question.approval, deny()))  # else it would block the turn

    async def _consult(self, question: _Question, handler: ApprovalHandler) -> ApprovalResponse | None:
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
            return response
        except Exception as error:
            log.warning("approval handler failed: %s", describe_error(error))
            # Without a message, which the model would attribute to the person. At the time limit the
            # server's own decides.
            return None if limit.expired() else _response(question.approval, deny())

    async def _send(self, question: _Question, response: Any) -> None:
        question.decision = self._session.add(response)
        await self._session.flush()

    async def _show(self, question: _Question) -> None:
        if question.card is None and question.decision is None and not question.is_settled:
            question.card = self._session.add(ApprovalShown(question.approval.approval_id))
            await self._session.flush()

    def _settle(self, question: _Question) -> None:
        # The question stays in the table, so that a replay does not start its handler again.
        question.is_settled = True
        self._session.discard(*(e.event_id for e in (question.card, question.decision) if e is not None))
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
