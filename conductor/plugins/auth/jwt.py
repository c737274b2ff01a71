"""AUTH=jwt: tokens of an identity provider, checked with its public keys; the person is the claim ``sub``.

Settings: JWT_ISSUER, JWT_AUDIENCE, and JWT_KEYS, the URL or the file of the provider's JWKS.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog

from conductor.errors import SettingsError
from conductor.server.auth import Handshake, Principal, person_id
from conductor.settings import Settings, environment_value, is_loopback

try:
    import jwt
except ImportError:
    raise SettingsError("AUTH=jwt needs the package PyJWT: pip install 'conductor-voice[jwt]'.") from None

log = structlog.get_logger(__name__)

# Public keys only: a server with a shared secret could make tokens, too.
ALGORITHMS = ("RS256", "ES256", "EdDSA")
# Seconds by which clocks may differ.
LEEWAY_S = 60
# Seconds between two reads of the keys, for a key that is not known, and after a read that failed.
REREAD_S = 60.0
RETRY_S = 2.0
# Seconds of the request, and bytes of the answer.
FETCH_S = 5.0
MAX_BYTES = 256 * 1024
MAX_TOKEN = 8_192


class JwtAuthenticator:
    """Checks signature, issuer, audience and times of a token.

    ``read`` gives the JWKS: for the first token, and for one whose ``kid`` is not known, at most once in
    `REREAD_S`, or after a failure in `RETRY_S`. ``now`` is a clock in seconds.
    """

    required = True

    def __init__(
        self,
        issuer: str,
        audience: str,
        read: Callable[[], Awaitable[bytes]],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._issuer = issuer
        self._audience = audience
        self._read = read
        self._now = now
        self._keys: Mapping[str | None, jwt.PyJWK] = {}
        self._reading: asyncio.Task[None] | None = None
        self._next_read = float("-inf")

    async def authenticate(self, handshake: Handshake) -> Principal | None:
        """Name the person of the token; None if the token is missing or not valid."""
        token = handshake.token
        if token is None or len(token) > MAX_TOKEN:
            return None
        try:
            key = await self._key(jwt.get_unverified_header(token).get("kid"))
            claims = None if key is None else self._claims(token, key)
        except (jwt.PyJWTError, OverflowError) as error:
            log.debug("token refused", error=type(error).__name__)
            return None
        if claims is None or not claims["sub"]:
            return None
        return Principal(person_id(self._issuer, claims["sub"]), float(claims["exp"]) + LEEWAY_S)

    def admits(self, person: str) -> bool:
        """Admit everybody: a token ends by its own time."""
        return True

    def _claims(self, token: str, key: jwt.PyJWK) -> Mapping[str, Any]:
        claims: Mapping[str, Any] = jwt.decode(
            token,
            key,
            algorithms=ALGORITHMS,
            issuer=self._issuer,
            audience=self._audience,
            leeway=LEEWAY_S,
            options={"require": ["exp", "iss", "aud", "sub"]},
        )
        return claims

    async def _key(self, kid: str | None) -> jwt.PyJWK | None:
        if kid not in self._keys:
            if self._reading is None and self._now() >= self._next_read:
                self._reading = asyncio.create_task(self._reread())
            if self._reading is not None:
                await asyncio.shield(self._reading)  # a handshake that is cut off does not end it
        return self._keys.get(kid)

    async def _reread(self) -> None:
        self._next_read = self._now() + RETRY_S
        try:
            keys = _keys(json.loads(await self._read()))
        except Exception as error:  # of a file, a connection or a document
            log.warning("keys of the identity provider not read; will retry", error=type(error).__name__)
            return
        finally:
            self._reading = None
        self._keys, self._next_read = keys, self._now() + REREAD_S
        log.info("keys of the identity provider read", keys=len(keys))


def _keys(document: Mapping[str, Any]) -> Mapping[str | None, jwt.PyJWK]:
    keys: dict[str | None, jwt.PyJWK] = {}
    for key in document["keys"]:
        if key.get("use", "sig") == "sig" and key.get("kty") in ("RSA", "EC", "OKP"):
            with suppress(jwt.PyJWTError):  # of a curve that the package does not know
                keys[key.get("kid")] = jwt.PyJWK(key)
    # A provider with a single key may leave out its name in tokens.
    return {**keys, None: next(iter(keys.values()))} if len(keys) == 1 else keys


async def _fetch(url: str, *, local_only: bool) -> bytes:
    from conductor.http_client import HttpClient, is_local

    async with asyncio.timeout(FETCH_S), HttpClient(permits=is_local if local_only else None) as client:
        async with client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as response:
            response.raise_for_status()
            data = b""
            async for chunk in response.aiter_raw():
                data += chunk
                if len(data) > MAX_BYTES:
                    raise ValueError("too long")
            return data


@lru_cache(maxsize=1)  # a reload of the settings does not forget the keys
def _authenticator(issuer: str, audience: str, keys: str, local_only: bool) -> JwtAuthenticator:
    if "://" in keys:
        return JwtAuthenticator(issuer, audience, partial(_fetch, keys, local_only=local_only))
    return JwtAuthenticator(issuer, audience, partial(asyncio.to_thread, Path(keys).read_bytes))


def from_settings(settings: Settings) -> JwtAuthenticator:
    """Make the authenticator. Raises `SettingsError` for a setting that is missing or not safe."""
    values = {name: environment_value(name) for name in ("JWT_ISSUER", "JWT_AUDIENCE", "JWT_KEYS")}
    for name, value in values.items():
        if value is None:
            raise SettingsError(f"AUTH=jwt needs {name}.")
    keys = values["JWT_KEYS"] or ""
    parts = urlsplit(keys)
    is_own = parts.scheme == "http" and is_loopback(parts.hostname or "")
    if "://" in keys and parts.scheme != "https" and not is_own:
        raise SettingsError("JWT_KEYS must be an https:// address or a file.")
    if "://" not in keys and not Path(keys).is_file():
        raise SettingsError(f"JWT_KEYS names {keys}, which is no file.")
    return _authenticator(values["JWT_ISSUER"] or "", values["JWT_AUDIENCE"] or "", keys, settings.local_only)
