"""The ids of calls: of a model's that gives none, and of those that have the client show or say something."""

from __future__ import annotations

from conductor.events.envelope import IdSource

new_call_id = IdSource("call")
