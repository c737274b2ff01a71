"""The index of ``query_knowledge_base``: passages of a folder's documents in SQLite's full-text search.

The file can be deleted at any time: it is rebuilt from the documents.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import structlog

from conductor.plugins.tools.definitions import ToolFailure
from conductor.plugins.tools.knowledge_text import DocumentError, Passage, passages, suffixes
from conductor.plugins.tools.read_file import read_bytes
from conductor.plugins.tools.sandbox import (
    CancelFlag,
    DirectoryMissing,
    Files,
    Roots,
    SandboxPath,
    printable,
)
from conductor.plugins.tools.walk import Walk

log = structlog.get_logger(__name__)

# Bytes of a document, and names that are scanned.
MAX_DOCUMENT_BYTES = 20 * 1024 * 1024
MAX_SCANNED = 2_000_000
# Words of a query, and passages that are ranked for it; ranking one takes 2 µs.
MAX_WORDS = 24
MAX_RANKED = 3000
# Seconds of one query, and its steps in SQLite between two checks of the time.
QUERY_S = 2.0
_STEPS = 10_000
# Seconds between two updates: at least, and as a multiple of the duration of an update.
PAUSE_S = 1.0
_PAUSE_FACTOR = 10
# Seconds of one transaction, after which queries see the new documents; seconds to wait for another process.
_COMMIT_S = 0.5
_LOCK_S = 5.0
# Changed documents from which on the index is optimized.
_MANY = 500

_VERSION = 1
_SCHEMA = """
CREATE TABLE file(
    id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, size INTEGER NOT NULL, changed INTEGER NOT NULL,
    digest BLOB NOT NULL, problem TEXT);
CREATE TABLE passage(
    id INTEGER PRIMARY KEY, file_id INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    page INTEGER NOT NULL);
CREATE INDEX passage_of_file ON passage(file_id);
CREATE VIRTUAL TABLE words USING fts5(title, text, tokenize='porter unicode61 remove_diacritics 2');
"""
# A word of a title counts more than a word of the text.
_SEARCH = """
SELECT file.path, passage.first, passage.last, passage.page, snippet(words, 1, '', '', '…', 64)
FROM words JOIN passage ON passage.id = words.rowid JOIN file ON file.id = passage.file_id
WHERE words MATCH ?
"""
_RANKED = f"{_SEARCH} AND rank MATCH 'bm25(3.0, 1.0)' ORDER BY rank LIMIT ?"
_COUNT = "SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ? LIMIT ?)"
_STORE = """
INSERT INTO file(path, size, changed, digest, problem) VALUES(?, ?, ?, ?, ?)
ON CONFLICT(path) DO UPDATE SET size = excluded.size, changed = excluded.changed, digest = excluded.digest,
    problem = excluded.problem
RETURNING id
"""
Progress: TypeAlias = Callable[[int, int], None]
"""Gets the number of changed documents that are indexed, and the number of all changed documents."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A matching passage. ``page`` is 0 for a document without pages."""

    path: str
    first_line: int
    last_line: int
    page: int
    text: str


@dataclass(slots=True)
class Update:
    """The result of an update; ``problems`` are unreadable documents (path -> reason)."""

    documents: int = 0
    indexed: int = 0
    removed: int = 0
    problems: dict[str, str] = field(default_factory=dict)
    complete: bool = True
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Document:
    id: int
    size: int
    changed: int
    digest: bytes
    problem: str | None


class IndexBusy(Exception):
    """Another process is updating the index."""


class KnowledgeIndex:
    """The documents beneath ``folder``, indexed in the file ``database``."""

    def __init__(self, folder: Path, database: Path) -> None:
        self.files = Files(Roots([folder]))
        self.pending = 0
        """The number of documents that the current update has yet to index."""
        self._top = SandboxPath(self.files.roots.all[0], ())
        self._database = database
        self._readers = threading.local()

    # -- update

    def update(self, stop: CancelFlag, progress: Progress = lambda count, total: None) -> Update:
        """Index the documents that have changed since the last update.

        Raises `IndexBusy`, `OSError`, `sqlite3.Error`, and `ToolFailure` if ``stop`` was set or the folder is
        missing; documents indexed before that stay.
        """
        started = time.monotonic()
        result = Update()
        self._database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked(), closing(self._open()) as connection:
            documents = _documents(connection)
            changed, paths, result.complete = self._scan(documents, stop)
            self.pending = len(changed)
            try:
                result.indexed = self._index(connection, changed, documents, stop, progress)
            finally:
                self.pending = 0
            # Documents in a folder that cannot be read now stay in the index.
            removed = [documents[path].id for path in documents.keys() - paths] if result.complete else []
            with connection:
                for file_id in removed:
                    _delete_passages(connection, file_id)
                    connection.execute("DELETE FROM file WHERE id = ?", (file_id,))
            result.removed = len(removed)
            if result.indexed + result.removed >= _MANY:
                connection.execute("INSERT INTO words(words) VALUES('optimize')")
            rows = connection.execute("SELECT path, problem FROM file").fetchall()
        result.documents = len(rows)
        result.problems = {path: problem for path, problem in rows if problem}
        result.duration_s = time.monotonic() - started
        return result

    async def watch(self) -> None:
        """Update the index, now and again after each pause; never returns."""
        stop = CancelFlag()
        reported = ""
        while True:
            duration_s, problem = 0.0, ""
            try:
                update = await asyncio.to_thread(self.update, stop)
                duration_s = update.duration_s
                if update.indexed or update.removed:
                    log.info(
                        "knowledge base updated",
                        documents=update.documents,
                        indexed=update.indexed,
                        removed=update.removed,
                        unreadable=len(update.problems),
                        duration_s=duration_s,
                    )
            except asyncio.CancelledError:
                stop.set()
                raise
            except IndexBusy:
                pass  # another process of this server updates it
            except Exception as error:  # a fault must not end the updates
                problem = f"{type(error).__name__}: {error}"
            if problem and problem != reported:
                log.error("knowledge base not updated", error=problem)
            reported = problem
            await asyncio.sleep(max(PAUSE_S, _PAUSE_FACTOR * duration_s))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        import fcntl  # not on Windows, where there are no file tools

        lock = os.open(f"{self._database}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise IndexBusy from None
        finally:
            os.close(lock)

    def _open(self) -> sqlite3.Connection:
        os.close(os.open(self._database, os.O_RDWR | os.O_CREAT, 0o600))
        connection = sqlite3.connect(self._database, timeout=_LOCK_S)
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
        except sqlite3.DatabaseError as error:
            connection.close()
            if error.sqlite_errorcode != sqlite3.SQLITE_NOTADB:
                raise
            for ending in ("", "-wal", "-shm"):
                Path(f"{self._database}{ending}").unlink(missing_ok=True)
            return self._open()
        if version != _VERSION:
            for (table,) in connection.execute(
                "SELECT name FROM sqlite_schema WHERE name IN ('file', 'passage', 'words')"
            ).fetchall():
                connection.execute(f"DROP TABLE {table}")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={_VERSION}; COMMIT;")
        connection.execute("PRAGMA synchronous=NORMAL")
        return connection

    def _scan(
        self, documents: Mapping[str, _Document], stop: CancelFlag
    ) -> tuple[list[tuple[str, SandboxPath, int, int]], set[str], bool]:
        changed, paths = [], set()
        endings = suffixes()
        walk = Walk(self.files, stop, time.monotonic, float("inf"), MAX_SCANNED)
        try:
            for folder, location in walk.files_below(self._top):
                name = location.parts[-1]
                if not name.lower().endswith(endings) or any(part[0] == "." for part in location.parts):
                    continue
                path = printable("/".join(location.parts))
                paths.add(path)
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                before = documents.get(path)
                if before is None or (before.size, before.changed) != (status.st_size, status.st_mtime_ns):
                    changed.append((path, location, status.st_size, status.st_mtime_ns))
        except DirectoryMissing:
            raise ToolFailure("io_error", "The folder of KNOWLEDGE_DIR does not exist.") from None
        return changed, paths, walk.complete

    def _index(
        self,
        connection: sqlite3.Connection,
        changed: list[tuple[str, SandboxPath, int, int]],
        documents: Mapping[str, _Document],
        stop: CancelFlag,
        progress: Progress,
    ) -> int:
        committed_at, count = time.monotonic(), 0
        for number, (path, location, size, modified) in enumerate(changed, 1):
            stop.check()
            data, problem = self._read(location, stop)
            digest = hashlib.blake2b(data, digest_size=16).digest()
            before = documents.get(path)
            if before is not None and (before.digest, before.problem) == (digest, problem):
                facts = (size, modified, before.id)
                connection.execute("UPDATE file SET size = ?, changed = ? WHERE id = ?", facts)
            else:
                _store(connection, path, before, (size, modified, digest, problem), data, stop)
                count += 1
            self.pending = len(changed) - number
            progress(number, len(changed))
            if time.monotonic() - committed_at >= _COMMIT_S:
                connection.commit()
                committed_at = time.monotonic()
        connection.commit()
        return count

    def _read(self, location: SandboxPath, stop: CancelFlag) -> tuple[bytes, str | None]:
        try:
            return read_bytes(self.files, location, stop, MAX_DOCUMENT_BYTES), None
        except ToolFailure as error:
            stop.check()
            return b"", str(error)
        except OSError as error:
            return b"", f"it cannot be read: {(getattr(error, 'strerror', None) or 'it was removed').lower()}"

    # -- search

    def search(self, query: str, limit: int, stop: CancelFlag) -> list[Hit]:
        """Find the best passages. Raises `ToolFailure` if there is no index, and after `QUERY_S`.

        The query cannot contain FTS5 syntax: its words have only letters and digits, and are quoted.
        """
        words = [f'"{word}"' for word in dict.fromkeys(re.findall(r"[^\W_]+", query.casefold()))]
        if not words:
            return []
        connection = self._reader()
        deadline = time.monotonic() + QUERY_S
        connection.set_progress_handler(lambda: stop.is_set() or time.monotonic() > deadline, _STEPS)
        try:
            expression, is_ranked = _narrowed(connection, words[:MAX_WORDS])
            rows = connection.execute(
                _RANKED if is_ranked else f"{_SEARCH} LIMIT ?", (expression, limit)
            ).fetchall()
        except sqlite3.Error as error:
            self._readers.connection = None
            connection.close()
            stop.check()
            log.warning("knowledge base not searched", error=str(error))
            raise ToolFailure("io_error", "The knowledge base could not be searched in time.") from None
        return [Hit(*row) for row in rows]

    def _reader(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._readers, "connection", None)
        if connection is None:
            try:
                connection = sqlite3.connect(f"{self._database.resolve().as_uri()}?mode=ro", uri=True)
                connection.execute("PRAGMA cache_size=-32000")
                connection.execute("PRAGMA mmap_size=268435456")
                connection.execute("SELECT 1 FROM words LIMIT 1").fetchone()
            except sqlite3.Error:
                raise ToolFailure(
                    "io_error", "The knowledge base is not indexed yet; try again soon."
                ) from None
            self._readers.connection = connection
        return connection


def _narrowed(connection: sqlite3.Connection, words: list[str]) -> tuple[str, bool]:
    # Rare words are the most significant: as many of them are searched as can be ranked in time.
    def count(expression: str) -> int:
        return int(connection.execute(_COUNT, (expression, MAX_RANKED)).fetchone()[0])

    counts = sorted((hits, word) for word in words if (hits := count(word)))
    selected, total = [], 0
    for hits, word in counts:
        total += hits
        if total < MAX_RANKED:
            selected.append(word)
    if selected or not counts:
        return " OR ".join(selected or words), True
    # Every word is in very many passages: take the passages with all words, or with all but the commonest.
    common = [word for _, word in counts]
    while (hits := count(" AND ".join(common))) == 0 and len(common) > 1:
        common.pop()
    return " AND ".join(common), hits < MAX_RANKED


def _documents(connection: sqlite3.Connection) -> dict[str, _Document]:
    rows = connection.execute("SELECT path, id, size, changed, digest, problem FROM file")
    return {path: _Document(*fields) for path, *fields in rows}


def _delete_passages(connection: sqlite3.Connection, file_id: int) -> None:
    connection.execute(
        "DELETE FROM words WHERE rowid IN (SELECT id FROM passage WHERE file_id = ?)", (file_id,)
    )
    connection.execute("DELETE FROM passage WHERE file_id = ?", (file_id,))


def _store(
    connection: sqlite3.Connection,
    path: str,
    before: _Document | None,
    facts: tuple[int, int, bytes, str | None],
    data: bytes,
    stop: CancelFlag,
) -> None:
    size, modified, digest, problem = facts
    pieces: list[Passage] = []
    if problem is None:
        try:
            pieces = list(passages(path, data, stop))
        except DocumentError as error:
            problem = str(error)
    if before is not None:
        _delete_passages(connection, before.id)
    (file_id,) = connection.execute(_STORE, (path, size, modified, digest, problem)).fetchone()
    name = re.sub(r"[\W_]+", " ", path)
    for piece in pieces:
        row = (file_id, piece.first_line, piece.last_line, piece.page)
        cursor = connection.execute("INSERT INTO passage(file_id, first, last, page) VALUES(?, ?, ?, ?)", row)
        words = (cursor.lastrowid, f"{name} {piece.heading}", piece.text)
        connection.execute("INSERT INTO words(rowid, title, text) VALUES(?, ?, ?)", words)
