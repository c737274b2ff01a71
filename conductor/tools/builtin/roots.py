"""The folders that file tools may touch, and how a path beneath them is opened without following any link.

A path that was looked at and then opened by name can be swapped in between, so nothing here is opened by a
whole path: a folder is opened beneath its root in one step that refuses links (``openat2``), or name by name,
each within the folder opened before it; a file is opened by its bare name within that folder, and checked
afterwards. Whatever is refused is an `OSError`, so that it reads as what the system refuses.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

MAX_PATH_BYTES = 4096
MAX_PARTS = 64

SUPPORTED = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
"""Whether this system can open names within an open folder; Windows cannot, and has no file tools."""

OpenFolder: TypeAlias = Callable[[int, Sequence[str]], int]
"""Opens the folder that lies so many names beneath an open one, following no link. Raises `OSError`."""

_FOLDER = (
    os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW | getattr(os, "O_PATH", os.O_RDONLY) if SUPPORTED else 0
)
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY if SUPPORTED else 0
_TRIES = 16


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_OPENAT2 = 437  # the same on every architecture that Python runs on
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08


def open_folder_openat2(start: int, parts: Sequence[str]) -> int:
    """Open a folder in one step; the kernel refuses links and whatever leaves ``start``."""
    # Without O_NOFOLLOW: it would have a link at the end reported as no folder.
    how = _OpenHow(_FOLDER & ~os.O_NOFOLLOW, 0, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS)
    name = os.fsencode("/".join(parts) or ".")
    for _ in range(_TRIES):
        found: int = _libc().syscall(
            ctypes.c_long(_OPENAT2),
            ctypes.c_int(start),
            ctypes.c_char_p(name),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if found >= 0:
            return found
        error = ctypes.get_errno()
        if error not in (errno.EAGAIN, errno.EINTR):  # something was renamed meanwhile; a signal
            break
    raise OSError(error, os.strerror(error))


def open_folder_walk(start: int, parts: Sequence[str]) -> int:
    """Open a folder name by name, for systems without ``openat2``."""
    at = os.open(".", _FOLDER, dir_fd=start)
    for part in parts:
        try:
            below = os.open(part, _FOLDER, dir_fd=at)
        except NotADirectoryError:
            if stat.S_ISLNK(os.stat(part, dir_fd=at, follow_symlinks=False).st_mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
            raise
        finally:
            os.close(at)
        at = below
    return at


@lru_cache(maxsize=1)
def folder_opener() -> OpenFolder:
    """Choose ``openat2`` where the kernel has it and lets it be called, else the walk."""
    if sys.platform != "linux":
        return open_folder_walk
    here = os.open("/", _FOLDER)
    try:
        os.close(open_folder_openat2(here, ()))
    except OSError:
        return open_folder_walk
    else:
        return open_folder_openat2
    finally:
        os.close(here)


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def open_regular(folder: int, name: str) -> int:
    """Open a file in an open folder for reading: a regular file that has no other name.

    Raises `OSError`: ELOOP for a link, EISDIR for a folder, EMLINK for a second name (a hard link may lead
    to a file outside), ENXIO for devices, pipes and sockets, EAGAIN when it keeps being replaced. The kind
    is looked at first, since opening a device can do something; what counts is what the open file is.
    """
    for _ in range(_TRIES):
        _check(os.stat(name, dir_fd=folder, follow_symlinks=False))
        file = os.open(name, _FILE, dir_fd=folder)
        try:
            found = os.fstat(file)
            if found.st_nlink:
                _check(found)
                # A second name that was dropped after opening does not show in the open file's count.
                now = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if os.path.samestat(found, now):
                    _check(now)
                    kept, file = file, -1
                    return kept
        finally:
            if file >= 0:
                os.close(file)
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _check(found: os.stat_result) -> None:
    error = 0
    if stat.S_ISLNK(found.st_mode):
        error = errno.ELOOP
    elif stat.S_ISDIR(found.st_mode):
        error = errno.EISDIR
    elif not stat.S_ISREG(found.st_mode):
        error = errno.ENXIO
    elif found.st_nlink > 1:
        error = errno.EMLINK
    if error:
        raise OSError(error, os.strerror(error))


class PathError(ValueError):
    """A path's text cannot be one beneath a root; ``outside`` if it is well formed but elsewhere."""

    def __init__(self, message: str, *, outside: bool = False) -> None:
        super().__init__(message)
        self.outside = outside


class RootGone(Exception):
    """A root cannot be opened now."""


@dataclass(frozen=True, slots=True)
class Root:
    """A folder with the name it is shown by; ``spellings`` are its absolute paths, in parts."""

    label: str
    parts: tuple[str, ...]
    spellings: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Somewhere beneath a root; no parts is the root itself."""

    root: Root
    parts: tuple[str, ...]


class Roots:
    """The folders that file tools may touch.

    Links in the configured paths themselves are followed once, here; they are the operator's.
    """

    def __init__(self, folders: Sequence[Path], opener: OpenFolder | None = None) -> None:
        self._opener = opener or folder_opener()
        labels: list[str] = []
        roots: list[Root] = []
        for folder in folders:
            resolved = folder.resolve()
            spellings = {resolved.parts[1:]: None, Path(os.path.abspath(folder)).parts[1:]: None}
            if any(root.parts == resolved.parts[1:] for root in roots):
                continue
            labels.append(_unused(printable(resolved.name) or "root", labels))
            roots.append(Root(labels[-1], resolved.parts[1:], tuple(spellings)))
        self.all = tuple(roots)

    def places(self, path: str) -> tuple[Place, ...]:
        """Find where a path may lie, likeliest first; the first place that is there is meant.

        A path is relative to a root, or absolute within one. Its first part may be the root's label, as it
        always is where several roots' files are shown. Raises `PathError`.
        """
        parts = split(path)
        if path.startswith("/"):
            found = {
                Place(root, parts[len(own) :]): None
                for root in self.all
                for own in root.spellings
                if parts[: len(own)] == own
            }
            if not found:
                raise PathError(f"It is outside the folders that may be used: {self.labels}.", outside=True)
            return tuple(found)
        plain = tuple(Place(root, parts) for root in self.all)
        named = tuple(Place(root, parts[1:]) for root in self.all if parts[:1] == (root.label,))
        return (*named, *plain) if len(self.all) > 1 else (*plain, *named)

    @property
    def labels(self) -> str:
        """The roots' names, for people."""
        return ", ".join(root.label for root in self.all)

    def shown(self, place: Place) -> str:
        """Write a place as the tools take it: with the root's label first if there are several roots."""
        parts = (place.root.label, *place.parts) if len(self.all) > 1 else place.parts
        return printable("/".join(parts)) or "."

    @contextmanager
    def folder(self, place: Place) -> Iterator[int]:
        """Open a folder, for names to be opened in it. Raises `OSError` and `RootGone`."""
        with self.root(place.root) as root:
            folder = self._opener(root, place.parts)
        try:
            yield folder
        finally:
            os.close(folder)

    @contextmanager
    def root(self, root: Root) -> Iterator[int]:
        """Open a root anew, so that one which was replaced is found and one which is gone is noticed."""
        top = os.open("/", _FOLDER)
        try:
            opened = self._opener(top, root.parts)
        except OSError:
            raise RootGone(root.label) from None
        finally:
            os.close(top)
        try:
            yield opened
        finally:
            os.close(opened)

    def below(self, folder: int, name: str) -> int:
        """Open a folder in an open one by its bare name. Raises `OSError`."""
        return self._opener(folder, (name,))


def split(path: str) -> tuple[str, ...]:
    """Take a path apart; ``.`` and doubled slashes are dropped. Raises `PathError`.

    Refused: no text, more than `MAX_PATH_BYTES` or `MAX_PARTS`, control characters, ``..``.
    """
    if not path:
        raise PathError("It is empty.")
    if len(path) > MAX_PATH_BYTES or len(path.encode(errors="replace")) > MAX_PATH_BYTES:
        raise PathError(f"It is longer than {MAX_PATH_BYTES:,} bytes.")
    if any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in path):
        raise PathError("It holds control characters.")
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise PathError("'..' is not taken: write the path from the top.")
    if len(parts) > MAX_PARTS:
        raise PathError(f"It has more than {MAX_PARTS} parts.")
    return parts


def printable(name: str) -> str:
    r"""Write a name so that it stays on its line and shows what it is: ``\x1b``, ``\u202e``, ``\xff``."""
    if name.isascii() and name.isprintable():
        return name
    return "".join(char if char.isprintable() or char == " " else _escape(char) for char in name)


def _escape(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # a byte that is not UTF-8, as `os.fsdecode` gives it
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape", "surrogatepass").decode()


def _unused(label: str, labels: Sequence[str]) -> str:
    wanted, number = label, 2
    while wanted in labels:
        wanted, number = f"{label}~{number}", number + 1
    return wanted
