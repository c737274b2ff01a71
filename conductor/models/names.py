"""The reversible map between tools' dotted names and the names that model services accept.

Anthropic, OpenAI and Bedrock want ``^[a-zA-Z0-9_-]{1,64}$`` (Anthropic up to 128), and dots are not in it.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Container, Iterable

MAX_LENGTH = 64
_ACCEPTED = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_REFUSED = re.compile(r"[^a-zA-Z0-9_-]")
_HASH_DIGITS = 8


def is_accepted(name: str) -> bool:
    """Say whether every service accepts the name as it is."""
    return _ACCEPTED.match(name) is not None


def with_hash(name: str, salt: str = "") -> str:
    """Give an accepted name that keeps the start of ``name`` and ends with a hash of the whole."""
    digest = hashlib.sha256(f"{name}{salt}".encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
    start = _REFUSED.sub("_", name)[: MAX_LENGTH - _HASH_DIGITS - 1]
    return f"{start}_{digest}"


class NameMap:
    """Names for one request: ``agent.spawn`` is ``agent_spawn`` to the service.

    Make it from all names that the request holds, those of the history's calls too. An accepted name stays
    as it is; any other gets underscores for what is refused, and a hash at its end if it is too long or if
    that would be another's name. The map depends on the set of names only, not on their order.
    """

    def __init__(self, names: Iterable[str]) -> None:
        distinct = set(names)
        self._to_service = {name: name for name in distinct if is_accepted(name)}
        others = sorted(distinct - self._to_service.keys())
        plain = {name: _REFUSED.sub("_", name) for name in others}
        wanted = Counter(plain.values())
        taken = set(self._to_service)
        hashed: list[str] = []
        for name, candidate in plain.items():
            if wanted[candidate] == 1 and candidate not in taken and is_accepted(candidate):
                self._to_service[name] = candidate
                taken.add(candidate)
            else:
                hashed.append(name)
        for name in hashed:
            candidate, salt = with_hash(name), ""
            while candidate in taken:  # somebody chose a name that looks like our hash
                salt += "#"
                candidate = with_hash(name, salt)
            self._to_service[name] = candidate
            taken.add(candidate)
        self._to_tool = {service: name for name, service in self._to_service.items()}

    def besides(self, names: Container[str]) -> list[str]:
        """List the names that the map was made from and that are not among ``names``."""
        return [name for name in self._to_service if name not in names]

    def to_service(self, name: str) -> str:
        """Give the service's name of a tool. Raises KeyError for a name that the map was not made from."""
        return self._to_service[name]

    def to_tool(self, name: str) -> str:
        """Give the tool's own name; a name that the model made up comes back as it is."""
        return self._to_tool.get(name, name)
