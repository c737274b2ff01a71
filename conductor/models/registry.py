"""The model providers by name; a module is imported only when its provider is used."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from conductor.errors import SettingsError
from conductor.models.base import ModelProvider
from conductor.models.metrics import ModelMetrics
from conductor.models.profiles import ModelProfile, Profiles
from conductor.models.router import ModelRouter
from conductor.settings import Settings

PROVIDERS = {
    "anthropic": "conductor.plugins.models.anthropic:from_profile",
    "bedrock": "conductor.plugins.models.bedrock:from_profile",
    "demo": "conductor.plugins.models.demo:from_profile",
    "llama_cpp": "conductor.plugins.models.llama_cpp:from_profile",
    "openai": "conductor.plugins.models.openai:from_profile",
}
"""Name of a provider -> module and function that makes it from a profile."""


# On the internet if they have no base_url.
_HOSTED = frozenset({"anthropic", "bedrock", "openai"})


def make_provider(profile: ModelProfile, settings: Settings) -> ModelProvider:
    """Make the provider of a profile. Raises `SettingsError`: an unknown name, or a missing setting."""
    target = PROVIDERS.get(profile.provider)
    if target is None:
        names = ", ".join(sorted(PROVIDERS))
        label = "MODEL_PROVIDER" if profile.file is None else profile.label("provider")
        raise SettingsError(f"{label} {profile.provider!r} is unknown; there are: {names}.")
    module, _, function = target.partition(":")
    make = cast(Callable[[ModelProfile, Settings], ModelProvider], getattr(import_module(module), function))
    return make(profile, settings)


def as_text(provider: ModelProvider, profile: ModelProfile) -> ModelProvider:
    """Wrap the provider of a model that writes its calls as text."""
    from conductor.plugins.models.text_protocol import TextProtocol

    return TextProtocol(provider, profile.style, profile.max_tokens)


def check_local(profiles: Profiles, settings: Settings) -> None:
    """Raise `SettingsError` with LOCAL_ONLY if the default model is a hosted service."""
    main = profiles.main
    if settings.local_only and main.provider in _HOSTED and main.base_url is None:
        raise SettingsError(
            f"LOCAL_ONLY is set, and {main.title} is hosted elsewhere ({main.label('base_url')})."
        )


def make_router(profiles: Profiles, settings: Settings, metrics: ModelMetrics) -> ModelRouter:
    """Make the router over all profiles. Raises `SettingsError`, also as `check_local` does."""
    check_local(profiles, settings)
    return ModelRouter(profiles, lambda profile: make_provider(profile, settings), as_text, metrics)
