"""The example plugins, installed as packages of a third party: their contracts, and a turn that uses them."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app import App
from tests.conftest import ROOT, environment
from tests.stand_ins.programs import launched

PLUGINS = sorted(path.parent for path in (ROOT / "examples" / "plugins").glob("*/pyproject.toml"))
SECONDS = 120.0
KEY = "k" * 32


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the packages into a folder."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    sources = [tmp_path_factory.mktemp("source") / plugin.name for plugin in PLUGINS]
    for plugin, source in zip(PLUGINS, sources, strict=True):  # a build writes into its folder
        source.mkdir()
        for file in plugin.iterdir():
            if file.is_file():
                (source / file.name).write_bytes(file.read_bytes())
    subprocess.run(
        [*command, "--no-build-isolation", "--target", folder, *sources], check=True, timeout=SECONDS
    )
    return folder


def variables(site: Path, **values: str) -> dict[str, str]:
    """Make the environment of a process that sees the packages."""
    return environment(HOUSE_KEY="key-of-the-house", **values) | {"PYTHONPATH": str(site)}


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_it_passes_its_contract(site: Path, plugin: Path, tmp_path: Path) -> None:
    test = plugin / f"test_{plugin.name}.py"
    options = ["-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "-c", os.devnull]
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", str(tmp_path), str(test)]
    run = subprocess.run(
        command,
        cwd=tmp_path,
        env=variables(site) | {"PYTHONWARNINGS": ""},
        capture_output=True,
        timeout=SECONDS,
    )
    assert run.returncode == 0, run.stdout.decode()


def snippets() -> list[str]:
    """List the tests of docs/plugins.md, each with the module that it tests where the page has it."""
    text = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_snippets_of_the_page_run(site: Path, tmp_path: Path) -> None:
    modules = {"AcmeModel": "acme_model", "AcmeTools": "acme_tools"}
    tests = 0
    for number, code in enumerate(snippets()):
        own = next((module for name, module in modules.items() if f"class {name}" in code), None)
        (tmp_path / f"{own or f'test_{number}'}.py").write_text(code)
        tests += own is None
    assert tests == 5
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto"]
    run = subprocess.run(
        [*command, "-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        env=variables(site) | {"PYTHONWARNINGS": ""},
        capture_output=True,
        timeout=SECONDS,
    )
    assert run.returncode == 0, run.stdout.decode()


def test_check_names_each_plugin_with_its_package(site: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "conductor", "check", "--offline", "--port", "0"]
    run = subprocess.run(
        command, cwd=tmp_path, env=variables(site), capture_output=True, text=True, timeout=SECONDS
    )
    assert run.returncode == 0, run.stdout + run.stderr
    for line in (
        "conductor-example-echo-model 1.0: models echo.",
        "conductor-example-folder-store 1.0: stores folder.",
        "conductor-example-house-tools 1.0: toolsets house.",
        "conductor-example-dutch-judge 1.0: judges nl.",
        "conductor-example-signed-auth 1.0: auth signed.",
    ):
        assert line in run.stdout


async def test_a_turn_uses_them(site: Path, tmp_path: Path) -> None:
    values = {
        "MODEL_PROVIDER": "echo",
        "SESSION_STORE_URL": f"folder://{tmp_path}/sessions",
        "AUTH": "signed",
        "SIGNING_KEY": KEY,
        "PORT": "0",
    }
    pipe, same = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    environment = variables(site, **values)
    command = (sys.executable, "-m", "conductor")
    async with launched(*command, cwd=tmp_path, env=environment, stdout=pipe, stderr=same) as server:
        assert server.stdout is not None
        async with asyncio.timeout(SECONDS):
            output = ""
            while "/ws" not in output:
                output += (await server.stdout.readline()).decode()
            (url,) = re.findall(r"ws://\S+/ws", output)
            signature = hmac.digest(KEY.encode(), b"ada\n4000000000", hashlib.sha256).hex()
            async with App(f"{url}?person=ada&until=4000000000&signature={signature}") as app:
                await app.ask("call house.time")
            assert [reply.split(" {")[0] for reply in app.finals()] == ["You said:"]
            server.terminate()
            await server.communicate()
    assert len(list((tmp_path / "sessions").glob("*.session"))) == 1
