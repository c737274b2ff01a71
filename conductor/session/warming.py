"""The warming of the prompt cache before a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from conductor.conversation.history import history_of
from conductor.errors import ModelError, StoreError
from conductor.messages import Message
from conductor.models.base import CACHE_S, CacheWarmer, ModelRequest

if TYPE_CHECKING:  # its parts are below it
    from conductor.session.session import Session

log = structlog.get_logger(__name__)


def warm_cache(session: Session, *, shared: bool) -> None:
    """Warm the prompt cache for the person's next turn, or only for the part that sessions share."""
    now = asyncio.get_running_loop().time()
    if now < session.cached_until or not isinstance(session.provider, CacheWarmer):
        return
    # The history may be of a person who never returns to it.
    if not shared or not session.state.log:
        session.cached_until = now + CACHE_S
    session.spawn(_warm(session, session.provider, [] if shared else history_of(session.state)))


async def _warm(session: Session, provider: CacheWarmer, messages: Sequence[Message]) -> None:
    try:
        request = ModelRequest(
            session.gate.system_prompt,
            messages,
            session.gate.executor.definitions,
            silence_s=session.limits.model_silence,
            may_retry=False,
            profile=session.state.profile.model,
            images=await session.images.read(messages),
        )
        finished = await provider.warm(request)
    except (ModelError, StoreError) as error:
        log.debug("cache not warmed", reason=error.code)
    except Exception:
        log.exception("cache not warmed")
    else:
        if finished is not None:
            session.observer.warmed(finished)
