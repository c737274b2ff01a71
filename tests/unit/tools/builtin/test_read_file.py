"""``read_file``: lines of text files, and no other, too large or binary file."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.plugins.tools.read_file import MAX_TEXT_BYTES, cut, file_reader
from conductor.plugins.tools.sandbox import CancelFlag, Files, Roots, may_hold_secrets
from conductor.tools.base import CallContext
from conductor.tools.outcomes import ToolOutcome, succeeded
from tests.server.wires import WAIT
from tests.unit.tools.builtin.conftest import reason_of, run

CONTEXT = CallContext(session_id="s", call_id="c")


async def ask(root: Path, path: str, **arguments: Any) -> ToolOutcome:
    return await run(file_reader(Files(Roots([root]))), {"path": path, **arguments}, CONTEXT)


async def test_a_file_is_read_with_its_number_of_lines(root: Path) -> None:
    (root / "a" / "x.txt").write_bytes(b"one\ntwo\r\nthr\xc3\xa9e")
    outcome = await ask(root, "./a/x.txt")
    assert outcome.data == {
        "path": "a/x.txt",
        "text": "one\ntwo\r\nthrée",
        "first_line": 1,
        "last_line": 3,
        "total_lines": 3,
        "truncated": False,
    }


@pytest.mark.parametrize(
    ("data", "offset", "limit", "text", "last", "truncated"),
    [
        (b"1\n2\n3\n4\n", 1, 2, "1\n2\n", 2, True),
        (b"1\n2\n3\n4\n", 2, 1, "2\n", 2, True),
        (b"1\n2\n3\n4\n", 3, 9, "3\n4\n", 4, False),
        (b"1\n2\n3\n4\n", 4, 1, "4\n", 4, False),
        (b"\xef\xbb\xbfone", 1, 9, "one", 1, False),
        (b"", 1, 9, "", 0, False),
    ],
)
async def test_offset_and_limit_count_lines(
    root: Path, data: bytes, offset: int, limit: int, text: str, last: int, truncated: bool
) -> None:
    (root / "x").write_bytes(data)
    result = (await ask(root, "x", offset=offset, limit=limit)).data
    assert (result["text"], result["first_line"], result["last_line"]) == (text, offset, last)
    assert result["truncated"] == truncated
    outcome = await ask(root, "x", offset=5)
    assert outcome.error_type == "validation_failed"
    assert "offset is beyond its end" in (outcome.error_message or "")


async def test_a_very_long_line_is_cut_with_a_note(root: Path) -> None:
    (root / "x").write_text("é" * 100_000 + "\nnext\n")
    outcome = await ask(root, "x")
    assert outcome.data["truncated"]
    assert (outcome.data["last_line"], outcome.data["total_lines"]) == (1, 2)
    assert set(outcome.data["text"]) == {"é"}
    assert 5000 < len(outcome.data["text"].encode()) <= MAX_TEXT_BYTES
    assert outcome.metadata.notes == ("Line 1 is too long: only its beginning is shown. The next line is 2.",)
    assert (await ask(root, "x", offset=2)).data["text"] == "next\n"
    (root / "x").write_text("é" * 100_000)
    assert (await ask(root, "x")).data["truncated"], "although no line follows"


LINES = st.lists(st.text('ab"\\\n\té\x00', max_size=30), max_size=20).map("\n".join)


@given(LINES, st.integers(12, 200), st.integers(1, 5))
def test_the_parts_join_to_the_file(text: str, room: int, limit: int) -> None:
    data = text.encode()
    total = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    offset, pieces, is_complete = 1, "", True
    while offset <= total:
        part = cut(data, offset, limit, room)
        assert 1 <= part.lines <= limit
        assert len(msgspec.json.encode(part.text)) - 2 <= room
        is_complete = is_complete and not part.line_cut
        pieces += part.text
        offset += part.lines
    assert offset == total + 1
    assert pieces == text or not is_complete


@pytest.mark.parametrize("data", [b"a\0b", b"\xff\xfea\0", b"\x89PNG\r\n\x1a\n", b"a\xc3", b"\xed\xa0\x80"])
async def test_a_binary_file_is_refused(root: Path, data: bytes) -> None:
    (root / "x").write_bytes(data)
    outcome = await ask(root, "x")
    assert outcome.error_type == "parse_error"
    assert outcome.error_message == "'x' is not UTF-8 text; it may be binary."


@pytest.mark.parametrize("size", [11_000_000, 1 << 40])
async def test_a_file_that_is_too_large_is_refused_unread(root: Path, size: int) -> None:
    with (root / "x").open("wb") as file:
        try:
            file.truncate(size)
        except OSError as error:
            pytest.skip(f"no sparse files of that size here: {error.strerror}")
    outcome = await ask(root, "x")
    assert outcome.error_type == "validation_failed"
    assert outcome.error_message == f"'x' has {size:,} bytes or more; the limit is 10,485,760."


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="needs /proc")
async def test_a_file_that_reports_no_size_is_read() -> None:
    data = (await ask(Path("/proc"), "version")).data
    assert data["text"].startswith("Linux")


async def test_a_file_may_be_in_any_root(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "two" / "x").write_text("text")
    tool = file_reader(Files(Roots([tmp_path / "gone", tmp_path / "one", tmp_path / "two"])))
    assert (await run(tool, {"path": "x"}, CONTEXT)).data["path"] == "two/x"
    assert (await run(tool, {"path": "two/x"}, CONTEXT)).data["text"] == "text"
    assert (await run(tool, {"path": "y"}, CONTEXT)).error_type == "io_error"


async def test_a_file_that_grows_while_it_is_read_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "x").write_text("text")
    with monkeypatch.context() as patched:
        patched.setattr(os, "read", lambda file, size: b"x" * size)
        outcome = await ask(root, "x")
    assert outcome.error_type == "validation_failed"


async def test_a_cancelled_call_ends_its_work(root: Path) -> None:
    files = Files(Roots([root]))
    started, flags = threading.Event(), asyncio.Queue[bool]()
    loop = asyncio.get_running_loop()

    def work(stop: CancelFlag) -> ToolOutcome:
        started.set()
        loop.call_soon_threadsafe(flags.put_nowait, stop.wait(5))
        stop.check()
        return succeeded(None)

    call = asyncio.create_task(files.run(work))
    await asyncio.to_thread(started.wait, 5)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    async with asyncio.timeout(WAIT):
        assert await flags.get()


SECRETS = """\
.env|.env.local|.ENV|a/prod.env|a//.env|.e\u200dnv|.env~|#.env#|.env2
server.key|key.txt|key2.txt|my-api-key.txt|apiKey.txt|serviceAccountKey.json|keys.py.bak|authorized_keys
id_rsa|id_rsa.pub|id_rsa_backup|server-2024-01-01.pem.gz|cert (copy).p12
.netrc|.netrc (1)|Copy of .netrc|netrc_old|.pypirc.save|.git-credentials|credentials.json.1
google-services.json|database.yml|kube-config.yaml|secrets.py|PASSWORDS.TXT|terraform.tfstate.backup
.ſſh/config|.aws_old/config|.git/hooks/pre-commit|.docker/config.json|.bash_history|a/.node_repl_history.1"""
ORDINARY = """\
a/x.py|environment.md|keys.py|TokenList.tsx|src/env.ts|env/lib/site.py|keys/README.md|monkey.txt|keyboard.md
tokenizer.json|secretary.txt|history.md|docker-compose.yml|docker/Dockerfile|.gitignore|../.env"""


@pytest.mark.parametrize("path", SECRETS.replace("\n", "|").split("|"))
def test_a_file_that_may_hold_secrets_needs_consent(root: Path, path: str) -> None:
    tool = file_reader(Files(Roots([root])))
    for spelling in (path, str(root / path)):
        reason = reason_of(tool, {"path": spelling}) or ""
        assert " may hold " in reason and str(root.parent) not in reason
    tool = file_reader(Files(Roots([root / ".ssh" / "more"])))
    assert reason_of(tool, {"path": "notes"}) == "notes may hold secrets"


@pytest.mark.parametrize("path", [*ORDINARY.replace("\n", "|").split("|"), 3])
def test_other_files_need_no_consent(root: Path, path: str) -> None:
    assert reason_of(file_reader(Files(Roots([root]))), {"path": path}) is None


@given(st.lists(st.text(max_size=20), max_size=4).map(tuple))
def test_no_name_raises(parts: tuple[str, ...]) -> None:
    assert may_hold_secrets(parts) in (True, False)
