"""The session as its decisions read it, the size of its history, and the results of calls, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import msgspec

from conductor.conversation.records import CallFinished
from conductor.conversation.services import Rules
from conductor.conversation.state import Call, Conversation, LateCall, Summary, UnknownCall
from conductor.conversation.tools import SessionTools
from conductor.events.server import ConversationState
from conductor.messages import AssistantMessage, Message, Note, ToolCall, ToolResult, UserMessage
from conductor.models.base import CHARS_PER_TOKEN, ModelRequest, ToolDefinition, Usage, running_turn
from conductor.tools.base import ToolOutcome
from conductor.tools.executor import with_timing
from conductor.tools.outcomes import interrupted_outcome

# Shorter requests say little about the ratio of counted to estimated tokens.
_TELLING_TOKENS = 500
_MAX_RATIO = 8.0
# A history to send begins with one of these.
BEGINNINGS = (UserMessage, Note)


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


@dataclass(frozen=True, slots=True)
class Replay:
    """The events for a new connection: their speeches and cards, in their order.

    ``unconfirmed``: the client may have handled UI calls among them, and cannot tell. ``waits``: a part is
    held until the end of a speech. ``state`` is the last one, shown or held.
    """

    speeches: Sequence[str] = ()
    cards: Sequence[str] = ()
    unconfirmed: bool = False
    waits: bool = False
    state: ConversationState = "thinking"


@dataclass
class View:
    """The state, the settings, the tools, and the facts of this process that are not stored.

    ``now`` gives epoch milliseconds. ``was_sent``: whether a
    call was handed to a socket. ``draft``: the text of the reply that the model is writing, for the
    request ``request`` (turn id, rounds, retries). ``running_calls``: server calls that run here.
    ``finished_speeches``: speech id -> when it was acknowledged. ``visible_cards``: question id -> since
    when. ``told_outcomes``: questions whose outcome was sent to the present connection.
    ``utterance_began`` and ``speaking_until`` follow the partial transcripts. ``floor_at``: when the
    server may start a turn of its own, None while it may not. ``requests``: the calls of programs that wait.
    ``notices_after``: notices wait until then. ``summary``: of everything before a position of the log.
    ``memories``: what is remembered of the person, fitting to the first words. ``is_connected``: whether a
    client is attached. ``is_suspended``: another process continues the session, and this one stops.
    """

    state: Conversation
    rules: Rules
    tools: SessionTools
    now: Callable[[], int]
    was_sent: Callable[[str], bool] = lambda call_id: True
    draft: str = ""
    request: tuple[str, int, int] = ("", 0, 0)
    running_calls: set[str] = field(default_factory=set)
    finished_speeches: dict[str, int] = field(default_factory=dict)
    visible_cards: dict[str, int] = field(default_factory=dict)
    told_outcomes: set[str] = field(default_factory=set)
    utterance_began: int = 0
    speaking_until: int = 0
    sends_partials: bool = False
    floor_at: int | None = None
    draining: bool = False
    is_suspended: bool = False
    closing: bool = False
    requests: list[ToolCall] = field(default_factory=list)
    refused_input: bool = False
    notices_after: int = 0
    summary: tuple[int, Summary] | None = None
    may_start: Callable[[], bool] = lambda: True
    memories: Callable[[str], str] = lambda words: ""
    is_connected: Callable[[], bool] = lambda: True

    @cached_property
    def history(self) -> HistoryBudget:
        """The bound of the history in a request."""
        return HistoryBudget(self.rules.history_tokens)

    @property
    def follows(self) -> bool:
        """Whether another turn starts at once after the running one."""
        return bool(self.state.queue) and not (self.closing or self.is_suspended)

    def seconds_since(self, at_ms: int) -> float:
        """Give the seconds since a time; 0.0 for the time 0."""
        return max(0.0, (self.now() - at_ms) / 1000) if at_ms else 0.0


def finish(
    view: View,
    call: Call,
    outcome: ToolOutcome,
    late: LateCall | None = None,
    unknown: UnknownCall | None = None,
) -> CallFinished:
    """Make the record of a call's result."""
    outcome, ran = with_timing(outcome, 0.0, call.notes), bool(call.started_at)
    facts = outcome.metadata
    return CallFinished(
        view.tools.result(call, outcome),
        call.name if ran else "",
        call.source if ran else "",
        outcome.error_type,
        facts.reason,
        facts.execution_time_ms,
        facts.data_size_bytes,
        late,
        unknown,
    )


def finish_without_result(view: View, call: Call, outcome: ToolOutcome, *, starts_turn: bool) -> CallFinished:
    """Close a call without its result; the true one of a device call may still come."""
    until = view.now() + view.rules.late_ms
    late = late_call(call, until, starts_turn=starts_turn) if call.is_device else None
    is_unknown = outcome.error_type == "unknown" and call.effect != "read"
    return finish(view, call, outcome, late, UnknownCall(call.digest, until) if is_unknown else None)


def late_call(call: Call, expires_at: int, *, starts_turn: bool = True, job: bool = False) -> LateCall:
    """Make the memory of a call whose result may come later."""
    return LateCall(
        call.id, call.name, call.effect, expires_at, call.started_at, call.untrusted, starts_turn, job
    )


def lost_result(call_id: str) -> ToolResult:
    """Make the result of a call whose result was lost."""
    outcome = interrupted_outcome("write", was_sent=True, reason="interrupted")
    return ToolResult(call_id, outcome.content, is_error=True)
