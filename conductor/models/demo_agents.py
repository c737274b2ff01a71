"""How people ask for coding agents: the task, the repository, and which agent is meant."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# Longer transcripts are no requests; the bound keeps an utterance of any size cheap.
MAX_UNDERSTOOD = 2000

Kind = Literal["call", "say", "count", "repeat", "recall", "help", "place", "repository", "unclear"]


@dataclass(frozen=True, slots=True)
class Wish:
    """One thing that was asked for.

    ``call``: run ``tool`` with ``values`` by role (`conductor.models.demo_tools` knows the arguments' names),
    or with the JSON text ``said`` if ``values`` is None. ``said`` is else how the user put it, or what is to
    be said. ``repository`` (``values["repository"]``) and ``place`` mean something only after an earlier
    request.
    """

    kind: Kind
    tool: str = ""
    values: Mapping[str, Any] | None = field(default_factory=dict)
    said: str = ""


AN_AGENT = r"(?:(?:a|an|another|new|coding|cloud|background)\s+){0,4}agent\b"
THE_AGENT = r"(?:(?:the|my|that)\s+)?(?:(?:last|coding|cloud)\s+)?agent\b"
_REPOSITORY = (
    r"(?:https?://)?(?:github\.com/)?(?P<owner>[A-Za-z0-9][\w-]{0,60})(?:\s?/\s?|\s+slash\s+)"
    r"(?P<name>[\w.-]{1,100})(?:\s+repo(?:sitory)?)?"
)
_THE_REPOSITORY = rf"(?:the\s+)?(?:repo(?:sitory)?\s+)?{_REPOSITORY}"
_FIRST = re.compile(rf"(?i)^[\s,]*(?:in|on|for)\s+{_THE_REPOSITORY}(?![\w/])")
_LAST = re.compile(rf"(?i)[\s,]+(?:in|on|for|from|using|with)\s+{_THE_REPOSITORY}[.?!\s]*$")
_ALONE = re.compile(
    rf"(?i)^(?:(?:in|on|use|for|it's|it is|the|yes|please|take|repo|repository)[\s,]+){{0,5}}{_REPOSITORY}"
    r"(?:[\s,]+(?:please|then))?[.?!\s]*$"
)
_FOLDERS = frozenset(
    "src lib app apps test tests docs doc cmd pkg packages internal scripts bin etc usr".split()
)
_FILE_ENDING = re.compile(
    r"\.(?:py|tsx?|jsx|go|rs|java|swift|kt|c|h|cpp|md|json|ya?ml|toml|txt|sh|html|css)$"
)
_PULL_REQUEST = re.compile(r"(?i)\b(?:open|create|make|raise|file)\s+(?:a\s+|the\s+)?(?:pull request|pr)\b")
_BRANCH = re.compile(r"(?i)\b(?:on|in|create|make|use)\s+(?:a|its)\s+(?:new\s+|own\s+|separate\s+)?branch\b")
_NEGATION = re.compile(r"(?i)\b(?:not|never|without|no)\b|n['\u2019]t\b")
_TO = re.compile(r"(?i)^[\s,:]*(?:to|that should|that will|that|which|for)\b[\s,:]*")
_IDLE_WORDS = re.compile(r"(?i)\b(?:please|doing|going|now|getting on)\b")


def agent_wanted(rest: str) -> Wish:
    """Read what followed "start an agent": the task, and the repository if one was named."""
    task = " ".join(rest.split())
    values: dict[str, Any] = {}
    for pattern in (_FIRST, _LAST):
        if (found := pattern.search(task)) and (name := _name(found)):
            values["repository"] = name
            task = (task[: found.start()] + " " + task[found.end() :]).strip()
            break
    # Both stay false unless they were asked for; any "no" or "not" leaves them so.
    negated = _NEGATION.search(task)
    values["pull_request"] = not negated and bool(_PULL_REQUEST.search(task))
    values["branch"] = not negated and bool(_BRANCH.search(task))
    values["prompt"] = _TO.sub("", task).strip(" .,:")
    return Wish("call", "agent.spawn", values)


def repository_of(text: str) -> str | None:
    """Return owner/name if the text names a repository and nothing else."""
    match = _ALONE.match(text.strip()[:MAX_UNDERSTOOD])
    return _name(match) if match else None


def agent_meant(name: str | None) -> str:
    """Return which agent is meant, "" for the latest."""
    name = _IDLE_WORDS.sub("", name or "").strip(" .,?!:")
    return "" if name.casefold() in ("it", "one") else name


def _name(match: re.Match[str]) -> str | None:
    """Return owner/name, or None for what is rather a file: a repository is never guessed."""
    owner, name = match["owner"], match["name"].rstrip(".")
    if not name or owner.casefold() in _FOLDERS or _FILE_ENDING.search(name.casefold()):
        return None
    return f"{owner}/{name}"
