"""Tests of the map between tools' names and services' names."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from conductor.plugins.models.tool_names import ToolNameMap

ACCEPTED = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
NAMES = st.one_of(
    st.text(st.characters(codec=None), max_size=80),
    st.text("ab._-/", max_size=6),
    st.text("a.", min_size=60, max_size=70),
)


def test_a_dot_becomes_an_underscore_and_comes_back() -> None:
    names = ToolNameMap(["agent.spawn", "agent.status"])
    assert names.to_service("agent.spawn") == "agent_spawn"
    assert names.to_tool("agent_spawn") == "agent.spawn"


def test_a_name_that_is_accepted_stays_even_if_another_would_take_it() -> None:
    names = ToolNameMap(["agent.spawn", "agent_spawn"])
    assert names.to_service("agent_spawn") == "agent_spawn"
    assert re.fullmatch("agent_spawn_[0-9a-f]{8}", names.to_service("agent.spawn"))


def test_an_overlong_name_is_cut_and_gets_a_hash() -> None:
    long = "server." + "x" * 80
    name = ToolNameMap([long]).to_service(long)
    assert len(name) == 64
    assert name.startswith("server_xxx")


def test_a_name_that_looks_like_our_hash_is_not_taken_from_its_owner() -> None:
    hashed = ToolNameMap(["a.b", "a/b"]).to_service("a.b")
    names = ToolNameMap(["a.b", "a/b", hashed])
    assert names.to_service(hashed) == hashed
    assert names.to_tool(hashed) == hashed
    assert names.to_tool(names.to_service("a.b")) == "a.b"


def test_a_name_that_the_model_made_up_comes_back_as_it_is() -> None:
    assert ToolNameMap(["agent.spawn"]).to_tool("agent_spawm") == "agent_spawm"


@given(st.lists(NAMES, max_size=12))
@example(["a\n", "a.b", "a/b", "a_b"])
def test_every_name_is_accepted_and_comes_back(names: list[str]) -> None:
    mapped = ToolNameMap(names)
    for name in names:
        assert ACCEPTED.match(mapped.to_service(name))
        assert mapped.to_tool(mapped.to_service(name)) == name
    assert len({mapped.to_service(name) for name in names}) == len(set(names))


@given(st.lists(NAMES, max_size=12))
@example([f"tool-{number}" for number in range(64)])
def test_the_order_of_the_names_does_not_matter(names: list[str]) -> None:
    shuffled = sorted(names, key=lambda name: name[::-1])
    assert [ToolNameMap(names).to_service(name) for name in names] == [
        ToolNameMap(shuffled).to_service(name) for name in names
    ]
    assert ToolNameMap(names).besides(()) == ToolNameMap(shuffled).besides(())
