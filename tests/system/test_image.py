"""The Docker image, built unchanged and run: from a base of Debian's Python in place of Docker's.

It needs root, ``debootstrap`` and ``buildah``; without them the test is skipped. ``.ci/run`` installs both
and sets ``CI_REQUIRE_IMAGE=1``, with which a skip is a failure. The base is kept in build/image.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conductor.client import Reconnect, connect
from tests.conftest import ROOT
from tests.services.ports import free_port
from tests.stand_ins.programs import missing, program

PATHS = os.pathsep.join((os.defpath, "/usr/sbin", "/sbin"))
BASE = ROOT / "build" / "image" / "base"
PACKAGES = "python3,python3-venv,python3-pip,python-is-python3,ca-certificates"
# Seconds of each step on a busy machine.
LIMIT_S = 500.0
TOKEN = "a-token-of-the-image-test"


def base(folder: Path) -> None:
    """Make the file system of the base: a small Debian with a Python that pip may install for."""
    if folder.exists():
        return
    debootstrap = program("IMAGE", "debootstrap", path=PATHS)
    made = folder.with_name("making")
    shutil.rmtree(made, ignore_errors=True)
    made.parent.mkdir(parents=True, exist_ok=True)
    run(debootstrap, "--variant=minbase", f"--include={PACKAGES}", "bookworm", made)
    for mark in made.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        mark.unlink()
    made.rename(folder)


def run(*command: str | Path, storage: Path | None = None) -> str:
    """Run a command; gives its output. Images are kept in ``storage``."""
    own = {"STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
    options: list[str | Path] = []
    if storage is not None:
        options = ["--root", storage / "images", "--runroot", storage / "run"]
    done = subprocess.run(
        [command[0], *options, *command[1:]],
        env={**os.environ, **own},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    output: str = done.stdout
    return output.strip()


def volumes() -> Iterator[str]:
    """Mount what this machine's pip reads, so that the steps of the build find the same packages."""
    pip = [sys.executable, "-m", "pip", "config"]
    settings = subprocess.run([*pip, "list"], capture_output=True, text=True, timeout=LIMIT_S).stdout
    files = subprocess.run([*pip, "debug"], capture_output=True, text=True, timeout=LIMIT_S).stdout
    paths = set(re.findall(r"^ *(/.+), exists: True$", files, re.MULTILINE))
    # A folder with an index has the files beside it.
    found = re.findall(r"(?:file://|['\s])(/[^/\s']+/[^/\s']+)", settings)
    paths |= set(found)
    for path in sorted(path for path in paths if os.path.exists(path)):
        yield from ("--volume", f"{path}:{path}:ro")


def source(folder: Path) -> Path:
    """Check the tracked files out, as ``docker build`` in a clone would send them."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    return folder


def users() -> set[str]:
    """Find the users of the server's processes in the container."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            line, environ = status.with_name("cmdline").read_bytes(), status.with_name("environ").read_bytes()
            user = re.search(r"^Uid:\s+(\d+)", status.read_text(), re.MULTILINE)
        except OSError:  # it has ended
            continue
        if user and line.startswith(b"/opt/conductor") and TOKEN.encode() in environ:
            found.add(user[1])
    return found


@pytest.mark.extended
@pytest.mark.timeout(1_000)
async def test_the_image_is_built_and_serves_without_root_until_it_is_stopped(tmp_path: Path) -> None:
    buildah = program("IMAGE", "buildah", path=PATHS)
    if os.geteuid():
        missing("root", "IMAGE")
    base(BASE)
    storage = tmp_path / "storage"

    def build() -> str:
        empty = run(buildah, "from", "scratch", storage=storage)
        run(buildah, "copy", "--quiet", empty, BASE, "/", storage=storage)
        run(buildah, "commit", "--quiet", empty, "docker.io/library/python:3.11-slim", storage=storage)
        options = ["--isolation", "chroot", "--pull-never", "--network", "host", *volumes()]
        run(buildah, "bud", *options, "--tag", "conductor", source(tmp_path / "source"), storage=storage)
        return run(buildah, "from", "--pull-never", "localhost/conductor", storage=storage)

    container = await asyncio.to_thread(build)
    port = free_port()
    settings = {"AUTH_TOKENS": TOKEN, "PORT": str(port), "MODEL_PROVIDER": "demo"}
    variables = [option for name, value in settings.items() for option in ("--env", f"{name}={value}")]
    server = await asyncio.create_subprocess_exec(
        *(buildah, "--root", storage / "images", "--runroot", storage / "run", "run"),
        *("--isolation", "chroot", "--network", "host", *variables, container, "--", "conductor"),
        env={**os.environ, "STORAGE_DRIVER": "vfs"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            assert server.stdout is not None
            lines: list[str] = []
            while not lines or '"started"' not in lines[-1]:
                line = (await server.stdout.readline()).decode()
                assert line, lines
                lines.append(line)
            url, reconnect = f"ws://127.0.0.1:{port}/ws", Reconnect(first_s=0.1, most_s=0.1, tries=50)
            async with connect(url, token=TOKEN, reconnect=reconnect) as client:
                assert "397.8" in (await (await client.say("what is 17% of 2340?"))).text
            assert await asyncio.to_thread(users) == {"10001"}
            server.terminate()
            await server.communicate()
    finally:
        if server.returncode is None:
            server.kill()
            await server.communicate()
