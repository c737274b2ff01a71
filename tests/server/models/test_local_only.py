"""LOCAL_ONLY: the address of each connection is checked, also after another lookup of its name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from conductor.errors import ModelError, SettingsError
from conductor.messages import UserMessage
from conductor.models.base import Finished, ModelEvent, ModelRequest
from conductor.models.metrics import ModelMetrics
from conductor.models.profiles import load_profiles
from conductor.models.registry import make_router
from conductor.plugins.addresses import is_local
from conductor.plugins.http_client import HttpClient
from conductor.plugins.models.anthropic import AnthropicProvider
from conductor.plugins.models.anthropic_request import Account
from conductor.plugins.models.http import Service, open_reply
from conductor.settings import Settings
from tests.models import AnthropicService, Reply
from tests.stand_ins.web_site import Names

PUBLIC = "192.0.2.7"  # of a network for documentation, without hosts
BODY = b'{"model":"m","max_tokens":1,"stream":true,"messages":[{"role":"user","content":"Hi"}]}'


class Whole:
    """A decoder that takes any bytes for a whole reply."""

    finished = False

    def feed(self, chunk: bytes) -> list[ModelEvent]:
        self.finished = True
        return [Finished("end_turn")]

    def end(self) -> list[ModelEvent]:
        return []


@pytest.fixture
async def claude() -> AsyncIterator[AnthropicService]:
    async with AnthropicService(default=Reply(text="Hello")) as service:
        yield service


@asynccontextmanager
async def sender(base_url: str, *addresses: str) -> AsyncIterator[Service]:
    headers = {"authorization": "Bearer test-key", "anthropic-version": "2026-10-21"}
    names = Names(models_example=list(addresses)) if addresses else None
    async with HttpClient(permits=is_local, resolver=names) as client:
        yield Service(client, base_url, headers)


async def open_and_close(service: Service) -> None:
    (await open_reply(service.send, "/v1/messages", BODY, Whole(), silence_s=5.0, headers={})).close()


async def test_a_name_that_resolves_to_a_public_address_is_not_connected_to(claude: AnthropicService) -> None:
    async with sender(claude.base_url.replace("127.0.0.1", "models.example"), PUBLIC) as service:
        with pytest.raises(ModelError, match="LOCAL_ONLY is set, and the model is not local"):
            await open_and_close(service)


async def test_the_second_lookup_is_looked_at_as_well(claude: AnthropicService) -> None:
    base_url = claude.base_url.replace("127.0.0.1", "models.example")
    async with sender(base_url, "127.0.0.1", PUBLIC) as service:
        await open_and_close(service)
        assert claude.received == 1
        claude.close_idle()
        with pytest.raises(ModelError, match="LOCAL_ONLY"):
            await open_and_close(service)


async def test_an_address_without_a_name_is_looked_at() -> None:
    async with sender(f"http://{PUBLIC}:1") as service:
        with pytest.raises(ModelError, match="LOCAL_ONLY"):
            await open_and_close(service)


async def test_no_proxy_is_asked(claude: AnthropicService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", claude.base_url)
    async with sender("http://models.example:1", PUBLIC) as service:
        with pytest.raises(ModelError, match="LOCAL_ONLY"):
            await open_and_close(service)
    assert claude.received == 0


async def test_it_is_not_tried_again(claude: AnthropicService) -> None:
    provider = AnthropicProvider(Account("k", f"http://{PUBLIC}:1"), "m", 1, local_only=True)
    with pytest.raises(ModelError) as caught:
        await anext(provider.stream(ModelRequest("", [UserMessage("Hi")])))
    assert caught.value.reason == "protocol"
    await provider.aclose()


@pytest.mark.parametrize(
    ("address", "local"),
    [
        *[(a, True) for a in ("127.8.8.8", "10.0.0.1", "172.31.0.1", "192.168.1.1", "::1", "fd12::1")],
        *[(a, True) for a in ("fe80::1%eth0", "169.254.1.1", "::ffff:10.0.0.1")],
        *[(a, False) for a in ("8.8.8.8", "172.32.0.1", "192.0.2.7", "2001:db8::1", "100.64.0.1")],
        *[(a, False) for a in ("::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::", "0.0.0.0", "::")],
    ],
)
def test_local_addresses(address: str, local: bool) -> None:
    assert is_local(address) == local


@pytest.mark.parametrize("provider", ["anthropic", "bedrock", "openai"])
def test_a_hosted_service_is_refused_at_the_start(
    provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    values: dict[str, Any] = {f"{provider}_api_key": "key", f"{provider}_model": "m"}
    settings = Settings(model_provider=provider, local_only=True, **values)
    with pytest.raises(SettingsError, match="LOCAL_ONLY is set, and .* is hosted elsewhere"):
        make_router(load_profiles(settings), settings, ModelMetrics())
    profile = f'name = "a"\nprovider = "{provider}"\nmodel = "m"\nbase_url = "http://127.0.0.1:1"\n'
    (tmp_path / "models.toml").write_text(f'default = "a"\n[[profile]]\n{profile}')
    local = Settings(local_only=True, config_dir=tmp_path, anthropic_api_key="key")
    make_router(load_profiles(local), local, ModelMetrics())
