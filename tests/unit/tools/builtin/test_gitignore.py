"""``.gitignore`` files: the rules of git, compared with git, and no pattern that takes long."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conductor.plugins.tools.gitignore import MAX_RULES, parse, verdict
from conductor.plugins.tools.sandbox import CancelFlag, Files, Roots, SandboxPath
from conductor.plugins.tools.walk import Walk
from tests.cpu import least_cpu_s


def ignored(lines: str, path: str) -> bool | None:
    return verdict(parse(lines.encode()), path.rstrip("/").split("/"), path.endswith("/"))


@pytest.mark.parametrize(
    ("lines", "path", "expected"),
    [
        ("*.log", "a/b.log", True),
        ("*.log\n!keep.log", "keep.log", False),
        ("!keep.log\n*.log", "keep.log", True),
        ("build/", "build/", True),
        ("build/", "a/build/", True),
        ("build/", "build", None),
        ("/build", "a/build", None),
        ("a/b", "x/a/b", None),
        ("a/*", "a/b/c", None),
        ("**/b", "a/x/b", True),
        ("a/**", "a/", None),
        ("a/**", "a/x/y", True),
        ("a/**/b", "a/b", True),
        ("a/**/b/**/c", "a/b/x/b/c", True),
        ("a**b", "axxb", True),
        ("*\n!*/\n!*.py", "src/", False),
        ("*\n!*/\n!*.py", "src/a.py", False),
        ("*\n!*/\n!*.py", "src/a.txt", True),
        ("foo/**\n!foo/keep", "foo/", None),
        ("bar\n!foo/", "foo/bar", True),
        ("# x", "# x", None),
        ("\\# x", "# x", True),
        ("\\!x", "!x", True),
        ("x\\ ", "x ", True),
        ("x\r\ny", "x", True),
        ("[!a-c]x", "bx", None),
        ("[]-]x", "]x", True),
        ("[[:digit:]]x", "7x", None),
        ("[[:digit:]]x", "d]x", None),
        ("[z-a]x", "bx", None),
        ("[a", "[a", None),
        ("a\\", "a\\", None),
        ("?", "é", True),
        ("\ufeff*.log", "a.log", True),
        ("/", "a/", None),
        ("!/", "a/", None),
        ("a//b", "a/b", None),
    ],
)
def test_a_rule_matches_as_in_git(lines: str, path: str, expected: bool | None) -> None:
    assert ignored(lines, path) is expected


HOSTILE = [
    "*a" * 28 + "*b",
    "*[ab]" * 16 + "c",
    "*?" * 20 + "b",
    "a/" + "**/a/" * 20 + "b",
    "**/*a*a*a*/" * 6 + "b",
    "*a" * 100 + "*b",
    "*[ab]" * 80 + "c",
    "*?" * 120 + "b",
    "a/" + "**/a/" * 90 + "b",
    "**/*a*a*a*/" * 20 + "b",
    "[" * 500,
    "[a" * 160,
    "\\" * 501,
    " " * 60_000,
    "**/" * 20_000,
]


@pytest.mark.parametrize("pattern", HOSTILE, ids=lambda pattern: pattern[:12])
def test_no_pattern_takes_long(pattern: str) -> None:
    rules = parse(pattern.encode())
    for parts in (["a" * 255], ["a"] * 76, ["a" * 255] * 14):
        assert least_cpu_s(partial(verdict, rules, parts, False), 0.1) < 0.1


def test_lines_beyond_the_limits_are_left_out() -> None:
    assert len(parse(b"y" * 600 + b"\n" + b"x\n" * (MAX_RULES + 5))) == MAX_RULES
    assert parse(b"y" * 600 + b"\n" * 100_000 + b"x") == ()
    rules = parse(b"\xff*\n")  # a name that is not UTF-8
    assert verdict(rules, [os.fsdecode(b"\xffx")], False) is True


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=80) | st.text("*?[]!^-\\/ab:#. \r\n", max_size=60).map(str.encode))
def test_no_file_raises(data: bytes) -> None:
    rules = parse(data)
    for path in ("a", "ab/b", "[a]/-", "!a/\\b"):
        assert verdict(rules, path.split("/"), False) in (True, False, None)


PIECES = "* ** ? a b ab a.b [ab] [!a] [a-b] \\a / / . ]".split()


def random_line(chance: random.Random) -> str:
    """Make a rule, but not with three stars, nor ``b**/a``, which git splits into ``b`` and ``**/a``."""
    while True:
        pattern = "".join(chance.choices(PIECES, k=chance.randint(1, 5))) + chance.choice(["", "", "/"])
        if not re.search(r"[^/*]\*\*+(/|$)|\*{3}", pattern):
            return chance.choice(["", "", "!"]) + pattern


def visible(folder: Path) -> list[str]:
    """List the files below a folder, as the tools walk."""
    files = Files(Roots([folder]))
    walk = Walk(files, CancelFlag(), 60)
    top = SandboxPath(files.roots.all[0], ())
    return sorted("/".join(location.parts) for _, location in walk.files_below(top))


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_random_trees_are_shown_as_git_shows_them(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)  # noqa: T201 -- shown where the test fails
    chance = random.Random(seed)
    settings = {"HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"]}
    git = ["git", "-C", str(tmp_path / "tree")]
    (tmp_path / "tree").mkdir()
    subprocess.run([*git, "init", "-q"], check=True, env=settings)
    names = ["a", "b", "ab", "a.b", "ba", "]", ".a"]
    folders = ["", "a/", "b/", "a/b/", "a/ab/", "b/a.b/", "a/b/ba/"]
    for folder in folders:
        (tmp_path / "tree" / folder).mkdir(exist_ok=True, parents=True)
        for name in names:
            if not (tmp_path / "tree" / folder / name).exists() and f"{folder}{name}/" not in folders:
                (tmp_path / "tree" / folder / name).touch()
    for _ in range(40):
        for folder in chance.sample(folders, 2):
            lines = [random_line(chance) for _ in range(chance.randint(1, 5))]
            (tmp_path / "tree" / folder / ".gitignore").write_text("\n".join(lines))
        listing = subprocess.run(
            [*git, "ls-files", "-o", "--exclude-standard", "-z"],
            check=True,
            env=settings,
            capture_output=True,
        )
        expected = sorted(listing.stdout.decode().split("\0")[:-1])
        rules = {str(file): file.read_text() for file in (tmp_path / "tree").rglob(".gitignore")}
        assert visible(tmp_path / "tree") == expected, rules
