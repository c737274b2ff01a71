"""What a client is shown of tools at work, wherever they run."""

from __future__ import annotations

from conductor.events.server import ToolActivity
from conductor.tools.base import ToolOutcome
from conductor.tools.executor import Ready


def started(ready: Ready) -> ToolActivity:
    """Say that a call has begun."""
    name = ready.spec.name
    return ToolActivity(ready.call.call_id, name, ready.spec.source, "started", display=f"{name} …")


def finished(ready: Ready, outcome: ToolOutcome) -> ToolActivity:
    """Say what came of it, without what it gave."""
    name, metadata = ready.spec.name, outcome.metadata
    status = "done" if outcome.success else outcome.error_type.replace("_", " ")
    size, took = metadata.data_size_bytes, metadata.execution_time_ms
    return ToolActivity(
        ready.call.call_id,
        name,
        ready.spec.source,
        "finished",
        outcome.error_type,
        took,
        size,
        f"{name}: {status}, {size} bytes, {took} ms",
    )
