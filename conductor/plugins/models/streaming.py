"""Stream a reply from an HTTP service: connections, retries, and an end that stops the request.

Importing aiohttp, by `http`, takes up to half a second: `ReplyStreamer` does it in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

import structlog

from conductor.models.base import ModelEvent, ModelRequest, StreamDecoder
from conductor.models.failures import failure
from conductor.plugins.models.retry import RetryPolicy, with_retries
from conductor.plugins.models.service_errors import EmptyReply, ReasoningRefused

if TYPE_CHECKING:
    import httpx2

    from conductor.plugins.http_client import HttpClient
    from conductor.plugins.models.http import HttpPool, ReplyStream, Send

    Connect: TypeAlias = Callable[[HttpClient], Send]

_NO_RETRIES = RetryPolicy(retries=0)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Post:
    """A request's body, the decoder of its reply, and its own headers."""

    body: bytes
    new_decoder: Callable[[], StreamDecoder]
    headers: Mapping[str, str] = field(default_factory=dict)


def service_at(base_url: str, headers: Mapping[str, str], auth: httpx2.Auth | None = None) -> Connect:
    """Reach the service at ``base_url``; every request has the ``headers`` and the ``auth``."""

    def connect(client: HttpClient) -> Send:
        from conductor.plugins.models.http import Service

        return Service(client, base_url, headers, auth).send

    return connect


class ReplyStreamer:
    """Streams replies from a service.

    ``connect``, called once in a thread, makes the function that sends requests. ``trust_env`` and
    ``local_only`` are those of `conductor.plugins.http_client.AiohttpTransport`.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        trust_env: bool = True,
        local_only: bool = False,
        retry_policy: RetryPolicy = RetryPolicy(),  # noqa: B008 - a frozen value
        random: Random | None = None,
    ) -> None:
        self._connect = connect
        self._trust_env = trust_env
        self._local_only = local_only
        self._retry_policy = retry_policy
        self._random = random or Random()
        self._pool: HttpPool | None = None
        self._starting = asyncio.Lock()
        self._draining: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Import the HTTP client and make the pool, before the first request."""
        await self._started()

    async def _started(self) -> HttpPool:
        # One pool for all sessions: requests wait until the import is done.
        async with self._starting:
            if self._pool is None:
                self._pool = await asyncio.to_thread(self._new_pool)
            return self._pool

    def _new_pool(self) -> HttpPool:
        from conductor.plugins.addresses import is_local
        from conductor.plugins.http_client import HttpClient
        from conductor.plugins.models.http import HttpPool

        client = HttpClient(trust_env=self._trust_env, permits=is_local if self._local_only else None)
        return HttpPool(client, self._connect(client))

    async def stream(
        self,
        path: str,
        post: Post,
        request: ModelRequest,
        *,
        without_reasoning: Callable[[], Post] | None = None,
    ) -> AsyncGenerator[ModelEvent, None]:
        """Send ``post`` to ``path`` and yield the reply as it arrives (`base.ModelProvider`).

        If the service refuses the reasoning in it, the post of ``without_reasoning`` is sent once instead.
        Use ``contextlib.aclosing``: closing it, or cancelling its task, stops the request at once. Raises
        `ModelError`.
        """
        try:
            reply = await self._open(path, post, request)
        except ReasoningRefused:
            if without_reasoning is None:
                raise
            log.warning("model refused its former reasoning")
            reply = await self._open(path, without_reasoning(), request)
        try:
            while True:
                for event in reply.events:
                    yield event
                if reply.decoder.finished:
                    return
                await reply.read()
        finally:
            self._let_go(reply)

    async def _open(self, path: str, post: Post, request: ModelRequest) -> ReplyStream:
        pool = self._pool or await self._started()
        try:
            return await with_retries(
                # Up to the first event; later the turn decides about another try.
                lambda remaining: pool.open(
                    path, post.body, post.new_decoder(), min(request.silence_s, remaining), post.headers
                ),
                deadline_s=request.deadline_s,
                random=self._random,
                policy=self._retry_policy if request.may_retry else _NO_RETRIES,
            )
        except EmptyReply:  # each time
            raise failure("context_too_long") from None

    async def read_json(self, path: str) -> Any:
        """Get a small JSON document from the service; None without one."""
        return await (self._pool or await self._started()).read_json(path)

    def _let_go(self, reply: ReplyStream) -> None:
        if not reply.decoder.finished:
            reply.close()
        # A connection is reused only if its stream was read to the end. The turn does not wait for that.
        elif not reply.is_drained:
            task = asyncio.get_running_loop().create_task(reply.drain())
            # The loop holds its tasks weakly.
            self._draining.add(task)
            task.add_done_callback(self._draining.discard)
            # A task that is cancelled at once never runs.
            task.add_done_callback(lambda _: reply.close())

    async def aclose(self) -> None:
        """Close all connections. Running streams fail."""
        draining = list(self._draining)
        for task in draining:
            task.cancel()
        await asyncio.gather(*draining, return_exceptions=True)
        if self._pool is not None:
            await self._pool.aclose()
