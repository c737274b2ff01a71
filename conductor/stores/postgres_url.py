"""Addresses of PostgreSQL, as people and logs may see them."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit


def describe(url: str) -> str:
    """Name the address without user, password and parameters."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def passwords(url: str) -> list[str]:
    """List the password in it, if there is one."""
    coded = urlsplit(url).netloc.rpartition("@")[0].partition(":")[2]
    return [unquote(coded)] if coded else []
