"""Closed approvals: their outcomes, kept to answer late and repeated decisions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

from conductor.conversation.outbox import Outbox
from conductor.conversation.snapshot import DecidedSnapshot, decode, encode
from conductor.conversation.transport import Transport
from conductor.events.server import ApprovalResolved
from conductor.tools.approvals import Outcome

# Outcomes kept in memory, and in the snapshot; each decision writes the latter, so they are fewer.
_MAX_CLOSED = 64
_MAX_STORED = 8
_OUTCOMES: Mapping[str, Outcome] = {"allow": "allowed", "deny": "denied", "edit": "edited"}
_NO_OUTCOMES: Mapping[str, Outcome] = MappingProxyType({})


@dataclass(slots=True)
class _Closed:
    outcome: Outcome
    # The connection that received the outcome, None if no client was connected.
    client: Transport | None = None


class ClosedApprovals:
    """The outcomes of a session's last approvals.

    ``undelivered`` are the outcomes of cards that closed while no client was connected. ``epoch`` is that of
    the session's claim.
    """

    def __init__(self, outbox: Outbox, epoch: int) -> None:
        self._outbox = outbox
        self._epoch = epoch
        self._closed: OrderedDict[str, _Closed] = OrderedDict()
        self.undelivered: list[tuple[str, Outcome]] = []

    def add(self, approval_id: str, outcome: Outcome, *, by_card: bool) -> None:
        """Remember the outcome of an approval that has just closed."""
        client = self._outbox.transport
        if by_card and client is None:
            self.undelivered = [*self.undelivered, (approval_id, outcome)][-_MAX_CLOSED:]
        self._closed[approval_id] = _Closed(outcome, client)
        if len(self._closed) > _MAX_CLOSED:
            self._closed.popitem(last=False)

    def dump(self, decided: Mapping[str, Outcome] = _NO_OUTCOMES) -> str:
        """Encode the last outcomes for the snapshot, with the ones ``decided`` by its commit."""
        outcomes = {approval_id: closed.outcome for approval_id, closed in self._closed.items()}
        return encode(DecidedSnapshot(dict([*outcomes.items(), *decided.items()][-_MAX_STORED:])))

    def restore(self, stored: str | None) -> None:
        """Restore from a snapshot; the previous process may have died before an outcome was delivered."""
        snapshot = decode(stored, DecidedSnapshot)
        if snapshot is not None:
            outcomes = [(key, cast(Outcome, outcome)) for key, outcome in snapshot.outcomes.items()]
            self._closed.update((key, _Closed(outcome)) for key, outcome in outcomes)
            self.undelivered = outcomes

    def answer(self, approval_id: str, decision: str, *, is_deciding: bool) -> ApprovalResolved:
        """Answer a decision about an approval that is not pending, or is being decided."""
        closed, client = self._closed.get(approval_id), self._outbox.transport
        if closed is not None and closed.outcome in ("expired", "superseded"):
            return ApprovalResolved(approval_id, closed.outcome, "The question does not stand any more.")
        is_delivered = closed is not None and client is not None and closed.client is client
        if closed is not None and closed.outcome == _OUTCOMES.get(decision) and not is_delivered:
            # The outcome may have been lost with the connection: send it again.
            closed.client = client
            return ApprovalResolved(approval_id, closed.outcome, "This was decided already.")
        if closed is not None or is_deciding:
            return ApprovalResolved(approval_id, "refused", "This was decided already.")
        # In epoch 1 no other process has served this session; a later one may not know all outcomes.
        if self._epoch > 1:
            return ApprovalResolved(approval_id, "superseded", "The question does not stand any more.")
        return ApprovalResolved(approval_id, "refused", "There is no such question.")
