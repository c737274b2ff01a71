"""A person at a terminal, who types while the server answers."""

from __future__ import annotations

import asyncio
import io
import os

import pytest

from conductor.talk.plain import StdinReader
from tests.server.client.extended import soon, start
from tests.server.talk.person import partial, person
from tests.stand_ins.scripted_server import Peer, Script, scripted_server


async def waits(peer: Peer) -> None:
    await start(peer, "cancel")
    await peer.connection.wait_closed()


async def test_the_session_and_the_commands_are_shown() -> None:
    async with scripted_server(waits, waits) as server, person(server.url, session_id="one") as user:
        await user.sees("Connected, session one.", "Ctrl-D exits")
        user.type("/session")
        await user.sees("/session\none\n")
        user.type("/session two")
        await user.sees("Session two.")
        user.type("/nonsense")
        await user.sees("/quit     exit")
        user.type("/quit")
        await user.has_left()
    assert user.status == 0
    assert [peer.session_id for peer in server.peers] == ["one", "two"]


async def test_a_fact_is_told_without_a_turn() -> None:
    async def script(peer: Peer) -> None:
        await start(peer, "context", "resume", "turns")
        fact = await peer.receive("context.add")
        assert fact["payload"] == {"text": "The cart holds three items."}
        await peer.send("event.ack", {"eventIds": [fact["id"]]})
        assert await peer.begin() == "How many?"
        await peer.answer("Three.")
        await peer.connection.wait_closed()

    async with scripted_server(script) as server, person(server.url) as user:
        user.type("/fact")
        await user.sees("/fact TEXT")
        user.type("/fact  The cart holds three items.")
        await user.sees("from the next turn on")
        user.type("How many?")
        await user.sees("Three.")
        user.type(f"/fact {'x' * 2_001}")
        await user.sees("2000")
    assert user.status == 0


async def test_a_question_is_spoken_and_the_next_line_answers_it() -> None:
    async def script(peer: Peer) -> None:
        assert "approval" not in (await start(peer, "turns"))["capabilities"]
        await peer.begin()
        await peer.call("tts.speak", {"text": "May I?"})
        await peer.result(await peer.state("idle"))
        assert await peer.begin() == "yes"
        await peer.answer("Deleted.")
        await peer.connection.wait_closed()

    async with scripted_server(script) as server, person(server.url) as user:
        user.type("delete it")
        await user.sees("🔊 May I?")
        user.type("yes")
        await user.sees("Deleted.")
    assert user.status == 0


async def test_an_input_whose_descriptor_another_file_has_got_is_read_to_its_end() -> None:
    reading, writing = os.pipe()
    other, others_end = os.pipe()
    os.write(writing, b"one\ntwo\nthree\n")
    os.close(writing)
    os.write(others_end, b"another's\n")
    os.close(others_end)
    with io.TextIOWrapper(io.FileIO(reading), encoding="utf-8") as stream:
        lines = StdinReader(stream)
        first = await lines.next()
        os.dup2(other, reading)  # as after a close, when the next file gets the number
        assert [first, *[await lines.next() for _ in range(3)]] == ["one", "two", "three", None]
    os.close(other)


async def test_words_that_interrupt_an_answer_have_their_own_answer() -> None:
    told = asyncio.Event()

    async def script(peer: Peer) -> None:
        await start(peer, "cancel")
        await peer.begin()
        await partial(peer, "A long story")
        told.set()
        await peer.begin()
        await peer.answer("Goodbye.")
        await peer.connection.wait_closed()

    async with scripted_server(script) as server, person(server.url) as user:
        user.type("tell me")
        await soon(told)
        user.type("enough")
        await user.sees("enough\nGoodbye.")
    assert "There was no answer." not in user.text


async def test_a_lost_connection_is_shown_and_an_unreachable_server_ends_the_program() -> None:
    cut = asyncio.Event()

    def losing(resumed: bool) -> Script:
        async def script(peer: Peer) -> None:
            await peer.start(resumed=resumed)
            await cut.wait()
            cut.clear()
            peer.connection.transport.abort()

        return script

    async def refuses(peer: Peer) -> None:
        await peer.receive("session.start")
        await peer.send("error", {"code": "store_unavailable", "message": "Later."})

    async with scripted_server(losing(False), losing(True), refuses) as server, person(server.url) as user:
        await user.sees("Connected, session")
        cut.set()
        await user.sees("The connection broke.", "Connected again.")
        cut.set()
        await user.sees("Try 2: The server refused the session: Later.")
    assert user.status == 2


async def test_a_new_session_during_an_answer() -> None:
    told = asyncio.Event()

    async def script(peer: Peer) -> None:
        await start(peer, "cancel")
        await peer.begin()
        await partial(peer, "A long story")
        told.set()
        await peer.connection.wait_closed()

    async with scripted_server(script, waits) as server, person(server.url) as user:
        user.type("tell me")
        await soon(told)
        user.type("/session two")
        await user.sees("Session two.")
    assert "closed" not in user.text


@pytest.mark.parametrize("command", ["/new", "/session two"])
async def test_a_new_session_begins_once_the_server_is_back(command: str) -> None:
    async def away(peer: Peer) -> None:
        await peer.receive("session.start")
        peer.connection.transport.abort()

    async def away_until_typed(peer: Peer) -> None:
        await typed.wait()
        await away(peer)

    async def back(peer: Peer) -> None:
        await start(peer, "cancel", model="home", rejectedTools=[{"name": "lamp", "reason": "too long"}])
        assert await peer.begin() == "hello"
        await peer.answer("Good morning.")
        await peer.connection.wait_closed()

    typed = asyncio.Event()
    scripts = (waits, away, away_until_typed, back)
    async with scripted_server(*scripts) as server, person(server.url, session_id="one") as user:
        user.type(command)
        await user.sees("The session begins once the server is back.")
        user.type("hello")
        typed.set()
        await user.sees("Try 1: ", "Connected again.", "rejects the tool lamp: too long", "Good morning.")
    assert user.status == 0
    began = server.peers[-1].session_id
    assert began == "two" if command == "/session two" else began not in ("one", "")


async def test_a_new_session_that_is_refused_for_good_is_not_retried() -> None:
    async def refused(peer: Peer) -> None:
        event = await peer.receive("session.start")
        error = {"code": "unauthorized", "message": "Not yours.", "eventId": event["id"]}
        await peer.send("error", error)

    async with scripted_server(waits, refused, waits) as server, person(server.url) as user:
        user.type("/session two")
        await user.sees("Not yours.")
        user.type("/session three")
        await user.sees("Session three.")
    assert [peer.session_id for peer in server.peers[1:]] == ["two", "three"]
    assert "once the server is back" not in user.text


async def test_another_session_may_be_chosen_while_a_session_begins() -> None:
    async def hangs(peer: Peer) -> None:
        await peer.receive("session.start")
        reached.set()
        await peer.connection.wait_closed()

    reached = asyncio.Event()
    async with scripted_server(waits, hangs, waits) as server, person(server.url) as user:
        user.type("/session two")
        await soon(reached)
        user.type("/session three")
        await user.sees("Session three.")
    assert "closed" not in user.text and "once the server is back" not in user.text


async def test_segments_of_the_answer_are_not_shown_twice() -> None:
    async def script(peer: Peer) -> None:
        await start(peer, "cancel")
        await peer.begin()
        await partial(peer, "It **rains**. Take")
        await peer.result(await peer.call("tts.speak", {"text": "It rains."}))
        await peer.send("assistant.speech.final", {"text": "It **rains**. Take a coat."})
        await peer.result(await peer.call("tts.speak", {"text": "Take a coat."}))
        await peer.result(await peer.call("tts.speak", {"text": "And a hat."}))
        await peer.state("idle")
        await peer.connection.wait_closed()

    async with scripted_server(script) as server, person(server.url) as user:
        user.type("and now?")
        await user.sees("It **rains**. Take a coat.\n🔊 And a hat.")
    assert user.text.count("🔊") == 1
