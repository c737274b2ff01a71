"""What waits for its turn: transcripts that came during one, and news that the server tells by itself."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass


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
        self._transcripts: deque[Transcript] = deque()
        self._news: deque[News] = deque(maxlen=max_news)

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

    @property
    def transcripts(self) -> int:
        """How many transcripts wait."""
        return len(self._transcripts)

    def has_news(self, now: float) -> bool:
        """Tell whether there is news for a turn of its own."""
        return any(news.expires > now for news in self._news)

    def take_transcript(self) -> Transcript | None:
        """Take the oldest transcript."""
        return self._transcripts.popleft() if self._transcripts else None

    def drop_transcripts(self) -> None:
        """Forget them: they cannot be answered."""
        self._transcripts.clear()

    def news(self, before: float = math.inf) -> list[News]:
        """List news, or only what has expired ``before``: that goes with the next turn, whatever it is."""
        return [news for news in self._news if news.expires <= before]

    def drop_news(self, told: list[News]) -> None:
        """Forget news: a turn tells it."""
        for news in told:
            if news in self._news:
                self._news.remove(news)
