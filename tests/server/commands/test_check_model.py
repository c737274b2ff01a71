"""``conductor check``: model profiles, against stand-ins of the services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from conductor.commands.check import check, model_items, reported
from conductor.commands.output import Item
from conductor.settings import load_settings
from tests.conftest import InstallPackage
from tests.hasty import SHORT_S, hasten
from tests.models import AnthropicService, HttpFailure, OpenAIService, Reply
from tests.server.wires import WAIT, until

SECRET = "hunter2-hunter2"
CLAUDE = {"anthropic_api_key": SECRET}


@pytest.fixture
async def claude() -> AsyncIterator[AnthropicService]:
    async with AnthropicService(default=Reply(text="H", stop_reason="max_tokens")) as service:
        yield service


async def ask(
    service: AnthropicService | None = None, *, offline: bool = False, seconds: float = WAIT, **settings: Any
) -> Item:
    """Check the model; keyword arguments are settings."""
    if service is not None:
        settings = {"anthropic_api_key": "test-key", "anthropic_base_url": service.base_url, **settings}
    async with asyncio.timeout(2 * WAIT):
        items = model_items(load_settings(None, **settings), offline=offline, seconds=seconds)
        (item,) = [item async for item in reported("model", items)]
        return item


async def test_a_model_passes_with_one_token(claude: AnthropicService) -> None:
    item = await ask(claude, anthropic_model="claude-test")
    assert item.level == "ok" and item.text.startswith("Claude (claude-test) answered in ")
    (request,) = claude.requests
    assert (request["model"], request["max_tokens"]) == ("claude-test", 1)
    assert [tool["name"] for tool in request["tools"]] == ["get_weather"] and "system" not in request
    assert not claude.refused


async def test_an_offline_check_sends_no_request(claude: AnthropicService) -> None:
    item = await ask(claude, offline=True)
    assert item.level == "ok" and "not tested" in item.text
    assert claude.received == 0


async def test_a_refused_key_fails(claude: AnthropicService) -> None:
    item = await ask(claude, anthropic_api_key=SECRET)
    assert item.level == "fail" and "Check ANTHROPIC_API_KEY" in item.text
    assert SECRET not in str(item)


async def test_a_silent_service_fails_in_time(claude: AnthropicService) -> None:
    claude.default = Reply(text="never", hold=asyncio.Event())
    asking = asyncio.create_task(ask(claude, seconds=SHORT_S))
    await until(lambda: claude.received == 1)
    hasten()
    item = await asking
    assert item.level == "fail" and "No answer within 1 s" in item.text


async def test_too_many_requests_are_a_warning(claude: AnthropicService) -> None:
    claude.default = HttpFailure(429, "rate_limit_error", headers={"retry-after": "60"})
    item = await ask(claude)
    assert item.level == "warn" and "The key is valid" in item.text


@pytest.mark.parametrize("key", ["schlüssel", "two words", "'quoted'"])
async def test_an_invalid_key_is_not_sent(claude: AnthropicService, key: str) -> None:
    item = await ask(claude, anthropic_api_key=key)
    assert item.level == "fail" and "ANTHROPIC_API_KEY holds" in item.text
    assert key not in item.text and claude.received == 0


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "warn: set ANTHROPIC_API_KEY for Claude"),
        ({"model_provider": "demo"}, "ok: not a language model"),
        ({"model_provider": "anthropic"}, "fail: ANTHROPIC_API_KEY is not set"),
        ({"model_provider": "missing"}, "fail: 'missing' is unknown"),
        ({"model_provider": "openai", "openai_model": "gpt-6-luna"}, "fail: OPENAI_API_KEY is not set"),
        (
            {**CLAUDE, "anthropic_base_url": "http://127.0.0.1:1"},
            "fail: Check whether the service runs",
        ),
    ],
)
async def test_settings_decide_without_a_service(settings: dict[str, Any], text: str) -> None:
    item = await ask(**settings)
    level, _, sentence = text.partition(": ")
    assert item.level == level and sentence in item.text
    assert SECRET not in item.text


def write_profiles(folder: Path, base_url: str) -> None:
    (folder / ".env").write_text("CLOUD_KEY=test-key\nOTHER=1\n")
    (folder / "models.toml").write_text(
        'default = "cloud"\n[[profile]]\nname = "cloud"\nprovider = "anthropic"\nmodel = "m"\n'
        f'base_url = "{base_url}"\napi_key_env = "CLOUD_KEY"\n'
        '[[profile]]\nname = "toy"\nprovider = "demo"\n'
    )


async def test_each_profile_of_a_file_is_checked(
    claude: AnthropicService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_profiles(tmp_path, claude.base_url)
    async with asyncio.timeout(2 * WAIT):
        items = [item async for item in check({"port": 0})]
    lines = [f"{item.level} {item.text}" for item in items if item.subject.startswith("model")]
    assert lines[0] == "ok models.toml has cloud, toy; cloud is the default."
    assert lines[1].startswith("ok cloud: Claude (m) answered in ") and lines[2].startswith("ok the demo, ")
    assert "OTHER in .env is not a setting." in [item.text for item in items]


BROKEN = f"""
class BrokenProvider:
    name = "broken"

    def stream(self, request):
        raise NotImplementedError

    async def start(self):
        raise ZeroDivisionError("{SECRET}")

    async def aclose(self):
        pass


def make(profile, settings):
    return BrokenProvider()
"""


async def test_a_provider_without_its_package_fails(install_package: InstallPackage) -> None:
    install_package("acme", {"conductor.models": {"other": "no_such_package_here:make"}})
    item = await ask(model_provider="other")
    assert item.level == "fail"
    assert 'The model provider "other" of acme 1.0 cannot be imported: ModuleNotFound' in item.text


async def test_a_provider_with_a_bug_fails(install_package: InstallPackage) -> None:
    install_package("acme", {"conductor.models": {"broken": "broken_provider:make"}}, broken_provider=BROKEN)
    item = await ask(model_provider="broken")
    assert item.level == "fail" and "ZeroDivisionError" in item.text and SECRET not in item.text


@pytest.fixture
async def ollama() -> AsyncIterator[OpenAIService]:
    async with OpenAIService(default=Reply(text="H", stop_reason="max_tokens"), api_keys=None) as service:
        yield service


def local(service: OpenAIService, **settings: Any) -> dict[str, Any]:
    return {
        "model_provider": "openai",
        "openai_model": "qwen3:4b",
        "openai_base_url": service.base_url,
        **settings,
    }


async def test_a_local_model_passes_without_a_key(ollama: OpenAIService) -> None:
    item = await ask(**local(ollama))
    assert item.level == "ok" and item.text.startswith("qwen3:4b (openai) at 127.0.0.1 answered in ")
    (request,) = ollama.requests
    assert (request["model"], request["max_tokens"]) == ("qwen3:4b", 1)
    assert [tool["function"]["name"] for tool in request["tools"]] == ["get_weather"]


VLLM = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'


@pytest.mark.parametrize(
    ("text_tools", "level", "text"),
    [
        ("off", "fail", "vLLM takes them with --enable-auto-tool-choice and --tool-call-parser"),
        ("auto", "ok", "its calls are text"),
        ("on", "ok", "answered in"),
    ],
)
async def test_a_server_that_takes_no_tools_fails_unless_its_calls_are_text(
    ollama: OpenAIService, text_tools: str, level: str, text: str
) -> None:
    def refuse_tools(body: Any) -> Reply | HttpFailure:
        return HttpFailure(400, "BadRequestError", VLLM) if "tools" in body else Reply(text="H")

    ollama.default = refuse_tools
    with capture_logs() as lines:
        item = await ask(**local(ollama, text_tools=text_tools))
    assert item.level == level and text in item.text
    assert ("--tool-call-parser" in str(lines)) is (text_tools != "on")


async def test_a_model_of_which_one_token_is_no_whole_reply_passes(ollama: OpenAIService) -> None:
    ollama.default = Reply(stop_reason="max_tokens")
    assert (await ask(**local(ollama))).level == "ok"


async def test_a_missing_local_model_fails(ollama: OpenAIService) -> None:
    ollama.default = HttpFailure(404, "not_found_error", "model not found, try pulling it first")
    item = await ask(**local(ollama))
    assert item.level == "fail" and "Check OPENAI_MODEL, and OPENAI_BASE_URL" in item.text
    assert "/v1" not in item.text


async def test_an_address_without_its_path_fails_with_a_hint(ollama: OpenAIService) -> None:
    item = await ask(**local(ollama, openai_base_url=ollama.base_url.removesuffix("/v1")))
    assert item.level == "fail" and "usually ends in /v1" in item.text
