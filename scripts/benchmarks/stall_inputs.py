"""Inputs that may hold the event loop: for each public path how they are made, mutated and played."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from benchmarks.fuzz import dear_payloads
from conductor.tools.rules import Rule, parse_rule
from tests.events.mutations import Mutator

Data: TypeAlias = dict[str, Any]
"""An input: JSON whose fields are the path's."""

EVENT_BYTES = 66_000
REPLY_CHARS = 256_000
"""64,000 tokens: more no model is asked for."""
DELTAS = 5_000
"""Pieces of a reply that may come in one read from a socket."""


@dataclass(frozen=True)
class Scene:
    """A session to be played.

    ``start`` is the payload of ``session.start``. ``events`` come after it: a type and its payload, or a
    frame as it is. ``replies`` are the model's, a text or a call in each step. ``outcome`` is what the device
    answers to its tools; ``local.get`` gives ``data`` after it has held the loop for ``busy_s``. ``edits``
    answer the first request for approval, and ``answers`` are said whenever the microphone opens.
    """

    start: Data = field(default_factory=dict)
    events: Sequence[tuple[str, Data] | str] = (("user.audio.transcript.final", {"text": "Go."}),)
    replies: Sequence[Sequence[str | tuple[str, str]]] = ()
    outcome: Data = field(default_factory=lambda: {"result": "ok"})
    data: Any = None
    busy_s: float = 0.0
    edits: Sequence[Any] = ()
    answers: Sequence[str] = ()
    rules: Sequence[Rule] = ()


def _fits(data: Any) -> bool:
    """Tell whether an input is small enough to be written down: what is made may be there many times."""
    room, waiting = 1_500_000, [data]
    while waiting and room > 0:
        value = waiting.pop()
        room -= len(value) if isinstance(value, str | list | dict) else 8
        if isinstance(value, dict):
            waiting += value
        if isinstance(value, dict | list) and len(value) < room:
            waiting += value.values() if isinstance(value, dict) else value
    return room > 0


def frame_text(value: Any) -> str:
    """Write a value as a client does."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class NoInput(ValueError):
    """Data that mutation has made unfit for its path."""


@dataclass(frozen=True)
class Path:
    """A way from outside to the loop. The first of ``seeds`` is an ordinary input."""

    seeds: Sequence[Data]
    make: Callable[[random.Random], Data]
    build: Callable[[Data], Scene]

    def scene(self, data: Data) -> Scene:
        """Make the scene of an input. Raises `NoInput`."""
        if not _fits(data):
            raise NoInput("it is too large")
        try:
            scene = self.build(data)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise NoInput(repr(error)) from error
        if any(len(frame_text(each)) > EVENT_BYTES for each in (scene.start, scene.edits, *scene.events)):
            raise NoInput("no event may be as large")
        if any(len(frame_text(reply)) > REPLY_CHARS for reply in scene.replies):
            raise NoInput("no reply may be as large")
        return scene


# -- texts and values

_UNITS = (
    *("jwt=:", "secret==", "password=//x", "pwd=aB3dE6 ", "token: abc1def ", "eyJ", "sk-", "://a:b@"),
    # Names of secrets before values that are none, so that the search goes on within the value.
    *(
        "pwd=/a",
        "auth=AAAAAA",
        "auth=aaa:aa",
        "cookie:aaaaaa",
        "key=",
        "keypwd=C:/aaaaaa",
        'auth="',
        "pass='",
    ),
    *("\u0f73", "\u0f81\u0f75", "1e300,", "5e-324,"),
    *(
        "-----BEGIN PRIVATE KEY-----",
        "<password>",
        "machine a login b password ",
        "%61",
        "\\u0061",
        "[REDACTED:",
    ),
    *("/home/x ", "C:\\", "\u0301", "\u0323\u0301", "\ufdfa", "\u1e9b\u0323", "\u0130", "\u00df"),
    *("\ufb03", "\U0001d7d8", "\U0001f469\u200d", "\u202e", "\u00ad", "\uac01"),
    *(
        "*",
        "**a",
        "_",
        "_a_",
        "`",
        "``",
        "~~",
        "[",
        "](",
        "![",
        "[a](b) ",
        "[a][",
        "<",
        "<a b=",
        "<!--",
        "&amp;",
    ),
    *(
        "\n",
        "\n\n",
        "\n> ",
        "\n- ",
        "\n1. ",
        "\n# ",
        "\n|a|b",
        "\n|-|-|",
        "\n```",
        "|",
        "#",
        "www.",
        "http://a/",
    ),
    *(
        "yes ",
        "no ",
        "please ",
        "delete ",
        "go ahead ",
        "the ",
        "and ",
        "not ",
        "wait ",
        "? ",
        "7 ",
        "confirm ",
    ),
    *(
        "a",
        "A",
        " ",
        "\t",
        "0",
        "9",
        ".",
        ",",
        ":",
        "/",
        "../",
        "./",
        "@",
        "-",
        "+",
        "=",
        "(",
        ")",
        "{",
        '"',
        "'",
    ),
    *(
        "\x00",
        "---",
        "\\",
        "abcdefghij",
        "a1b2",
        "word ",
        "Word. ",
        "sqrt(",
        "9**",
        "2^",
        "1e9",
        "factorial(",
    ),
)
_PATTERNS = (
    "^(a+)+$",
    "(?:ab){1500}c",
    "(a|aa)+$",
    "^(\\w+\\s?)*$",
    "[a-z]{0,250}x",
    "(?:a{0,60}){0,4}b",
    "\\p{L}{1,99}",
    "^[^,]*,[^,]*,$",
    "(?i)[a-z0-9]{64}",
    ".*a.*b.*c.*d",
    "x{1000}",
    "(?:[ab]{9}c){9}",
    "\\d+\\.\\d+$",
)
_TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")


def _text(rng: random.Random, most: int = 60_000) -> str:
    unit = "".join(rng.choice(_UNITS) for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))))
    size = min(most, 2 ** rng.randint(0, 16))
    ends = (rng.choice(_UNITS) if rng.random() < 0.4 else "" for _ in range(2))
    return f"{next(ends)}{unit * max(1, size // len(unit))}{next(ends)}"


def _names(rng: random.Random, number: int) -> list[str]:
    letters = rng.choice(("a", "ab", "abcdefgh", "x_y", "name", "z" * 30)) * 64
    start = letters[: rng.choice((4, 20, 58))]
    return [f"{start}{n:05}" for n in range(number)]


def _some(rng: random.Random, make: Callable[[], Any], numbers: Sequence[int]) -> list[Any]:
    """Make a few values, or one many times."""
    number = rng.choice(numbers)
    return [make() for _ in range(number)] if number < 4 else [make()] * number


def _value(rng: random.Random, depth: int = 3) -> Any:
    match rng.randint(0, 9 if depth else 5):
        case 0:
            return rng.choice((0, 1, -1, 3.0, 1e308, 5e-324, 2**53 - 1, 10**15, 0.1))
        case 1:
            return rng.choice((True, False, None, "", "3", "true", "[]", "null"))
        case 2 | 3 | 4 | 5:
            return _text(rng, 2 ** rng.randint(0, 16))
        case 6 | 7:
            return _some(rng, lambda: _value(rng, depth - 1), (1, 2, 30, 500))
        case _:
            values = _some(rng, lambda: _value(rng, depth - 1), (1, 3, 30, 200))
            return dict(zip(_names(rng, len(values)), values, strict=True))


def _schema(rng: random.Random, depth: int = 3) -> Data:
    kind = rng.choice(_TYPES) if depth else rng.choice(_TYPES[:4])
    schema: Data = {"type": kind} if rng.random() < 0.8 else {}
    if kind == "string" and rng.random() < 0.7:
        schema |= rng.choice(
            (
                {"pattern": rng.choice(_PATTERNS)},
                {"enum": _names(rng, 400)},
                {"maxLength": 9},
                {"format": rng.choice(("date-time", "email", "uri", "ipv6", "regex", "uuid"))},
                {"const": "x" * 200},
            )
        )
    if kind == "array":
        schema |= {"items": _schema(rng, depth - 1), "uniqueItems": rng.random() < 0.5}
        schema |= {"contains": _schema(rng, 0)} if rng.random() < 0.2 else {}
    if kind == "object":
        below = _some(rng, lambda: _schema(rng, depth - 1), (1, 3, 30, 300, 800))
        names = _names(rng, len(below))
        schema["properties"] = dict(zip(names, below, strict=True))
        schema["additionalProperties"] = rng.choice((True, False, False, {"type": "string"}))
        schema["required"] = names[: rng.choice((0, 1, 20))]
        if rng.random() < 0.2:
            schema["patternProperties"] = {rng.choice(_PATTERNS): _schema(rng, 0)}
        if rng.random() < 0.2:
            schema["propertyNames"] = {"pattern": rng.choice(_PATTERNS)}
        if rng.random() < 0.2:
            schema["dependentRequired"] = dict.fromkeys(names[:20], names[:20])
    if rng.random() < 0.3 and depth:
        branches = _some(rng, lambda: _schema(rng, depth - 1), (2, 8, 30))
        schema[rng.choice(("anyOf", "oneOf", "allOf"))] = branches
    return schema


def _input_schema(rng: random.Random) -> Data:
    schema = _schema(rng) | {"type": "object"}
    if rng.random() < 0.3:
        body = {k: schema.pop(k) for k in list(schema) if k != "type"}
        schema |= {"$defs": {"d": {"type": "object", **body}}}
        branch = {"$ref": "#/$defs/d"}
        schema |= rng.choice(
            ({"anyOf": [branch] * 8}, {"oneOf": [branch] * 30}, {"properties": {"a": branch}})
        )
    return schema


def _fitting(schema: Any, rng: random.Random, depth: int = 5) -> Any:
    """Make a value that fits a schema or nearly does: names are misspelt, texts long, numbers texts."""
    if not isinstance(schema, dict) or not depth or rng.random() < 0.05:
        return _value(rng, 1)
    for keyword in ("anyOf", "oneOf", "allOf"):
        if branches := schema.get(keyword):
            return _fitting(rng.choice(branches) | {"type": "object"}, rng, depth - 1)
    if "properties" in schema:
        names = list(schema["properties"])
        chosen = rng.sample(names, min(len(names), rng.choice((1, 20, 200))))
        ending = "q" if rng.random() < 0.6 else ""
        value = _fitting(schema["properties"][names[0]], rng, depth - 1)
        return {f"{name[len(ending) :]}{ending}": value for name in chosen}
    match schema.get("type"):
        case "array":
            return [_fitting(schema.get("items"), rng, depth - 1)] * rng.choice((1, 30, 1_000))
        case "string":
            return _text(rng) if rng.random() < 0.5 else rng.choice("abx") * 2 ** rng.randint(0, 15)
        case "integer" | "number":
            return rng.choice((3, "3", 3.0, "3.0", "9" * 400, 1e300))
    return _value(rng, 1)


# -- mutation

_GROWTH = (2, 2, 2, 3, 8)


def mutated(data: Data, rng: random.Random) -> Data:
    """Change an input in one to three places, rather to something larger."""
    copy: Data = json.loads(json.dumps(data))
    for _ in range(rng.choice((1, 1, 2, 3))):
        holder, key = rng.choice(_places(copy))
        holder[key] = _changed(holder[key], rng)
    return copy


def _places(data: Any) -> list[tuple[Any, Any]]:
    """List all values of an input, each by what holds it and its key there."""
    places: list[tuple[Any, Any]] = []
    waiting = [data]
    while waiting and len(places) < 2_000:
        holder = waiting.pop(0)
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            places.append((holder, key))
            if isinstance(holder[key], dict | list) and holder[key]:
                waiting.append(holder[key])
    return places


def _changed(value: Any, rng: random.Random) -> Any:
    match value:
        case str():
            at, unit = rng.randint(0, len(value)), rng.choice(_UNITS)
            piece = value[at : at + rng.choice((1, 2, 5, 20))] or unit
            return rng.choice(
                (
                    value * rng.choice(_GROWTH),
                    value[:at] + unit + value[at:],
                    value[:at] + piece * 64 + value[at:],
                    value[:at] + unit * 512 + value[at:],
                    value[at:] + value[:at],
                    piece * max(1, len(value) // len(piece)),
                    value[: len(value) // 2],
                    _text(rng),
                    value.replace(piece, piece + unit)[:200_000],
                )
            )
        case list() if value:
            one = rng.choice(value)
            return rng.choice(
                (
                    value * rng.choice(_GROWTH),
                    value + [one] * 50,
                    value[: len(value) // 2 + 1],
                    [_changed(one, rng)] * len(value),
                    [value],
                    [*value, _value(rng, 2)],
                )
            )
        case dict() if value:
            name = rng.choice(list(value))
            more = {f"{name[:58]}{n}": value[name] for n in range(rng.choice((1, 20, 300)))}
            return rng.choice((value | more, {name: value}, value | {rng.choice(_UNITS): value[name]}, more))
        case bool() | None:
            return _value(rng, 1)
        case int() | float():
            return rng.choice((value * 2, value + 1, -1, 10**6, 1e308, str(value)))
    return _value(rng, 2)


# -- the paths


def _said(event_type: str, payload: Any) -> tuple[str, Data]:
    return event_type, payload if isinstance(payload, dict) else {"text": payload}


_GO = _said("user.audio.transcript.final", "Go.")


def _tool(schema: Any, **more: Any) -> Data:
    return {"name": "device.do", "description": "Does it.", "inputSchema": schema, **more}


def _declaring(*tools: Any, capabilities: Sequence[str] = ("tools",)) -> Data:
    return {"capabilities": list(capabilities), "tools": list(tools)}


_READ = {"annotations": {"readOnlyHint": True}}


def _call(arguments: Any) -> tuple[str, str]:
    return "device.do", frame_text(arguments)


def _arguments(data: Data) -> Scene:
    return Scene(_declaring(_tool(data["schema"], **_READ)), replies=[[_call(data["arguments"])]])


def _edits(data: Data) -> Scene:
    start = _declaring(_tool(data["schema"]), capabilities=("tools", "approval"))
    return Scene(start, replies=[[_call(data["arguments"])]], edits=data["edits"])


def _results(data: Data) -> Scene:
    return Scene(
        _declaring(_tool({"type": "object"}, **_READ)),
        replies=[[_call({}), ("local.get", "{}")]],
        outcome={"error" if data["failed"] else "result": data["result"]},
        data=data["result"],
    )


def _rules(data: Data) -> Scene:
    rules = [
        parse_rule(
            {"effect": effect, "tool": "device.*", "args": {name: {predicate: data["wanted"][predicate]}}}
        )
        for name in data["arguments"]
        for predicate in data["wanted"]
        for effect in ("deny", "ask")
    ]
    schema = {"type": "object"}
    return Scene(_declaring(_tool(schema, **_READ)), replies=[[_call(data["arguments"])]], rules=rules[:24])


def _speech(data: Data) -> Scene:
    text, size = data["text"], max(1, len(data["text"]) // min(max(1, data["pieces"]), DELTAS))
    return Scene(replies=[[text[at : at + size] for at in range(0, len(text), size)]])


def _answers(data: Data) -> Scene:
    tool = _tool(
        {"type": "object", "properties": dict.fromkeys(data["arguments"], {})},
        annotations={"destructiveHint": bool(data["high"])},
        title=data["title"],
    )
    return Scene(_declaring(tool), replies=[[_call(data["arguments"])]], answers=data["answers"])


def _interruption(data: Data) -> Scene:
    heard = {"spokenText": data["spoken"], "reason": data["reason"]}
    return Scene(events=(_GO, _said("audio.output.interrupted", heard), _GO), replies=[[data["text"]]] * 2)


def _arguments_made(rng: random.Random) -> Data:
    schema = _input_schema(rng)
    return {"schema": schema, "arguments": _fitting(schema.get("$defs", {}).get("d", schema), rng)}


def _edits_made(rng: random.Random) -> Data:
    made = _arguments_made(rng)
    return made | {"arguments": {}, "edits": [made["arguments"]] * rng.choice((1, 30, 100))}


def _wanted(rng: random.Random) -> Data:
    return {
        "under": rng.choice(("/etc", "/", "/a/b/c", "a")),
        "glob": rng.choice(("*a*b*c*", "*", "?" * 50, "[a-z]*[!x]*", "*a" * 30)),
        "eq": _value(rng, 1),
        "in": [_value(rng, 0)] * 3,
        "host": "example.com",
        "max": 5,
    }


_NAMES_900 = [f"{'n' * 59}{number:05}" for number in range(900)]
_OF_900 = {"type": "object", "properties": dict.fromkeys(_NAMES_900, {}), "additionalProperties": False}
_ANY_OF_900 = {
    "type": "object",
    "$defs": {"d": _OF_900},
    "anyOf": [{"$ref": "#/$defs/d"}] * 8,
}
_MISSPELT = {f"{'n' * 58}{number:05}": 1 for number in range(20)}
_COUNTED = {
    "type": "object",
    "properties": dict.fromkeys("abc", {"type": "string", "pattern": "(?:ab){15000}c"}),
}
_MARKS = "/etc/" + "\u0323\u0301" * 15_500
_PLAIN = {"type": "object", "properties": {"x": {"type": "integer"}}}
_RESULT = '{"id":"e","type":"tool.result","timestamp":"t","sessionId":"s-1","payload":%s}'
_TEXT_SEEDS = [{"text": "Hello **there**.", "pieces": 3}, {"text": "*a_" * 20_000, "pieces": 1}]

FIXED: dict[str, tuple[str, Data]] = {
    "misspelt arguments among 900 names": ("arguments", {"schema": _OF_900, "arguments": _MISSPELT}),
    "misspelt arguments under an anyOf": ("arguments", {"schema": _ANY_OF_900, "arguments": _MISSPELT}),
    "thirty edits": ("edits", {"schema": _OF_900, "arguments": {}, "edits": [_MISSPELT] * 30}),
    "jwt=:": ("results", {"result": "jwt=:" * 13_107, "failed": False}),
    "secret==": ("results", {"result": "secret==" * 8_192, "failed": False}),
    "password=//x": ("results", {"result": "password=//x" * 5_461, "failed": False}),
    "pwd=/a": ("results", {"result": "pwd=/a" * 10_900, "failed": False}),
    "auth=aaa:aa": ("results", {"result": "auth=aaa:aa" * 5_900, "failed": False}),
    "cookie:aaaaaa": ("results", {"result": "cookie:aaaaaa" * 5_000, "failed": False}),
    "marks of class 0": ("rules", {"wanted": {"under": "/etc"}, "arguments": {"path": "\u0f73" * 20_000}}),
    "counted repeats": ("arguments", {"schema": _COUNTED, "arguments": dict.fromkeys("abc", "ab" * 10_600)}),
    "combining marks": ("rules", {"wanted": {"under": "/etc"}, "arguments": {"path": _MARKS}}),
}
"""Inputs that once held the loop for seconds, each with its path."""


def _fixed(path: str) -> list[Data]:
    return [data for of, data in FIXED.values() if of == path]


PATHS: dict[str, Path] = {
    "codec": Path(
        [
            {"frame": "{}"},
            *({"frame": _RESULT % payload} for payload in dear_payloads(EVENT_BYTES).values()),
        ],
        lambda rng: {
            "frame": Mutator(rng.randrange(2**32), largest=EVENT_BYTES, session_id="s-1")
            .next()
            .decode("utf-8", "surrogateescape")
        },
        lambda data: Scene(events=[str(data["frame"])]),
    ),
    "start": Path(
        [{"payload": {"instructions": "Be short.", "locale": "en-GB", "timeZone": "Europe/London"}}],
        lambda rng: {
            "payload": {
                "instructions": _text(rng, 4_000),
                "locale": _text(rng, 200),
                "timeZone": _text(rng, 200),
                "capabilities": ["resume", "tools"],
                "resume": {
                    "done": [
                        {"callId": f"c{n}", "result": _value(rng, 1)} for n in range(rng.choice((1, 256)))
                    ]
                },
            }
        },
        lambda data: Scene(data["payload"]),
    ),
    "declarations": Path(
        [{"tools": [_tool(_PLAIN)]}],
        lambda rng: {
            "tools": [
                {**_tool(schema), "name": f"t.{n}"}
                for n, schema in enumerate(_some(rng, lambda: _input_schema(rng), (1, 3, 128)))
            ]
        },
        lambda data: Scene(
            _declaring(*data["tools"]), events=[_said("session.update", {"tools": data["tools"]})]
        ),
    ),
    "arguments": Path(
        [{"schema": _PLAIN, "arguments": {"x": 1}}, *_fixed("arguments")], _arguments_made, _arguments
    ),
    "edits": Path(
        [{"schema": _PLAIN, "arguments": {}, "edits": [{"x": 1}]}, *_fixed("edits")], _edits_made, _edits
    ),
    "tool names": Path(
        [{"names": ["lamp.on", "lamp.off"], "called": "lamp.of"}],
        lambda rng: {"names": _names(rng, 128), "called": _text(rng)},
        lambda data: Scene(
            _declaring(*({"name": name, "inputSchema": {"type": "object"}} for name in data["names"])),
            replies=[[(str(data["called"]), "{}")]],
        ),
    ),
    "results": Path(
        [{"result": "ok", "failed": False}, *_fixed("results")],
        lambda rng: {
            "result": _text(rng) if rng.random() < 0.7 else _value(rng),
            "failed": rng.random() < 0.1,
        },
        _results,
    ),
    "rules": Path(
        [{"wanted": {"under": "/etc"}, "arguments": {"path": "/etc/hosts"}}, *_fixed("rules")],
        lambda rng: {"wanted": _wanted(rng), "arguments": {"path": _value(rng, 2), "other": _text(rng)}},
        _rules,
    ),
    "speech": Path(
        _TEXT_SEEDS, lambda rng: {"text": _text(rng), "pieces": rng.choice((1, 10, 1_000))}, _speech
    ),
    "answers": Path(
        [{"arguments": {"path": "notes.txt"}, "answers": ["yes"], "high": False, "title": "Delete file"}],
        lambda rng: {
            "arguments": {name: _value(rng, 2) for name in _names(rng, rng.choice((1, 4, 40)))},
            "answers": [_text(rng) for _ in range(3)],
            "high": rng.random() < 0.5,
            "title": _text(rng, 80),
        },
        _answers,
    ),
    "interruption": Path(
        [{"text": "One two three.", "spoken": "One", "reason": "user"}],
        lambda rng: {"text": _text(rng), "spoken": _text(rng), "reason": _text(rng, 100)},
        _interruption,
    ),
    "news": Path(
        [{"payload": {"agentId": "a", "status": "FINISHED", "summary": "Done."}}],
        lambda rng: {
            "payload": {
                "agentId": "a",
                "status": _text(rng, 200),
                "summary": _text(rng),
                "name": _text(rng, 900),
            }
        },
        lambda data: Scene(events=[_said("agent.completed", data["payload"]), _GO]),
    ),
    "built-ins": Path(
        [{"calls": [["calculator", {"expression": "2+2"}]]}],
        lambda rng: {
            "calls": [
                rng.choice(
                    (
                        ["calculator", {"expression": _text(rng, 600)}],
                        ["get_current_time", {"timezone": _text(rng, 80)}],
                        ["add_task", {"title": _text(rng), "description": _text(rng)}],
                        ["update_task", {"id": _text(rng, 80), "status": "completed"}],
                    )
                )
                for _ in range(rng.choice((1, 8)))
            ]
        },
        lambda data: Scene(
            replies=[[(str(name), json.dumps(arguments)) for name, arguments in data["calls"]]]
        ),
    ),
}
