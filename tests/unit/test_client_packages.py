"""The packages in ``clients/`` against the schema: no event and no field is forgotten in silence.

The libraries for Swift and Kotlin are not compiled here; their own tests read the frames in
``tests/unit/events/golden``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from protocol_schema import EVENTS, PAYLOADS, UI_CALLS

ROOT = Path(__file__).resolve().parents[2] / "clients"
SOURCES = {"js": ("*.js", "*.d.ts"), "kotlin": ("src/main/**/*.kt",), "swift": ("Sources/**/*.swift",)}

APP = "the app sees it by onEvent"
NOT_USED = {
    "session.start.githubToken": "the server neither uses nor keeps it",
    "session.start.traceparent": "the libraries do not trace",
    "audio.output.interrupted.speechId": "the server does not read it",
    "audio.output.resume.speechId": "one speech is played at a time",
    "approval.response.decisions": "the libraries decide one card at a time",
    "agent.completed": "an app with coding agents sends it itself, by send",
    "session.start.images": "a result with images is sent again, not listed",
    "session.start.mimeType": "a result with images is sent again, not listed",
    "session.start.data": "a result with images is sent again, not listed",
    "tool.accepted": "the libraries do not serve the capability async",
    "session.started.acceptedTools": APP,
    "session.started.rejectedTools": APP,
    "session.started.reason": APP,
    "session.started.model": APP,
    "session.started.localOnly": APP,
    "assistant.speech.partial.speechId": APP,
    "tool.call.timeoutMs": APP,
    "tool.call.isPartial": "it is always false",
    "tool.call.messageId": "a handler of convo.appendMessage gets it",
    "tool.cancel.reason": APP,
    "error.callId": APP,
    "tools.changed": APP,
    "tools.list": "an app that inspects sends it itself, by send",
    "tools.listed": APP,
    "tool.late": APP,
    "tool.activity": APP,
    "diagnostic": APP,
    "turn.ended.turnId": APP,
    "turn.metrics": APP,
    "session.goaway": "a close follows, after which the client connects again",
    "session.ping": "a sign of life",
}
"""What a library need not read or write, because."""


def events() -> Iterator[tuple[str, set[str]]]:
    """Yield each event's type with the names of its fields, those of the objects in them included."""

    def fields(schema: Any) -> Iterator[str]:
        if isinstance(schema, dict):
            if "$ref" in schema:
                yield from fields(PAYLOADS[schema["$ref"].rpartition("/")[2]])
            properties = schema.get("properties", {})
            yield from properties
            for part in (*properties.values(), schema.get("items"), *schema.get("anyOf", ())):
                yield from fields(part)

    for event in EVENTS:
        names = set(fields(PAYLOADS[event.struct.__name__]))
        for call in UI_CALLS if event.type == "tool.call" else ():
            names |= set(call.arguments["properties"])
        yield event.type, names


def required() -> list[str]:
    """List the events and ``event.field``s that a client needs, by the schema and ``NOT_USED``."""
    return [
        path
        for name, fields in events()
        if name not in NOT_USED
        for path in (name, *(f"{name}.{field}" for field in sorted(fields)))
        if path not in NOT_USED
    ]


def code(package: str) -> str:
    """Return a package's source without comments."""
    files = sorted(file for pattern in SOURCES[package] for file in (ROOT / package).glob(pattern))
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    return re.sub(r"/\*.*?\*/|(?<!:)//[^\n]*", "", text, flags=re.DOTALL)


def test_no_type_of_the_swift_package_hides_a_framework_that_a_voice_app_imports() -> None:
    frameworks = {
        "Speech",
        "AVFoundation",
        "AVFAudio",
        "Intents",
        "Network",
        "Combine",
        "Foundation",
        "OSLog",
    }
    sources = "".join(path.read_text() for path in ROOT.glob("swift/Sources/**/*.swift"))
    names = set(re.findall(r"public (?:final )?(?:struct|class|enum|typealias|protocol) (\w+)", sources))
    assert "Utterance" in names and not names & frameworks


@pytest.mark.parametrize("path", ["swift/Example/Lamp.swift", "kotlin/example/Lamp.kt"])
def test_an_example_waits_for_the_end_of_its_turn(path: str) -> None:
    text = (ROOT / path).read_text()
    assert re.search(r"\.say\(.*\)\.(?:value|await\(\))", text)
    assert "onFinal" in text and not re.search(r"onFinal = \{[^}]*exit", text)


@pytest.mark.parametrize("package", SOURCES)
def test_each_event_and_field_is_covered(package: str) -> None:
    text = code(package)
    # JavaScript has fields as names, the others as strings.
    quoted = set(re.findall(r'"([\w.]+)"', text))
    words = quoted | set(re.findall(r"\w+", text)) if package == "js" else quoted
    names = {name for name, _ in events()}
    missing = [
        path for path in required() if (path if path in names else path.rpartition(".")[2]) not in words
    ]
    assert missing == []


def test_unused_events_exist() -> None:
    paths = {path for name, fields in events() for path in (name, *(f"{name}.{field}" for field in fields))}
    assert NOT_USED.keys() <= paths


def test_the_manifests_list_existing_files() -> None:
    swift = (ROOT / "swift" / "Package.swift").read_text(encoding="utf-8")
    places = {"target": "Sources", "executableTarget": "Sources", "testTarget": "Tests"}
    targets = re.findall(r'\.(\w*[tT]arget)\(name: "(\w+)"[^)]*?(?:path: "(\w+)")?\)', swift)
    assert len(targets) == 3
    for kind, name, path in targets:
        assert list((ROOT / "swift" / (path or f"{places[kind]}/{name}")).glob("*.swift"))
    gradle = (ROOT / "kotlin" / "build.gradle.kts").read_text(encoding="utf-8")
    (resources,) = re.findall(r'resources\.srcDir\("(.+)"\)', gradle)
    assert (ROOT / "kotlin" / resources / "tool.call.json").exists()
    package = json.loads((ROOT / "js" / "package.json").read_text(encoding="utf-8"))
    assert all((ROOT / "js" / file).exists() for file in package["files"])
