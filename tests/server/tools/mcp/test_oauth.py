"""A login to an MCP server: the package's authorization server, a small browser, and stored tokens."""

from __future__ import annotations

import asyncio
import io
import json
import secrets
import time
import webbrowser
from contextlib import AbstractAsyncContextManager, redirect_stdout
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    AuthorizeError,
    ProviderTokenVerifier,
    RefreshToken,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl

from conductor.commands import mcp as command
from conductor.plugins.mcp.config import McpServerConfig, load_mcp_servers
from conductor.plugins.mcp.oauth import permitted_addresses
from conductor.plugins.mcp.server import McpConnection, tokens_path
from conductor.settings import load_settings
from tests.server.wires import WAIT
from tests.stand_ins.mcp_server import stand_in
from tests.system.mcp.test_toolset import serving

LIFETIME_S = 3600


class Provider:
    """Accepts every client with a code of this provider."""

    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.refreshes: dict[str, RefreshToken] = {}
        self.refreshed = 0

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[str(client_info.client_id)] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        code = secrets.token_urlsafe(32)
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=[],
            expires_at=time.time() + 60,
            client_id=str(client.client_id),
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=True,
            resource=params.resource,
        )
        return f"{params.redirect_uri}?code={code}&state={params.state}"

    async def load_authorization_code(self, client: Any, authorization_code: str) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(self, client: Any, code: AuthorizationCode) -> OAuthToken:
        del self.codes[code.code]
        return self._tokens(code.client_id, code.resource)

    def _tokens(self, client_id: str, resource: str | None) -> OAuthToken:
        access, refresh = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        expires = int(time.time()) + LIFETIME_S
        self.access[access] = AccessToken(
            token=access, client_id=client_id, scopes=[], expires_at=expires, resource=resource
        )
        self.refreshes[refresh] = RefreshToken(token=refresh, client_id=client_id, scopes=[])
        return OAuthToken(
            access_token=access, token_type="Bearer", expires_in=LIFETIME_S, refresh_token=refresh
        )

    async def load_refresh_token(self, client: Any, refresh_token: str) -> RefreshToken | None:
        return self.refreshes.get(refresh_token)

    async def exchange_refresh_token(self, client: Any, token: RefreshToken, scopes: list[str]) -> OAuthToken:
        self.refreshed += 1
        del self.refreshes[token.token]
        return self._tokens(token.client_id, None)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def revoke_token(self, token: Any) -> None:
        self.access.pop(token.token, None)


def guarded(provider: Any) -> AbstractAsyncContextManager[str]:
    """Serve the stand-in behind the provider's login; yields its URL."""

    def make_app(origin: str) -> Any:
        settings = AuthSettings(
            issuer_url=AnyHttpUrl(origin),
            resource_server_url=AnyHttpUrl(f"{origin}/mcp"),
            validate_token_resource=False,
            client_registration_options=ClientRegistrationOptions(enabled=True),
        )
        return stand_in("").server.streamable_http_app(
            auth=settings, auth_server_provider=provider, token_verifier=ProviderTokenVerifier(provider)
        )

    return serving(make_app)


def browse(address: str) -> bool:
    """Be the operator's browser: follow the address to wherever it leads."""
    asyncio.get_running_loop().create_task(_browse(address))
    return True


async def _browse(address: str) -> None:
    async with httpx2.AsyncClient(follow_redirects=True, trust_env=False) as browser:
        assert (await browser.get(address)).text.endswith("You may close this page.\n")


async def log_in(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> str:
    monkeypatch.setattr(webbrowser, "open", browse)
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"s": {"url": url, "oauth": True}}}))
    settings = load_settings(None, data_dir=folder, config_dir=config.parent)
    (server,) = load_mcp_servers(settings)
    with redirect_stdout(io.StringIO()) as out:
        assert await command.log_in(server, folder / "mcp") == code, out.getvalue()
    return out.getvalue()


async def test_the_tokens_of_a_login_are_used_and_refreshed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = Provider()
    async with guarded(provider) as url, asyncio.timeout(WAIT):
        output = await log_in(tmp_path, url, monkeypatch)
        assert "Open this address" in output and "s: logged in; it has" in output
        path = tokens_path(tmp_path / "mcp", "s")
        assert path.stat().st_mode & 0o777 == 0o600
        tokens = json.loads(path.read_text())["tokens"]
        for token in provider.access.values():
            token.expires_at = 1  # as if it were tomorrow
        document = json.loads(path.read_text())
        path.write_text(json.dumps({**document, "expires_at": 1.0}))
        config = McpServerConfig(name="s", type="http", url=url, oauth=True)
        async with McpConnection(config, folder=tmp_path / "mcp").connected() as client:
            assert client.protocol_version
        assert provider.refreshed >= 1
        assert json.loads(path.read_text())["tokens"] != tokens


async def test_a_login_that_the_person_refuses_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(Provider):
        async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
            callback = str(params.redirect_uri)
            async with httpx2.AsyncClient(trust_env=False) as page:  # of somebody else
                assert (await page.get(f"{callback}?error=access_denied&state=guessed")).status_code == 400
            raise AuthorizeError("access_denied", "she said no")

    async with guarded(Refusing()) as url, asyncio.timeout(WAIT):
        output = await log_in(tmp_path, url, monkeypatch, code=2)
        assert output.endswith("s failed: the login was refused (access_denied: she said no)\n")


async def test_without_a_login_the_error_names_the_command(tmp_path: Path) -> None:
    async with guarded(Provider()) as url, asyncio.timeout(WAIT):
        config = McpServerConfig(name="s", type="http", url=url, oauth=True)
        for folder, words in ((tmp_path, "it needs a login: conductor mcp login s"), (None, "DATA_DIR")):
            connection = McpConnection(config, folder=folder)
            with pytest.raises(Exception) as caught:
                async with connection.connected():
                    pass
            assert words in connection.describe(caught.value)


@pytest.mark.parametrize(
    ("server", "target", "local_only", "permitted"),
    [
        ("https://mcp.example/mcp", "127.0.0.1", False, False),
        ("https://mcp.example/mcp", "1.1.1.1", False, True),
        ("http://127.0.0.1:1/mcp", "169.254.169.254", False, False),
        ("http://127.0.0.1:1/mcp", "1.1.1.1", True, False),
        ("http://127.0.0.1:1/mcp", "127.0.0.1", True, True),
    ],
)
async def test_a_login_only_reaches_addresses_that_a_server_may_name(
    server: str, target: str, local_only: bool, permitted: bool
) -> None:
    permits = await permitted_addresses(server, local_only=local_only)
    assert permits(target) is permitted


async def test_a_metadata_address_of_a_cloud_is_not_asked_for_a_login(tmp_path: Path) -> None:
    challenge = b'WWW-Authenticate: Bearer resource_metadata="http://169.254.169.254/latest"\r\n'

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n" + challenge + b"\r\n")
        writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with listening, asyncio.timeout(WAIT):
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp"
        connection = McpConnection(
            McpServerConfig(name="s", type="http", url=url, oauth=True), folder=tmp_path
        )
        with pytest.raises(Exception) as caught:
            async with connection.connected():
                pass
        assert "address not permitted" in connection.describe(caught.value)
