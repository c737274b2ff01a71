"""A session's collaborators, and the function that wires them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from conductor.conversation.approvals import Approvals, SpokenPrompts
from conductor.conversation.client_profile import ClientProfile
from conductor.conversation.commit import Committer, EventEncoder
from conductor.conversation.context import Fields, Host
from conductor.conversation.device_calls import DeviceCalls
from conductor.conversation.grants import Grants
from conductor.conversation.outbox import Outbox
from conductor.conversation.services import Services
from conductor.conversation.snapshot import PROFILE
from conductor.conversation.speech import FloorControl, SpeechTracker
from conductor.conversation.spoken_approvals import SpokenApprovals
from conductor.conversation.tasks import Tasks
from conductor.conversation.turn_queue import TurnQueue
from conductor.rate_limit import SharedRate
from conductor.stores.base import Claim, OutboundRecord
from conductor.tools.pending import PendingCalls


@dataclass(slots=True)
class Parts:
    """One session's collaborators. ``bucket`` limits its turns; ``draining``: start no more turns."""

    tasks: Tasks
    outbox: Outbox
    profile: ClientProfile
    committer: Committer
    encoder: EventEncoder
    device: DeviceCalls
    speeches: SpeechTracker
    approvals: Approvals
    spoken_approvals: SpokenApprovals
    turns: TurnQueue
    bucket: SharedRate
    floor: FloorControl
    draining: bool = False

    def may_deliver_notices(self) -> bool:
        """Whether a turn about notices may start: not draining, and the person is not speaking."""
        return not self.draining and self.floor.is_free()

    def count_notices(self) -> None:
        """Count a turn about notices against the session's rate."""
        self.bucket.take(asyncio.get_running_loop().time())

    def expired(self, record: OutboundRecord) -> None:
        """Handle an event that was not answered in time."""
        if record.kind == "speak":
            self.speeches.forget(record.call_id)  # no acknowledgement will come
            self.spoken_approvals.prompt_unanswered(record.call_id)
            self.turns.deliver_notices()
        else:
            self.tasks.spawn(self.device.time_out(record.call_id))


def make_parts(services: Services, claim: Claim, on_lost: Callable[[bool], None]) -> Parts:
    """Make the collaborators of a claimed session; ``on_lost`` is the `Committer`'s."""
    limits = services.limits
    tasks = Tasks()
    outbox = Outbox(limits, lambda record: parts.expired(record))
    pending = PendingCalls()
    profile = ClientProfile(services, claim.key.session_id, pending)
    encoder = EventEncoder(claim.key.session_id, outbox, limits, profile.limits_for)
    committer = Committer(services.store, claim, encoder, tasks, on_lost)
    committer.register(PROFILE, profile.dump)
    device = DeviceCalls(limits, profile, pending, committer, encoder, lambda: parts.turns.busy)
    speeches = SpeechTracker(limits.heard_window)
    grants = Grants(committer, services.lasting_grants)
    profile.grants = grants.rules
    profile.fields = Fields(committer)
    prompts = SpokenPrompts(outbox, speeches)
    approvals = Approvals(
        limits, profile, pending, committer, outbox, prompts, tasks, grants, services.metrics
    )
    spoken_approvals = SpokenApprovals(approvals)
    host = Host(
        services,
        profile,
        pending,
        committer,
        encoder,
        device,
        approvals,
        speeches,
        lambda: parts.turns.follow(),
    )
    turns = TurnQueue(
        services, host, tasks, lambda: parts.may_deliver_notices(), lambda: parts.count_notices()
    )
    bucket = services.turn_rate(claim.key.subject, asyncio.get_running_loop().time())
    floor = FloorControl(limits, outbox, bucket, turns.deliver_notices)
    parts = Parts(
        tasks,
        outbox,
        profile,
        committer,
        encoder,
        device,
        speeches,
        approvals,
        spoken_approvals,
        turns,
        bucket,
        floor,
    )
    return parts
