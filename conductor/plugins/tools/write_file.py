"""The tools ``create_file`` and ``write_file``: a text file is written completely or not at all."""

from __future__ import annotations

import difflib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import Annotated, Any, TypeAlias

from pydantic import Field

from conductor.plugins.tools.read_file import read_bytes
from conductor.plugins.tools.sandbox import (
    CancelFlag,
    DirectoryMissing,
    Files,
    SandboxPath,
    check_regular,
    described,
    may_hold_secrets,
    open_folder,
    printable,
    quoted,
)
from conductor.tools import ToolError, tool
from conductor.tools.outcomes import ToolOutcome, succeeded

# Bytes of an old text that is compared, and lines of each text, since the time grows with their product;
# lines of a difference in a preview, and characters of each.
MAX_COMPARED_BYTES = 1_000_000
MAX_COMPARED_LINES = 5000
MAX_DIFF_LINES = 60
_DIFF_CHARS = 120

_Path: TypeAlias = Annotated[
    str, Field(min_length=1, max_length=4096, description="For example: notes/ideas.md")
]
_Content: TypeAlias = Annotated[str, Field(description="The whole text of the file.")]
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def file_creator(files: Files) -> Callable[..., Any]:
    """Make ``create_file``. Only the owner can read a file that may contain secrets."""

    async def preview(arguments: Mapping[str, Any]) -> str:
        return _preview_new(arguments["path"], arguments["content"])

    @tool(
        description="Create a new text file, and missing folders. It never replaces or changes a file that "
        "exists. Use it only when the user asked for a file.",
        risk="high",
        effect="write",
        sensitive=files.sensitive,
        preview=preview,
    )
    async def create_file(path: _Path, content: _Content) -> ToolOutcome:
        """Answer with ``path``, ``size_bytes`` and ``created_folders``."""
        return await files.run(lambda stop: succeeded(_created(files, path, content, stop)))

    return create_file


def _preview_new(path: str, content: str) -> str:
    summary = f"Would create {quoted(path)}: {_size(content)}. Would fail if it exists already."
    return "\n".join([summary, *_head(f"+{line}" for line in content.splitlines())])


def _created(files: Files, path: str, content: str, stop: CancelFlag) -> dict[str, Any]:
    data = encode(content)
    if path.endswith(("/", "/.")):
        raise ToolError("The path ends in a folder; it needs a file's name.", "validation_failed")

    def attempt(location: SandboxPath, *, parents: bool = False) -> dict[str, Any]:
        try:
            created = _create(location, data, parents, stop)
        except DirectoryMissing as error:  # this root is meant; another one must not be tried
            raise described(error, path) from None
        shown_path = files.roots.path_of(location)
        return {"path": shown_path, "size_bytes": len(data), "created_folders": created}

    try:
        return files.first(path, attempt)
    except ToolError as error:  # folders are created only if no root has them
        if error.error_type != "not_found":
            raise
    return files.first(path, partial(attempt, parents=True))


def _create(location: SandboxPath, data: bytes, parents: bool, stop: CancelFlag) -> int:
    mode = 0o600 if may_hold_secrets(location.parts) else 0o644  # the umask may remove more
    created: list[SandboxPath] = []
    try:
        for length in range(1, len(location.parts) if parents else 0):
            missing = SandboxPath(location.root, location.parts[:length])
            with suppress(FileExistsError), open_folder(missing.parent) as folder:
                os.mkdir(missing.name, 0o755, dir_fd=folder)
                created.append(missing)
                _sync(folder)
        with open_folder(location.parent) as folder:
            write_new(folder, location.name, data, mode, stop)
    except BaseException:
        for missing in reversed(created):
            with suppress(OSError), open_folder(missing.parent) as folder:
                os.rmdir(missing.name, dir_fd=folder)
        raise
    return len(created)


def file_writer(files: Files) -> Callable[..., Any]:
    """Make ``write_file``. A replaced file keeps its mode; a new one is as ``create_file`` makes it."""

    async def preview(arguments: Mapping[str, Any]) -> str:
        # For a file that exists, a unified diff.
        path, content = arguments["path"], arguments["content"]
        outcome = await files.run(lambda stop: succeeded(_preview_change(files, path, content, stop)))
        return str(outcome.data or outcome.error_message or _preview_new(path, content))

    @tool(
        description="Write a text file: replaces the whole text of a file that exists, or creates it. Read "
        "the file first, and give the complete new text. Use it only when the user asked for the change.",
        risk="high",
        effect="write",
        sensitive=files.sensitive,
        preview=preview,
    )
    async def write_file(path: _Path, content: _Content) -> ToolOutcome:
        """Answer with ``path``, ``size_bytes`` and ``replaced``; a new file also with ``created_folders``."""

        def work(stop: CancelFlag) -> ToolOutcome:
            data = encode(content)

            def attempt(location: SandboxPath) -> ToolOutcome:
                with open_folder(location.parent) as folder:
                    replace_file(folder, location.name, data, stop)
                shown_path = files.roots.path_of(location)
                return succeeded({"path": shown_path, "size_bytes": len(data), "replaced": True})

            try:
                return files.first(path, attempt)
            except ToolError as error:
                if error.error_type != "not_found":
                    raise
                return succeeded({**_created(files, path, content, stop), "replaced": False})

        return await files.run(work)

    return write_file


def _preview_change(files: Files, path: str, content: str, stop: CancelFlag) -> str:
    # Empty for a file that does not exist.
    def attempt(location: SandboxPath) -> str:
        old = read_bytes(files, location, stop, MAX_COMPARED_BYTES)
        return _difference(location, files.roots.path_of(location), old, content)

    try:
        return files.first(path, attempt)
    except ToolError as error:
        # Otherwise the file is too large to compare, or the call would fail.
        return "" if error.error_type == "not_found" else f"Would replace {quoted(path)}. {error}"


def write_new(folder: int, name: str, data: bytes, mode: int, stop: CancelFlag) -> None:
    """Create a file. Its name appears once all of its content is on the disk.

    Raises `OSError`, FileExistsError if the name is taken (by a link too), and `ToolError` if the call was
    cancelled; then nothing remains.
    """
    with suppress(FileNotFoundError):
        os.stat(name, dir_fd=folder, follow_symlinks=False)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    with _temporary(folder, data, mode, stop) as temporary:
        with _named(folder, temporary, name):
            # A hard link never replaces a file, as a rename would.
            os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)


def replace_file(folder: int, name: str, data: bytes, stop: CancelFlag) -> None:
    """Replace a file's content, all at once; its mode stays, and its owner where the system permits it.

    Raises `OSError`, FileNotFoundError if there is no such file, and `ToolError` if the call was cancelled;
    then the file is unchanged.
    """
    before = os.stat(name, dir_fd=folder, follow_symlinks=False)
    check_regular(before)
    if not before.st_mode & 0o222:  # a rename would replace a read-only file
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    with _temporary(folder, data, 0o600, stop, before) as temporary:
        if not os.path.samestat(before, os.stat(name, dir_fd=folder, follow_symlinks=False)):
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        with _named(folder, temporary, name):
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


@contextmanager
def _named(folder: int, temporary: str, name: str) -> Iterator[None]:
    """Ignore an error of the block if the file has its name: a network's disk may lose the answer."""
    file = os.stat(temporary, dir_fd=folder, follow_symlinks=False)
    try:
        yield
    except OSError:
        with suppress(OSError):
            if os.path.samestat(file, os.stat(name, dir_fd=folder, follow_symlinks=False)):
                return
        raise


@contextmanager
def _temporary(
    folder: int, data: bytes, mode: int, stop: CancelFlag, original: os.stat_result | None = None
) -> Iterator[str]:
    # The block gives the complete file its name.
    temporary = f".conductor-{secrets.token_hex(8)}.tmp"
    try:
        file = os.open(temporary, _NEW, mode, dir_fd=folder)
    except FileNotFoundError:  # no other root must be tried
        raise ToolError("The folder was removed during the call; nothing was written.", "io_error") from None
    try:
        with open(file, "wb", buffering=0) as stream:
            while data:
                data = data[stream.write(data) :]
            if original is not None:
                with suppress(PermissionError):  # only root may change an owner
                    os.fchown(file, original.st_uid, original.st_gid)
                os.fchmod(file, stat.S_IMODE(original.st_mode))
            # Before the name appears: a crash must not leave an empty file under it.
            os.fsync(file)
        # After this the call can no longer be cancelled.
        stop.check()
        yield temporary
    except BaseException:
        with suppress(OSError):  # the failure before this one is reported
            os.unlink(temporary, dir_fd=folder)
        raise
    _sync(folder)


def _sync(folder: int) -> None:
    # Some file systems cannot sync a folder; the file exists anyway.
    with suppress(OSError):
        descriptor = os.open(".", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def encode(content: str) -> bytes:
    """Encode a file's content. Raises `ToolError`."""
    try:
        return content.encode()
    except UnicodeEncodeError:
        raise ToolError("The content contains incomplete characters.", "validation_failed") from None


def _size(content: str) -> str:
    lines = len(content.splitlines())
    return f"{lines:,} line{'' if lines == 1 else 's'}, {len(content.encode(errors='replace')):,} bytes"


def _head(lines: Iterator[str]) -> list[str]:
    head = [printable(line[:_DIFF_CHARS]) for line in islice(lines, MAX_DIFF_LINES)]
    more = sum(1 for _ in lines)
    return [*head, *([f"… and {more} more lines"] if more else [])]


def _difference(location: SandboxPath, path: str, old: bytes, new: str) -> str:
    summary = f"Would replace {path!r}, {len(old):,} bytes, by {_size(new)}."
    if may_hold_secrets((*location.root.parts, *location.parts)):
        return f"{summary} The difference is not shown: it may hold secrets."
    before, after = old.decode(errors="replace").splitlines(), new.splitlines()
    if max(len(before), len(after)) > MAX_COMPARED_LINES:
        return f"{summary} The texts are too long to be compared."
    lines = _head(difflib.unified_diff(before, after, path, path, lineterm="", n=2))
    return "\n".join([summary, *lines]) if lines else f"{summary} The lines stay the same."
