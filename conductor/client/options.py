"""A client's options: address, credentials, the fields of ``session.start``, and limits."""

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
    socket, the answer to ``session.start``, sending one frame, closing. ``ping_s`` is the interval of
    WebSocket pings, and the limit for a pong. ``tool_s`` bounds one tool handler and one speech,
    ``callback_s`` one callback, ``turn_s`` the wait for a turn.

    ``backlog`` events may wait for their handlers. A full backlog stops reading from the socket, and closes
    it after ``backlog_s``. ``recent_ids`` envelope ids are kept to recognise duplicates. ``unconfirmed``
    transcripts and results, of ``unconfirmed_bytes`` in total, are kept for the next connection. A transcript
    older than ``resend_s`` is not repeated. ``unsent`` transcripts may wait for a connection.

    ``jobs`` calls may become jobs, each for ``job_s``. ``progress_s`` is the shortest time between two
    progress reports. ``approvals`` requests are kept, and ``approval_s`` bounds one handler. A decision that
    the server could not record is repeated after ``retry_s``.
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
    recent_ids: int = 2_000
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


DEFAULT_CAPABILITIES = ("resume", "cancel", "lease", "late", "async", "activity", "diagnostics")
"""Capabilities that the library implements alone. ``tools`` and ``approval`` need handlers of the app. An app
asks for ``segments`` itself, because speeches then run concurrently with other events."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The server's address and the fields of ``session.start``; see `connect`.

    ``token`` is sent only in the ``Authorization: Bearer`` header. ``tools`` are `ToolDeclaration`s as plain
    JSON objects.
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
    tools: Sequence[Any] = ()
    serial: bool = True
    proxy: str | None = None
    limits: ClientLimits = ClientLimits()
    reconnect: Reconnect | None = None

    def is_read_only(self, name: str) -> bool:
        """Tell whether a tool is declared read-only (``annotations.readOnlyHint``)."""
        for tool in self.tools:
            if isinstance(tool, Mapping) and tool.get("name") == name:
                hints = tool.get("annotations")
                return isinstance(hints, Mapping) and hints.get("readOnlyHint") is True
        return False

    def start_event(self, *, approvals: bool) -> SessionStart:
        """Make the ``session.start``; ``approvals``: the app can ask a person."""
        capabilities = list(DEFAULT_CAPABILITIES if self.capabilities is None else self.capabilities)
        for name, is_available in (("tools", bool(self.tools)), ("approval", approvals)):
            if is_available and name not in capabilities:
                capabilities.append(name)
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
