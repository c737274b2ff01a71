"""``conductor webhooks``: the events that the app's backend did not take."""

from __future__ import annotations

import argparse

from conductor.commands.output import write_table
from conductor.commands.sessions import in_store
from conductor.conversation.events import iso_time
from conductor.plugins.webhooks.delivery import DEAD, DEAD_FIELD, DeadEvent, read_dead
from conductor.session.fields import SubjectRecords
from conductor.stores.base import SessionLog


def dead(options: argparse.Namespace) -> None:
    """List the events that were given up."""

    async def read(store: SessionLog) -> tuple[DeadEvent, ...]:
        records = SubjectRecords(store)
        await records.load(DEAD)
        return read_dead(records.get(DEAD, DEAD_FIELD))

    rows = [(iso_time(e.at), e.id, e.type, e.person, e.session, e.reason) for e in in_store(read)]
    write_table(("time", "id", "event", "person", "session", "reason"), rows)
