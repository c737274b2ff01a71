"""Murmurs over a paused speech, and the grounds on which a server may take one for words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from benchmarks.chaos_book import Job
from benchmarks.chaos_jobs import ASIDE
from conductor.client import Turn
from conductor.events.server import (
    ApprovalRequest,
    ApprovalResolved,
    SpeechFinal,
    SpeechPartial,
    ToolCallEvent,
)

MURMUR = "Mhm."


@dataclass(eq=False)
class Murmur:
    """A murmur over a paused speech, after the words of ``job``.

    ``asks``: the speech ends in a question. ``answers`` is the number of answers by murmurs before this one:
    another one may answer the question meanwhile. ``behind`` tells of the person's other words since the
    speech's turn began, or of an interruption. ``ground`` is set when the server takes it for words: the
    reason for it, or "" without one.
    """

    turn: Turn
    job: Job | None
    asks: bool
    behind: str
    answers: int
    ground: str | None = None


class Floor:
    """Follows what the person and the assistant say, and what the assistant asks, as a client sees it.

    ``words`` counts the words of the person besides murmurs, and ``begun`` the ones that have a turn: later
    words outdate a speech, and the server cuts a reply of which a part is unsent. ``interrupted_at`` is the
    number at the last interruption: a speech that was on its way then may still begin, and is cut already.
    ``answers`` counts the murmurs that the server took for words.
    """

    def __init__(self) -> None:
        self.words = self.begun = self.answers = 0
        self.interrupted_at = -1
        self._asked = False
        self._cards: set[str] = set()
        self._murmurs: list[Murmur] = []

    def add(self, murmur: Murmur) -> None:
        """Follow a murmur, too."""
        self._murmurs.append(murmur)

    def behind(self, since: int) -> str:
        """Tell what precedes a murmur over a speech that began when ``since`` words had a turn."""
        if self.words > since:
            return "behind other words"
        return "after an interruption" if self.interrupted_at == self.words else ""

    def note(self, event: Any) -> None:
        """Note an event of the server, in order."""
        match event:
            case ToolCallEvent(name="convo.appendMessage"):
                message = msgspec.json.decode(event.arguments)
                if message["role"] == "user":
                    self._note_words(message["text"])
            case SpeechPartial() | SpeechFinal():
                self._asked |= event.text.endswith(ASIDE)
            case ApprovalRequest():
                self._cards.add(event.approval_id)
            case ApprovalResolved() if event.outcome != "superseded":  # as words over a card do
                self._cards.discard(event.approval_id)

    def _note_words(self, text: str) -> None:
        for murmur in self._murmurs:
            if murmur.turn.stage == "running" and murmur.ground is None:
                murmur.ground = self._ground(murmur, text)
        if text == MURMUR:
            self.answers += 1
        else:
            self.begun = self.words
        self._asked = False
        self._cards.clear()

    def _ground(self, murmur: Murmur, text: str) -> str:
        if murmur.behind or text != MURMUR:
            return murmur.behind or "as the other half of a sentence"
        if murmur.asks or self._asked:
            return "after a question"
        return "over a card" if self._cards else ""
