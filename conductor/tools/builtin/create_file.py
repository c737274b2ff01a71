"""The tool ``create_file``: create a text file beneath the configured folders, whole or not at all."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from typing import Any

from conductor.tools.base import CallContext, ToolOutcome, succeeded
from conductor.tools.builtin.definitions import argument, definition
from conductor.tools.builtin.sandbox import (
    CancelFlag,
    DirectoryMissing,
    FileError,
    Files,
    SandboxPath,
    check_regular,
    open_folder,
    printable,
    secret_kind,
)

# Bytes of a new file; a model does not write more in one reply.
MAX_CONTENT_BYTES = 1_000_000
# Lines of the content, and characters of each, in a dry run.
_PREVIEW_LINES = 5
_PREVIEW_CHARS = 80
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_NOREPLACE = 1


class CreateFile:
    """``create_file``. A file that may hold secrets is readable by its owner only, any other by all users."""

    spec = definition(
        "create_file",
        "Create a new text file. It never replaces or changes a file that exists. The folder must exist, "
        "unless parents is true. Use it only when the user asked for a file.",
        {
            "path": argument("string", "For example: notes/ideas.md", minLength=1, maxLength=4096),
            "content": argument("string", "The whole text of the file.", maxLength=MAX_CONTENT_BYTES),
            "parents": argument("boolean", "Create missing folders too. Default false."),
        },
        required=["path", "content"],
        risk="high",
        effect="write",
    )

    def __init__(self, files: Files) -> None:
        self._files = files

    def sensitive(self, arguments: Mapping[str, Any]) -> str | None:
        """Say why this file needs consent even if creating was allowed (tools, "Built-ins")."""
        return self._files.sensitive(arguments)

    async def preview(self, arguments: Mapping[str, Any]) -> str:
        """Say what a call would do, without looking at the disk."""
        content = str(arguments["content"])
        lines = content.splitlines()
        folders = ", with the folders that are missing" if arguments.get("parents") else ""
        head = [printable(line[:_PREVIEW_CHARS]) for line in lines[:_PREVIEW_LINES]]
        more = [f"… and {len(lines) - _PREVIEW_LINES} more lines"] if len(lines) > _PREVIEW_LINES else []
        opening = (
            f"Would create {printable(str(arguments['path']))!r}{folders}: {amount(content)}. "
            "Would fail if it exists already."
        )
        return "\n".join([opening, *(f"+ {line}" for line in head), *more])

    async def run(self, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Answer with ``path``, ``size_bytes`` and ``created_folders``."""

        def work(stop: CancelFlag) -> ToolOutcome:
            return self.create(arguments, stop)

        return await self._files.run(work)

    def create(self, arguments: Mapping[str, Any], stop: CancelFlag) -> ToolOutcome:
        """Do what `run` does, in this thread. Raises `FileError`."""
        path, parents = arguments["path"], bool(arguments.get("parents"))
        data = encoded(arguments["content"])
        if path.endswith(("/", "/.")):
            raise FileError("validation_failed", "The path ends in a folder; it needs a file's name.")
        try:
            location, made = self._files.first(
                path, lambda location: self._write(location, data, parents, stop)
            )
        except FileError as error:
            if error.error_type != "not_found":
                raise
            message = f"The folder of {printable(path)!r} is not there. Nothing was created."
            hint = "" if parents else " Set parents to true to create it too."
            raise FileError("not_found", message + hint) from None
        shown = self._files.roots.path_of(location)
        return succeeded({"path": shown, "size_bytes": len(data), "created_folders": made})

    def _write(
        self, location: SandboxPath, data: bytes, parents: bool, stop: CancelFlag
    ) -> tuple[SandboxPath, int]:
        if not location.parts:
            raise FileError("validation_failed", "The path is a folder's; it needs a file's name.")
        mode = 0o600 if secret_kind(location.parts) else 0o644  # less what the umask takes
        with ExitStack() as closing, ExitStack() as undoing:
            folder, made = self._open(location, parents, closing, undoing)
            try:
                write_new(folder, location.parts[-1], data, mode, stop)
            except FileNotFoundError:  # removed after it was opened: do not try another root
                raise FileError(
                    "io_error", "The folder was removed during the call. Nothing was created."
                ) from None
            undoing.pop_all()
        return location, made

    def _open(
        self, location: SandboxPath, parents: bool, closing: ExitStack, undoing: ExitStack
    ) -> tuple[int, int]:
        folders = location.parts[:-1]
        try:
            if not parents:
                return closing.enter_context(self._files.roots.folder(SandboxPath(location.root, folders))), 0
            folder = closing.enter_context(self._files.roots.root(location.root))
        except DirectoryMissing as gone:  # the root that was meant is missing: do not take another
            raise FileError("io_error", f"The folder {str(gone)!r} is not available now.") from None
        made = 0
        for name in folders:
            try:
                below = open_folder(folder, (name,))
            except FileNotFoundError:
                os.mkdir(name, 0o755, dir_fd=folder)
                # Undone if the file cannot be written: a failed call leaves nothing behind.
                undoing.callback(_quietly, os.rmdir, name, folder)
                _sync(folder)
                made += 1
                below = open_folder(folder, (name,))
            closing.callback(os.close, below)
            folder = below
        return folder, made


def write_new(folder: int, name: str, data: bytes, mode: int, stop: CancelFlag) -> None:
    """Create a file. Its name appears when all of its content is on the disk, or never.

    Raises `OSError`, FileExistsError if the name is taken (by a link too), and `FileError` if the call was
    cancelled; then nothing stays behind.
    """
    with suppress(FileNotFoundError):
        os.stat(name, dir_fd=folder, follow_symlinks=False)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    with _temporary(folder, data, mode, stop) as temporary:
        _publish(folder, temporary, name)


def replace_file(folder: int, name: str, data: bytes, stop: CancelFlag) -> None:
    """Replace a file's content, all at once; its mode stays, and its owner where the system lets it.

    Raises `OSError`, FileNotFoundError if there is no such file, and `FileError` if the call was cancelled;
    then the file is as it was.
    """
    before = os.stat(name, dir_fd=folder, follow_symlinks=False)
    check_regular(before)
    if not before.st_mode & 0o222:  # a rename would not ask
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    with _temporary(folder, data, 0o600, stop, before) as temporary:
        if not os.path.samestat(before, os.stat(name, dir_fd=folder, follow_symlinks=False)):
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


@contextmanager
def _temporary(
    folder: int, data: bytes, mode: int, stop: CancelFlag, like: os.stat_result | None = None
) -> Iterator[str]:
    # A file that is on the disk with all its content, for the block to give it its name.
    temporary = f".conductor-{secrets.token_hex(8)}.tmp"
    file = os.open(temporary, _NEW, mode, dir_fd=folder)
    try:
        try:
            written = 0
            while written < len(data):
                written += os.write(file, data[written:])
            if like is not None:
                with suppress(PermissionError):  # only root may give files away
                    os.fchown(file, like.st_uid, like.st_gid)
                os.fchmod(file, stat.S_IMODE(like.st_mode))
            # Before the name appears: a crash must not leave an empty file under it.
            os.fsync(file)
        finally:
            os.close(file)
        # The last moment: after the rename the file is there.
        stop.check()
        yield temporary
    except BaseException:
        _quietly(os.unlink, temporary, folder)
        raise
    _sync(folder)


def _publish(folder: int, temporary: str, name: str) -> None:
    rename = renameat2()
    if rename is not None:
        old, new = os.fsencode(temporary), os.fsencode(name)
        if rename(folder, old, folder, new, _NOREPLACE) == 0:
            return
        error = ctypes.get_errno()
        if error not in (errno.EINVAL, errno.ENOSYS, errno.EPERM):  # this file system cannot
            raise OSError(error, os.strerror(error))
    link_in(folder, temporary, name)


def link_in(folder: int, temporary: str, name: str) -> None:
    """Give a file its final name without ``renameat2``: a hard link never replaces a file."""
    os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    _quietly(os.unlink, temporary, folder)


@lru_cache(maxsize=1)
def renameat2() -> Callable[[int, bytes, int, bytes, int], int] | None:
    """Find the system's ``renameat2``, which Python does not offer."""
    if sys.platform != "linux":
        return None
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    found: Callable[[int, bytes, int, bytes, int], int] = function
    return found


def _quietly(remove: Callable[..., None], name: str, folder: int) -> None:
    with suppress(OSError):  # what cannot be removed stays; the failure that led here is the one to tell
        remove(name, dir_fd=folder)


def _sync(folder: int) -> None:
    # Some file systems cannot sync a folder; the file exists anyway.
    with suppress(OSError):
        opened = os.open(".", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def encoded(content: str) -> bytes:
    """Encode a file's content. Raises `FileError`."""
    try:
        data = content.encode()
    except UnicodeEncodeError:
        raise FileError("validation_failed", "The content holds halves of characters.") from None
    if len(data) > MAX_CONTENT_BYTES:
        raise FileError("validation_failed", f"The content has more than {MAX_CONTENT_BYTES:,} bytes.")
    return data


def amount(content: str) -> str:
    """Say how long a text is."""
    lines = len(content.splitlines())
    return f"{lines:,} line{'' if lines == 1 else 's'}, {len(content.encode(errors='replace')):,} bytes"
