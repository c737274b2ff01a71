"""Mistakes of a package that offers plugins end the start with one sentence that names it."""

from __future__ import annotations

import pytest

from conductor.entry_points import STORES, plugins
from conductor.errors import SettingsError
from conductor.models.profiles import load_profiles
from conductor.models.registry import make_provider
from conductor.settings import load_settings
from conductor.stores.registry import make_store, open_store
from conductor.tools.toolsets import make_toolsets
from tests.conftest import InstallPackage

SECRET = "hunter2-hunter2"
TOOLSET = """
from conductor.tools.base import ToolSpec, Toolset
from conductor.tools.outcomes import succeeded


class Garage(Toolset):
    def specs(self):
        schema = {{"type": "object"}}
        return [ToolSpec(name="garage.open", description="Open it.", input_schema=schema, {fields})]

    async def call(self, name, arguments, context):
        return succeeded(1)


def make(settings):
    return Garage()
"""


@pytest.mark.parametrize(
    ("factory", "mistake"),
    [
        (f'raise ValueError("{SECRET}")', "cannot be made: ValueError in acme_model.py, line 2"),
        (
            "pass\nmake = len",
            "cannot be made: len() takes exactly one argument (2 given)",
        ),
        ("return {}", "is a dict without aclose, name, start, stream"),
    ],
)
def test_a_factory_that_fails_is_named(install_package: InstallPackage, factory: str, mistake: str) -> None:
    module = f"def make(profile, settings):\n    {factory}\n"
    install_package("acme", {"conductor.models": {"acme": "acme_model:make"}}, acme_model=module)
    settings = load_settings(None, model_provider="acme")
    with pytest.raises(SettingsError) as error:
        make_provider(load_profiles(settings).main, settings)
    assert str(error.value) == f'The model provider "acme" of acme 1.0 {mistake}.'


@pytest.mark.parametrize(
    ("fields", "mistake"),
    [
        ("risk='high'", "its source must be the name of the toolset; .*device"),
        ("source=''", "its source must be the name of the toolset"),
        ("source='garage', risk='High'", "its risk must be one of safe, medium, high"),
        ("source='garage', effect='delete'", "its effect must be one of read, write, irreversible"),
    ],
)
def test_a_tool_that_cannot_be_offered_is_named(
    install_package: InstallPackage, fields: str, mistake: str
) -> None:
    module = TOOLSET.format(fields=fields)
    install_package("acme", {"conductor.toolsets": {"garage": "acme_garage:make"}}, acme_garage=module)
    place = 'The tool garage.open of the toolset "garage" of acme 1.0 cannot be offered'
    with pytest.raises(SettingsError, match=f"^{place}: {mistake}.*[.]$"):
        make_toolsets(load_settings(None))


def test_a_toolset_that_fails_to_list_its_tools_is_named(install_package: InstallPackage) -> None:
    module = TOOLSET.format(fields=f"source=int('{SECRET}')")
    install_package("acme", {"conductor.toolsets": {"garage": "acme_garage:make"}}, acme_garage=module)
    with pytest.raises(SettingsError) as error:
        make_toolsets(load_settings(None))
    line = 1 + module.splitlines().index(next(x for x in module.splitlines() if SECRET in x))
    sentence = f"cannot list its tools: ValueError in acme_garage.py, line {line}."
    assert str(error.value) == f'The toolset "garage" of acme 1.0 {sentence}'


@pytest.mark.parametrize(
    ("warnings", "mistake"),
    [
        ("async def warnings(self): return open('secret')", "FileNotFoundError in folder_store.py, line 6"),
        ("def warnings(self): return []", "object list can't be used in 'await' expression"),
    ],
)
async def test_a_store_that_fails_to_open_is_named(
    install_package: InstallPackage, warnings: str, mistake: str
) -> None:
    module = f"""
from conductor.stores.memory import MemoryStore


class FolderStore(MemoryStore):
    {warnings}


def make(url, options):
    return FolderStore()
"""
    install_package("acme", {STORES: {"folder": "folder_store:make"}}, folder_store=module)
    settings = load_settings(None, session_store_url="folder://x")
    with pytest.raises(SettingsError) as error:
        await open_store(make_store(settings), settings)
    assert str(error.value) == f'The session store "folder" of acme 1.0 cannot be opened: {mistake}.'


def test_two_packages_cannot_offer_the_same_name(install_package: InstallPackage) -> None:
    for package in ("acme", "zenith"):
        install_package(package, {STORES: {"folder": "folder_store:make"}})
    with pytest.raises(SettingsError, match='1.0 both offer the session store "folder"'):
        plugins(STORES)
