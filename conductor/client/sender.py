"""Writing events: each becomes a frame under an id, and is sent once, or kept until it has arrived."""

from __future__ import annotations

from typing import Protocol

from conductor.client.outbox import Answer, Outbox, Way
from conductor.client.results import done_by
from conductor.events.client import ClientEvent, ToolAccepted, ToolCancelled, ToolResultEvent
from conductor.events.envelope import IdSource, encode_event
from conductor.events.server import SessionStarted

MAX_FRAME_BYTES = 2**20
"""Protocol, "Transport": above 1 MiB the server closes the connection."""


class StartedWay(Way, Protocol):
    """A way to the server that knows how the session was started."""

    @property
    def started(self) -> SessionStarted | None:
        """The last ``session.started``."""


class Sender:
    """Sends the events of one session, over all its sockets."""

    def __init__(self, session_id: str, new_id: IdSource, uplink: StartedWay, outbox: Outbox) -> None:
        self._session_id = session_id
        self._new_id = new_id
        self._uplink = uplink
        self._outbox = outbox

    @property
    def connection(self) -> int | None:
        """The number of the socket on which something can be sent now; None where there is none."""
        return self._uplink.connection if self._uplink.connected else None

    @property
    def capabilities(self) -> frozenset[str]:
        """The capabilities that the server has accepted, on the last connection."""
        started = self._uplink.started
        return frozenset((started and started.capabilities) or ())

    def accepts(self, capability: str) -> bool:
        """Whether the server has accepted a capability, on the last connection."""
        return capability in self.capabilities

    def frame(self, event_id: str, event: ClientEvent) -> bytes:
        """Write an event. Raises `ValueError` for one that no frame can carry."""
        frame = encode_event(event_id, self._session_id, event)
        if len(frame) > MAX_FRAME_BYTES:
            raise ValueError(f"an event of {len(frame)} bytes is too large: {MAX_FRAME_BYTES} at most")
        return frame

    async def once(self, event: ClientEvent, event_id: str | None = None) -> str:
        """Send an event on the socket that there is; give its id.

        Raises `ConnectionLost`, and `ValueError` for one that no frame can carry.
        """
        event_id = event_id or self._new_id()
        await self._uplink.send(self.frame(event_id, event))
        return event_id

    async def keep(
        self, event: ToolResultEvent | ToolCancelled | ToolAccepted, *, shown: bool = False
    ) -> None:
        """Send an answer under one id until it is known to have arrived. Raises `ValueError` as `once`.

        ``shown``: it is to a UI call.
        """
        event_id = self._new_id()
        frame = self.frame(event_id, event)
        done = done_by(event, len(frame)) if isinstance(event, ToolResultEvent) and not shown else None
        await self._outbox.put(frame, answer=Answer(event_id, event.call_id, done))

    async def again(self, call_id: str) -> None:
        """Send what was answered to a call once more, under its id; nothing where it is not kept any more."""
        await self._outbox.again(call_id)
