"""Static tokens (AUTH_TOKENS): everybody with a token is one person."""

from __future__ import annotations

from collections.abc import Sequence

from conductor.errors import SettingsError
from conductor.rate_limit import ANONYMOUS
from conductor.server.auth import Handshake, Principal, token_digest
from conductor.settings import Settings


class TokenAuthenticator:
    """Looks tokens up by their hashes. Without tokens every client is anonymous."""

    def __init__(self, tokens: Sequence[str]) -> None:
        # The subject does not reveal the token and is stable, because sessions are stored under it.
        self._subjects = {digest: f"token-{digest.hex()[:16]}" for digest in map(token_digest, tokens)}

    @property
    def required(self) -> bool:
        """Whether there are tokens."""
        return bool(self._subjects)

    async def authenticate(self, handshake: Handshake) -> Principal | None:
        """Name the token's person; None without a valid token."""
        if not self._subjects:
            return Principal(ANONYMOUS)
        token = handshake.token
        subject = None if token is None else self._subjects.get(token_digest(token))
        return None if subject is None else Principal(subject)

    def admits(self, principal: Principal) -> bool:
        """Tell whether the person's token is still one of the tokens."""
        return principal.id in (self._subjects.values() or (ANONYMOUS,))


def from_settings(settings: Settings) -> TokenAuthenticator:
    """Make the authenticator of AUTH_TOKENS. Raises `SettingsError` if others are listed and it is empty."""
    if len(settings.auth) > 1 and not settings.auth_tokens:
        raise SettingsError(
            "AUTH lists tokens with others, and AUTH_TOKENS is empty: every client could connect."
        )
    return TokenAuthenticator(settings.auth_tokens)
