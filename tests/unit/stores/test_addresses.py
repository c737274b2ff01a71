"""Addresses of stores are parsed, and printed without their passwords."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conductor.errors import SettingsError
from conductor.plugins.stores.redis_address import RedisAddress
from conductor.stores.base import describe, passwords

PASSWORD = "s3cret/p@ss:{word},x"
CODED = "s3cret%2Fp%40ss%3A%7Bword%7D%2Cx"


def server(host: str, port: int = 6379, database: int = 0, *, tls: bool = False) -> RedisAddress:
    return RedisAddress("", "server", tls, ((host, port),), database)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h", server("h")),
        ("valkey://h/4", server("h", database=4)),
        ("redis://127.0.0.1:7000/3", server("127.0.0.1", 7000, 3)),
        ("rediss://[::1]:7000", server("::1", 7000, tls=True)),
        (
            "redis+sentinel://a,b:1,[::1]:2/main",
            RedisAddress("", "sentinel", hosts=(("a", 26379), ("b", 1), ("::1", 2)), service="main"),
        ),
        (
            "rediss+sentinel://a/main/2",
            RedisAddress("", "sentinel", True, hosts=(("a", 26379),), service="main", database=2),
        ),
        ("valkey+cluster://a:1,b", RedisAddress("", "cluster", hosts=(("a", 1), ("b", 6379)))),
    ],
)
def test_an_address_is_read(url: str, expected: RedisAddress) -> None:
    assert replace(RedisAddress.parse(url), text="") == expected


@pytest.mark.parametrize("user", ["", "me"])
@pytest.mark.parametrize(
    ("scheme", "tail"),
    [("redis", "h:1/2"), ("redis+sentinel", "a:1,b:2/main"), ("redis+cluster", "a:1,b:2")],
)
def test_users_and_passwords_are_read(scheme: str, tail: str, user: str) -> None:
    url = f"{scheme}://{user}:{CODED}@{tail}"
    address = RedisAddress.parse(url)
    assert address.login == (user or None, PASSWORD)
    assert address.text == f"{scheme}://{tail}" and PASSWORD not in repr(address)
    assert passwords(url) == [PASSWORD]


def test_sentinels_may_want_a_password_of_their_own() -> None:
    url = f"redis+sentinel://:other@a/main?sentinel_user=watch&sentinel_password={CODED}"
    address = RedisAddress.parse(url)
    assert address.sentinel_login == ("watch", PASSWORD)
    assert passwords(url) == ["other", PASSWORD]


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "http://h",
        "redis://:s3cret@h:port",
        "redis://:s3cret@h/name",
        "redis://:s3cret@h/0?db=1",
        "redis://:s3cret#@h/0",
        "redis://user@h",
        "redis://:s3cret@a..b",
        "redis://:s3cret@a,b",
        "unix:///run/redis.sock",
        "redis+sentinel://:s3cret@a:1,b:2",
        "redis+sentinel://a:1,,b:2/main",
        "redis+sentinel://a/main?sentinel_user=x",
        "redis+cluster://:s3cret@a:1,b:2/1",
        "redis+other://a",
    ],
)
def test_a_wrong_address_is_reported_without_its_password(url: str) -> None:
    with pytest.raises(SettingsError, match="^SESSION_STORE_URL is no Redis address: ") as caught:
        RedisAddress.parse(url)
    assert "s3cret" not in str(caught.value)


def test_the_password_of_several_hosts_is_known_and_not_described() -> None:
    url = "redis+sentinel://me:p%40ss@a,b:1,[::1]:2/main?sentinel_password=other"
    assert passwords(url) == ["p@ss", "other"]
    assert describe(url) == "redis+sentinel://a,b:1,[::1]:2/main"
