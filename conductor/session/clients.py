"""The clients of a session: their start and reconnects, acknowledgements and diagnostics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import structlog

from conductor.conversation import records as r
from conductor.conversation.consent import Response
from conductor.conversation.receive import connected
from conductor.conversation.state import Profile
from conductor.conversation.turns import greeted
from conductor.events import client
from conductor.events.envelope import SUPERSEDED
from conductor.events.server import (
    Diagnostic,
    EventAck,
    SessionGoaway,
    SessionStarted,
    SttHints,
)
from conductor.prompts import variables_of
from conductor.session.diagnostics import of_start, of_variables
from conductor.session.transport import Transport
from conductor.session.warming import warm_cache
from conductor.tools.declarations import ReadTool

if TYPE_CHECKING:  # its parts are below it
    from conductor.session.session import Session

log = structlog.get_logger(__name__)

# Seconds: one event.ack for all events of a burst.
_BURST_S = 0.1
# Diagnostics of a session; a client could cause any number of different ones.
_MAX_DIAGNOSTICS = 64
# The answer to ``resume``: calls to resend the result of, and calls that the server does not await.
ResumeAnswer: TypeAlias = tuple[list[str], list[str]]


class Clients:
    """Handles the connections and the events of one session's clients."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ack_ids: list[str] = []
        self._unrecorded: dict[str, str] = {}  # ids of results, and of the events that they answer
        self._acking: asyncio.TimerHandle | None = None
        self._flushing: asyncio.TimerHandle | None = None
        self._diagnosed: set[str] = set()
        self._hints: list[str] = []
        self.opening = asyncio.Lock()

    # -- connections

    async def start(
        self,
        event: client.SessionStart,
        transport: Transport,
        *,
        resumed: bool,
        answer: ResumeAnswer | None = None,
        readings: Sequence[ReadTool] | None = None,
    ) -> None:
        """Answer ``session.start``, then replay the events that this client has not handled.

        ``readings`` are the event's tools as the gate's `read` returned them. Raises `StoreError`.
        """
        session = self._session
        services = session.services
        capabilities = tuple(name for name in services.capabilities(transport) if name in event.capabilities)
        model = event.model if event.model in services.choices else None
        tools, declared = event.tools if "tools" in capabilities else None, session.state.profile.tools
        if "tools" in capabilities and declared is None:
            tools = tools or []  # the catalog is for apps that cannot declare
        rejected = session.gate.declare(tools, readings) if tools is not None else None
        if tools is None and declared is None and not resumed:
            catalog, specs = services.catalog_name, services.catalog
            log.info("catalog offered", session=session.key.session_id, catalog=catalog, tools=len(specs))

        greeting = event.greeting if event.resume is None and event.greeting is not None else ""

        def records() -> list[r.Record]:
            former = session.state.profile
            profile = _declared(event, former, capabilities=capabilities, tools=tools, model=model)
            declared: list[r.Record] = [r.ProfileDeclared(profile)] if profile != former else []
            return [*declared, *greeted(session.view, greeting)]

        resend, drop = answer or (None, None)
        transport.resumes, transport.segments = "resume" in capabilities, "segments" in capabilities
        started = SessionStarted(
            session_id=session.key.session_id,
            resumed=resumed,
            capabilities=list(capabilities) if event.capabilities else None,
            accepted_tools=session.gate.declared if rejected is not None else None,
            rejected_tools=rejected,
            reason=None if resumed else "new" if event.resume is None else "not_kept",
            resend=resend,
            drop=drop,
            model=services.serving(model or session.state.profile.model),
            local_only=services.local_only or None,
        )
        session.observer.started("resumed" if resumed else started.reason or "new")
        await self.attach(
            transport,
            resumed=resumed,
            same_process=answer is not None,
            records=records,
            started=started,
        )
        self.diagnose(of_start(event, session.state.profile.model))
        self.diagnose(of_variables(variables_of(services.system_prompt), session.state.profile.variables))
        warm_cache(session, shared=True)

    async def attach(
        self,
        transport: Transport,
        *,
        resumed: bool,
        same_process: bool = False,
        records: Callable[[], list[r.Record]] = list,
        started: SessionStarted | None = None,
    ) -> None:
        """Send to this connection from now on, and suspend any other one of this session.

        ``same_process``: the app was not relaunched since its last connection. Raises `StoreError`.
        """
        async with self.opening:
            session, outbox, view = self._session, self._session.outbox, self._session.view
            previous = outbox.transport
            is_new = previous is not transport
            if is_new and previous is not None:
                outbox.detach()
                previous.suspend()
                # Without ``resume`` an app reconnects after any close: the two would compete for the session.
                if previous.resumes:
                    previous.close(SUPERSEDED, "another connection serves the session")
            if is_new:
                view.live.cards.visible.clear()
                view.live.cards.told.clear()
                view.live.speech.speaking_until = 0
                view.live.speech.heard_at = view.now()

            def decision() -> Response:
                declared = records()
                profiles = (record.profile for record in declared if isinstance(record, r.ProfileDeclared))
                connection = connected(
                    view,
                    outbox.replay(transport),
                    next(profiles, view.state.profile),
                    resumed=resumed,
                    same_process=same_process,
                    is_new=is_new,
                )
                if not view.state.opened and session.services.webhooks.events:
                    declared.insert(0, r.SessionOpened())
                return [*declared, *connection]

            if started is not None and is_new:
                outbox.stop_sending()
            await session.commits.decide(decision)
            if started is not None:
                session.flash(started, to=transport)
            if is_new:
                outbox.attach(transport)
                self._hints = []
            self.hint()
            session.changed()

    def detach(self, transport: Transport) -> None:
        """Handle a closed connection; the running turn continues."""
        session = self._session
        if session.outbox.transport is transport:
            session.outbox.detach()
            session.view.live.cards.visible.clear()
            session.changed()

    # -- what the person says and sees

    def hear(self, *, is_final: bool) -> None:
        """Record that the person speaks, or has spoken."""
        live, now = self._session.view.live, self._begin_utterance()
        live.speech.heard_at = now
        live.speech.speaking_until = 0 if is_final else now + self._session.conduct.floor_ms
        live.speech.sends_partials = live.speech.sends_partials or not is_final

    def hear_onset(self) -> None:
        """Record that the person begins to speak over a speech."""
        live, now = self._session.view.live, self._begin_utterance()
        live.speech.speaking_until = max(live.speech.speaking_until, now + self._session.conduct.pause_ms)

    def _begin_utterance(self) -> int:
        """Record that the person begins to speak, unless an utterance is under way; return the time."""
        live, now = self._session.view.live, self._session.view.now()
        if now >= live.speech.speaking_until:
            live.speech.utterance_began = now
        return now

    def show(self, question_id: str) -> None:
        """Record that the client shows a card."""
        self._session.view.live.cards.visible[question_id] = self._session.view.now()

    def tell(self, question_id: str) -> None:
        """Record that the outcome of a question is sent to the client, if it shows cards."""
        session = self._session
        if session.is_connected and "approval" in session.state.profile.capabilities:
            session.view.live.cards.told.add(question_id)

    def hint(self) -> None:
        """Send the words to listen for, if they are others than this connection has."""
        session = self._session
        if "hints" not in session.state.profile.capabilities or not session.is_connected:
            return
        if (phrases := session.gate.hints()) != self._hints:
            self._hints = phrases
            session.flash(SttHints(phrases))

    def say_goodbye(self, seconds: float, reason: str = "service restart") -> None:
        """Announce the end of the connection."""
        if "goaway" in self._session.state.profile.capabilities:
            self._session.flash(SessionGoaway(round(seconds * 1000), reason))

    async def is_superseded(self, transport: Transport) -> bool:
        """Return whether another connection serves the session, once one that is opening does."""
        if self.opening.locked():
            async with self.opening:
                pass  # its ``idle`` precedes the effects of an event
        return self._session.outbox.transport not in (None, transport)

    def close(self) -> None:
        """Send and record no more acknowledgements."""
        for timer in (self._acking, self._flushing):
            if timer is not None:
                timer.cancel()

    # -- acknowledgements

    def acknowledge(self, *event_ids: str) -> None:
        """Acknowledge to a client with ``resume`` that events are recorded."""
        self._ack_ids.extend(event_ids)
        if self._ack_ids and self._acking is None:
            self._send_acks()

    def acknowledge_result(self, event_id: str, call_id: str) -> None:
        """Acknowledge a call's result once its record is stored, which for a UI call is a later commit's.

        An app forgets an acknowledged result, and the next process would wait for it in vain.
        """
        outbound = self._session.state.outbound.values() if self._session.commits.durable else ()
        unrecorded = next((event.id for event in outbound if event.call_id == call_id), None)
        if unrecorded is None:
            self.acknowledge(event_id)
        else:
            self._unrecorded[event_id] = unrecorded

    @property
    def owes_acknowledgements(self) -> bool:
        """Whether results wait for their record."""
        return bool(self._unrecorded)

    def recorded(self) -> None:
        """Acknowledge the results whose record is stored by now."""
        outbound = self._session.state.outbound
        event_ids = [event_id for event_id, call in self._unrecorded.items() if call not in outbound]
        for event_id in event_ids:
            del self._unrecorded[event_id]
        self.acknowledge(*event_ids)

    def _send_acks(self) -> None:
        self._acking = None
        ack_ids, self._ack_ids = self._ack_ids, []
        transport = self._session.outbox.transport
        if ack_ids and transport is not None and transport.resumes:
            self._session.flash(EventAck(ack_ids))
            self._acking = asyncio.get_running_loop().call_later(_BURST_S, self._send_acks)

    def flush_soon(self) -> None:
        """Record the acknowledged events after a burst of them, unless a turn or a later result will."""
        session = self._session
        is_owed = bool(session.outbox.acked) and session.commits.durable
        rests = session.loop is None and not session.outbox.outstanding
        if is_owed and rests and self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_later(_BURST_S, self._flush_now)

    def _flush_now(self) -> None:
        self._flushing = None
        if not self._session.is_closed and self._session.loop is None:  # a turn records them
            self._session.spawn(self._session.commits.flush())

    # -- diagnostics

    def diagnose(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Send each diagnostic once to a client with the capability; log each code once, without its text."""
        session = self._session
        for diagnostic in diagnostics:
            if diagnostic.code not in self._diagnosed:
                self._diagnosed.add(diagnostic.code)
                log.info("diagnostic", code=diagnostic.code, session=session.key.session_id)
            is_wanted = "diagnostics" in session.state.profile.capabilities
            if is_wanted and len(self._diagnosed) < _MAX_DIAGNOSTICS:
                if diagnostic.message not in self._diagnosed:
                    self._diagnosed.add(diagnostic.message)
                    session.flash(diagnostic)


def _declared(
    event: client.SessionStart,
    former: Profile,
    *,
    capabilities: tuple[str, ...],
    tools: list[Any] | None,
    model: str | None,
) -> Profile:
    """Make the profile that a client declares; fields that it leaves out keep their former values."""
    return Profile(
        capabilities=capabilities,
        locale=event.locale or former.locale,
        lang=event.lang or former.lang,
        time_zone=event.time_zone or former.time_zone,
        instructions=former.instructions if event.instructions is None else event.instructions,
        variables=former.variables if event.variables is None else event.variables,
        tools=former.tools if tools is None else tools,
        model=model or former.model,
        traceparent=event.traceparent or former.traceparent,
        hold_ms=former.hold_ms if event.hold_unfinished_ms is None else event.hold_unfinished_ms,
    )
