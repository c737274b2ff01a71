"""What the gate costs a call, and how the time of redaction grows with hostile input; in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.scenarios import ToolMetrics
from conductor.messages import ToolCall
from conductor.settings import Limits
from conductor.tools.base import CallContext, ToolOutcome, ToolSpec, succeeded
from conductor.tools.executor import PreparedCall, ToolExecutor
from conductor.tools.permissions import Gate
from conductor.tools.redaction import Redactor
from conductor.tools.rules import Rule, RuleEffect
from tests.tools.test_redaction import adversarial_inputs

CALLS = 5_000
SMALL, LARGE = 65_536, 262_144
_EFFECTS: tuple[RuleEffect, ...] = ("deny", "ask", "allow")
RULES = tuple(
    Rule(effect, f"tool_{number}.*", args={"path": {"under": "/srv"}} if number % 2 else {})
    for number, effect in enumerate(_EFFECTS * 4)
)
SECRETS = ("a-key-that-nobody-should-see-1", "a-token-that-nobody-should-see-2")
ANSWER = {"time": "2026-03-01T12:00:00+00:00", "weekday": "Sunday", "time_zone": "Europe/Berlin"}
ARGUMENTS = '{"timezone":"Europe/Berlin"}'


class _Clock:
    """A safe tool that costs nothing itself."""

    spec = ToolSpec(
        name="clock",
        description="Tells the time.",
        input_schema={"type": "object", "properties": {"timezone": {"type": "string", "maxLength": 64}}},
        source="builtin",
        risk="safe",
        effect="read",
    )

    def specs(self) -> Sequence[ToolSpec]:
        """List it."""
        return (self.spec,)

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Answer at once."""
        return succeeded(ANSWER)


def gate_costs() -> ToolMetrics:
    """Measure a safe call: validated, permitted under rules, redacted and shaped, beyond running it."""
    clock = _Clock()
    limits = Limits(calls_per_minute=1e12)
    executor = ToolExecutor([clock], limits, Gate(RULES), Redactor(SECRETS))
    call, outcome = ToolCall("call_1", "clock", ARGUMENTS), succeeded(ANSWER)

    def whole() -> None:
        assert isinstance(executor.prepare(call), PreparedCall)
        executor.to_result("call_1", outcome)

    def bare() -> None:
        assert outcome.content

    return {"cpu_us_a_safe_call": round((_cpu(whole) - _cpu(bare)) * 1e6, 1), "rules": len(RULES)}


def redaction_growth() -> ToolMetrics:
    """Measure the worst growth when hostile input is four times as long; linear is 4."""
    redactor = Redactor(SECRETS, paths=True)
    small, large = adversarial_inputs(SMALL), adversarial_inputs(LARGE)
    growth, slowest = {}, {}
    for name in small:
        few, many = (min(_once(redactor, text) for _ in range(3)) for text in (small[name], large[name]))
        growth[name] = many / max(few, 1e-4)
        slowest[name] = many
    worst = max(growth, key=lambda name: growth[name])
    return {
        "worst_growth_by_4": round(growth[worst], 1),
        "slowest_ms_a_64_kib": round(max(slowest.values()) * 1000 * SMALL / LARGE, 1),
        "inputs": len(small),
    }


def _once(redactor: Redactor, text: str) -> float:
    began = time.process_time()
    redactor.text(text)
    return time.process_time() - began


def _cpu(work: Callable[[], None]) -> float:
    """Measure the CPU seconds of one run, the best of five series."""
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        for _ in range(CALLS):
            work()
        best = min(best, time.process_time() - began)
    return best / CALLS
