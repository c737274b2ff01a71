"""The model provider for Anthropic's Messages API, at Anthropic and on other platforms."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from conductor.errors import SettingsError
from conductor.models.base import CACHE_S, Finished, ModelEvent, ModelRequest
from conductor.models.profiles import Effort, Prices, Thinking
from conductor.plugins.addresses import is_local_name
from conductor.plugins.models.anthropic_request import Account, body_of, prefix_of, warming_of
from conductor.plugins.models.anthropic_stream import ReplyDecoder, WarmingDecoder
from conductor.plugins.models.checked import checked
from conductor.plugins.models.families import Claude, check_claude, family_of, prices_of, sees
from conductor.plugins.models.rendering import encode, for_eyes, names_of, without_marks
from conductor.plugins.models.streaming import HttpProvider, Post
from conductor.settings import environment_value

if TYPE_CHECKING:
    from conductor.models.profiles import ModelProfile
    from conductor.plugins.http_client import HttpClient
    from conductor.plugins.models.http import Send
    from conductor.settings import Settings

_PATH = "/v1/messages"
# An upper estimate: a prompt near the least length is not cached in vain.
_BYTES_PER_TOKEN = 5
# For `thinking.block_binding` only: gateways refuse an unknown beta.
_BINDING = {"anthropic-beta": "thinking-binding-controls-2026-08-01"}


# Where the SDK looks for credentials; profiles on disk only by their name.
_CREDENTIALS = ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE", "ANTHROPIC_FEDERATION_RULE_ID")
# Platform -> argument of the SDK's client -> variable.
_VARIABLES: dict[str, dict[str, str]] = {
    "foundry": {"resource": "ANTHROPIC_FOUNDRY_RESOURCE"},
    "aws": {"workspace_id": "ANTHROPIC_AWS_WORKSPACE_ID"},
    "mantle": {},
    "google_cloud": {
        "project": "ANTHROPIC_GOOGLE_CLOUD_PROJECT",
        "workspace_id": "ANTHROPIC_GOOGLE_CLOUD_WORKSPACE_ID",
    },
}
# Platform -> the module that obtains credentials without a key, and the SDK's extra with it.
_LIBRARIES = {
    "aws": ("boto3", "aws"),
    "mantle": ("boto3", "bedrock"),
    "google_cloud": ("google.auth", "google-cloud"),
}


class AnthropicProvider(HttpProvider):
    """Anthropic's Messages API, streaming.

    ``max_tokens`` limits spoken answers; with tools offered it is raised (`base.limit_of`). Without
    ``thinking`` and ``effort`` the model thinks as little as it allows. A model that ``sees`` takes images.
    ``options`` are for `HttpProvider`.
    """

    name = "anthropic"
    prices: Prices | None = None

    def __init__(
        self,
        account: Account,
        model: str,
        max_tokens: int,
        thinking: Thinking | None = None,
        effort: Effort | None = None,
        *,
        sees: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(partial(_connect, account), **options)
        self._claude = Claude(model, thinking, effort)
        self._official = account.platform != "anthropic" or is_official(account.base_url)
        self._max_tokens = max_tokens
        self._sees = sees
        self._cached_until: dict[bytes, float] = {}

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream the reply (`base.ModelProvider`)."""
        request = for_eyes(request, sees=self._sees)
        events = self.reply(_PATH, self._post, request if self._official else without_marks(request))
        return checked(events, request)

    async def warm(self, request: ModelRequest) -> Finished | None:
        """Have a prompt cached (`base.CacheWarmer`), once in the cache's lifetime."""
        request = for_eyes(request if self._official else without_marks(request), sees=self._sees)
        body = encode(warming_of(request, names_of(request), self._claude))
        least = family_of(self._claude.model).cached_tokens
        now = asyncio.get_running_loop().time()
        self._cached_until = {key: until for key, until in self._cached_until.items() if until > now}
        key = hashlib.sha256(body).digest()
        if least is None or len(body) / _BYTES_PER_TOKEN < least or key in self._cached_until:
            return None
        # Before the request: many sessions may start together.
        self._cached_until[key] = now + CACHE_S
        try:
            async with aclosing(self.reply(_PATH, self._warming, request)) as events:
                async for event in events:
                    if isinstance(event, Finished):
                        return event
        except BaseException:
            self._cached_until.pop(key, None)
            raise
        return None

    def _warming(self, request: ModelRequest, reasoning: bool) -> Post:
        return Post(encode(warming_of(request, names_of(request), self._claude)), WarmingDecoder)

    def _post(self, request: ModelRequest, reasoning: bool = True) -> Post:
        names = names_of(request)
        limit = request.max_tokens or self._max_tokens
        body = body_of(request, names, self._claude, limit, reasoning=reasoning)
        prefix = partial(prefix_of, request, names, self._claude, reasoning=reasoning)
        headers = _BINDING if "block_binding" in body.get("thinking", ()) else {}
        return Post(encode(body), partial(ReplyDecoder, names, prefix), headers)


def is_official(base_url: str | None) -> bool:
    """Return whether it is Anthropic's own service."""
    host = "" if base_url is None else urlsplit(base_url).hostname or ""
    return base_url is None or host == "anthropic.com" or host.endswith(".anthropic.com")


def _connect(account: Account, client: HttpClient) -> Send:
    from conductor.plugins.models.anthropic_client import connect

    return connect(account, client)


def from_profile(profile: ModelProfile, settings: Settings) -> AnthropicProvider:
    """Make the provider of a profile. Raises `SettingsError` without credentials, or for a wrong address."""
    profile.check_local(settings)
    check_claude(profile)
    account = _direct(profile) if profile.platform == "anthropic" else _on_platform(profile)
    account = replace(account, headers=profile.own_headers)
    if find_spec("anthropic") is None:
        needed = f"{profile.label('api_key')} is set" if profile.key else "The provider anthropic is selected"
        raise SettingsError(f"{needed}, but its SDK is missing: pip install 'conductor-voice[claude]'.")
    if settings.local_only and account.key is None and not account.needs_none:
        raise SettingsError(f"{profile.label('api_key')} is not set; LOCAL_ONLY allows no other credentials.")
    provider = AnthropicProvider(
        account,
        profile.model or settings.anthropic_model,
        profile.max_tokens,
        profile.thinking,
        profile.effort,
        sees=sees(profile, official=profile.platform != "anthropic" or is_official(profile.base_url)),
        local_only=settings.local_only,
    )
    provider.prices = prices_of(profile)
    return provider


def _direct(profile: ModelProfile) -> Account:
    if profile.base_url is not None and urlsplit(profile.base_url).path.rstrip("/").endswith("/v1"):
        raise SettingsError(f"{profile.label('base_url')} must not end in /v1, which is added.")
    if profile.key is not None:
        return Account(profile.key, profile.base_url)
    # A gateway may have the key, or its headers.
    if profile.base_url is not None and (profile.headers or is_local_name(profile.host or "")):
        return Account(base_url=profile.base_url, needs_none=True)
    token, credentials, federation = (environment_value(name) for name in _CREDENTIALS)
    # Credentials are not sent to another service.
    if profile.base_url is not None or not (token or credentials or federation):
        raise SettingsError(
            f"{profile.label('api_key')} is not set; the anthropic provider needs it (the demo needs no key)."
        )
    return Account(token=token, credentials=None if token else credentials)


def _on_platform(profile: ModelProfile) -> Account:
    platform = profile.platform
    if profile.key is None and platform == "foundry":
        raise SettingsError(f"{profile.label('api_key')} is not set; {platform} needs it.")
    if profile.key is None and platform in _LIBRARIES:
        module, extra = _LIBRARIES[platform]
        if find_spec(module.partition(".")[0]) is None:
            raise SettingsError(
                f"{profile.label('platform')} needs a key or {module}: pip install 'anthropic[{extra}]'."
            )
    options = {}
    for argument, name in _VARIABLES[platform].items():
        value = environment_value(name)
        # A Foundry resource is an address.
        if value is None and not (profile.base_url is not None and platform != "aws"):
            raise SettingsError(f"{name} is not set; {profile.label('platform')} needs it.")
        if value is not None and not (profile.base_url is not None and platform == "foundry"):
            options[argument] = value
    if platform in ("aws", "mantle"):
        region = profile.region or environment_value("AWS_REGION") or environment_value("AWS_DEFAULT_REGION")
        if region is None:
            raise SettingsError(f"{profile.label('region')} and AWS_REGION are not set.")
        options["aws_region"] = region
    elif profile.region is not None and platform == "google_cloud":
        options["location"] = profile.region
    return Account(profile.key, profile.base_url, platform, options=options)
