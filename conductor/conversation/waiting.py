"""What waits for its turn: transcripts that came during one, and news that the server tells by itself."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Transcript:
    """Something the person said, not answered yet."""

    text: str


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

    def add_transcript(self, text: str) -> bool:
        """Queue a transcript; False where there are too many."""
        if len(self._transcripts) >= self._max_transcripts:
            return False
        self._transcripts.append(Transcript(text))
        return True

    def add_news(self, news: News) -> None:
        """Queue news; the oldest gives way."""
        if all(news.text != other.text for other in self._news):
            self._news.append(news)

    @property
    def transcripts(self) -> int:
        """How many transcripts wait."""
        return len(self._transcripts)

    @property
    def has_news(self) -> bool:
        """Whether there is news to tell, expired or not."""
        return bool(self._news)

    def take_transcript(self) -> Transcript | None:
        """Take the oldest transcript."""
        return self._transcripts.popleft() if self._transcripts else None

    def take_news(self, now: float) -> list[str]:
        """Take all news that has not expired: one turn tells it."""
        texts = [news.text for news in self._news if news.expires > now]
        self._news.clear()
        return texts
