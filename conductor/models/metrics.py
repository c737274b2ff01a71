"""The metrics of the models: tokens and money by profile, and failures.

Count in the thread of the event loop only; any thread may read.
"""

from __future__ import annotations

from collections import Counter as Counts
from dataclasses import asdict, fields

from prometheus_client import CollectorRegistry, Counter

from conductor.models.base import Usage

_TOKENS = tuple(field.name.removesuffix("_tokens") for field in fields(Usage))


class ModelMetrics:
    """The models' metrics, in a registry of their own or in ``registry``.

    ``totals`` are the replies and their tokens by kind, of all profiles together.
    """

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
        self.totals: Counts[str] = Counts()

    def warmed(self, profile: str, usage: Usage, cost: float) -> None:
        """Count a request that only filled the service's prompt cache."""
        self._warmings.labels(profile).inc()
        self.used(profile, usage, cost, replies=0)

    def used(self, profile: str, usage: Usage, cost: float, replies: int = 1) -> None:
        """Count a reply."""
        self.totals["replies"] += replies
        self._cost.labels(profile).inc(cost)
        for kind, tokens in zip(_TOKENS, asdict(usage).values(), strict=True):
            self.totals[kind] += tokens
            self._tokens.labels(profile, kind).inc(tokens)

    def failed(self, profile: str, reason: str) -> None:
        """Count a request that failed before its reply began."""
        self._failures.labels(profile, reason).inc()
