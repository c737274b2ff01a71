"""A scripted model for benchmarks: some tool rounds on the client's own tools, then an answer, each turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.stand_ins.anthropic_script import Call, JsonObject, Reply, Thought

_SAMPLES: Mapping[str, Any] = {
    "string": "sample",
    "integer": 1,
    "number": 1,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}


def sample(schema: Mapping[str, Any]) -> Any:
    """Make a value that a simple JSON schema accepts: constants, enumerations, types, required properties."""
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "string")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: sample(properties.get(name, {})) for name in schema.get("required", ())}
    if kind == "array":
        return [sample(schema.get("items", {}))] * int(schema.get("minItems", 0))
    if kind == "string":
        return "sample".ljust(int(schema.get("minLength", 0)), "x")
    if kind in ("integer", "number"):
        return schema.get("minimum", 1)
    return _SAMPLES.get(kind)


def rounds_so_far(messages: list[JsonObject]) -> int:
    """Count the assistant's tool rounds since the person's last words."""
    rounds = 0
    for message in reversed(messages):
        blocks = message["content"]
        kinds = {"text"} if isinstance(blocks, str) else {block["type"] for block in blocks}
        if message["role"] == "user" and "text" in kinds:
            break
        if message["role"] == "assistant" and "tool_use" in kinds:
            rounds += 1
    return rounds


@dataclass(frozen=True)
class BenchPersona:
    """Answers a turn with ``rounds`` calls of a tool, then ``tokens`` tokens of text.

    ``tool`` is the service's name of the tool; the first one offered is called if it is not among them. With
    ``thinks`` a round is two calls, with thinking before each.
    """

    rounds: int = 3
    tokens: int = 40
    delay_s: float = 0.0
    first_delay_s: float = 0.0
    tool: str = "agent_status"
    thinks: bool = False

    def __call__(self, request: JsonObject) -> Reply:
        """Look at the request's messages and give the next reply."""
        tools = request.get("tools", [])
        off = request.get("tool_choice", {}).get("type") == "none"
        if tools and not off and rounds_so_far(request["messages"]) < self.rounds:
            tool = next((tool for tool in tools if tool["name"] == self.tool), tools[0])
            call = Call(tool["name"], sample(tool["input_schema"]))
            blocks = (Thought("First."), call, Thought("Then."), call) if self.thinks else ()
            return Reply(calls=(call,), blocks=blocks, first_delay_s=self.first_delay_s)
        chunks = [f"word{number} " for number in range(self.tokens)]
        return Reply(
            text="".join(chunks), chunks=chunks, delay_s=self.delay_s, first_delay_s=self.first_delay_s
        )
