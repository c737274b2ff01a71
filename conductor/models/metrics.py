"""The metrics of the models: tokens and costs by profile, and failures.

Only the event loop's thread may count; any thread may read.
"""

from __future__ import annotations

from collections import Counter as Counts
from dataclasses import fields
from operator import attrgetter

from prometheus_client import CollectorRegistry, Counter

from conductor.models.base import Usage

_TOKENS = tuple(field.name.removesuffix("_tokens") for field in fields(Usage))
_tokens_of = attrgetter(*(field.name for field in fields(Usage)))


class ModelMetrics:
    """The models' metrics, in ``registry`` or their own. ``totals`` sums replies and tokens by kind."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"conductor_model_{name}", text, ("profile", *labels), registry=self.registry)

        self._tokens = counter("tokens", "Tokens of the models by kind.", "kind")
        self._cost = counter("cost", "Cost of the tokens, by the profiles' prices.")
        self._failures = counter("failures", "Requests that failed before the reply began.", "reason")
        self._warmings = counter("cache_warmings", "Requests that only filled the service's prompt cache.")
        self.totals: Counts[str] = Counts()
        self._counters: dict[str, list[Counter]] = {}

    def warmed(self, profile: str, usage: Usage, cost: float) -> None:
        """Count a request that only filled the service's prompt cache."""
        self._warmings.labels(profile).inc()
        self.count(profile, usage, cost, replies=0)

    def count(self, profile: str, usage: Usage, cost: float, replies: int = 1) -> None:
        """Count a reply."""
        self.totals["replies"] += replies
        if profile not in self._counters:
            kinds = [self._tokens.labels(profile, kind) for kind in _TOKENS]
            self._counters[profile] = [self._cost.labels(profile), *kinds]
        counters = self._counters[profile]
        counters[0].inc(cost)
        for kind, counter, tokens in zip(_TOKENS, counters[1:], _tokens_of(usage), strict=True):
            self.totals[kind] += tokens
            counter.inc(tokens)

    def failed(self, profile: str, reason: str) -> None:
        """Count a request that failed before its reply began."""
        self._failures.labels(profile, reason).inc()
