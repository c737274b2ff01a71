"""The reversible map between tools' dotted names and the names that model services accept.

Anthropic, OpenAI and Bedrock accept ``^[a-zA-Z0-9_-]{1,64}$`` (Anthropic up to 128), without dots.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Iterable

# Characters of a name: the smallest limit of the services.
MAX_LENGTH = 64
_ACCEPTED = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_REFUSED = re.compile(r"[^a-zA-Z0-9_-]")
_DECORATED = re.compile(r"\s*(?:functions?\.)?([\w-]+)(?::\d+)?\s*(?:<\|.*)?\Z", re.DOTALL)
_HASH_DIGITS = 8


def is_accepted(name: str) -> bool:
    """Return whether every service accepts the name."""
    return _ACCEPTED.match(name) is not None


def with_hash(name: str, salt: str = "") -> str:
    """Make an accepted name that keeps the start of ``name`` and ends with a hash of the whole."""
    digest = hashlib.sha256(f"{name}{salt}".encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
    start = _REFUSED.sub("_", name)[: MAX_LENGTH - _HASH_DIGITS - 1]
    return f"{start}_{digest}"


class ToolNameMap:
    """The names of one request, with the names of the history's calls: ``agent.spawn`` is ``agent_spawn``.

    An accepted name is unchanged. In other names, refused characters become underscores, and a hash is added
    to a name that is too long or taken. The order of the names does not matter.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._to_service: dict[str, str] = {}
        assigned: set[str] = set()
        # A tool's accepted name is never given to another. In any order the names are the same: others would
        # spoil the cached prefix.
        for name in sorted(set(names), key=lambda name: (not is_accepted(name), name)):
            candidate, salt = _REFUSED.sub("_", name), ""
            while candidate in assigned or not is_accepted(candidate):
                candidate = with_hash(name, salt)
                salt += "#"
            self._to_service[name] = candidate
            assigned.add(candidate)
        self._to_tool = {service: name for name, service in self._to_service.items()}

    def besides(self, names: Container[str]) -> list[str]:
        """List the names in the map that are not among ``names``."""
        return [name for name in self._to_service if name not in names]

    def to_service(self, name: str) -> str:
        """Return the service's name of a tool. Raises KeyError for a name that is not in the map."""
        return self._to_service[name]

    def to_tool(self, name: str) -> str:
        """Return the tool's own name; an unknown name is unchanged.

        Some services leave marks of their template: ``functions.``, ``:0``, ``<|channel|>json``.
        """
        if name not in self._to_tool and (match := _DECORATED.match(name)) and match[1] in self._to_tool:
            name = match[1]
        return self._to_tool.get(name, name)
