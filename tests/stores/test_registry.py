"""The store that the settings choose, its name, and the operator's access to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from conductor.errors import SettingsError
from conductor.plugins.stores.postgres import PostgresStore
from conductor.plugins.stores.redis import RedisStore
from conductor.settings import Settings, load_settings
from conductor.stores.memory import MemoryStore
from conductor.stores.registry import STORES, check_kept, describe_store, make_store, store_secrets
from conductor.stores.sqlite import SqliteStore

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
        (f"postgres://me:{PASSWORD}@h/talks", PostgresStore, "postgres://h/talks"),
    ],
)
def test_a_store_is_made_and_is_named_without_its_password(url: str, kind: type, name: str) -> None:
    assert type(make_store(settings(url))) is kind
    assert describe_store(settings(url)) == name
    assert store_secrets(settings(url)) == [PASSWORD] * (PASSWORD in url)


def test_every_kind_of_address_that_the_settings_take_has_a_store() -> None:
    schemes = ["memory", "postgres", "postgresql", "redis", "rediss+sentinel", "valkey+cluster", "unix"]
    kinds = {settings(f"{scheme}://").store_kind for scheme in schemes} | {settings("sqlite:///x").store_kind}
    assert kinds == set(STORES)


def test_data_dir_chooses_a_store() -> None:
    store = make_store(settings(None, data_dir="kept"))
    assert isinstance(store, SqliteStore) and store.path == Path("kept/conductor.db")


def test_a_wrong_address_is_one_sentence_without_its_password() -> None:
    for act in (make_store, describe_store):
        with pytest.raises(SettingsError, match="^SESSION_STORE_URL is no Redis address: ") as caught:
            act(settings(f"redis://:{PASSWORD}@h:port"))
        assert PASSWORD not in str(caught.value)


def test_an_operator_may_read_a_durable_store() -> None:
    for url in ("sqlite:///a.db", "redis://h", "valkey://h"):
        check_kept(settings(url))
    with pytest.raises(SettingsError, match=r"in memory.*DATA_DIR"):
        check_kept(settings(None))
