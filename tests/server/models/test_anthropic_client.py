"""Claude through the SDK: credentials, and the platforms against a stand-in on loopback."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from conductor.errors import ModelError, SettingsError
from conductor.messages import UserMessage
from conductor.models.base import Finished, ModelRequest, TextDelta
from conductor.models.profiles import ModelProfile
from conductor.plugins.models import anthropic_client
from conductor.plugins.models.anthropic import AnthropicProvider, from_profile
from conductor.plugins.models.anthropic_request import Account
from conductor.settings import Settings
from tests.models import AnthropicService, HttpFailure, Reply

assert anthropic_client  # imported here: it takes a while, and no test's wait should hold that

REQUEST = ModelRequest("Be brief.", [UserMessage("Hello.")], may_retry=False)
VARIABLES = {
    "ANTHROPIC_AWS_WORKSPACE_ID": "wrkspc_1",
    "ANTHROPIC_GOOGLE_CLOUD_PROJECT": "p-1",
    "ANTHROPIC_GOOGLE_CLOUD_WORKSPACE_ID": "wrkspc_2",
}
PLATFORMS = ["anthropic", "foundry", "aws", "mantle", "google_cloud"]


@pytest.fixture
async def service() -> AsyncIterator[AnthropicService]:
    async with AnthropicService() as service:
        yield service


async def text_of(provider: AnthropicProvider, *, close: bool = True) -> str:
    try:
        async with aclosing(provider.stream(REQUEST)) as events:
            received = [event async for event in events]
    finally:
        if close:
            await provider.aclose()
    assert isinstance(received[-1], Finished)
    return "".join(event.text for event in received if isinstance(event, TextDelta))


def profile(platform: str, base_url: str | None = None, **fields: Any) -> ModelProfile:
    fields = {"model": "m", "region": "eu-west-1", "api_key": "test-key", "file": "models.toml", **fields}
    return ModelProfile(
        name="main", provider="anthropic", **{"platform": platform, "base_url": base_url, **fields}
    )


@pytest.mark.parametrize("platform", PLATFORMS)
async def test_every_platform_streams_and_reports_failures(
    service: AnthropicService, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    # The SDK would take these in place of the profile's.
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(name, "another-key")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    service.play(Reply(text="One two."), HttpFailure(529, "overloaded_error"), HttpFailure(429))
    model = profile(platform, service.base_url)
    assert await text_of(from_profile(model, Settings())) == "One two."
    assert service.paths[0].partition("?")[0] == "/v1/messages"
    assert service.headers[0]["accept-encoding"] == "identity"
    assert "another-key" not in str(service.headers[0])
    assert ("anthropic-workspace-id" in service.headers[0]) == (platform == "aws")
    for reason in ("overloaded", "rate_limited"):
        with pytest.raises(ModelError) as raised:
            await text_of(from_profile(model, Settings()))
        assert raised.value.reason == reason
    assert service.received == 3  # no retries of the SDK
    unreachable = profile(platform, "http://127.0.0.1:1")
    with pytest.raises(ModelError) as raised:
        await text_of(from_profile(unreachable, Settings()))
    assert raised.value.reason == "connection"
    with pytest.raises(ModelError, match="LOCAL_ONLY is set, and the model is not local"):
        await text_of(from_profile(profile(platform, "http://192.0.2.7:1"), Settings(local_only=True)))


@pytest.mark.parametrize("platform", PLATFORMS)
async def test_a_barge_in_stops_the_request_on_every_platform(
    service: AnthropicService, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    service.play(Reply(text="One two three.", hold=asyncio.Event(), hold_at=1))
    provider = from_profile(profile(platform, service.base_url), Settings())
    async with aclosing(provider.stream(REQUEST)) as events:
        await anext(events)
    await service.wait_disconnects(1)
    await provider.aclose()


async def test_a_refused_token_of_a_profile_is_obtained_again_once(
    service: AnthropicService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials.json"

    def rotate(token: str) -> None:
        file.write_text(json.dumps({"access_token": token, "expires_at": 9_999_999_999}))
        file.chmod(0o600)

    configs = tmp_path / "configs"
    configs.mkdir()
    authentication = {"type": "user_oauth", "credentials_path": str(file)}
    (configs / "work.json").write_text(
        json.dumps({"base_url": service.base_url, "authentication": authentication})
    )
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("ANTHROPIC_PROFILE", "work")
    provider = from_profile(profile("anthropic", api_key=None), Settings())
    rotate("test-key")
    assert await text_of(provider, close=False) == "All right."
    assert "oauth" in service.headers[0]["anthropic-beta"]
    service.api_keys = frozenset({"new-key"})
    rotate("new-key")
    assert await text_of(provider, close=False) == "All right."
    assert (service.received, len(service.refused)) == (3, 1)
    # A token that stays refused is no loop.
    service.api_keys = frozenset()
    with pytest.raises(ModelError) as raised:
        await text_of(provider)
    assert (raised.value.reason, service.received) == ("authentication", 5)


async def test_a_token_is_sent_in_place_of_a_key(
    service: AnthropicService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "test-key")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", service.base_url)
    assert await text_of(from_profile(profile("anthropic", api_key=None), Settings())) == "All right."


async def test_missing_credentials_are_an_authentication_failure(tmp_path: Path) -> None:
    account = Account(credentials=str(tmp_path / "none"))
    with pytest.raises(ModelError) as raised:
        await text_of(AnthropicProvider(account, "m", 10))
    assert raised.value.reason == "authentication"


async def test_a_local_service_needs_no_key_and_gets_none_of_the_environment(
    service: AnthropicService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(name, "another-key")
    service.api_keys = None
    for settings in (Settings(), Settings(local_only=True)):
        provider = from_profile(profile("anthropic", service.base_url, api_key=None), settings)
        assert await text_of(provider) == "All right."
    for headers in service.headers:
        assert not {"x-api-key", "authorization"} & headers.keys() and "anthropic-version" in headers


async def test_headers_of_a_profile_are_sent_and_stand_for_a_key(service: AnthropicService) -> None:
    service.api_keys = None
    own = {"X-Portkey-Api-Key": "k-1", "Authorization": "Bearer k-2"}
    provider = from_profile(profile("anthropic", service.base_url, api_key=None, headers=own), Settings())
    await text_of(provider)
    assert (service.headers[0]["x-portkey-api-key"], service.headers[0]["authorization"]) == (
        "k-1",
        "Bearer k-2",
    )
    gateway = profile("anthropic", "https://gateway.example", api_key=None, headers=own)
    await from_profile(gateway, Settings()).aclose()


@pytest.mark.parametrize("platform", ["foundry", "aws", "mantle"])
async def test_headers_of_a_profile_reach_a_platform(
    service: AnthropicService, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    provider = from_profile(profile(platform, service.base_url, headers={"x-own": "v"}), Settings())
    await text_of(provider)
    assert service.headers[0]["x-own"] == "v"


@pytest.mark.parametrize(
    ("platform", "fields", "sentence"),
    [
        ("anthropic", {}, "api_key_env of .* is not set"),
        ("anthropic", {"base_url": "https://gateway.example"}, "api_key_env of .* is not set"),
        ("foundry", {}, "api_key_env of .* is not set; foundry needs it"),
        ("foundry", {"api_key": "k"}, "ANTHROPIC_FOUNDRY_RESOURCE is not set"),
        ("aws", {"api_key": "k"}, "ANTHROPIC_AWS_WORKSPACE_ID is not set"),
        ("aws", {}, r"needs a key or boto3: pip install 'anthropic\[aws\]'"),
        ("mantle", {"api_key": "k", "region": None}, "region of .* and AWS_REGION are not set"),
        ("google_cloud", {"api_key": "k"}, "ANTHROPIC_GOOGLE_CLOUD_PROJECT is not set"),
    ],
)
def test_a_missing_setting_is_one_sentence(
    platform: str, fields: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(SettingsError, match=sentence):
        from_profile(profile(platform, **{"api_key": None, **fields}), Settings())


def test_with_local_only_credentials_are_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="Claude .* on mantle is hosted elsewhere"):
        from_profile(profile("mantle"), Settings(local_only=True))
    monkeypatch.setitem(sys.modules, "boto3", sys)
    with pytest.raises(SettingsError, match="LOCAL_ONLY allows no other credentials"):
        from_profile(profile("mantle", "http://127.0.0.1:9", api_key=None), Settings(local_only=True))
