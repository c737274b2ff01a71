"""Redis addresses are read and shown without their passwords; a wrong one is said in one sentence."""

from __future__ import annotations

import pytest

from conductor.errors import SettingsError
from conductor.stores.addresses import RedisAddress

PASSWORD = "s3cret/p@ss:{word},x"
CODED = "s3cret%2Fp%40ss%3A%7Bword%7D%2Cx"


def server(host: str, port: int = 6379, database: int = 0, *, scheme: str = "redis") -> RedisAddress:
    return RedisAddress(scheme, "server", scheme == "rediss", ((host, port),), database)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h", server("h")),
        ("redis://h/", server("h")),
        ("valkey://h/4", server("h", database=4, scheme="valkey")),
        ("redis://127.0.0.1:7000/3", server("127.0.0.1", 7000, 3)),
        ("rediss://[::1]:7000", server("::1", 7000, scheme="rediss")),
        ("unix:///run/redis.sock", RedisAddress("unix", "server", path="/run/redis.sock")),
        ("unix:///run/a%20b?db=2", RedisAddress("unix", "server", path="/run/a b", database=2)),
        (
            "redis+sentinel://a,b:1,[::1]:2/main",
            RedisAddress(
                "redis+sentinel", "sentinel", hosts=(("a", 26379), ("b", 1), ("::1", 2)), service="main"
            ),
        ),
        (
            "rediss+sentinel://a/main/2",
            RedisAddress(
                "rediss+sentinel", "sentinel", True, hosts=(("a", 26379),), service="main", database=2
            ),
        ),
        (
            "valkey+cluster://a:1,b",
            RedisAddress("valkey+cluster", "cluster", hosts=(("a", 1), ("b", 6379))),
        ),
    ],
)
def test_an_address_is_read(url: str, expected: RedisAddress) -> None:
    assert RedisAddress.parse(url) == expected


@pytest.mark.parametrize("rest", ["h", "h:1/2", "/run/redis.sock", "a:1,b:2/main", "a:1,b:2"])
def test_users_and_passwords_are_read(rest: str) -> None:
    scheme = {"/run/redis.sock": "unix", "a:1,b:2/main": "redis+sentinel", "a:1,b:2": "redis+cluster"}
    for user in ("", "me"):
        where = RedisAddress.parse(f"{scheme.get(rest, 'redis')}://{user}:{CODED}@{rest}")
        assert (where.user, where.password, where.secrets) == (user, PASSWORD, [PASSWORD])


def test_sentinels_may_want_a_password_of_their_own() -> None:
    where = RedisAddress.parse(
        f"redis+sentinel://:other@a/main?sentinel_user=watch&sentinel_password={CODED}"
    )
    assert (where.sentinel_user, where.secrets) == ("watch", ["other", PASSWORD])


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis:///0",
        "http://h",
        "valkey:///0",
        "redis://:s3cret@h:port",
        "redis://:s3cret@h:99999",
        "redis://:s3cret@h/name",
        "redis://:s3cret@h/-1",
        "redis://:s3cret@h/0?db=1",
        "redis://:s3cret#@h/0",
        "redis://user@h",
        "redis://[::1/0",
        "redis://:s3cret@a..b",
        "redis://:s3cret@a,b",
        "unix://",
        "unix://host/run/redis.sock",
        "unix:///run/redis.sock?db=x",
        "unix:///run/redis.sock?user=x",
        "redis+sentinel://:s3cret@a:1,b:2",
        "redis+sentinel://a:1,,b:2/main",
        "redis+sentinel://a/main/x",
        "redis+sentinel://a/main?sentinel_user=x",
        "redis+sentinel://a/main?password=s3cret",
        "redis+cluster://:s3cret@a:1,b:2/1",
        "redis+cluster:///0",
        "redis+other://a",
    ],
)
def test_a_wrong_address_is_said_without_its_password(url: str) -> None:
    with pytest.raises(SettingsError, match="^SESSION_STORE_URL is no Redis address: ") as caught:
        RedisAddress.parse(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"rediss://me:{CODED}@[::1]:1/2", "rediss://[::1]:1/2"),
        (f"valkey://:{CODED}@h", "valkey://h:6379/0"),
        (f"unix://me:{CODED}@/run/redis.sock", "unix:///run/redis.sock"),
        (
            f"redis+sentinel://me:{CODED}@a,b:1/main?sentinel_password={CODED}",
            "redis+sentinel://a:26379,b:1/main/0",
        ),
        (f"redis+cluster://me:{CODED}@a,b:1", "redis+cluster://a:6379,b:1"),
    ],
)
def test_an_address_is_shown_without_its_password(url: str, shown: str) -> None:
    where = RedisAddress.parse(url)
    assert str(where) == shown
    assert PASSWORD not in repr(where) and "me" not in repr(where).replace("scheme", "").replace("name", "")
