"""The interactive terminal, at a pseudo-terminal."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.server.client.extended import approval_response, asking, request, resolve, soon, start
from tests.server.talk.person import CTRL_C, ESC, partial, person
from tests.stand_ins.scripted_server import Json, Peer, Script, scripted_server


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


async def test_the_screen_shows_the_session_and_an_answer_with_markdown(tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await start(peer, "cancel", model="home")
        assert await peer.begin() == "hello"
        await peer.answer("It is **bold**:\n\n- one\n- two")
        await peer.connection.wait_closed()

    async with scripted_server(script) as server, person(server.url, session_id="kitchen") as user:
        await user.sees("Connected, session kitchen.", "connected · idle · home · kitchen")
        user.type("hello")
        await user.sees("> hello", "It is bold:", " • one")
    assert user.status == 0
    assert "connected ·" not in user.display
    history = tmp_path / ".local" / "state" / "conductor" / "talk_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "+hello" in history.read_text()


async def test_a_draft_survives_a_growing_answer() -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await start(peer, "cancel")
        await peer.begin()
        await partial(peer, "One, **two**,")
        await go_on.wait()
        await peer.answer("One, **two**, three.")
        assert await peer.begin() == "and then?"
        await peer.answer("Four.")
        await peer.connection.wait_closed()

    async with scripted_server(script) as server, person(server.url) as user:
        user.type("count")
        await user.sees("One, two,", "thinking 0 s")
        user.type("and th", enter=False)
        await user.sees("One, two,\n", "> and th")
        go_on.set()
        await user.sees("One, two, three.", "> and th", without="thinking 0 s")
        user.type("en?")
        await user.sees("> and then?", "Four.")
    assert user.text.count("One, two,") == 1


@pytest.mark.parametrize("key", [ESC, CTRL_C], ids=["Esc", "Ctrl-C"])
async def test_a_stopped_answer_stays_on_the_screen(key: str) -> None:
    async def script(peer: Peer) -> None:
        await start(peer, "cancel")
        await peer.begin()
        await partial(peer, "A long story")
        await peer.receive("response.cancel")
        await partial(peer, "A long story that is not heard")
        await peer.result(await peer.state("idle"))
        assert await peer.begin() == "go on"
        await peer.answer("Then it ended.")
        await peer.connection.wait_closed()

    async with scripted_server(script) as server, person(server.url) as user:
        user.type("tell me")
        await user.sees("A long story")
        user.type(key, enter=False)
        await user.sees("A long story …", "[stopped]")
        user.type("go on")
        await user.sees("Then it ended.")
    assert "nobody hears" not in user.text


async def test_words_that_interrupt_an_answer_appear_below_it() -> None:
    async def script(peer: Peer) -> None:
        await start(peer, "cancel")
        await peer.begin()
        await partial(peer, "A long story")
        await peer.begin()
        await peer.answer("Goodbye.")
        await peer.connection.wait_closed()

    async with scripted_server(script) as server, person(server.url) as user:
        user.type("tell me")
        await user.sees("A long story")
        user.type("enough")
        await user.sees("A long story …\n[stopped]\n> enough\nGoodbye.")
    assert "There was no answer." not in user.text


async def test_a_running_tool_is_shown_with_its_seconds() -> None:
    read = asyncio.Event()

    async def script(peer: Peer) -> None:
        await start(peer, "activity")
        await peer.begin()
        about = {"callId": "c", "name": "web.read", "source": "builtin"}
        await peer.send("tool.activity", {**about, "status": "started"})
        await read.wait()
        await peer.send("tool.activity", {**about, "status": "finished", "display": "web.read: done, 2 ms"})
        await peer.answer("Read.")
        await peer.connection.wait_closed()

    async with scripted_server(script) as server, person(server.url) as user:
        user.type("read it")
        await user.sees(" web.read 0 s", "thinking")
        read.set()
        await user.sees("· web.read: done, 2 ms", "Read.", without="web.read 0 s")


async def decided(*lines: str, **fields: Any) -> tuple[Json, str]:
    """Answer one card by these lines; return the decision and the text on the screen."""
    payloads: list[Json] = []
    async with (
        scripted_server(asking(request(**fields), responses=payloads)) as server,
        person(server.url, "delete it", size=(80, 60)) as user,
    ):
        await user.sees("e edit", "y/n/a/s/e>")
        for line in lines:
            user.type(line)
        await user.sees("· allowed")
    assert user.status == 0
    return {
        key: payloads[0][key] for key in payloads[0] if key not in ("approvalId", "argumentsDigest")
    }, user.text


async def test_a_card_shows_the_call_and_the_reasons() -> None:
    decision, text = await decided("n", arguments={"path": "a\x1b[2J\u202eb"}, risk="high", scopes=["once"])
    assert decision == {"decision": "deny"}
    for line in (
        "May I run notes delete, path notes.txt?",
        "notes.delete, high risk",
        '"path": "a\\u001b[2J\\u202eb"',
        "- It cannot be undone.",
        "y once, n [why] deny, e edit; or say it in words",
    ):
        assert line in text


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["y"], {"decision": "allow"}),
        (["q", "1", "s"], {"decision": "allow", "scope": "session"}),
        (["a"], {"decision": "allow", "scope": "always"}),
        (["n not that one"], {"decision": "deny", "message": "not that one"}),
    ],
    ids=["once", "session after slips", "always", "words for a no"],
)
async def test_a_key_decides(lines: list[str], expected: Json) -> None:
    assert (await decided(*lines))[0] == expected


async def test_arguments_are_edited_and_a_refused_edit_is_asked_again() -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        assert (await approval_response(peer))["editedArguments"] == {"path": "notes.md"}
        await resolve(peer, "refused", message="no such file")
        assert (await approval_response(peer))["decision"] == "deny"
        await resolve(peer, "denied")
        await peer.answer("Done.")

    async with scripted_server(script) as server, person(server.url, "delete it", size=(80, 60)) as user:
        await user.sees("y/n/a/s/e>")
        user.type("e")
        await user.sees('arguments> {"path": "notes.txt"}')
        user.type("\x7f" * 2)
        await user.sees("The arguments are not a JSON object")
        user.type("\x7f" * 3 + 'md"}')
        await user.sees("The change was refused: no such file", "y/n/a/s/e>")
        user.type("n")


async def test_a_card_keeps_the_draft_and_a_sentence_is_sent() -> None:
    card = asyncio.Event()

    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await card.wait()
        await peer.send("approval.request", request())
        await peer.receive("approval.shown")
        transcript = (await peer.receive("user.audio.transcript.final"))["payload"]["text"]
        assert transcript == "yes please"
        await peer.result(await peer.message("user", transcript))
        await resolve(peer, "expired", message="Too late\x1b[2J.")
        await peer.answer("Left alone.")
        await peer.connection.wait_closed()

    async with scripted_server(script) as server, person(server.url, size=(80, 60)) as user:
        user.type("delete it")
        user.type("y", enter=False)  # the beginning of a sentence, not an answer to the card
        await user.sees("> y")
        card.set()
        await user.sees("y/n/a/s/e>")
        user.type("yes please")
        await user.sees("Too late\\u001b[2J.", "Left alone.", "\n> y")
        user.type("\x7f", enter=False)  # Ctrl-D exits at an empty line only
    assert "approval.response" not in server.types_heard()


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
        await user.sees("The connection broke.", "Connected again.", "connected · idle")
        cut.set()
        await user.sees("Try 2: The server refused the session: Later.")
    assert user.status == 2


async def test_pasted_lines_and_commands_with_completion() -> None:
    async def script(peer: Peer) -> None:
        await start(peer, "cancel")
        assert await peer.begin() == "first line\nsecond line"
        await peer.answer("Both.")
        await peer.connection.wait_closed()

    async def second(peer: Peer) -> None:
        await start(peer, "cancel")
        await peer.connection.wait_closed()

    async with scripted_server(script, second) as server, person(server.url, session_id="one") as user:
        user.type("\x1b[200~first line\nsecond line\x1b[201~", enter=False)
        await user.sees("second line")
        user.type("")
        await user.sees("Both.")
        user.type("/se", enter=False)
        await user.sees("change to another session", without="start a new session")
        user.type("\t", enter=False)
        await user.sees("> /session")
        user.type("")
        await user.sees("> /session\none", without="change to another session")
        user.type("/session two")
        await user.sees("Session two.")
        user.type("/nonsense")
        await user.sees("/quit     exit")
        user.type("/quit")
        await user.sees("/quit")
    assert user.status == 0
    assert [peer.session_id for peer in server.peers] == ["one", "two"]


async def test_a_new_session_during_an_answer() -> None:
    async def script(peer: Peer) -> None:
        await start(peer, "cancel")
        await peer.begin()
        await partial(peer, "A long story")
        await peer.connection.wait_closed()

    async def second(peer: Peer) -> None:
        await start(peer, "cancel")
        await peer.connection.wait_closed()

    async with scripted_server(script, second) as server, person(server.url) as user:
        user.type("tell me")
        await user.sees("A long story", "thinking 0 s")
        user.type("/session two")
        await user.sees("A long story …\nSession two.", without="thinking 0 s")
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

    async def first(peer: Peer) -> None:
        await start(peer, "cancel")
        await peer.connection.wait_closed()

    typed = asyncio.Event()
    scripts = (first, away, away_until_typed, back)
    async with scripted_server(*scripts) as server, person(server.url, session_id="one") as user:
        user.type(command)
        await user.sees("The session begins once the server is back.")
        user.type("hello")
        await user.sees("> hello")
        typed.set()
        await user.sees("Try 1: ", "Connected again.", "rejects the tool lamp: too long", "Good morning.")
        await user.sees("connected · idle · home")
    assert user.status == 0
    began = server.peers[-1].session_id
    assert began == "two" if command == "/session two" else began not in ("one", "")


async def test_a_new_session_that_is_refused_for_good_is_not_retried() -> None:
    async def first(peer: Peer) -> None:
        await start(peer, "cancel")
        await peer.connection.wait_closed()

    async def refused(peer: Peer) -> None:
        event = await peer.receive("session.start")
        error = {"code": "unauthorized", "message": "Not yours.", "eventId": event["id"]}
        await peer.send("error", error)

    async with scripted_server(first, refused, first) as server, person(server.url) as user:
        user.type("/session two")
        await user.sees("Not yours.", "not connected · two")
        user.type("/session three")
        await user.sees("Session three.")
    assert [peer.session_id for peer in server.peers[1:]] == ["two", "three"]
    assert "once the server is back" not in user.text


async def test_another_session_may_be_chosen_while_a_session_begins() -> None:
    async def first(peer: Peer) -> None:
        await start(peer, "cancel")
        await peer.connection.wait_closed()

    async def hangs(peer: Peer) -> None:
        await peer.receive("session.start")
        reached.set()
        await peer.connection.wait_closed()

    reached = asyncio.Event()
    async with scripted_server(first, hangs, first) as server, person(server.url) as user:
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
        await user.sees("It rains. Take a coat.\n🔊 And a hat.")
    assert user.text.count("🔊") == 1


async def test_a_narrow_terminal_wraps_and_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def script(peer: Peer) -> None:
        await start(peer, "cancel", model="home")
        await peer.begin()
        await peer.send("error", {"code": "internal_error", "message": "It went wrong."})
        await peer.answer("`one` two three four five six seven eight nine \x1b[31mten\x1b[2J")
        await peer.connection.wait_closed()

    async with scripted_server(script) as server, person(server.url, size=(30, 12)) as user:
        await user.sees("connected · idle · home")
        user.type("count")
        await user.sees("Error: It went wrong.", "one two three four five six\nseven eight nine [31mten[2J")
    assert not any(code in user.raw for code in (b"\x1b[31m", b"\x1b[1;31m", b"\x1b[36m"))


async def test_ctrl_c_clears_a_line_and_exits_at_an_empty_line() -> None:
    async with scripted_server() as server, person(server.url) as user:
        user.type("never said", enter=False)
        await user.sees("> never said")
        user.type(CTRL_C, enter=False)
        await user.sees(">", without="never said")
        user.type(CTRL_C, enter=False)
        await user.has_left()
    assert user.status == 0
