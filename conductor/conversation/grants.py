"""Grants: rules that follow from a person's approvals, for one session or always."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
# Grants a session or a subject; the oldest is dropped, and its call is asked about again.
MAX_GRANTS = 200


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

    def __init__(self, committer: Committer, records: SubjectRecords | None) -> None:
        self._committer = committer
        self._subject = committer.key.subject
        self._records = records
        self._own = _Decoded(self._subject)
        self._lasting = _Decoded(self._subject)

    @property
    def lasting(self) -> bool:
        return self._records is not None

    def rules(self) -> Sequence[Rule]:
        """Return the granted rules."""
        own = self._own.rules(self._committer.state.fields.get(FIELD, ""))
        if self._records is None:
            return own
        return (*own, *self._lasting.rules(self._records.get(self._subject, FIELD)))

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


class _Decoded:
    """Decodes a text of grants again when it has changed."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._text = ""
        self._rules: tuple[Rule, ...] = ()

    def rules(self, text: str) -> tuple[Rule, ...]:
        if text != self._text:
            self._text, self._rules = text, decode_grants(text, self._subject)
        return self._rules
