"""The client library against a scripted server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request

from conductor.client import (
    CannotConnect,
    Client,
    ClientLimits,
    ConnectionLost,
    Reconnect,
    StartRefused,
    ToolCancelledError,
    UnknownEvent,
    WaitTimeout,
    connect,
)
from conductor.events.server import SpeechFinal, SpeechPartial, ToolCallEvent
from conductor.messages import Note
from conductor.models.base import TextDelta
from tests.hasty import SHORT_S, hasten
from tests.models import ScriptedProvider
from tests.server.client.extended import play, soon, tool_results
from tests.serving import serving
from tests.stand_ins.scripted_server import LIMIT_S, Json, Peer, scripted_server


async def test_a_plain_turn_ends_with_idle_and_keeps_its_events_in_order() -> None:
    async with scripted_server() as server, connect(server.url) as client:
        result = await (await client.say("hello")).wait(LIMIT_S)
    assert result.ok
    assert result.text == "You said: hello"
    assert result.partials == ["You", "You said: hello"]
    assert result.speeches == ["You said: hello"]
    assert result.ending == "idle"
    kinds = [event.name if isinstance(event, ToolCallEvent) else type(event) for event in result.events]
    assert kinds == [
        "convo.setState",
        "convo.appendMessage",
        SpeechPartial,
        SpeechPartial,
        SpeechFinal,
        "convo.appendMessage",
        "convo.setState",
        "tts.speak",
        "convo.setState",
    ]
    assert client.state == "idle"


async def test_session_start_contains_the_options() -> None:
    declared = [{"name": "notes.add", "inputSchema": {"type": "object"}}]
    async with scripted_server() as server:
        async with connect(
            server.url,
            "s-1",
            token="secret",
            locale="de-DE",
            lang="en",
            time_zone="Europe/Berlin",
            instructions="Be brief.",
            model="home",
            capabilities=("goaway",),
            tools=declared,
        ) as client:
            assert client.started is not None
            assert client.started.session_id == "s-1"
        request = server.peers[0].connection.request
    assert server.heard[0]["payload"] == {
        "sessionId": "s-1",
        "locale": "de-DE",
        "lang": "en",
        "timeZone": "Europe/Berlin",
        "instructions": "Be brief.",
        "model": "home",
        "capabilities": ["goaway", "tools"],
        "tools": declared,
    }
    assert request is not None
    assert request.headers["Authorization"] == "Bearer secret"


# -- calls


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("a string as it is", "a string as it is"),
        ({"n": [1, None]}, '{"n":[1,null]}'),
        (None, "null"),
        ("\ud800 alone", "? alone"),
    ],
)
async def test_a_tool_returns_text_or_json(answer: Any, expected: str) -> None:
    async def part(peer: Peer) -> None:
        results.append(await peer.ask("notes.find", {"query": "milk"}))

    def handler(arguments: Json) -> Any:
        queries.append(arguments)
        return answer

    queries: list[Json] = []
    results: list[Json] = []
    _, result = await play(part, handlers={"notes.find": handler})
    assert queries == [{"query": "milk"}]
    assert (results[0]["result"], results[0]["error"]) == (expected, None)
    assert [call.name for call in result.calls] == ["notes.find"]


def fails(_arguments: Json) -> None:
    raise ValueError("the shelf is empty")


class TextlessError(Exception):
    """An exception whose text fails."""

    def __str__(self) -> str:
        raise RuntimeError


def fails_without_text(_arguments: Json) -> None:
    raise TextlessError


async def never_ends(_arguments: Json) -> None:
    hasten()
    await asyncio.Event().wait()


def cancels_itself(_arguments: Json) -> None:
    raise asyncio.CancelledError


def refuses(_arguments: Json) -> None:
    raise ToolCancelledError("none")


@pytest.mark.parametrize(
    ("handler", "arguments", "error"),
    [
        (fails, {}, "the shelf is empty"),
        (fails_without_text, {}, "TextlessError"),
        ("no function", {}, "'str' object is not callable"),
        (None, {}, "This device has no tool notes.add."),
        (never_ends, {}, "The device's tool did not end within 1 s."),
        (lambda _: object(), {}, "Encoding objects of type object is unsupported"),
        (cancels_itself, {}, "The tool was cancelled on the device."),
        (fails, "[1]", "The arguments are not a JSON object."),
        (refuses, {}, "The tool was cancelled on the device; effect: none."),
    ],
)
async def test_a_failed_call_is_answered_by_an_error(handler: Any, arguments: Any, error: str) -> None:
    async def part(peer: Peer) -> None:
        results.append(await peer.ask("notes.add", arguments))

    results: list[Json] = []
    handlers = {} if handler is None else {"notes.add": handler}
    await play(part, handlers=handlers, limits=ClientLimits(tool_s=SHORT_S))
    assert [result["error"] for result in results] == [error]


async def test_a_result_that_exceeds_a_frame_is_truncated() -> None:
    async def part(peer: Peer) -> None:
        texts.append((await peer.ask("notes.all", {}))["result"])

    texts: list[str] = []
    await play(part, handlers={"notes.all": lambda _: "\x01" * 300_000})
    assert texts[0].endswith("[168928 characters left out by the device]")


async def test_a_bridge_call_is_never_answered_and_a_duplicate_runs_once() -> None:
    async def part(peer: Peer) -> None:
        await peer.call("bridge.ping", {}, "evt_bridge")
        for _ in range(2):
            await peer.call("notes.add", {}, "evt_same")

    runs: list[Json] = []
    clients: list[Client] = []
    server, _ = await play(
        part, clients=clients, handlers={"bridge.ping": runs.append, "notes.add": runs.append}
    )
    assert len(runs) == 1 and "evt_same" in clients[0].received_ids
    assert [call_id for _, call_id in tool_results(server)] == ["call_evt_same"]


# -- speech


async def test_without_serial_speeches_are_still_sequential() -> None:
    async def part(peer: Peer) -> None:
        first, second = [await peer.call("tts.speak", {"text": text}) for text in ("one", "two")]
        await peer.result(await peer.state("thinking"))
        go_on.set()
        await peer.result(first)
        await peer.result(second)

    async def speak(text: str) -> None:
        voice.append(f"{text} begins")
        await go_on.wait()
        voice.append(f"{text} ends")

    voice, go_on = list[str](), asyncio.Event()
    await play(part, serial=False, speak=speak)
    assert voice[:4] == ["one begins", "one ends", "two begins", "two ends"]


async def test_an_interruption_stops_the_speech_and_is_sent_before_its_result() -> None:
    speaking = asyncio.Event()
    stopped: list[str] = []

    async def speak(text: str) -> None:
        speaking.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(text)

    async with scripted_server() as server, connect(server.url, speak=speak) as client:
        turn = await client.say("hello")
        await soon(speaking)
        await client.interrupt(reason="barge-in", spoken_text="You", played_ms=120)
        result = await turn.wait(LIMIT_S)
    assert stopped == ["You said: hello"]
    assert result.interrupted
    types = server.types_heard()
    index = types.index("audio.output.interrupted")
    assert server.heard[index]["payload"] == {"reason": "barge-in", "spokenText": "You", "playedMs": 120.0}
    assert json.loads(server.heard[index + 1]["payload"]["result"]) == {"spoken": True}


async def test_a_transcript_names_its_language() -> None:
    async with scripted_server() as server, connect(server.url) as client:
        await (await client.say("hallo", lang="de")).wait(LIMIT_S)
        await (await client.say("hello")).wait(LIMIT_S)
    said = [event["payload"] for event in server.heard if event["type"] == "user.audio.transcript.final"]
    assert said == [{"text": "hallo", "lang": "de"}, {"text": "hello"}]


async def test_a_voice_with_two_parameters_receives_the_language() -> None:
    async def part(peer: Peer) -> None:
        await peer.ask("tts.speak", {"text": "Darf ich?", "lang": "de"})

    async def speak(text: str, lang: str) -> None:
        spoken.append((text, lang))

    async def speak_slowly(text: str, rate: float = 0.5) -> None:
        spoken.append((text, str(rate)))

    spoken: list[tuple[str, str]] = []
    await play(part, speak=speak)
    await play(part, speak=speak_slowly)
    assert spoken == [("Darf ich?", "de"), ("Done.", ""), ("Darf ich?", "0.5"), ("Done.", "0.5")]


async def test_a_queued_speech_is_skipped_after_an_interruption() -> None:
    async def part(peer: Peer) -> None:
        call_id = await peer.call("notes.slow", {})
        speech = await peer.call("tts.speak", {"text": "never heard"})
        await peer.arrived()
        await soon(started)
        await clients[0].interrupt()
        release.set()
        await peer.result(call_id)
        assert json.loads((await peer.result(speech))["result"]) == {"spoken": True}

    async def slow(_arguments: Json) -> None:
        started.set()
        await release.wait()

    async def speak(text: str) -> None:
        texts.append(text)

    texts: list[str] = []
    clients: list[Client] = []
    started, release = asyncio.Event(), asyncio.Event()
    await play(part, clients=clients, speak=speak, handlers={"notes.slow": slow})
    assert texts == ["Done."]


async def test_a_failed_voice_is_an_error_result() -> None:
    async def part(peer: Peer) -> None:
        results.append(await peer.ask("tts.speak", {"text": "hello"}))

    async def speak(_text: str) -> None:
        raise OSError("no audio device")

    results: list[Json] = []
    await play(part, speak=speak)
    assert results[0]["error"] == "no audio device"


# -- callbacks


async def test_an_unknown_event_is_delivered() -> None:
    async def part(peer: Peer) -> None:
        clients[0].on("tool.activity", activity.append)
        clients[0].on("*", events.append)
        await peer.connection.send("not json")
        await peer.send("tool.activity", {"callId": "c", "status": "started"})
        await peer.send("assistant.speech.partial", {"text": 7})

    activity: list[Any] = []
    events: list[Any] = []
    clients: list[Client] = []
    await play(part, clients=clients)
    assert activity == [UnknownEvent("tool.activity", {"callId": "c", "status": "started"})]
    assert UnknownEvent("assistant.speech.partial", {"text": 7}) in events


async def test_a_failed_callback_does_not_affect_others() -> None:
    def broken(_event: Any) -> None:
        raise RuntimeError("a bug of the app's")

    async def cancelled(_event: Any) -> None:
        raise asyncio.CancelledError

    texts: list[str] = []

    async def good(event: SpeechFinal) -> None:
        texts.append(event.text)

    async with scripted_server() as server, connect(server.url) as client:
        client.on(SpeechFinal, broken)
        client.on(SpeechFinal, cancelled)
        client.on(SpeechFinal, good)
        assert (await (await client.say("hello")).wait(LIMIT_S)).ok
    assert texts == ["You said: hello"]


# -- connecting


async def test_a_cancelled_end_of_a_turn_does_not_affect_the_next_turn() -> None:
    async with scripted_server() as server, connect(server.url) as client:
        (await client.say("one")).end.cancel()
        assert (await (await client.say("two")).wait(LIMIT_S)).ok


async def test_an_unreachable_server_is_an_error_without_the_query() -> None:
    async with scripted_server() as server:
        url = server.url
    with pytest.raises(
        CannotConnect, match=r"^Cannot connect to ws://127\.0\.0\.1:\d+/ws: [a-z ]+\.$"
    ) as caught:
        async with connect(f"{url}?token=secret"):
            pass
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["localhost:8080", "http://localhost/ws", "ws://localhost:port/ws", ""])
async def test_an_invalid_url_is_an_error_and_leaves_no_task(url: str) -> None:
    before = asyncio.all_tasks()
    with pytest.raises(CannotConnect, match="not a WebSocket URL"):
        await connect(url).start()
    assert asyncio.all_tasks() == before


async def test_a_refused_start_raises_the_servers_code() -> None:
    async def script(peer: Peer) -> None:
        start = await peer.receive("session.start")
        await peer.send("error", {"code": "unauthorized", "message": "No.", "eventId": start["id"]})
        await peer.connection.wait_closed()
        closed.set()

    closed = asyncio.Event()
    async with scripted_server(script) as server:
        with pytest.raises(StartRefused) as caught:
            await connect(server.url).start()
        await asyncio.wait_for(closed.wait(), LIMIT_S)
    assert caught.value.code == "unauthorized"


async def test_an_error_about_another_event_does_not_refuse_the_start() -> None:
    async def script(peer: Peer) -> None:
        await peer.receive("session.start")
        await peer.send("error", {"code": "internal_error", "message": "No.", "eventId": "another"})
        await peer.send("session.started", {"sessionId": peer.session_id, "resumed": False})

    async with scripted_server(script) as server, connect(server.url) as client:
        assert client.connected


async def test_a_client_closed_while_connecting_starts_no_session() -> None:
    async def hold(_connection: ServerConnection, _request: Request) -> None:
        requested.set()
        await released.wait()

    async def listen(connection: ServerConnection) -> None:
        async for frame in connection:
            texts.append(frame)

    requested, released, texts = asyncio.Event(), asyncio.Event(), list[str | bytes]()
    async with serve(listen, "127.0.0.1", 0, process_request=hold) as listener:
        port = next(iter(listener.sockets)).getsockname()[1]
        client = connect(f"ws://127.0.0.1:{port}/ws")
        starting = asyncio.create_task(client.start())
        await asyncio.wait_for(requested.wait(), LIMIT_S)
        await client.close()
        released.set()
        with pytest.raises(ConnectionLost):
            await asyncio.wait_for(starting, LIMIT_S)
    assert not texts


async def test_a_missing_answer_to_the_start_is_a_timeout() -> None:
    requested = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.receive("session.start")
        requested.set()

    async with scripted_server(script) as server:
        starting = asyncio.create_task(connect(server.url, limits=ClientLimits(start_s=SHORT_S)).start())
        await asyncio.wait_for(requested.wait(), LIMIT_S)
        hasten()
        with pytest.raises(WaitTimeout):
            await starting


async def test_a_turn_without_an_end_is_bounded_and_ended_by_close() -> None:
    async def script(peer: Peer) -> None:
        await peer.start()
        await peer.begin()

    async with scripted_server(script) as server:
        async with connect(server.url, limits=ClientLimits(turn_s=SHORT_S)) as client:
            turn = await client.say("hello")
            hasten()
            with pytest.raises(WaitTimeout):
                await turn
        with pytest.raises(ConnectionLost):
            await turn


async def test_a_fact_is_sent_until_it_is_acknowledged() -> None:
    claude = ScriptedProvider([[TextDelta("Four.")]])
    async with serving(claude) as served:
        async with connect(served.url, reconnect=Reconnect(first_s=0.01)) as client:
            await client.add_context("Three items.", key="cart")
            client.drop()
            await client.add_context("Four items.", key="cart", ttl_s=60, untrusted=True)
            result = await (await client.say("How many?")).wait(LIMIT_S)
            assert result.text == "Four."
            note, _ = claude.requests[0].messages
            assert isinstance(note, Note) and note.text.endswith("- cart: Four items.") and note.untrusted
            for bad in ({"text": "x" * 2_001}, {"text": ""}, {"text": "x", "ttl_s": -1.0}):
                with pytest.raises(ValueError):
                    await client.add_context(**bad)
        with pytest.raises(ConnectionLost):
            await client.add_context("Five items.")


async def test_a_greeting_and_variables_are_in_the_start() -> None:
    async with serving(ScriptedProvider([])) as served:
        async with connect(served.url, greeting="Good morning."):
            (session,) = served.listener.registry.sessions
            assert "Good morning." in str(session.state.log)
        with pytest.raises(StartRefused, match="no variable"):
            await connect(served.url, variables={"shop": "Corner"}).start()
