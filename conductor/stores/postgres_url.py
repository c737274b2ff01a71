"""Addresses of PostgreSQL, as people and logs may see them."""

from __future__ import annotations

from urllib.parse import parse_qs, unquote, urlsplit


def describe(url: str) -> str:
    """Name the address without user, password and parameters."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def passwords(url: str) -> list[str]:
    """List the passwords in it."""
    parts = urlsplit(url)
    before_host = unquote(parts.netloc.rpartition("@")[0].partition(":")[2])
    return [each for each in (before_host, *parse_qs(parts.query).get("password", ())) if each]
