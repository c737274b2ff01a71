"""Facts of a server for tests of the reference."""

from __future__ import annotations

from conductor.events.reference import Facts

FACTS = Facts(
    version="0.1.0",
    path="/ws",
    host="127.0.0.1",
    port=8080,
    subprotocol="conductor.v1",
    max_event_bytes=65_536,
    hard_event_bytes=1_048_576,
    ping_interval=20.0,
    tool_timeout=30.0,
    session_grace=120.0,
    capabilities=("resume", "approval", "tools", "cancel", "lease", "late", "async", "activity"),
)
