"""The errors of HTTP model services, as `ModelError`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from conductor.errors import ModelError, ModelFailure

_TEXTS: Mapping[ModelFailure, str] = {
    "authentication": "The model service did not accept the API key, or the account may not use this model.",
    "rate_limited": "The model service says that there were too many requests.",
    "overloaded": "The model service is overloaded or failing.",
    "timeout": "The model service did not answer in time.",
    "context_too_long": "The conversation is too long for the model.",
    "refused": "The model service refused the request.",
    "connection": "The connection to the model service failed.",
    "protocol": "The model service and this server did not understand each other.",
}

# https://platform.claude.com/docs/en/api/errors
_BY_TYPE: Mapping[str, ModelFailure] = {
    "authentication_error": "authentication",
    "permission_error": "authentication",
    "billing_error": "authentication",
    "rate_limit_error": "rate_limited",
    "overloaded_error": "overloaded",
    "api_error": "overloaded",
    "timeout_error": "overloaded",
    "request_too_large": "context_too_long",
}
_BY_STATUS: Mapping[int, ModelFailure] = {
    401: "authentication",
    402: "authentication",
    403: "authentication",
    408: "timeout",
    413: "context_too_long",
    429: "rate_limited",
}
_TOO_LONG = ("prompt is too long", "exceed context limit", "context window")


def failure(reason: ModelFailure, *, retry_after: float | None = None) -> ModelError:
    """Make the error with words for people; they hold nothing of the service's text."""
    return ModelError(reason, _TEXTS[reason], retry_after=retry_after)


def from_status(status: int, message: str, headers: Mapping[str, str]) -> ModelError:
    """Map an error status; ``message`` is the service's text, which is read but not passed on."""
    # Not retried: a wrong model name or base URL stays wrong.
    if status == 404:
        return ModelError("protocol", "The model service does not know this model or address.")
    reason = _BY_STATUS.get(status)
    if reason is None:
        reason = "overloaded" if status >= 500 else _of_bad_request(message)
    return failure(reason, retry_after=retry_after_s(headers))


def from_event(error_type: str, message: str) -> ModelError:
    """Map an ``error`` event, which may come after status 200."""
    reason = _BY_TYPE.get(error_type)
    return failure(reason or _of_bad_request(message))


def _of_bad_request(message: str) -> ModelFailure:
    text = message.lower()
    # The service has no error type for it, so its text is searched; only this decision depends on the words.
    return "context_too_long" if any(words in text for words in _TOO_LONG) else "protocol"


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Read ``retry-after-ms`` (milliseconds) or ``retry-after`` (seconds or a date), else None."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers.get(name, "")) / unit)
        except ValueError:
            continue
    try:
        return max(0.0, parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time())
    except ValueError:
        return None
