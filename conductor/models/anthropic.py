"""The model provider for Anthropic's Messages API.

The official SDK takes a second or two to import (`anthropic_client` does it), so that happens in `start`,
in a thread, or at the first request, and not when this module is imported.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from random import Random
from typing import TYPE_CHECKING

from conductor.errors import SettingsError
from conductor.models.anthropic_render import PROVIDER, body_of, encode, names_of
from conductor.models.base import ModelEvent, ModelRequest
from conductor.models.retry import RetryPolicy, Waiting, with_retries

if TYPE_CHECKING:
    from conductor.models.anthropic_client import MessagesClient, Reply
    from conductor.settings import Settings

DEFAULT_BASE_URL = "https://api.anthropic.com"


class AnthropicProvider:
    """Anthropic's Messages API, streaming.

    ``max_tokens`` is the limit for spoken answers; with tools offered it is raised
    (`anthropic_render.body_of`). ``pool_size`` is how many requests may be under way at once, and how many
    connections are kept: as many as the sessions served. ``keep_alive_s`` is how long an idle connection is
    kept. With ``trust_env`` the HTTP client looks at the environment's proxy and certificate variables, as
    HTTP clients do.

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
        waiting: Waiting = Waiting(),  # noqa: B008 - a frozen value
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
        """Import the SDK, in a thread, and make the client, so that the first request need not wait."""
        await self._started()

    async def _started(self) -> MessagesClient:
        async with self._starting:
            if self._client is None:
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

    async def _let_go(self, reply: Reply) -> None:
        """Close a stream that is not finished; read a finished one to its end, which keeps its connection."""
        if not reply.decoder.finished:
            await reply.aclose()
            return
        task = asyncio.get_running_loop().create_task(reply.drain())
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)

    async def aclose(self) -> None:
        """Close all connections. Streams that are under way fail."""
        draining = list(self._draining)
        for task in draining:
            task.cancel()
        await asyncio.gather(*draining, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()


def _import_client() -> None:
    import conductor.models.anthropic_client  # noqa: F401 - for the time that it takes


def from_settings(settings: Settings) -> AnthropicProvider:
    """Make the provider from the settings. Raises `SettingsError` without a key."""
    if settings.anthropic_api_key is None:
        raise SettingsError(
            "ANTHROPIC_API_KEY is not set; the anthropic provider needs it (the demo needs none)."
        )
    return AnthropicProvider(
        settings.anthropic_api_key.get_secret_value(),
        settings.anthropic_model,
        settings.anthropic_max_tokens,
        settings.anthropic_base_url,
    )
