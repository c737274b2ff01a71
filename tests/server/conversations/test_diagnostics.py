"""What the server otherwise ignores in silence, told to the developer of an app that asks for it."""

from __future__ import annotations

from typing import Any

from structlog.testing import capture_logs

from conductor.models.base import TextDelta
from tests.app import App
from tests.models import ScriptedProvider
from tests.serving import serving
from tests.shapes import Event

LAMP: dict[str, Any] = {"name": "lamp.switch", "inputSchema": {"type": "object"}}
MISSPELT: dict[str, Any] = {
    **LAMP,
    "inputschema": {},
    "annotations": {"readonlyHint": True, "title": "Lamp"},
    "_meta": {"conducter": {"approval": "ask"}, "example.com/room": "hall"},
}


async def diagnosed(phone: App) -> list[Event]:
    """Give the payloads of the diagnostics that were sent so far."""
    since = len(phone.log)
    phone.say("hello")  # its turn comes after them
    await phone.until("assistant.speech.final", since=since)
    return [event["payload"] for event in phone.log if event["type"] == "diagnostic"]


def provider() -> ScriptedProvider:
    return ScriptedProvider([[TextDelta("Hello.")]] * 3)


async def make_every_mistake(phone: App) -> None:
    wrong = {"timeZone": "Europe/Lundon", "traceparent": "secret", "resume": {}}
    phone.send("session.start", {**phone.start_fields, **wrong})
    phone.send("user.audo.secret", {}, id="e-1")
    phone.send("response.cancel", {}, id="e-2")
    phone.send("session.update", {"tools": [MISSPELT, "lamp", {**LAMP, "annotations": 5}]}, id="e-3")
    phone.send("tool.result", {"callId": "evt_7", "result": "secret"}, id="e-4")


async def test_a_client_with_the_capability_is_told_of_each_mistake() -> None:
    fields = {"capabilities": ["diagnostics", "tools", "telepathy"]}
    async with serving(provider()) as served, served.phone(start_fields=fields) as phone:
        await make_every_mistake(phone)
        diagnostics = await diagnosed(phone)
    assert [
        (diagnostic["code"], diagnostic["message"], diagnostic.get("eventId")) for diagnostic in diagnostics
    ] == [
        ("unknown_capability", "There is no capability 'telepathy'.", None),
        (
            "unknown_time_zone",
            "'Europe/Lundon' is not an IANA time zone such as 'Europe/London'.",
            None,
        ),
        (
            "invalid_traceparent",
            "'secret' is not a traceparent of W3C Trace Context; it is ignored.",
            None,
        ),
        ("missing_capability", "'resume' is ignored without the capability 'resume'.", None),
        ("unknown_event", "There is no event type 'user.audo.secret'.", "e-1"),
        (
            "missing_capability",
            "'response.cancel' needs a capability that session.start did not name.",
            "e-2",
        ),
        *(
            ("unknown_field", f"The tool 'lamp.switch' has the unknown field '{name}'.", "e-3")
            for name in ("inputschema", "annotations.readonlyHint", "_meta.conducter")
        ),
        ("unknown_call", "No tool.call had this callId. It is not the frame's id.", "e-4"),
    ]
    assert {item["code"] for item in diagnostics if item["severity"] == "info"} == {"unknown_capability"}


async def test_tools_without_their_capability_are_told() -> None:
    fields = {"capabilities": ["diagnostics"], "tools": [LAMP]}
    async with serving(provider()) as served, served.phone(start_fields=fields) as phone:
        (problem,) = await diagnosed(phone)
    assert (problem["code"], problem["message"]) == (
        "missing_capability",
        "'tools' is ignored without the capability 'tools'.",
    )


async def test_a_client_that_makes_no_mistake_is_told_nothing() -> None:
    fields = {"capabilities": ["diagnostics", "tools"], "timeZone": "Europe/London", "tools": [LAMP]}
    async with serving(provider()) as served, served.phone(start_fields=fields) as phone:
        assert await diagnosed(phone) == []


async def test_the_same_mistake_is_told_once_a_session_and_not_without_end() -> None:
    fields = {"capabilities": ["diagnostics"]}
    async with serving(provider(), frames_per_second=1e6) as served:
        async with served.phone(start_fields=fields) as phone:
            for _ in range(3):
                phone.send("user.audo", {})
            assert len(await diagnosed(phone)) == 1
            for number in range(100):
                phone.send(f"user.audo{number}", {})
            assert 20 < len(await diagnosed(phone)) < 100


async def test_the_log_has_each_code_once_for_every_client_and_no_words_of_theirs() -> None:
    with capture_logs() as captured:
        async with serving(provider()) as served:
            async with served.phone(start_fields={"capabilities": ["tools", "telepathy"]}) as phone:
                await make_every_mistake(phone)
                await make_every_mistake(phone)
                assert await diagnosed(phone) == []
    lines = [line for line in captured if line["event"] == "diagnostic"]
    assert sorted(line["code"] for line in lines) == [
        "invalid_traceparent",
        "missing_capability",
        "unknown_call",
        "unknown_capability",
        "unknown_event",
        "unknown_field",
        "unknown_time_zone",
    ]
    assert all(line.keys() == {"event", "log_level", "code", "session"} for line in lines)
    assert {line["log_level"] for line in lines} == {"info"}
