"""Delivery of the events that wait in sessions: in order by session, again until the receiver takes them."""

from __future__ import annotations

import asyncio
import base64
import hmac
import random
import time
from weakref import WeakKeyDictionary

import httpx2
import msgspec
import structlog

from conductor.clock import epoch_ms
from conductor.conversation.events import iso_time
from conductor.conversation.state import WebhookEvent
from conductor.errors import StoreError
from conductor.plugins.webhooks.file import WebhookFile
from conductor.session.fields import SubjectRecords
from conductor.session.services import Observed
from conductor.session.session import Session
from conductor.stores.base import NEVER_EXPIRES, SessionKey

log = structlog.get_logger(__name__)

# Requests at the same time, and seconds of each.
AT_ONCE = 16
REQUEST_S = 10.0
# Seconds until the second try, and the longest between two.
RETRY_S, MAX_RETRY_S = 1.0, 120.0
# Seconds that a session which ends waits for its last events.
SETTLE_S = 1.0
# Events that wait in a session; older ones are given up.
MAX_WAITING = 256
# Subject and field of the events that were given up, and their number.
DEAD, DEAD_FIELD = f"{NEVER_EXPIRES}webhooks", "dead"
MAX_DEAD = 1_000


class DeadEvent(msgspec.Struct, frozen=True):
    """An event that was given up; ``at`` is epoch milliseconds, ``reason`` the last try's."""

    id: str
    type: str
    person: str
    session: str
    at: int
    reason: str


def read_dead(text: str) -> tuple[DeadEvent, ...]:
    """Decode the events that were given up."""
    return msgspec.json.decode(text, type=tuple[DeadEvent, ...]) if text else ()


def sign(key: bytes, event_id: str, seconds: int, body: bytes) -> str:
    """Sign a request as Standard Webhooks says."""
    digest = hmac.digest(key, f"{event_id}.{seconds}.".encode() + body, "sha256")
    return "v1," + base64.b64encode(digest).decode()


class Deliverer:
    """Sends events to the receiver of ``file`` by the ``transport``.

    An event is given up after ``patience_s``, or if too many wait behind it. ``problem``: why the receiver
    did not take the last one.
    """

    def __init__(
        self, file: WebhookFile, transport: httpx2.AsyncBaseTransport, dead: SubjectRecords, patience_s: float
    ) -> None:
        self._file = file
        self._transport = transport
        self._dead = dead
        self._patience_ms = round(patience_s * 1000)
        self._tasks: dict[Observed, asyncio.Task[None]] = {}
        # Accepted by the receiver; the session's next commit removes them from its state.
        self._delivered: WeakKeyDictionary[Observed, set[str]] = WeakKeyDictionary()
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self.problem = ""

    def wake(self, session: Observed) -> None:
        """Start the delivery of a session's waiting events."""
        if session not in self._tasks:
            self._tasks[session] = asyncio.create_task(self._deliver(session))

    async def settle(self, session: Observed, seconds: float = SETTLE_S) -> None:
        """Wait for the delivery of a session's events, if it is under way."""
        if (task := self._tasks.get(session)) is not None:
            await asyncio.wait([task], timeout=seconds)

    async def aclose(self) -> None:
        """Stop. Another process delivers the waiting events, or this one after its next start."""
        for task in (tasks := list(self._tasks.values())):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _deliver(self, session: Observed) -> None:
        assert isinstance(session, Session)
        waiting, failures = session.state.webhook_events, 0
        delivered = self._delivered.setdefault(session, set())
        delivered.intersection_update(waiting)
        try:
            while event := next((event for event in waiting.values() if event.id not in delivered), None):
                is_crowded = len(waiting) - len(delivered) > MAX_WAITING
                if not await self.deliver(session.key, event, is_crowded=is_crowded):
                    if session.is_closed:
                        return
                    await asyncio.sleep(min(MAX_RETRY_S, RETRY_S * 2.0**failures) * random.uniform(0.5, 1.0))
                    failures += 1
                    continue
                failures = 0
                delivered.add(event.id)
                session.outbox.acked.append(event.id)
                session.clients.flush_soon()
        finally:
            del self._tasks[session]

    async def deliver(self, key: SessionKey, event: WebhookEvent, *, is_crowded: bool = False) -> bool:
        """Send an event once; False if it has to be sent again. An old or crowded one is given up."""
        problem = "too many events" if is_crowded else await self._send(key, event)
        is_late = is_crowded or epoch_ms() - event.at >= self._patience_ms
        return not problem or (is_late and await self._bury(key, event, problem))

    async def _send(self, key: SessionKey, event: WebhookEvent) -> str:
        """Send an event; returns why the receiver did not take it, empty if it did."""
        data = {"person": key.subject, "session": key.session_id or None, **event.data}
        body = msgspec.json.encode({"type": event.type, "timestamp": iso_time(event.at), "data": data})
        seconds = int(time.time())
        headers = {
            "Content-Type": "application/json",
            "webhook-id": event.id,
            "webhook-timestamp": str(seconds),
            "webhook-signature": sign(self._file.secret, event.id, seconds, body),
        }
        try:
            async with self._at_once, asyncio.timeout(REQUEST_S):
                request = httpx2.Request("POST", str(self._file.url), content=body, headers=headers)
                response = await self._transport.handle_async_request(request)
                answer = response.extensions["body"]
                await answer.read()  # a short one to its end, so that the connection is used again
                answer.close()
            problem = "" if 200 <= response.status_code < 300 else f"status {response.status_code}"
        except Exception as error:  # one event that cannot be sent must not end the delivery of others
            problem = type(error).__name__
        if problem != self.problem:
            self.problem = problem
            if problem:
                log.warning("webhook not taken; will retry", reason=problem)
            else:
                log.info("webhook taken")
        return problem

    async def _bury(self, key: SessionKey, event: WebhookEvent, reason: str) -> bool:
        dead = DeadEvent(event.id, event.type, key.subject, key.session_id, event.at, reason)

        def add(text: str) -> str:
            entries = [entry for entry in read_dead(text) if entry.id != dead.id]
            return msgspec.json.encode([*entries, dead][-MAX_DEAD:]).decode()

        try:
            await self._dead.update(DEAD, DEAD_FIELD, add)
        except StoreError as error:
            log.warning("webhook not given up; will retry", error=type(error).__name__)
            return False
        log.error(
            "webhook given up", event_id=event.id, type=event.type, session=key.session_id, reason=reason
        )
        return True
