"""The official SDK as a sender of requests: its credentials, headers and platforms, not its streams.

Importing the SDK takes a second: `AnthropicProvider` does it in a thread.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import httpx2
import structlog
from anthropic import (
    AnthropicError,
    APIConnectionError,
    APIStatusError,
    AsyncAnthropic,
    AsyncAnthropicAWS,
    AsyncAnthropicBedrockMantle,
    AsyncAnthropicFoundry,
    AsyncAnthropicGoogleCloud,
    AsyncStream,
)
from anthropic.lib.credentials import AccessTokenAuth, TokenCache

from conductor.errors import ModelError
from conductor.plugins.http_client import HttpClient
from conductor.plugins.models.anthropic_request import Account
from conductor.plugins.models.http import HEADERS, Send, Service

log = structlog.get_logger(__name__)

# Retries are ours: the SDK's know no deadline.
_OPTIONS: dict[str, Any] = {"max_retries": 0, "open_telemetry": False}
_PlatformClient: TypeAlias = AsyncAnthropic | AsyncAnthropicBedrockMantle
_CLIENTS: dict[str, Callable[..., _PlatformClient]] = {
    "foundry": AsyncAnthropicFoundry,
    "aws": AsyncAnthropicAWS,
    "mantle": AsyncAnthropicBedrockMantle,
}


def connect(account: Account, client: HttpClient) -> Send:
    """Make the SDK's client over ``client``, and the function that sends requests through it."""
    options = {**_OPTIONS, "http_client": client, "base_url": account.base_url}
    try:
        if account.platform == "anthropic":
            return partial(_caught, _direct(account, client, options))
        return partial(_caught, partial(_post, _platform_client(account, options)))
    except (AnthropicError, ValueError, OSError) as error:
        raise _no_credentials() from error


def _direct(account: Account, client: HttpClient, options: dict[str, Any]) -> Send:
    key = "none" if account.needs_none else account.key
    sdk = AsyncAnthropic(api_key=key, auth_token=account.token, profile=account.credentials, **options)
    if sdk.api_key is None and sdk.auth_token is None and sdk.credentials is None:
        raise _no_credentials()
    auth = None if sdk.credentials is None else _TokenAuth(TokenCache(sdk.credentials))
    headers = {name.lower(): value for name, value in sdk.default_headers.items() if isinstance(value, str)}
    if account.needs_none:  # the SDK looks for some in the environment
        headers = {
            name: value for name, value in headers.items() if name not in ("x-api-key", "authorization")
        }
    headers |= account.headers
    return Service(client, str(sdk.base_url), headers, auth).send


def _platform_client(account: Account, options: dict[str, Any]) -> _PlatformClient:
    options = {**options, **account.options, "default_headers": dict(account.headers)}
    if account.platform == "google_cloud":
        # Without a token Google's default credentials are used.
        token = None if account.key is None else _token_of(account.key)
        return AsyncAnthropicGoogleCloud(token_provider=token, **options)
    return _CLIENTS[account.platform](api_key=account.key, **options)


def _token_of(key: str) -> Callable[[], Awaitable[str]]:
    async def token() -> str:
        return key

    return token


async def _post(
    sdk: _PlatformClient,
    path: str,
    body: bytes | None,
    headers: Mapping[str, str],
    timeout: httpx2.Timeout,
) -> httpx2.Response:
    stream: Any = await sdk.post(
        path,
        content=body,
        cast_to=httpx2.Response,
        stream=True,
        stream_cls=AsyncStream[object],
        options={"headers": {**HEADERS, **headers}, "timeout": timeout, "follow_redirects": False},
    )
    response: httpx2.Response = stream  # as `cast_to` says
    return response


async def _caught(send: Send, *arguments: Any) -> httpx2.Response:
    try:
        return await send(*arguments)
    except APIStatusError as error:
        return error.response
    except APIConnectionError as error:
        if isinstance(error.__cause__, httpx2.TransportError):
            raise error.__cause__ from None
        raise _no_credentials() from error
    except (httpx2.TransportError, ModelError):
        raise
    # AWS's and Google's libraries have their own errors.
    except Exception as error:
        log.warning("model credentials failed", error=type(error).__name__)
        raise _no_credentials() from None


class _TokenAuth(httpx2.Auth):
    """The SDK's, which obtains a new token once if the service refuses a cached one."""

    def __init__(self, cache: TokenCache) -> None:
        self._cache = cache
        self._sdk = AccessTokenAuth(cache)

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        response = yield await anext(self._sdk.async_auth_flow(request))
        if response.status_code == 401:
            self._cache.invalidate()
            del request.headers["authorization"]
            yield await anext(self._sdk.async_auth_flow(request))


def _no_credentials() -> ModelError:
    return ModelError("authentication", "The credentials for Claude could not be loaded or used.")
