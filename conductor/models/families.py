"""The limits of model families: the least thinking, and the shortest prompt that is cached; data only.

Read on 24 November 2026 in stored copies of the services' pages (platform.claude.com: models, "Thinking",
"Prompt caching"; developers.openai.com: models). Other models get only the profile's settings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

Thinking: TypeAlias = Literal["disabled", "between_tools", "adaptive"]
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

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


def family_of(model: str) -> Family:
    """Give the family of a model; an empty one for an unknown model."""
    return next((family for pattern, family in _FAMILIES if pattern.match(model)), Family())


def claude_reasoning(
    model: str, thinking: Thinking | None, effort: Effort | None
) -> tuple[Thinking | None, Effort | None]:
    """Give the thinking and the effort for Claude: the settings, else the least; None is not sent."""
    if thinking is not None:
        return thinking, effort
    family = family_of(model)
    # "adaptive" is the default.
    if family.thinking[:1] != ("adaptive",) and effort not in _LONG_EFFORTS:
        thinking = next(iter(family.thinking), None)
    return thinking, effort or family.effort


def refusal_of(model: str, thinking: Thinking | None, effort: Effort | None) -> tuple[str, str] | None:
    """Give the field that Claude refuses, and the reason; None if it accepts both."""
    modes = family_of(model).thinking
    if effort is not None and effort not in CLAUDE_EFFORTS:
        return "effort", f"cannot be {effort} with Claude, which takes {', '.join(CLAUDE_EFFORTS)}."
    if thinking is not None and modes and thinking not in modes:
        return "thinking", f"cannot be {thinking} with {model}, which takes {' or '.join(modes)}."
    if thinking in ("disabled", "between_tools") and effort in _LONG_EFFORTS:
        return "effort", f"cannot be {effort} where thinking is {thinking}."
    return None
