"""What families of models allow: how little they think, and how short a prompt is cached; data only.

Read on 24 November 2026 in stored copies of the services' pages (platform.claude.com: models, "Thinking",
"Prompt caching"; developers.openai.com: models). A model that stands here nowhere is sent nothing but what is
set.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

Thinking: TypeAlias = Literal["disabled", "between_tools", "adaptive"]
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

CLAUDE_EFFORTS: tuple[Effort, ...] = ("low", "medium", "high", "xhigh", "max")
# Claude refuses these efforts unless it may think as it likes.
_LONG_EFFORTS = ("xhigh", "max")


@dataclass(frozen=True, slots=True)
class Family:
    """What a family allows.

    ``thinking``: the modes that it takes, the least first. ``effort``: the least one, where nothing else
    limits its thinking. ``cached_tokens``: the shortest prompt that its service caches.
    """

    thinking: tuple[Thinking, ...] = ()
    effort: Effort | None = None
    cached_tokens: int | None = None


# The first that matches counts. Claude's names also stand within those of gateways and of Bedrock.
_FAMILIES = [
    (re.compile(pattern), family)
    for pattern, family in (
        (r".*claude-haiku-5-5", Family(("disabled", "adaptive"), cached_tokens=512)),
        (r".*claude-sonnet-5-5", Family(("between_tools", "adaptive"), cached_tokens=1024)),
        (r".*claude-(?:opus-5-5|fable-5|mythos-5)", Family(("adaptive",), "low", 512)),
        (r".*claude-opus-5", Family(("disabled", "adaptive"), cached_tokens=512)),
        (r".*claude-sonnet-5", Family(("disabled", "adaptive"), cached_tokens=1024)),
        # Claude 4 and GPT-5.1 to 5.4 do not think unless they are told to.
        (r"gpt-(?:5\.6|6-luna|6-sol|6\.1-terra)", Family(effort="none")),
        (r"gpt-(?:6-astra|6\.1-sol|6\.2)", Family(effort="low")),
    )
]


def family_of(model: str) -> Family:
    """Give the family of a model; an empty one if it is not known."""
    return next((family for pattern, family in _FAMILIES if pattern.match(model)), Family())


def claude_reasoning(
    model: str, thinking: Thinking | None, effort: Effort | None
) -> tuple[Thinking | None, Effort | None]:
    """Give the thinking and the effort to send to Claude: those that are set, else the least.

    None is left out of the request.
    """
    if thinking is not None:
        return thinking, effort
    family = family_of(model)
    # "adaptive" is what they do if it is left out.
    if family.thinking[:1] != ("adaptive",) and effort not in _LONG_EFFORTS:
        thinking = next(iter(family.thinking), None)
    return thinking, effort or family.effort


def refusal_of(model: str, thinking: Thinking | None, effort: Effort | None) -> tuple[str, str] | None:
    """Tell which of the two Claude refuses, and why, in words to follow its name; None if it takes them."""
    modes = family_of(model).thinking
    if effort is not None and effort not in CLAUDE_EFFORTS:
        return "effort", f"cannot be {effort} with Claude, which takes {', '.join(CLAUDE_EFFORTS)}."
    if thinking is not None and modes and thinking not in modes:
        return "thinking", f"cannot be {thinking} with {model}, which takes {' or '.join(modes)}."
    if thinking in ("disabled", "between_tools") and effort in _LONG_EFFORTS:
        return "effort", f"cannot be {effort} where thinking is {thinking}."
    return None
