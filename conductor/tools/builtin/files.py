"""What the file tools share: their threads, their failures in words, and the names that always ask."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import unicodedata
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from typing import Any, TypeAlias, TypeVar

from conductor.tools.base import ErrorType, ToolOutcome, failed
from conductor.tools.builtin.roots import PathError, Place, RootGone, Roots, printable

THREADS = 4
"""A disk that hangs holds so many threads and no more; other file calls then wait for theirs."""

T = TypeVar("T")


class FileError(Exception):
    """A file tool cannot do what it was asked; the message is for the model and holds no foreign path."""

    def __init__(self, error_type: ErrorType, message: str) -> None:
        super().__init__(message)
        self.error_type: ErrorType = error_type


class Stop(threading.Event):
    """Set when nobody waits for the work any longer."""

    def check(self) -> None:
        """Raise `FileError` if the work is to end here."""
        if self.is_set():
            raise FileError("cancelled", "The call was cancelled.")


Work: TypeAlias = Callable[[Stop], ToolOutcome]


class Files:
    """The roots, and the threads that touch the disk for the file tools."""

    def __init__(self, roots: Roots) -> None:
        self.roots = roots
        # Its own threads: work on a disk that hangs cannot be ended, and must not use up the loop's.
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="files")

    async def run(self, work: Work) -> ToolOutcome:
        """Run work in a thread; `FileError` becomes its outcome. A cancelled call stops at its next check."""
        stop = Stop()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, _guarded, work, stop)
        except asyncio.CancelledError:
            stop.set()
            raise

    def places(self, path: str) -> tuple[Place, ...]:
        """Find where a path may lie. Raises `FileError`."""
        try:
            return self.roots.places(path)
        except PathError as error:
            kind: ErrorType = "permission_denied" if error.outside else "validation_failed"
            raise FileError(kind, f"The path {_quoted(path)} cannot be used. {error}") from None

    def first(self, path: str, attempt: Callable[[Place], T]) -> T:
        """Give what ``attempt`` makes of the first place that is there. Raises `FileError`."""
        failure: FileError | None = None
        for place in self.places(path):
            try:
                return attempt(place)
            except FileNotFoundError:
                continue
            except NotADirectoryError as error:
                failure = failure or described(error, self.roots.shown(place))
            except RootGone as error:
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


def _guarded(work: Work, stop: Stop) -> ToolOutcome:
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
    ".password-store": "passwords",
    ".git": "repository credentials and hooks",
}
_SECRET_FILES: Mapping[str, tuple[str, ...]] = {
    "environment secrets": (".env*", "*.env", "env.local"),
    "a private key": (
        *("*.pem", "*.key", "*.p12", "*.pfx", "*.p8", "*.ppk", "*.jks", "*.keystore", "*.kdbx", "*.gpg"),
        *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*_rsa", "*_ed25519", "wallet.dat"),
    ),
    "credentials": (
        *(".netrc", "_netrc", ".npmrc", ".yarnrc*", ".pypirc", ".pgpass", ".my.cnf", ".htpasswd", ".boto"),
        *(".git-credentials", ".s3cfg", ".dockercfg", ".vault-token", "kubeconfig*", "shadow", "*.tfvars"),
        *("*credential*", "secret", "secrets", "secret.*", "secrets.*", "*.secret", "*.secrets", "token"),
        *("token.*", "*.token", "password*.*", "passwd", "*service-account*", "*service_account*"),
        *("*.tfstate*", "cookies.sqlite*", "logins.json", "auth.json"),
    ),
    "typed commands": (".*_history", ".bash_history"),
    "who may log in": ("authorized_keys*",),
}


def secret_kind(parts: tuple[str, ...]) -> str | None:
    """Say what a path may hold by its names, or None.

    Case and invisible characters make no difference: there are file systems to which they make none.
    """
    folded = [_folded(part) for part in parts]
    for part in folded:
        if part in _SECRET_FOLDERS:
            return _SECRET_FOLDERS[part]
    for kind, globs in _SECRET_FILES.items():
        if folded and any(fnmatchcase(folded[-1], glob) for glob in globs):
            return kind
    return None


def _folded(part: str) -> str:
    text = unicodedata.normalize("NFKC", part).casefold()
    return "".join(char for char in text if unicodedata.category(char) != "Cf")
