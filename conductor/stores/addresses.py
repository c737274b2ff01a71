"""Addresses of stores: PostgreSQL; a Redis or Valkey server, a primary behind Sentinels, or a cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

from conductor.errors import SettingsError

Kind: TypeAlias = Literal["server", "sentinel", "cluster"]

_SCHEME = re.compile(r"(?:redis|valkey)(s?)(?:\+(sentinel|cluster))?|unix")

# The URL is not quoted: it may hold a password.
_WRONG_URL = (
    "SESSION_STORE_URL is no Redis address: write redis://HOST:PORT/DATABASE, "
    "redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DATABASE, redis+cluster://HOST:PORT,HOST:PORT or "
    "unix:///PATH; use rediss for TLS, put USER:PASSWORD@ before the first host, and percent-encode "
    "special characters."
)


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """The servers and the credentials; its text has no passwords.

    ``hosts`` are a server, Sentinels, or some nodes of a cluster; ``service`` is the Sentinels' name of the
    primary, ``path`` a Unix socket.
    """

    scheme: str
    kind: Kind
    tls: bool = False
    hosts: tuple[tuple[str, int], ...] = ()
    database: int = 0
    service: str = ""
    path: str = ""
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    sentinel_user: str = field(default="", repr=False)
    sentinel_password: str = field(default="", repr=False)

    def __str__(self) -> str:
        """Give the address without its passwords."""
        if self.path:
            return f"unix://{self.path}" + (f"?db={self.database}" if self.database else "")
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        service = f"/{self.service}" if self.service else ""
        database = f"/{self.database}" if self.kind != "cluster" else ""
        return f"{self.scheme}://{hosts}{service}{database}"

    @property
    def secrets(self) -> list[str]:
        """The passwords."""
        return [password for password in (self.password, self.sentinel_password) if password]

    @classmethod
    def parse(cls, url: str) -> RedisAddress:
        """Read an address; docs/deploy.md lists the forms. Raises `SettingsError`."""
        try:
            return cls._parse(url)
        except ValueError:
            raise SettingsError(_WRONG_URL) from None

    @classmethod
    def _parse(cls, url: str) -> RedisAddress:
        parts = urlsplit(url)
        scheme = _SCHEME.fullmatch(parts.scheme)
        if scheme is None or parts.fragment:
            raise ValueError("wrong scheme, or a fragment")
        kind = cast(Kind, scheme[2] or "server")
        sign_in, _, netloc = parts.netloc.rpartition("@")
        user, _, password = (unquote(part) for part in sign_in.partition(":"))
        query = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
        sentinel_user, sentinel_password = "", ""
        path, service, database = "", "", "0"
        if parts.scheme == "unix":
            path, database = unquote(parts.path), query.pop("db", "0")
        elif kind == "sentinel":
            service, _, database = parts.path.strip("/").partition("/")
            sentinel_user = query.pop("sentinel_user", "")
            sentinel_password = query.pop("sentinel_password", "")
        else:
            database = parts.path.strip("/")
        port = 26379 if kind == "sentinel" else 6379
        hosts = tuple(_host(part, port) for part in netloc.split(",")) if netloc or not path else ()
        is_wrong = (
            query
            or (path and netloc)
            or (kind == "server" and len(hosts) > 1)
            or (kind == "sentinel" and not service)
            or (user and not password)
            or (sentinel_user and not sentinel_password)
        )
        number = int(database or 0)
        if is_wrong or number < 0 or (kind == "cluster" and number):
            raise ValueError("wrong parts, or a wrong database")
        return cls(
            parts.scheme,
            kind,
            bool(scheme[1]),
            hosts,
            number,
            unquote(service),
            path,
            user,
            password,
            sentinel_user,
            sentinel_password,
        )


def _host(text: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname or "@" in text:
        raise ValueError("no host")
    parts.hostname.encode("idna")  # a wrong name is refused now, not at the look-up
    return parts.hostname, parts.port or port


def describe_postgres(url: str) -> str:
    """Name a PostgreSQL address without user, password and parameters."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def postgres_passwords(url: str) -> list[str]:
    """List the passwords of a PostgreSQL address."""
    parts = urlsplit(url)
    before_host = unquote(parts.netloc.rpartition("@")[0].partition(":")[2])
    passwords = (before_host, *parse_qs(parts.query).get("password", ()))
    return [password for password in passwords if password]
