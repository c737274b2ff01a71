"""The errors of HTTP model services, as `ModelError`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

import msgspec

from conductor.errors import ModelError, ModelFailure
from conductor.models.failures import ToolsRefused, failure

# https://platform.claude.com/docs/en/api/errors, https://platform.openai.com/docs/guides/error-codes,
# llama.cpp, Ollama and vLLM.
_BY_KIND: Mapping[str, ModelFailure] = {
    "authentication_error": "authentication",
    "permission_error": "authentication",
    "billing_error": "authentication",
    "rate_limit_error": "rate_limited",
    "overloaded_error": "overloaded",
    "api_error": "overloaded",
    "timeout_error": "overloaded",
    "request_too_large": "context_too_long",
    "server_error": "overloaded",
    "unavailable_error": "overloaded",
    "InternalServerError": "overloaded",
    "rate_limit_exceeded": "rate_limited",
}
# These override the status.
_DECISIVE: Mapping[str, ModelFailure] = {
    "insufficient_quota": "authentication",
    "context_length_exceeded": "context_too_long",
    "exceed_context_size_error": "context_too_long",
    "content_filter": "refused",
    "content_policy_violation": "refused",
}
_BY_STATUS: Mapping[int, ModelFailure] = {
    401: "authentication",
    402: "authentication",
    403: "authentication",
    408: "timeout",
    413: "context_too_long",
    424: "overloaded",  # Bedrock: the model failed
    429: "rate_limited",
}
# Parts of messages, for errors without their own type.
_TOO_LONG = (
    "prompt is too long",
    "input is too long",
    "too many input tokens",
    "input tokens exceeds maximum",
    "exceed context limit",
)
# The context by its size, or as too small; others only speak of a context.
_CONTEXT = re.compile(
    r"(?:exceed|maximum|longer|larger|overflow)[^.]{0,60}context[ _](?:window|length|size)"
    r"|context[ _](?:window|length|size)[^.]{0,40}(?:\d|exceeded|overflow|reached|full)",
    re.I,
)
_REASONING = (
    "bound to a different conversation",
    "in `thinking` block",
    "`thinking` or `redacted_thinking` blocks",
)
_SCHEMA = re.compile(r"schema|function_?declarations?\b|\btools?\b.*\bparameters\b", re.I | re.S)
_FUNCTION = re.compile(r"function_?declarations[.\[](\d{1,3})\b", re.I)
_TOOL = re.compile(r"\btools[.\[](\d{1,3})\b")
_NO_TOOLS = ("does not support tools", "support tool use", "tool choice requires", "tools param requires")


class EmptyReply(ModelError):
    """The service sent status 200 without a body.

    mlx_lm does so for a prompt that is too long, but a broken service or proxy does so for any.
    """


class ReasoningRefused(ModelError):
    """The service refused the reasoning that was sent back; the request is accepted without it."""


class SchemaRefused(ModelError):
    """The service refused a tool's schema; its own words, for `refused_tool` alone, are in ``problem``."""

    def __init__(self, problem: ServiceProblem) -> None:
        super().__init__("protocol", "The model service does not take the schema of a tool.")
        self.problem = problem


class RequestRefused(ModelError):
    """The service refused the request as invalid, and did not say what it means; it may be an image."""

    def __init__(self) -> None:
        super().__init__("protocol", str(failure("protocol")))


class ServiceProblem(NamedTuple):
    """A service's description of an error. ``message`` and ``place`` are never passed on."""

    kinds: tuple[str, ...] = ()
    status: int | None = None
    message: str = ""
    place: str = ""


def read_problem(body: bytes) -> ServiceProblem:
    """Read the body or the event of an error; an unknown shape gives an empty problem."""
    try:
        return problem_of(msgspec.json.decode(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ServiceProblem()


def problem_of(value: Any) -> ServiceProblem:
    """Read a decoded error: ``{"error": {...}}``, ``{"error": "..."}``, or the fields themselves.

    Gemini has it in a list, FastAPI as ``{"detail": "..."}`` or as ``{"detail": [{"loc": …, "msg": …}]}``.
    """
    value = _first(value)
    error = _first(value.get("error", value.get("detail", value)) if isinstance(value, dict) else value)
    if isinstance(error, str):
        return ServiceProblem(message=error)
    if not isinstance(error, dict):
        return ServiceProblem()
    kind, code, message = error.get("type"), error.get("code"), error.get("message", error.get("msg"))
    place = error.get("param", error.get("loc"))
    return ServiceProblem(
        tuple(name for name in (code, kind) if isinstance(name, str)),
        code if isinstance(code, int) else None,
        message if isinstance(message, str) else "",
        ".".join(map(str, place)) if isinstance(place, list) else place if isinstance(place, str) else "",
    )


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


def cut_off() -> ModelError:
    """Make the error of a reply that ended before it was complete."""
    return ModelError("connection", "The model service ended its answer before it was complete.")


def from_status(status: int, problem: ServiceProblem, headers: Mapping[str, str]) -> ModelError:
    """Map an error status."""
    if _any_of(_NO_TOOLS, problem.message):
        return ToolsRefused("protocol", 'The model takes no tools: it needs a profile with kind = "text".')
    # Not retried: the model's name or the base URL is wrong.
    if status == 404:
        return ModelError("protocol", "The model service does not know this model or address.")
    if status == 400 and _any_of(_REASONING, problem.message):
        return ReasoningRefused("protocol", str(failure("protocol")))
    reason = _reason_of(_DECISIVE, problem.kinds) or _BY_STATUS.get(status)
    if reason is None and _is_too_long(problem.message):
        reason = "context_too_long"
    if reason is None and status in (400, 422) and _SCHEMA.search(f"{problem.place} {problem.message}"):
        return SchemaRefused(problem)
    if reason is None and status == 400:
        return RequestRefused()
    if reason is None:
        reason = "overloaded" if status >= 500 else "protocol"
    return failure(reason, retry_after=retry_after_s(headers))


def from_event(problem: ServiceProblem) -> ModelError:
    """Map an error event, which may come after status 200."""
    if problem.status is not None and problem.status >= 400:
        return from_status(problem.status, problem, {})
    reason = _reason_of(_DECISIVE, problem.kinds) or _reason_of(_BY_KIND, problem.kinds)
    if reason is None and _is_too_long(problem.message):
        reason = "context_too_long"
    if reason is None and any(kind == "invalid_request_error" or "image" in kind for kind in problem.kinds):
        return RequestRefused()
    return failure(reason or ("protocol" if problem.kinds else "overloaded"))


def refused_tool(problem: ServiceProblem, names: Sequence[str]) -> int | None:
    """Find the tool that a refusal of a schema names or counts, among the ``names`` of the request."""
    text = f"{problem.place} {problem.message}"
    for name in sorted(names, key=len, reverse=True):
        # A name with an underscore is no word of the sentence.
        before = r"(?<![\w-])" if "_" in name else r"(?:['\"`]|\b(?:function|tool|for) )"
        if re.search(rf"{before}{re.escape(name)}(?![\w-])", text):
            return names.index(name)
    # Gemini counts the functions of a tool, the others the tools.
    for counted in (_FUNCTION.search(text), _TOOL.search(text)):
        if counted is not None:
            return int(counted[1]) if int(counted[1]) < len(names) else None
    return None


def _reason_of(table: Mapping[str, ModelFailure], kinds: tuple[str, ...]) -> ModelFailure | None:
    return next((table[kind] for kind in kinds if kind in table), None)


def _is_too_long(message: str) -> bool:
    return _any_of(_TOO_LONG, message) or _CONTEXT.search(message) is not None


def _any_of(parts: tuple[str, ...], message: str) -> bool:
    text = message.lower()
    return any(part in text for part in parts)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Read ``retry-after-ms`` (milliseconds) or ``retry-after`` (seconds, or a later date than ``date``)."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers.get(name, "")) / unit)
        except ValueError:
            continue
    try:
        at, now = (parsedate_to_datetime(headers.get(name, "")) for name in ("retry-after", "date"))
        return max(0.0, (at - now).total_seconds())
    except (ValueError, TypeError):  # two dates of which one has no zone cannot be compared
        return None
