"""The size of a history, and its truncation, as pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from conductor.messages import AssistantMessage, Message, Note, ToolResult, UserMessage
from conductor.models.base import CHARS_PER_TOKEN, ModelRequest, ToolDefinition, Usage, running_turn
from conductor.tools.base import failed

# Shorter requests say little about the ratio of counted to estimated tokens.
_TELLING_TOKENS = 500
_MAX_RATIO = 8.0
# A history to send begins with one of these.
BEGINNINGS = (UserMessage, Note)

LOST_RESULT = (
    "Interrupted before a result was produced; it may or may not have run. Do not assume that it succeeded."
)


def lost_result(call_id: str) -> ToolResult:
    """Make the result of a call whose result was lost."""
    outcome = failed("unknown", LOST_RESULT, reason="interrupted")
    return ToolResult(call_id, outcome.content, is_error=True)


def estimate_tokens(message: Message) -> int:
    """Estimate the tokens of a message without its reasoning, which no later turn sends."""
    size = len(message.content if isinstance(message, ToolResult) else message.text)
    if isinstance(message, AssistantMessage):
        for call in message.calls:
            size += len(call.name) + len(call.arguments) + 20
    return int(size / CHARS_PER_TOKEN) + 4


def cut_point(messages: Sequence[Message], max_turns: int, max_tokens: int) -> int:
    """Return how many messages to drop from the front; 0 while both budgets hold.

    Whole turns are dropped, down to half of the exceeded budget: a window that slides by one turn each time
    would defeat the prompt cache. The last turn always stays.
    """
    starts = [
        index
        for index, message in enumerate(messages)
        # A note belongs to the message after it.
        if isinstance(message, BEGINNINGS) and not (index and isinstance(messages[index - 1], Note))
    ]
    if len(starts) <= 1:
        return 0
    tokens = [estimate_tokens(message) for message in messages]
    total = sum(tokens)
    if len(starts) <= max_turns and total <= max_tokens:
        return 0
    keep_turns = max_turns // 2 if len(starts) > max_turns else max_turns
    keep_tokens = max_tokens // 2 if total > max_tokens else max_tokens
    for position, start in enumerate(starts[:-1]):
        if len(starts) - position <= keep_turns and sum(tokens[start:]) <= keep_tokens:
            return start
    return starts[-1]


class HistoryBudget:
    """The tokens of history in a request, as `estimate_tokens` counts them.

    It follows the service's count, which in some languages is several times the estimate, and shrinks when a
    request was too long.
    """

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._ratio = 1.0

    @property
    def tokens(self) -> int:
        return int(self._tokens / self._ratio)

    def learn(self, request: ModelRequest, usage: Usage) -> None:
        """Compare the estimate for a request with the tokens that the service counted."""
        counted = usage.read_tokens
        if counted <= _TELLING_TOKENS:
            return
        running = request.messages[running_turn(request.messages) :]
        reasoning = sum(len(reply.opaque or "") for reply in running if isinstance(reply, AssistantMessage))
        fixed = len(request.system) + _size(tuple(request.tools)) + reasoning
        estimated = sum(map(estimate_tokens, request.messages)) + fixed / CHARS_PER_TOKEN
        self._ratio = min(max(1.0, counted / estimated), _MAX_RATIO)

    def halve(self, messages: Sequence[Message]) -> int:
        """Shrink to half of a history that was too long; return how many messages to drop."""
        total = sum(map(estimate_tokens, messages))
        cut = cut_point(messages, len(messages), total - 1)
        if cut:
            self._tokens = int(total / 2 * self._ratio)
        return cut


@lru_cache(maxsize=256)
def _size(tools: tuple[ToolDefinition, ...]) -> int:
    schemas = sum(len(msgspec.json.encode(tool.input_schema)) for tool in tools)
    return schemas + sum(len(tool.name) + len(tool.description) for tool in tools)
