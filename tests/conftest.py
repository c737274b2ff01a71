"""Shared fixtures: settings of generated tests, and the command line in the tests' own process."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import pytest
import structlog
from hypothesis import settings

from conductor.cli import main
from conductor.entry_points import plugins
from conductor.settings import Settings

# What collection makes, a million objects, stays to the end: each collection of garbage is spared it.
gc.disable()

# Without a deadline, as machines may be busy, and half the usual examples.
settings.register_profile("conductor", deadline=None, print_blob=True, max_examples=50)
settings.load_profile("conductor")

# A shell without job control starts background commands with SIGINT ignored, and their children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent
IOS_CATALOG = ROOT / "conductor" / "catalogs" / "ios.json"

pytest_plugins = ["tests.leftovers", "tests.serving"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that ``scripts/test --extended`` runs, and ``scripts/test`` does not."""
    for item in items:
        if item.path.is_relative_to(ROOT / "tests" / "system"):
            item.add_marker("extended")


def pytest_collection_finish() -> None:
    """Begin to collect garbage, of what the tests make."""
    gc.freeze()
    gc.enable()


def environment(**values: str) -> dict[str, str]:
    """Leave the developer's own settings out, and add some."""
    names = {name.upper() for name in Settings.model_fields}
    inherited = {name: value for name, value in os.environ.items() if name.upper() not in names}
    return {**inherited, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", **values}


Main: TypeAlias = Callable[..., tuple[int, str, str]]


@pytest.fixture
def conductor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Main]:
    """Run a command that ends by itself in this process, which saves a second; gives the same as `run`."""

    def run_here(*arguments: str, **values: str) -> tuple[int, str, str]:
        for name in os.environ.keys() - environment():
            monkeypatch.delenv(name)
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        try:
            code = main(arguments)
        except SystemExit as end:
            assert isinstance(end.code, int)
            code = end.code
        return code, *capfd.readouterr()

    monkeypatch.chdir(tmp_path)
    logging = structlog.get_config()
    yield run_here
    structlog.configure(**logging)


InstallPackage: TypeAlias = Callable[..., None]


@pytest.fixture
def install_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InstallPackage]:
    """Install a package for one test: its name, entry points by group, and modules by name."""

    def install(name: str, groups: Mapping[str, Mapping[str, str]], **modules: str) -> None:
        site = tmp_path / f"site-{name}"
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        sections = [
            "\n".join([f"[{group}]", *(f"{entry} = {value}" for entry, value in entries.items())])
            for group, entries in groups.items()
        ]
        (info / "entry_points.txt").write_text("\n".join(sections))
        for module, text in modules.items():
            (site / f"{module}.py").write_text(text)
            monkeypatch.delitem(sys.modules, module, raising=False)
        monkeypatch.syspath_prepend(site)
        plugins.cache_clear()

    yield install
    monkeypatch.undo()
    plugins.cache_clear()
