"""The address of a Redis or Valkey server, a primary behind Sentinels, or a cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from conductor.errors import SettingsError
from conductor.stores.base import describe, split_address

RedisKind: TypeAlias = Literal["server", "sentinel", "cluster"]

_SCHEME = re.compile(r"(?:redis|valkey)(s?)(?:\+(sentinel|cluster))?")

# The URL is not quoted: it may hold a password.
_WRONG_URL = (
    "SESSION_STORE_URL is no Redis address: write redis://HOST:PORT/DATABASE, "
    "redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DATABASE or redis+cluster://HOST:PORT,HOST:PORT; use "
    "rediss for TLS, put USER:PASSWORD@ before the first host, and percent-encode special characters."
)


class Login(NamedTuple):
    """A name and a password."""

    username: str | None = None
    password: str | None = None


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """The servers and the credentials; ``text`` is the address without them.

    ``hosts`` are a server, Sentinels, or some nodes of a cluster; ``service`` is the Sentinels' name of the
    primary.
    """

    text: str
    kind: RedisKind
    tls: bool = False
    hosts: tuple[tuple[str, int], ...] = ()
    database: int = 0
    service: str = ""
    login: Login = field(default=Login(), repr=False)
    sentinel_login: Login = field(default=Login(), repr=False)

    @classmethod
    def parse(cls, url: str) -> RedisAddress:
        """Read an address; docs/deploy.md lists the forms. Raises `SettingsError`."""
        try:
            return cls._parse(url)
        except ValueError:
            raise SettingsError(_WRONG_URL) from None

    @classmethod
    def _parse(cls, url: str) -> RedisAddress:
        parts = split_address(url)
        scheme = _SCHEME.fullmatch(parts.scheme)
        if scheme is None or parts.fragment:
            raise ValueError("wrong scheme, or a fragment")
        kind = cast(RedisKind, scheme[2] or "server")
        sign_in, _, netloc = parts.netloc.rpartition("@")
        user, _, password = sign_in.partition(":")
        query = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
        service, database, sentinel_login = "", parts.path.strip("/"), Login()
        if kind == "sentinel":
            service, _, database = database.partition("/")
            sentinel_login = _login(query.pop("sentinel_user", ""), query.pop("sentinel_password", ""))
        port = 26379 if kind == "sentinel" else 6379
        hosts = tuple(_host(part, port) for part in netloc.split(","))
        is_wrong = query or (kind == "server" and len(hosts) > 1) or (kind == "sentinel" and not service)
        number = int(database or 0)
        if is_wrong or number < 0 or (kind == "cluster" and number):
            raise ValueError("wrong parts, or a wrong database")
        login, service = _login(unquote(user), unquote(password)), unquote(service)
        return cls(describe(url), kind, bool(scheme[1]), hosts, number, service, login, sentinel_login)


def _login(user: str, password: str) -> Login:
    if user and not password:
        raise ValueError("a user without a password")
    return Login(user or None, password or None)


def _host(text: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname or "@" in text:
        raise ValueError("no host")
    parts.hostname.encode("idna")  # a wrong name is refused now, not at the look-up
    return parts.hostname, parts.port or port
