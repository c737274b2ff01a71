"""The speeches that a device is still to say, is saying, or has only just said."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from conductor.conversation.heard import Speech, heard_text
from conductor.conversation.memos import SpeechesMemo, SpeechMemo, decode, encode
from conductor.stores.base import Amendment, AppendLog, Operation

_MAX_SPEECHES = 64
"""More are not under way; the oldest are such as were interrupted and never answered for."""
_MAX_KEPT = 4
"""So many are told to the next process: more seldom wait for each other, and each commit writes them."""


class Speeches:
    """Knows which speech an interruption concerns.

    ``window`` is how many seconds after its acknowledgement an interruption still counts as one of it.
    """

    def __init__(self, window: float) -> None:
        self._window = window
        self._speeches: OrderedDict[str, Speech] = OrderedDict()

    def add(self, speech: Speech | None) -> None:
        """Note a speech that was committed, if there is one; those before it that are over are history."""
        if speech is None:
            return
        for call_id in [s.call_id for s in self._speeches.values() if s.over_at is not None]:
            del self._speeches[call_id]
        self._speeches[speech.call_id] = speech
        if len(self._speeches) > _MAX_SPEECHES:
            self._speeches.popitem(last=False)

    def kept(self, last: Speech) -> str:
        """Write down what another process may hear an interruption of; ``last`` is about to be added."""
        under_way = [one for one in self._speeches.values() if one.over_at is None and one.position >= 0]
        return encode(SpeechesMemo(tuple(_memo_of(one) for one in [*under_way, last][-_MAX_KEPT:])))

    def restore(
        self, kept: str | None, text_at: Callable[[int], str], is_outstanding: Callable[[str], bool]
    ) -> None:
        """Know the speeches of another process; ``text_at`` gives the log's text at a position.

        The last one may have been over for a moment only; those before it count while they are outstanding.
        """
        memos = decode(kept, SpeechesMemo)
        speeches = memos.speeches if memos is not None else ()
        for memo in speeches:
            if memo is not speeches[-1] and not is_outstanding(memo.call_id):
                continue
            text = text_at(memo.position)
            self._speeches[memo.call_id] = Speech(
                memo.call_id, memo.turn_id, memo.position, text, memo.spoken, memo.actions
            )

    def over(self, call_id: str, now: float) -> None:
        """Note that a speech was acknowledged, or that nobody will say whether it was said."""
        speech = self._speeches.get(call_id)
        if speech is not None and speech.over_at is None:
            speech.over_at = now

    def interrupt(self, now: float) -> Speech | None:
        """Mark and return the speech that an interruption concerns: the oldest one that is not over."""
        open_ones = [speech for speech in self._speeches.values() if not speech.interrupted]
        concerned = next((speech for speech in open_ones if speech.over_at is None), None) or next(
            (s for s in open_ones if s.over_at is not None and now - s.over_at <= self._window), None
        )
        if concerned is not None:
            concerned.interrupted = True
        return concerned

    def forget(self, call_id: str) -> None:
        """Forget a speech that was taken back."""
        self._speeches.pop(call_id, None)

    def unsent(self, was_written: Callable[[str], bool]) -> list[Speech]:
        """List the speeches that no socket has had."""
        return [s for s in self._speeches.values() if s.over_at is None and not was_written(s.call_id)]

    def amend(self, speech: Speech, spoken_text: str | None, played_ms: float | None) -> list[Operation]:
        """Make the operation that leaves in the history what was heard."""
        return [AppendLog(Amendment(speech.position, heard_text(speech, spoken_text, played_ms)))]


def _memo_of(speech: Speech) -> SpeechMemo:
    return SpeechMemo(speech.call_id, speech.turn_id, speech.position, speech.spoken, speech.actions)
