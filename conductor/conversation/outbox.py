"""Outbound events of a session: order, replay, and the time limits of calls.

The shipped client handles one event at a time and answers a call before it reads the next. So calls wait in
a `SerialCallQueue`: only the first one's time limit runs. A second ``tts.speak`` is held, with everything
after it, until the first one is over. A client with ``segments`` queues speeches itself.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import cast

import msgspec

from conductor.conversation.serial_calls import SerialCallQueue, UnackedEvent
from conductor.conversation.transport import Frame, Transport
from conductor.events.envelope import precedes
from conductor.events.server import ConversationState
from conductor.settings import Limits
from conductor.stores.base import OutboundRecord

_UI_CALLS = ("state", "message", "speak")
# Kinds that are never evicted: they are few, and a turn waits for each of them.
_KEPT = ("call", "approval")
# Minimum seconds for a call of another process: its client has just connected.
_MIN_RESTORED_S = 1.0
# A client with this many unanswered UI calls sends no acknowledgements; a turn sends four before its speech.
_SIGNS_OF_SILENCE = 4


class Outbox:
    """The unacknowledged events of one session, and the transport that carries them.

    ``on_expired`` is called for each call that timed out, and each speech that will not be acknowledged.
    ``removed`` are the ids of events that the next commit removes from the store. ``shown_at`` is the loop's
    time at which the client was last connected, sent a UI call, or answered one. ``last_written`` is the id
    of the last durable event sent on this connection.
    """

    def __init__(self, limits: Limits, on_expired: Callable[[OutboundRecord], None]) -> None:
        self._limits = limits
        self._on_expired = on_expired
        self.transport: Transport | None = None
        self.removed: list[str] = []
        self._entries: OrderedDict[str, UnackedEvent] = OrderedDict()
        self._by_call: dict[str, UnackedEvent] = {}
        self._backlog: list[UnackedEvent | Frame] = []
        self._speaking: UnackedEvent | None = None
        self.calls = SerialCallQueue(self._expire)
        self._client_acknowledges: bool | None = None
        self._probe = ""
        self._probe_state: ConversationState = "thinking"
        self._probed: list[UnackedEvent] = []
        self._last_state: OutboundRecord | None = None
        self.shown_at = 0.0
        self.last_written = ""

    @property
    def speaking(self) -> bool:
        return self._speaking is not None

    @property
    def has_backlog(self) -> bool:
        return bool(self._backlog)

    @property
    def outstanding(self) -> bool:
        return bool(self.calls or self._backlog)

    def records(self) -> list[OutboundRecord]:
        """List the unacknowledged events."""
        return [entry.record for entry in self._entries.values()]

    def has_had(self, event_id: str) -> bool:
        """Tell whether an event was written or acknowledged."""
        entry = self._entries.get(event_id)
        return entry.frame.written if entry is not None else event_id in self.removed

    def restore(self, record: OutboundRecord, limit: float, *, was_sent: bool) -> None:
        """Restore an event from the store; ``was_sent``: the client may have received it.

        A call's time limit includes the time since it was created.
        """
        if record.kind == "call":
            limit = max(_MIN_RESTORED_S, limit - (time.time() - record.created_ms / 1000))
        entry = UnackedEvent(record, limit)
        entry.frame.written = was_sent
        self._add(entry)
        if record.kind == "call":
            self.calls.join(entry)

    def stop_sending(self) -> None:
        """Stop sending: another process owns the session."""
        self.transport = None
        self._backlog.clear()

    def put(self, record: OutboundRecord, limit: float) -> None:
        """Add a committed event, and send it unless it must wait."""
        if self.is_probe(record.call_id):
            self._put_probe(record, limit)
            return
        entry = UnackedEvent(record, limit)
        if record.kind == "approval" and record.call_id in self._by_call:
            self._remove(self._by_call[record.call_id])  # a new card replaces the old one
        self._add(entry)
        self._evict()
        if self.transport is not None:
            self._offer(entry)
        elif record.kind == "call":
            self.calls.join(entry)

    def _add(self, entry: UnackedEvent) -> None:
        record = entry.record
        if record.kind == "state":
            self._last_state = record
        last = next(reversed(self._entries.values()), None)
        if record.kind == "speak" and last is not None and last.record.kind == "state":
            entry.state, last.speech = last, entry
        self._entries[record.event_id] = entry
        if record.kind != "final":
            self._by_call[record.call_id] = entry

    def _put_probe(self, record: OutboundRecord, limit: float) -> None:
        self._probed = self.unconfirmed
        if not self._probed or self.transport is None or self._state_sent() != self._probe_state:
            self.removed.append(record.event_id)  # a newer state was sent and serves as the probe
            return
        entry = UnackedEvent(record, limit)
        self._entries[record.event_id] = self._by_call[record.call_id] = entry
        self._entries.move_to_end(record.event_id, last=False)  # it is sent ahead of the held events
        self._write(entry)

    def _pass_probed(self) -> None:
        for entry in self._probed:
            if entry.record.event_id not in self._entries:
                continue
            if entry.record.kind != "speak":
                self._remove(entry)
            elif entry is self._speaking and not self._queues_speeches:
                self._lose(entry)
        self._probed = []

    def send(self, frame: Frame) -> None:
        """Send a frame that is not replayed, behind the events that are held."""
        if self.transport is None:
            return
        if self._backlog:
            # A held partial would be out of date: the final text follows.
            if not frame.partial:
                self._backlog.append(frame)
            return
        self.transport.send(frame)

    def is_outstanding(self, call_id: str) -> bool:
        """Tell whether a call has not been answered yet."""
        return call_id in self._by_call

    def is_ui_call(self, call_id: str) -> bool:
        """Tell whether this is an unanswered UI call: state, message or speech."""
        entry = self._by_call.get(call_id)
        return entry is not None and entry.record.kind in _UI_CALLS

    def was_written(self, call_id: str) -> bool:
        """Tell whether a call's frame was ever handed to a socket."""
        entry = self._by_call.get(call_id)
        return entry is not None and entry.frame.written

    # -- from the client

    def acknowledge(self, call_id: str) -> OutboundRecord | None:
        """Take a call's answer; returns the call's record if it was outstanding.

        The client reads in order: an answer also acknowledges the UI events written before it, but no speech.
        """
        entry = self._by_call.get(call_id)
        if entry is None:
            return None
        # An abandoned call is not among the entries, so the events before it are unknown.
        for earlier in self._before(entry) if entry.record.event_id in self._entries else ():
            if earlier.record.kind in ("state", "message", "final") and earlier.frame.written:
                self._finish(earlier)
            elif earlier.record.kind == "speak" and earlier.replayed and not self._queues_speeches:
                # Its answer was lost with the old socket; the app does not answer again.
                self._lose(earlier)
        if entry.record.kind in _UI_CALLS:
            self._client_acknowledges = True
            self.shown_at = asyncio.get_running_loop().time()
        self._finish(entry)
        if self.is_probe(call_id):
            self._pass_probed()
        self._settle()
        return entry.record

    def expect_no_acknowledgements(self) -> None:
        """Stop waiting for acknowledgements if a whole turn of the client has passed without one."""
        if self._client_acknowledges is False:
            for entry in list(self._entries.values()):
                if entry.record.kind == "speak" and entry.frame.written:
                    self._lose(entry)
            return
        unanswered = [e for e in self._entries.values() if e.record.kind in _UI_CALLS and e.frame.written]
        if self._client_acknowledges is None and len(unanswered) >= _SIGNS_OF_SILENCE:
            self._client_acknowledges = False
            for entry in self.calls.entries:
                if entry.record.kind == "speak":
                    self._lose(entry)
                elif entry.record.kind != "call":
                    self.calls.leave(entry)
            self._settle()

    def extend(self, call_id: str) -> None:
        """Restart a call's time limit, if the call is outstanding."""
        entry = self._by_call.get(call_id)
        if entry is not None and entry.record.kind == "call":
            self.calls.restart(entry)

    def end_speech(self, call_id: str) -> None:
        """End a speech before its answer, and never replay it: it was interrupted."""
        entry = self._by_call.get(call_id)
        if entry is not None and entry.record.kind == "speak":
            entry.frame.withdrawn = True
            self._remove(entry)
            self._settle()

    # -- from the session

    @property
    def unconfirmed(self) -> list[UnackedEvent]:
        """The replayed UI calls: their answers may have been lost with the previous connection."""
        backlog = {id(entry) for entry in self._backlog}
        return [
            entry
            for entry in self._entries.values()
            if entry.replayed and entry.record.kind in _UI_CALLS and id(entry) not in backlog
        ]

    def _state_sent(self) -> ConversationState:
        if self._backlog and self._speaking is not None:
            return "speaking"  # later states are held
        if self._last_state is None:
            return "thinking"
        call = msgspec.json.decode(self._last_state.frame)
        return cast(ConversationState, msgspec.json.decode(call["payload"]["arguments"])["state"])

    def send_probe(self, call_id: str) -> ConversationState:
        """Make this call the probe, which overtakes held events; returns the state that it repeats.

        Its answer shows that the client has handled all events replayed before it.
        """
        self._probe, self._probe_state = call_id, self._state_sent()
        return self._probe_state

    def is_probe(self, call_id: str) -> bool:
        """Tell whether a call is the probe."""
        return bool(call_id) and call_id == self._probe

    def withdraw(self, call_id: str) -> bool:
        """Withdraw a call that was not written; False if it was written or is unknown."""
        entry = self._by_call.get(call_id)
        if entry is None or entry.frame.written:
            return False
        entry.frame.withdrawn = True
        self._remove(entry)
        self._settle()
        return True

    def abandon(self, call_id: str) -> None:
        """Stop replaying a call, and expect no answer.

        The device may still be working on it: the calls behind it wait until it is answered or times out.
        """
        entry = self._by_call.get(call_id)
        if entry is not None and self._entries.pop(entry.record.event_id, None) is not None:
            self.removed.append(entry.record.event_id)
            if entry.record.event_id not in self.calls:
                del self._by_call[call_id]

    def handled(self, event_id: str | None, *, queues_speeches: bool = False) -> None:
        """Acknowledge all events up to the one that the client's ``resume`` names as handled.

        A client that ``queues_speeches`` may not have spoken the earlier speeches yet.
        """
        if event_id is None:
            return
        for entry in list(self._entries.values()):
            own_id, kind = entry.record.event_id, entry.record.kind
            if not entry.frame.written or not (own_id == event_id or precedes(own_id, event_id)):
                continue
            if kind in ("state", "message", "final"):
                self._finish(entry)
            elif kind == "speak" and own_id != event_id and not queues_speeches:
                self._lose(entry)  # its answer was lost
        self._settle()

    def attach(self, transport: Transport, *, states: bool = True, relaunched: bool = False) -> None:
        """Send to this transport from now on, and replay the unacknowledged events to it.

        Replays the latest state (not without ``states``: a new one follows), and each speech with its
        ``speaking``, without which the app speaks with its microphone open. Drops stale speeches. Does not
        replay a write call that was written: a ``relaunched`` app would run it twice, unless its client
        reports the calls that it has run.
        """
        self.transport = transport
        self.shown_at = asyncio.get_running_loop().time()
        self.last_written = ""
        self._probe = ""
        self._backlog.clear()
        self._speaking = None
        # Requeue the calls in the order of the events; abandoned ones stay in front.
        self.calls.retain(lambda event_id: event_id not in self._entries)
        latest = next((e for e in reversed(self._entries.values()) if e.record.kind == "state"), None)
        may_repeat = relaunched or not transport.resumes
        for entry in list(self._entries.values()):
            kind = entry.record.kind
            entry.replayed = entry.frame.written
            if kind == "state" and not (entry is latest and states) and not self._opens_speech(entry):
                self._remove(entry)
            elif kind == "speak" and self._is_stale(entry):
                self._lose(entry)
            elif kind == "call" and entry.record.effect != "read" and entry.frame.written and may_repeat:
                self.calls.join(entry)
            else:
                self._offer(entry)
        self._settle()

    def detach(self) -> None:
        """Drop the transport. Time limits of tool calls keep running; time limits of UI calls stop."""
        self.stop_sending()
        self._speaking = None
        for entry in list(self._entries.values()):
            if entry.record.kind == "call":
                self.calls.join(entry)
            else:
                self.calls.leave(entry)
        self._settle()

    def close(self) -> None:
        """Stop all time limits."""
        self.stop_sending()
        self.calls.clear()

    def _before(self, entry: UnackedEvent) -> Iterator[UnackedEvent]:
        return takewhile(lambda earlier: earlier is not entry, list(self._entries.values()))

    def _is_stale(self, entry: UnackedEvent) -> bool:
        return time.time() - entry.record.created_ms / 1000 > self._limits.stale_speech

    def _offer(self, entry: UnackedEvent) -> None:
        if self._backlog or self._waits_for_speech(entry):
            self._backlog.append(entry)
        else:
            self._write(entry)

    @property
    def _queues_speeches(self) -> bool:
        return self.transport is not None and self.transport.segments

    def _waits_for_speech(self, entry: UnackedEvent) -> bool:
        speaks = entry.record.kind == "speak" and not self._queues_speeches
        return speaks and self._speaking not in (None, entry)

    def _write(self, entry: UnackedEvent) -> None:
        assert self.transport is not None
        kind = entry.record.kind
        if kind == "speak" and self._client_acknowledges is False:
            # Without acknowledgements, assume that the client plays the newest speech.
            for earlier in self._before(entry):
                if earlier.record.kind == "speak":
                    self._lose(earlier)
        if kind == "call" or (kind in _UI_CALLS and self._client_acknowledges is not False):
            self.calls.join(entry)
            if kind == "speak":
                self._speaking = self._speaking or entry
        if kind in _UI_CALLS:
            self.shown_at = asyncio.get_running_loop().time()
        self.transport.send(entry.frame)
        if not self.is_probe(entry.record.call_id):
            self.last_written = entry.record.event_id

    def _settle(self) -> None:
        while self._backlog and self.transport is not None:
            first = self._backlog[0]
            if isinstance(first, UnackedEvent) and self._waits_for_speech(first):
                break
            self._backlog.pop(0)
            if isinstance(first, Frame):
                self.transport.send(first)
            elif not first.frame.withdrawn and first.record.event_id in self._entries:
                self._write(first)
        self.calls.watch()

    def _evict(self) -> None:
        while len(self._entries) > self._limits.max_unacknowledged:
            oldest = next((e for e in self._entries.values() if e.record.kind not in _KEPT), None)
            if oldest is None:
                return
            if oldest.record.kind == "speak":
                self._lose(oldest)
            else:
                self._remove(oldest)
            self._settle()

    def _opens_speech(self, entry: UnackedEvent) -> bool:
        speech = entry.speech
        if speech is None or speech.record.event_id not in self._entries:
            return False
        return not self._is_stale(speech)

    def _finish(self, entry: UnackedEvent) -> None:
        if self._opens_speech(entry):
            self.calls.leave(entry)
        else:
            self._remove(entry)

    def _remove(self, entry: UnackedEvent) -> None:
        if entry.record.kind != "final":
            self._by_call.pop(entry.record.call_id, None)
        if self._entries.pop(entry.record.event_id, None) is not None:
            self.removed.append(entry.record.event_id)
        self.calls.leave(entry)
        if self._speaking is entry:
            speeches = (e for e in self._entries.values() if e.record.kind == "speak" and e.frame.written)
            self._speaking = next(speeches, None) if self._queues_speeches else None
        if entry.state is not None:
            state, entry.state = entry.state, None
            state.speech = None
            state.frame.withdrawn = True  # no effect if it was already written
            self._remove(state)

    def _lose(self, entry: UnackedEvent) -> None:
        entry.frame.withdrawn = True
        self._remove(entry)
        self._on_expired(entry.record)

    def _expire(self, entry: UnackedEvent) -> None:
        record = entry.record
        if record.kind in ("call", "speak"):
            abandoned = record.event_id not in self._entries
            self._remove(entry)
            if not abandoned:
                self._on_expired(record)
        else:
            self.calls.leave(entry)
        self._settle()
