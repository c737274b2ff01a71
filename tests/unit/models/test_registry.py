"""The registry: each name leads to a provider that can be made, and to nothing heavy before it is chosen."""

from __future__ import annotations

import subprocess
import sys

import pytest

from conductor.entry_points import MODELS, plugins
from conductor.errors import SettingsError
from conductor.models.base import ModelProvider
from conductor.models.profiles import load_profiles
from conductor.models.registry import make_provider
from conductor.plugins.models.demo import DemoProvider
from conductor.settings import Settings, load_settings

KEY = "sk-hunter2-hunter2"


def provider_of(settings: Settings) -> ModelProvider:
    """Make the provider of the settings' own profile."""
    return make_provider(load_profiles(settings).main, settings)


@pytest.mark.parametrize("name", [*plugins(MODELS)])
def test_an_entry_point_leads_to_a_function(name: str) -> None:
    assert callable(plugins(MODELS)[name].load())


async def test_the_demo_is_made_without_any_setting() -> None:
    provider = provider_of(load_settings(None, model_provider="demo"))
    assert isinstance(provider, DemoProvider) and provider.name == "demo"
    await provider.aclose()


@pytest.mark.parametrize(
    "name", ["anthropicc", "", "text", "demo:from_profile", "conductor.plugins.models.demo:from_profile"]
)
def test_an_unknown_name_is_one_sentence_that_lists_the_known_ones(name: str) -> None:
    settings = load_settings(None).model_copy(update={"model_provider": name or "none"})
    with pytest.raises(SettingsError) as caught:
        provider_of(settings)
    assert str(caught.value).startswith("MODEL_PROVIDER ") and str(caught.value).endswith(
        ": anthropic, bedrock, demo, llama_cpp, openai."
    )


async def test_claude_is_made_with_a_key_and_refused_without() -> None:
    with pytest.raises(SettingsError, match="ANTHROPIC_API_KEY") as caught:
        provider_of(load_settings(None, model_provider="anthropic"))
    assert "\n" not in str(caught.value)
    provider = provider_of(load_settings(None, anthropic_api_key=KEY))
    assert provider.name == "anthropic" and KEY not in repr(provider)
    await provider.aclose()


def test_making_a_provider_imports_no_other_ones_modules() -> None:
    program = (
        "import sys\n"
        "from conductor.models.profiles import load_profiles\n"
        "from conductor.models.registry import make_provider\n"
        "from conductor.settings import load_settings\n"
        "settings = load_settings(None, model_provider='demo')\n"
        "make_provider(load_profiles(settings).main, settings)\n"
        "print(sorted(m for m in sys.modules if m.startswith('conductor.plugins.models.anthropic')))"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert process.stdout.strip() == "[]", process.stderr
