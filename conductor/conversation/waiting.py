"""What waits for its turn: transcripts that came during one, and news that the server tells by itself."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass

from conductor.conversation.memos import (
    NewsMemo,
    TranscriptMemo,
    WaitingMemo,
    decode,
    encode,
    epoch_ms,
    loop_time,
)


@dataclass(frozen=True, slots=True)
class Transcript:
    """Something the person said, not answered yet."""

    text: str
    event_id: str


@dataclass(frozen=True, slots=True)
class News:
    """Something to tell the person when the session is idle. ``expires`` is in the loop's time."""

    text: str
    expires: float


class Waiting:
    """Bounded queues of both. What the person said goes first."""

    def __init__(self, max_transcripts: int, max_news: int) -> None:
        self._max_transcripts = max_transcripts
        self._max_news = max_news
        self._transcripts: list[Transcript] = []
        self._news: list[News] = []

    def add_transcript(self, transcript: Transcript) -> bool:
        """Queue a transcript; False where there are too many."""
        if len(self._transcripts) >= self._max_transcripts:
            return False
        self._transcripts.append(transcript)
        return True

    def knows(self, event_id: str) -> bool:
        """Tell whether this transcript is waiting."""
        return any(transcript.event_id == event_id for transcript in self._transcripts)

    def add_news(self, news: News) -> None:
        """Queue news; the oldest gives way."""
        if all(news.text != other.text for other in self._news):
            self._news.append(news)
            del self._news[: max(0, len(self._news) - self._max_news)]

    @property
    def transcripts(self) -> int:
        """How many transcripts wait."""
        return len(self._transcripts)

    def has_news(self, now: float) -> bool:
        """Tell whether there is news for a turn of its own."""
        return any(news.expires > now for news in self._news)

    @property
    def next_transcript(self) -> Transcript | None:
        """The oldest transcript."""
        return self._transcripts[0] if self._transcripts else None

    def drop_transcript(self, event_id: str | None) -> None:
        """Forget a transcript: a turn answers it, or it could not be kept."""
        for transcript in self._transcripts:
            if transcript.event_id == event_id:
                self._transcripts.remove(transcript)
                return

    def drop_transcripts(self) -> None:
        """Forget them: they cannot be answered."""
        self._transcripts.clear()

    def news(self, before: float = math.inf) -> list[News]:
        """List news, or only what has expired ``before``: that goes with the next turn, whatever it is."""
        return [news for news in self._news if news.expires <= before]

    def kept(self, without: str | None = None, told: Sequence[News] = ()) -> str:
        """Write down what waits, without a transcript and news that a turn is about to take."""
        transcripts = [one for one in self._transcripts if one.event_id != without]
        news = [one for one in self._news if one not in told]
        if not transcripts and not news:
            return ""
        return encode(
            WaitingMemo(
                tuple(TranscriptMemo(one.text, one.event_id) for one in transcripts),
                tuple(NewsMemo(one.text, epoch_ms(one.expires)) for one in news),
            )
        )

    def restore(self, kept: str | None, begun: Container[str]) -> None:
        """Let wait what waited in another process, but for transcripts that were ``begun`` there."""
        memo = decode(kept, WaitingMemo)
        if memo is None:
            return
        transcripts = [Transcript(one.text, one.event_id) for one in memo.transcripts]
        self._transcripts.extend(one for one in transcripts if one.event_id not in begun)
        self._news.extend(News(one.text, loop_time(one.expires_ms)) for one in memo.news)
        del self._news[: max(0, len(self._news) - self._max_news)]

    def drop_news(self, told: Sequence[News]) -> None:
        """Forget news: a turn tells it."""
        for news in told:
            if news in self._news:
                self._news.remove(news)
