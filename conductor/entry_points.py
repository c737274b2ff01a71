"""Plugins: the parts of the server that packages offer by entry points, our own included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from traceback import extract_tb
from types import MappingProxyType
from typing import Any

from conductor.errors import SettingsError, StoreUnavailable

MODELS = "conductor.models"
STORES = "conductor.stores"
TOOLSETS = "conductor.toolsets"
JUDGES = "conductor.judges"
AUTH = "conductor.auth"
ENDPOINTS = "conductor.endpoints"

NOUNS: Mapping[str, str] = {
    MODELS: "model provider",
    STORES: "session store",
    TOOLSETS: "toolset",
    JUDGES: "approval judge",
    AUTH: "authenticator",
    ENDPOINTS: "endpoint",
}
"""Group of entry points -> what it offers. docs/plugins.md documents all but ``conductor.endpoints``."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A part that a package offers; ``package`` is the name and the version of its distribution."""

    group: str
    name: str
    package: str
    entry: EntryPoint

    @property
    def label(self) -> str:
        """The plugin for people: ``the session store "folder" of acme-store 1.2``."""
        return f'the {NOUNS[self.group]} "{self.name}" of {self.package}'

    def load(self) -> Any:
        """Import the factory. Raises `SettingsError`, also for any error of the import."""
        try:
            return self.entry.load()
        except SettingsError:
            raise
        except Exception as error:  # an import may raise anything
            raise self._mistake(f"cannot be imported: {type(error).__name__}: {error}") from error

    def make(self, interface: type, *arguments: Any) -> Any:
        """Call the factory. Raises `SettingsError`, also for a part that lacks members of ``interface``."""
        factory = self.load()
        with self.guard("cannot be made"):
            part = factory(*arguments)
        members = {*vars(interface), *interface.__annotations__}
        missing = sorted(name for name in members if name[0] != "_" and not hasattr(part, name))
        if missing:
            raise self._mistake(f"is a {type(part).__name__} without {', '.join(missing)}")
        return part

    @contextmanager
    def guard(self, failure: str) -> Iterator[None]:
        """Raise `SettingsError` for an unexpected error of the plugin; ``failure`` is its predicate."""
        try:
            yield
        except (SettingsError, StoreUnavailable):
            raise
        except Exception as error:
            frames = extract_tb(error.__traceback__)
            position = f"{type(error).__name__} in {Path(frames[-1].filename).name}, line {frames[-1].lineno}"
            # Two frames, this one and its caller: the call failed. A plugin's own text may contain a key.
            reason = str(error) if len(frames) == 2 else position
            raise self._mistake(f"{failure}: {reason}") from error

    def _mistake(self, reason: str) -> SettingsError:
        return SettingsError(f"{self.label[:1].upper()}{self.label[1:]} {reason}.")


@cache
def plugins(group: str) -> Mapping[str, Plugin]:
    """List the plugins of a group by name. Raises `SettingsError` if two packages offer one name."""
    by_name: dict[str, Plugin] = {}
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value
        plugin = Plugin(group, entry.name, package, entry)
        rival = by_name.setdefault(entry.name, plugin)
        if rival is not plugin:
            packages = f"{rival.package} and {package}"
            raise SettingsError(
                f'{packages} both offer the {NOUNS[group]} "{entry.name}"; uninstall one of them.'
            )
    return MappingProxyType(by_name)


def choose(group: str, name: str, setting: str, hidden: Sequence[str] = ()) -> Plugin:
    """Return a plugin by its name; ``setting`` is where the user chose it.

    Raises `SettingsError`, for an unknown or a ``hidden`` name with the other ones.
    """
    names = [plugin for plugin in plugins(group) if plugin not in hidden]
    if name not in names:
        raise SettingsError(f"{setting} {name!r} is unknown; there are: {', '.join(names)}.")
    return plugins(group)[name]
