"""Speech: tracking, truncation after an interruption, throttled partials, and floor control."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from conductor.conversation.outbox import Outbox
from conductor.conversation.snapshot import SpeechesSnapshot, SpeechSnapshot, decode, encode
from conductor.events.envelope import new_speech_id
from conductor.rate_limit import SharedRate
from conductor.settings import Limits
from conductor.stores.base import Amendment, AppendLog, Operation

# Characters a synthetic voice reads a second, to truncate by ``playedMs``; voices read 12 to 18.
CHARS_PER_SECOND = 15.0

CUT_HERE = "[The user interrupted here and did not hear the rest.]"
CUT_SOMEWHERE = "[The user interrupted this speech; it is not known how much of it was heard.]"
CUT_BEFORE_SPEECH = "[The user interrupted here, before any of this was spoken.]"
HEARD_NOTHING = "[The user interrupted before any of this was heard.]"


@dataclass(slots=True)
class Speech:
    """A ``tts.speak`` call.

    ``position`` is its message's position in the log (-1: no message, or not logged yet), ``text`` the
    message's text, ``voice_text`` the text to speak. ``actions`` are the tools that changed something in its
    turn. ``over_at`` is the loop's time of its acknowledgement.

    A reply in segments has a speech for each, with the same ``speech_id``. ``before`` is the message's text
    before the segment; ``text`` ends with the segment.
    """

    call_id: str
    turn_id: str
    position: int
    text: str
    voice_text: str
    actions: tuple[str, ...] = ()
    interrupted: bool = False
    over_at: float | None = None
    speech_id: str = field(default_factory=new_speech_id)
    before: str = ""
    segment: int = 0
    last: bool = True


def heard_part(speech: Speech, spoken_text: str | None, played_ms: float | None) -> str | None:
    """Return the part of the message that was heard; None if unknown.

    By the text that the client reports as spoken, else by the milliseconds played, else by the acknowledged
    segments.
    """
    if spoken_text is not None:
        part = spoken_text.strip()[: len(speech.voice_text)]
    elif played_ms is not None:
        part = _prefix(speech.voice_text, int(played_ms / 1000 * CHARS_PER_SECOND))
    elif speech.over_at is not None and not speech.last:
        return speech.text
    else:
        return speech.before or None
    return f"{speech.before} {part}" if speech.before and part else speech.before or part


def heard_text(speech: Speech, spoken_text: str | None, played_ms: float | None) -> str:
    """Truncate an interrupted speech for the history to its `heard_part`.

    If that is unknown, the whole text stays, marked as interrupted.
    """
    part = heard_part(speech, spoken_text, played_ms)
    text = marked(part) if part is not None else f"{speech.text} {CUT_SOMEWHERE}".strip()
    if speech.actions:
        text += f" [Done, though the user may not have heard so: {', '.join(speech.actions)}.]"
    return text


def marked(text: str) -> str:
    """Mark a text as cut at its end."""
    return f"{text} {CUT_HERE}" if text else HEARD_NOTHING


def _prefix(text: str, length: int) -> str:
    if length >= len(text):
        return text
    return text[:length].rpartition(" ")[0]


# Speeches tracked a session; older ones were interrupted and never acknowledged.
_MAX_SPEECHES = 64
# Speeches in the snapshot: rarely more are outstanding, and each change writes all of them.
_MAX_STORED = 4


class SpeechTracker:
    """Finds the speech that an interruption concerns.

    ``window``: seconds after a speech's acknowledgement in which an interruption still concerns it.
    """

    def __init__(self, window: float) -> None:
        self._window = window
        self._speeches: OrderedDict[str, Speech] = OrderedDict()

    def add(self, speech: Speech | None) -> None:
        """Add a committed speech, if there is one, and drop the speeches that are over."""
        if speech is None:
            return
        for call_id in [s.call_id for s in self._speeches.values() if s.over_at is not None]:
            del self._speeches[call_id]
        self._speeches[speech.call_id] = speech
        if len(self._speeches) > _MAX_SPEECHES:
            self._speeches.popitem(last=False)

    def dump(self, last: Speech) -> str:
        """Encode the outstanding speeches, and ``last``, which is about to be added."""
        outstanding = [
            # The segments before ``last`` are logged with it.
            replace(speech, position=last.position) if speech.speech_id == last.speech_id else speech
            for speech in self._speeches.values()
            if speech.over_at is None
        ]
        snapshots = tuple(
            msgspec.convert(speech, SpeechSnapshot, from_attributes=True)
            for speech in [*outstanding, last]
            if speech.position >= 0
        )
        return encode(SpeechesSnapshot(snapshots[-_MAX_STORED:]))

    def restore(
        self, stored: str | None, text_at: Callable[[int], str], is_outstanding: Callable[[str], bool]
    ) -> None:
        """Restore from a snapshot; ``text_at`` returns the log's text at a position.

        The last speech may just have ended; earlier ones count only while they are outstanding.
        """
        snapshots = decode(stored, SpeechesSnapshot)
        speeches = snapshots.speeches if snapshots is not None else ()
        for snapshot in speeches:
            if snapshot is not speeches[-1] and not is_outstanding(snapshot.call_id):
                continue
            text = text_at(snapshot.position)
            self._speeches[snapshot.call_id] = Speech(
                snapshot.call_id,
                snapshot.turn_id,
                snapshot.position,
                text if snapshot.last else f"{snapshot.before} {snapshot.voice_text}".strip(),
                snapshot.voice_text,
                snapshot.actions,
                speech_id=snapshot.speech_id or new_speech_id(),
                before=snapshot.before,
                last=snapshot.last,
            )

    def over(self, call_id: str, now: float) -> None:
        """Note that a speech was acknowledged, or that its acknowledgement timed out."""
        speech = self._speeches.get(call_id)
        if speech is not None and speech.over_at is None:
            speech.over_at = now

    def interrupt(self, now: float) -> Speech | None:
        """Mark and return the speech that an interruption concerns: the oldest one that is not over.

        The later segments of the same reply are marked, too.
        """
        open_ones = [speech for speech in self._speeches.values() if not speech.interrupted]
        recent = (s for s in reversed(open_ones) if now - (s.over_at or 0.0) <= self._window)
        concerned = next((s for s in open_ones if s.over_at is None), None) or next(recent, None)
        for segment in self.of_reply(concerned.speech_id) if concerned is not None else ():
            segment.interrupted = True
        return concerned

    def of_reply(self, speech_id: str) -> list[Speech]:
        """List the tracked segments of a reply, in order."""
        return [speech for speech in self._speeches.values() if speech.speech_id == speech_id]

    def heard_of(self, speech_id: str) -> str | None:
        """Return the acknowledged part of a reply in segments; None without one."""
        segments = self.of_reply(speech_id)
        first = next((segment for segment in segments if segment.over_at is None), None)
        if first is not None:
            return first.before or None
        return segments[-1].text if segments else None

    def logged(self, speech_id: str, position: int) -> None:
        """Note that the message of a reply in segments is in the log."""
        for segment in self.of_reply(speech_id):
            segment.position = position

    def forget(self, call_id: str) -> None:
        """Forget a withdrawn speech."""
        self._speeches.pop(call_id, None)

    def withdraw_unsent(self, outbox: Outbox) -> list[Operation]:
        """Withdraw unsent speeches; returns the operations that truncate their messages."""
        operations: list[Operation] = []
        withdrawn: set[str] = set()
        for speech in list(self._speeches.values()):
            if speech.over_at is None and outbox.withdraw(speech.call_id):
                self.forget(speech.call_id)
                if speech.speech_id not in withdrawn:  # the first segment names the part heard before it
                    operations += self.amend(speech, "", None)
                withdrawn.add(speech.speech_id)
        return operations

    def amend(self, speech: Speech, spoken_text: str | None, played_ms: float | None) -> list[Operation]:
        """Make the operation that truncates the message in the history, if it is logged."""
        if speech.position < 0:
            return []
        return [AppendLog(Amendment(speech.position, heard_text(speech, spoken_text, played_ms)))]


class FloorControl:
    """Decides when the server may start a turn of its own.

    The person keeps the floor for ``floor_timeout`` after each partial transcript. A client without partials
    does not show that the person speaks: its microphone must have been open for ``open_microphone``.
    ``bucket`` limits the session's turns; ``ask_again`` is called when the wait is over.
    """

    def __init__(
        self, limits: Limits, outbox: Outbox, bucket: SharedRate, ask_again: Callable[[], None]
    ) -> None:
        self._limits = limits
        self._outbox = outbox
        self._bucket = bucket
        self._ask_again = ask_again
        self._until = 0.0
        self._heard_at = 0.0
        self._sends_partials = False
        self._timer: asyncio.TimerHandle | None = None

    def hold(self) -> None:
        """Note that the person is speaking: notices wait for the final transcript, or for silence."""
        self._sends_partials = True
        self._until = asyncio.get_running_loop().time() + self._limits.floor_timeout

    def leave(self) -> None:
        """Note that the person has stopped speaking."""
        self._until = 0.0
        self._heard_at = asyncio.get_running_loop().time()

    def is_free(self) -> bool:
        """Whether the server may speak: a client is connected, no speech plays, the person is silent."""
        if self._outbox.transport is None or self._outbox.speaking:
            return False  # the session tries again on attach, and when the speech ends
        loop = asyncio.get_running_loop()
        until = self._until
        if not self._sends_partials:
            until = max(self._heard_at, self._outbox.shown_at) + self._limits.open_microphone
        wait = max(until - loop.time(), self._bucket.wait(loop.time()))
        if wait <= 0:
            return True
        self.close()
        self._timer = loop.call_later(wait, self._ask_again)
        return False

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()


class ReplyBuffer:
    """The text of a reply while it streams."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def add(self, text: str) -> None:
        """Append a delta."""
        self._parts.append(text)

    @property
    def text(self) -> str:
        # Joined on demand: a reply of n deltas costs n, not n squared.
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""


class PartialThrottle:
    """Sends partials of a growing reply. Each holds the whole text so far, so skipping some loses nothing.

    ``send`` gets the text so far; ``interval`` is in seconds.
    """

    def __init__(self, send: Callable[[str], None], interval: float) -> None:
        self._send = send
        self._interval = interval
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0.0
        self._reply: ReplyBuffer | None = None

    def show(self, reply: ReplyBuffer) -> None:
        """Send the reply's text, now or when the interval is over."""
        self._reply = reply
        if self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now >= self._next:
            self._flush()
        else:
            self._timer = loop.call_at(self._next, self._flush)

    def stop(self) -> None:
        """Stop; the next reply's first partial is sent without delay."""
        self._reply = None
        self._next = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush(self) -> None:
        self._timer = None
        text = self._reply.text.lstrip() if self._reply is not None else ""
        if text:
            self._next = asyncio.get_running_loop().time() + self._interval
            self._send(text)
