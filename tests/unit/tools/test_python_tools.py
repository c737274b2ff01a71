"""Tests of tools that are Python functions."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conductor.app import make_services
from conductor.errors import SettingsError
from conductor.messages import ToolCall
from conductor.plugins.tools.functions import PythonToolset
from conductor.plugins.tools.python_tools import python_tools
from conductor.settings import Limits, load_settings
from conductor.tools.base import CallContext
from conductor.tools.executor import ApprovalNeeded, PreparedCall, ToolExecutor
from conductor.tools.permissions import Gate

TEXT = (Path(__file__).parents[3] / "docs" / "tools.md").read_text(encoding="utf-8")
HEAD = "import threading, datetime\nfrom conductor.tools.base import CallContext\n"
HEAD += "from conductor.tools import ToolError, tool\n"
SHOP = TEXT.split("## Tools in Python")[1].split("```python\n")[1].split("```")[0]
STOCK = """
@tool(risk="safe", effect="read")
def stock(item: Annotated[str, Field(description="the plural, as in apples")], context: CallContext) -> int:
    \"\"\"Tell how many of an item the shop has.\"\"\"
    return STOCK.get(item, 0)
"""
CONTEXT = CallContext(session_id="s-1", call_id="c-1", time_zone="Europe/Berlin")


def toolset(tmp_path: Path, code: str) -> PythonToolset:
    path = tmp_path / "mine.py"
    path.write_text(HEAD + code)
    return PythonToolset(python_tools(path))


async def run(tools: PythonToolset, name: str, arguments: str = "{}", **limits: Any) -> Any:
    executor = ToolExecutor([tools], replace(Limits(), **limits), Gate())
    ready = executor.prepare(ToolCall("c-1", name, arguments))
    if isinstance(ready, ApprovalNeeded):
        ready = ready.ready
    return await executor.run(ready, CONTEXT) if isinstance(ready, PreparedCall) else ready


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.py"
    path.write_text(HEAD + SHOP + STOCK)
    return path


def test_a_functions_types_and_docstring_are_its_definition(shop: Path) -> None:
    order, stock = (python_tool.spec for python_tool in python_tools(shop))
    assert (stock.name, stock.risk, stock.effect, stock.source) == ("stock", "safe", "read", "python")
    assert stock.description == "Tell how many of an item the shop has."
    assert stock.input_schema == {
        "type": "object",
        "properties": {"item": {"type": "string", "description": "the plural, as in apples"}},
        "required": ["item"],
        "additionalProperties": False,
    }
    assert (order.risk, order.effect, order.spoken) == ("medium", "write", "order {count} {item}")
    assert order.input_schema["properties"]["count"] == {"maximum": 100, "minimum": 1, "type": "integer"}


async def test_calls_of_python_tools_pass_the_gate(shop: Path) -> None:
    tools = PythonToolset(python_tools(shop))
    executor = ToolExecutor([tools], Limits(), Gate())
    assert (await run(tools, "stock", '{"item": "apples"}')).data == 12
    prepared = executor.prepare(ToolCall("c", "order", '{"item": "apples", "count": 2}'))
    assert isinstance(prepared, ApprovalNeeded)
    outcome = await executor.run(prepared.ready, CONTEXT)
    assert outcome.success and outcome.data == 10
    assert (await run(tools, "order", '{"item": "apples", "count": 0}')).error_type == "validation_failed"
    outcome = await run(tools, "order", '{"item": "pears", "count": 9}')
    assert outcome.error_message == "There are only 3 pears."


async def test_arguments_arrive_as_their_types(tmp_path: Path) -> None:
    code = '@tool()\ndef day(when: datetime.date, context: CallContext):\n    "Day."\n'
    tools = toolset(tmp_path, code + "    return [when.strftime('%A'), context.time_zone, when]\n")
    outcome = await run(tools, "day", '{"when": "2026-11-23"}')
    assert outcome.data == ["Monday", "Europe/Berlin", "2026-11-23"]
    outcome = await run(tools, "day", '{"when": "tomorrow"}')
    assert outcome.error_type == "validation_failed" and "Nothing was run" in str(outcome.error_message)


async def test_the_documented_built_in_tool_rolls(tmp_path: Path) -> None:
    dice = TEXT.split("## A built-in tool")[1].split("```python\n")[1].split("```")[0]
    tools = toolset(tmp_path, dice)
    assert 1 <= (await run(tools, "roll_dice", '{"sides": 2}')).data["rolled"] <= 2
    assert (await run(tools, "roll_dice", '{"sides": 1}')).error_type == "validation_failed"


async def test_a_parameter_that_may_be_left_out_is_never_null(tmp_path: Path) -> None:
    code = '@tool(risk="safe", effect="read")\ndef shelf(\n'
    code += "    level: Annotated[int | None, Field(ge=1)] = None,\n"
    code += '    kind: int | str | None = None, size: int = 3,\n) -> str:\n    "Shelf."\n'
    code += '    return f"{level} {kind} {size}"\n'
    tools = toolset(tmp_path, "from typing import Annotated\nfrom pydantic import Field\n" + code)
    assert tools.specs()[0].input_schema["properties"] == {
        "level": {"type": "integer", "minimum": 1},
        "kind": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "size": {"type": "integer", "default": 3},
    }
    assert (await run(tools, "shelf")).data == "None None 3"
    assert (await run(tools, "shelf", '{"level": null, "kind": "b"}')).data == "None b 3"
    assert (await run(tools, "shelf", '{"level": 0}')).error_type == "validation_failed"


async def test_a_tool_may_return_an_outcome_and_name_the_kind_of_its_failure(tmp_path: Path) -> None:
    code = (
        'from conductor.plugin import succeeded\n@tool(description="Find it.", risk="safe", effect="read")\n'
    )
    code += 'def find(name: str):\n    "Answer with the place."\n    if name == "x":\n'
    code += (
        '        raise ToolError("There is no x.", "not_found")\n    return succeeded(name, notes=["Old."])\n'
    )
    tools = toolset(tmp_path, code)
    (spec,) = tools.specs()
    assert (spec.description, spec.on_interrupt) == ("Find it.", "cancel")
    outcome = await run(tools, "find", '{"name": "y"}')
    assert (outcome.data, list(outcome.metadata.notes)) == ("y", ["Old."])
    outcome = await run(tools, "find", '{"name": "x"}')
    assert (outcome.error_type, outcome.error_message) == ("not_found", "There is no x.")


async def test_an_exception_of_a_tool_is_a_failure_that_may_have_done_its_work(tmp_path: Path) -> None:
    code = '@tool()\ndef fail():\n    "Fail."\n    raise OSError("/etc/secret")\n'
    outcome = await run(toolset(tmp_path, code), "fail")
    assert outcome.error_type == "internal_error"
    assert outcome.error_message == "The tool failed. It may have done its work, or a part of it."


UNREADABLE = {
    "an object": "threading.Lock()",
    "bytes": 'b"\\xff"',
    "half a surrogate": '"\\ud83d"',
    "half a surrogate within": '{"a": ["\\udc00"]}',
    "an object that holds itself": "ROUND",
}


@pytest.mark.parametrize("value", UNREADABLE.values(), ids=UNREADABLE)
async def test_a_tool_that_ran_succeeded_whatever_it_returns(tmp_path: Path, value: str) -> None:
    code = f'ROUND = []\nROUND.append(ROUND)\n@tool()\ndef pay():\n    "Pay."\n    return {value}\n'
    outcome = await run(toolset(tmp_path, code), "pay")
    assert (outcome.success, outcome.data, outcome.error_type) == (True, None, "none")
    (note,) = outcome.metadata.notes
    assert note.startswith("The call ran; its result could not be read (") and "Do not repeat" in note


async def test_a_number_that_is_not_finite_is_told(tmp_path: Path) -> None:
    code = '@tool()\ndef odd():\n    "Odd."\n    return {"a": float("nan"), "b": [-float("inf"), 1]}\n'
    outcome = await run(toolset(tmp_path, code), "odd")
    assert outcome.data == {"a": "NaN", "b": ["-Infinity", 1]}
    assert "not finite" in outcome.metadata.notes[0]


async def test_a_call_without_a_thread_did_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conductor.plugins.tools.functions.MAX_THREADS", 1)
    code = "GO = threading.Event()\nSTARTED = threading.Event()\nPAID = []\n"
    code += '@tool()\ndef hang():\n    "Hang."\n    STARTED.set()\n    GO.wait()\n'
    code += '@tool()\ndef pay():\n    "Pay."\n    PAID.append(1)\n'
    tools = toolset(tmp_path, code)
    own = python_tools(tmp_path / "mine.py")[0].function.__globals__
    hanging = asyncio.create_task(run(tools, "hang"))
    try:
        await asyncio.to_thread(own["STARTED"].wait)
        outcome = await run(tools, "pay", tool_timeout=0.01)
        assert (outcome.error_type, outcome.metadata.reason) == ("cancelled", "not_started")
        assert "Nothing was run" in (outcome.error_message or "")
        interrupted = asyncio.create_task(run(tools, "pay"))
        await asyncio.sleep(0)
        interrupted.cancel()
        with pytest.raises(asyncio.CancelledError):
            await interrupted
    finally:
        own["GO"].set()
    await hanging
    await run(tools, "hang")  # the thread is free, and the cancelled calls are gone
    assert own["PAID"] == []


async def test_a_function_that_hangs_does_not_hold_the_server(tmp_path: Path) -> None:
    code = 'GO = threading.Event()\n@tool()\ndef hang():\n    "Hang."\n    GO.wait()\n'
    path = tmp_path / "mine.py"
    tools = toolset(tmp_path, code)
    go = python_tools(path)[0].function.__globals__["GO"]
    assert isinstance(go, threading.Event)
    try:
        outcome = await run(tools, "hang", tool_timeout=0.01)
        assert outcome.error_type == "unknown", "it may still happen"
        assert await asyncio.sleep(0, "the loop runs") == "the loop runs"
    finally:
        go.set()


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("1/0\n", ", line {last}, cannot be imported: ZeroDivisionError: division by zero."),
        ("def f(:\n", " cannot be imported: SyntaxError"),
        ("@tool()\ndef f():\n    pass\n", ": the tool f needs a docstring"),
        ('@tool()\ndef f(x):\n    "F."\n', ": the tool f: the parameter x has no type."),
        ('@tool()\ndef f(*x: int):\n    "F."\n', ": the tool f takes *x: int"),
        ('@tool(name="a b")\ndef f():\n    "F."\n', ": the tool a b needs another name"),
        ('@tool(name="tts.speak")\ndef f():\n    "F."\n', ": the tool tts.speak needs another name"),
        ('@tool()\ndef f(x: threading.Thread):\n    "F."\n', ": the tool f cannot be offered"),
        ('@tool()\ndef f(x: "Nowhere"):\n    "F."\n', ": the tool f cannot be offered"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, code: str, sentence: str) -> None:
    with pytest.raises(SettingsError) as raised:
        toolset(tmp_path, code)
    message = str(raised.value).removeprefix(str(tmp_path / "mine.py"))
    last = len((tmp_path / "mine.py").read_text().splitlines())
    assert message.startswith(sentence.format(last=last)) and "\n" not in message


async def test_a_bare_mark_is_a_tool_that_asks(tmp_path: Path) -> None:
    tools = toolset(tmp_path, '@tool\ndef double(x: int) -> int:\n    "Double it."\n    return 2 * x\n')
    (spec,) = tools.specs()
    assert (spec.name, spec.risk, spec.effect, spec.needs_session) == ("double", "medium", "write", False)
    assert (await run(tools, "double", '{"x": 4}')).data == 8


async def test_a_tool_may_say_what_is_sensitive_and_what_it_would_do(tmp_path: Path) -> None:
    code = """
def private(arguments):
    return "It is private." if arguments["x"] > 9 else None

async def describe(arguments):
    return f"Would double {arguments['x']}."

@tool(risk="safe", effect="read", sensitive=private, preview=describe, needs_session=True)
def double(x: int) -> int:
    "Double it."
    return 2 * x
"""
    tools = toolset(tmp_path, code)
    (spec,) = tools.specs()
    assert spec.needs_session and spec.preview is not None
    assert await spec.preview({"x": 4}) == "Would double 4."
    decisions = [Gate().decide(spec, {"x": x}, tainted=False, may_have_happened=False) for x in (4, 10)]
    assert [decision.effect for decision in decisions] == ["allow", "ask"]
    assert decisions[1].reasons[0] == "It is private."


def test_a_folder_is_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(HEAD + '@tool()\ndef a():\n    "A."\ndef helper():\n    "No tool."\n')
    (tmp_path / "b.py").write_text(HEAD + 'from conductor_tools_a import a\n@tool()\ndef b():\n    "B."\n')
    assert [python_tool.spec.name for python_tool in python_tools(tmp_path)] == ["a", "b"]
    with pytest.raises(SettingsError, match="does not exist"):
        python_tools(tmp_path / "missing")


def test_installed_packages_offer_tools_by_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop.py").write_text(HEAD + SHOP + STOCK)
    info = tmp_path / "shop-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[conductor.tools]\nall = shop\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    python_tools.cache_clear()
    try:
        assert [python_tool.spec.name for python_tool in python_tools(None)] == ["order", "stock"]
        (info / "entry_points.txt").write_text("[conductor.tools]\nwrong = shop:STOCK\n")
        python_tools.cache_clear()
        with pytest.raises(SettingsError, match="entry point wrong of shop is not a function marked"):
            python_tools(None)
    finally:
        python_tools.cache_clear()


def test_the_name_of_a_built_in_tool_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text('from conductor.tools import tool\n@tool(name="calculator")\ndef f():\n    "F."\n')
    with pytest.raises(SettingsError, match='"builtin" and "python" both have a tool calculator'):
        make_services(load_settings(None, tools_path=path))


async def test_a_function_in_a_thread_may_restart_its_time_limit(tmp_path: Path) -> None:
    code = """
@tool(effect="read")
def count(context: CallContext) -> str:
    \"\"\"Count.\"\"\"
    context.alive()
    return "counted"
"""
    outcome = await run(toolset(tmp_path, code), "count")
    assert (outcome.success, outcome.data) == (True, "counted")
