"""What the demo model remembers: only what the request's messages say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conductor.messages import AssistantMessage, Message, Note, ToolCall, ToolResult, UserMessage
from conductor.models.demo_agents import Wish
from conductor.models.demo_answers import outcome_of
from conductor.models.demo_requests import understand
from conductor.models.demo_values import agent_id

# How many of the user's messages back a question of the demo's may lie.
_LOOK_BACK = 4


@dataclass(frozen=True, slots=True)
class Now:
    """What there is to react to: what the user said (and the notes beside it), or what came of calls.

    ``asked`` is the utterance that the results belong to; ``before`` is the history ahead of ``utterance``,
    or up to and with ``asked``.
    """

    utterance: str | None
    notes: tuple[str, ...]
    results: tuple[tuple[ToolCall, ToolResult], ...]
    asked: str
    before: Sequence[Message]


def now(messages: Sequence[Message]) -> Now:
    """Look at the end of the history."""
    start = len(messages)
    while start and isinstance(messages[start - 1], (UserMessage, Note)):
        start -= 1
    fresh = messages[start:]
    said = [message.text for message in fresh if isinstance(message, UserMessage)]
    # Notes ahead of an utterance are context for it; notes behind it came after and nobody told of them.
    notes: list[str] = []
    for message in fresh:
        if isinstance(message, Note):
            notes.append(message.text)
        else:
            notes.clear()
    if said:
        last = max(index for index, message in enumerate(messages) if isinstance(message, UserMessage))
        return Now(said[-1], tuple(notes), (), said[-1], messages[:last])
    results, place = _results(messages[:start])
    for index in range(place, -1, -1):
        if isinstance(message := messages[index], UserMessage):
            return Now(None, tuple(notes), results, message.text, messages[: index + 1])
    return Now(None, tuple(notes), results, "", ())


def _results(messages: Sequence[Message]) -> tuple[tuple[tuple[ToolCall, ToolResult], ...], int]:
    """Return the calls answered by the results that end ``messages``, and where their reply stands."""
    answered: dict[str, ToolResult] = {}
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if isinstance(message, ToolResult):
            answered[message.call_id] = message
        elif isinstance(message, AssistantMessage):
            pairs = [(call, answered[call.call_id]) for call in message.calls if call.call_id in answered]
            return tuple(pairs), index
        else:
            break
    return (), len(messages) - 1


def waiting_agent(before: Sequence[Message]) -> Wish | None:
    """Return the agent that the user asked for and whose repository is not known yet, if it waits still."""
    seen = 0
    for message in reversed(before):
        if isinstance(message, AssistantMessage) and any(
            call.name == "agent.spawn" for call in message.calls
        ):
            return None
        if not isinstance(message, UserMessage):
            continue
        seen += 1
        for wish in understand(message.text):
            if wish.tool == "agent.spawn" and wish.values and wish.values["prompt"]:
                return None if "repository" in wish.values else wish
            if wish.kind != "unclear" and wish.tool not in ("repositories.select", "repositories.list"):
                return None
        if seen == _LOOK_BACK:
            break
    return None


def asked_for_place(before: Sequence[Message]) -> bool:
    """Say whether the user's last message asked for the time of a place that the demo does not know."""
    text = last_utterance(before)
    return text is not None and understand(text)[-1].kind == "place"


def last_utterance(before: Sequence[Message]) -> str | None:
    """Return what the user said last."""
    return next((message.text for message in reversed(before) if isinstance(message, UserMessage)), None)


def last_reply(before: Sequence[Message]) -> str | None:
    """Return what the model said last."""
    replies = (message.text for message in reversed(before) if isinstance(message, AssistantMessage))
    return next((text for text in replies if text), None)


def latest_agent(before: Sequence[Message]) -> str | None:
    """Return the id of the agent that was started last, as far as a result told it."""
    results: dict[str, ToolResult] = {}
    for message in reversed(before):
        if isinstance(message, ToolResult):
            results[message.call_id] = message
        elif isinstance(message, AssistantMessage):
            for call in reversed(message.calls):
                result = results.get(call.call_id) if call.name == "agent.spawn" else None
                if result and (found := agent_id(outcome_of(result).data)):
                    return found
    return None
