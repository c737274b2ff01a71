"""The folders that file tools may touch, and how a path in them is opened without following links.

A path that is checked and then opened by name can be swapped in between. So nothing here is opened by a whole
path: a folder is opened name by name, each within the folder opened before it and never through a link; a
file is opened by its bare name within its folder, and checked afterwards.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import stat
import threading
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from conductor.plugins.tools.threads import in_thread
from conductor.tools import ToolError
from conductor.tools.outcomes import ErrorType, ToolOutcome, failed

# Bytes of a path (PATH_MAX of Linux), and its parts.
MAX_PATH_BYTES = 4096
MAX_PARTS = 64
# Threads of file calls: a hanging disk blocks these only. Walks through many folders have threads of their
# own: a read does not wait for a walk.
THREADS = 4
WALKS = 2

SUPPORTED = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
"""Whether this system can open names within an open folder; Windows cannot, and has no file tools."""

_FOLDER = (
    os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW | getattr(os, "O_PATH", os.O_RDONLY) if SUPPORTED else 0
)
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY if SUPPORTED else 0
# Attempts to open a file that is replaced at the same time.
_ATTEMPTS = 16

T = TypeVar("T")


class DirectoryMissing(OSError):
    """A root cannot be opened now; the text is its label."""


class AllowedDirectory(NamedTuple):
    """A root folder. ``label`` is its name for people; ``spellings`` are its absolute paths in parts."""

    label: str
    parts: tuple[str, ...]
    spellings: tuple[tuple[str, ...], ...]


class SandboxPath(NamedTuple):
    """A path beneath an `AllowedDirectory`; without parts it is the directory itself."""

    root: AllowedDirectory
    parts: tuple[str, ...]

    @property
    def name(self) -> str:
        """The last part. Raises `OSError` (EISDIR) for a root."""
        if not self.parts:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        return self.parts[-1]

    @property
    def parent(self) -> SandboxPath:
        """The folder that contains it."""
        return SandboxPath(self.root, self.parts[:-1])


class Roots:
    """The `AllowedDirectory`s of the file tools.

    Links in the configured paths themselves are resolved once, here: the operator chose them.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        roots: dict[tuple[str, ...], AllowedDirectory] = {}
        for folder in folders:
            resolved = folder.resolve()
            # People and models write the configured path; the path without links is opened.
            spellings = {resolved.parts[1:]: None, Path(os.path.abspath(folder)).parts[1:]: None}
            label = name = printable(resolved.name) or "root"
            for number in range(2, len(folders) + 2):
                if label in [root.label for root in roots.values()]:
                    label = f"{name}~{number}"
            roots.setdefault(resolved.parts, AllowedDirectory(label, resolved.parts[1:], tuple(spellings)))
        self.all = tuple(roots.values())

    def locations(self, path: str) -> tuple[SandboxPath, ...]:
        """List the locations a path may mean, likeliest first; the first one that exists is used.

        A path is relative to a root, or absolute within one. It may begin with the root's label; with several
        roots, the paths in results always do. Raises `ToolError`.
        """
        parts = split(path)
        if path.startswith("/"):
            absolute = {
                SandboxPath(root, parts[len(prefix) :]): None
                for root in self.all
                for prefix in root.spellings
                if parts[: len(prefix)] == prefix
            }
            if not absolute:
                reason = f"It is outside the allowed folders: {self.labels}."
                raise ToolError(f"The path {quoted(path)} cannot be used. {reason}", "permission_denied")
            return tuple(absolute)
        relative = tuple(SandboxPath(root, parts) for root in self.all)
        labelled = tuple(SandboxPath(root, parts[1:]) for root in self.all if parts[:1] == (root.label,))
        return (*labelled, *relative) if len(self.all) > 1 else (*relative, *labelled)

    @property
    def labels(self) -> str:
        """The roots' labels, for people."""
        return ", ".join(root.label for root in self.all)

    def path_of(self, location: SandboxPath) -> str:
        """Return the path of a location; with several roots it begins with the root's label."""
        parts = (location.root.label, *location.parts) if len(self.all) > 1 else location.parts
        return printable("/".join(parts)) or "."


@contextmanager
def open_folder(location: SandboxPath) -> Iterator[int]:
    """Open a folder for the block, name by name.

    Raises `OSError`: ELOOP for a link, `DirectoryMissing` if its root was replaced by a link or removed.
    """
    folder = os.open("/", _FOLDER)
    try:
        for index, part in enumerate((*location.root.parts, *location.parts)):
            try:
                child = _open_child(folder, part)
            except OSError:
                if index < len(location.root.parts):
                    raise DirectoryMissing(location.root.label) from None
                raise
            os.close(folder)
            folder = child
        yield folder
    finally:
        os.close(folder)


def _open_child(folder: int, name: str) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    # O_NOFOLLOW with O_DIRECTORY reports a link as ENOTDIR; the caller must know the difference.
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise


@contextmanager
def open_file(location: SandboxPath) -> Iterator[int]:
    """Open a file for reading in the block: a regular file that has no other name.

    Raises `OSError`: ELOOP for a link, EISDIR for a folder, EMLINK for a second name (a hard link may lead
    to a file outside), ENXIO for devices, pipes and sockets, EAGAIN when it keeps being replaced. The kind
    is checked before opening, since opening a device can have an effect, and again on the open file.
    """
    with open_folder(location.parent) as folder:
        file = _open_regular(folder, location.name)
    try:
        yield file
    finally:
        os.close(file)


def _open_regular(folder: int, name: str) -> int:
    for _ in range(_ATTEMPTS):
        check_regular(os.stat(name, dir_fd=folder, follow_symlinks=False))
        file = os.open(name, _FILE, dir_fd=folder)
        try:
            status = os.fstat(file)
            if status.st_nlink:
                check_regular(status)
                # A second name that was dropped after opening does not show in the open file's count.
                current = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if os.path.samestat(status, current) and _has_name(folder, file, name):
                    check_regular(current)
                    return os.dup(file)
        finally:
            os.close(file)
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _has_name(folder: int, file: int, name: str) -> bool:
    # A file that had one name before, and has the name by which it was opened now, had no other. The counts
    # of Linux change before a name goes: reading the folder waits for the end of the removal, and then the
    # name of the open file is the current one.
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        with os.scandir(descriptor) as entries:
            next(entries, None)
        return os.path.basename(os.readlink(f"/proc/self/fd/{file}")) == name
    except FileNotFoundError:  # no Linux
        return True
    finally:
        os.close(descriptor)


def check_regular(status: os.stat_result) -> None:
    """Raise the `OSError` of `open_file` unless it is a regular file with one name."""
    error = 0
    if stat.S_ISLNK(status.st_mode):
        error = errno.ELOOP
    elif stat.S_ISDIR(status.st_mode):
        error = errno.EISDIR
    elif not stat.S_ISREG(status.st_mode):
        error = errno.ENXIO
    elif status.st_nlink > 1:
        error = errno.EMLINK
    if error:
        raise OSError(error, os.strerror(error))


def split(path: str) -> tuple[str, ...]:
    """Split a path into its parts; ``.`` and doubled slashes are dropped.

    Raises `ToolError` for an empty path, ``..``, control characters, and more than `MAX_PATH_BYTES` or
    `MAX_PARTS`.
    """
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    problem = ""
    if not path:
        problem = "It is empty."
    elif len(path) > MAX_PATH_BYTES or len(path.encode(errors="replace")) > MAX_PATH_BYTES:
        problem = f"It is longer than {MAX_PATH_BYTES:,} bytes."
    elif any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in path):
        problem = "It contains control characters."
    elif ".." in parts:
        problem = "'..' is not allowed; use a path relative to the root."
    elif len(parts) > MAX_PARTS:
        problem = f"It has more than {MAX_PARTS} parts."
    if problem:
        raise ToolError(f"The path {quoted(path)} cannot be used. {problem}", "validation_failed")
    return parts


def printable(name: str) -> str:
    r"""Escape the characters of a name that do not print: ``\x1b``, ``\u202e``, ``\xff``."""
    if name.isascii() and name.isprintable():
        return name
    return "".join(char if char.isprintable() or char == " " else _escape(char) for char in name)


def _escape(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # a byte that is not UTF-8, as `os.fsdecode` gives it
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape", "surrogatepass").decode()


def quoted(path: str) -> str:
    """Quote a path for a message, at most 200 characters of it."""
    text = printable(path[:201])
    return f"'{text[:200]}…'" if len(text) > 200 else f"'{text}'"


class CancelFlag(threading.Event):
    """Set when a call is cancelled: its thread cannot be cancelled, and checks the flag between its steps."""

    def check(self) -> None:
        """Raise `ToolError` if the call was cancelled."""
        if self.is_set():
            raise ToolError("The call was cancelled.", "cancelled")


FileWork: TypeAlias = Callable[[CancelFlag], ToolOutcome]


class Files:
    """The roots of the file tools, and the threads that access the disk."""

    def __init__(self, roots: Roots) -> None:
        self.roots = roots
        # Separate from the loop's executor, which a hanging disk would use up.
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="files")
        self._walks = ThreadPoolExecutor(WALKS, thread_name_prefix="walks")

    async def run(self, work: FileWork, *, walk: bool = False) -> ToolOutcome:
        """Run work in a thread; a `ToolError` is an outcome. A cancelled call stops at its next check."""
        stop = CancelFlag()
        pool = self._walks if walk else self._pool
        try:
            return await in_thread(pool, lambda: _guarded(work, stop))
        except asyncio.CancelledError:
            stop.set()
            raise

    def first(self, path: str, attempt: Callable[[SandboxPath], T]) -> T:
        """Return what ``attempt`` returns for the first existing location of a path. Raises `ToolError`."""
        failure: ToolError | None = None
        for location in self.roots.locations(path):
            try:
                return attempt(location)
            except FileNotFoundError:
                continue
            except (NotADirectoryError, DirectoryMissing) as error:
                failure = failure or described(error, self.roots.path_of(location))
            except OSError as error:
                raise described(error, self.roots.path_of(location)) from None
        raise failure or ToolError(f"There is no {quoted(path)} in {self.roots.labels}.", "not_found")

    def sensitive(self, arguments: Mapping[str, Any]) -> str | None:
        """Return why a call with these arguments needs consent even if the tool is allowed, or None.

        Only the names in ``path`` and in its root count: no link is followed, so they name the file itself.
        """
        path = arguments.get("path")
        try:
            locations = self.roots.locations(path) if isinstance(path, str) else ()
        except ToolError:
            return None  # the call will be refused
        for location in locations:
            if may_hold_secrets((*location.root.parts, *location.parts)):
                return f"{self.roots.path_of(location)} may hold secrets"
        return None


def _guarded(work: FileWork, stop: CancelFlag) -> ToolOutcome:
    try:
        stop.check()
        return work(stop)
    except ToolError as error:
        return failed(error.error_type, str(error))


_WORDS: Mapping[int, tuple[ErrorType, str]] = {
    errno.ENOENT: ("not_found", "does not exist"),
    errno.ENOTDIR: ("not_found", "is not a folder, or is not in a folder"),
    errno.EISDIR: ("validation_failed", "is a folder, not a file"),
    errno.EEXIST: ("validation_failed", "exists already; it was not changed"),
    errno.ENAMETOOLONG: ("validation_failed", "has a name that is too long"),
    errno.ELOOP: ("permission_denied", "is a link or is behind a link; links are not followed"),
    errno.EMLINK: ("permission_denied", "has a second name (a hard link) and may belong to another folder"),
    errno.ENXIO: ("permission_denied", "is a device, a pipe or a socket"),
    errno.EAGAIN: ("io_error", "keeps changing"),
}


def described(error: OSError, path: str) -> ToolError:
    """Describe an error of the system by ``path``, not by the path in its own text."""
    if isinstance(error, DirectoryMissing):
        return ToolError(f"The folder {str(error)!r} is not available now.", "io_error")
    reason = f"cannot be used: {os.strerror(error.errno or errno.EIO).lower()}"
    kind, words = _WORDS.get(error.errno or 0, ("io_error", reason))
    return ToolError(f"{quoted(path)} {words}.", kind)


_SECRET_FOLDERS = (
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    "gcloud",
    ".kube",
    ".docker",
    ".password store",
    ".git",
)
_SECRET_FILES = (
    *("env", "envrc", "dotenv", "key", "keys", "pem", "p12", "pfx", "p8", "ppk", "jks", "keystore", "keytab"),
    *("keychain", "kdbx", "gpg", "rsa", "dsa", "ecdsa", "ed25519", "apikey", "wallet dat", "credential"),
    *("credentials", "secret", "secrets", "token", "tokens", "password", "passwords", "passwd", "htpasswd"),
    *("pgpass", "shadow", "netrc", "npmrc", "yarnrc", "pypirc", "boto", "s3cfg", "rclone", "dockercfg"),
    *("gitconfig", "kubeconfig", "kube config", "docker config", "aws config", "tfvars", "tfstate", "my cnf"),
    *("wp config", "auth json", "logins json", "hosts yml", "cookies sqlite", "service account"),
    *("google services", "gradle properties", "database yml"),
)
"""Words in the names of such folders and files."""
_ORDINARY_IN_CODE = frozenset(("env", "key", "keys", "token", "tokens", "password", "passwords"))
_CODE = frozenset(
    ("py pyi js jsx mjs cjs ts tsx go rs java kt swift c h cc cpp hpp cs rb css scss html vue svelte").split()
)


def may_hold_secrets(parts: tuple[str, ...]) -> bool:
    """Return whether a path may hold secrets, by its names.

    Names are compared by their words, so that copies and backups count: ``.netrc.bak``, ``key.txt``,
    ``id_rsa (1)``. Case and invisible characters are ignored, as some file systems ignore them.
    """
    if any(f" {name} " in words for words in map(_words, parts) for name in _SECRET_FOLDERS):
        return True
    file = parts[-1] if parts else ""
    is_code = file.rpartition(".")[2].casefold() in _CODE
    words = _words(file)
    if words.startswith(" .") and " history " in words:  # typed commands
        return True
    words = words.replace(".", "")
    return any(f" {name} " in words and not (is_code and name in _ORDINARY_IN_CODE) for name in _SECRET_FILES)


def _words(name: str) -> str:
    # A leading dot stays: it marks a hidden file.
    text = "".join(char for char in name if unicodedata.category(char) != "Cf")
    text = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", unicodedata.normalize("NFKC", text)).casefold()
    words = re.findall(r"(?:^\.)?[^\W_]+", text)
    return f" {' '.join(words)}  {' '.join(word.rstrip('0123456789') for word in words)} "
