"""Servers that are broken on purpose: the faults that must show, else whoever looks for them is blind."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha1
from typing import Any

from benchmarks.chaos_book import Column
from conductor.conversation.commit import Committer, EncodedEvent, EventEncoder
from conductor.conversation.outbox import Outbox
from conductor.conversation.transport import Frame
from conductor.errors import Fenced, StoreError
from conductor.events.server import ServerEvent
from conductor.stores import redis, redis_records, sqlite_schema

_HEAD_START_S = 0.005
"""How long before its commit an event leaves; a slow disk would give it as much."""


def _patch(owner: object, name: str, value: object) -> None:
    """Put something else in a place of the product that is not meant to be changed."""
    if not hasattr(owner, name):
        raise AttributeError(f"{owner} has no {name}: this control breaks nothing any more")
    setattr(owner, name, value)


class _Mute:
    """A delivery that makes events ready and sends none: they have left already."""

    def __init__(self, encoder: EventEncoder) -> None:
        self.outbox = encoder.outbox
        self.loud = encoder

    def make_ready(self, events: Sequence[ServerEvent], turn_id: str) -> list[EncodedEvent]:
        """Do as the delivery does."""
        return self.loud.make_ready(events, turn_id)

    def send(self, outgoing: Sequence[EncodedEvent]) -> None:
        """Send nothing."""


def emit_first() -> None:
    """Send events before the commit that records them."""
    begin: Callable[..., None] = Committer.__init__
    commit: Callable[..., Any] = Committer._commit

    def muted(self: Any, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        self._encoder = _Mute(self._encoder)

    async def early(self: Any, operations: Any, outgoing: Sequence[EncodedEvent], *rest: Any) -> None:
        if outgoing:
            self._encoder.loud.send(outgoing)
            await asyncio.sleep(_HEAD_START_S)
        await commit(self, operations, outgoing, *rest)

    _patch(Committer, "__init__", muted)
    _patch(Committer, "_commit", early)


def new_ids() -> None:
    """Send what is sent again under another id."""
    attach: Callable[..., None] = Outbox.attach

    def renamed(self: Any, *arguments: Any, **named: Any) -> None:
        for entry in self._entries.values():
            old = entry.record.event_id.encode()
            entry.frame = _renamed(entry.frame, old)
        attach(self, *arguments, **named)

    _patch(Outbox, "attach", renamed)


def _renamed(frame: Frame, old: bytes) -> Frame:
    return replace(frame, data=frame.data.replace(old, f"evt_{secrets.token_hex(8)}".encode()))


def no_fence() -> None:
    """Accept the commits of an owner whose session was taken over."""

    def standing(head: Any, proposal: Any) -> int | StoreError | None:
        if head is None:
            return Fenced("There is no such session.")
        found: int = head.revision
        return found if head.commit_id == proposal.commit_id else None

    _patch(sqlite_schema, "_standing", standing)
    script = redis_records.COMMIT
    for check in (
        "if kept[1] == '' then return {'FENCED', 'gone'} end",
        "if kept[1] ~= ARGV[1] then return {'FENCED', ''} end",
        "if revision ~= tonumber(ARGV[3]) then return {'REVISION', revision} end",
    ):
        if check not in script.text:
            raise AttributeError("the script for commits has no such check: this control breaks nothing")
        text = script.text.replace(check, "")
        script = replace(script, text=text, digest=sha1(text.encode(), usedforsecurity=False).hexdigest())
    _patch(redis, "COMMIT", script)


CONTROLS: Mapping[str, Callable[[], None]] = {
    "emit-first": emit_first,
    "new-ids": new_ids,
    "no-fence": no_fence,
}
"""Name -> what patches the classes of this process before it serves."""

SHOWN_BY: Mapping[str, Sequence[Column]] = {
    "emit-first": ("doubled", "lost"),
    "new-ids": ("shown twice",),
    # Two owners write one log: what either has recorded may be overwritten, or hold the other up.
    "no-fence": ("zombie", "history", "doubled", "shown twice", "lost", "unknown?", "stuck"),
}
"""What each of them leads to: one of these must be found."""
