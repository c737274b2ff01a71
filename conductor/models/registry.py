"""The model providers by name; each module is imported only when chosen."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from conductor.errors import SettingsError
from conductor.models.base import ModelProvider
from conductor.models.profiles import ModelProfile
from conductor.settings import Settings

PROVIDERS = {
    "anthropic": "conductor.models.anthropic:from_profile",
    "demo": "conductor.models.demo:from_profile",
}
"""Name of a provider -> module and function that makes it from a profile."""


def make_provider(profile: ModelProfile, settings: Settings) -> ModelProvider:
    """Make the provider of a profile.

    Raises `SettingsError` for an unknown name, or if the provider lacks a setting.
    """
    target = PROVIDERS.get(profile.provider)
    if target is None:
        known = ", ".join(sorted(PROVIDERS))
        what = "MODEL_PROVIDER" if profile.file is None else profile.label("provider")
        raise SettingsError(f"{what} {profile.provider!r} is unknown; there are: {known}.")
    module, _, function = target.partition(":")
    make = cast(Callable[[ModelProfile, Settings], ModelProvider], getattr(import_module(module), function))
    return make(profile, settings)
