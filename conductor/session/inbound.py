"""The events of a client: each is recorded by `receive`, or acts at once on facts that are not stored."""

from __future__ import annotations

import asyncio
import math
from enum import Enum, auto
from typing import Any, TypeAlias

import structlog
from msgspec.structs import replace

from conductor.conversation.consent import Later, Refuse, Response, tapped
from conductor.conversation.interruptions import pause_over
from conductor.conversation.phrases import MESSAGES
from conductor.conversation.receive import receive, starts_turn, too_late, was_handled, wordless
from conductor.conversation.records import ContextAdded, ProfileDeclared, QuestionDecided
from conductor.errors import Fenced, StoreError
from conductor.events import client
from conductor.events.codec import Inbound
from conductor.events.server import (
    ApprovalResolved,
    Diagnostic,
    ErrorEvent,
    ToolsChanged,
    ToolsListed,
)
from conductor.images import NONE_TAKEN, Taken, from_base64, take
from conductor.session.clients import ResumeAnswer
from conductor.session.diagnostics import of_dropped_facts, of_ignored, of_images, of_refused_images, of_tools
from conductor.session.session import Session
from conductor.session.transport import Transport
from conductor.session.warming import warm_cache
from conductor.tools.outcomes import Outcome

log = structlog.get_logger(__name__)

_UNKNOWN_CALL = "No tool.call had this callId. It is not the frame's id."
_TOO_MANY = "Too many turns; wait."
_TOO_OFTEN = "Too many changes; wait."
_TWICE = "One decision at a time about each question."


class InboundResult(Enum):
    """The kind of an event.

    ``EXPECTED`` answers a call; ``REFUSED`` got an error; ``COSTLY`` has a long answer;
    ``LATER`` is recorded later, or has to come again; ``REPEATED`` is a transcript that was handled before.
    """

    ORDINARY = auto()
    EXPECTED = auto()
    REFUSED = auto()
    COSTLY = auto()
    LATER = auto()
    REPEATED = auto()


async def handle(session: Session, inbound: Inbound, transport: Transport) -> InboundResult:
    """Handle one event of a connection. Never waits for a turn."""
    event, clients = inbound.event, session.clients
    serves = session.outbox.transport is transport and not clients.opening.locked()
    if not serves and await clients.is_superseded(transport):
        if not isinstance(event, client.ToolResultEvent):
            return InboundResult.ORDINARY
    try:
        result = await _take(session, inbound, transport)
    except Fenced:
        # Another process owns the session and answers the client.
        log.warning("session taken over", session=session.key.session_id)
        return InboundResult.ORDINARY
    except StoreError as error:
        _refuse(session, Refuse(error.code, MESSAGES.get(error.code, "")), inbound.id)
        await session.reopen_microphone()
        return InboundResult.ORDINARY
    is_recorded = result not in (InboundResult.REFUSED, InboundResult.LATER)
    if transport.resumes and is_recorded and event is not None and event.RECORDED:
        if isinstance(event, client.ToolResultEvent):
            clients.acknowledge_result(inbound.id, event.call_id)
        else:
            clients.acknowledge(inbound.id)
    if result is InboundResult.REPEATED:
        await session.reopen_microphone()  # its turn may be over
    return result


async def _take(  # noqa: C901 -- a case an event
    session: Session, inbound: Inbound, transport: Transport
) -> InboundResult:
    event, capabilities = inbound.event, session.state.profile.capabilities
    if event is None or event.CAPABILITY not in ("", *capabilities):
        return _ignore(session, inbound)
    view, outbox = session.view, session.outbox
    match event:
        case client.ToolResultEvent():
            return await _take_result(session, inbound.id, event)
        case client.ToolCancelled() | client.ToolAccepted():
            if not await _report(session, inbound.id, event):
                return InboundResult.LATER
        case client.TranscriptFinal():
            return await _take_transcript(session, inbound.id, event)
        case client.TranscriptPartial():
            session.clients.hear(is_final=False)
            warm_cache(session, shared=False)
            session.changed()
        case client.OutputInterrupted():
            await record(session, inbound.id, event)
            if outbox.transport is not None:
                outbox.transport.drop_partials()
        case client.OutputPaused():
            session.clients.hear_onset()
            await record(session, inbound.id, event)
        case client.SessionUpdate(tools=list(tools)) if "tools" in capabilities:
            await _declare(session, tools, inbound.id, transport)
        case client.ApprovalResponse():
            if not await _take_decisions(session, event, transport):
                return InboundResult.LATER
        case client.ApprovalShown():
            question = session.state.questions.get(event.approval_id)
            if question is not None and question.card and view.was_sent(event.approval_id):
                session.clients.show(event.approval_id)
        case client.ContextAdd():
            await _add_context(session, inbound.id, event)
        case client.ResponseCancel():
            await record(session, "", event)
        case client.ToolStarted() | client.ToolProgress():
            outbox.extend(event.call_id)
        case client.ToolsList() if session.services.may_inspect(transport):
            session.flash(_list_tools(session))
            return InboundResult.COSTLY
        case _ if event.RECORDED:  # by `receive`, without a further effect
            response = await record(session, inbound.id, event)
            if isinstance(response, Refuse):
                _refuse(session, response, inbound.id)
                return InboundResult.REFUSED
            outbox.expect_no_acknowledgements()
        case _:
            return _ignore(session, inbound)
    return InboundResult.ORDINARY


def _list_tools(session: Session) -> ToolsListed:
    services = session.services
    return ToolsListed(
        tools=session.gate.listed,
        model=services.serving(session.state.profile.model) or services.provider.name,
        prompt_name=services.observers.prompt[0],
        prompt_version=services.observers.prompt[1],
        prompt=session.gate.system_prompt,
        models=services.choices,
    )


def _ignore(session: Session, inbound: Inbound) -> InboundResult:
    log.debug("event ignored", type=inbound.type[:64], session=session.key.session_id)
    session.clients.diagnose([of_ignored(inbound)])
    return InboundResult.ORDINARY


async def record(session: Session, event_id: str, event: object, taken: Taken = NONE_TAKEN) -> Response:
    """Commit the meaning of an event with the images ``taken`` of it. Raises `StoreError`."""
    return await session.commits.decide(lambda: receive(session.view, event_id, event, taken), taken=taken)


async def _add_context(session: Session, event_id: str, event: client.ContextAdd) -> None:
    match await record(session, event_id, event):
        case [ContextAdded(dropped=dropped)] if dropped:
            session.clients.diagnose([of_dropped_facts(event_id)])


# -- results


async def _take_result(session: Session, event_id: str, event: client.ToolResultEvent) -> InboundResult:
    state = session.state
    if not event.call_id.startswith("call_"):  # as all ids of this server do
        session.clients.diagnose([Diagnostic("warning", "unknown_call", _UNKNOWN_CALL, event_id)])
    if isinstance(event, client.UnreadableResult):
        message = f"The result could not be read: {event.why}."
        session.clients.diagnose([Diagnostic("warning", "unreadable_result", message, event_id)])
    call = state.open_call(event.call_id)
    if call is not None and call.is_device:
        session.outbox.extend(event.call_id)  # it must not time out while its result is recorded
        if not await _report(session, event_id, event):
            return InboundResult.LATER
        expected = True
    else:
        expected = _acknowledge(session, event.call_id)
        prompts = {question.speech_id for question in state.questions.values()}
        if event.call_id in prompts or event.call_id in state.late_calls:
            await record(session, "", event, _taken(session, event_id, event))
    session.clients.flush_soon()
    return InboundResult.EXPECTED if expected else InboundResult.ORDINARY


def _acknowledge(session: Session, call_id: str) -> bool:
    """Handle the answer of a call; returns whether the call was outstanding.

    It ends in the outbox: of all that a step rests on, only news wait for the end of a speech.
    """
    expected = session.outbox.acknowledge(call_id)
    if expected and session.state.notices:
        session.changed()
    return expected


Report: TypeAlias = client.ToolResultEvent | client.ToolCancelled | client.ToolAccepted


async def _report(session: Session, event_id: str, event: Report) -> bool:
    """Commit a device's report about a call, and tell whether it is recorded.

    If the store is away it is recorded, and acknowledged, later: the app need not send it again.
    """
    taken = _taken(session, event_id, event)
    try:
        await record(session, "", event, taken)
    except Fenced:
        raise
    except StoreError:
        session.spawn(_insist_report(session, event_id, event, taken))
        return False
    _acknowledge(session, event.call_id)
    return True


async def _insist_report(session: Session, event_id: str, event: Report, taken: Taken) -> None:
    is_recorded = await session.commits.insist(lambda: receive(session.view, "", event, taken), taken=taken)
    if is_recorded:
        _acknowledge(session, event.call_id)
        session.clients.acknowledge(event_id)


def _taken(session: Session, event_id: str, event: object) -> Taken:
    """Check the images of an event, from a client that may give some."""
    images = event.images if isinstance(event, client.ToolResultEvent | client.TranscriptFinal) else ()
    if not images:
        return NONE_TAKEN
    if "images" not in session.state.profile.capabilities:
        session.clients.diagnose([of_images(event_id)])
        return NONE_TAKEN
    taken = take([from_base64(image.mime_type, image.data) for image in images])
    if taken.refusals:
        session.clients.diagnose([of_refused_images(taken.refusals, event_id)])
    return taken


async def learn(session: Session, event: client.SessionStart) -> ResumeAnswer | None:
    """Record the results that a reconnecting client reports. Raises `StoreError`.

    None without ``resume``.
    """
    resume = event.resume
    if resume is None or "resume" not in event.capabilities:
        return None
    resend: list[str] = []
    drop: list[str] = []
    for report in resume.done:
        if not _awaits(session, report.call_id):
            drop.append(report.call_id)
        elif report == client.ToolResultEvent(report.call_id):
            resend.append(report.call_id)
        else:
            # Not later: ``session.started`` tells the client that it may forget the result.
            await record(session, "", report, _taken(session, "", report))
            session.outbox.acknowledge(report.call_id)
    drop += [call_id for call_id in resume.pending if not _awaits(session, call_id)]
    # UI calls are acknowledged by `handled`; the bound holds against any number of invented ids.
    drop = [call_id for call_id in drop if not session.outbox.is_ui_call(call_id)][: client.MAX_RESUMED]
    reads_on = not {"segments", "pause"}.isdisjoint(event.capabilities)
    session.outbox.handled(resume.last_event_id, reads_on=reads_on)
    return resend, drop


def _awaits(session: Session, call_id: str) -> bool:
    call, late = session.state.open_call(call_id), session.state.late_calls.get(call_id)
    is_late = late is not None and late.expires_at > session.view.now()
    return (call is not None and call.is_device) or is_late


# -- words


async def _take_transcript(session: Session, event_id: str, event: client.TranscriptFinal) -> InboundResult:
    view = session.view
    session.clients.hear(is_final=True)
    if was_handled(session.state, event_id, event):
        return InboundResult.REPEATED
    if (noise := wordless(view, event.text)) is not None:
        return await _refuse_noise(session, noise, event_id)
    taken = _taken(session, event_id, event)
    session.outbox.expect_no_acknowledgements()  # after a noise the speech goes on
    wait_s, is_counted = 0.0, False

    def decision() -> Response:
        nonlocal wait_s, is_counted
        response = receive(view, event_id, event, taken)
        if starts_turn(response):
            wait_s = session.take_rate()
            is_counted = not wait_s
        return Refuse("rate_limited", _TOO_MANY, wait_s) if wait_s else response

    try:
        response = await session.commits.decide(decision, taken=taken)
    except StoreError:  # the client sends it again
        if is_counted:
            session.bucket.give_back()
        raise
    if isinstance(response, Refuse):
        if not wait_s:
            session.refuse_input()
        return await _refuse_transcript(session, response, event_id)
    if isinstance(response, Later):
        session.spawn(_record_later(session, response, event_id, event=event, taken=taken))
        return InboundResult.LATER
    return InboundResult.ORDINARY


async def _record_later(
    session: Session, later: Later, event_id: str, *, event: client.TranscriptFinal, taken: Taken
) -> None:
    """Commit words that may have been an echo, unless their question is closed by then."""

    def decision() -> Response:
        focus = session.state.focus
        if focus is None or focus.id != later.question_id or focus.card:
            return too_late(session.view, event_id, event, later.question_id, taken=taken)
        return receive(session.view, event_id, event, taken)

    response: Response = later
    try:
        while isinstance(response, Later):
            await asyncio.sleep(max(0, response.at - session.view.now()) / 1000)
            response = await session.commits.decide(decision, taken=taken)
        session.clients.acknowledge(event_id)
    except StoreError as error:
        session.report_store_failure(error)


async def _refuse_transcript(session: Session, refusal: Refuse, event_id: str) -> InboundResult:
    _refuse(session, refusal, event_id)
    await session.reopen_microphone()
    return InboundResult.REFUSED


async def _refuse_noise(session: Session, refusal: Refuse, event_id: str) -> InboundResult:
    """Refuse a transcript without words; a speech that was paused for it goes on."""
    _refuse(session, refusal, event_id)
    if not await session.commits.decide(lambda: pause_over(session.view)):
        await session.reopen_microphone()
    return InboundResult.REFUSED


def _refuse(session: Session, refusal: Refuse, event_id: str) -> None:
    retry_ms = None if refusal.retry_after_s is None else math.ceil(refusal.retry_after_s * 1000)
    session.flash(
        ErrorEvent(code=refusal.code, message=refusal.message, event_id=event_id, retry_after_ms=retry_ms)
    )


# -- extensions


async def _take_decisions(session: Session, event: client.ApprovalResponse, transport: Transport) -> bool:
    """Commit decisions, or refuse them; returns whether the client has each refusal."""
    decided: set[str] = set()
    are_told = True
    for decision in event.all():
        question_id = decision.approval_id
        resolved: ApprovalResolved | Outcome
        if question_id in decided:
            resolved = ApprovalResolved(question_id, "refused", _TWICE)
        elif decision.decision == "edit" and session.take_rate():
            # An edit is validated again, so it costs as much as a turn.
            resolved = ApprovalResolved(question_id, "refused", _TOO_OFTEN)
        else:
            resolved = await take_decision(session, decision)
            await asyncio.sleep(0)  # validating an edit takes up to 30 ms: let other sessions run
        decided.add(question_id)
        if isinstance(resolved, ApprovalResolved):
            if session.outbox.transport is transport:
                session.flash(resolved)
                session.clients.tell(question_id)
            else:  # a later connection did not ask
                are_told = False
    return are_told


async def take_decision(
    session: Session, decision: client.Decision, decided_by: str = ""
) -> ApprovalResolved | Outcome:
    """Commit a decision about a card, of the client or of the key ``decided_by``.

    Returns the outcome, or its refusal. Raises `StoreError`.
    """
    question = session.state.questions.get(decision.approval_id)
    is_lasting = decision.decision == "allow" and decision.scope == "always"
    if question is not None and is_lasting and "always" in question.scopes:
        # First, in the person's record: after the decision its failure would turn "always" into "once".
        if _outcome_of(question.id, tapped(session.view, decision, decided_by)) == "allowed":
            await session.gate.grant_always(question)
    response = await session.commits.decide(lambda: tapped(session.view, decision, decided_by))
    if isinstance(response, ApprovalResolved):
        return response
    outcome = _outcome_of(decision.approval_id, response)
    assert outcome is not None
    return outcome


def _outcome_of(question_id: str, response: Response) -> Outcome | None:
    records = response if isinstance(response, list) else []
    decided = (record for record in records if isinstance(record, QuestionDecided))
    return next((record.outcome for record in decided if record.question_id == question_id), None)


async def _declare(session: Session, tools: list[Any], event_id: str, transport: Transport) -> None:
    readings = await session.gate.read(tools)
    if await session.clients.is_superseded(transport):
        return
    rejected = session.gate.declare(tools, readings)
    changed = replace(session.state.profile, tools=tools)
    await session.commits.decide(lambda: [ProfileDeclared(changed)])
    session.flash(ToolsChanged(session.gate.declared, rejected))
    session.clients.hint()
    session.clients.diagnose(of_tools(tools, event_id))
