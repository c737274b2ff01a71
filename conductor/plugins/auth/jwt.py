"""AUTH=jwt: tokens of an identity provider, checked with its public keys; the person is the claim ``sub``.

Settings: JWT_ISSUER, JWT_AUDIENCE, and JWT_KEYS, the URL or the file of the provider's JWKS. The tenant is
the issuer, or the claim that JWT_TENANT names.
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

import structlog

from conductor.errors import SettingsError
from conductor.plugins.auth.requests import check_url, fetch
from conductor.server.auth import Handshake, Principal, person_id
from conductor.settings import Settings, environment_value

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
MAX_TOKEN = 8_192


class JwtAuthenticator:
    """Checks signature, issuer, audience and times of a token.

    ``read`` gives the JWKS: for the first token, and for one that no known key fits, at most once in
    `REREAD_S`, or after a failure in `RETRY_S`. ``now`` is a clock in seconds.
    """

    required = True

    def __init__(
        self,
        issuer: str,
        audience: str,
        read: Callable[[], Awaitable[bytes]],
        now: Callable[[], float] = time.monotonic,
        tenant: str | None = None,
    ) -> None:
        self._tenant = tenant
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
            kid = jwt.get_unverified_header(token).get("kid")
            key = await self._key(kid)
            try:
                claims = None if key is None else self._claims(token, key)
            # A new key may have the name of the former one, or be without a name as it was.
            except (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError):
                newer = await self._key(kid, key)
                claims = None if newer is None or newer is key else self._claims(token, newer)
        except (jwt.PyJWTError, OverflowError) as error:
            log.debug("token refused", error=type(error).__name__)
            return None
        tenant = self._issuer if self._tenant is None else (claims or {}).get(self._tenant)
        if claims is None or not claims["sub"] or not isinstance(tenant, str):
            return None
        return Principal(person_id(tenant, claims["sub"]), float(claims["exp"]) + LEEWAY_S)

    def admits(self, principal: Principal) -> bool:
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

    async def _key(self, kid: str | None, former: jwt.PyJWK | None = None) -> jwt.PyJWK | None:
        if self._keys.get(kid) is former:
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


@lru_cache(maxsize=1)  # a reload of the settings does not forget the keys
def _authenticator(
    issuer: str, audience: str, keys: str, tenant: str | None, local_only: bool
) -> JwtAuthenticator:
    file = partial(asyncio.to_thread, Path(keys).read_bytes)
    read = partial(fetch, keys, local_only=local_only) if "://" in keys else file
    return JwtAuthenticator(issuer, audience, read, tenant=tenant)


def from_settings(settings: Settings) -> JwtAuthenticator:
    """Make the authenticator. Raises `SettingsError` for a setting that is missing or not safe."""
    values = {name: environment_value(name) for name in ("JWT_ISSUER", "JWT_AUDIENCE", "JWT_KEYS")}
    for name, value in values.items():
        if value is None:
            raise SettingsError(f"AUTH=jwt needs {name}.")
    keys = values["JWT_KEYS"] or ""
    if "://" in keys:
        check_url("JWT_KEYS", keys, " or a file")
    elif not Path(keys).is_file():
        raise SettingsError(f"JWT_KEYS names {keys}, which is no file.")
    issuer, audience = values["JWT_ISSUER"] or "", values["JWT_AUDIENCE"] or ""
    return _authenticator(issuer, audience, keys, environment_value("JWT_TENANT"), settings.local_only)
