"""Asking the app about calls that need a person's consent, and answering the server once for each."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, TypeAlias

from conductor.client.errors import ConnectionLost
from conductor.client.options import ClientLimits
from conductor.client.results import clean
from conductor.client.sender import Sender
from conductor.client.tasks import where
from conductor.events.client import ApprovalResponse
from conductor.events.server import ApprovalRequest, ApprovalResolved

log = logging.getLogger(__name__)

Scope: TypeAlias = Literal["once", "session", "always"]

MAX_MESSAGE = 2_000
MAX_ASKED = 10
"""So often one question is asked at most: again only when the server refused the person's edit."""
_NOT_ACCEPTED = "The changed arguments were not accepted."
_NOT_ASKED = "The app could not ask the person."


@dataclass(frozen=True, slots=True)
class Approval:
    """What a person is asked: whether this tool may run with these arguments.

    ``reasons`` say why it is asked, ``prompt`` is the question in words, ``scopes`` are those that an `allow`
    may have. Requests with the same ``batch_id`` are about one reply. ``refused`` says why the edit that was
    answered before does not count, where the question is asked again. Texts come from a model and from the
    server: a screen must show control characters in them, not obey them.
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


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """What the person decided; made by `allow`, `deny` and `edit`."""

    decision: Literal["allow", "deny", "edit"]
    scope: Scope = "once"
    arguments: dict[str, Any] | None = None
    message: str | None = None


ApprovalHandler: TypeAlias = Callable[[Approval], Any]
"""Takes the question and returns (or, async, comes to return) an `ApprovalDecision`.

None leaves it open: the person answers by voice, or nobody does. It is cancelled when the question no longer
stands.
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
    """One request. It came on the socket ``came_on``; ``sent_on`` is the one that had the decision last."""

    approval: Approval
    digest: str
    came_on: int
    task: asyncio.Task[None] | None = None
    decision: ApprovalDecision | None = None
    asked: int = 0
    sent: int = 0
    sent_on: int = 0
    settled: bool = False


class Approvals:
    """The questions of one session, over all its sockets; each is asked once, by its ``approvalId``.

    A decision is sent on every connection, each time under a fresh envelope id, until the server has said
    what became of it: it may have been lost, and a second one does no harm.
    """

    def __init__(self, limits: ClientLimits, sender: Sender) -> None:
        self.handler: ApprovalHandler | None = None
        self._limits = limits
        self._sender = sender
        self._questions: OrderedDict[str, _Question] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def arrived(self, request: ApprovalRequest, connection: int) -> None:
        """Note a request as soon as it is read, on a socket of that number; `ask` asks it."""
        known = self._questions.get(request.approval_id)
        if known is not None and known.digest == request.arguments_digest:
            if known.decision is not None and not known.settled:
                self._spawn(self._send(known))
            return
        if known is not None:  # the same name for other arguments: what was decided is not about these
            self._settle(known)
        self._questions[request.approval_id] = _Question(
            _approval(request), request.arguments_digest, connection
        )
        self._questions.move_to_end(request.approval_id)
        if len(self._questions) > self._limits.approvals:
            _, oldest = self._questions.popitem(last=False)
            self._settle(oldest)

    def ask(self) -> None:
        """Ask what has come and was not asked yet, each in a task of its own."""
        if self.handler is None:
            return
        for question in self._questions.values():
            if not question.asked and not question.settled:
                self._ask(question, self.handler)

    def resolved(self, event: ApprovalResolved) -> None:
        """Take what the server says of a question: it is not waited for any more, or asked again."""
        question = self._questions.get(event.approval_id)
        if question is None or question.settled:
            return
        if event.outcome != "refused":
            self._settle(question)
        elif question.decision is not None:
            # An edit that was sent twice may have been taken the first time, and refused only then.
            if question.decision.decision != "edit" or question.sent != 1 or self.handler is None:
                self._settle(question)
                return
            question.approval = replace(question.approval, refused=event.message or "It was refused.")
            question.decision, question.sent, question.sent_on = None, 0, 0
            if question.asked < MAX_ASKED:
                self._ask(question, self.handler)
            else:  # a handler that does not learn must not hold up the turn
                question.decision = deny(_NOT_ACCEPTED)
                self._spawn(self._send(question))

    async def flush(self, connection: int, *, resumed: bool) -> None:
        """Send the decisions that this connection has not had; forget those of a session that is gone."""
        for question in list(self._questions.values()):
            if not resumed and question.came_on < connection:
                self._settle(question)
            elif question.decision is not None and not question.settled:
                await self._send(question)

    async def close(self, seconds: float) -> None:
        """Stop the handlers, and wait for their ends so long at most."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    def _ask(self, question: _Question, handler: ApprovalHandler) -> None:
        question.asked += 1
        question.task = self._spawn(self._decide(question, handler))

    async def _decide(self, question: _Question, handler: ApprovalHandler) -> None:
        """Ask the app and answer the server; the top of its task. Failing is a refusal, never a consent."""
        limit = asyncio.timeout(self._limits.approval_s)
        try:
            async with limit:
                value = handler(question.approval)
                if inspect.isawaitable(value):
                    value = await value
            decision = _checked(value, question.approval)
            if decision is not None:
                self._sender.frame("check", _response(question, decision))
        except Exception as error:
            log.warning("approval handler failed: %s", where(error))
            if limit.expired():
                return  # nobody answered, which is no refusal; the server's own time limit says so
            decision = deny(_NOT_ASKED)
        if decision is not None and not question.settled:
            question.decision = decision
            await self._send(question)

    async def _send(self, question: _Question) -> None:
        """Send a decision, unless this connection has had it; without one it waits for the next."""
        connection = self._sender.connection
        if question.decision is None or connection is None or question.sent_on == connection:
            return
        question.sent_on = connection
        question.sent += 1
        try:
            await self._sender.once(_response(question, question.decision))
        except ConnectionLost:
            log.debug("a decision waits for the next connection")

    def _settle(self, question: _Question) -> None:
        """Do no more about a question; it is remembered, so that a replay does not ask it again."""
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
    )


def _checked(value: Any, approval: Approval) -> ApprovalDecision | None:
    """Take a handler's answer. Raises `TypeError` for anything that is none: no value means yes by chance."""
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
