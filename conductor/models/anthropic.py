"""The model provider for Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from conductor.errors import SettingsError
from conductor.models.anthropic_request import PROVIDER, body_of, encode, names_of
from conductor.models.anthropic_stream import ReplyDecoder
from conductor.models.base import ModelEvent, ModelRequest
from conductor.models.streaming import ReplyStreamer

if TYPE_CHECKING:
    from conductor.settings import Settings

DEFAULT_BASE_URL = "https://api.anthropic.com"
# As the official SDK sends it; a test compares them.
_VERSION = "2026-10-21"


class AnthropicProvider:
    """Anthropic's Messages API, streaming.

    ``max_tokens`` is the limit for spoken answers; with tools offered it is raised
    (`anthropic_request.body_of`). ``options`` are those of `ReplyStreamer`.
    """

    name = PROVIDER

    def __init__(
        self, api_key: str, model: str, max_tokens: int, base_url: str | None = None, **options: Any
    ) -> None:
        self._model = model
        self._max_tokens = max_tokens
        headers = {"authorization": f"Bearer {api_key}", "anthropic-version": _VERSION}
        self._streamer = ReplyStreamer(base_url or DEFAULT_BASE_URL, headers, **options)

    async def start(self) -> None:
        """Load the HTTP client, so that the first request need not wait."""
        await self._streamer.start()

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Ask the model to go on from ``request.messages`` (`conductor.models.base.ModelProvider`)."""
        names = names_of(request)
        body = encode(body_of(request, names, model=self._model, max_tokens=self._max_tokens))
        return self._streamer.stream("/v1/messages", body, lambda: ReplyDecoder(names), request)

    async def aclose(self) -> None:
        """Close all connections. Running streams fail."""
        await self._streamer.aclose()


def from_settings(settings: Settings) -> AnthropicProvider:
    """Make the provider from the settings.

    Raises `SettingsError` without a key, and for settings that could only fail as a lost connection.
    """
    if settings.anthropic_api_key is None:
        raise SettingsError(
            "ANTHROPIC_API_KEY is not set; the anthropic provider needs it (the demo needs none)."
        )
    key = settings.anthropic_api_key.get_secret_value()
    if not (key.isascii() and key.isprintable()) or " " in key or key[:1] in "'\"":
        raise SettingsError("ANTHROPIC_API_KEY holds spaces, quotes or other characters that no key has.")
    if settings.anthropic_base_url is not None:
        _check_address(settings.anthropic_base_url)
    return AnthropicProvider(
        key, settings.anthropic_model, settings.anthropic_max_tokens, settings.anthropic_base_url
    )


def _check_address(base_url: str) -> None:
    try:
        url = urlsplit(base_url)
        good = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # an invalid port or IPv6 address
        good = False
    if not good:
        raise SettingsError(
            "ANTHROPIC_BASE_URL is no address: it must begin with https:// or http:// and a host."
        )
    if url.username is not None or url.password is not None:
        raise SettingsError("ANTHROPIC_BASE_URL must hold no user name and no password.")
    if url.path.rstrip("/").endswith("/v1"):
        raise SettingsError("ANTHROPIC_BASE_URL must not end in /v1: that is added.")
