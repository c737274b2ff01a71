"""Grants: rules that follow from a person's approvals, for one session or always."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from conductor.conversation.commit import Committer
from conductor.errors import Conflict, Fenced, StoreUnavailable
from conductor.events.envelope import IdGenerator
from conductor.stores.base import Operation, SessionKey, SessionStore, SetField
from conductor.tools.approvals import Scope
from conductor.tools.base import ToolSpec
from conductor.tools.permissions import grant
from conductor.tools.rules import Rule, decode_rules, encode_rules

log = structlog.get_logger(__name__)


# The field that holds grants, in a session and in a subject's record.
FIELD = "grants"
# Grants a session or a subject; the oldest is dropped, and its call is asked about again.
MAX_GRANTS = 200
# The reserved session id of a subject's lasting grants; no client may use a "$".
LASTING_ID = "$grants"
# Tries to write a lasting grant against other processes that write the same subject's.
_ATTEMPTS = 5

_commit_ids = IdGenerator("grant")


class LastingGrants:
    """Lasting grants, kept by subject in the session store."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._rules: dict[str, tuple[Rule, ...]] = {}
        self._lock = asyncio.Lock()

    def rules(self, subject: str) -> Sequence[Rule]:
        """Return a subject's grants, empty before `load`."""
        return self._rules.get(subject, ())

    async def load(self, subject: str) -> None:
        """Read a subject's grants. Raises `StoreUnavailable`."""
        claim = await self._store.claim(SessionKey(subject, LASTING_ID))
        self._rules[subject] = decode_grants(claim.state.fields.get(FIELD, ""), subject)

    async def add(self, subject: str, rule: Rule) -> None:
        """Store a grant. Raises `StoreError`."""
        async with self._lock:
            for attempt in range(1, _ATTEMPTS + 1):
                # Another process may write the same subject's grants: the last claim wins, the other retries.
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
    """Append a grant, and drop the oldest over the limit."""
    return (*(one for one in rules if one != rule), rule)[-MAX_GRANTS:]


def decode_grants(text: str, subject: str) -> tuple[Rule, ...]:
    """Decode grants; an unreadable text grants nothing."""
    try:
        return decode_rules(text) if text else ()
    except ValueError:
        log.error("grants not readable", subject=subject)
        return ()


class Grants:
    """The grants of one session, with its subject's lasting ones."""

    def __init__(self, committer: Committer, lasting: LastingGrants | None) -> None:
        self._committer = committer
        self._lasting = lasting
        self._text = ""
        self._rules: tuple[Rule, ...] = ()

    @property
    def lasting(self) -> bool:
        return self._lasting is not None

    def rules(self) -> Sequence[Rule]:
        """Return the granted rules."""
        text = self._committer.state.fields.get(FIELD, "")
        if text != self._text:
            self._text, self._rules = text, decode_grants(text, self._committer.key.subject)
        lasting = self._lasting.rules(self._committer.key.subject) if self._lasting is not None else ()
        return [*self._rules, *lasting] if lasting else self._rules

    async def add(self, spec: ToolSpec, arguments: Mapping[str, Any], scope: Scope) -> list[Operation]:
        """Add a grant for ``scope``; returns the operations to commit. Raises `StoreError`."""
        if scope == "once":
            return []
        rule = grant(spec, arguments, scope=scope)
        if scope == "always" and self._lasting is not None:
            await self._lasting.add(self._committer.key.subject, rule)
            return []
        self.rules()
        return [SetField(FIELD, encode_rules(with_grant(self._rules, rule)))]
