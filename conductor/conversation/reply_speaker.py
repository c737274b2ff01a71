"""Replies of the model: their citations, and their speech in segments while the model is still writing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial

from conductor.conversation.context import TurnContext
from conductor.conversation.snapshot import TURN
from conductor.conversation.speech import Speech
from conductor.conversation.turn_state import TurnState
from conductor.events.envelope import new_call_id, new_speech_id
from conductor.messages import Message, ToolResult
from conductor.segments import SegmentSplitter
from conductor.speech import CODE_PHRASE, TABLE_PHRASE, for_the_ear

_CITATION = re.compile(r"[ \t]?\[(\d{1,3}(?:, ?\d{1,3})*)\](?!\()")
_CODE = re.compile(r"(```.*?(?:```|\Z)|`[^`\n]*`)", re.DOTALL)
# In a result as JSON; quotes within documents are escaped.
_RESULTS = '"results":['
_NUMBER = re.compile(r'(?<=[{,])"number":(\d{1,3})(?=[,}])')


def without_invented(text: str, messages: Iterable[Message]) -> str:
    """Drop the citations of a reply that no search in the history has returned.

    Without a search, numbers in brackets are not citations.
    """
    if not _CITATION.search(text):
        return text
    contents = [
        message.content
        for message in messages
        if isinstance(message, ToolResult) and _RESULTS in message.content
    ]
    returned = {number for content in contents for number in _NUMBER.findall(content)}
    if not contents:
        return text

    def valid_numbers(citation: re.Match[str]) -> str:
        numbers = [number for number in re.findall(r"\d+", citation[1]) if number in returned]
        begin = citation[0][: citation[0].index("[")]
        return f"{begin}[{', '.join(numbers)}]" if numbers else ""

    prose_and_code = _CODE.split(text)
    prose_and_code[::2] = [_CITATION.sub(valid_numbers, prose) for prose in prose_and_code[::2]]
    return "".join(prose_and_code)


class ReplySpeaker:
    """Speaks one reply of the model. Each segment is recorded with the text before it, then sent."""

    def __init__(self, context: TurnContext, turn: TurnState) -> None:
        self._context = context
        self._turn = turn
        self._splitter = SegmentSplitter(context.profile.locale)
        self._segments = 0
        self._phrases: set[str] = set()
        turn.speech_id, turn.spoken_text = new_speech_id(), ""

    @property
    def spoke(self) -> bool:
        return self._segments > 0

    async def add(self, text: str) -> None:
        """Append text of the model, and speak the segments that it completes.

        Call it in `TurnState.interruptible`. Raises `StoreError`.
        """
        context, turn = self._context, self._turn
        for segment in self._splitter.feed(text):
            speech = self._next(segment)
            if speech is None:
                continue
            events = context.speech_events(speech)
            with turn.committing():
                await context.committer.commit(
                    [],
                    events,
                    turn.id,
                    snapshots={TURN: turn.dump},
                    after=partial(self._note_speech, speech),
                )

    def last(self, text: str) -> Speech | None:
        """Make the speech of the remaining reply; ``text`` is the whole reply, which is being logged."""
        if not self.spoke:
            self._turn.spoken_text = ""  # it had no speakable text
        speech = self._next(self._splitter.tail if self.spoke else text)
        if speech is not None:
            speech.text, speech.position, speech.last = text, self._context.committer.state.log_end, True
        return speech

    def _next(self, segment: str) -> Speech | None:
        turn = self._turn
        before, turn.spoken_text = turn.spoken_text, turn.spoken_text + segment
        voice_text = for_the_ear(without_invented(segment, self._context.committer.state.log))
        if not voice_text or voice_text in self._phrases:
            return None
        if voice_text in (CODE_PHRASE, TABLE_PHRASE):
            self._phrases.add(voice_text)
        number, self._segments = self._segments, self._segments + 1
        return Speech(
            new_call_id(),
            turn.id,
            -1,
            turn.spoken_text.strip(),
            voice_text,
            tuple(turn.actions),
            speech_id=turn.speech_id,
            before=before.strip(),
            segment=number,
            last=False,
        )

    def _note_speech(self, speech: Speech) -> None:
        self._context.speeches.add(speech)
        self._turn.stats.mark_first("speech")
