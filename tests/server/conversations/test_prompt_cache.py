"""The prompt cache's share of a conversation, and the cost of a turn, by the service's rules."""

from __future__ import annotations

import pytest

from conductor.plugins.models.families import PRICES
from tests.models import AnthropicService, Call, JsonObject, Reply
from tests.serving import provider_for, serving

TURNS = 30
# What a phone's tool answers: 100 tokens.
ANSWER = "The agent has read the repository, and runs its tests now. " * 7


def next_reply(body: JsonObject) -> Reply:
    """Call two tools, one after the other's result or both at once, then say something."""
    rounds = 0
    for message in reversed(body["messages"]):
        if any(block["type"] == "text" for block in message["content"] if message["role"] == "user"):
            break
        rounds += message["role"] == "user"
    together = len(body["messages"]) % 3 == 0
    calls = [Call("agent_status", {"id": f"a-{number}"}) for number in range(2)]
    if rounds == 0:
        return Reply(calls=tuple(calls if together else calls[:1]))
    call_count = sum(block["type"] == "tool_use" for block in body["messages"][-2]["content"])
    if rounds == 1 and call_count == 1:
        return Reply(calls=tuple(calls[1:]))
    return Reply(text="Both of them run, and the first one is nearly done with its tests by now.")


@pytest.mark.parametrize("facts", [0, 3, 8])
@pytest.mark.parametrize("model", ["claude-haiku-5-5", "claude-sonnet-5-5"])
async def test_thirty_turns_with_two_tools_read_nearly_all_their_input_from_the_cache(
    claude: AnthropicService, model: str, facts: int
) -> None:
    claude.default = next_reply
    fields = {"capabilities": ["context"]}
    async with serving(provider_for(claude, model=model)) as served:
        async with served.phone(tools={"agent.status": lambda _: ANSWER}, start_fields=fields) as phone:
            for number in range(TURNS):
                # One changes in each turn of eight.
                for key in range(facts) if number == 0 else range(number % 8, facts, 8):
                    fact = f"The person's list {key} holds {number + key} items."
                    phone.send("context.add", {"key": f"list-{key}", "text": fact})
                await phone.ask(f"How are my agents today, this is question number {number}?")
            assert len(phone.runs) == 2 * TURNS and not phone.errors()
    read, cache_writes, new = (
        sum(usage[name] for usage in claude.usages)
        for name in ("cache_read_input_tokens", "cache_creation_input_tokens", "input_tokens")
    )
    prices = PRICES[model]
    output_tokens = sum(usage["output_tokens"] for usage in claude.usages)
    cost = new * prices["input"] + output_tokens * prices["output"]
    cost += read * prices["cache_read"] + cache_writes * prices["cache_write"]
    share = read / (read + cache_writes + new)
    tokens = read + cache_writes + new
    figures = f"{share:.1%} of {tokens} tokens read; a turn costs ${cost / TURNS / 1e6:.6f}"
    print(f"{model}, {facts} facts: {figures}")  # noqa: T201 -- the figures
    assert share >= 0.95
