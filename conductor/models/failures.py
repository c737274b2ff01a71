"""The failures of models, as `ModelError` with a sentence for people."""

from __future__ import annotations

from collections.abc import Mapping

from conductor.errors import ModelError, ModelFailure

_TEXTS: Mapping[ModelFailure, str] = {
    "authentication": "The model service did not accept the API key, or the account may not use this model.",
    "rate_limited": "The model service had too many requests.",
    "overloaded": "The model service is overloaded or failing.",
    "timeout": "The model service did not answer in time.",
    "context_too_long": "The conversation is too long for the model.",
    "refused": "The model service refused the request.",
    "connection": "The connection to the model service failed.",
    "protocol": "The model service and this server do not speak the same protocol.",
    "undecodable": "The model service sent a reply that could not be decoded.",
    "malformed": "The model wrote an invalid call.",
}

RETRYABLE = frozenset({"rate_limited", "overloaded", "connection", "undecodable", "malformed"})
# Failures after which a turn requests a reply once more.
BROKEN_OFF = RETRYABLE | {"timeout", "protocol"}


# Seconds of a service's retry-after that a turn waits; after a longer one the service is left alone.
MAX_PAUSE_S = 3.0


class ToolsRefused(ModelError):
    """The model takes no tools."""


def failure(reason: ModelFailure, *, retry_after: float | None = None) -> ModelError:
    """Make the error with a sentence for people, without the service's text."""
    return ModelError(reason, _TEXTS[reason], retry_after=retry_after)


def rest_of(error: ModelError) -> float:
    """Return the seconds for which the service wants no request; 0.0 if a turn can wait for them."""
    return error.retry_after if error.retry_after is not None and error.retry_after > MAX_PAUSE_S else 0.0
