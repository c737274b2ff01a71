"""The model's part of ``conductor check``, against the strict stand-in for Claude."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from conductor.commands.check import check, model_items, reported
from conductor.commands.check_item import Item
from conductor.models import registry
from conductor.settings import load_settings
from tests.models import AnthropicService, Break, HttpFailure, OpenAIService, Reply

SECRET = "hunter2-hunter2"


@pytest.fixture
async def claude() -> AsyncIterator[AnthropicService]:
    async with AnthropicService(default=Reply(text="H", stop_reason="max_tokens")) as service:
        yield service


async def ask(
    service: AnthropicService | None = None, *, offline: bool = False, seconds: float = 4.0, **given: Any
) -> Item:
    """Check the model; keyword arguments are settings."""
    if service is not None:
        given = {"anthropic_api_key": "test-key", "anthropic_base_url": service.base_url, **given}
    async with asyncio.timeout(10):
        items = model_items(load_settings(None, **given), offline=offline, seconds=seconds)
        (item,) = [item async for item in reported("model", items)]
        return item


async def test_a_model_that_answers_is_good_and_costs_one_token(claude: AnthropicService) -> None:
    item = await ask(claude, anthropic_model="claude-test")
    assert item.level == "ok" and item.text.startswith("Claude (claude-test) answered in ")
    (request,) = claude.requests
    assert (request["model"], request["max_tokens"]) == ("claude-test", 1)
    assert "tools" not in request and "system" not in request
    assert not claude.refused


async def test_offline_asks_nobody(claude: AnthropicService) -> None:
    item = await ask(claude, offline=True)
    assert item.level == "ok" and "not asked" in item.text
    assert claude.received == 0


async def test_no_key_fails_where_claude_was_named() -> None:
    item = await ask(model_provider="anthropic")
    assert item.level == "fail" and "ANTHROPIC_API_KEY is not set" in item.text


async def test_a_key_that_is_refused_fails(claude: AnthropicService) -> None:
    item = await ask(claude, anthropic_api_key=SECRET)
    assert item.level == "fail" and "Look at ANTHROPIC_API_KEY" in item.text
    assert SECRET not in str(item)


async def test_an_unknown_model_fails(claude: AnthropicService) -> None:
    claude.replies.append(HttpFailure(404, "not_found_error", "model: claude-nix"))
    item = await ask(claude, anthropic_model="claude-nix")
    assert item.level == "fail" and "does not know this model" in item.text
    assert "ANTHROPIC_MODEL (claude-nix)" in item.text


async def test_an_address_where_nobody_listens_fails() -> None:
    item = await ask(anthropic_api_key=SECRET, anthropic_base_url="http://127.0.0.1:1")
    assert item.level == "fail"
    assert "The connection to the model service failed. Asked was 127.0.0.1" in item.text


async def test_a_service_that_says_nothing_fails_in_time(claude: AnthropicService) -> None:
    claude.default = Reply(text="never", hold=asyncio.Event())
    item = await ask(claude, seconds=0.5)
    assert item.level == "fail" and "within 0.5 s" in item.text


async def test_a_stream_that_breaks_fails(claude: AnthropicService) -> None:
    claude.default = Reply(text="Hello you", broken=Break("cut", after=1))
    assert (await ask(claude)).level == "fail"


async def test_too_many_requests_are_a_warning_since_the_key_was_accepted(claude: AnthropicService) -> None:
    claude.default = HttpFailure(429, "rate_limit_error", headers={"retry-after": "60"})
    item = await ask(claude)
    assert item.level == "warn" and "The key was accepted" in item.text


async def test_an_overloaded_service_fails_without_blaming_the_settings(claude: AnthropicService) -> None:
    claude.default = HttpFailure(529, "overloaded_error")
    item = await ask(claude)
    assert item.level == "fail" and "Try again later" in item.text


@pytest.mark.parametrize("key", ["schlüssel", "two words", "'quoted'"])
async def test_a_key_that_cannot_be_one_is_not_sent(claude: AnthropicService, key: str) -> None:
    item = await ask(claude, anthropic_api_key=key)
    assert item.level == "fail" and "ANTHROPIC_API_KEY holds" in item.text
    assert key not in item.text and claude.received == 0


@pytest.mark.parametrize(
    "url", ["not a url", "example.org", "ftp://example.org", "http://[::1", "https://", "http://x:99999"]
)
async def test_a_base_url_that_is_none_fails_and_is_not_repeated(url: str) -> None:
    item = await ask(anthropic_api_key=SECRET, anthropic_base_url=url)
    assert item.level == "fail" and "ANTHROPIC_BASE_URL is no address" in item.text
    assert url not in item.text.replace("https:// or http://", "")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"http://user:{SECRET}@127.0.0.1:1", "no user name and no password"),
        ("http://127.0.0.1:1/v1/", "must not end in /v1"),
    ],
)
async def test_a_base_url_that_holds_too_much_fails(url: str, says: str) -> None:
    item = await ask(anthropic_api_key=SECRET, anthropic_base_url=url)
    assert item.level == "fail" and says in item.text and SECRET not in item.text


async def test_a_query_in_the_base_url_is_not_shown() -> None:
    item = await ask(anthropic_api_key="k", anthropic_base_url=f"http://127.0.0.1:1/?key={SECRET}")
    assert item.level == "fail" and SECRET not in item.text


async def test_the_demo_that_was_asked_for_is_good_and_said_to_be_a_demonstration() -> None:
    item = await ask(model_provider="demo")
    assert item.level == "ok" and "demonstration" in item.text


async def test_the_demo_for_want_of_a_key_is_a_warning() -> None:
    item = await ask()
    assert item.level == "warn" and "demonstration" in item.text and "set ANTHROPIC_API_KEY" in item.text


async def test_an_unknown_provider_fails_with_those_that_there_are() -> None:
    item = await ask(model_provider="nobody")
    assert item.level == "fail" and "'nobody' is unknown" in item.text and "demo" in item.text


def write_profiles(folder: Path, base_url: str) -> None:
    (folder / ".env").write_text("CLOUD_KEY=test-key\nOTHER=1\n")
    (folder / "models.toml").write_text(
        'default = "cloud"\n[[profile]]\nname = "cloud"\nprovider = "anthropic"\nmodel = "m"\n'
        f'base_url = "{base_url}"\napi_key_env = "CLOUD_KEY"\n'
        '[[profile]]\nname = "toy"\nprovider = "demo"\n'
    )


async def test_each_profile_of_a_file_is_asked(
    claude: AnthropicService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_profiles(tmp_path, claude.base_url)
    async with asyncio.timeout(10):
        items = [item async for item in check(Path(".env"), overrides={"port": 0})]
    said = [f"{item.level} {item.text}" for item in items if item.subject.startswith("model")]
    assert said[0] == "ok models.toml has cloud, toy; cloud answers."
    assert said[1].startswith("ok cloud: Claude (m) answered in ") and said[2].startswith("ok the demo, ")
    assert [item.text for item in items if "not a setting" in item.text] == [
        "OTHER in .env is not a setting."
    ]


async def test_a_provider_whose_package_is_missing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.PROVIDERS, "other", "no_such_package_here:make")
    item = await ask(model_provider="other")
    assert item.level == "fail" and "no_such_package_here" in item.text


async def test_a_provider_with_a_bug_fails_and_the_check_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("broken_provider")
    module.make = lambda profile, settings: BrokenProvider()  # type: ignore[attr-defined]  # made for this test
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(registry.PROVIDERS, "broken", "broken_provider:make")
    item = await ask(model_provider="broken")
    assert item.level == "fail" and "ZeroDivisionError" in item.text and SECRET not in item.text


class BrokenProvider:
    """A provider that raises what no provider should."""

    name = "broken"

    async def start(self) -> None:
        raise ZeroDivisionError(SECRET)

    async def aclose(self) -> None:
        """Let go of nothing."""


# -- a service with OpenAI's API


@pytest.fixture
async def ollama() -> AsyncIterator[OpenAIService]:
    async with OpenAIService(default=Reply(text="H", stop_reason="max_tokens"), api_keys=None) as service:
        yield service


def local(service: OpenAIService, **given: Any) -> dict[str, Any]:
    return {
        "model_provider": "openai",
        "openai_model": "qwen3:4b",
        "openai_base_url": service.base_url,
        **given,
    }


async def test_a_local_model_that_answers_is_good_without_a_key(ollama: OpenAIService) -> None:
    item = await ask(**local(ollama))
    assert item.level == "ok" and item.text.startswith("qwen3:4b (openai) at 127.0.0.1 answered in ")
    (request,) = ollama.requests
    assert (request["model"], request["max_tokens"]) == ("qwen3:4b", 1)


async def test_openai_without_a_key_fails() -> None:
    item = await ask(model_provider="openai", openai_model="gpt-6-luna")
    assert item.level == "fail" and "OPENAI_API_KEY is not set" in item.text


async def test_a_model_that_was_not_pulled_fails(ollama: OpenAIService) -> None:
    ollama.default = HttpFailure(404, "not_found_error", "model not found, try pulling it first")
    item = await ask(**local(ollama))
    assert item.level == "fail" and "Look at OPENAI_MODEL (qwen3:4b), and at OPENAI_BASE_URL" in item.text
    assert "/v1" not in item.text


async def test_an_address_without_its_path_is_told_what_it_lacks(ollama: OpenAIService) -> None:
    item = await ask(**local(ollama, openai_base_url=ollama.base_url.removesuffix("/v1")))
    assert item.level == "fail" and "usually ends in /v1" in item.text


async def test_a_local_server_that_does_not_run_is_named_with_its_port() -> None:
    url = "http://127.0.0.1:1/v1"
    item = await ask(model_provider="openai", openai_model="m", openai_base_url=url)
    assert item.level == "fail" and "Asked was 127.0.0.1:1: does it run?" in item.text
