"""The figures of the models: tokens and money by profile and subject, and failures.

Count in the thread of the event loop only; any thread may read.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from prometheus_client import CollectorRegistry, Counter

from conductor.models.base import Usage

# Subjects with figures of their own; the others are counted together.
MAX_SUBJECTS = 1000
OTHERS = "(others)"
_TOKENS = tuple(field.name.removesuffix("_tokens") for field in fields(Usage))


class ModelMetrics:
    """The models' figures, in a registry of their own or in ``registry``."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._tokens = Counter(
            "conductor_model_tokens",
            "Tokens of the models by kind.",
            ("profile", "kind"),
            registry=self.registry,
        )
        self._cost = Counter(
            "conductor_model_cost",
            "Money for the tokens, by the profiles' prices.",
            ("profile",),
            registry=self.registry,
        )
        self._failures = Counter(
            "conductor_model_failures",
            "Requests that failed before the reply began.",
            ("profile", "reason"),
            registry=self.registry,
        )
        self._warmings = Counter(
            "conductor_model_cache_warmings",
            "Requests that only filled the service's prompt cache.",
            ("profile",),
            registry=self.registry,
        )
        self._used: dict[tuple[str, str], dict[str, float]] = {}
        self._subjects: set[str] = set()

    def warmed(self, subject: str, profile: str, usage: Usage, cost: float) -> None:
        """Count a request that only filled the service's prompt cache."""
        self._warmings.labels(profile).inc()
        self.used(subject, profile, usage, cost, replies=0)

    def used(self, subject: str, profile: str, usage: Usage, cost: float, replies: int = 1) -> None:
        """Count a reply."""
        if subject not in self._subjects:
            if len(self._subjects) >= MAX_SUBJECTS:
                subject = OTHERS
            self._subjects.add(subject)
        row = self._used.setdefault(
            (profile, subject), {"replies": 0, **dict.fromkeys(_TOKENS, 0), "cost": 0}
        )
        row["replies"] += replies
        row["cost"] += cost
        self._cost.labels(profile).inc(cost)
        for kind, tokens in zip(_TOKENS, asdict(usage).values(), strict=True):
            row[kind] += tokens
            self._tokens.labels(profile, kind).inc(tokens)

    def failed(self, profile: str, reason: str) -> None:
        """Count a request that failed before its reply began."""
        self._failures.labels(profile, reason).inc()

    def snapshot(self) -> list[dict[str, Any]]:
        """Give a row for each profile and subject: ``replies``, tokens by kind, and ``cost``."""
        return [
            {"profile": profile, "subject": subject, **row}
            for (profile, subject), row in sorted(self._used.items())
        ]
