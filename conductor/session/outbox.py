"""The client's unacknowledged events on one connection: their order, replay, and time limits.

The shipped client handles one event at a time and answers a call before it reads the next. So calls wait in a
line: only the first one's time limit runs. A second ``tts.speak`` is held, with all later events, until the
first one is over, unless the client queues speeches itself (``segments``). All of this concerns the
connection; it is built again from the events that are not acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from conductor.conversation.ids import place_of
from conductor.conversation.state import Event, Kind
from conductor.conversation.view import Replay, View
from conductor.events.envelope import encode_frame
from conductor.events.server import ConversationState
from conductor.session.transport import Entry, Frame, Transport
from conductor.settings import Limits

_UI_CALLS = ("state", "message", "speak")
# Finished speeches to remember; an interruption concerns only the last ones.
_MAX_FINISHED = 32
# Kinds that a client has handled once it answers a later event.
_READ_IN_ORDER = ("state", "message", "final", "resume", "resolved", "ended")
# Unanswered UI calls (a turn sends four before its speech) of a client that acknowledges nothing.
_SIGNS_OF_SILENCE = 4
# Kinds that stay in step with the voice.
_IN_STEP = ("speak", "state")
# Milliseconds of lateness of a timer that show that the process was suspended.
_SUSPENDED_MS = 500
# Least milliseconds left after a suspension: the client must be read first.
_UNREAD_MS = 1_000
# Least milliseconds left of the limit of another process's call: the client has to come back first.
_RETURN_MS = 10_000


class Outbox:
    """The unacknowledged events of one session, and the transport that carries them.

    ``nonce`` is the claim's. ``acked`` are the ids for the next commit. Calls without an answer are in
    a line. The backlog waits for the end of a speech. ``on_expired`` is called for each call that timed out,
    and each speech that will not be acknowledged. ``shown_at`` is the time at which the client was last
    connected, sent a UI call, or answered one. While ``deciding``, no event that a decision rests on is sent.
    ``deadline``: when the first call of the line is late; ``on_deadline`` is called with each new one.
    """

    def __init__(
        self,
        session_id: str,
        nonce: str,
        view: View,
        limits: Limits,
        *,
        on_expired: Callable[[Event], None],
        on_deadline: Callable[[int], None],
    ) -> None:
        self.acked: list[str] = []
        self._view = view
        self._limits = limits
        self._entries: dict[str, Entry] = {}
        self._by_call: dict[str, Entry] = {}
        self._line: dict[str, Entry] = {}
        self._backlog: list[Entry | Frame] = []
        self._last_state: Event | None = None
        self._session_id = session_id
        self._nonce = nonce
        self._on_expired = on_expired
        self._on_deadline = on_deadline
        self.transport: Transport | None = None
        self.shown_at = 0
        self.last_written = ""
        self.deciding = False
        self.deadline: int | None = None
        self._flashes = 0
        self._withheld: list[Entry] = []
        self._head: Entry | None = None
        self._stands = False
        self._client_acknowledges: bool | None = None
        self._probe = ""
        view.live.outbox.unanswered = self._by_call

    # -- facts

    @property
    def speaking(self) -> Entry | None:
        """The speech that is being played."""
        return next((entry for entry in self._line.values() if entry.event.kind == "speak"), None)

    @property
    def outstanding(self) -> bool:
        """Whether the client owes an answer, or events are held."""
        return bool(self._line or self._backlog)

    def replay(self, transport: Transport) -> Replay:
        """List the speeches and cards that `attach` will send to a new connection."""
        state = "thinking" if self._last_state is None else _state_of(self._last_state)
        entries = self._entries.values()
        speeches = [e.event.call_id for e in entries if e.event.kind == "speak" and not self._is_stale(e)]
        cards = [entry.event.call_id for entry in entries if entry.event.kind == "approval"]
        is_sent = any(entry.is_sent and entry.event.kind in _UI_CALLS for entry in entries)
        waits = len(speeches) > 1 and not transport.segments
        return Replay(
            speeches=speeches,
            cards=cards,
            unconfirmed=is_sent and not transport.resumes,
            waits=waits,
            state=state,
        )

    def is_ui_call(self, call_id: str) -> bool:
        """Return whether it is an unanswered UI call."""
        entry = self._by_call.get(call_id)
        return entry is not None and entry.event.kind in _UI_CALLS

    def is_outstanding(self, call_id: str) -> bool:
        """Return whether a call has not been answered."""
        return call_id in self._by_call

    def has_had(self, event_id: str) -> bool:
        """Return whether an event was written or acknowledged."""
        entry = self._entries.get(event_id)
        return entry.frame.is_written if entry is not None else event_id in self.acked

    # -- from the conversation

    def restore(self, event: Event, *, is_sent: bool) -> None:
        """Add an event of another process; ``is_sent``: the client may have it."""
        entry = self._make(event)
        entry.is_sent = entry.frame.is_written = is_sent
        if event.kind == "call":
            left_ms = entry.limit_ms - (self._view.now() - event.at)
            entry.limit_ms = max(left_ms, min(entry.limit_ms, _RETURN_MS))
            self._line.setdefault(entry.event.id, entry)

    def put(self, events: list[Event], outbound: dict[str, Event]) -> None:
        """Send the events of a commit, and drop the events that the state has dropped."""
        for event in events:
            if event.kind == "flash":
                self.flash(event.type, event.payload)
            elif event.id in outbound:
                self._put(event)
        for event_id in [event_id for event_id in self._entries if event_id not in outbound]:
            self._abandon(self._entries[event_id])
        self.settle()

    def withhold(self, call_ids: Iterable[str]) -> None:
        """Keep calls that were not written from being written while the commit that closes them is stored."""
        for call_id in call_ids:
            entry = self._by_call.get(call_id)
            if entry is not None and entry.is_sent and not entry.frame.is_written:
                entry.frame.withdrawn = True
                self._withheld.append(entry)

    def _put(self, event: Event) -> None:
        former = self._by_call.get(event.call_id)
        if event.kind == "approval" and former is not None:
            self._finish(former)  # a new card replaces the former one
        entry = self._make(event)
        if self.transport is not None:
            self._offer(entry)
        elif event.kind == "call":
            self._line.setdefault(entry.event.id, entry)

    def _make(self, event: Event) -> Entry:
        frame = Frame(encode_frame(event.id, event.type, self._session_id, event.payload))
        limits, seconds = self._limits, event.limit_ms / 1000
        if event.kind == "speak":
            characters = len(msgspec.json.decode(event.payload)["arguments"])
            seconds = limits.speech_timeout + characters * limits.speech_seconds_per_char
        elif event.kind != "call":
            seconds = limits.ui_timeout
        entry = Entry(event=event, limit_ms=round(seconds * 1000), frame=frame)
        if event.kind == "state":
            self._last_state = event
        last = next(reversed(self._entries.values()), None)
        if event.kind == "speak" and last is not None and last.event.kind == "state":
            entry.partner, last.partner = last, entry
        self._entries[event.id] = entry
        if event.call_id:
            self._by_call[event.call_id] = entry
        return entry

    def flash(
        self, type_: str, payload: bytes, *, partial: bool = False, to: Transport | None = None
    ) -> None:
        """Send an event that may be lost; it keeps its place among held events.

        Its id is the id of the last durable event of this process with a suffix: a client that names it in a
        ``resume`` has handled that event, but no held one. It is the first event to a new connection ``to``.
        """
        transport = to or self.transport
        if transport is None:
            return
        self._flashes += 1
        own = f"evt_{self._nonce}_"
        base = self.last_written if self.last_written.startswith(own) and to is None else f"{own}0"
        event_id = f"{base}.{self._flashes:x}"
        frame = Frame(encode_frame(event_id, type_, self._session_id, payload), partial=partial)
        if not self._backlog or self._overtakes("flash"):
            transport.send(frame)
        elif not partial:  # a held partial would be out of date
            self._backlog.append(frame)

    # -- from the client

    def acknowledge(self, call_id: str) -> bool:
        """Handle a call's answer; returns whether the call was outstanding.

        The client reads in order, so an answer also acknowledges the events written before it, but not a
        speech: that ends with its own answer.
        """
        entry = self._by_call.get(call_id)
        if entry is None:
            return False
        # An abandoned call is not among the entries: what preceded it is not known any more.
        # What the probe shows of earlier events, `_pass_probed` says.
        is_known = entry.event.id in self._entries and call_id != self._probe
        for earlier in self._before(entry) if is_known else ():
            if earlier.event.kind in _READ_IN_ORDER and earlier.frame.is_written:
                self._finish(earlier)
            elif earlier.event.kind == "speak" and earlier.replayed and not self._reads_on:
                self._lose(earlier)  # its answer was lost with the old connection
        if entry.event.kind in _UI_CALLS:
            self._client_acknowledges, self.shown_at = True, self._view.now()
        is_speech = entry.event.kind == "speak"
        self._finish(entry)
        if is_speech:
            self._note_finished(call_id, self._view.now())
        if call_id == self._probe:
            self._pass_probed()
        self.settle()
        return True

    def expect_no_acknowledgements(self) -> None:
        """Stop waiting for acknowledgements if a whole turn brought no acknowledgement.

        A client that can queue or pause speeches has to answer them, and may do nothing else meanwhile.
        """
        if self._reads_on:
            return
        entries = [entry for entry in self._entries.values() if entry.frame.is_written]
        if self._client_acknowledges is None:
            unanswered = sum(entry.event.kind in _UI_CALLS for entry in entries)
            self._client_acknowledges = False if unanswered >= _SIGNS_OF_SILENCE else None
        if self._client_acknowledges is False:
            for entry in [*entries, *self._line.values()]:
                if entry.event.kind == "speak":
                    self._lose(entry)
                elif entry.event.kind != "call":
                    self._line.pop(entry.event.id, None)
            self.settle()

    def extend(self, call_id: str) -> None:
        """Restart the time limit of the first call of the line: the device works on it."""
        if self._head is not None and self._head.event.call_id == call_id:
            self._expire_at(self._view.now() + self._head.limit_ms)

    def handled(self, event_id: str | None, *, reads_on: bool) -> None:
        """Acknowledge everything up to an event that the client has handled.

        A client that ``reads_on`` while it speaks may not have spoken the earlier speeches yet. The end of a
        pause has overtaken what was held, so it acknowledges only itself.
        """
        claim, last = place_of(event_id or "")
        entries = list(self._entries.values())
        named = self._entries.get((event_id or "").partition(".")[0])
        if named is not None and named.event.kind == "resume":
            entries = [named]
        for entry in entries:
            own_claim, own = place_of(entry.event.id)
            if not entry.frame.is_written or own_claim != claim or own > last:
                continue
            if entry.event.kind in _READ_IN_ORDER:
                self._finish(entry)
            elif entry.event.kind == "speak" and own < last and not reads_on:
                self._lose(entry)  # the client is past it, so its answer was lost
        self.settle()

    # -- connections

    def attach(self, transport: Transport) -> None:
        """Send to this transport from now on, and replay the unacknowledged events to it.

        Replays only the latest state, but each speech with its ``speaking``. Drops stale speeches. The probe
        is sent first among held events: its answer shows that all replayed events before it were handled.
        """
        self._view.live.outbox.is_connected = True
        self.transport = transport
        self.shown_at = self._view.now()
        self.last_written = ""
        self._backlog.clear()
        self._probe = ""
        # Requeue the calls in the order of the events; abandoned ones stay in front.
        self._line = {key: entry for key, entry in self._line.items() if key not in self._entries}
        entries = list(self._entries.values())
        states = (entry for entry in reversed(entries) if entry.event.kind == "state")
        latest = next((entry for entry in states if not entry.event.probe or entry.is_sent), None)
        for entry in entries:
            kind = entry.event.kind
            entry.replayed = entry.is_sent
            if entry.event.probe and not entry.is_sent:
                self._probe = entry.event.call_id
                self._write(entry)
            elif kind == "state" and entry is not latest and not self._opens_speech(entry):
                self._finish(entry)
            elif kind == "speak" and self._is_stale(entry):
                self._lose(entry)
            elif entry.event.withheld:
                self._line.setdefault(entry.event.id, entry)  # its result is awaited
            else:
                self._offer(entry)
        self.settle()

    def detach(self) -> None:
        """Drop the transport. Time limits of tool calls run on; the limits of UI calls stop."""
        self.stop_sending()
        for entry in list(self._entries.values()):
            if entry.event.kind == "call":
                self._line.setdefault(entry.event.id, entry)
            else:
                self._line.pop(entry.event.id, None)
        self.settle()

    def stop_sending(self) -> None:
        """Send nothing more."""
        self._view.live.outbox.is_connected = False
        self.transport = None
        self._backlog.clear()
        for entry in self._withheld:
            entry.frame = Frame(entry.frame.data)
        self._withheld.clear()

    def close(self) -> None:
        """Send nothing more, to no connection."""
        self.stop_sending()
        for entry in self._entries.values():
            entry.partner = None  # two partners would wait for the garbage collector

    # -- time

    def tick(self) -> None:
        """Expire late calls and speeches; a process that was suspended first reads the client's events."""
        now = self._view.now()
        while self._head is not None and self.deadline is not None and now >= self.deadline:
            entry, late = self._head, now - self.deadline
            if late > _SUSPENDED_MS and not entry.is_extended:
                entry.is_extended = True
                self._expire_at(now + max(_UNREAD_MS, min(late, entry.limit_ms)))
                return
            if entry.event.kind in ("call", "speak"):
                self._lose(entry)
            else:
                self._line.pop(entry.event.id, None)
            self.settle()

    # -- inside

    def settle(self) -> None:
        """Send the held events that no longer have to wait."""
        if self._withheld and not self.deciding:
            withheld, self._withheld = self._withheld, []
            for entry in withheld:  # their commit was not recorded
                if entry.event.id in self._entries and self.transport is not None:
                    entry.frame = Frame(entry.frame.data)
                    self._offer(entry)
        while self.transport is not None and (held := self._next_held()) is not None:
            self._backlog.remove(held)
            if isinstance(held, Frame):
                self.transport.send(held)
            elif not held.frame.withdrawn and held.event.id in self._entries:
                self._write(held)
        head = next(iter(self._line.values()), None)
        stands = head is not None and head.event.kind == "speak" and self._view.state.pause is not None
        if (head, stands) != (self._head, self._stands):
            self._head, self._stands = head, stands
            self.deadline = None
            if head is not None and not stands:
                self._expire_at(self._view.now() + head.limit_ms)

    def _expire_at(self, deadline: int) -> None:
        self.deadline = deadline
        self._on_deadline(deadline)

    def _offer(self, entry: Entry) -> None:
        kind = entry.event.kind
        if kind == "resume":  # what is held may wait for the end of the speech that goes on
            self._backlog.insert(0, entry)
        elif self.deciding or self._waits(entry) or (self._backlog and not self._overtakes(kind)):
            self._backlog.append(entry)
        else:
            self._write(entry)

    def _overtakes(self, kind: Kind) -> bool:
        """Whether an event does not wait behind the speeches that a pause holds: the turn goes on."""
        is_free = self._view.state.pause is not None and kind not in _IN_STEP
        return is_free and not self.deciding and not any(map(self._passes, self._backlog))

    def _next_held(self) -> Entry | Frame | None:
        """Return the held event that may be sent.

        In a pause all but speeches and states pass what waits, in their order: a client that has handled one
        has had the earlier ones.
        """
        if self.deciding or not self._backlog:
            return None
        first = self._backlog[0]
        if not self._waits(first):
            return first
        is_paused = self._view.state.pause is not None
        return next(filter(self._passes, self._backlog), None) if is_paused else None

    @staticmethod
    def _passes(item: Entry | Frame) -> bool:
        return isinstance(item, Frame) or item.event.kind not in _IN_STEP

    def _write(self, entry: Entry) -> None:
        assert self.transport is not None
        kind = entry.event.kind
        if kind == "speak" and self._client_acknowledges is False:
            # Without acknowledgements the client is assumed to play its newest speech.
            for earlier in self._before(entry):
                if earlier.event.kind == "speak":
                    self._lose(earlier)
        if kind == "call" or (kind in _UI_CALLS and self._client_acknowledges is not False):
            self._line.setdefault(entry.event.id, entry)
        if kind in _UI_CALLS:
            self.shown_at = max(self.shown_at, entry.event.at)
        entry.is_sent = True
        self.transport.send(entry.frame)
        if entry.event.call_id != self._probe or not self._probe:
            self.last_written = entry.event.id

    def _before(self, entry: Entry) -> list[Entry]:
        entries = list(self._entries.values())
        return entries[: entries.index(entry)]

    @property
    def _queues_speeches(self) -> bool:
        return self.transport is not None and self.transport.segments

    @property
    def _reads_on(self) -> bool:
        """Whether the client reads further events while it speaks, as one that can pause has to."""
        return self._queues_speeches or "pause" in self._view.state.profile.capabilities

    def _waits(self, item: Entry | Frame) -> bool:
        """Whether an event is held: a speech, and in a pause also a state that closes the microphone."""
        if isinstance(item, Frame):
            return False
        kind = item.event.kind
        if self._view.state.pause is not None:
            return kind == "speak" or (kind == "state" and _state_of(item.event) != "idle")
        return kind == "speak" and not self._queues_speeches and self.speaking not in (None, item)

    def _is_stale(self, entry: Entry) -> bool:
        return self._view.now() - entry.event.at >= self._limits.stale_speech * 1000

    def _opens_speech(self, entry: Entry) -> bool:
        speech = entry.partner if entry.event.kind == "state" else None
        return speech is not None and speech.event.id in self._entries and not self._is_stale(speech)

    def _pass_probed(self) -> None:
        self._probe = ""
        backlog, speaking = {id(entry) for entry in self._backlog}, self.speaking
        for entry in list(self._entries.values()):
            if not entry.replayed or entry.event.kind not in _UI_CALLS or id(entry) in backlog:
                continue
            if entry.event.kind != "speak":
                self._finish(entry)
            elif entry is speaking and not self._reads_on:
                self._lose(entry)

    def _finish(self, entry: Entry) -> None:
        """Acknowledge an event. The state before a speech stays, to be replayed with it."""
        self._line.pop(entry.event.id, None)
        if entry.partner is None or not self._opens_speech(entry):
            if self._entries.pop(entry.event.id, None) is not None:
                self.acked.append(entry.event.id)
            self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        self._line.pop(entry.event.id, None)
        if self._by_call.get(entry.event.call_id) is entry:
            del self._by_call[entry.event.call_id]
        partner, entry.partner = entry.partner, None
        if entry.event.kind == "speak" and partner is not None:
            partner.partner = None
            if partner.event.id in self._entries:
                partner.frame.withdrawn = True  # no effect on a frame that was written
                self._finish(partner)

    def _abandon(self, entry: Entry) -> None:
        """Forget an event that the state has dropped.

        The device may still work on a call: the calls behind it wait until it is answered or late.
        """
        del self._entries[entry.event.id]
        if entry.event.kind != "call" or not entry.frame.is_written or entry.event.id not in self._line:
            entry.frame.withdrawn = True
            self._forget(entry)

    def _lose(self, entry: Entry) -> None:
        """Give up an event: its answer is late, or was lost."""
        entry.frame.withdrawn = True  # else a call could run after the model was told that it did not
        if entry.event.id in self._entries:  # else it is abandoned
            if entry.event.kind == "speak":
                self._note_finished(entry.event.call_id, 0)
            self._on_expired(entry.event)
        self._finish(entry)

    def _note_finished(self, speech_id: str, at: int) -> None:
        live = self._view.live
        live.outbox.finished_speeches.setdefault(speech_id, at)
        if len(live.outbox.finished_speeches) > _MAX_FINISHED:
            finished, speeches = live.outbox.finished_speeches.items(), self._view.state.speeches
            live.outbox.finished_speeches = {key: at for key, at in finished if key in speeches}


def _state_of(event: Event) -> ConversationState:
    arguments = msgspec.json.decode(event.payload)["arguments"]
    state: ConversationState = msgspec.json.decode(arguments)["state"]
    return state
