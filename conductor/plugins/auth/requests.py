"""Requests of authenticators to an identity service: bounded in time and bytes."""

from __future__ import annotations

import asyncio

from conductor.errors import SettingsError
from conductor.plugins.addresses import is_local
from conductor.settings import environment_value, is_safe_url

# Seconds of a request, and bytes of its answer.
REQUEST_S = 5.0
MAX_BYTES = 256 * 1024


def read_value(method: str, name: str) -> str:
    """Read a variable of the environment. Raises `SettingsError` if it is not set."""
    value = environment_value(name)
    if value is None:
        raise SettingsError(f"AUTH={method} needs {name}.")
    return value


def check_url(name: str, url: str, more: str = "") -> None:
    """Check the address of a setting. Raises `SettingsError` for one that others could answer."""
    if not is_safe_url(url):
        raise SettingsError(f"{name} must be an https:// address{more}.")


async def fetch(url: str, content: bytes | None = None, *, local_only: bool) -> bytes:
    """GET a document, or POST JSON. Raises `httpx2.HTTPError`, `TimeoutError` and `ValueError`."""
    from conductor.plugins.http_client import HttpClient

    headers = {"Accept-Encoding": "identity", **({"Content-Type": "application/json"} if content else {})}
    method = "GET" if content is None else "POST"
    permits = is_local if local_only else None
    async with asyncio.timeout(REQUEST_S), HttpClient(permits=permits) as client:
        async with client.stream(method, url, content=content, headers=headers) as response:
            response.raise_for_status()
            data = b""
            async for chunk in response.aiter_raw():
                data += chunk
                if len(data) > MAX_BYTES:
                    raise ValueError("too long")
            return data
