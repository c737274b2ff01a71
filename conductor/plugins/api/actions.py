"""The endpoints that act in a session: words, facts, decisions, its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from conductor.conversation.consent import Refuse
from conductor.conversation.receive import AppWords
from conductor.errors import Fenced, StoreUnavailable
from conductor.events.client import ContextAdd, Decision
from conductor.events.server import ApprovalResolved
from conductor.plugins.api.requests import ApiCall, ApiError, find_session
from conductor.plugins.api.resources import Accepted, ApprovalOutcome, Ended
from conductor.server.sessions import Visitor
from conductor.session.inbound import record, take_decision
from conductor.session.session import Session
from conductor.stores.base import SessionKey

_T = TypeVar("_T")
# Tries while other processes take the session.
ATTEMPTS = 4


async def in_session(call: ApiCall, work: Callable[[Session], Awaitable[_T]]) -> _T:
    """Work in the session of the path.

    If no process owns it, it is claimed, and released again. Raises `ApiError`, `StoreUnavailable`.
    """
    key, _ = await find_session(call)
    registry, visitor = call.listener.registry, Visitor()
    for _ in range(ATTEMPTS):
        was_here = registry.has(key)  # then its grace period goes on
        session, _ = await registry.bind(key, visitor)
        try:
            return await work(session)
        except Fenced:
            continue
        finally:
            # In memory a session ends with its release.
            registry.unbind(key, visitor, at_once=session.commits.durable and not was_here)
    raise StoreUnavailable("Other processes keep taking the session.")


async def _tell(call: ApiCall, event: AppWords | ContextAdd) -> Accepted:
    async def tell(session: Session) -> Accepted:
        is_repeated = session.state.has_handled(call.event_id)
        response = await record(session, call.event_id, event)
        if isinstance(response, Refuse):
            raise ApiError(429, response.code, response.message)
        return Accepted(call.event_id, is_repeated)

    return await in_session(call, tell)


async def say(call: ApiCall) -> Accepted:
    """Say a text to the person, word for word, once nobody speaks; without a client it waits."""
    return await _tell(call, AppWords(call.body.text))


async def add_context(call: ApiCall) -> Accepted:
    """Tell the model a fact, as the app's ``context.add`` does."""
    return await _tell(call, call.body)


async def decide(call: ApiCall) -> ApprovalOutcome:
    """Decide about a question that waits, as the person's card would."""
    body, question_id = call.body, call.path["approval"]
    decision = Decision(
        approval_id=question_id,
        arguments_digest=body.arguments_digest,
        decision=body.decision,
        scope=body.scope,
        message=body.message,
    )

    async def work(session: Session) -> ApprovalOutcome:
        channel = f"api:{call.key.name}"
        decided = await take_decision(session, decision, channel)
        if not isinstance(decided, ApprovalResolved):
            return ApprovalOutcome(question_id, decided)
        if decided.outcome not in ("allowed", "denied"):
            raise ApiError(409, decided.outcome, decided.message or "It was not decided.")
        return ApprovalOutcome(question_id, decided.outcome)

    return await in_session(call, work)


async def end_session(call: ApiCall) -> Ended:
    """End the running turn, and close the person's connection; the history stays."""

    async def work(session: Session) -> SessionKey:
        await session.end_turn("session_end")
        return session.key

    key = await in_session(call, work)
    await call.listener.registry.end(key.subject, key.session_id)
    return Ended(key.session_id)
