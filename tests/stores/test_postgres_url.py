"""Addresses of PostgreSQL: what people and logs see of one, and the passwords in it."""

from __future__ import annotations

from conductor.settings import load_settings
from conductor.stores.postgres import PostgresStore
from conductor.stores.registry import describe_store, make_store, store_secrets


def test_the_settings_name_it_without_its_password() -> None:
    for scheme in ("postgres", "postgresql"):
        given = load_settings(None, session_store_url=f"{scheme}://me:a%40b@h:1,i:2/talks?sslmode=require")
        assert isinstance(make_store(given), PostgresStore)
        assert describe_store(given) == f"{scheme}://h:1,i:2/talks"
        assert store_secrets(given) == ["a@b"]
    given = load_settings(None, session_store_url="postgres:///talks?host=h&password=c%40d")
    assert (store_secrets(given), describe_store(given)) == (["c@d"], "postgres:///talks")
