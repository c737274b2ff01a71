"""A session store that tracks its availability for the readiness check."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import structlog

from conductor.errors import StoreError, StoreUnavailable
from conductor.stores.base import NO_ATTACHMENTS, Attachments, Claim, SessionKey, SessionLog, Stored

log = structlog.get_logger(__name__)

_T = TypeVar("_T")

# The session that a probe claims; no client can name it.
PROBE = SessionKey("$node", "$probe")
# Seconds between two probes of a store that failed.
PROBE_S = 0.5


class HealthCheckedStore:
    """A `SessionLog` that delegates to another; ``available`` is False from a failure until a probe succeeds.

    The probe is a write every ``probe_s`` seconds: a full disk can still be read. ``committed`` gets the
    seconds of each commit. An unexpected error of the store is `StoreUnavailable`: the session tries again.
    """

    def __init__(
        self,
        store: SessionLog,
        probe_s: float = PROBE_S,
        committed: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.inner = store
        self.available = True
        self._probe_s = probe_s
        self._committed = committed
        self._probing: asyncio.Task[None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def claim(self, key: SessionKey) -> Claim:
        try:
            return await _expected(self.inner.claim(key))
        except StoreUnavailable as error:
            self._fail(error)
            raise

    async def append(
        self,
        claim: Claim,
        commit_id: str,
        data: bytes,
        *,
        snapshot: bool = False,
        attachments: Attachments = NO_ATTACHMENTS,
    ) -> None:
        start = time.monotonic()
        try:
            await _expected(
                self.inner.append(claim, commit_id, data, snapshot=snapshot, attachments=attachments)
            )
            self._committed(time.monotonic() - start)
        except StoreUnavailable as error:
            self._fail(error)
            raise

    async def read_attachments(self, key: SessionKey, names: Sequence[str]) -> Mapping[str, bytes]:
        return await _expected(self.inner.read_attachments(key, names))

    async def release(self, claim: Claim) -> None:
        await _expected(self.inner.release(claim))

    async def keys(
        self,
        subject: str | None,
        session_id: str | None,
        after: SessionKey | None,
        limit: int,
        since: float = 0.0,
    ) -> list[SessionKey]:
        return await _expected(self.inner.keys(subject, session_id, after, limit, since))

    async def read(self, key: SessionKey) -> Stored | None:
        return await _expected(self.inner.read(key))

    async def delete(self, subject: str, session_id: str | None = None) -> int:
        return await _expected(self.inner.delete(subject, session_id))

    async def aclose(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait([self._probing])
        await self.inner.aclose()

    def _fail(self, error: StoreUnavailable) -> None:
        if self.available:
            self.available = False
            log.error("session store unavailable", reason=str(error))
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probe())

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(self._probe_s)
            try:
                await self.inner.release(await self.inner.claim(PROBE))
            except StoreUnavailable:
                continue
            except Exception:
                # Without the probe the node would never be ready again.
                log.exception("probe of session store failed")
                continue
            self.available = True
            log.info("session store available")
            return


async def _expected(answer: Awaitable[_T]) -> _T:
    """Await an answer of a store. Raises `StoreError` only."""
    try:
        return await answer
    except StoreError:
        raise
    except Exception as error:  # of a driver or a plugin: it must not cost a result that comes only once
        log.exception("session store failed")
        raise StoreUnavailable("The session store has failed.") from error
