"""The store that the settings choose, its name, and the operator's access to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from conductor.entry_points import STORES, plugins
from conductor.errors import SettingsError
from conductor.plugins.stores.postgres import PostgresStore
from conductor.plugins.stores.redis import RedisStore
from conductor.plugins.stores.sqlite import SqliteStore
from conductor.settings import Settings, load_settings
from conductor.stores.base import passwords
from conductor.stores.memory import MemoryStore
from conductor.stores.registry import check_kept, describe_store, make_store

PASSWORD = "hunter2-hunter2"


def settings(url: str | None, **values: object) -> Settings:
    return load_settings(None, session_store_url=url, **values)


@pytest.mark.parametrize(
    ("url", "kind", "name"),
    [
        ("memory://", MemoryStore, "in memory: they end with the server"),
        ("sqlite:///data/a b.db", SqliteStore, "data/a b.db"),
        ("sqlite:////srv/a.db", SqliteStore, "/srv/a.db"),
        ("redis://h", RedisStore, "redis://h"),
        (f"rediss://me:{PASSWORD}@h:1/2", RedisStore, "rediss://h:1/2"),
        (f"valkey://:{PASSWORD}@[::1]/", RedisStore, "valkey://[::1]/"),
        (
            f"redis+sentinel://me:{PASSWORD}@a,b:1/main?sentinel_password={PASSWORD}",
            RedisStore,
            "redis+sentinel://a,b:1/main",
        ),
        (f"redis+cluster://me:{PASSWORD}@a,b:1", RedisStore, "redis+cluster://a,b:1"),
        (f"postgres://me:{PASSWORD}@h/talks", PostgresStore, "postgres://h/talks"),
        (
            f"postgresql://me:{PASSWORD}@h:1,i:2/talks?sslmode=require&password={PASSWORD}",
            PostgresStore,
            "postgresql://h:1,i:2/talks",
        ),
    ],
)
def test_a_store_is_made_and_is_named_without_its_password(url: str, kind: type, name: str) -> None:
    assert type(make_store(settings(url))) is kind
    assert describe_store(settings(url)) == name
    assert passwords(url) == [PASSWORD] * url.count(PASSWORD)


def test_each_entry_point_is_a_scheme_that_the_settings_take() -> None:
    for scheme in (*plugins(STORES), "rediss+sentinel", "valkey+cluster"):
        assert settings(f"{scheme}://h").store_kind == scheme.partition("+")[0]
    with pytest.raises(SettingsError, match="^SESSION_STORE_URL is not valid: use memory://"):
        settings("mongodb://h")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite://sessions.db"])
def test_an_address_of_sqlite_names_a_file(url: str) -> None:
    with pytest.raises(SettingsError, match="needs sqlite:///FILE"):
        make_store(settings(url))


def test_data_dir_chooses_a_store() -> None:
    store = make_store(settings(None, data_dir="kept"))
    assert isinstance(store, SqliteStore) and store.path == Path("kept/conductor.db")


def test_a_wrong_address_is_one_sentence_without_its_password() -> None:
    with pytest.raises(SettingsError, match="^SESSION_STORE_URL is no Redis address: ") as caught:
        make_store(settings(f"redis://:{PASSWORD}@h:port"))
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("url", [f"redis://me:{PASSWORD}/x@h", f"redis://me:{PASSWORD}@[::1"])
def test_a_wrong_address_is_named_without_its_password(url: str) -> None:
    assert describe_store(settings(url)) == "redis://"


def test_an_operator_may_read_a_durable_store() -> None:
    for url in ("sqlite:///a.db", "redis://h", "valkey://h"):
        check_kept(settings(url))
    with pytest.raises(SettingsError, match=r"in memory.*DATA_DIR"):
        check_kept(settings(None))
