"""AUTH=signed: the app's backend signs an address with SIGNING_KEY, ``/ws?person=…&until=…&signature=…``.

The signature is the hex HMAC-SHA256 of the person, a line feed and ``until``, which is epoch seconds.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from urllib.parse import parse_qs

from conductor.plugin import (
    Authenticator,
    Handshake,
    Principal,
    Settings,
    SettingsError,
    environment_value,
    person_id,
)


def sign(key: str, person: str, until: str) -> str:
    """Sign an address."""
    return hmac.digest(key.encode(), f"{person}\n{until}".encode(), hashlib.sha256).hex()


class SignedAddresses(Authenticator):
    """Admits clients with a signed address until its time."""

    def __init__(self, key: str) -> None:
        self._key = key

    async def authenticate(self, handshake: Handshake) -> Principal | None:
        """Name the person in the address."""
        query = parse_qs(handshake.path.partition("?")[2])
        try:
            (person,), (until,), (signature,) = query["person"], query["until"], query["signature"]
        except (KeyError, ValueError):
            return None
        expected = sign(self._key, person, until)
        # The signature first: only then is the rest worth a look.
        if not hmac.compare_digest(expected.encode(), signature.encode()) or int(until) <= time.time():
            return None
        # The id appears in logs and stores, so it is not the name itself.
        return Principal(person_id("signed", person))


def from_settings(settings: Settings) -> SignedAddresses:
    """Make the authenticator. Raises `SettingsError` without a key."""
    key = environment_value("SIGNING_KEY")
    if key is None or len(key) < 32:
        raise SettingsError("AUTH=signed needs SIGNING_KEY, at least 32 random characters.")
    return SignedAddresses(key)
