"""The folders that the file tools, the notes and the knowledge base may use."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import conductor
from conductor.env_file import ENV_FILE
from conductor.errors import SettingsError
from conductor.models.profiles import models_path
from conductor.plugins.mcp.config import mcp_config_path
from conductor.plugins.tools.http_tools import http_tools_path
from conductor.plugins.tools.knowledge_index import KnowledgeIndex
from conductor.settings import Settings
from conductor.tools.policies import policies_path

# The knowledge base's index in DATA_DIR.
KNOWLEDGE_FILE = "knowledge.db"


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
    folder = Path(os.path.expanduser(settings.knowledge_dir))
    if not os.path.isdir(folder):
        raise SettingsError(f"KNOWLEDGE_DIR: {folder} is not a folder.")
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
        if path is not None and _contains(folder, path):
            raise SettingsError(f"{setting}: {folder} contains {content} ({path}); use another folder.")
    return folder


def _own_files(settings: Settings) -> Iterator[tuple[str, Path | None]]:
    yield "its settings", ENV_FILE
    yield "the operator's rules", policies_path(settings)
    yield "the sessions", settings.store_path if settings.store_kind == "sqlite" else settings.data_dir
    yield "the system prompt", settings.system_prompt_file
    yield "the models", models_path(settings)
    yield "the catalog of tools", settings.device_tools_file
    yield "the tools' code", settings.tools_path
    yield "the MCP servers", mcp_config_path(settings)
    yield "the HTTP tools", http_tools_path(settings)
    yield "the audit log", settings.audit_log
    # A file tool could write code that runs at the next start.
    yield "the server's code", Path(conductor.__file__).parent
    yield "installed packages", Path(sysconfig.get_path("purelib"))


def _contains(root: Path, path: Path) -> bool:
    # Compares inodes of the parents, so that case, spelling and links make no difference. A link's location
    # and its target count. A directory that is mounted twice is not recognized.
    for spelling in {os.path.abspath(path), os.path.realpath(path)}:
        for folder in (Path(spelling), *Path(spelling).parents):
            with suppress(OSError):  # it does not exist yet, or may not be read
                if os.path.samefile(folder, root):
                    return True
    return False
