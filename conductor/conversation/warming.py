"""Fills the prompt cache of the model's service before a person has finished speaking."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from conductor.conversation.context import TurnContext
from conductor.conversation.tasks import Tasks
from conductor.errors import ModelError
from conductor.messages import Message
from conductor.models.base import CACHE_S, CacheWarmer, ModelRequest

log = structlog.get_logger(__name__)


class CacheWarming:
    """Warms the cache for one session, where a request of it has not done so within the cache's lifetime.

    Nothing waits for it, and what it costs is no turn.
    """

    def __init__(self, context: TurnContext, tasks: Tasks) -> None:
        self._context = context
        self._tasks = tasks

    def session_starts(self) -> None:
        """Warm the part that sessions share: system prompt and tools."""
        # The history may be of a person who never comes back to it.
        self._begin([], is_all=not self._context.committer.state.log)

    def person_speaks(self) -> None:
        """Warm all that the person's next turn sends."""
        self._begin(None, is_all=True)

    def _begin(self, messages: Sequence[Message] | None, *, is_all: bool) -> None:
        provider, now = self._context.provider, asyncio.get_running_loop().time()
        if now < self._context.cached_until or not isinstance(provider, CacheWarmer):
            return
        if is_all:
            self._context.cached_until = now + CACHE_S
        self._tasks.spawn(self._warm(provider, messages))

    async def _warm(self, provider: CacheWarmer, messages: Sequence[Message] | None) -> None:
        context = self._context
        profile = context.profile
        try:
            request = ModelRequest(
                profile.system_prompt,
                context.messages if messages is None else messages,
                context.executor.definitions,
                silence_s=context.limits.model_silence,
                may_retry=False,
                profile=profile.model,
            )
            finished = await provider.warm(request)
        except ModelError as error:
            log.debug("cache not warmed", reason=error.reason)
        except Exception:
            log.exception("cache not warmed")
        else:
            if finished is not None:
                context.count_warming(finished)
