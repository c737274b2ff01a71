"""The model providers by name: entry points, imported when their provider is used."""

from __future__ import annotations

from collections.abc import Callable

from conductor.entry_points import MODELS, choose, plugins
from conductor.errors import SettingsError
from conductor.models.base import ModelProvider
from conductor.models.metrics import ModelMetrics
from conductor.models.profiles import ModelProfile, Profiles
from conductor.models.router import ModelRouter, prices_of
from conductor.settings import Settings

# The wrapper of models that write their calls as text: an entry point of the same group, but no provider.
TEXT = "text"


def make_provider(profile: ModelProfile, settings: Settings) -> ModelProvider:
    """Make the provider of a profile. Raises `SettingsError`: an unknown name, or a missing setting."""
    setting = "MODEL_PROVIDER" if profile.file is None else profile.label("provider")
    plugin = choose(MODELS, profile.provider, setting, [TEXT])
    provider: ModelProvider = plugin.make(ModelProvider, profile, settings)
    if settings.daily_cost_budget and prices_of(profile, provider) is None:
        raise SettingsError(
            f"DAILY_COST_BUDGET needs prices, and {profile.heading} has none: set prices in models.toml, "
            "prices = {} for a model that costs nothing."
        )
    return provider


def as_text(provider: ModelProvider, profile: ModelProfile) -> ModelProvider:
    """Wrap the provider of a model that writes its calls as text."""
    wrap: Callable[[ModelProvider, ModelProfile], ModelProvider] = plugins(MODELS)[TEXT].load()
    return wrap(provider, profile)


def make_router(profiles: Profiles, settings: Settings, metrics: ModelMetrics) -> ModelRouter:
    """Make the router over all profiles. Raises `SettingsError`."""
    return ModelRouter(profiles, lambda profile: make_provider(profile, settings), as_text, metrics)
