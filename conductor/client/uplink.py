"""A session's way to the server: the socket there is now, how the next one starts, what has been seen."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from conductor.client.errors import ClientError, ConnectionLost, StartRefused, WaitTimeout
from conductor.client.frames import Received, SeenIds, decode_frame
from conductor.client.link import Link
from conductor.client.options import ClientOptions
from conductor.client.tasks import where
from conductor.events.client import SessionStart
from conductor.events.envelope import IdSource, encode_event
from conductor.events.server import ErrorEvent, SessionStarted

log = logging.getLogger(__name__)

KEPT_RECEIVED = 2_000


class Uplink:
    """One socket at a time, each opened with ``session.start``; new events go into ``inbox``.

    ``notice`` sees each of them first, whatever waits there, and ``begun`` the answer to ``session.start``
    before anything that follows it.

    Sockets are opened one after the other by whoever calls `open`: reconnecting by itself is the keeper's.
    ``connection`` counts them, ``number`` the events that were no duplicates; ``started`` is the last
    ``session.started``, ``lost`` says why there is no socket now.
    """

    def __init__(
        self,
        options: ClientOptions,
        new_id: IdSource,
        notice: Callable[[Received], None],
        begun: Callable[[SessionStarted], None],
    ) -> None:
        self.inbox: asyncio.Queue[Received] = asyncio.Queue(options.limits.backlog)
        self.received: deque[Received] = deque(maxlen=KEPT_RECEIVED)
        self.connection = 0
        self.number = 0
        self.lost: ConnectionLost | None = None
        self.started: SessionStarted | None = None
        self._options = options
        self._new_id = new_id
        self._notice = notice
        self._begun = begun
        self._seen = SeenIds(options.limits.seen)
        self._link: Link | None = None
        self._reader: asyncio.Task[None] | None = None
        self._down = asyncio.Event()  # set while there is no socket
        self._down.set()
        self._opening = asyncio.Lock()
        self._starting: tuple[str, asyncio.Future[SessionStarted | ClientError]] | None = None
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether there is a socket and the server has answered ``session.start`` on it."""
        return not self._down.is_set()

    @property
    def acknowledges(self) -> bool:
        """Whether the server says by ``event.ack`` what it has recorded (capability ``resume``)."""
        return self.started is not None and "resume" in (self.started.capabilities or ())

    async def open(self, start: Callable[[], SessionStart], *, anew: bool = True) -> SessionStarted:
        """Open a new socket, closing the one there is, and start the session on it.

        ``start`` makes the ``session.start``, once the socket is there. Without ``anew`` a socket that is
        there stays.

        Raises `CannotConnect`, `StartRefused`, `ConnectionLost` and `WaitTimeout`.
        """
        async with self._opening:
            if self.connected and self.started is not None and not anew:
                return self.started
            await self._retire(ConnectionLost("The client is reconnecting."))
            link = await Link.open(self._options)
            self._link = link
            try:
                if self._closed:
                    raise ConnectionLost("The client was closed.")
                started = await self._handshake(link, start)
            except BaseException:  # no half-open socket stays behind, whatever ends the attempt
                link.abort()
                await self._retire(ConnectionLost("The session did not start."))
                raise
            if self._link is link:  # else it went at once, and why is noted
                self.lost = None
                self._down.clear()
            return started

    async def close(self, why: ConnectionLost) -> None:
        """Close the socket, for good."""
        self._closed = True
        await self._retire(why)

    def drop(self) -> None:
        """Cut the socket without a close frame; nothing more is read from it."""
        if self._link is not None:
            if self._reader is not None:
                self._reader.cancel()
            self._link.abort()
            self._note_lost(self._link, ConnectionLost("The connection was dropped by this client."))

    async def wait_lost(self, timeout: float | None) -> ConnectionLost:
        """Wait until there is no socket and say why. Raises `WaitTimeout`."""
        try:
            async with asyncio.timeout(timeout):
                await self._down.wait()
        except TimeoutError:
            raise WaitTimeout(f"The connection stood for {timeout:g} s.") from None
        return self.lost or ConnectionLost("The client has not been started.")

    async def send(self, frame: bytes) -> None:
        """Send a frame. Raises `ConnectionLost`."""
        link = self._link
        if link is None or not self.connected:
            raise ConnectionLost(str(self.lost or "There is no connection."))
        try:
            await link.send(frame)
        except ConnectionLost as lost:
            self._note_lost(link, lost)
            raise

    async def _handshake(self, link: Link, start: Callable[[], SessionStart]) -> SessionStarted:
        """Send ``session.start`` and wait for its answer."""
        self.connection += 1
        event_id = self._new_id()
        answer: asyncio.Future[SessionStarted | ClientError] = asyncio.get_running_loop().create_future()
        self._starting = event_id, answer
        self._reader = asyncio.create_task(self._read(link, self.connection))
        seconds = self._options.limits.start_s
        try:
            await link.send(encode_event(event_id, self._options.session_id, start()))
            async with asyncio.timeout(seconds):
                result = await answer
        except TimeoutError:
            raise WaitTimeout(f"The server did not start the session within {seconds:g} s.") from None
        finally:
            self._starting = None
        if isinstance(result, ClientError):
            raise result
        return result

    def _note_lost(self, link: Link, lost: ConnectionLost) -> None:
        """Note that a socket is gone; once, and only if it is the present one."""
        if self._link is not link:
            return
        self._link = None
        self.lost = lost
        self._down.set()
        self._answer_start(lost)

    async def _retire(self, why: ConnectionLost) -> None:
        """Take the present socket out of use and close it."""
        link, reader = self._link, self._reader
        if reader is not None:
            reader.cancel()
            await asyncio.wait({reader}, timeout=self._options.limits.close_s)
            self._reader = None
        if link is not None:
            self._note_lost(link, why)
            await link.close()

    def _answer_start(self, answer: SessionStarted | ClientError) -> None:
        if self._starting is not None and not self._starting[1].done():
            self._starting[1].set_result(answer)

    async def _read(self, link: Link, connection: int) -> None:
        """Read one socket until it ends. Nothing here waits for a handler: pings must be answered."""
        limits = self._options.limits
        try:
            while True:
                frame = await link.receive()
                received = self._take(frame, connection)
                if received is not None:
                    self._notice(received)
                    await self._deliver(received)
        except ConnectionLost as lost:
            self._note_lost(link, lost)
        except TimeoutError:
            link.abort()
            self._note_lost(link, ConnectionLost(f"The handlers took nothing for {limits.backlog_s:g} s."))
        except Exception as error:
            log.error("reader failed: %s", where(error))
            link.abort()
            self._note_lost(link, ConnectionLost("The client failed to read."))

    async def _deliver(self, received: Received) -> None:
        try:
            async with asyncio.timeout(self._options.limits.backlog_s):
                await self.inbox.put(received)
        except BaseException:
            self._seen.forget(received.id)  # nobody handled it: let a replay bring it again
            raise

    def _take(self, frame: bytes, connection: int) -> Received | None:
        """Record a frame; None where it is to go no further."""
        decoded = decode_frame(frame)
        if decoded is None:
            log.debug("a frame of %d bytes is no event", len(frame))
            return None
        event_id, event = decoded
        new = self._seen.add(event_id)
        self.number += new
        received = Received(event_id, event, connection, self.number, not new)
        self.received.append(received)
        if isinstance(event, SessionStarted) and self._starting and not self._starting[1].done():
            self.started = event
            self._begun(event)
            self._answer_start(event)
        elif isinstance(event, ErrorEvent) and self._starting is not None:
            if event.event_id in (None, self._starting[0]) and not self._starting[1].done():
                self._answer_start(StartRefused(event))
                return None  # it is raised to whoever starts the session, and heard of only there
        return received if new else None
