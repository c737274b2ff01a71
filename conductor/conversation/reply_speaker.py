"""Speaks a reply in segments while the model is still writing it."""

from __future__ import annotations

from functools import partial

from conductor.conversation.citations import without_invented
from conductor.conversation.context import TurnContext
from conductor.conversation.snapshot import TURN
from conductor.conversation.speech import Speech
from conductor.conversation.turn_state import TurnState
from conductor.events.envelope import new_call_id, new_speech_id
from conductor.segments import SegmentSplitter
from conductor.speech import CODE_PHRASE, TABLE_PHRASE, for_the_ear


class ReplySpeaker:
    """Speaks one reply of the model. Each segment is recorded with what was said before it, then sent.

    ``spoke``: a segment was spoken already.
    """

    def __init__(self, context: TurnContext, turn: TurnState) -> None:
        self._context = context
        self._turn = turn
        self._splitter = SegmentSplitter(context.profile.locale)
        self._segments = 0
        self._phrases: set[str] = set()
        turn.speech_id, turn.said = new_speech_id(), ""

    @property
    def spoke(self) -> bool:
        return self._segments > 0

    async def add(self, text: str) -> None:
        """Append what the model wrote, and speak the segments that it completes.

        To be called in `TurnState.interruptible`. Raises `StoreError`.
        """
        context, turn = self._context, self._turn
        for segment in self._splitter.feed(text):
            speech = self._next(segment)
            if speech is None:
                continue
            events = context.speech_events(speech)
            with turn.committing():
                await context.committer.commit(
                    [], events, turn.id, snapshots={TURN: turn.dump}, then=partial(self._said, speech)
                )

    def last(self, text: str) -> Speech | None:
        """Make the speech of what is left of the whole reply, ``text``, which is about to be logged."""
        if not self.spoke:
            self._turn.said = ""  # which no voice can say
        speech = self._next(self._splitter.rest if self.spoke else text)
        if speech is not None:
            speech.text, speech.position, speech.last = text, self._context.committer.state.log_end, True
        return speech

    def _next(self, segment: str) -> Speech | None:
        turn = self._turn
        before, turn.said = turn.said, turn.said + segment
        spoken = for_the_ear(without_invented(segment, self._context.committer.state.log))
        if not spoken or spoken in self._phrases:
            return None
        if spoken in (CODE_PHRASE, TABLE_PHRASE):
            self._phrases.add(spoken)
        number, self._segments = self._segments, self._segments + 1
        return Speech(
            new_call_id(),
            turn.id,
            -1,
            turn.said.strip(),
            spoken,
            tuple(turn.actions),
            speech_id=turn.speech_id,
            before=before.strip(),
            segment=number,
            last=False,
        )

    def _said(self, speech: Speech) -> None:
        self._context.speeches.add(speech)
        self._turn.stats.note_speech()
