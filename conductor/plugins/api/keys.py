"""API_KEYS: the keys of the app's backend, each with a name and its scopes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias, cast, get_args

from conductor.errors import SettingsError
from conductor.server.auth import token_digest
from conductor.settings import Settings

KeyScope: TypeAlias = Literal["read", "say", "approve", "admin"]
SCOPES: tuple[KeyScope, ...] = get_args(KeyScope)
MIN_CHARS = 16


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key by its ``name``, which is in logs and in the audit log; the key itself is not stored."""

    name: str
    scopes: frozenset[KeyScope]


class ApiKeys:
    """Finds the keys of the settings by their hashes."""

    def __init__(self) -> None:
        self._keys: Mapping[bytes, ApiKey] = {}

    def prepare(self, settings: Settings) -> Callable[[], None]:
        """Read the keys of edited settings; returns the change. Raises `SettingsError`."""
        return partial(setattr, self, "_keys", read_keys(settings))

    def find(self, authorization: str) -> ApiKey | None:
        """Find the key of an ``Authorization`` header."""
        scheme, _, token = authorization.partition(" ")
        return self._keys.get(token_digest(token.strip())) if scheme.lower() == "bearer" else None


def read_keys(settings: Settings) -> Mapping[bytes, ApiKey]:
    """Read API_KEYS, ``name:key:scope+scope`` each, by hash. Raises `SettingsError`, which quotes no key."""
    keys = dict(_read(number, entry) for number, entry in enumerate(settings.api_keys, 1))
    client_tokens = {token_digest(token) for token in settings.auth_tokens}
    if settings.admin_token is not None:
        client_tokens.add(token_digest(settings.admin_token.get_secret_value()))
    for digest, key in keys.items():
        if digest in client_tokens:
            raise SettingsError(f"API_KEYS: the key {key.name!r} is also in AUTH_TOKENS or ADMIN_TOKEN.")
    if len({key.name for key in keys.values()}) < len(settings.api_keys):  # equal keys are one, too
        raise SettingsError("API_KEYS: two keys have one name, or two names have one key.")
    return keys


def _read(number: int, entry: str) -> tuple[bytes, ApiKey]:
    name, _, key_and_scopes = entry.partition(":")
    secret, _, listed = key_and_scopes.rpartition(":")
    scopes = frozenset(listed.split("+"))
    if not (name.isascii() and name.isprintable() and name and scopes <= set(SCOPES)):
        words = f"its scopes are of {', '.join(SCOPES)}"
        raise SettingsError(f"API_KEYS: the key {number} must be name:key:scope+scope; {words}.")
    if len(secret) < MIN_CHARS or not (secret.isascii() and secret.isprintable()):
        raise SettingsError(f"API_KEYS: the key {name!r} needs {MIN_CHARS} random ASCII characters or more.")
    return token_digest(secret), ApiKey(name, cast(frozenset[KeyScope], scopes))
