"""A client's declarations: locale, time zone, instructions, capabilities and tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from conductor.conversation.commit import CallLimits
from conductor.conversation.services import Services
from conductor.conversation.snapshot import ProfileSnapshot, decode, encode
from conductor.conversation.speech import Speech
from conductor.events.client import SessionStart
from conductor.events.envelope import new_call_id
from conductor.events.server import CAPABILITIES, RejectedTool, Segment, ToolCallEvent, append_message, speak
from conductor.prompts import session_prompt
from conductor.rate_limit import Admission, TokenBucket
from conductor.tools.base import CallContext, SessionFields, ToolSpec
from conductor.tools.declarations import Reading, parse_declarations, read_declarations
from conductor.tools.device import DeviceToolset, PendingCalls
from conductor.tools.executor import PreparedCall, ToolExecutor
from conductor.tools.permissions import Gate
from conductor.tools.rules import Rule

_NOT_OFFERED = "the server's operator does not allow this tool"


class ClientProfile:
    """The prompt and the tools of one session, rebuilt when the client changes its declaration.

    ``grants`` returns the rules of the person's approvals. Tools may store in ``fields`` and ``person``.
    """

    def __init__(
        self,
        services: Services,
        session_id: str,
        pending: PendingCalls,
        grants: Callable[[], Sequence[Rule]] = tuple,
        fields: SessionFields | None = None,
        person: SessionFields | None = None,
        subject: str = "",
    ) -> None:
        self._services = services
        self._session_id = session_id
        self._pending = pending
        self._profile = ProfileSnapshot()
        self._declared: tuple[ToolSpec, ...] | None = None
        self._rates: dict[str, TokenBucket] = {}
        self._grants = grants
        self._fields = fields
        self._person = person
        self._subject = subject
        self._executor: ToolExecutor | None = None

    def start(
        self, event: SessionStart, readings: Sequence[Reading] | None = None
    ) -> list[RejectedTool] | None:
        """Apply ``session.start``; returns the refused tools, or None without a declaration of tools.

        Values that a repeated start leaves out do not change. The GitHub token is not stored.
        """
        profile = self._profile
        may_choose = event.model is not None and self._services.may_choose(event.model)
        self._profile = ProfileSnapshot(
            tuple(name for name in CAPABILITIES if name in event.capabilities),
            event.locale or profile.locale,
            event.time_zone or profile.time_zone,
            profile.instructions if event.instructions is None else event.instructions,
            profile.tools,
            event.model if may_choose else profile.model,
            event.traceparent or profile.traceparent,
        )
        if "tools" in self.capabilities and event.tools is not None:
            return self.declare(event.tools, readings)
        return None

    def dump(self) -> str:
        """Encode the profile for the snapshot."""
        return encode(self._profile)

    def restore(self, stored: str | None, readings: Sequence[Reading] | None = None) -> None:
        """Restore the profile from a snapshot."""
        snapshot = decode(stored, ProfileSnapshot)
        if snapshot is None:
            return
        capabilities = tuple(name for name in CAPABILITIES if name in snapshot.capabilities)
        self._profile = msgspec.structs.replace(snapshot, capabilities=capabilities)
        if snapshot.tools is not None:
            self.declare(snapshot.tools, readings)

    def reload(self, services: Services) -> None:
        """Use another system prompt and catalog from now on."""
        self._services = services
        self._executor = None  # made on demand: a reload reaches thousands of sessions at once

    def declare(self, tools: list[Any], readings: Sequence[Reading] | None = None) -> list[RejectedTool]:
        """Take the client's tools as the device's; returns the refused tools.

        ``readings`` come from `read_declarations`; without them the tools are read here.
        """
        reserved = [spec.name for toolset in self._services.toolsets for spec in toolset.specs()]
        accepted, rejected = parse_declarations(tools, readings=readings, reserved_names=reserved)
        self._profile = msgspec.structs.replace(self._profile, tools=tools)
        self._declared = tuple(accepted)  # including tools not offered: a reload may change the rules
        self._executor = None
        rejected += [(spec.name, _NOT_OFFERED) for spec in accepted if not self.executor.gate.offers(spec)]
        return [RejectedTool(name, reason) for name, reason in rejected]

    def close(self) -> None:
        """Free the tools: a closed session is part of reference cycles."""
        self._profile = msgspec.structs.replace(self._profile, tools=None)
        self._declared = self._executor = None

    @property
    def capabilities(self) -> tuple[str, ...]:
        return self._profile.capabilities

    @property
    def traceparent(self) -> str | None:
        return self._profile.traceparent

    @property
    def model(self) -> str | None:
        """The name of the model that the client chose."""
        return self._profile.model

    @property
    def serving(self) -> str | None:
        """The name of the model that replies."""
        return self._services.serving(self._profile.model)

    @property
    def locale(self) -> str | None:
        return self._profile.locale

    @property
    def declared(self) -> list[str]:
        return [spec.name for spec in self._declared or () if self.executor.gate.offers(spec)]

    def context(self, call_id: str) -> CallContext:
        """Make the context that a tool gets."""
        own = (self._fields, self._person, self._subject)
        return CallContext(self._session_id, call_id, self._profile.time_zone, self._profile.locale, *own)

    def limits_for(self, name: str) -> CallLimits:
        """Return the time limit and the effect of a device tool."""
        spec = self.executor.spec(name)
        if spec is None:  # the call was sent, then the client removed the tool
            return CallLimits(self._services.limits.tool_timeout, "write")
        return CallLimits(self.executor.timeout(spec), spec.effect)

    def tool_call(self, ready: PreparedCall) -> ToolCallEvent:
        """Make the event that dispatches a call to the device."""
        timeout_ms = round(self.executor.timeout(ready.spec) * 1000) if "lease" in self.capabilities else None
        arguments = msgspec.json.encode(ready.arguments).decode()
        return ToolCallEvent(ready.call.call_id, ready.spec.name, arguments, timeout_ms)

    @property
    def segments(self) -> bool:
        """Whether replies are spoken in segments while the model writes them."""
        return "segments" in self.capabilities or self._services.speak_segments

    def speak(self, speech: Speech) -> ToolCallEvent:
        """Make the UI call that speaks."""
        segment = None
        if "segments" in self.capabilities:
            segment = Segment(speech.speech_id, speech.segment, speech.last)
        return speak(speech.call_id, speech.voice_text, segment)

    def append_message(
        self,
        role: Literal["user", "assistant"],
        text: str,
        speech_id: str | None = None,
        call_id: str | None = None,
    ) -> ToolCallEvent:
        """Make the UI call that shows a message; ``speech_id`` names its speech, if there is one."""
        call_id = call_id or new_call_id()
        message_id = (speech_id or call_id) if "segments" in self.capabilities else None
        return append_message(call_id, role, text, message_id)

    @property
    def system_prompt(self) -> str:
        return session_prompt(
            self._services.system_prompt,
            locale=self._profile.locale,
            time_zone=self._profile.time_zone,
            instructions=self._profile.instructions,
        )

    @property
    def executor(self) -> ToolExecutor:
        if self._executor is None:
            services = self._services
            specs: Sequence[ToolSpec] = services.catalog if self._declared is None else self._declared
            toolsets = [*services.toolsets, DeviceToolset(specs, self._pending)]
            rules = [rule for rule in services.rules if rule.session in (None, self._session_id)]
            gate = Gate(rules, services.gate_options, self._grants)
            self._executor = ToolExecutor(toolsets, services.limits, gate, services.redactor, self._rates)
        return self._executor


async def read_stored_tools(stored: str | None, admission: Admission) -> list[Reading] | None:
    """Read the tools of a stored profile."""
    profile = decode(stored, ProfileSnapshot)
    if profile is None or profile.tools is None:
        return None
    return await read_declarations(profile.tools, admission)
