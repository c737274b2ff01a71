"""Stream a reply from an HTTP service: retries, and an end that stops the request.

Importing aiohttp, by `http`, takes up to half a second: `HttpProvider` does it in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import structlog

from conductor.errors import ModelError
from conductor.models.base import CHARS_PER_TOKEN, ModelEvent, ModelRequest, StreamDecoder
from conductor.models.failures import RETRYABLE, failure, rest_of
from conductor.plugins.models.refused_images import RefusedImages, shown_images, without_images
from conductor.plugins.models.service_errors import (
    EmptyReply,
    ReasoningRefused,
    RequestRefused,
    SchemaRefused,
)
from conductor.plugins.models.tool_schemas import RefusedTools

if TYPE_CHECKING:
    import httpx2

    from conductor.plugins.http_client import HttpClient
    from conductor.plugins.models.http import ReplyStream, Send

    Connect: TypeAlias = Callable[[HttpClient], Send]

T = TypeVar("T")

# Retries of a request, and the seconds before the first.
RETRIES = 2
RETRY_S = 0.5
# Refusals of a tool's schema for one reply: some services count in a way that is not understood.
MAX_REFUSED = 5

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


class HttpProvider:
    """The base of providers over HTTP: it streams replies from a service.

    ``connect``, called once in a thread, makes the function that sends requests. ``trust_env`` and
    ``local_only`` are those of `conductor.plugins.http_client.AiohttpTransport`, ``retry_s`` that of
    `with_retries`. ``context_window`` is the model's in tokens, None if it is unknown.
    """

    context_window: int | None = None

    def __init__(
        self, connect: Connect, *, trust_env: bool = True, local_only: bool = False, retry_s: float = RETRY_S
    ) -> None:
        self._connect = connect
        self._trust_env = trust_env
        self._local_only = local_only
        self._retry_s = retry_s
        self._client: HttpClient | None = None
        self._send: Send | None = None
        self._starting = asyncio.Lock()
        self._refused = RefusedTools()
        self._refused_images = RefusedImages()
        self._draining: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Import the HTTP client and connect it, before the first request."""
        await self._started()

    async def _started(self) -> Send:
        # One client for all sessions: requests wait until the import is done.
        async with self._starting:
            if self._send is None:
                self._send = await asyncio.to_thread(self._new_sender)
            return self._send

    def _new_sender(self) -> Send:
        import conductor.plugins.models.http  # noqa: F401 - the import takes time
        from conductor.plugins.addresses import is_local
        from conductor.plugins.http_client import HttpClient

        self._client = HttpClient(trust_env=self._trust_env, permits=is_local if self._local_only else None)
        return self._connect(self._client)

    async def reply(
        self, path: str, new_post: Callable[[ModelRequest, bool], Post], request: ModelRequest
    ) -> AsyncGenerator[ModelEvent, None]:
        """Send ``new_post(request, True)`` to ``path`` and yield the reply (`base.ModelProvider`).

        If the service refuses the reasoning in it, ``new_post(request, False)``, without any, is sent
        instead; if it refuses a tool's schema, a request without that tool; if it refuses a request with
        images as invalid, one request with words in their place.
        Use ``contextlib.aclosing``: closing it, or cancelling its task, stops the request at once. Raises
        `ModelError`.
        """
        reply = await self._accepted(path, new_post, request)
        try:
            while True:
                for event in reply.events:
                    yield event
                if reply.decoder.finished:
                    return
                await reply.read()
        finally:
            self._let_go(reply)

    async def _accepted(
        self, path: str, new_post: Callable[[ModelRequest, bool], Post], request: ModelRequest
    ) -> ReplyStream:
        """Open a reply; after a refusal the request is sent again without what the service does not take."""
        reasoning, tries, hidden = True, MAX_REFUSED, frozenset[str]()
        request = self._refused_images.without(self._refused.without(request))
        while True:
            try:
                reply = await self._open(path, new_post(request, reasoning), request)
                self._refused_images.add(hidden)
                return reply
            except RequestRefused:
                hidden = shown_images(request)
                if not hidden:
                    raise
                log.warning("model refused a request with images", images=len(hidden))
                request = without_images(request, hidden)
            except ReasoningRefused:
                if not reasoning:
                    raise
                log.warning("model refused its former reasoning")
                reasoning = False
            except SchemaRefused as error:
                tries -= 1
                if not (tries and self._refused.add(request, error.problem)):
                    raise
                request = self._refused.without(request)

    async def _open(self, path: str, post: Post, request: ModelRequest) -> ReplyStream:
        send = self._send or await self._started()
        from conductor.plugins.models.http import open_reply

        def attempt() -> Awaitable[ReplyStream]:
            return open_reply(
                send, path, post.body, post.new_decoder(), silence_s=request.silence_s, headers=post.headers
            )

        try:
            # Up to the first event; later the turn decides about another try.
            return await with_retries(
                attempt, request.deadline_s, RETRIES if request.may_retry else 0, self._retry_s
            )
        except EmptyReply:  # each time
            if self.context_window is not None and len(post.body) > self.context_window * CHARS_PER_TOKEN:
                raise failure("context_too_long") from None
            raise

    async def read_json(self, path: str) -> Any:
        """Get a small JSON document from the service; None without one."""
        send = await self._started()
        from conductor.plugins.models.http import read_json

        return await read_json(send, path)

    def _let_go(self, reply: ReplyStream) -> None:
        if not reply.decoder.finished or reply.is_drained:
            reply.close()
            return
        # A connection is reused only if its stream was read to the end. The turn does not wait for that.
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
        if self._client is not None:
            await self._client.aclose()


async def with_retries(
    attempt: Callable[[], Awaitable[T]],
    deadline_s: float,
    retries: int = RETRIES,
    retry_s: float = RETRY_S,
    random: Random = Random(),  # noqa: B008 - shared on purpose
) -> T:
    """Return the result of ``attempt``, retrying while its `ModelError` is retryable.

    ``attempt`` must release its resources when it fails, and end with the stream's first event. The delay
    before a retry is ``retry_s``, doubled each time, less a random part of up to half, so that sessions do
    not retry together; it is never shorter than the service's retry-after. If it would end after
    ``deadline_s`` seconds from the start, or the service names more than
    `conductor.models.failures.MAX_PAUSE_S`, the error is raised at once. Raises the last `ModelError`.
    """
    now = asyncio.get_running_loop().time
    end = now() + deadline_s
    retry = 0
    while True:
        try:
            return await attempt()
        except ModelError as error:
            wait = max(retry_s * 2**retry * (1 - random.random() / 2), error.retry_after or 0)
            # If the wait would outlast the turn or be long, the person hears the apology at once.
            is_long = wait >= end - now() or rest_of(error)
            if error.reason not in RETRYABLE or retry >= retries or is_long:
                raise
            retry += 1
            log.info("model request retried", reason=error.reason, retry=retry, wait_s=round(wait, 3))
        await asyncio.sleep(wait)
