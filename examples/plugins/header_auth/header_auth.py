"""AUTH=header: a proxy of TRUSTED_PROXIES authenticates people and names them in a header, AUTH_HEADER."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Sequence

from conductor.errors import SettingsError
from conductor.rate_limit import Network
from conductor.server.auth import Handshake, Principal
from conductor.settings import Settings, environment_value


class HeaderAuthenticator:
    """Believes the header of trusted proxies only: anybody else can write it, too."""

    required = True

    def __init__(self, header: str, proxies: Sequence[Network]) -> None:
        self._header = header
        self._proxies = proxies

    async def authenticate(self, handshake: Handshake) -> Principal | None:
        """Name the person in the header."""
        names = handshake.headers.get_all(self._header)
        try:
            peer = ipaddress.ip_address(handshake.peer)
        except ValueError:
            return None
        if len(names) != 1 or not names[0].strip() or not any(peer in proxy for proxy in self._proxies):
            return None
        # The id appears in logs and stores, so it is not the name itself.
        return Principal("person-" + hashlib.sha256(names[0].strip().encode()).hexdigest()[:24])

    def admits(self, person: str) -> bool:
        """Let everybody stay: only the proxy knows who may not."""
        return True


def from_settings(settings: Settings) -> HeaderAuthenticator:
    """Make the authenticator. Raises `SettingsError` without TRUSTED_PROXIES."""
    if not settings.trusted_proxies:
        raise SettingsError("AUTH=header needs TRUSTED_PROXIES, the proxies that set the header.")
    proxies = [ipaddress.ip_network(proxy) for proxy in settings.trusted_proxies]
    return HeaderAuthenticator(environment_value("AUTH_HEADER") or "X-User", proxies)
