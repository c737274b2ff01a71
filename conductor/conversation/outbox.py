"""Durable events on their way to the client: order, replay, and the time limits of calls.

The shipped client handles one event after the other and answers a call before it reads on (protocol, "How
the shipped client behaves"). So calls stand in a *lane*: the first of them has a running clock, the others
wait for it; and a second ``tts.speak`` is held, with all that follows it, until the first is over.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import cast

import msgspec

from conductor.conversation.lane import Entry, Lane
from conductor.conversation.transport import Frame, Transport
from conductor.events.envelope import made_before
from conductor.events.server import ConversationState
from conductor.settings import Limits
from conductor.stores.base import OutboundRecord

_UI_CALLS = ("state", "message", "speak")
_KEPT = ("call", "approval")
"""What is never given up for want of room: there are few of them, and somebody waits for each."""
_LEFT_S = 1.0
"""A call that comes from another process is waited for at least so long: its client has only just come."""
_SIGNS_OF_SILENCE = 4
"""A turn's UI calls before its speech: none acknowledged means that this client acknowledges none."""


class Outbox:
    """The unacknowledged events of one session, and the transport they go by.

    ``on_expired`` is told of each call whose time is over, and of each speech that nobody will answer for.
    """

    def __init__(self, limits: Limits, on_expired: Callable[[OutboundRecord], None]) -> None:
        self._limits = limits
        self._on_expired = on_expired
        self._transport: Transport | None = None
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._by_call: dict[str, Entry] = {}
        self._held: list[Entry | Frame] = []
        self._speaking: Entry | None = None
        self._lane = Lane(self._expire)
        self._client_acknowledges: bool | None = None
        self._gone: list[str] = []
        self._probe = ""
        self._probe_state: ConversationState = "thinking"
        self._probed: list[Entry] = []
        self._last_state: OutboundRecord | None = None

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def transport(self) -> Transport | None:
        """The transport that is served, if one is."""
        return self._transport

    @property
    def speaking(self) -> bool:
        """Whether a speech is under way on the device, as far as is known."""
        return self._speaking is not None

    @property
    def outstanding(self) -> bool:
        """Whether a call waits for its answer, or for its turn to be sent."""
        return bool(self._lane or self._held)

    async def quiet(self) -> None:
        """Wait until nothing is outstanding: every call was answered, or its time is over."""
        await self._lane.quiet()

    @property
    def gone(self) -> bool:
        """Whether events left since the last commit."""
        return bool(self._gone)

    def records(self) -> list[OutboundRecord]:
        """List the unacknowledged events."""
        return [entry.record for entry in self._entries.values()]

    def has_had(self, event_id: str) -> bool:
        """Tell whether an event was ever written, or has left."""
        entry = self._entries.get(event_id)
        return entry.frame.written if entry is not None else event_id in self._gone

    def restore(self, record: OutboundRecord, limit: float, *, sent: bool) -> None:
        """Take an event over that is in the store; ``sent``: its client may have had it.

        The time that a call has had since counts.
        """
        if record.kind == "call":
            limit = max(_LEFT_S, limit - (time.time() - record.created_ms / 1000))
        entry = Entry(record, limit)
        entry.frame.written = sent
        self._note_state(record)
        self._entries[record.event_id] = entry
        if record.kind != "final":
            self._by_call[record.call_id] = entry
        if record.kind == "call":
            self._lane.join(entry)

    def drop(self, event_id: str) -> None:
        """Have the next commit forget an event that is not here."""
        self._gone.append(event_id)

    def mute(self) -> None:
        """Send nothing any more: the session is another's."""
        self._transport = None
        self._held.clear()

    def take_gone(self) -> list[str]:
        """Hand over the ids of events that left since the last call; the next commit records it."""
        gone, self._gone = self._gone, []
        return gone

    def give_back(self, gone: list[str]) -> None:
        """Take them back: the commit failed."""
        self._gone[:0] = gone

    def put(self, record: OutboundRecord, limit: float) -> None:
        """Add an event that has been committed, and send it as soon as it may be sent."""
        if record.call_id and record.call_id == self._probe:
            self._put_probe(record, limit)
            return
        entry = Entry(record, limit)
        self._note_state(record)
        if record.kind == "approval" and record.call_id in self._by_call:
            self._remove(self._by_call[record.call_id])  # a card takes the place of the one before
        self._entries[record.event_id] = entry
        if record.kind != "final":
            self._by_call[record.call_id] = entry
        self._evict()
        if self._transport is not None:
            self._offer(entry)
        elif record.kind == "call":
            self._lane.join(entry)

    def _note_state(self, record: OutboundRecord) -> None:
        if record.kind == "state":
            self._last_state = record

    def _put_probe(self, record: OutboundRecord, limit: float) -> None:
        self._probed = self._unsure()
        if not self._probed or self._transport is None or self._state_sent() != self._probe_state:
            self._gone.append(record.event_id)  # there is a newer state, which does as well
            return
        entry = Entry(record, limit)
        self._entries[record.event_id] = self._by_call[record.call_id] = entry
        self._entries.move_to_end(record.event_id, last=False)  # it is older than what waits
        self._write(entry)

    def _unsure(self) -> list[Entry]:
        """List what was replayed and is waited for: a client that knew it does not answer again."""
        held = {id(one) for one in self._held}
        return [
            entry
            for entry in self._entries.values()
            if entry.replayed and entry.record.kind in _UI_CALLS and id(entry) not in held
        ]

    def _pass_probed(self) -> None:
        """Know that the client is done with what was replayed."""
        for entry in self._probed:
            if entry.record.event_id not in self._entries:
                continue
            if entry.record.kind != "speak":
                self._remove(entry)
            elif entry is self._speaking:
                self._lose(entry)
        self._probed = []

    def send(self, frame: Frame) -> None:
        """Send what need not arrive: it keeps its place in the order, and is lost with the connection."""
        if self._transport is None:
            return
        if self._held:
            if not frame.partial:
                self._held.append(frame)
            return
        self._transport.send(frame)

    def is_outstanding(self, call_id: str) -> bool:
        """Tell whether a call has not been answered yet."""
        return call_id in self._by_call

    def is_ui_call(self, call_id: str) -> bool:
        """Tell whether it is an unanswered call of the server's own, which is only shown or said."""
        entry = self._by_call.get(call_id)
        return entry is not None and entry.record.kind in _UI_CALLS

    def was_written(self, call_id: str) -> bool:
        """Tell whether a call's frame was ever handed to a socket."""
        entry = self._by_call.get(call_id)
        return entry is not None and entry.frame.written

    # -- what the client says

    def acknowledge(self, call_id: str) -> OutboundRecord | None:
        """Take a call's answer; returns the call's record if it was outstanding.

        The client reads in order, so an answer also acknowledges the interface events written before it,
        but not a speech: that is over when its own answer comes.
        """
        entry = self._by_call.get(call_id)
        if entry is None:
            return None
        for earlier in self._before(entry) if entry.record.event_id in self._entries else ():
            if earlier.record.kind in ("state", "message", "final") and earlier.frame.written:
                self._remove(earlier)
            elif earlier.record.kind == "speak" and earlier.replayed:
                # Its answer went down with the old socket, and an app that knows it does not answer again.
                self._lose(earlier)
        if entry.record.kind in _UI_CALLS:
            self._client_acknowledges = True
        self._remove(entry)
        if call_id == self._probe:
            self._pass_probed()
        self._settle()
        return entry.record

    def expect_no_acknowledgements(self) -> None:
        """Stop waiting for a client that has acknowledged nothing of a whole turn, and now starts another."""
        if self._client_acknowledges is False:
            for entry in list(self._entries.values()):
                if entry.record.kind == "speak" and entry.frame.written:
                    self._lose(entry)
        elif self._client_acknowledges is None and self._unanswered() >= _SIGNS_OF_SILENCE:
            self._client_acknowledges = False
            for entry in self._lane.entries:
                if entry.record.kind == "speak":
                    self._lose(entry)
                elif entry.record.kind != "call":
                    self._lane.leave(entry)
            self._settle()

    def extend(self, call_id: str) -> bool:
        """Let a call's time begin anew, for a sign of life; False if it is not waited for."""
        entry = self._by_call.get(call_id)
        if entry is None or entry.record.kind != "call":
            return False
        self._lane.restart(entry)
        return True

    def stood_still(self, seconds: float) -> None:
        """Give what is waited for more time: nothing was heard while this process stood still."""
        self._lane.postpone(seconds)

    def end_speech(self, call_id: str) -> None:
        """Count a speech as over before its answer, and never say it again: it was interrupted."""
        entry = self._by_call.get(call_id)
        if entry is not None and entry.record.kind == "speak":
            entry.frame.withdrawn = True
            self._remove(entry)
            self._settle()

    # -- what the session does

    @property
    def unsure(self) -> bool:
        """Whether calls wait for the answer to one that the client may have had before it came back."""
        return bool(self._unsure())

    def _state_sent(self) -> ConversationState:
        """Give the state that the client was last told, as far as is known."""
        if self._held and self._speaking is not None:
            return "speaking"  # any later one waits
        if self._last_state is None:
            return "thinking"
        call = msgspec.json.decode(self._last_state.frame)
        return cast(ConversationState, msgspec.json.decode(call["payload"]["arguments"])["state"])

    def let_pass(self, call_id: str) -> ConversationState:
        """Send this call, when it is put, past those that wait; gives the state that it is to set again.

        Its answer says that the client is done with all that was replayed before it.
        """
        self._probe, self._probe_state = call_id, self._state_sent()
        return self._probe_state

    def withdraw(self, call_id: str) -> bool:
        """Take back a call that was not written yet; False if it was, or is not here."""
        entry = self._by_call.get(call_id)
        if entry is None or entry.frame.written:
            return False
        entry.frame.withdrawn = True
        self._remove(entry)
        self._settle()
        return True

    def abandon(self, call_id: str) -> None:
        """Never replay a call, and expect nothing of it.

        The device may still be busy with it, so it keeps its place in the lane until it is answered or its
        time is over: the calls behind it wait for that.
        """
        entry = self._by_call.get(call_id)
        if entry is not None and self._entries.pop(entry.record.event_id, None) is not None:
            self._gone.append(entry.record.event_id)
            if entry.record.event_id not in self._lane:
                del self._by_call[call_id]

    def handled(self, event_id: str | None) -> None:
        """Take it that the client has handled what it was told up to this event: it says so itself.

        The event may be acknowledged already, or be one that is not kept.
        """
        if event_id is None:
            return
        for entry in list(self._entries.values()):
            own_id, kind = entry.record.event_id, entry.record.kind
            if not entry.frame.written or not (own_id == event_id or made_before(own_id, event_id)):
                continue
            if kind in ("state", "message", "final"):
                self._remove(entry)
            elif kind == "speak" and own_id != event_id:
                self._lose(entry)  # it went on to the next one, and its answer is lost
        self._settle()

    def attach(self, transport: Transport, *, states: bool = True) -> None:
        """Serve this transport from now on, and replay to it what was not acknowledged.

        Of all states only the latest one, and none without ``states``: a fresh one follows then. No speech
        that is stale; no write call that a socket ever had, since an app that was relaunched would run it
        again (protocol, the same section), unless its client says what it has run.
        """
        self._transport = transport
        self._probe = ""
        self._held.clear()
        self._speaking = None
        # The lane is made anew, in the order of the events; what was abandoned still comes first.
        self._lane.retain(lambda event_id: event_id not in self._entries)
        latest = next((e for e in reversed(self._entries.values()) if e.record.kind == "state"), None)
        for entry in list(self._entries.values()):
            kind = entry.record.kind
            entry.replayed = entry.frame.written
            if kind == "state" and (entry is not latest or not states):
                self._remove(entry)
            elif kind == "speak" and self._is_stale(entry):
                self._lose(entry)
            elif (
                kind == "call"
                and entry.record.effect != "read"
                and entry.frame.written
                and not transport.resumes
            ):
                self._lane.join(entry)
            else:
                self._offer(entry)
        self._settle()

    def detach(self) -> None:
        """Serve no transport. Calls keep waiting; what was only shown does not."""
        self._transport = None
        self._held.clear()
        self._speaking = None
        for entry in list(self._entries.values()):
            if entry.record.kind == "call":
                self._lane.join(entry)
            else:
                self._lane.leave(entry)
        self._settle()

    def close(self) -> None:
        """Stop the clock."""
        self._transport = None
        self._held.clear()
        self._lane.clear()

    # -- inside

    def _before(self, entry: Entry) -> Iterator[Entry]:
        for earlier in list(self._entries.values()):
            if earlier is entry:
                return
            yield earlier

    def _unanswered(self) -> int:
        return sum(1 for e in self._entries.values() if e.record.kind in _UI_CALLS and e.frame.written)

    def _is_stale(self, entry: Entry) -> bool:
        return time.time() - entry.record.created_ms / 1000 > self._limits.stale_speech

    def _offer(self, entry: Entry) -> None:
        gated = entry.record.kind == "speak" and self._speaking not in (None, entry)
        if self._held or gated:
            self._held.append(entry)
        else:
            self._write(entry)

    def _write(self, entry: Entry) -> None:
        assert self._transport is not None
        kind = entry.record.kind
        if kind == "speak" and self._client_acknowledges is False:
            # The newest speech is the only one that can still be heard, as far as anybody knows.
            for earlier in self._before(entry):
                if earlier.record.kind == "speak":
                    self._lose(earlier)
        if kind == "call" or (kind in _UI_CALLS and self._client_acknowledges is not False):
            self._lane.join(entry)
            if kind == "speak":
                self._speaking = entry
        self._transport.send(entry.frame)

    def _settle(self) -> None:
        """Send what is held and may go now, and let the clock run for the lane's head."""
        while self._held and self._transport is not None:
            first = self._held[0]
            if isinstance(first, Entry):
                if first.record.kind == "speak" and self._speaking not in (None, first):
                    break
                self._held.pop(0)
                if not first.frame.withdrawn and first.record.event_id in self._entries:
                    self._write(first)
            else:
                self._held.pop(0)
                self._transport.send(first)
        self._lane.watch()

    def _evict(self) -> None:
        """Forget the oldest interface events of a client that acknowledges nothing."""
        while len(self._entries) > self._limits.max_unacknowledged:
            oldest = next((e for e in self._entries.values() if e.record.kind not in _KEPT), None)
            if oldest is None:
                return
            if oldest.record.kind == "speak":
                self._lose(oldest)
            else:
                self._remove(oldest)
            self._settle()

    def _remove(self, entry: Entry) -> None:
        if entry.record.kind != "final":
            self._by_call.pop(entry.record.call_id, None)
        if self._entries.pop(entry.record.event_id, None) is not None:
            self._gone.append(entry.record.event_id)
        self._lane.leave(entry)
        if self._speaking is entry:
            self._speaking = None

    def _lose(self, entry: Entry) -> None:
        """Forget a speech that nobody will answer for."""
        entry.frame.withdrawn = True
        self._remove(entry)
        self._on_expired(entry.record)

    def _expire(self, entry: Entry) -> None:
        record = entry.record
        if record.kind in ("call", "speak"):
            abandoned = record.event_id not in self._entries
            self._remove(entry)
            if not abandoned:
                self._on_expired(record)
        else:
            self._lane.leave(entry)
        self._settle()
