"""What no tool says about the code; import-linter's contracts and ruff's rules are in pyproject.toml."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import get_type_hints

import pytest

from conductor.conversation import view

ROOT = Path(__file__).resolve().parents[2] / "conductor"

HEAVY = ("aiohttp", "anthropic", "mcp", "openai", "boto3", "redis", "opentelemetry")


def test_a_server_is_put_together_without_any_heavy_sdk() -> None:
    program = (
        "import sys, conductor.cli, conductor.app, conductor.client\n"
        "from conductor.commands import check, mcp, policy, sessions\n"
        "from conductor.entry_points import AUTH, ENDPOINTS, JUDGES, TOOLSETS, plugins\n"
        "groups = (AUTH, ENDPOINTS, JUDGES, TOOLSETS)\n"
        "loaded = [plugin.load() for group in groups for plugin in plugins(group).values()]\n"
        f"print(sorted(set(sys.modules) & {set(HEAVY)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_module_opens_with_one_sentence_on_one_line() -> None:
    openings = {
        path: (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n\n")[0]
        for path in ROOT.rglob("*.py")
    }
    # Names and abbreviations may hold a full stop; a second sentence begins with a capital.
    odd = [
        str(path.relative_to(ROOT))
        for path, opening in openings.items()
        if not re.fullmatch(r".*[.!?]", opening) or re.search(r"[.!?] [A-Z]", opening)
    ]
    assert odd == []


PURE_MODULES = 28
"""Fewer of our modules than these decide what comes next; none of them does anything."""


def test_deciding_the_next_step_loads_no_module_that_does_anything() -> None:
    program = "import sys, conductor.conversation.steps\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    loaded = set(done.stdout.split())
    assert not loaded & {"asyncio", "structlog", "pydantic_settings", "prometheus_client"}, done.stderr
    ours = sorted(name for name in loaded if name.startswith("conductor."))
    assert "conductor.conversation.steps" in ours
    assert len(ours) < PURE_MODULES, ours


CHAINS = {"conversation": 7, "session": 9}
"""Folder -> modules in its longest chain of imports. Imports of types alone are no part of a chain."""


def longest_chain(folder: str) -> list[str]:
    """Find the longest chain of imports within a folder, from the top."""

    @cache
    def chain(name: str) -> list[str]:
        tree = ast.parse((ROOT / folder / f"{name}.py").read_text(encoding="utf-8"))
        return [name, *max(map(chain, sorted(set(_neighbours(tree, folder)))), key=len, default=[])]

    modules = [path.stem for path in (ROOT / folder).glob("*.py") if path.stem != "__init__"]
    return max(map(chain, modules), key=len)


def _neighbours(tree: ast.AST, folder: str) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module == f"conductor.{folder}":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"conductor.{folder}."):
            yield (node.module or "").split(".")[2]
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from _neighbours(node, folder)


@pytest.mark.parametrize("folder", sorted(CHAINS))
def test_a_reader_of_a_room_climbs_few_floors(folder: str) -> None:
    chain = longest_chain(folder)
    assert 4 <= len(chain) <= CHAINS[folder], " -> ".join(chain)


MUTATING = {"add", "append", "clear", "discard", "pop", "remove", "setdefault", "update"}


def live_fields() -> list[str]:
    """Name the facts of a process that are not stored, as ``part.field``."""
    parts = get_type_hints(view.Live)
    return [f"{part}.{field.name}" for part, owner in parts.items() for field in fields(owner)]


def writes(path: Path) -> Iterator[str]:
    """Find what a module assigns to, deletes, or changes by a method of a collection, as written there."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Attribute(attr=method, value=target)) if method in MUTATING:
                yield ast.unparse(target)
            case ast.Attribute(ctx=ast.Store() | ast.Del()):
                yield ast.unparse(node)
            case ast.Subscript(value=target, ctx=ast.Store() | ast.Del()):
                yield ast.unparse(target)


def modules(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


@cache
def writers() -> dict[str, set[str]]:
    """Find the modules that write each of those facts: each does so as ``….live.part.field``."""
    found: dict[str, set[str]] = {}
    for path in modules("."):
        for target in writes(path):
            if live := re.search(r"\blive\.(\w+\.\w+)$", target):
                found.setdefault(live[1], set()).add(path.stem)
    return found


@pytest.mark.parametrize("name", live_fields())
def test_a_fact_of_a_process_has_one_writer(name: str) -> None:
    part, _, _ = name.partition(".")
    if name == "model.history":
        assert name not in writers(), "it is made with the facts, and learns"
    else:
        assert len(writers()[name]) == 1, writers()[name]
    assert len(set().union(*(found for key, found in writers().items() if key.startswith(f"{part}.")))) == 1


def test_no_module_keeps_a_part_of_the_facts_under_another_name() -> None:
    kept = [
        f"{path.stem}: {ast.unparse(value)}"
        for path in (ROOT / "session").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assign)
        for value in (node.value.elts if isinstance(node.value, ast.Tuple) else [node.value])
        if isinstance(value, ast.Attribute) and ast.unparse(value.value).rpartition(".")[2] == "live"
    ]
    assert kept == [], "a write through it would be found nowhere"


def test_apply_alone_writes_the_state() -> None:
    written = {
        f"{path.stem}: {target}"
        for path in modules("conversation", "session", "server", "observers", "plugins")
        for target in writes(path)
        if re.search(r"(^|\.)state\.\w", target) and path.stem != "apply"
    }
    assert written == set()
    assert any(target.startswith("state.") for target in writes(ROOT / "conversation/apply.py"))


def test_no_callable_is_replaced_after_its_owner_was_made() -> None:
    replaced = [
        f"{path.stem}: {ast.unparse(assignment)}"
        for path in modules("conversation", "session")
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name != "__init__"
        for assignment in ast.walk(function)
        if isinstance(assignment, ast.Assign) and isinstance(assignment.targets[0], ast.Attribute)
        if isinstance(assignment.value, ast.Lambda) or ast.unparse(assignment.value).startswith("partial(")
    ]
    assert replaced == []


POSITIONS = 4
"""Most values that a call or a class takes by position."""


def test_no_call_in_a_room_has_more_than_a_few_positional_arguments() -> None:
    calls = [
        f"{path.stem}:{node.lineno}: {ast.unparse(node.func)}"
        for path in modules("conversation", "session")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and len(node.args) > POSITIONS
    ]
    assert calls == []


@pytest.mark.parametrize("part", ["conversation", "session", "events", "tools", "messages"])
def test_a_value_of_many_fields_is_made_by_keyword(part: str) -> None:
    # Structs and dataclasses name the fields that they take by position in `__match_args__`.
    files = [*modules(part), *ROOT.glob(f"{part}.py")]
    paths = [path.relative_to(ROOT.parent) for path in files if path.stem != "__init__"]
    names = [".".join(path.with_suffix("").parts) for path in paths]
    classes = [value for name in names for value in vars(importlib.import_module(name)).values()]
    by_position = {
        value.__qualname__
        for value in classes
        if isinstance(value, type) and len(getattr(value, "__match_args__", ())) > POSITIONS
        if value.__module__ in names
    }
    assert names and by_position == set()


POSSESSIVE_GROUP = re.compile(r"(?<!\\)\)(?:[*+?]|\{\{?[\d,{}\w]*\}\}?)\+")


def test_groups_are_repeated_possessively_by_the_module_for_that() -> None:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re."):
                if POSSESSIVE_GROUP.search(ast.get_source_segment(source, node) or ""):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == [], "Python before 3.11.5 matches it wrongly; see conductor/possessive.py"


CORE = ("conversation", "session", "events", "tools", "messages.py")
SHARED_NAMES = 7
"""At most so many names of types have one meaning in the core and another one elsewhere."""


def names_with_two_meanings() -> dict[str, list[str]]:
    """Find the names of types that are defined in several modules, one of them in the core."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.ClassDef(name=name):
                    homes[name].append(str(path.relative_to(ROOT)))
                case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")):
                    homes[name].append(str(path.relative_to(ROOT)))
    return {
        name: paths
        for name, paths in homes.items()
        if len(set(paths)) > 1 and any(path.startswith(CORE) for path in paths)
    }


def test_a_name_of_a_type_means_one_thing_in_the_core() -> None:
    found = names_with_two_meanings()
    assert "Turn" in found, "a turn of the client is a type, too"
    assert len(found) <= SHARED_NAMES, found
