"""Grants: rules that follow from a person's approvals, for one session or always."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import structlog

from conductor.conversation.commit import Committer
from conductor.conversation.fields import SubjectRecords
from conductor.stores.base import Operation, SetField
from conductor.tools.approvals import Scope
from conductor.tools.base import ToolSpec
from conductor.tools.permissions import grant
from conductor.tools.rules import Rule, decode_rules, encode_rules

log = structlog.get_logger(__name__)


# The field that holds grants, in a session and in a subject's record.
FIELD = "grants"
# Grants of a session or a subject; the oldest is dropped, and its call needs an approval again.
MAX_GRANTS = 200


def with_grant(rules: tuple[Rule, ...], rule: Rule) -> tuple[Rule, ...]:
    """Append a grant, and drop the oldest over the limit."""
    return (*(granted for granted in rules if granted != rule), rule)[-MAX_GRANTS:]


@lru_cache(maxsize=1024)
def decode_grants(text: str, subject: str) -> tuple[Rule, ...]:
    """Decode grants; an unreadable text grants nothing."""
    try:
        return decode_rules(text) if text else ()
    except ValueError:
        log.error("grants not readable", subject=subject)
        return ()


class Grants:
    """The grants of one session, with its subject's lasting ones."""

    def __init__(self, committer: Committer, records: SubjectRecords | None) -> None:
        self._committer = committer
        self._subject = committer.key.subject
        self._records = records

    @property
    def lasting(self) -> bool:
        return self._records is not None

    def rules(self) -> Sequence[Rule]:
        """Return the granted rules."""
        own = decode_grants(self._committer.state.fields.get(FIELD, ""), self._subject)
        if self._records is None:
            return own
        return (*own, *decode_grants(self._records.get(self._subject, FIELD), self._subject))

    async def add(self, spec: ToolSpec, arguments: Mapping[str, Any], scope: Scope) -> list[Operation]:
        """Add a grant for ``scope``; returns the operations to commit. Raises `StoreError`."""
        if scope == "once":
            return []
        rule = grant(spec, arguments, scope=scope)

        def added(text: str) -> str:
            return encode_rules(with_grant(decode_grants(text, self._subject), rule))

        if scope == "always" and self._records is not None:
            await self._records.update(self._subject, FIELD, added)
            return []
        return [SetField(FIELD, added(self._committer.state.fields.get(FIELD, "")))]
