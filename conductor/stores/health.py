"""A session store that tracks its availability for the readiness check."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import structlog

from conductor.errors import StoreUnavailable
from conductor.stores.base import Claim, SessionKey, SessionLog

log = structlog.get_logger(__name__)

# The session that a probe claims; no client can name it.
PROBE = SessionKey("$node", "$probe")
# Seconds between two probes of a store that failed.
PROBE_S = 0.5


class HealthCheckedStore:
    """A `SessionLog` that delegates to another; ``available`` is False from a failure until a probe succeeds.

    The probe is a write every ``probe_s`` seconds: a full disk can still be read. ``committed`` gets the
    seconds of each commit.
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
            return await self.inner.claim(key)
        except StoreUnavailable as error:
            self._fail(error)
            raise

    async def append(self, claim: Claim, commit_id: str, data: bytes, *, snapshot: bool = False) -> None:
        start = time.monotonic()
        try:
            await self.inner.append(claim, commit_id, data, snapshot=snapshot)
            self._committed(time.monotonic() - start)
        except StoreUnavailable as error:
            self._fail(error)
            raise

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
