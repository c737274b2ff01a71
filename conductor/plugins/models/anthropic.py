"""The model provider for Anthropic's Messages API."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from conductor.errors import SettingsError
from conductor.models.base import CACHE_S, Finished, ModelEvent, ModelRequest
from conductor.models.families import Claude, Effort, Thinking, family_of
from conductor.plugins.models.anthropic_request import body_of, prefix_of, warming_of
from conductor.plugins.models.anthropic_stream import ReplyDecoder, WarmingDecoder
from conductor.plugins.models.rendering import encode, names_of
from conductor.plugins.models.streaming import Post, ReplyStreamer

if TYPE_CHECKING:
    from conductor.models.profiles import ModelProfile
    from conductor.settings import Settings

DEFAULT_BASE_URL = "https://api.anthropic.com"
_PATH = "/v1/messages"
# An upper estimate: a prompt near the least length is not cached in vain.
_BYTES_PER_TOKEN = 5
# The official SDK's; a test compares them.
_VERSION = "2026-10-21"
# For `thinking.block_binding` only: gateways refuse an unknown beta.
_BINDING = {"anthropic-beta": "thinking-binding-controls-2026-08-01"}


class AnthropicProvider:
    """Anthropic's Messages API, streaming.

    ``max_tokens`` limits spoken answers; with tools offered it is raised (`rendering.limit_of`). Without
    ``thinking`` and ``effort`` the model thinks as little as it allows. ``options`` are for `ReplyStreamer`.
    """

    name = "anthropic"

    def __init__(
        self,
        api_key: str,
        model: str,
        max_tokens: int,
        base_url: str | None = None,
        thinking: Thinking | None = None,
        effort: Effort | None = None,
        **options: Any,
    ) -> None:
        self._claude = Claude(model, thinking, effort)
        self._max_tokens = max_tokens
        self._cached_until: dict[bytes, float] = {}
        headers = {"authorization": f"Bearer {api_key}", "anthropic-version": _VERSION}
        self._streamer = ReplyStreamer(base_url or DEFAULT_BASE_URL, headers, **options)

    async def start(self) -> None:
        """Load the HTTP client before the first request."""
        await self._streamer.start()

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream the reply (`base.ModelProvider`)."""
        return self._streamer.stream(
            _PATH,
            self._post(request),
            request,
            without_reasoning=partial(self._post, request, reasoning=False),
        )

    async def warm(self, request: ModelRequest) -> Finished | None:
        """Have a prompt cached (`base.CacheWarmer`), once in the cache's lifetime."""
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
            async with aclosing(self._streamer.stream(_PATH, Post(body, WarmingDecoder), request)) as events:
                async for event in events:
                    if isinstance(event, Finished):
                        return event
        except BaseException:
            self._cached_until.pop(key, None)
            raise
        return None

    def _post(self, request: ModelRequest, *, reasoning: bool = True) -> Post:
        names = names_of(request)
        limit = request.max_tokens or self._max_tokens
        body = body_of(request, names, self._claude, limit, reasoning=reasoning)
        prefix = partial(prefix_of, request, names, self._claude, reasoning=reasoning)
        headers = _BINDING if "block_binding" in body.get("thinking", ()) else {}
        return Post(encode(body), partial(ReplyDecoder, names, prefix), headers)

    async def aclose(self) -> None:
        """Close all connections. Running streams fail."""
        await self._streamer.aclose()


def from_profile(profile: ModelProfile, settings: Settings) -> AnthropicProvider:
    """Make the provider of a profile. Raises `SettingsError` without a key, or for a wrong address."""
    if profile.key is None:
        raise SettingsError(
            f"{profile.label('api_key')} is not set; the anthropic provider needs it (the demo needs no key)."
        )
    if profile.base_url is not None and urlsplit(profile.base_url).path.rstrip("/").endswith("/v1"):
        raise SettingsError(f"{profile.label('base_url')} must not end in /v1, which is added.")
    model = profile.model or settings.anthropic_model
    return AnthropicProvider(
        profile.key,
        model,
        profile.max_tokens,
        profile.base_url,
        profile.thinking,
        profile.effort,
        local_only=settings.local_only,
    )
