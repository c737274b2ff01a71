"""AUTH=jwt: tokens of an identity provider, checked with its public keys; the person is the claim ``sub``.

Settings: JWT_ISSUER, JWT_AUDIENCE, and JWT_KEYS, the URL or the file of the provider's JWKS.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from conductor.errors import SettingsError
from conductor.plugins.addresses import is_local
from conductor.server.auth import Authenticator, Handshake, Principal, Role, person_id
from conductor.settings import Settings, environment_value, is_safe_url

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
# Seconds after which a token lets the keys be read again, and after which it waits for that: a provider
# withdraws a key by no longer listing it.
REFRESH_S = 240.0
MAX_AGE_S = 300.0
MAX_TOKEN = 8_192
# Seconds of a request for the keys, and bytes of its answer.
REQUEST_S = 5.0
MAX_BYTES = 256 * 1024
# In the claim ``scope`` (RFC 8693) of a program's token.
PROGRAM_SCOPE = "mcp"


class JwtAuthenticator(Authenticator):
    """Checks signature, issuer, audience and times of a token.

    ``read`` gives the JWKS: for the first token, and again for one that no known key fits or that comes after
    `REFRESH_S`, at most once in `REREAD_S`, or after a failure in `RETRY_S`. Keys that are older than
    `MAX_AGE_S` admit nobody. ``now`` is a clock in seconds.
    """

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
        self._read_at = float("-inf")

    async def authenticate(self, handshake: Handshake) -> Principal | None:
        """Name the person of the token; None if the token is missing or not valid."""
        token = handshake.token
        if token is None or len(token) > MAX_TOKEN:
            return None
        try:
            kid = jwt.get_unverified_header(token).get("kid")
            key = await self._key(kid)
            try:
                claims = self._claims(token, key)
            # A new key may have the name of the former one, or be without a name as it was.
            except (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError):
                claims = self._claims(token, await self._key(kid, key))
        except (jwt.PyJWTError, OverflowError) as error:
            log.debug("token refused", error=type(error).__name__)
            return None
        if not claims["sub"]:
            return None
        scopes = str(claims.get("scope", "")).split()
        role: Role = "program" if PROGRAM_SCOPE in scopes else "app"
        person = person_id(self._issuer, claims["sub"])
        return Principal(person, float(claims["exp"]) + LEEWAY_S, role=role)

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

    async def _key(self, kid: str | None, former: jwt.PyJWK | None = None) -> jwt.PyJWK:
        is_missing = self._keys.get(kid) is former
        if (is_missing or self._age >= REFRESH_S) and self._reading is None:
            if self._now() >= self._next_read:
                self._reading = asyncio.create_task(self._reread())
        if self._reading is not None and (is_missing or self._age >= MAX_AGE_S):
            await asyncio.shield(self._reading)  # a handshake that is cut off does not end it
        if kid not in self._keys or self._age >= MAX_AGE_S:
            raise jwt.InvalidKeyError
        return self._keys[kid]

    @property
    def _age(self) -> float:
        return self._now() - self._read_at

    async def _reread(self) -> None:
        self._next_read = self._now() + RETRY_S
        try:
            keys = _keys((await self._read()).decode())
        except Exception as error:  # of a file, a connection or a document
            log.warning("keys of the identity provider not read; will retry", error=type(error).__name__)
            return
        finally:
            self._reading = None
        self._keys, self._read_at = keys, self._now()
        self._next_read = self._read_at + REREAD_S
        log.info("keys of the identity provider read", keys=len(keys))


def _keys(document: str) -> Mapping[str | None, jwt.PyJWK]:
    signing = [key for key in jwt.PyJWKSet.from_json(document).keys if key.public_key_use in ("sig", None)]
    keys: dict[str | None, jwt.PyJWK] = {key.key_id: key for key in signing}
    # A provider with a single key may leave out its name in tokens.
    return {**keys, None: next(iter(keys.values()))} if len(keys) == 1 else keys


def from_settings(settings: Settings) -> JwtAuthenticator:
    """Make the authenticator, which has no keys yet, also after a reload of the settings.

    Raises `SettingsError` for a setting that is missing or not safe.
    """
    issuer, audience, keys = (_read_value(f"JWT_{name}") for name in ("ISSUER", "AUDIENCE", "KEYS"))
    if "://" in keys:
        if not is_safe_url(keys):
            raise SettingsError("JWT_KEYS must be an https:// address or a file.")
    elif not Path(keys).is_file():
        raise SettingsError(f"JWT_KEYS names {keys}, which is no file.")
    file = partial(asyncio.to_thread, Path(keys).read_bytes)
    read = partial(fetch, keys, local_only=settings.local_only) if "://" in keys else file
    return JwtAuthenticator(issuer, audience, read)


def _read_value(name: str) -> str:
    value = environment_value(name)
    if value is None:
        raise SettingsError(f"AUTH=jwt needs {name}.")
    return value


async def fetch(url: str, *, local_only: bool) -> bytes:
    """GET a document. Raises `httpx2.HTTPError`, `TimeoutError` and `ValueError`."""
    from conductor.plugins.http_client import HttpClient

    permits = is_local if local_only else None
    async with asyncio.timeout(REQUEST_S), HttpClient(permits=permits) as client:
        async with client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as response:
            response.raise_for_status()
            data = b""
            async for chunk in response.aiter_raw():
                data += chunk
                if len(data) > MAX_BYTES:
                    raise ValueError("too long")
            return data
