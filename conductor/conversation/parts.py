"""The parts that a session consists of, made and joined."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from conductor.bounds import TokenBucket
from conductor.conversation.delivery import Delivery
from conductor.conversation.device_calls import DeviceCalls
from conductor.conversation.fields import Fields
from conductor.conversation.floor import Floor
from conductor.conversation.grants import Grants
from conductor.conversation.hearing import Hearing
from conductor.conversation.host import Host
from conductor.conversation.ledger import Ledger
from conductor.conversation.memos import PROFILE
from conductor.conversation.open_question import Voice
from conductor.conversation.outbox import Outbox
from conductor.conversation.profile import Profile
from conductor.conversation.questions import Questions
from conductor.conversation.services import Services
from conductor.conversation.speeches import Speeches
from conductor.conversation.tasks import Tasks
from conductor.conversation.turns import Turns
from conductor.stores.base import Claim, OutboundRecord
from conductor.tools.pending import Pending


@dataclass(slots=True)
class Parts:
    """One session's parts. ``bucket`` counts its turns; ``draining``: no more of them are to begin."""

    tasks: Tasks
    outbox: Outbox
    profile: Profile
    ledger: Ledger
    delivery: Delivery
    device: DeviceCalls
    speeches: Speeches
    questions: Questions
    hearing: Hearing
    turns: Turns
    bucket: TokenBucket
    floor: Floor
    draining: bool = False

    def may_tell_news(self) -> bool:
        """Whether the session is idle enough for a turn that nobody asked for."""
        return not self.draining and self.floor.is_free()

    def count_news(self) -> None:
        """Count a turn that nobody asked for as one of the session's."""
        self.bucket.take(asyncio.get_running_loop().time())

    def expired(self, record: OutboundRecord) -> None:
        """Give up an event whose answer has not come in time."""
        if record.kind == "speak":
            self.speeches.forget(record.call_id)  # nobody will ever say whether it was heard
            self.hearing.unanswered(record.call_id)
            self.turns.tell_news()
        else:
            self.tasks.spawn(self.device.time_out(record.call_id))


def make_parts(services: Services, claim: Claim, on_lost: Callable[[bool], None]) -> Parts:
    """Make the parts of a session that was claimed; ``on_lost`` is the ledger's."""
    limits = services.limits
    tasks = Tasks()
    outbox = Outbox(limits, lambda record: parts.expired(record))
    pending = Pending()
    profile = Profile(services, claim.key.session_id, pending)
    delivery = Delivery(claim.key.session_id, outbox, limits, profile.terms)
    ledger = Ledger(services.store, claim, delivery, tasks, on_lost)
    ledger.keep(PROFILE, profile.kept)
    device = DeviceCalls(limits, profile, pending, ledger, delivery, lambda: parts.turns.busy)
    speeches = Speeches(limits.heard_window)
    grants = Grants(ledger, services.lasting_grants)
    profile.grants = grants.rules
    profile.fields = Fields(ledger)
    voice = Voice(outbox, speeches)
    questions = Questions(limits, profile, pending, ledger, outbox, voice, tasks, grants, services.figures)
    hearing = Hearing(questions)
    host = Host(
        services,
        profile,
        pending,
        ledger,
        delivery,
        device,
        questions,
        speeches,
        lambda: parts.turns.follow(),
    )
    turns = Turns(services, host, tasks, lambda: parts.may_tell_news(), lambda: parts.count_news())
    bucket = TokenBucket(limits.turns_per_minute / 60, limits.turns_per_minute, _now())
    floor = Floor(limits.floor_timeout, outbox, bucket, turns.tell_news)
    parts = Parts(
        tasks, outbox, profile, ledger, delivery, device, speeches, questions, hearing, turns, bucket, floor
    )
    return parts


def _now() -> float:
    return asyncio.get_running_loop().time()
