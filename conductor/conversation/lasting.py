"""What people have allowed always: it belongs to their subject, and lives in the session store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from conductor.errors import Conflict, Fenced, StoreUnavailable
from conductor.events.envelope import IdSource
from conductor.stores.base import SessionKey, SessionStore, SetField
from conductor.tools.rules import Rule, decode_rules, encode_rules

log = structlog.get_logger(__name__)

FIELD = "grants"
"""The field that keeps grants, a session's and a person's."""
MAX_GRANTS = 200
"""The oldest give way: a person who allowed so much is asked again."""
LASTING_ID = "$grants"
"""A session id that no client can name: what a person allowed always is kept under it."""
_ATTEMPTS = 5

_commit_ids = IdSource("grant")


class LastingGrants:
    """What people have allowed always; it belongs to their subject and lives in the session store."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._rules: dict[str, tuple[Rule, ...]] = {}
        self._lock = asyncio.Lock()

    def rules(self, subject: str) -> Sequence[Rule]:
        """Give those of a person, as far as they were loaded."""
        return self._rules.get(subject, ())

    async def load(self, subject: str) -> None:
        """Read those of a person. Raises `StoreUnavailable`."""
        claim = await self._store.claim(SessionKey(subject, LASTING_ID))
        self._rules[subject] = decode_grants(claim.state.fields.get(FIELD, ""), subject)

    async def add(self, subject: str, rule: Rule) -> None:
        """Keep one more. Raises `StoreError`."""
        async with self._lock:
            for attempt in range(1, _ATTEMPTS + 1):
                # Another process may do the same for this person: whoever claims last writes.
                claim = await self._store.claim(SessionKey(subject, LASTING_ID))
                rules = with_grant(decode_grants(claim.state.fields.get(FIELD, ""), subject), rule)
                try:
                    await self._store.commit(claim, _commit_ids(), [SetField(FIELD, encode_rules(rules))])
                except (Fenced, Conflict):
                    if attempt == _ATTEMPTS:
                        raise StoreUnavailable("others keep writing this person's grants") from None
                    continue
                self._rules[subject] = rules
                return


def with_grant(rules: tuple[Rule, ...], rule: Rule) -> tuple[Rule, ...]:
    """Add a grant to others."""
    return (*(one for one in rules if one != rule), rule)[-MAX_GRANTS:]


def decode_grants(text: str, subject: str) -> tuple[Rule, ...]:
    """Read grants; what cannot be read allows nothing."""
    try:
        return decode_rules(text) if text else ()
    except ValueError:
        log.error("grants not readable", subject=subject)
        return ()
