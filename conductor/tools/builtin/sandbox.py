"""The folders that file tools may touch, and how a path in them is opened without following links.

A path that is checked and then opened by name can be swapped in between. So nothing here is opened by a whole
path: a folder is opened beneath its root in one step that refuses links (``openat2``), or name by name, each
within the folder opened before it; a file is opened by its bare name within that folder, and checked
afterwards. Every refusal is an `OSError`, like those of the system.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import re
import stat
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from conductor.tools.base import ErrorType, ToolOutcome, failed

# Bytes of a path (PATH_MAX of Linux), and its parts.
MAX_PATH_BYTES = 4096
MAX_PARTS = 64

SUPPORTED = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
"""Whether this system can open names within an open folder; Windows cannot, and has no file tools."""

OpenFolder: TypeAlias = Callable[[int, Sequence[str]], int]
"""Opens the folder with these names beneath an open one, without following links. Raises `OSError`."""

_FOLDER = (
    os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW | getattr(os, "O_PATH", os.O_RDONLY) if SUPPORTED else 0
)
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY if SUPPORTED else 0
# Times that an open is repeated after a rename or a signal interrupted it.
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
        if error not in (errno.EAGAIN, errno.EINTR):  # a rename during the call; a signal
            break
    raise OSError(error, os.strerror(error))


def open_folder_walk(start: int, parts: Sequence[str]) -> int:
    """Open a folder name by name, for systems without ``openat2``."""
    at = os.open(".", _FOLDER, dir_fd=start)
    for part in parts:
        try:
            below = os.open(part, _FOLDER, dir_fd=at)
        # O_NOFOLLOW with O_DIRECTORY reports a link as no folder; the caller must know the difference.
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
    # ctypes assumes an int, which would cut a long.
    libc.syscall.restype = ctypes.c_long
    return libc


def open_regular(folder: int, name: str) -> int:
    """Open a file in an open folder for reading: a regular file that has no other name.

    Raises `OSError`: ELOOP for a link, EISDIR for a folder, EMLINK for a second name (a hard link may lead
    to a file outside), ENXIO for devices, pipes and sockets, EAGAIN when it keeps being replaced. The kind
    is looked at first, since opening a device can do something; what counts is what the open file is.
    """
    for _ in range(_TRIES):
        check_regular(os.stat(name, dir_fd=folder, follow_symlinks=False))
        file = os.open(name, _FILE, dir_fd=folder)
        try:
            found = os.fstat(file)
            if found.st_nlink:
                check_regular(found)
                # A second name that was dropped after opening does not show in the open file's count.
                now = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if os.path.samestat(found, now):
                    check_regular(now)
                    kept, file = file, -1
                    return kept
        finally:
            if file >= 0:
                os.close(file)
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def check_regular(found: os.stat_result) -> None:
    """Raise the `OSError` that `open_regular` raises for what is no regular file with one name."""
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


class DirectoryMissing(Exception):
    """An allowed directory cannot be opened now."""


@dataclass(frozen=True, slots=True)
class AllowedDirectory:
    """A folder for file tools, with the name shown; ``spellings`` are its absolute paths in parts."""

    label: str
    parts: tuple[str, ...]
    spellings: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class SandboxPath:
    """A path beneath an `AllowedDirectory`; without parts it is the directory itself."""

    root: AllowedDirectory
    parts: tuple[str, ...]


class Roots:
    """The `AllowedDirectory`s of the file tools.

    Links in the configured paths themselves are resolved once, here: the operator chose them.
    """

    def __init__(self, folders: Sequence[Path], opener: OpenFolder | None = None) -> None:
        self._opener = opener or folder_opener()
        labels: list[str] = []
        roots: list[AllowedDirectory] = []
        for folder in folders:
            resolved = folder.resolve()
            # People and models write the path as configured; links in it are resolved for opening.
            spellings = {resolved.parts[1:]: None, Path(os.path.abspath(folder)).parts[1:]: None}
            if any(root.parts == resolved.parts[1:] for root in roots):
                continue
            labels.append(_unused(printable(resolved.name) or "root", labels))
            roots.append(AllowedDirectory(labels[-1], resolved.parts[1:], tuple(spellings)))
        self.all = tuple(roots)

    def places(self, path: str) -> tuple[SandboxPath, ...]:
        """List the places a path may mean, likeliest first; the first that exists is taken.

        A path is relative to a root, or absolute within one. Its first part may be the root's label; with
        several roots it always is in what the tools return. Raises `PathError`.
        """
        parts = split(path)
        if path.startswith("/"):
            found = {
                SandboxPath(root, parts[len(own) :]): None
                for root in self.all
                for own in root.spellings
                if parts[: len(own)] == own
            }
            if not found:
                raise PathError(f"It is outside the folders that may be used: {self.labels}.", outside=True)
            return tuple(found)
        plain = tuple(SandboxPath(root, parts) for root in self.all)
        named = tuple(SandboxPath(root, parts[1:]) for root in self.all if parts[:1] == (root.label,))
        return (*named, *plain) if len(self.all) > 1 else (*plain, *named)

    @property
    def labels(self) -> str:
        """The roots' names, for people."""
        return ", ".join(root.label for root in self.all)

    def shown(self, place: SandboxPath) -> str:
        """Write a place as the tools take it: with the root's label first if there are several roots."""
        parts = (place.root.label, *place.parts) if len(self.all) > 1 else place.parts
        return printable("/".join(parts)) or "."

    @contextmanager
    def folder(self, place: SandboxPath) -> Iterator[int]:
        """Open a folder, for names to be opened in it. Raises `OSError` and `DirectoryMissing`."""
        with self.root(place.root) as root:
            folder = self._opener(root, place.parts)
        try:
            yield folder
        finally:
            os.close(folder)

    @contextmanager
    def root(self, root: AllowedDirectory) -> Iterator[int]:
        """Open a root again for each call: it may have been replaced or removed."""
        top = os.open("/", _FOLDER)
        try:
            opened = self._opener(top, root.parts)
        except OSError:
            raise DirectoryMissing(root.label) from None
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


# Threads of file calls: when a disk hangs it blocks these only, and other file calls wait.
THREADS = 4
# Threads of walks through many folders, so that a read does not wait for a walk.
WALKS = 2

T = TypeVar("T")


class FileError(Exception):
    """A file tool cannot do what it was asked; the message is for the model and holds no foreign path."""

    def __init__(self, error_type: ErrorType, message: str) -> None:
        super().__init__(message)
        self.error_type: ErrorType = error_type


class CancelFlag(threading.Event):
    """Set when the call was cancelled; its thread cannot be."""

    def check(self) -> None:
        """Raise `FileError` if the call was cancelled."""
        if self.is_set():
            raise FileError("cancelled", "The call was cancelled.")


FileWork: TypeAlias = Callable[[CancelFlag], ToolOutcome]


class Files:
    """The roots, and the threads that touch the disk for the file tools."""

    def __init__(self, roots: Roots) -> None:
        self.roots = roots
        # Own threads: work on a hanging disk cannot be cancelled, and must not use up the loop's executor.
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="files")
        self._walks = ThreadPoolExecutor(WALKS, thread_name_prefix="walks")

    async def run(self, work: FileWork, *, walk: bool = False) -> ToolOutcome:
        """Run work in a thread; `FileError` becomes its outcome. A cancelled call stops at its next check."""
        stop = CancelFlag()
        pool = self._walks if walk else self._pool
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, _guarded, work, stop)
        except asyncio.CancelledError:
            # The thread cannot be cancelled, so it looks at the flag between its steps.
            stop.set()
            raise

    def places(self, path: str) -> tuple[SandboxPath, ...]:
        """Find where a path may lie. Raises `FileError`."""
        try:
            return self.roots.places(path)
        except PathError as error:
            kind: ErrorType = "permission_denied" if error.outside else "validation_failed"
            raise FileError(kind, f"The path {_quoted(path)} cannot be used. {error}") from None

    def first(self, path: str, attempt: Callable[[SandboxPath], T]) -> T:
        """Give what ``attempt`` makes of the first place that is there. Raises `FileError`."""
        failure: FileError | None = None
        for place in self.places(path):
            try:
                return attempt(place)
            except FileNotFoundError:
                continue
            except NotADirectoryError as error:
                failure = failure or described(error, self.roots.shown(place))
            except DirectoryMissing as error:
                failure = failure or FileError("io_error", f"The folder {str(error)!r} is not available now.")
            except OSError as error:
                raise described(error, self.roots.shown(place)) from None
        if failure:
            raise failure
        raise FileError("not_found", f"There is no {_quoted(path)} in {self.roots.labels}.")

    def sensitive(self, arguments: Mapping[str, Any]) -> str | None:
        """Say why these arguments must ask whatever was allowed before; None if they need not.

        Looks at the text of ``path`` only, and at the names of the root it may lie in; what it names is
        never behind a link, since none is followed.
        """
        path = arguments.get("path")
        if not isinstance(path, str):
            return None
        try:
            places = self.roots.places(path)
        except PathError:
            return None  # nothing will be run
        for place in places:
            kind = secret_kind((*place.root.parts, *place.parts))
            if kind:
                return f"{self.roots.shown(place)} may hold {kind}"
        return None


def _guarded(work: FileWork, stop: CancelFlag) -> ToolOutcome:
    try:
        stop.check()
        return work(stop)
    except FileError as error:
        return failed(error.error_type, str(error))


_WORDS: Mapping[int, tuple[ErrorType, str]] = {
    errno.ENOENT: ("not_found", "is not there"),
    errno.ENOTDIR: ("not_found", "is not a folder, or lies in something that is none"),
    errno.EISDIR: ("validation_failed", "is a folder, not a file"),
    errno.EEXIST: ("validation_failed", "is there already; it was left as it is"),
    errno.ENAMETOOLONG: ("validation_failed", "has a name that is too long"),
    errno.ELOOP: ("permission_denied", "is a link or lies behind one; links are not followed"),
    errno.EXDEV: ("permission_denied", "leads out of its folder"),
    errno.EMLINK: ("permission_denied", "has a second name (a hard link), and may be a file from elsewhere"),
    errno.ENXIO: ("permission_denied", "is a device, a pipe or a socket, not a file"),
    errno.EACCES: ("io_error", "may not be used: the system refuses the server access"),
    errno.EPERM: ("io_error", "may not be used: the system refuses the server access"),
    errno.EAGAIN: ("io_error", "keeps changing"),
    errno.ENOSPC: ("io_error", "cannot be written: the disk is full"),
    errno.EDQUOT: ("io_error", "cannot be written: the disk quota is used up"),
    errno.EFBIG: ("io_error", "cannot be written: it is too large for the disk"),
    errno.EROFS: ("io_error", "cannot be written: the disk is read-only"),
    errno.EIO: ("io_error", "cannot be used: the disk reports an error"),
}


def described(error: OSError, shown: str) -> FileError:
    """Put what the system said in words; of its text only the plain reason is used, which has no path."""
    kind, words = _WORDS.get(error.errno or 0, ("io_error", ""))
    if not words:
        words = f"cannot be used: {os.strerror(error.errno or errno.EIO).lower()}"
    return FileError(kind, f"{_quoted(shown)} {words}.")


def _quoted(path: str) -> str:
    shown = printable(path[:201])
    return f"'{shown[:200]}…'" if len(shown) > 200 else f"'{shown}'"


_SECRET_FOLDERS: Mapping[str, str] = {
    ".ssh": "SSH keys",
    ".gnupg": "private keys",
    ".aws": "cloud credentials",
    ".azure": "cloud credentials",
    "gcloud": "cloud credentials",
    ".kube": "cluster credentials",
    ".docker": "registry credentials",
    ".password store": "passwords",
    ".git": "repository credentials and hooks",
}
_SECRET_FILES: Mapping[str, tuple[str, ...]] = {
    "environment secrets": ("env", "envrc", "dotenv"),
    "a private key": (
        *("key", "keys", "pem", "p12", "pfx", "p8", "ppk", "jks", "keystore", "keytab", "keychain", "kdbx"),
        *("gpg", "rsa", "dsa", "ecdsa", "ed25519", "apikey", "wallet dat"),
    ),
    "credentials": (
        *("credential", "credentials", "secret", "secrets", "token", "tokens", "password", "passwords"),
        *("passwd", "htpasswd", "pgpass", "shadow", "netrc", "npmrc", "yarnrc", "pypirc", "boto", "s3cfg"),
        *("rclone", "dockercfg", "gitconfig", "kubeconfig", "kube config", "docker config", "aws config"),
        *("tfvars", "tfstate", "my cnf", "wp config", "auth json", "logins json", "hosts yml"),
        *("cookies sqlite", "service account", "google services", "gradle properties", "database yml"),
    ),
}
"""Kind -> words that such a file has in its name, whatever stands before and after them."""
_ORDINARY_IN_CODE = frozenset(("env", "key", "keys", "token", "tokens", "password", "passwords"))
_CODE = frozenset(
    ("py pyi js jsx mjs cjs ts tsx go rs java kt swift c h cc cpp hpp cs rb css scss html vue svelte").split()
)


def secret_kind(parts: tuple[str, ...]) -> str | None:
    """Say what a path may hold by its names, or None.

    Names are taken as words, so that a copy or a backup counts as what it is of: ``.netrc.bak``, ``key.txt``,
    ``id_rsa (1)``. Case and invisible characters make no difference: there are file systems to which they
    make none.
    """
    for words in map(_words, parts):
        for name, kind in _SECRET_FOLDERS.items():
            if f" {name} " in words:
                return kind
    file = parts[-1] if parts else ""
    is_code = file.rpartition(".")[2].casefold() in _CODE
    words = _words(file)
    if words.startswith(" .") and " history " in words:
        return "typed commands"
    words = words.replace(".", "")
    for kind, names in _SECRET_FILES.items():
        for name in names:
            if f" {name} " in words and not (is_code and name in _ORDINARY_IN_CODE):
                return kind
    return None


def _words(name: str) -> str:
    # A dot at the beginning stays: it hides a file.
    text = "".join(char for char in name if unicodedata.category(char) != "Cf")
    text = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", unicodedata.normalize("NFKC", text)).casefold()
    words = re.findall(r"(?:^\.)?[^\W_]+", text)
    return f" {' '.join(words)}  {' '.join(word.rstrip('0123456789') for word in words)} "
