"""What a release and a deployment are made of: the source distribution, and deploy/compose.yaml."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml

from conductor.settings import Settings
from conductor.version import __version__
from tests.conftest import ROOT

COMPOSE = ROOT / "deploy" / "compose.yaml"
# The variables of the file that are no settings of the server.
OF_COMPOSE = {"DOMAIN", "POSTGRES_PASSWORD"}
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"


def test_the_services_of_compose_have_valid_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    document = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    services = document["services"]
    assert set(services) == {"conductor", "postgres", "caddy"}
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        for volume in service["volumes"]:
            assert volume.partition(":")[0] in document["volumes"]
    variables = set(re.findall(r"\$\{(\w+)", COMPOSE.read_text(encoding="utf-8")))
    names = {name.upper() for name in Settings.model_fields}
    assert variables - names == OF_COMPOSE
    environment = services["conductor"]["environment"]
    assert environment.keys() <= names
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, re.sub(r"\$\{\w+:\?\}", "a-secret", value))
    settings = Settings()
    assert settings.store_kind == "postgres" and settings.workers == 2 and settings.authenticates
    networks = document["networks"]["default"]["ipam"]["config"]
    assert [network["subnet"] for network in networks] == list(settings.trusted_proxies)


def test_compose_agrees_with_the_image() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    service = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]["conductor"]
    assert (COMPOSE.parent / service["build"]).resolve() == ROOT
    assert "VOLUME /data" in dockerfile and service["volumes"] == ["data:/data"]
    assert "HEALTHCHECK" in dockerfile, "caddy waits for it"


def test_the_packages_have_one_version() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{__version__}"' in project
    for file, line in (
        ("js/package.json", f'"version": "{__version__}"'),
        ("python/pyproject.toml", f'version = "{__version__}"'),
        ("kotlin/build.gradle.kts", f'version = "{__version__}"'),
    ):
        assert line in (ROOT / "clients" / file).read_text(encoding="utf-8"), file
    assert (ROOT / "clients" / "js" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_the_client_alone_has_the_ranges_of_the_server() -> None:
    server, client = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for folder in (".", "clients/python")
    )
    assert {*client["dependencies"]} <= {*server["dependencies"]} and len(client["dependencies"]) == 2


def test_links_of_a_page_lead_to_the_repository_on_an_index() -> None:
    absolute_links = runpy.run_path(str(ROOT / "scripts" / "release"))["absolute_links"]
    page = "[a](docs/a.md#b) [b](../x.md) [c](#d) [e](https://e.example/) ![f](g.png)"
    text = absolute_links(page, ROOT / "clients" / "js", ROOT, "https://code.example/c/blob/v1")
    base = "https://code.example/c/blob/v1/clients"
    assert text == (
        f"[a]({base}/js/docs/a.md#b) [b]({base}/x.md) [c](#d) [e](https://e.example/) "
        "![f](https://code.example/c/raw/v1/clients/js/g.png)"
    )


@pytest.mark.extended
def test_the_source_distribution_holds_every_file_of_the_package(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", source], input=archive, check=True)
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BUILD, tmp_path], cwd=source, check=True, capture_output=True
    )
    with tarfile.open(tmp_path / f"conductor_voice-{__version__}.tar.gz") as sdist:
        files = {member.name.partition("/")[2]: member for member in sdist.getmembers()}
    package = {str(path.relative_to(source)) for path in (source / "conductor").rglob("*") if path.is_file()}
    assert package - files.keys() == set()
    for name in ("conductor.js", "conductor-elements.js", "openai-live.js", "utterances.js"):
        assert files[f"conductor/web/{name}"].isfile(), "in the project it is a link"


def pinned(lock: str) -> dict[str, str]:
    """Read the versions of requirements/``lock``.lock by name."""
    text = (ROOT / "requirements" / f"{lock}.lock").read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))


def test_a_start_installs_no_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    def names(requirements: list[str]) -> set[str]:
        return {re.split(r"[^\w-]", requirement)[0].replace("_", "-") for requirement in requirements}

    extras = {name: names(of_it) for name, of_it in project["optional-dependencies"].items()}
    runtime, asked, dev = pinned("runtime"), pinned("extras"), pinned("dev")
    assert names(project["dependencies"]) <= runtime.keys()
    wanted = {name for extra in ("redis", "postgres", "mcp", "knowledge") for name in extras[extra]}
    assert not wanted & runtime.keys() and wanted | runtime.keys() <= asked.keys()
    assert runtime.items() <= asked.items() and asked.items() <= dev.items()
