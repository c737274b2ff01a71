"""What one session's person has allowed for longer than once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from conductor.conversation.lasting import FIELD, LastingGrants, decode_grants, with_grant
from conductor.conversation.ledger import Ledger
from conductor.stores.base import Operation, SetField
from conductor.tools.approvals import Scope
from conductor.tools.base import ToolSpec
from conductor.tools.permissions import grant
from conductor.tools.rules import Rule, encode_rules


class Grants:
    """What one session's person has allowed."""

    def __init__(self, ledger: Ledger, lasting: LastingGrants | None) -> None:
        self._ledger = ledger
        self._lasting = lasting
        self._text = ""
        self._rules: tuple[Rule, ...] = ()

    @property
    def lasting(self) -> bool:
        """Whether something can be allowed always."""
        return self._lasting is not None

    def rules(self) -> Sequence[Rule]:
        """Give the rules that follow from it."""
        text = self._ledger.state.fields.get(FIELD, "")
        if text != self._text:
            self._text, self._rules = text, decode_grants(text, self._ledger.key.subject)
        lasting = self._lasting.rules(self._ledger.key.subject) if self._lasting is not None else ()
        return [*self._rules, *lasting] if lasting else self._rules

    async def add(self, spec: ToolSpec, arguments: Mapping[str, Any], scope: Scope) -> list[Operation]:
        """Keep what was allowed; gives what is to be committed for it. Raises `StoreError`."""
        if scope == "once":
            return []
        rule = grant(spec, arguments, scope=scope)
        if scope == "always" and self._lasting is not None:
            await self._lasting.add(self._ledger.key.subject, rule)
            return []
        self.rules()
        return [SetField(FIELD, encode_rules(with_grant(self._rules, rule)))]
