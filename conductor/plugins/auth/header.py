"""AUTH=header: a proxy of TRUSTED_PROXIES authenticates people and names them in a header, AUTH_HEADER.

AUTH_ROLE_HEADER is ``program`` for programs.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from conductor.errors import SettingsError
from conductor.origins import Network, is_trusted
from conductor.server.auth import Authenticator, Handshake, Principal, Role, person_id
from conductor.server.refusals import Refusals
from conductor.settings import Settings, environment_value


class HeaderAuthenticator(Authenticator):
    """Believes the header of trusted proxies only: any client can write it, too."""

    def __init__(self, header: str, proxies: Sequence[Network], role_header: str | None = None) -> None:
        self._header = header
        self._role_header = role_header
        self._proxies = proxies
        self._refusals = Refusals()

    async def authenticate(self, handshake: Handshake) -> Principal | None:
        """Name the person in the header."""
        names = handshake.headers.get_all(self._header)
        if not names:
            return None
        if not is_trusted(handshake.peer, self._proxies):
            self._refusals.count("header not from a trusted proxy", handshake.peer, header=self._header)
            return None
        # A proxy that appends to the header of a client instead of replacing it proves nothing.
        if len(names) != 1 or not names[0].strip():
            return None
        roles = [] if self._role_header is None else handshake.headers.get_all(self._role_header)
        role: Role = "program" if "program" in roles else "app"
        return Principal(person_id("", names[0].strip()), role=role)


def from_settings(settings: Settings) -> HeaderAuthenticator:
    """Make the authenticator. Raises `SettingsError` without TRUSTED_PROXIES."""
    if not settings.trusted_proxies:
        raise SettingsError("AUTH=header needs TRUSTED_PROXIES, the proxies that set the header.")
    header = environment_value("AUTH_HEADER") or "X-User"
    proxies = [ipaddress.ip_network(proxy) for proxy in settings.trusted_proxies]
    role_header = environment_value("AUTH_ROLE_HEADER")
    return HeaderAuthenticator(header, proxies, role_header)
