"""Static tokens (AUTH_TOKENS): everybody with a token is one person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from conductor.errors import SettingsError
from conductor.identity import ANONYMOUS
from conductor.server.auth import Handshake, Principal, token_digest
from conductor.settings import Settings, program_token


class TokenAuthenticator:
    """Looks tokens, and their programs' tokens, up by their hashes. Without any, all are anonymous."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._people: dict[bytes, Principal] = {}
        for token in tokens:
            digest = token_digest(token)
            # The subject does not reveal the token and is stable, because sessions are stored under it.
            person = Principal(f"token-{digest.hex()[:16]}")
            self._people[digest] = person
            self._people[token_digest(program_token(token))] = replace(person, role="program")

    @property
    def required(self) -> bool:
        """Whether there are tokens."""
        return bool(self._people)

    async def authenticate(self, handshake: Handshake) -> Principal | None:
        """Name the token's person; None without a valid token."""
        if not self._people:
            return Principal(ANONYMOUS, role="any")
        token = handshake.token
        return None if token is None else self._people.get(token_digest(token))

    def admits(self, principal: Principal) -> bool:
        """Return whether the person's token is still one of the tokens."""
        people = {person.id for person in self._people.values()} or {ANONYMOUS}
        return principal.id in people


def from_settings(settings: Settings) -> TokenAuthenticator:
    """Make the authenticator of AUTH_TOKENS. Raises `SettingsError` if others are listed and it is empty."""
    if len(settings.auth) > 1 and not settings.auth_tokens:
        raise SettingsError(
            "AUTH lists tokens with others, and AUTH_TOKENS is empty: every client could connect."
        )
    return TokenAuthenticator(settings.auth_tokens)
