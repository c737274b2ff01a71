"""What a toolset of any package has to pass; docs/plugins.md shows its use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec
import pytest

from conductor.settings import Limits
from conductor.tools.base import CallContext, Toolset
from conductor.tools.declarations import NAME, SERVER_PREFIXES
from conductor.tools.outcomes import ToolOutcome
from conductor.tools.schema import read_schema
from conductor.tools.toolsets import mistake
from conductor.tools.validation import Valid, validate

MakeToolset: TypeAlias = Callable[[], Toolset]
SECONDS = 60.0


class ToolsetContract:
    """Subclass it, and give the factory and calls that succeed."""

    @pytest.fixture
    def make(self) -> MakeToolset:
        """Return a function that makes the toolset from its settings."""
        raise NotImplementedError

    @pytest.fixture
    def calls(self) -> Mapping[str, Mapping[str, Any]]:
        """Return arguments for each tool, by name, with which a call succeeds."""
        raise NotImplementedError

    async def call(self, toolset: Toolset, name: str, arguments: Mapping[str, Any]) -> ToolOutcome:
        """Call a tool as the server does, at most for `SECONDS`."""
        async with asyncio.timeout(SECONDS):
            return await toolset.call(
                name,
                arguments,
                CallContext(session_id="session", call_id="call_1", time_zone="Europe/Berlin"),
            )

    def test_each_tool_can_be_offered(self, make: MakeToolset) -> None:
        toolset = make()
        specs = toolset.all_specs()
        names = [spec.name for spec in specs]
        assert len(set(names)) == len(names) and {spec.name for spec in toolset.specs()} <= set(names)
        for spec in specs:
            assert NAME.match(spec.name) and not spec.name.startswith(SERVER_PREFIXES)
            assert spec.description.strip() and not mistake(spec)
            assert not (spec.effect == "irreversible" and spec.risk == "safe")
            read_schema(spec.input_schema)
            assert spec.definition.name == spec.name and len(spec.fingerprint) == 64

    async def test_each_tool_gives_an_outcome(
        self, make: MakeToolset, calls: Mapping[str, Mapping[str, Any]]
    ) -> None:
        toolset = make()
        await toolset.start(lambda: None)
        await toolset.ready()
        specs = {spec.name: spec for spec in toolset.specs()}
        assert set(calls) == set(specs), "give arguments for each tool"
        for name, arguments in calls.items():
            assert isinstance(validate(specs[name], msgspec.json.encode(arguments).decode()), Valid)
            outcome = await self.call(toolset, name, arguments)
            assert outcome.success, outcome.error_message
            assert len(outcome.content) < 16 * Limits().max_observation_bytes
            assert msgspec.json.decode(outcome.content)["success"] is True
        await toolset.aclose()

    async def test_a_call_may_be_cancelled(
        self, make: MakeToolset, calls: Mapping[str, Mapping[str, Any]]
    ) -> None:
        toolset = make()
        await toolset.start(lambda: None)
        for name, arguments in calls.items():
            task = asyncio.create_task(self.call(toolset, name, arguments))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task], timeout=SECONDS)
            assert task.done()
            assert (await self.call(toolset, name, arguments)).success
        await toolset.aclose()

    async def test_it_is_made_without_a_start(self, make: MakeToolset) -> None:
        toolset, second = make(), make()
        assert all(isinstance(secret, str) and secret for secret in toolset.secrets())
        assert all(isinstance(is_ready, bool) for is_ready in toolset.health().values())
        assert toolset.reload(second) in (toolset, second)
        for _ in range(2):
            await toolset.aclose()
