"""Declarations: the effect of MCP's hints, and a reason for each rejection."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.rate_limit import Admission
from conductor.tools import declarations
from conductor.tools.base import ToolSpec
from conductor.tools.declarations import MAX_TOOLS, headline, parse_declarations, read_declarations


def declaration(name: str = "t", **fields: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **fields}


def spec(**fields: Any) -> ToolSpec:
    accepted, rejected = parse_declarations([declaration(**fields)])
    assert rejected == []
    return accepted[0]


def reason(declared: Any) -> str:
    accepted, [(_, reason)] = parse_declarations([declared])
    assert accepted == []
    return reason


def test_equal_declarations_are_one_tool_while_one_of_them_is_in_use() -> None:
    first, again = spec(description="Looks."), spec(description="Looks.")
    assert again is first and again.definition is first.definition
    assert spec(description="Listens.") is not first
    found, former = weakref.ref(first), first.description
    del first, again
    assert found() is None and spec(description="Looks.").description == former


@pytest.mark.parametrize(
    ("hints", "effect", "risk", "on_interrupt"),
    [
        ({"readOnlyHint": True}, "read", "safe", "cancel"),
        ({"destructiveHint": True}, "irreversible", "high", "keep"),
        ({"readOnlyHint": False, "destructiveHint": False}, "write", "medium", "keep"),
        ({"idempotentHint": True, "openWorldHint": True}, "write", "medium", "keep"),
        ({}, "write", "medium", "keep"),
        (None, "write", "medium", "keep"),
        ({"readOnlyHint": True, "destructiveHint": True}, "read", "safe", "cancel"),
    ],
)
def test_the_hints_give_effect_and_risk(hints: Any, effect: str, risk: str, on_interrupt: str) -> None:
    tool = spec(annotations=hints)
    assert (tool.effect, tool.risk, tool.on_interrupt) == (effect, risk, on_interrupt)


def test_the_wishes_are_read() -> None:
    wishes = {
        "timeoutMs": 1500,
        "interactive": True,
        "mode": "async",
        "onInterrupt": "cancel",
        "approval": "ask",
        "spoken": "switch the lamp {state}",
    }
    schema = {"type": "object", "properties": {"state": {"type": "string"}}}
    tool = spec(description="What it does", inputSchema=schema, _meta={"conductor": wishes, "other": 2})
    assert tool == ToolSpec(
        name="t",
        description="What it does",
        input_schema=schema,
        timeout_s=1.5,
        interactive=True,
        mode="async",
        on_interrupt="cancel",
        approval="ask",
        spoken="switch the lamp {state}",
    )


def test_a_title_is_mcps_own_or_else_the_annotations() -> None:
    assert spec(title=" Lamp ", annotations={"title": "Old"}).title == "Lamp"
    assert spec(annotations={"title": "Old"}).title == "Old"
    assert spec(title="").title is None


@pytest.mark.parametrize("hint", [True, False, None])
def test_the_results_of_an_open_world_tool_are_untrusted(hint: bool | None) -> None:
    tool = spec(annotations={"readOnlyHint": True, "openWorldHint": hint})
    assert (tool.open_world, tool.untrusted) == (hint is True, hint is True)


def test_without_wishes_the_defaults_hold() -> None:
    assert spec() == ToolSpec(name="t", description="", input_schema={"type": "object"}, source="device")


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (None, "expected `object`, got `null`"),
        ({"name": "t"}, "missing required field `inputSchema`"),
        ({"inputSchema": {"type": "object"}}, "missing required field `name`"),
        (declaration(name="a\n"), "name: expected `str` matching"),
        (declaration(name="x" * 129), "name: expected"),
        (declaration(name="tts.speak"), "the server's own"),
        (declaration(inputSchema={"type": "string"}), '"type": "object"'),
        (declaration(inputSchema=None), "must be a JSON object"),
        (declaration(description=3), "description: expected `str | null`, got `int`"),
        (declaration(description="ä" * 2049), "larger than 4096 bytes"),
        (declaration(description="\ud800"), "not Unicode"),
        (declaration(annotations=[]), "annotations: expected `object | null`"),
        (
            declaration(annotations={"readOnlyHint": "yes"}),
            "readOnlyHint: expected `bool | null`",
        ),
        (declaration(_meta={"conductor": 1}), "_meta.conductor: expected `object | null`"),
        (declaration(_meta={"conductor": {"timeoutMs": 0}}), "timeoutMs: expected `float` >= 1.0"),
        (
            declaration(_meta={"conductor": {"timeoutMs": True}}),
            "expected `float | null`, got `bool`",
        ),
        (declaration(_meta={"conductor": {"timeoutMs": float("nan")}}), "timeoutMs: expected"),
        (declaration(_meta={"conductor": {"mode": "later"}}), "mode: invalid enum value 'later'"),
        (declaration(_meta={"conductor": {"onInterrupt": []}}), "onInterrupt: expected `str | null`"),
        (declaration(_meta={"conductor": {"approval": "always"}}), "approval: invalid enum value"),
        (declaration(_meta={"conductor": {"interactive": 1}}), "interactive: expected `bool | null`"),
        (
            declaration(_meta={"conductor": {"aproval": "ask"}}),
            "_meta.conductor: object contains unknown field `aproval`",
        ),
        (declaration(_meta={"conductor": {"spoken": 1}}), "spoken: expected `str | null`"),
        (declaration(_meta={"conductor": {"spoken": "open {door}"}}), "spoken names 'door', which is not"),
        (
            declaration(_meta={"conductor": {"spoken": "open {door"}}),
            "spoken has a brace without its partner",
        ),
        (declaration(title=7), "title: expected `str | null`"),
        (declaration(annotations={"title": []}), "annotations.title: expected"),
    ],
)
def test_an_invalid_declaration_is_rejected_with_the_reason(declared: Any, words: str) -> None:
    assert words in reason(declared)


def test_a_rejected_name_is_encoded_for_the_wire() -> None:
    assert parse_declarations([declaration(name="a\ud800")]).rejected[0][0] == "a?"


def test_an_invalid_declaration_does_not_affect_the_rest() -> None:
    declared = [
        declaration("a", description="1"),
        declaration("b", description=1),
        declaration("a", description="2"),
        declaration("calculator"),
        declaration("c"),
    ]
    accepted, rejected = parse_declarations(declared, reserved_names={"calculator"})
    assert [(tool.name, tool.description) for tool in accepted] == [("a", "1"), ("c", "")]
    assert rejected == [
        ("b", "description: expected `str | null`, got `int`"),
        ("a", "declared twice; the first one stands"),
        ("calculator", "this name is taken by another tool"),
    ]


def test_there_are_at_most_128_tools() -> None:
    accepted, rejected = parse_declarations([declaration(f"t{i}") for i in range(MAX_TOOLS + 1)])
    assert len(accepted) == MAX_TOOLS == 128
    assert rejected == [("t128", "more than 128 tools")]


def test_a_flood_of_declarations_is_summarised() -> None:
    accepted, rejected = parse_declarations([1] * 100_000)
    assert accepted == []
    assert len(rejected) == MAX_TOOLS + 1
    assert rejected[-1] == ("", "99872 more declarations were not read")


def hostile(name: str) -> dict[str, Any]:
    """Make a declaration that takes some milliseconds to compile."""
    patterns = {f"p{i}": {"pattern": f"(?:{name}){{100}}{i}"} for i in range(4)}
    return declaration(name, inputSchema={"type": "object", "properties": patterns})


@pytest.mark.parametrize(("read_s", "least"), [(0.0, 39), (float("inf"), 0)])
async def test_the_loop_runs_between_two_declarations(
    monkeypatch: pytest.MonkeyPatch, read_s: float, least: int
) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    monkeypatch.setattr(declarations, "READ_S", read_s)
    declared = [hostile(f"t{i}") for i in range(40)]
    ticking = asyncio.create_task(tick())
    readings = await read_declarations(declared, Admission())
    ticking.cancel()
    assert least <= ticks <= 2 * least, "a step takes READ_S, and the loop runs after each"
    accepted, rejected = parse_declarations(declared, readings=readings)
    assert rejected == [] and all(spec is reading for spec, reading in zip(accepted, readings, strict=True))


async def test_declarations_read_in_steps_give_the_same_result() -> None:
    declared = [declaration("a"), 7, declaration("a"), declaration("b", description=1), declaration("tts.x")]
    declared += [1] * 1_000
    assert parse_declarations(
        declared, readings=await read_declarations(declared, Admission())
    ) == parse_declarations(declared)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)
FIELDS = ["name", "description", "inputSchema", "annotations", "_meta"]


@given(st.lists(JSON | st.dictionaries(st.sampled_from(FIELDS), JSON), max_size=4))
def test_any_declaration_is_accepted_or_rejected(declared: list[Any]) -> None:
    accepted, rejected = parse_declarations(declared)
    assert len(accepted) + len(rejected) == len(declared)
    assert all(why for _, why in rejected)


# -- the headline of a card

ROOM = {"inputSchema": {"type": "object", "properties": {"room": {}, "on": {}}}}
SPOKEN = {
    **ROOM,
    "title": "Switch a lamp",
    "_meta": {"conductor": {"spoken": "switch the lamp in the {room}"}},
}


@pytest.mark.parametrize(
    ("fields", "arguments", "words"),
    [
        (SPOKEN, {"room": "hall", "on": True}, "Switch the lamp in the hall"),
        (SPOKEN, {"room": 7}, "Switch the lamp in the 7"),
        (SPOKEN, {"room": "ha\u202ell\n\x1b[2J"}, "Switch the lamp in the ha ll [2J"),
        (SPOKEN, {"room": ["hall"]}, "Switch a lamp"),
        (SPOKEN, {}, "Switch a lamp"),
        ({"title": "Switch a lamp"}, {"room": "hall"}, "Switch a lamp"),
        ({"annotations": {"title": "switch a lamp"}}, {}, "Switch a lamp"),
        ({}, {"room": "hall"}, ""),
    ],
)
def test_the_headline_of_a_card_is_the_template_else_the_title(
    fields: dict[str, Any], arguments: dict[str, Any], words: str
) -> None:
    assert headline(spec(**fields), arguments) == words


def test_a_strangers_title_is_no_headline() -> None:
    title = "Do nothing"
    assert (
        headline(
            ToolSpec(
                name="a.b", description="", input_schema={}, source="mcp:a", untrusted=True, title=title
            ),
            {},
        )
        == ""
    )
    assert (
        headline(ToolSpec(name="a.b", description="", input_schema={}, source="mcp:a", title=title), {})
        == title
    )
    assert len(headline(spec(**SPOKEN), {"room": "x" * 10**6})) < 400
