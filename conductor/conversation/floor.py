"""Who has the floor: the server speaks unasked only where nobody is talking and nothing is being said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from conductor.bounds import TokenBucket
from conductor.conversation.outbox import Outbox


class Floor:
    """Watches over turns that nobody asked for.

    The person keeps the floor for ``seconds`` after each sign of speech. ``bucket`` bounds the session's
    turns; ``ask_again`` is called when there is something to wait for and it is over.
    """

    def __init__(
        self, seconds: float, outbox: Outbox, bucket: TokenBucket, ask_again: Callable[[], None]
    ) -> None:
        self._seconds = seconds
        self._outbox = outbox
        self._bucket = bucket
        self._ask_again = ask_again
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def hold(self) -> None:
        """Note that the person is speaking: news waits for the final transcript, or for silence."""
        self._until = asyncio.get_running_loop().time() + self._seconds

    def leave(self) -> None:
        """Note that the person has finished."""
        self._until = 0.0

    def is_free(self) -> bool:
        """Whether the server may speak unasked: somebody listens, nothing is playing, nobody is talking."""
        if self._outbox.transport is None or self._outbox.speaking:
            return False  # asked again on attaching, and when the speech is over
        loop = asyncio.get_running_loop()
        wait = max(self._until - loop.time(), self._bucket.wait(loop.time()))
        if wait <= 0:
            return True
        self.close()
        self._timer = loop.call_later(wait, self._ask_again)
        return False

    def close(self) -> None:
        """Ask no more."""
        if self._timer is not None:
            self._timer.cancel()
