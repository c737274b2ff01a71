"""The model provider for Anthropic's Messages API.

Importing the official SDK takes a second or two. `anthropic_client` imports it, and that module is imported
by `start` in a thread, or by the first request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from random import Random
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from conductor.errors import SettingsError
from conductor.models.anthropic_request import PROVIDER, body_of, encode, names_of
from conductor.models.base import ModelEvent, ModelRequest
from conductor.models.retry import RetryClock, RetryPolicy, with_retries

if TYPE_CHECKING:
    from conductor.models.anthropic_client import MessagesClient, ReplyStream
    from conductor.settings import Settings

DEFAULT_BASE_URL = "https://api.anthropic.com"


class AnthropicProvider:
    """Anthropic's Messages API, streaming.

    ``max_tokens`` is the limit for spoken answers; with tools offered it is raised
    (`anthropic_request.body_of`). ``pool_size`` is the largest number of concurrent requests and of
    connections kept: as many as the sessions served. ``keep_alive_s`` is how long an idle connection is kept.
    With ``trust_env`` the HTTP client reads the environment's proxy and certificate variables, as HTTP
    clients do.

    Use ``contextlib.aclosing`` around `stream`: only closing it, or cancelling the task that is inside it,
    stops the request at once.
    """

    name = PROVIDER

    def __init__(
        self,
        api_key: str,
        model: str,
        max_tokens: int,
        base_url: str | None = None,
        *,
        pool_size: int = 1000,
        keep_alive_s: float = 60.0,
        trust_env: bool = True,
        retry_policy: RetryPolicy = RetryPolicy(),  # noqa: B008 - a frozen value
        waiting: RetryClock = RetryClock(),  # noqa: B008 - a frozen value
        random: Random | None = None,
    ) -> None:
        self._api_key = api_key
        self._model = model
        self._max_tokens = max_tokens
        self._base_url = base_url or DEFAULT_BASE_URL
        self._pool_size = pool_size
        self._keep_alive_s = keep_alive_s
        self._trust_env = trust_env
        self._retry_policy = retry_policy
        self._waiting = waiting
        self._random = random or Random()
        self._client: MessagesClient | None = None
        self._starting = asyncio.Lock()
        self._draining: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Import the SDK in a thread and make the client, so that the first request need not wait."""
        await self._started()

    async def _started(self) -> MessagesClient:
        # One client for all sessions: requests that come before the import is done wait for it.
        async with self._starting:
            if self._client is None:
                # The import takes a second or two: in a thread, so that open sockets are still answered.
                await asyncio.to_thread(_import_client)
                from conductor.models.anthropic_client import MessagesClient

                self._client = MessagesClient(
                    self._api_key,
                    self._base_url,
                    pool_size=self._pool_size,
                    keep_alive_s=self._keep_alive_s,
                    trust_env=self._trust_env,
                )
            return self._client

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Ask the model to go on from ``request.messages`` (`conductor.models.base.ModelProvider`)."""
        client = self._client or await self._started()
        names = names_of(request)
        body = encode(body_of(request, names, model=self._model, max_tokens=self._max_tokens))
        reply = await with_retries(
            # A stream is opened up to its first event within the retries; after that, the turn decides about
            # another try.
            lambda left: client.open(body, names, min(request.silence_s, left)),
            deadline_s=request.deadline_s,
            random=self._random,
            policy=self._retry_policy,
            waiting=self._waiting,
        )
        try:
            while True:
                for event in reply.events:
                    yield event
                if reply.decoder.finished:
                    return
                await reply.read()
        finally:
            await self._let_go(reply)

    async def _let_go(self, reply: ReplyStream) -> None:
        # A finished stream is read to its end: only then its connection is reused.
        if not reply.decoder.finished:
            await reply.aclose()
            return
        # In a task of its own: the turn goes on, and a stream that never ends is given up there.
        task = asyncio.get_running_loop().create_task(reply.drain())
        # The loop holds its tasks weakly.
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)

    async def aclose(self) -> None:
        """Close all connections. Running streams fail."""
        draining = list(self._draining)
        for task in draining:
            task.cancel()
        await asyncio.gather(*draining, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()


def _import_client() -> None:
    import conductor.models.anthropic_client  # noqa: F401 - for the time that it takes


def from_settings(settings: Settings) -> AnthropicProvider:
    """Make the provider from the settings.

    Raises `SettingsError` without a key, and for settings that the SDK would report as a lost connection.
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
