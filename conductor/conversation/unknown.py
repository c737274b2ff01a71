"""Calls that may have happened: an identical one does not run silently while nobody knows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from conductor.conversation.memos import UnknownMemo, epoch_ms, loop_time


class Unknowns:
    """Remembers, for ``seconds`` each, up to ``limit`` calls by the digest of tool and arguments.

    Times are the event loop's (tools, "Unknown outcomes").
    """

    def __init__(self, limit: int, seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds
        self._calls: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def add(self, call_id: str, digest: str, now: float) -> None:
        """Note a call whose outcome nobody knows."""
        self._calls[call_id] = (digest, now + self._seconds)
        if len(self._calls) > self._limit:
            self._calls.popitem(last=False)

    def kept(self) -> tuple[UnknownMemo, ...]:
        """Write them all down."""
        return tuple(
            UnknownMemo(call_id, digest, epoch_ms(expires))
            for call_id, (digest, expires) in self._calls.items()
        )

    def restore(self, kept: Sequence[UnknownMemo]) -> None:
        """Remember what another process did."""
        for one in kept:
            self._calls[one.call_id] = (one.digest, loop_time(one.expires_ms))

    def settle(self, call_id: str) -> None:
        """Note that its outcome is known after all."""
        self._calls.pop(call_id, None)

    def holds(self, digest: str, now: float) -> bool:
        """Tell whether an identical call may have happened."""
        return any(known == digest and expires > now for known, expires in self._calls.values())
