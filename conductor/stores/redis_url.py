"""Addresses of Redis and Valkey: a server, a primary that Sentinels know, or a cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from conductor.errors import SettingsError

Kind: TypeAlias = Literal["server", "sentinel", "cluster"]

_SCHEME = re.compile(r"(?:redis|valkey)(s?)(?:\+(sentinel|cluster))?|unix")

# The URL is not quoted: it may hold a password.
_WRONG_URL = (
    "SESSION_STORE_URL is no Redis address: write redis://HOST:PORT/DATABASE, "
    "redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DATABASE, redis+cluster://HOST:PORT,HOST:PORT or "
    "unix:///PATH, with rediss in place of redis for TLS, with USER:PASSWORD@ before the first host "
    "if the server wants it, and % codes for odd characters in them."
)


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Where the sessions are and how to sign in; prints itself without the passwords.

    ``hosts`` are a server, Sentinels, or some nodes of a cluster; ``service`` is the Sentinels' name for
    the primary, ``path`` a Unix socket.
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
        """Name the address for people."""
        if self.path:
            return f"unix://{self.path}" + (f"?db={self.database}" if self.database else "")
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        service = f"/{self.service}" if self.service else ""
        database = f"/{self.database}" if self.kind != "cluster" else ""
        return f"{self.scheme}://{hosts}{service}{database}"

    @property
    def secrets(self) -> list[str]:
        """The passwords in it."""
        return [each for each in (self.password, self.sentinel_password) if each]

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
            raise ValueError("a scheme or a part that no address has")
        kind = cast(Kind, scheme[2] or "server")
        sign_in, _, netloc = parts.netloc.rpartition("@")
        user, _, password = (unquote(each) for each in sign_in.partition(":"))
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
        hosts = tuple(_host(each, port) for each in netloc.split(",")) if netloc or not path else ()
        wrong = (
            query
            or (path and netloc)
            or (kind == "server" and len(hosts) > 1)
            or (kind == "sentinel" and not service)
            or (user and not password)
            or (sentinel_user and not sentinel_password)
        )
        number = int(database or 0)
        if wrong or number < 0 or (kind == "cluster" and number):
            raise ValueError("too much, too little, or a database that cannot be")
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
    parts.hostname.encode("idna")  # as the look-up will, where it would be no network error
    return parts.hostname, parts.port or port
