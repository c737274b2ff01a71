"""The architecture's rules, checked against the code's own imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "conductor"

BELOW: dict[str, frozenset[str]] = {}
"""Part of the package -> the parts that it may import, itself not counted."""

_LEAVES = (
    "errors",
    "messages",
    "clock",
    "entry_points",
    "config_file",
    "env_file",
    "settings",
    "prompts",
    "formulas",
    "speech",
    "segments",
    "logs",
    "rate_limit",
)
BELOW["errors"] = BELOW["messages"] = BELOW["clock"] = BELOW["formulas"] = frozenset()
BELOW["entry_points"] = BELOW["config_file"] = frozenset({"errors"})
BELOW["env_file"] = frozenset({"errors", "config_file"})
for _leaf in ("settings", "prompts", "speech", "segments", "logs", "rate_limit"):
    BELOW[_leaf] = frozenset({"errors", "config_file", "env_file", "entry_points", "settings"} - {_leaf})
BELOW["speech"] |= {"formulas"}
for _sibling in ("events", "models", "stores"):
    BELOW[_sibling] = frozenset(_LEAVES)
_below = {*_LEAVES, "events", "models", "stores"}
for _part in ("tools", "conversation", "observers", "server", "app"):
    BELOW[_part] = frozenset(_below)
    _below.add(_part)
BELOW["plugin"] = BELOW["testing"] = frozenset(_below - {"app"})
BELOW["plugins"] = frozenset(_below - {"app"})
_below.add("plugins")
BELOW["commands"] = frozenset(_below)  # what the command line runs besides the server
BELOW["client"] = frozenset({"events", "errors"})
BELOW["talk"] = frozenset({"client", "events", "errors", "settings", "commands", "rehearse"})
BELOW["rehearse"] = frozenset({*_below, "commands", "client"})  # plays both sides
BELOW["cli"] = frozenset({*_below, "commands", "client", "talk", "rehearse"})
BELOW["__main__"] = frozenset({"cli"})
BELOW["__init__"] = frozenset({"app", "settings"})  # on demand

HEAVY = ("aiohttp", "anthropic", "mcp", "openai", "boto3", "redis", "opentelemetry")
LAZY = {
    "plugins.api.service",
    "plugins.models.anthropic_client",
    "plugins.models.http",
    "plugins.http_client",
    "plugins.http_server",
    "plugins.mcp.endpoint",
    "plugins.mcp.endpoint_http",
    "plugins.mcp.http",
    "plugins.stores.redis",
    "plugins.mcp.oauth",
    "plugins.tools.web_client",
}
"""Modules that import a heavy SDK at their top. Only each other may import them at the top."""

PRINTS = {"cli"}
"""The command line speaks to people."""


@dataclass(frozen=True)
class Import:
    """One imported name. ``late`` means inside a function, ``typing_only`` under ``TYPE_CHECKING``."""

    target: str
    line: int
    late: bool
    typing_only: bool


def imports_of(tree: ast.Module, module: str, package: str, *, is_package: bool) -> list[Import]:
    """Find all imports, those inside functions and under TYPE_CHECKING too, as absolute dotted names."""
    imports: list[Import] = []

    def visit(node: ast.AST, late: bool, typing_only: bool) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                imports.append(Import(alias.name, node.lineno, late, typing_only))
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = [package, *module.split(".")] if module != "__init__" else [package]
                keep = len(parts) - node.level + (1 if is_package else 0)
                base = ".".join([*parts[:keep], *([base] if base else [])])
            for alias in node.names:
                imports.append(Import(f"{base}.{alias.name}", node.lineno, late, typing_only))
        elif isinstance(node, ast.Call) and _name(node.func) in ("import_module", "__import__"):
            if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
                imports.append(Import(node.args[0].value, node.lineno, late, typing_only))
        late = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        guarded = isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING"
        for field, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    visit(child, late, typing_only or (guarded and field == "body"))

    visit(tree, False, False)
    return imports


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


@dataclass(frozen=True)
class Module:
    """One file. ``name`` is dotted and leaves the package out; ``part`` is its first word."""

    name: str
    tree: ast.Module
    imports: tuple[Import, ...]

    @property
    def part(self) -> str:
        return self.name.partition(".")[0]


def modules_of(root: Path) -> list[Module]:
    """Read a package."""
    modules = []
    for path in sorted(root.rglob("*.py")):
        parts = list(path.relative_to(root).with_suffix("").parts)
        is_package = parts[-1] == "__init__" and len(parts) > 1
        name = ".".join(parts[:-1] if is_package else parts)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imports = imports_of(tree, name, root.name, is_package=is_package or name == "__init__")
        modules.append(Module(name, tree, tuple(imports)))
    return modules


@cache
def code() -> list[Module]:
    return modules_of(ROOT)


def wrong_order(modules: list[Module], package: str) -> Iterator[str]:
    """Name each import that does not go down, and each part that has no place in the order."""
    for module in modules:
        if module.part not in BELOW:
            yield f"{module.name} has no place in the order"
            continue
        for item in module.imports:
            first, _, rest = item.target.partition(".")
            part = rest.partition(".")[0]
            if first != package or part in ("", module.part, "__version__"):
                continue
            if part not in BELOW[module.part]:
                yield f"{module.name}:{item.line} imports {item.target}"


def early_heavy_imports(modules: list[Module], package: str) -> Iterator[str]:
    """Name each heavy SDK, and each module that imports one, that is imported as soon as its importer is."""
    for module in modules:
        for item in module.imports:
            if item.late or item.typing_only or module.name in LAZY:
                continue
            heavy = item.target.partition(".")[0] in HEAVY
            if heavy or any(_within(item.target, f"{package}.{lazy}") for lazy in LAZY):
                yield f"{module.name}:{item.line} imports {item.target}"


def _within(target: str, module: str) -> bool:
    return target == module or target.startswith(f"{module}.")


def prints(modules: list[Module], _: str) -> Iterator[str]:
    """Name each use of ``print`` that is not the command line's."""
    for module in modules:
        if module.name in PRINTS:
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Name) and node.id == "print":
                yield f"{module.name}:{node.lineno} prints"


def environment_uses(modules: list[Module], _: str) -> Iterator[str]:
    """Name each look at the environment that is not the settings'."""
    names = {"environ", "environb", "getenv", "getenvb", "putenv"}
    for module in modules:
        if module.name == "settings":
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and node.attr in names and _name(node.value) == "os":
                yield f"{module.name}:{node.lineno} looks at os.{node.attr}"
            if isinstance(node, ast.ImportFrom) and node.module == "os":
                for alias in node.names:
                    if alias.name in names:
                        yield f"{module.name}:{node.lineno} imports os.{alias.name}"


def bad_openings(modules: list[Module], _: str) -> Iterator[str]:
    """Name each public module that does not open with one sentence on one line."""
    for module in modules:
        if module.name.rpartition(".")[2].startswith("_") and module.name not in ("__init__", "__main__"):
            continue
        opening = (ast.get_docstring(module.tree) or "").partition("\n\n")[0]
        # Names and abbreviations may hold a full stop; a second sentence begins with a capital.
        if not re.fullmatch(r".*[.!?]", opening) or re.search(r"[.!?] [A-Z]", opening):
            yield f"{module.name} opens with {opening[:60]!r}"


Rule = Callable[[list[Module], str], Iterator[str]]
RULES: list[Rule] = [wrong_order, early_heavy_imports, prints, environment_uses, bad_openings]


# -- the code keeps the rules


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_code_keeps_the_rule(rule: Rule) -> None:
    assert list(rule(code(), "conductor")) == []


def test_all_of_the_code_is_looked_at() -> None:
    found = {module.part for module in code()}
    assert found == set(BELOW), "a part that is gone, or a new one without a place"


@pytest.mark.parametrize("name", sorted(LAZY))
def test_a_lazy_module_that_is_no_longer_heavy_is_taken_off_the_list(name: str) -> None:
    found = next(m for m in code() if m.name == name)
    targets = [item.target for item in found.imports]
    assert any(
        target.partition(".")[0] in HEAVY
        or any(_within(target, f"conductor.{lazy}") for lazy in LAZY - {name})
        for target in targets
    )


def test_a_server_is_put_together_without_any_heavy_sdk() -> None:
    program = (
        "import sys, conductor.cli, conductor.app, conductor.client\n"
        "from conductor.commands import check, mcp, policy, sessions\n"
        f"print(sorted(set(sys.modules) & {set(HEAVY)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "[]", done.stderr


PURE_MODULES = 25
"""Fewer of our modules than these decide what comes next; none of them does anything."""


def test_deciding_the_next_step_loads_no_module_that_does_anything() -> None:
    program = "import sys, conductor.conversation.steps\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    loaded = set(done.stdout.split())
    assert not loaded & {"asyncio", "structlog", "pydantic_settings", "prometheus_client"}, done.stderr
    ours = sorted(name for name in loaded if name.startswith("conductor."))
    assert "conductor.conversation.steps" in ours
    assert len(ours) < PURE_MODULES, ours
