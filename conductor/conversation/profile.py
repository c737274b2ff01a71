"""What a client has said of itself: its language and place, its instructions, its tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conductor.conversation.delivery import CallTerms
from conductor.conversation.services import Services
from conductor.events.client import SessionStart
from conductor.events.server import RejectedTool
from conductor.prompts import session_prompt
from conductor.tools.base import CallContext, ToolSpec
from conductor.tools.client import DeviceToolset
from conductor.tools.declarations import parse_declarations
from conductor.tools.executor import ToolExecutor
from conductor.tools.pending import Pending

CAPABILITIES = ("tools",)
"""Those of the protocol's extensions that this version accepts."""


class Profile:
    """The prompt and the tools of one session, made anew whenever the client says something about them."""

    def __init__(self, services: Services, session_id: str, pending: Pending) -> None:
        self._services = services
        self._session_id = session_id
        self._pending = pending
        self._locale: str | None = None
        self._time_zone: str | None = None
        self._instructions: str | None = None
        self._declared: tuple[ToolSpec, ...] | None = None
        self.capabilities: tuple[str, ...] = ()
        self._configure()

    def start(self, event: SessionStart) -> list[RejectedTool] | None:
        """Take what ``session.start`` says; returns the refused tools, or None if none were declared.

        What a repeated start leaves out stays as it was. The GitHub token is for tools that run elsewhere,
        and what is not used is not kept.
        """
        self._locale = event.locale or self._locale
        self._time_zone = event.time_zone or self._time_zone
        if event.instructions is not None:
            self._instructions = event.instructions
        self.capabilities = tuple(name for name in CAPABILITIES if name in event.capabilities)
        if "tools" in self.capabilities and event.tools is not None:
            return self.declare(event.tools)
        self._configure()
        return None

    def reload(self, services: Services) -> None:
        """Use another system prompt and catalog from now on."""
        self._services = services
        self._configure()

    def declare(self, tools: list[Any]) -> list[RejectedTool]:
        """Take the client's tools for the device's; returns those that are refused."""
        taken = [spec.name for toolset in self._services.toolsets for spec in toolset.specs()]
        accepted, rejected = parse_declarations(tools, reserved_names=taken)
        self._declared = tuple(accepted)
        self._configure()
        return [RejectedTool(name, reason) for name, reason in rejected]

    @property
    def declared(self) -> list[str]:
        """The names of the client's own tools."""
        return [spec.name for spec in self._declared or ()]

    def context(self, call_id: str) -> CallContext:
        """Say what a tool may know of the session."""
        return CallContext(self._session_id, call_id, self._time_zone, self._locale)

    def terms(self, name: str) -> CallTerms:
        """Say how long a call of the device may take, and what it does."""
        spec = self.executor.spec(name)
        assert spec is not None, "only calls that passed the gate are sent"
        return CallTerms(self.executor.timeout(spec), spec.effect)

    def _configure(self) -> None:
        self.system_prompt = session_prompt(
            self._services.system_prompt,
            locale=self._locale,
            time_zone=self._time_zone,
            instructions=self._instructions,
        )
        specs: Sequence[ToolSpec] = self._services.catalog if self._declared is None else self._declared
        device = DeviceToolset(specs, self._pending)
        self.executor = ToolExecutor([*self._services.toolsets, device], self._services.limits)
