"""Grants: for how long, for whom, and for which arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from conductor.conversation.commit import Committer
from conductor.conversation.fields import SubjectRecords
from conductor.conversation.grants import FIELD, Grants, decode_grants
from conductor.errors import StoreUnavailable
from conductor.stores.base import SetField
from conductor.stores.memory import MemoryStore
from conductor.tools.approvals import Scope
from conductor.tools.base import ToolSpec
from conductor.tools.permissions import Gate
from tests.conversation.helpers import KEY, SlowStore, tool
from tests.conversation.test_commit import make_committer

MOVE = tool("device.move", risk="medium")
WIPE = tool("device.wipe", risk="high", effect="irreversible")


async def make_grants(lasting: SubjectRecords | None = None) -> tuple[Grants, Committer]:
    committer, _, _ = await make_committer(SlowStore())
    return Grants(committer, lasting), committer


async def allow(
    grants: Grants,
    committer: Committer,
    spec: ToolSpec,
    scope: Scope,
    arguments: Mapping[str, Any] | None = None,
) -> None:
    await committer.commit(await grants.add(spec, arguments or {}, scope))


def asks(grants: Grants, spec: ToolSpec, arguments: Mapping[str, Any] | None = None) -> bool:
    """Tell whether the gate would ask about a call."""
    verdict = Gate(grants=grants.rules).decide(spec, arguments or {}, tainted=False, may_have_happened=False)
    return verdict.effect == "ask"


async def test_allowed_once_is_not_kept() -> None:
    grants, committer = await make_grants(SubjectRecords(MemoryStore()))
    assert await grants.add(MOVE, {}, "once") == []
    assert asks(grants, MOVE)
    assert committer.state.fields == {}


async def test_a_session_grant_holds_from_the_commit_on_for_any_arguments_at_medium_risk() -> None:
    grants, committer = await make_grants()
    operations = await grants.add(MOVE, {"x": 1}, "session")
    assert asks(grants, MOVE, {"x": 1})
    await committer.commit(operations)
    assert not asks(grants, MOVE, {"x": 2})
    assert asks(grants, tool("device.copy", risk="medium"))


async def test_at_high_risk_it_holds_for_the_same_arguments_only() -> None:
    grants, committer = await make_grants()
    await allow(grants, committer, WIPE, "session", {"x": 1})
    assert not asks(grants, WIPE, {"x": 1})
    assert asks(grants, WIPE, {"x": 2})
    assert asks(grants, WIPE)


async def test_a_redefined_tool_needs_an_approval_again() -> None:
    grants, committer = await make_grants()
    await allow(grants, committer, MOVE, "session")
    assert asks(grants, replace(MOVE, description="Something else."))
    assert asks(grants, replace(MOVE, source="builtin"))


async def test_several_grants_are_stored_together() -> None:
    grants, committer = await make_grants()
    names = ["device.a", "device.b", "device.c"]
    for name in names:
        await allow(grants, committer, tool(name, risk="medium"), "session")
    assert not any(asks(grants, tool(name, risk="medium")) for name in names)


async def test_allowed_always_is_kept_with_the_person_and_not_with_the_session() -> None:
    lasting = SubjectRecords(MemoryStore())
    grants, committer = await make_grants(lasting)
    await allow(grants, committer, MOVE, "always")
    assert committer.state.fields == {}
    grants_elsewhere, _ = await make_grants(lasting)
    assert not asks(grants_elsewhere, MOVE)
    assert [rule.scope for rule in decode_grants(lasting.get(KEY.subject, FIELD), KEY.subject)] == ["always"]


async def test_without_subject_records_always_means_this_session() -> None:
    grants, committer = await make_grants(None)
    assert not grants.lasting
    await allow(grants, committer, MOVE, "always")
    assert not asks(grants, MOVE)
    grants_elsewhere, _ = await make_grants(None)
    assert asks(grants_elsewhere, MOVE)


async def test_an_unrecorded_lasting_grant_allows_nothing() -> None:
    away = SlowStore(fail=lambda operations: StoreUnavailable("away"))
    grants, _ = await make_grants(SubjectRecords(away))
    with pytest.raises(StoreUnavailable):
        await grants.add(MOVE, {}, "always")
    assert asks(grants, MOVE)


@pytest.mark.parametrize("text", ["{", "[7]", '[{"effect":"allow"}]', "[" * 100_000])
async def test_an_unreadable_field_grants_nothing(text: str) -> None:
    grants, committer = await make_grants()
    await committer.commit([SetField(FIELD, text)])
    assert asks(grants, MOVE)
    await allow(grants, committer, MOVE, "session")
    assert not asks(grants, MOVE)
