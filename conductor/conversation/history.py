"""The history to send, its size, and the parts of it that a request leaves out; pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from conductor.conversation.state import Conversation
from conductor.messages import AssistantMessage, Image, Message, Note, ToolCall, ToolResult, UserMessage
from conductor.models.base import CHARS_PER_TOKEN, ModelRequest, ToolDefinition, Usage, folded, running_turn
from conductor.tools.outcomes import truncate

# Shorter requests say little about the ratio of counted to estimated tokens.
_TELLING_TOKENS = 500
_MAX_RATIO = 8.0
# Tokens that every service takes, tokens of a reply, and the characters that a shortened text keeps.
_LEAST_LIMIT = 2_000
_REPLY_TOKENS = 1_024
_LEAST_CHARS = 200
# Tokens of an image: docs.claude.com, "Vision"; services scale larger ones down. A line of text in its place.
_PIXELS_PER_TOKEN = 750
_MAX_IMAGE_TOKENS = 3_300
_LINE_TOKENS = 20
# How long requests are shorter after one that was too long.
_LIMIT_MS = 600_000
# A history to send begins with one of these.
BEGINNINGS = (UserMessage, Note)


def history_of(state: Conversation, skipped: int = 0) -> list[Message]:
    """Return the history to send: the summary, if there is one, and the log from the first input on.

    ``skipped`` is the number of messages to leave out.
    """
    log = state.log[skipped:]
    begin = next((at for at, message in enumerate(log) if isinstance(message, BEGINNINGS)), 0)
    messages = log[begin:]
    if state.summary is not None:
        text = f"Summary of the conversation so far: {state.summary.text}"
        messages.insert(0, Note(text, state.summary.untrusted))
    return messages


def request_of(state: Conversation, skipped: int = 0) -> list[Message]:
    """Return the messages of a request in the running turn: the history, with the turn's facts."""
    messages, turn = history_of(state, skipped), state.turn
    if turn is not None and turn.facts is not None:
        after = state.log_end - turn.facts.position
        messages.insert(max(0, len(messages) - after), turn.facts.note)
    return messages


def estimate_tokens(message: Message) -> int:
    """Estimate the tokens of a message without its reasoning, which no later turn sends."""
    size = len(message.content if isinstance(message, ToolResult) else message.text)
    if isinstance(message, AssistantMessage):
        for call in message.calls:
            size += len(call.name) + len(call.arguments) + 20
        return int(size / CHARS_PER_TOKEN) + 4
    return int(size / CHARS_PER_TOKEN) + 4 + sum(map(_image_tokens, message.images))


def _image_tokens(image: Image) -> int:
    """Estimate the tokens of an image: as Claude counts them, and at most as a service that makes tiles."""
    if image.gone:
        return _LINE_TOKENS
    return min(-(-image.width * image.height // _PIXELS_PER_TOKEN), _MAX_IMAGE_TOKENS)


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


def shortened(messages: Sequence[Message], max_tokens: int) -> list[Message]:
    """Shorten the largest results and arguments of the running turn until all messages fit, if they can."""
    first = running_turn(messages)
    sizes = sorted(size for message in messages[first:] for size in _sizes(message))
    room = int((max_tokens - sum(map(estimate_tokens, messages))) * CHARS_PER_TOKEN) + sum(sizes)
    limit = 0
    # The small ones stay as they are; the others share what they leave.
    for number, size in enumerate(sizes):
        limit = room // (len(sizes) - number)
        if size > limit:
            break
        room -= size
    limit = max(limit, _LEAST_CHARS)
    return [*messages[:first], *(_shortened(message, limit) for message in messages[first:])]


def _sizes(message: Message) -> list[int]:
    if isinstance(message, ToolResult):
        return [len(message.content)]
    return [len(call.arguments) for call in message.calls] if isinstance(message, AssistantMessage) else []


def _shortened(message: Message, limit: int) -> Message:
    if max(_sizes(message), default=0) <= limit:
        return message
    if isinstance(message, ToolResult):
        return msgspec.structs.replace(message, content=truncate(message.content, limit))
    assert isinstance(message, AssistantMessage)
    calls = tuple(_shortened_call(call, limit) for call in message.calls)
    return msgspec.structs.replace(message, calls=calls)


def _shortened_call(call: ToolCall, limit: int) -> ToolCall:
    if len(call.arguments) <= limit:
        return call
    text = truncate(call.arguments, limit // 2)  # as JSON it may double
    arguments = msgspec.json.encode({"arguments too long to repeat": text}).decode()
    return msgspec.structs.replace(call, arguments=arguments)


class _Size:
    """The estimated tokens of a history."""

    def __init__(self) -> None:
        self.tokens = 0

    def add(self, message: Message) -> None:
        """Add a message."""
        self.tokens += estimate_tokens(message)


class HistoryBudget:
    """The tokens of history in a request, as `estimate_tokens` counts them.

    It follows the service's count, which in some languages is several times the estimate. After a request
    that was too long, later ones are shorter for a while, but never shorter than one that the service has
    accepted: services, and proxies before them, call other failures too long as well. The history itself
    stays. ``window`` is the model's, in its own tokens, None if it is unknown.
    """

    def __init__(self, tokens: int, window: int | None = None) -> None:
        self._tokens = tokens
        self._window = window
        self._ratio = 1.0
        self._accepted: dict[str | None, int] = {}  # tokens of messages, by profile
        self._limit = self._limit_until = self._begin = 0

    @property
    def tokens(self) -> int:
        return int(self._tokens / self._ratio)

    def learn(self, request: ModelRequest, usage: Usage, profile: str | None = None) -> None:
        """Record an accepted request: its size, and the tokens that the service counted in it."""
        size = folded(request, _Size, _Size).tokens
        self._accepted[profile] = max(size, self._accepted.get(profile, 0))
        counted = usage.read_tokens
        if counted <= _TELLING_TOKENS:
            return
        running = request.messages[running_turn(request.messages) :]
        reasoning = sum(len(reply.opaque or "") for reply in running if isinstance(reply, AssistantMessage))
        fixed = len(request.system) + _size(tuple(request.tools)) + reasoning
        estimated = size + fixed / CHARS_PER_TOKEN
        self._ratio = min(max(1.0, counted / estimated), _MAX_RATIO)

    def refuse(self, size: int, profile: str | None, now: int) -> None:
        """Record a request that was too long with ``size`` tokens of messages; ``now`` is in milliseconds."""
        accepted = self._accepted.get(profile, 0)
        if size > accepted:
            self._limit, self._limit_until = max(accepted, size // 2, _LEAST_LIMIT), now + _LIMIT_MS

    def begin(self, log: Sequence[Message], log_start: int, now: int) -> int:
        """Return the number of messages that a new turn leaves out of its requests."""
        if now >= self._limit_until:
            self._begin = 0
            return 0
        skipped = max(0, self._begin - log_start)
        # It moves seldom: the service's cache needs the same beginning.
        skipped += cut_point(log[skipped:], len(log), self._limit)
        self._begin = log_start + skipped
        return skipped

    def room(self, system: str, tools: Sequence[ToolDefinition], size: int) -> int:
        """Return the tokens that messages may have where ``size`` were too many."""
        if self._window is not None:
            fixed = (len(system) + _size(tuple(tools))) / CHARS_PER_TOKEN
            room = int((self._window - _REPLY_TOKENS) / self._ratio - fixed)
            if 0 < room < size:
                return room
        return size // 2


@lru_cache(maxsize=256)
def _size(tools: tuple[ToolDefinition, ...]) -> int:
    schemas = sum(len(msgspec.json.encode(tool.input_schema)) for tool in tools)
    return schemas + sum(len(tool.name) + len(tool.description) for tool in tools)
