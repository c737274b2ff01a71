"""The executor: find, validate, permit, limit, run, redact, truncate; each call has an outcome."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest

from conductor.messages import ToolCall
from conductor.rate_limit import TokenBucket
from conductor.settings import Limits
from conductor.tools.base import CallContext, Toolset, ToolSpec
from conductor.tools.executor import ApprovalNeeded, DryRun, PreparedCall, ToolExecutor
from conductor.tools.outcomes import ToolOutcome, failed, succeeded
from conductor.tools.permissions import Gate, GateOptions, Verdict
from conductor.tools.redaction import Redactor
from conductor.tools.rules import Rule

WAIT = 60.0
LIMITS = Limits(tool_timeout=0.02, interactive_timeout=0.04, max_observation_bytes=200)
CONTEXT = CallContext(session_id="s-1", call_id="c-1", time_zone="Europe/Berlin", locale="de-DE")
ADD = ToolSpec(
    name="add_task",
    description="Add a task.",
    input_schema={
        "type": "object",
        "properties": {"text": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["text"],
        "additionalProperties": False,
    },
    source="builtin",
    approval="never",
)
NOTED = '{"text":"x","n":"7"}'
NAP = replace(ADD, name="nap", input_schema={"type": "object"})


class Shelf(Toolset):
    """A toolset whose tools run a function of the test."""

    def __init__(self, does: Callable[[Mapping[str, Any]], Any], *specs: ToolSpec) -> None:
        self._does = does
        self._specs = specs
        self.calls: list[tuple[str, Mapping[str, Any], CallContext]] = []

    def specs(self) -> Sequence[ToolSpec]:
        return self._specs

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        self.calls.append((name, arguments, context))
        result = self._does(arguments)
        outcome: ToolOutcome = await result if asyncio.iscoroutine(result) else result
        return outcome


def shelf(does: Callable[[Mapping[str, Any]], Any] = succeeded, *specs: ToolSpec) -> Shelf:
    return Shelf(does, *(specs or (ADD, NAP)))


def ready(executor: ToolExecutor, name: str = "nap", arguments: str = "{}") -> PreparedCall:
    prepared = executor.prepare(ToolCall("c-1", name, arguments))
    assert isinstance(prepared, PreparedCall)
    return prepared


async def run(
    does: Callable[[Mapping[str, Any]], Any],
    spec: ToolSpec = NAP,
    arguments: str = "{}",
    limits: Limits = LIMITS,
) -> ToolOutcome:
    executor = ToolExecutor([Shelf(does, spec)], limits)
    return await asyncio.wait_for(executor.run(ready(executor, spec.name, arguments), CONTEXT), WAIT)


def never(_: Mapping[str, Any]) -> Any:
    return asyncio.Event().wait()


def refuse(executor: ToolExecutor, name: str, arguments: str = "{}") -> ToolOutcome:
    prepared = executor.prepare(ToolCall("c-1", name, arguments))
    assert isinstance(prepared, ToolOutcome) and not prepared.success
    return prepared


@pytest.mark.parametrize(("risk", "asks"), [("high", True), ("medium", False)])
def test_a_call_with_repaired_json_asks_at_high_risk(risk: Literal["high", "medium"], asks: bool) -> None:
    executor = ToolExecutor([shelf(succeeded, replace(NAP, risk=risk, approval="never"))], LIMITS)
    prepared = executor.prepare(ToolCall("c-1", "nap", "{}", repaired=True))
    assert isinstance(prepared, ApprovalNeeded if asks else PreparedCall)
    assert isinstance(executor.prepare(ToolCall("c-1", "nap", "{}")), PreparedCall)


# -- find


def test_the_tools_of_all_toolsets_are_offered_and_found() -> None:
    executor = ToolExecutor([shelf(succeeded, ADD), shelf(succeeded, NAP)], LIMITS)
    assert [definition.name for definition in executor.definitions] == ["add_task", "nap"]
    assert executor.spec("nap") is NAP and executor.spec("none") is None


def test_a_call_of_an_unknown_tool_fails() -> None:
    outcome = refuse(ToolExecutor([shelf()], LIMITS), "add_tasks")
    assert outcome.error_type == "not_found"
    assert outcome.error_message == "There is no tool 'add_tasks'. Nothing was run."
    assert len(refuse(ToolExecutor([shelf()], LIMITS), "x" * 100_000).error_message or "") < 700


# -- validate


@pytest.mark.parametrize(
    ("arguments", "error_type"),
    [
        ("{", "parse_error"),
        ('{"text":"x","more":1}', "validation_failed"),
        ('{"text":"' + "x" * 65_536 + '"}', "validation_failed"),
    ],
)
def test_bad_arguments_are_refused_and_nothing_is_run(arguments: str, error_type: str) -> None:
    tools = shelf()
    assert refuse(ToolExecutor([tools], LIMITS), "add_task", arguments).error_type == error_type
    assert tools.calls == []


async def test_a_tool_gets_the_arguments_that_fit_its_schema_and_the_model_hears_of_the_change() -> None:
    tools = shelf(succeeded)
    executor = ToolExecutor([tools], LIMITS)
    prepared = ready(executor, "add_task", '{"text":"x","n":"7"}')
    outcome = await asyncio.wait_for(executor.run(prepared, CONTEXT), WAIT)
    assert tools.calls == [("add_task", {"text": "x", "n": 7}, CONTEXT)]
    assert len(outcome.metadata.notes) == 1 and "n" in outcome.metadata.notes[0]
    assert json.loads(outcome.content)["metadata"]["notes"] == list(outcome.metadata.notes)


# -- permit


@pytest.mark.parametrize(
    "fields", [{"risk": "medium"}, {"risk": "high"}, {"risk": "safe", "approval": "ask"}]
)
def test_a_call_that_needs_approval_is_prepared_and_not_run(fields: dict[str, Any]) -> None:
    tools = shelf(succeeded, replace(ADD, **({"approval": None} | fields)))
    prepared = ToolExecutor([tools], LIMITS).prepare(ToolCall("c-1", "add_task", NOTED))
    assert isinstance(prepared, ApprovalNeeded)
    assert prepared.verdict.effect == "ask" and prepared.verdict.reasons
    assert prepared.ready.arguments == {"text": "x", "n": 7} and len(prepared.ready.notes) == 1
    assert tools.calls == []


def test_a_denied_call_is_not_run_and_gives_the_reason() -> None:
    executor = ToolExecutor(
        [shelf()], LIMITS, Gate(rules=(Rule(effect="deny", tool="add_task", args={"text": {"eq": "x"}}),))
    )
    outcome = refuse(executor, "add_task", '{"text":"x"}')
    assert (outcome.error_type, outcome.metadata.reason) == ("permission_denied", "policy")
    assert (outcome.error_message or "").endswith("Nothing was run.")
    assert isinstance(executor.prepare(ToolCall("c-1", "add_task", '{"text":"y"}')), PreparedCall)


def test_the_conversation_judges_coerced_arguments() -> None:
    judged: list[Any] = []

    def permit(spec: ToolSpec, arguments: Mapping[str, Any]) -> Verdict:
        judged.append((spec.name, arguments))
        return Verdict(effect="ask", reasons=("It may have happened.",), rule=None, warn=False)

    executor = ToolExecutor([shelf()], LIMITS)
    assert isinstance(executor.prepare(ToolCall("c-1", "add_task", NOTED), permit), ApprovalNeeded)
    assert judged == [("add_task", {"text": "x", "n": 7})]


def test_a_call_that_cannot_run_is_not_judged() -> None:
    def permit(spec: ToolSpec, arguments: Mapping[str, Any]) -> Verdict:
        raise AssertionError("asked")

    executor = ToolExecutor([shelf()], LIMITS)
    for name, arguments in (("none", "{}"), ("add_task", "{}"), ("add_task", "{")):
        assert isinstance(executor.prepare(ToolCall("c-1", name, arguments), permit), ToolOutcome)


def test_a_denied_tool_is_neither_offered_nor_found() -> None:
    gate = Gate(rules=(Rule(effect="deny", tool="nap"),))
    executor = ToolExecutor([shelf()], LIMITS, gate)
    assert [definition.name for definition in executor.definitions] == ["add_task"]
    assert refuse(executor, "nap").error_type == "not_found"


@pytest.mark.parametrize(
    ("fields", "is_run"),
    [
        ({"risk": "safe"}, True),
        ({"risk": "medium"}, False),
        ({"risk": "safe", "effect": "irreversible"}, False),
    ],
)
async def test_a_dry_run_describes_the_call(fields: dict[str, Any], is_run: bool) -> None:
    async def preview(arguments: Mapping[str, Any]) -> str:
        return f"add {arguments['text']}"

    spec = replace(ADD, **({"approval": None, "preview": preview} | fields))
    executor = ToolExecutor([shelf(succeeded, spec)], LIMITS, Gate(options=GateOptions(dry_run=True)))
    prepared = executor.prepare(ToolCall("c-1", "add_task", NOTED))
    if is_run:
        assert isinstance(prepared, PreparedCall)
        return
    assert isinstance(prepared, DryRun)
    outcome = await executor.dry_run(prepared.ready)
    assert outcome.data == {
        "dry_run": True,
        "would_call": "add_task",
        "arguments": {"text": "x", "n": 7},
        "would": "add x",
    }
    assert len(outcome.metadata.notes) == 2 and "Nothing was run" not in outcome.metadata.notes[0]
    assert "nothing was run" in outcome.metadata.notes[1]


def test_calls_per_minute_are_limited_by_tool() -> None:
    now = [1_000.0]
    rates: dict[str, TokenBucket] = {}
    limits = replace(LIMITS, calls_per_minute=3.0)

    def often(name: str, arguments: str = "{}") -> list[str]:
        executor = ToolExecutor([shelf()], limits, Gate(now=lambda: now[0]), rates=rates)  # as after a reload
        results = [executor.prepare(ToolCall("c-1", name, arguments)) for _ in range(5)]
        return [
            "ran" if isinstance(result, PreparedCall) else result.error_type
            for result in results
            if not isinstance(result, ApprovalNeeded | DryRun)
        ]

    assert often("nap") == ["ran"] * 3 + ["rate_limited"] * 2
    assert often("add_task", '{"text":"x"}') == ["ran"] * 3 + ["rate_limited"] * 2
    now[0] += 20.0
    assert often("nap") == ["ran", *["rate_limited"] * 4]
    assert often("add_task", "{}") == ["validation_failed"] * 5, "which costs nothing"
    assert often("add_task", '{"text":"x"}') == ["ran", *["rate_limited"] * 4]


# -- edit


def test_edited_arguments_are_checked_and_noted_for_the_model() -> None:
    executor = ToolExecutor([shelf()], LIMITS)
    edited = executor.edited(ready(executor, "add_task", '{"text":"x","n":1}'), {"text": "y", "n": "2"})
    assert isinstance(edited, PreparedCall)
    assert edited.arguments == {"text": "y", "n": 2} and edited.call.call_id == "c-1"
    coerced, changes = edited.notes
    assert coerced == 'n: "2" was read as 2'
    assert json.loads(changes.split(": ", 1)[1]) == {
        "n": {"before": 1, "after": 2},
        "text": {"before": "x", "after": "y"},
    }


@pytest.mark.parametrize("arguments", [{}, {"text": 1, "more": 2}, {"text": "x" * 65_536}])
def test_an_invalid_edit_is_rejected_with_the_reason(arguments: dict[str, Any]) -> None:
    executor = ToolExecutor([shelf()], LIMITS)
    assert isinstance(executor.edited(ready(executor, "add_task", '{"text":"x"}'), arguments), str)


# -- restore


def test_a_restored_call_has_the_approved_arguments() -> None:
    executor = ToolExecutor([shelf()], LIMITS)
    approved = executor.restore(ToolCall("c-1", "add_task", NOTED), {"text": "y"})
    assert approved is not None and (approved.arguments, approved.notes) == ({"text": "y"}, ())
    assert executor.restore(ToolCall("c-1", "gone", "{}"), {}) is None


# -- one session's tools


def test_a_device_adds_tools_that_no_toolset_runs_and_shares_the_servers() -> None:
    shared, lamp = ToolExecutor([shelf()], LIMITS), replace(NAP, name="lamp.dim", source="device")
    session = shared.scoped({}, device=[lamp])
    assert [spec.name for spec in session.specs] == [*(spec.name for spec in shared.specs), "lamp.dim"]
    assert [d.name for d in session.definitions] == [spec.name for spec in session.specs]
    assert all(mine is own for mine, own in zip(session.definitions, shared.definitions, strict=False))
    (on_device, here) = (ready(session, name) for name in ("lamp.dim", NAP.name))
    assert on_device.toolset is None and here.toolset is not None
    assert shared.spec("lamp.dim") is None


def test_a_devices_tool_stands_for_a_tool_of_the_server_of_its_name() -> None:
    mine = replace(ADD, description="Mine.", source="device")
    session = ToolExecutor([shelf()], LIMITS).scoped({}, device=[mine])
    assert [d.description for d in session.definitions if d.name == ADD.name] == ["Mine."]
    assert session.spec(ADD.name) is mine and mine in session.specs


def test_a_device_is_not_offered_what_the_rules_deny() -> None:
    gate = Gate(rules=(Rule(effect="deny", tool="lamp.*"),))
    lamp = replace(NAP, name="lamp.dim", source="device")
    assert ToolExecutor([shelf()], LIMITS, gate).scoped({}, device=[lamp]).spec("lamp.dim") is None


# -- limit


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        (NAP, 0.02),
        (replace(NAP, interactive=True), 0.04),
        (replace(NAP, timeout_s=7.5), 7.5),
        (replace(NAP, timeout_s=7.5, interactive=True), 7.5),
        (replace(NAP, source="device"), 0.02),
    ],
)
def test_a_tools_own_limit_wins_and_persons_get_longer(spec: ToolSpec, seconds: float) -> None:
    assert ToolExecutor([shelf(succeeded, spec)], LIMITS).timeout(spec) == seconds


@pytest.mark.parametrize(
    "spec",
    [NAP, replace(NAP, interactive=True), replace(NAP, timeout_s=0.01), replace(NAP, effect="irreversible")],
)
async def test_a_write_that_takes_too_long_may_have_happened(spec: ToolSpec) -> None:
    outcome = await run(never, spec)
    assert (outcome.success, outcome.error_type) == (False, "unknown")
    assert outcome.metadata.reason == "tool_result_timeout"
    assert "may have happened" in (outcome.error_message or "")
    limit = ToolExecutor([], LIMITS).timeout(spec)
    assert outcome.metadata.execution_time_ms >= int(limit * 1000)


async def test_a_read_that_takes_too_long_is_unknown_without_any_harm() -> None:
    outcome = await run(never, replace(NAP, effect="read"))
    assert outcome.error_type == "unknown" and "may have happened" not in (outcome.error_message or "")


async def test_a_cancelled_run_is_cancelled_and_no_outcome() -> None:
    stopped = asyncio.Event()

    async def nap() -> ToolOutcome:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        raise AssertionError("never")

    executor = ToolExecutor([shelf(lambda _: nap())], Limits())
    running = asyncio.create_task(executor.run(ready(executor), CONTEXT))
    await asyncio.wait([running], timeout=0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, WAIT)
    assert stopped.is_set()


# -- run


@pytest.mark.parametrize(
    ("error", "error_type"),
    [
        (RuntimeError("secret words"), "internal_error"),
        (RecursionError(), "internal_error"),
        (TimeoutError("secret words"), "internal_error"),
    ],
)
async def test_a_tools_exception_becomes_an_outcome_that_does_not_quote_it(
    error: Exception, error_type: str
) -> None:
    def fail(_: Mapping[str, Any]) -> ToolOutcome:
        raise error

    outcome = await run(fail)
    assert (outcome.success, outcome.error_type, outcome.data) == (False, error_type, None)
    assert "secret" not in outcome.content
    # Only the server's own timer says that the time is over.
    assert outcome.error_message == "The tool failed. It may have done its work, or a part of it."
    assert (await run(fail, replace(NAP, effect="read"))).error_message == "The tool failed."


async def test_a_result_that_is_no_outcome_is_a_success_that_cannot_be_read() -> None:
    outcome = await run(lambda _: {"temperature": 21})
    assert (outcome.success, outcome.data) == (True, None)
    assert "The call ran; its result could not be read" in outcome.metadata.notes[0]


async def test_a_time_that_the_tool_knows_better_is_used() -> None:
    assert (await run(lambda _: succeeded("x", took_s=12.0))).metadata.execution_time_ms == 12_000


@pytest.mark.parametrize(
    "does",
    [lambda _: succeeded("x"), lambda _: failed("io_error", "It broke."), never, lambda _: 1 / 0],
    ids=["success", "failure", "timeout", "exception"],
)
async def test_the_notes_about_the_arguments_go_with_every_outcome(
    does: Callable[[Mapping[str, Any]], Any],
) -> None:
    assert len((await run(does, ADD, NOTED)).metadata.notes) == 1


async def test_the_tools_own_notes_follow() -> None:
    notes = (await run(lambda _: succeeded("x", notes=["its own"]), ADD, NOTED)).metadata.notes
    assert len(notes) == 2 and notes[1] == "its own"


# -- redact

KEY = "sk-ant-api03-" + "Ab1" * 31 + "AA"


@pytest.mark.parametrize(
    "outcome",
    [
        succeeded(f"the key is {KEY}"),
        succeeded({"keys": [KEY, {"deep": f"{KEY}!"}]}),
        failed("io_error", f"no such file: {KEY}"),
        succeeded({"words": ["open sesame"]}),
        succeeded([f"{KEY} " * 100]),
        succeeded("x" * 150 + KEY),
        succeeded("x", notes=[f"It was tried with {KEY}."]),
    ],
)
def test_secrets_are_redacted_in_each_part_of_a_result(outcome: ToolOutcome) -> None:
    executor = ToolExecutor([], LIMITS, redactor=Redactor(["open sesame"]))
    content = executor.to_result("c-1", outcome).content
    assert KEY[:24] not in content and "sesame" not in content
    assert "REDACTED" in content or "shortened" in content


def test_a_secret_at_the_cut_of_a_text_is_not_shown() -> None:
    secret = "correct horse battery staple"
    executor = ToolExecutor([], LIMITS, redactor=Redactor([secret]))
    for at in range(150, 205):
        content = executor.to_result("c-1", succeeded("x" * at + secret + "y" * 500)).content
        assert "corr" not in content, f"at {at}: {content}"


def test_a_secret_at_the_cut_of_a_huge_text_is_not_shown() -> None:
    executor = ToolExecutor([], replace(LIMITS, max_observation_bytes=16_384))
    begin, end = "-----BEGIN PRIVATE KEY-----\n", "\n-----END PRIVATE KEY-----\n"
    block = begin + "Ab1+" * 12_700 + end  # redacted to a short marker
    text = block + "z" * (4 * 16_384 - len(block) - 10) + KEY + "z" * 500
    content = executor.to_result("c-1", succeeded(text)).content
    assert "REDACTED:private_key" in content and KEY[:6] not in content


# -- shorten


def settled(outcome: ToolOutcome, limits: Limits = LIMITS) -> dict[str, Any]:
    result = ToolExecutor([], limits).to_result("c-1", outcome)
    assert result.call_id == "c-1" and result.is_error is not outcome.success
    read: dict[str, Any] = json.loads(result.content)
    return read


@pytest.mark.parametrize("data", ["x" * 10_000, "日" * 5_000, {"a": "x" * 10_000}, ["x"] * 5_000])
def test_a_long_outcome_is_shortened_and_says_so(data: Any) -> None:
    outcome = succeeded(data)
    read = settled(outcome)
    assert isinstance(read["data"], str) and len(read["data"].encode()) <= 200
    assert "shortened" in read["data"]
    assert read["metadata"]["data_size_bytes"] == outcome.metadata.data_size_bytes > 200


def test_a_long_error_is_shortened_too() -> None:
    read = settled(failed("internal_error", "x" * 10_000))
    assert len(read["error_message"].encode()) <= 200 and "shortened" in read["error_message"]
