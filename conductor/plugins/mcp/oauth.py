"""OAuth for MCP servers over HTTP: a login in the operator's browser, and tokens in a file.

The flow is the package's (`mcp.client.auth`): discovery, registration, PKCE, refresh.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2
from aiohttp import web
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
)
from pydantic import AnyUrl, BaseModel, ValidationError

from conductor.plugins.addresses import LOCAL, is_local_host, may_connect
from conductor.plugins.mcp.specs import clean

# Seconds for a person to log in.
LOGIN_S = 300.0


class _TokenDocument(BaseModel):
    tokens: OAuthToken | None = None
    expires_at: float | None = None
    client: OAuthClientInformationFull | None = None
    metadata: OAuthMetadata | None = None


class TokenFile:
    """The package's ``TokenStorage`` in a file of mode 0600. With ``register`` the client registers again."""

    def __init__(self, path: Path, *, register: bool = False) -> None:
        self._path = path
        self._register = register

    def read(self) -> _TokenDocument:
        """Read the file; a missing or invalid one is empty."""
        try:
            return _TokenDocument.model_validate_json(self._path.read_bytes())
        except (OSError, ValidationError):
            return _TokenDocument()

    def write(self, document: _TokenDocument) -> None:
        """Replace the file."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self._path.with_suffix(f".{os.getpid()}")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(document.model_dump_json(exclude_none=True))
        os.replace(new, self._path)

    async def get_tokens(self) -> OAuthToken | None:
        """Read the tokens."""
        return None if self._register else self.read().tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store the tokens."""
        expires_at = None if tokens.expires_in is None else time.time() + tokens.expires_in
        self.write(self.read().model_copy(update={"tokens": tokens, "expires_at": expires_at}))

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Read the registration of the client."""
        return None if self._register else self.read().client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Store the registration of the client."""
        self.write(_TokenDocument(client=client_info))


def with_tokens(url: str, path: Path) -> httpx2.Auth:
    """Make the authentication by stored tokens, which are refreshed; without tokens a request fails."""
    file = TokenFile(path)
    provider = OAuthClientProvider(url, _metadata("http://127.0.0.1/callback"), file)
    # The package stores neither; without them it requires a login when a token has expired.
    document = file.read()
    provider.context.token_expiry_time = document.expires_at
    provider.context.oauth_metadata = document.metadata
    return provider


async def permitted_addresses(url: str, *, local_only: bool) -> Callable[[str], bool]:
    """Make the check of IP addresses for a server with a login, which names addresses itself.

    They must be public, or local if the server is; with ``local_only`` they must be local.
    """
    allowed = LOCAL if local_only or await is_local_host(urlsplit(url).hostname or "") else ()
    return lambda address: may_connect(address, allowed) and not (local_only and may_connect(address))


class LoginRefused(Exception):
    """The service, or the person there, refused the login; the text is the service's."""


def _refusal(query: Mapping[str, str]) -> str:
    text = ": ".join(query[name] for name in ("error", "error_description") if query.get(name))
    return f"the login was refused ({clean(text)[:200]})"


async def login(
    url: str, path: Path, show: Callable[[str], None], use: Callable[[httpx2.Auth], Awaitable[None]]
) -> None:
    """Log in: ``show`` gets the address for the browser, ``use`` makes a request, which waits for the login.

    Raises `LoginRefused`, the package's exceptions, and TimeoutError after `LOGIN_S`.
    """
    result: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()
    states: set[str] = set()

    async def handle(request: web.BaseRequest) -> web.Response:
        # Only the service knows the state: any page may call this address.
        if "error" in request.query and request.query.get("state") in states:
            if not result.done():
                result.set_exception(LoginRefused(_refusal(request.query)))
            return web.Response(text="The login was refused. You may close this page.\n")
        if "code" not in request.query:
            return web.Response(status=400, text="There is no code in this address.\n")
        if not result.done():
            result.set_result(AuthorizationCodeResult.model_validate(dict(request.query)))
        return web.Response(text="You may close this page.\n")

    async def redirect(address: str) -> None:
        states.update(parse_qs(urlsplit(address).query).get("state", ()))
        show(address)

    async def callback() -> AuthorizationCodeResult:
        return await result

    runner = web.ServerRunner(web.Server(handle, access_log=None))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address = f"http://127.0.0.1:{runner.addresses[0][1]}/callback"
        file = TokenFile(path, register=True)
        provider = OAuthClientProvider(
            url, _metadata(address), file, redirect_handler=redirect, callback_handler=callback
        )
        async with asyncio.timeout(LOGIN_S):
            await use(provider)
        file.write(file.read().model_copy(update={"metadata": provider.context.oauth_metadata}))
    finally:
        await runner.cleanup()


def _metadata(redirect_uri: str) -> OAuthClientMetadata:
    return OAuthClientMetadata(
        client_name="Conductor",
        redirect_uris=[AnyUrl(redirect_uri)],
        grant_types=["authorization_code", "refresh_token"],
        token_endpoint_auth_method="none",
    )
