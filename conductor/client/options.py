"""A client's options: address, credentials, what ``session.start`` says, and every limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conductor.client.reconnect import Reconnect
from conductor.events.client import SessionStart


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of a client. Times are in seconds.

    ``connect_s``, ``start_s``, ``send_s`` and ``close_s`` bound the steps of a connection: opening the
    socket, the answer to ``session.start``, sending one frame, closing. ``ping_s`` is the interval between
    WebSocket pings, and how long a pong may take. ``tool_s`` bounds one tool handler and one speech,
    ``callback_s`` one callback, ``turn_s`` is how long ``await turn`` waits.

    ``backlog`` events may wait to be handled; when it is full the socket is not read, and after ``backlog_s``
    it is closed. ``seen`` envelope ids are remembered (protocol, "How the shipped client behaves": the last
    2,000). ``unconfirmed`` transcripts and results, of ``unconfirmed_bytes`` together, are kept until the
    server has them; the server takes 200 events at once. A transcript older than ``resend_s`` is not sent
    again: the person has moved on. ``unsent`` transcripts may wait for a connection.

    ``jobs`` calls may have become jobs, each for ``job_s``; ``progress_s`` is the shortest time between two
    progress reports. ``approvals`` requests are remembered, ``approval_s`` bounds the handler of one. A
    decision that the server could not record is sent again after ``retry_s``.
    """

    connect_s: float = 10.0
    start_s: float = 10.0
    send_s: float = 10.0
    close_s: float = 2.0
    ping_s: float = 20.0
    tool_s: float = 600.0
    callback_s: float = 30.0
    turn_s: float = 180.0
    backlog: int = 1_000
    backlog_s: float = 900.0
    seen: int = 2_000
    unconfirmed: int = 128
    unconfirmed_bytes: int = 16 * 2**20
    resend_s: float = 60.0
    unsent: int = 8
    jobs: int = 64
    job_s: float = 21_600.0
    progress_s: float = 0.25
    approvals: int = 256
    approval_s: float = 900.0
    retry_s: float = 1.0
    max_frame_bytes: int = 4 * 2**20


SERVED = ("resume", "cancel", "lease", "late", "async", "activity", "diagnostics")
"""Capabilities that need nothing of the app, as ``tools`` and ``approval`` do. With ``segments`` speeches go
on beside the other events: so the app asks for it."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Where to connect and what ``session.start`` says.

    ``token`` goes into the ``Authorization: Bearer`` header and nowhere else. ``tools`` are
    `ToolDeclaration`s as plain JSON objects (protocol, "Extensions"). ``capabilities`` None names all that
    the library serves. ``resume`` False leaves that capability out: a reconnect then follows the base
    protocol. Without ``reconnect`` a lost connection stays lost until the app calls `Client.reconnect`.
    """

    url: str
    session_id: str
    token: str | None = None
    github_token: str | None = None
    locale: str | None = None
    time_zone: str | None = None
    instructions: str | None = None
    model: str | None = None
    capabilities: Sequence[str] | None = None
    resume: bool = True
    tools: Sequence[Any] = ()
    serial: bool = True
    proxy: str | None = None
    limits: ClientLimits = ClientLimits()
    reconnect: Reconnect | None = None

    def reads(self, name: str) -> bool:
        """Tell whether a tool is declared read-only (``annotations.readOnlyHint``)."""
        for tool in self.tools:
            if isinstance(tool, Mapping) and tool.get("name") == name:
                hints = tool.get("annotations")
                return isinstance(hints, Mapping) and hints.get("readOnlyHint") is True
        return False

    def start_event(self, *, approvals: bool) -> SessionStart:
        """Make the ``session.start``; ``approvals`` is whether the app can ask a person."""
        capabilities = list(SERVED if self.capabilities is None else self.capabilities)
        for name, served in (("tools", bool(self.tools)), ("approval", approvals)):
            if served and name not in capabilities:
                capabilities.append(name)
        if not self.resume:
            capabilities = [name for name in capabilities if name != "resume"]
        return SessionStart(
            session_id=self.session_id,
            github_token=self.github_token,
            locale=self.locale,
            time_zone=self.time_zone,
            instructions=self.instructions,
            model=self.model,
            capabilities=capabilities,
            tools=list(self.tools) or None,
        )
