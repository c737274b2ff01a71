"""Model families and their prices: the least thinking, and the shortest prompt that is cached.

Read on 24 November 2026 in stored copies of the services' pages (platform.claude.com: models, "Thinking",
"Prompt caching"; developers.openai.com: models). Other models get only the profile's settings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from conductor.errors import SettingsError
from conductor.models.profiles import Effort, ModelProfile, Prices, Thinking

PRICES: dict[str, dict[str, float]] = {
    "claude-haiku-5-5": {"input": 0.10, "output": 0.50, "cache_read": 0.01, "cache_write": 0.125},
    "claude-sonnet-5-5": {"input": 2.00, "output": 10.00, "cache_read": 0.10, "cache_write": 2.50},
    "claude-opus-5-5": {"input": 4.00, "output": 20.00, "cache_read": 0.20, "cache_write": 5.00},
    "gpt-6-luna": {"input": 0.10, "output": 0.50, "cache_read": 0.01, "cache_write": 0.125},
    "gpt-6.1-terra": {"input": 1.00, "output": 5.00, "cache_read": 0.05, "cache_write": 1.25},
    "gpt-6.2-sol": {"input": 2.00, "output": 10.00, "cache_read": 0.10, "cache_write": 2.50},
}
"""Dollars for a million tokens at the services' own addresses.

Prices of short prompts: up to 100,000 tokens with Claude Haiku, 272,000 with OpenAI (a history takes at most
60,000). Cache writes are priced for the shortest lifetime.
"""

CLAUDE_EFFORTS: tuple[Effort, ...] = ("low", "medium", "high", "xhigh", "max")
# Claude accepts these efforts only with adaptive thinking.
_LONG_EFFORTS = ("xhigh", "max")


@dataclass(frozen=True, slots=True)
class Family:
    """A family. ``thinking``: its modes, the least first. ``effort``: the least, if no mode limits it.

    ``cached_tokens``: the shortest prompt that its service caches.
    """

    thinking: tuple[Thinking, ...] = ()
    effort: Effort | None = None
    cached_tokens: int | None = None


# The first match counts. Names of gateways and of Bedrock contain Claude's names.
_FAMILIES = [
    (re.compile(pattern), family)
    for pattern, family in (
        (r".*claude-haiku-5-5", Family(("disabled", "adaptive"), cached_tokens=512)),
        (r".*claude-sonnet-5-5", Family(("between_tools", "adaptive"), cached_tokens=1024)),
        (r".*claude-(?:opus-5-5|fable-5|mythos-5)", Family(("adaptive",), "low", 512)),
        (r".*claude-opus-5", Family(("disabled", "adaptive"), cached_tokens=512)),
        (r".*claude-sonnet-5", Family(("disabled", "adaptive"), cached_tokens=1024)),
        # Claude 4 and GPT-5.1 to 5.4 think only on request.
        (r"gpt-(?:5\.6|6-luna|6-sol|6\.1-terra)", Family(effort="none")),
        (r"gpt-(?:6-astra|6\.1-sol|6\.2)", Family(effort="low")),
    )
]


@dataclass(frozen=True, slots=True)
class Claude:
    """A Claude model at a ``provider``. Without settings it thinks as little as it allows."""

    model: str
    thinking: Thinking | None = None
    effort: Effort | None = None
    provider: str = "anthropic"

    def least_reasoning(self) -> tuple[Thinking | None, Effort | None]:
        """Return the thinking and the effort for a request, by default the least. None is omitted."""
        if self.thinking is not None:
            return self.thinking, self.effort
        family, thinking = family_of(self.model), None
        # "adaptive" is the default.
        if family.thinking[:1] != ("adaptive",) and self.effort not in _LONG_EFFORTS:
            thinking = next(iter(family.thinking), None)
        return thinking, self.effort or family.effort


def family_of(model: str) -> Family:
    """Return the family of a model; an empty one for an unknown model."""
    return next((family for pattern, family in _FAMILIES if pattern.match(model)), Family())


# Bedrock's families that take images, by the API's page of supported models.
_SEE_AT_BEDROCK = re.compile(
    r".*(?:anthropic\.claude|amazon\.nova-(?!micro)|meta\.llama3-2-(?:11|90)b|meta\.llama4|pixtral)"
)
# OpenAI's models that take none.
_BLIND_AT_OPENAI = re.compile(r"gpt-3|gpt-4(?:$|-0|-32k)|o1-(?:mini|preview)|o3-mini|davinci|babbage|gpt-oss")


def sees(profile: ModelProfile, *, official: bool = True) -> bool:
    """Return whether a profile's model takes images: its own setting, else by its name.

    Of a model at another address (not ``official``) only Claude's names tell.
    """
    model = profile.model or ""
    if profile.sees is not None:
        return profile.sees
    match profile.provider:
        case "anthropic":
            return official or "claude" in model
        case "bedrock":
            return _SEE_AT_BEDROCK.match(model) is not None
        case "openai":
            return official and _BLIND_AT_OPENAI.match(model) is None
    return False


def prices_of(profile: ModelProfile) -> Prices | None:
    """Return the prices of a profile's model at its service's own address; None if they are not known."""
    is_own = profile.provider in ("anthropic", "openai") and profile.platform == "anthropic"
    if not is_own or profile.base_url is not None or profile.model not in PRICES:
        return None
    return Prices(**PRICES[profile.model])


def check_claude(profile: ModelProfile) -> None:
    """Raise `SettingsError` for a thinking or an effort that the Claude model of a profile refuses."""
    thinking, effort = profile.thinking, profile.effort
    modes = family_of(profile.model or "").thinking
    if effort is not None and effort not in CLAUDE_EFFORTS:
        efforts = ", ".join(CLAUDE_EFFORTS)
        raise SettingsError(
            f"{profile.label('effort')} cannot be {effort} with Claude, which takes {efforts}."
        )
    if thinking is not None and modes and thinking not in modes:
        reason = f"cannot be {thinking} with {profile.model}, which takes {' or '.join(modes)}"
        raise SettingsError(f"{profile.label('thinking')} {reason}.")
    if thinking in ("disabled", "between_tools") and effort in _LONG_EFFORTS:
        raise SettingsError(f"{profile.label('effort')} cannot be {effort} where thinking is {thinking}.")
