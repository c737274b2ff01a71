"""The end of a connection's token: announced, enforced, and put off by a new token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

# Seconds before the end at which the client gets a warning.
NOTICE_S = 60.0
# Why the connection will close, in ``session.goaway``.
TOKEN_EXPIRES = "token_expires"


class TokenExpiry:
    """Calls ``warn`` with the seconds left, `NOTICE_S` before ``expires``, and ``close`` then.

    ``expires`` is in epoch seconds.
    """

    def __init__(self, expires: float, warn: Callable[[float], None], close: Callable[[], None]) -> None:
        self._warn = warn
        self._close = close
        remaining = expires - time.time()
        notice = min(remaining, NOTICE_S)
        self._timer = asyncio.get_running_loop().call_later(remaining - notice, self._announce, notice)

    def cancel(self) -> None:
        """Stop watching."""
        self._timer.cancel()

    def _announce(self, notice: float) -> None:
        self._warn(notice)
        self._timer = asyncio.get_running_loop().call_later(notice, self._close)
