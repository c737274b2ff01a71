"""What a client has said of itself: its language and place, its instructions, its tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from conductor.bounds import TokenBucket
from conductor.conversation.delivery import CallTerms
from conductor.conversation.memos import ProfileMemo, decode, encode
from conductor.conversation.services import Services
from conductor.events.client import SessionStart
from conductor.events.server import RejectedTool, ToolCallEvent
from conductor.prompts import session_prompt
from conductor.tools.base import CallContext, SessionFields, ToolSpec
from conductor.tools.client import DeviceToolset
from conductor.tools.declarations import parse_declarations
from conductor.tools.executor import Ready, ToolExecutor
from conductor.tools.gate import Gate
from conductor.tools.pending import Pending
from conductor.tools.rules import Rule

CAPABILITIES = ("resume", "tools", "approval", "cancel", "lease", "late", "async", "activity")
"""Those of the protocol's extensions that this version accepts."""


_NOT_OFFERED = "the server's operator does not allow this tool"


class Profile:
    """The prompt and the tools of one session, made anew whenever the client says something about them.

    ``grants`` gives what the person has allowed, ``fields`` is what tools may keep with the session.
    """

    def __init__(self, services: Services, session_id: str, pending: Pending) -> None:
        self._services = services
        self._session_id = session_id
        self._pending = pending
        self._locale: str | None = None
        self._time_zone: str | None = None
        self._instructions: str | None = None
        self._tools: list[Any] | None = None
        self._declared: tuple[ToolSpec, ...] | None = None
        self._rates: dict[str, TokenBucket] = {}
        self.capabilities: tuple[str, ...] = ()
        self.fields: SessionFields | None = None
        self.grants: Callable[[], Sequence[Rule]] = tuple
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

    def kept(self) -> str:
        """Write down what the client has said."""
        return encode(
            ProfileMemo(self.capabilities, self._locale, self._time_zone, self._instructions, self._tools)
        )

    def restore(self, kept: str | None) -> None:
        """Know what it said to another process."""
        memo = decode(kept, ProfileMemo)
        if memo is None:
            return
        self._locale, self._time_zone = memo.locale, memo.time_zone
        self._instructions = memo.instructions
        self.capabilities = tuple(name for name in CAPABILITIES if name in memo.capabilities)
        if memo.tools is not None:
            self.declare(memo.tools)
        self._configure()

    def reload(self, services: Services) -> None:
        """Use another system prompt and catalog from now on."""
        self._services = services
        self._configure()

    def declare(self, tools: list[Any]) -> list[RejectedTool]:
        """Take the client's tools for the device's; returns those that are refused."""
        taken = [spec.name for toolset in self._services.toolsets for spec in toolset.specs()]
        accepted, rejected = parse_declarations(tools, reserved_names=taken)
        self._tools = tools
        self._declared = tuple(accepted)  # all of them: the rules may change
        self._configure()
        rejected += [(spec.name, _NOT_OFFERED) for spec in accepted if not self.executor.gate.offers(spec)]
        return [RejectedTool(name, reason) for name, reason in rejected]

    @property
    def declared(self) -> list[str]:
        """The names of the client's own tools that the model is offered."""
        return [spec.name for spec in self._declared or () if self.executor.gate.offers(spec)]

    def context(self, call_id: str) -> CallContext:
        """Say what a tool may know of the session."""
        return CallContext(self._session_id, call_id, self._time_zone, self._locale, self.fields)

    def terms(self, name: str) -> CallTerms:
        """Say how long a call of the device may take, and what it does."""
        spec = self.executor.spec(name)
        if spec is None:  # it was sent, and has gone since
            return CallTerms(self._services.limits.tool_timeout, "write")
        return CallTerms(self.executor.timeout(spec), spec.effect)

    def tool_call(self, ready: Ready) -> ToolCallEvent:
        """Make the event that has the device run a call."""
        timeout_ms = round(self.executor.timeout(ready.spec) * 1000) if "lease" in self.capabilities else None
        arguments = msgspec.json.encode(ready.arguments).decode()
        return ToolCallEvent(ready.call.call_id, ready.spec.name, arguments, timeout_ms)

    def _granted(self) -> Sequence[Rule]:
        return self.grants()

    def _configure(self) -> None:
        self.system_prompt = session_prompt(
            self._services.system_prompt,
            locale=self._locale,
            time_zone=self._time_zone,
            instructions=self._instructions,
        )
        specs: Sequence[ToolSpec] = self._services.catalog if self._declared is None else self._declared
        device = DeviceToolset(specs, self._pending)
        services = self._services
        gate = Gate(services.rules, services.gate_options, self._granted)
        toolsets = [*services.toolsets, device]
        self.executor = ToolExecutor(toolsets, services.limits, gate, services.redactor, self._rates)
