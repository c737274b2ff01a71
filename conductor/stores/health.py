"""A session store that tracks whether it can be reached, so that readiness can report it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import structlog

from conductor.errors import StoreUnavailable
from conductor.stores.base import Claim, Operation, SessionKey, SessionStore

log = structlog.get_logger(__name__)


# The session that a probe claims; no client can name it.
PROBE = SessionKey("$node", "$probe")
# Seconds between two probes of a store that failed.
PROBE_S = 0.5


class HealthCheckedStore:
    """Delegates to another store; ``available`` is False from a failure until the store has recovered.

    Until then it is probed every ``probe_s`` seconds with a write: a full disk can still be read.
    ``committed`` is called with the seconds that each commit took.
    """

    def __init__(
        self,
        store: SessionStore,
        probe_s: float = PROBE_S,
        committed: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.inner = store
        self.available = True
        self._probe_s = probe_s
        self._committed = committed
        self._probing: asyncio.Task[None] | None = None

    @property
    def is_async(self) -> bool:
        return self.inner.is_async

    async def open(self) -> None:
        """Open the other store. Raises `SettingsError` and `StoreUnavailable`."""
        await self.inner.open()

    async def claim(self, key: SessionKey) -> Claim:
        """Claim a session. Raises what the other store raises."""
        try:
            return await self.inner.claim(key)
        except StoreUnavailable as error:
            self._away(error)
            raise

    async def commit(self, claim: Claim, commit_id: str, operations: Sequence[Operation]) -> None:
        """Commit operations. Raises what the other store raises."""
        began = time.monotonic()
        try:
            await self.inner.commit(claim, commit_id, operations)
            self._committed(time.monotonic() - began)
        except StoreUnavailable as error:
            self._away(error)
            raise

    async def release(self, claim: Claim) -> None:
        """Release a session. Raises what the other store raises."""
        await self.inner.release(claim)

    async def aclose(self) -> None:
        """Close the other store."""
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait([self._probing])
        await self.inner.aclose()

    def _away(self, error: StoreUnavailable) -> None:
        if self.available:
            self.available = False
            log.error("session store away", why=str(error))
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
                # A fault of ours must not end the probe: the node would stay not ready for good.
                log.exception("session store not tried")
                continue
            self.available = True
            log.info("session store back")
            return
