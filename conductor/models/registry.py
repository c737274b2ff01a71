"""The model providers by name; each module is imported only when chosen."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from conductor.errors import SettingsError
from conductor.models.base import ModelProvider
from conductor.settings import Settings

PROVIDERS = {
    "anthropic": "conductor.models.anthropic:from_settings",
    "demo": "conductor.models.demo:from_settings",
}
"""Name of a provider -> module and function that makes it from the settings."""


def make_provider(settings: Settings) -> ModelProvider:
    """Make the provider that the settings choose.

    Raises `SettingsError` for an unknown name, or if the provider lacks a setting.
    """
    target = PROVIDERS.get(settings.provider)
    if target is None:
        known = ", ".join(sorted(PROVIDERS))
        raise SettingsError(f"MODEL_PROVIDER {settings.provider!r} is unknown; there are: {known}.")
    module, _, function = target.partition(":")
    make = cast(Callable[[Settings], ModelProvider], getattr(import_module(module), function))
    return make(settings)
