"""The prompt cache's share of a conversation, and the cost of a turn, by the service's rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from conductor.app import running
from conductor.models.families import PRICES
from conductor.settings import load_settings
from tests.app import App
from tests.end_to_end.conftest import provider_for, serving
from tests.models import AnthropicService, Call, JsonObject, Reply
from tests.server.wires import until

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


@pytest.mark.parametrize("model", ["claude-haiku-5-5", "claude-sonnet-5-5"])
async def test_thirty_turns_with_two_tools_read_nearly_all_their_input_from_the_cache(
    claude: AnthropicService, model: str
) -> None:
    claude.default = next_reply
    async with serving(provider_for(claude, model=model)) as served:
        async with served.phone(tools={"agent.status": lambda _: ANSWER}) as phone:
            for number in range(TURNS):
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
    print(f"{model}: {share:.1%} of {tokens} tokens read; a turn costs ${cost / TURNS / 1e6:.6f}")  # noqa: T201 -- the figures
    assert share >= 0.95


WARMABLE = """\
default = "claude"
[[profile]]
name = "claude"
provider = "anthropic"
model = "{model}"
base_url = "{url}"
api_key_env = "TEST_KEY"
"""


@pytest.mark.parametrize(("model", "warmings"), [("claude-haiku-5-5", 1), ("claude-test", 0)])
async def test_the_cache_is_filled_before_the_first_words_and_once_in_its_lifetime(
    claude: AnthropicService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    warmings: int,
) -> None:
    monkeypatch.setenv("TEST_KEY", "test-key")
    (tmp_path / "models.toml").write_text(WARMABLE.format(model=model, url=claude.base_url))
    settings = load_settings(None, models_file=str(tmp_path / "models.toml"), port=0)
    async with running(settings) as listener:
        url = f"ws://127.0.0.1:{listener.port}/ws"
        async with App(url, "s-1") as first, App(url, "s-2") as second:
            if warmings:
                await until(lambda: bool(claude.warmings))
            for phone in (first, second):
                phone.send("user.audio.transcript.partial", {"text": "Hel"})
                await phone.ask("Hello?")
            assert len(claude.warmings) == warmings and claude.received == 2
        count = listener.services.model_metrics.registry.get_sample_value
        assert count("conductor_model_cache_warmings_total", {"profile": "claude"}) == (warmings or None)
        cache_writes = count("conductor_model_tokens_total", {"profile": "claude", "kind": "cache_write"})
        assert cache_writes == sum(usage["cache_creation_input_tokens"] for usage in claude.usages)
    usage = claude.usages[warmings]
    assert (usage["cache_read_input_tokens"] > 1000) is bool(warmings)
