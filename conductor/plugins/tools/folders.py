"""The folders that the file tools, the notes and the knowledge base may use."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from conductor.env_file import ENV_FILE
from conductor.errors import SettingsError
from conductor.plugins.tools.knowledge_index import KnowledgeIndex
from conductor.settings import Settings, environment_values
from conductor.version import PACKAGE

# The knowledge base's index in DATA_DIR.
KNOWLEDGE_FILE = "knowledge.db"
# The settings of folders that are for the tools.
_FOR_TOOLS = ("file_roots", "notes_dir", "knowledge_dir")


def file_roots(settings: Settings) -> list[Path]:
    """Return the directories that file tools may use.

    Raises `SettingsError` for a path that is not a directory, and for one that contains the server's own
    files: a file tool could read tokens or write rules.
    """
    return [_tools_folder("FILE_ROOTS", Path(name), settings) for name in settings.file_roots]


def knowledge_index(settings: Settings) -> KnowledgeIndex | None:
    """Make the index of the knowledge base. Raises `SettingsError`."""
    if settings.knowledge_dir is None:
        return None
    folder = _tools_folder("KNOWLEDGE_DIR", settings.knowledge_dir, settings)
    if settings.data_dir is None:
        raise SettingsError("KNOWLEDGE_DIR needs DATA_DIR, the folder of its index.")
    return KnowledgeIndex(folder, Path(os.path.expanduser(settings.data_dir)) / KNOWLEDGE_FILE)


def notes_dir(settings: Settings) -> Path | None:
    """Return the notes' folder. Raises `SettingsError`, as for `file_roots`."""
    return None if settings.notes_dir is None else _tools_folder("NOTES_DIR", settings.notes_dir, settings)


def _tools_folder(setting: str, name: Path, settings: Settings) -> Path:
    folder = Path(os.path.expanduser(name))
    if not os.path.isdir(folder):
        raise SettingsError(f"{setting}: {folder} is not a folder.")
    if Path(os.path.realpath(folder)).parts[1:2] in (("proc",), ("sys",)):
        raise SettingsError(f"{setting}: {folder} contains the state of the system, not files.")
    for content, path in _own_files(settings):
        if _contains(folder, path):
            raise SettingsError(f"{setting}: {folder} contains {content} ({path}); use another folder.")
    return folder


def _own_files(settings: Settings) -> Iterator[tuple[str, Path]]:
    yield "its settings", ENV_FILE
    if settings.store_kind == "sqlite":
        yield "the sessions", settings.store_path
    # A file tool could write code that runs at the next start.
    yield "the server's code", PACKAGE
    yield "installed packages", Path(sysconfig.get_path("purelib"))
    for name, path in settings.paths:
        if name not in _FOR_TOOLS:
            yield (name if "." in name else name.upper()), path
    # A plugin has its own variables, such as JWT_KEYS.
    for name, value in environment_values().items():
        if name.lower() not in _FOR_TOOLS and os.path.isfile(os.path.expanduser(value)):
            yield name, Path(value)


def _contains(root: Path, path: Path) -> bool:
    # Compares inodes of the parents, so that case, spelling and links make no difference. A link's location
    # and its target count. A directory that is mounted twice is not recognized.
    path = Path(os.path.expanduser(path))
    for spelling in {os.path.abspath(path), os.path.realpath(path)}:
        for folder in (Path(spelling), *Path(spelling).parents):
            with suppress(OSError):  # it does not exist yet, or may not be read
                if os.path.samefile(folder, root):
                    return True
    return False
