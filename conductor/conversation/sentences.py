"""The fixed sentences of a conversation: what is said when a turn fails, and what the model is told."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from conductor.errors import ErrorCode
from conductor.events.client import AgentCompleted
from conductor.tools.shorten import shorten

FAILURES: Mapping[ErrorCode, str] = MappingProxyType(
    {
        "model_provider_failed": "Sorry, I could not get an answer just now. Please try again.",
        "turn_timeout": "Sorry, that took too long, so I stopped. Please try again.",
        "store_unavailable": "Sorry, I can't save our conversation right now. Please try again.",
        "internal_error": "Sorry, something went wrong on my side. Please try again.",
    }
)
"""What a turn that fails says, by its error code; a sentence that is empty or missing is not said."""

MESSAGES: Mapping[ErrorCode, str] = MappingProxyType(
    {
        "model_provider_failed": "The language model's service failed.",
        "turn_timeout": "The turn took longer than its time limit.",
        "store_unavailable": "The session store cannot be reached.",
        "internal_error": "The server made a mistake; its log says more.",
    }
)
"""The messages of error events: for people, with nothing of a service's answer in them."""

MAX_NEWS_BYTES = 4_096
"""How much of each text about an agent the model is told: news must not fill its window."""

CUT_OFF = "[The reply broke off here.]"


def agent_news(event: AgentCompleted) -> str:
    """Tell the model of an agent that has ended; what the agent says is data."""
    parts = [f"The coding agent {event.agent_id} has ended with status {event.status!r}."]
    for label, value in (("Name", event.name), ("Task", event.prompt), ("Summary", event.summary)):
        if value:
            parts.append(f"{label}: {shorten(value, MAX_NEWS_BYTES)}")
    return "\n".join(parts)


def late_result(name: str, content: str) -> str:
    """Tell the model of a result that came after its call was reported as unknown or cancelled."""
    return f"A late result came for the earlier call of {name}: {content}"
