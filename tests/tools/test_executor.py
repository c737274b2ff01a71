"""The executor: find, validate, limit, run, shorten, in this order, and an outcome whatever happens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from conductor.messages import ToolCall
from conductor.settings import Limits
from conductor.tools.base import CallContext, ToolOutcome, ToolSpec, failed, succeeded
from conductor.tools.executor import Ready, ToolExecutor, device_outcome, interrupted_outcome

WAIT = 5.0
LIMITS = Limits(
    tool_timeout=0.02, interactive_timeout=0.04, max_observation_bytes=200, max_arguments_bytes=100
)
CONTEXT = CallContext("s-1", "c-1", "Europe/Berlin", "de-DE")
ADD = ToolSpec(
    "add_task",
    "Add a task.",
    {
        "type": "object",
        "properties": {"text": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["text"],
        "additionalProperties": False,
    },
    source="builtin",
)
NAP = replace(ADD, name="nap", input_schema={"type": "object"})


class Shelf:
    """A toolset whose tools do what a test says."""

    def __init__(self, does: Callable[[Mapping[str, Any]], Any], *specs: ToolSpec) -> None:
        self._does = does
        self._specs = specs
        self.calls: list[tuple[str, Mapping[str, Any], CallContext]] = []

    def specs(self) -> Sequence[ToolSpec]:
        return self._specs

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        self.calls.append((name, arguments, context))
        done = self._does(arguments)
        outcome: ToolOutcome = await done if asyncio.iscoroutine(done) else done
        return outcome


def shelf(does: Callable[[Mapping[str, Any]], Any] = succeeded, *specs: ToolSpec) -> Shelf:
    return Shelf(does, *(specs or (ADD, NAP)))


def ready(executor: ToolExecutor, name: str = "nap", arguments: str = "{}") -> Ready:
    prepared = executor.prepare(ToolCall("c-1", name, arguments))
    assert isinstance(prepared, Ready)
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


# -- find


def test_the_tools_of_all_toolsets_are_offered_and_found() -> None:
    executor = ToolExecutor([shelf(succeeded, ADD), shelf(succeeded, NAP)], LIMITS)
    assert [definition.name for definition in executor.definitions] == ["add_task", "nap"]
    assert executor.spec("nap") is NAP and executor.spec("none") is None


def test_a_tool_that_is_not_there_is_said_to_be_so_with_its_nearest_name() -> None:
    outcome = refuse(ToolExecutor([shelf()], LIMITS), "add_tasks")
    assert outcome.error_type == "not_found"
    assert outcome.error_message == "There is no tool 'add_tasks'. Did you mean add_task? Nothing was run."


@pytest.mark.parametrize("name", ["", "x" * 100_000, "quite else", "\x00", "日本"])
def test_a_name_like_no_other_gets_no_hint_and_a_short_answer(name: str) -> None:
    message = refuse(ToolExecutor([shelf()], LIMITS), name).error_message or ""
    assert "Did you mean" not in message and len(message) < 700


def test_without_tools_nothing_is_found() -> None:
    assert refuse(ToolExecutor([], LIMITS), "add_task").error_type == "not_found"


# -- validate


@pytest.mark.parametrize(
    ("arguments", "error_type"),
    [
        ("{", "parse_error"),
        ("[]", "validation_failed"),
        ("{}", "validation_failed"),
        ('{"text":{}}', "validation_failed"),
        ('{"text":"x","more":1}', "validation_failed"),
        ('{"text":"' + "x" * 100 + '"}', "validation_failed"),
    ],
)
def test_bad_arguments_are_refused_and_nothing_is_run(arguments: str, error_type: str) -> None:
    tools = shelf()
    assert refuse(ToolExecutor([tools], LIMITS), "add_task", arguments).error_type == error_type
    assert tools.calls == []


def test_a_tool_that_is_not_there_is_told_before_its_arguments_are_looked_at() -> None:
    assert refuse(ToolExecutor([shelf()], LIMITS), "none", "{").error_type == "not_found"


async def test_a_tool_gets_the_arguments_that_fit_its_schema_and_the_model_hears_of_the_change() -> None:
    tools = shelf(succeeded)
    executor = ToolExecutor([tools], LIMITS)
    prepared = ready(executor, "add_task", '{"text":"x","n":"7"}')
    outcome = await asyncio.wait_for(executor.run(prepared, CONTEXT), WAIT)
    assert tools.calls == [("add_task", {"text": "x", "n": 7}, CONTEXT)]
    assert len(outcome.metadata.notes) == 1 and "n" in outcome.metadata.notes[0]
    assert json.loads(outcome.content)["metadata"]["notes"] == list(outcome.metadata.notes)


def test_a_prepared_call_is_not_run_yet() -> None:
    tools = shelf()
    prepared = ready(ToolExecutor([tools], LIMITS), "add_task", '{"text":"x"}')
    assert prepared.spec is ADD and prepared.call.call_id == "c-1" and prepared.notes == ()
    assert tools.calls == []


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


async def test_a_call_of_the_device_is_not_limited_here() -> None:
    executor = ToolExecutor([shelf(never, replace(NAP, source="device"))], LIMITS)
    running = asyncio.create_task(executor.run(ready(executor), CONTEXT))
    built_in = await run(never)  # which takes its whole limit
    assert built_in.error_type == "unknown" and not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, WAIT)


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
    "error", [RuntimeError("secret words"), KeyError("x"), ValueError(), RecursionError()]
)
async def test_a_tools_exception_becomes_an_outcome_that_does_not_quote_it(error: Exception) -> None:
    def fail(_: Mapping[str, Any]) -> ToolOutcome:
        raise error

    outcome = await run(fail)
    assert (outcome.success, outcome.error_type, outcome.data) == (False, "internal_error", None)
    assert outcome.error_message == "The tool failed." and "secret" not in outcome.content


async def test_a_tools_own_time_limit_is_as_unknown_as_ours() -> None:
    def fail(_: Mapping[str, Any]) -> ToolOutcome:
        raise TimeoutError

    assert (await run(fail)).error_type == "unknown"


async def test_a_tool_may_say_itself_that_it_failed() -> None:
    outcome = await run(lambda _: failed("io_error", "The disk is full."))
    assert (outcome.error_type, outcome.error_message) == ("io_error", "The disk is full.")


async def test_the_time_that_a_run_took_is_told() -> None:
    async def nap() -> ToolOutcome:
        await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0.03)
        return succeeded("done")

    outcome = await run(lambda _: nap(), limits=replace(LIMITS, tool_timeout=WAIT))
    assert 30 <= outcome.metadata.execution_time_ms < 5_000


async def test_a_time_that_the_tool_knows_better_is_kept() -> None:
    assert (await run(lambda _: succeeded("x", took_s=12.0))).metadata.execution_time_ms == 12_000


NOTED = '{"text":"x","n":"7"}'


@pytest.mark.parametrize(
    "does",
    [lambda _: succeeded("x"), lambda _: failed("io_error", "It broke."), never, lambda _: 1 / 0],
    ids=["success", "failure", "timeout", "exception"],
)
async def test_the_notes_about_the_arguments_go_with_every_outcome(
    does: Callable[[Mapping[str, Any]], Any],
) -> None:
    assert len((await run(does, ADD, NOTED)).metadata.notes) == 1


async def test_the_tools_own_notes_are_kept_beside_them() -> None:
    notes = (await run(lambda _: succeeded("x", notes=["its own"]), ADD, NOTED)).metadata.notes
    assert len(notes) == 2 and notes[1] == "its own"


# -- shorten


def settled(outcome: ToolOutcome, limits: Limits = LIMITS) -> dict[str, Any]:
    result = ToolExecutor([], limits).settle("c-1", outcome)
    assert result.call_id == "c-1" and result.is_error is not outcome.success
    read: dict[str, Any] = json.loads(result.content)
    return read


def test_a_short_outcome_is_told_as_it_is() -> None:
    assert settled(succeeded({"a": [1, None, "ü"]}))["data"] == {"a": [1, None, "ü"]}
    assert settled(succeeded("text"))["data"] == "text"
    assert settled(failed("io_error", "It broke."))["error_message"] == "It broke."


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


def test_the_limit_may_be_reached_to_the_byte() -> None:
    assert settled(succeeded("x" * 200))["data"] == "x" * 200
    assert settled(succeeded("x" * 201))["data"] != "x" * 201


# -- outcomes made elsewhere


def test_what_the_device_answers_is_the_data_and_is_not_parsed() -> None:
    outcome = device_outcome('{"state":"done"}', None, 0.25)
    assert outcome.success and outcome.data == '{"state":"done"}'
    assert (outcome.metadata.execution_time_ms, outcome.metadata.data_size_bytes) == (250, 16)


@pytest.mark.parametrize("result", [None, "", "x"])
@pytest.mark.parametrize("error", ["", "It broke."])
def test_an_error_of_the_device_wins_even_if_it_is_empty(result: str | None, error: str) -> None:
    outcome = device_outcome(result, error, 0.0)
    assert (outcome.success, outcome.error_type, outcome.error_message) == (False, "internal_error", error)
    assert outcome.data is None and outcome.metadata.reason == "device_error"


def test_a_device_that_answers_nothing_has_succeeded() -> None:
    outcome = device_outcome(None, None, 0.0)
    assert outcome.success and outcome.data is None


@pytest.mark.parametrize("reason", ["interrupted", "turn_timeout", "connection_lost"])
@pytest.mark.parametrize(
    ("effect", "sent", "error_type", "says"),
    [
        ("read", False, "cancelled", "Nothing was run"),
        ("write", False, "cancelled", "Nothing was run"),
        ("irreversible", False, "cancelled", "Nothing was run"),
        ("read", True, "cancelled", "before the result came"),
        ("write", True, "unknown", "may have happened"),
        ("irreversible", True, "unknown", "may have happened"),
    ],
)
def test_a_call_whose_turn_ended_is_told_honestly(
    effect: str, sent: bool, error_type: str, says: str, reason: str
) -> None:
    outcome = interrupted_outcome(effect, sent=sent, reason=reason)
    assert (outcome.success, outcome.error_type, outcome.metadata.reason) == (False, error_type, reason)
    assert says in (outcome.error_message or "")
