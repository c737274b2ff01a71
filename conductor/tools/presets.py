"""Presets: what happens to the calls that no rule of the operator and no decision of a person is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

from conductor.tools.base import ToolSpec

Preset: TypeAlias = Literal["read_only", "ask_everything", "standard", "trusted"]
PresetRule: TypeAlias = tuple[Literal["allow", "ask", "deny"], str]

UNDONE = "It cannot be undone."
_EFFECT_WORDS = {
    "read": "It may read something private.",
    "write": "It changes something.",
    "irreversible": UNDONE,
}


def _standard(spec: ToolSpec) -> PresetRule:
    if spec.approval == "never":
        return "allow", "The app declares that it needs no approval."
    if spec.risk == "safe" and spec.approval is None:
        return "allow", "It is safe."
    if spec.risk == "safe":
        return "ask", "The app wants you to be asked each time."
    return "ask", _EFFECT_WORDS[spec.effect]


def _read_only(spec: ToolSpec) -> PresetRule:
    if spec.effect != "read":
        return "deny", "The preset read_only allows reads alone."
    return _standard(spec)


def _ask_everything(spec: ToolSpec) -> PresetRule:
    return "ask", "The preset ask_everything asks about every call."


def _trusted(spec: ToolSpec) -> PresetRule:
    if spec.effect == "irreversible" or spec.risk == "high":
        return _standard(spec)
    return "allow", "The preset trusted allows what can be undone."


PRESETS: Mapping[Preset, Callable[[ToolSpec], PresetRule]] = MappingProxyType(
    {
        "read_only": _read_only,
        "ask_everything": _ask_everything,
        "standard": _standard,
        "trusted": _trusted,
    }
)
"""The decision of each preset about a tool, with its reason for people."""

ABOUT: Mapping[Preset, str] = MappingProxyType(
    {
        "read_only": "reads as in standard; nothing is changed, and the model does not see what would",
        "ask_everything": "every call asks, also about safe tools",
        "standard": "safe tools run, others ask; the app may declare that its tool needs no approval",
        "trusted": "what can be undone runs; high risk and what cannot be undone ask",
    }
)
"""What each preset does, as a clause."""
