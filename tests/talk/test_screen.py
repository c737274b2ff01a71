"""The terminal of a person, at a real pseudo-terminal: what is on the screen while things happen."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.client.extended import answered, asking, request, resolve, start
from tests.stand_ins.scripted_server import Json, Peer, Script, scripted_server
from tests.talk.person import CTRL_C, ESC, partial, person


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


async def test_a_person_sees_the_session_and_an_answer_with_markdown_and_leaves(tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await start(peer, "cancel", model="home")
        assert await peer.begin() == "hello"
        await peer.answer("It is **bold**:\n\n- one\n- two")
        await peer.connection.wait_closed()

    async with scripted_server(script) as server, person(server.url, session_id="kitchen") as one:
        await one.sees("Connected, session kitchen.", "connected · idle · home · kitchen")
        one.type("hello")
        await one.sees("> hello", "It is bold:", " • one")
    assert one.status == 0
    assert "connected ·" not in one.display
    kept = tmp_path / ".local" / "state" / "conductor" / "talk_history"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "+hello" in kept.read_text()


async def test_what_is_typed_stays_whole_while_an_answer_grows_and_is_said_after_it() -> None:
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

    async with scripted_server(script) as server, person(server.url) as one:
        await one.sees("Connected")
        one.type("count")
        await one.sees("One, two,", "thinking 0 s")
        one.type("and th", enter=False)
        await one.sees("One, two,\n", "> and th")
        go_on.set()
        await one.sees("One, two, three.", "> and th", gone="thinking 0 s")
        one.type("en?")
        await one.sees("> and then?", "Four.")
    assert one.seen.count("One, two,") == 1


@pytest.mark.parametrize("key", [ESC, CTRL_C], ids=["Esc", "Ctrl-C"])
async def test_the_answer_is_stopped_and_what_was_shown_is_kept(key: str) -> None:
    async def script(peer: Peer) -> None:
        await start(peer, "cancel")
        await peer.begin()
        await partial(peer, "A long story")
        await peer.receive("response.cancel")
        await partial(peer, "A long story that nobody hears")
        await peer.result(await peer.state("idle"))
        assert await peer.begin() == "go on"
        await peer.answer("Then it ended.")
        await peer.connection.wait_closed()

    async with scripted_server(script) as server, person(server.url) as one:
        await one.sees("Connected")
        one.type("tell me")
        await one.sees("A long story")
        one.type(key, enter=False)
        await one.sees("A long story …", "[stopped]")
        one.type("go on")
        await one.sees("Then it ended.")
    assert "nobody hears" not in one.seen


async def test_words_that_end_an_answer_stand_below_what_was_shown_of_it() -> None:
    async def script(peer: Peer) -> None:
        await start(peer, "cancel")
        await peer.begin()
        await partial(peer, "A long story")
        await peer.begin()
        await peer.answer("Goodbye.")
        await peer.connection.wait_closed()

    async with scripted_server(script) as server, person(server.url) as one:
        await one.sees("Connected")
        one.type("tell me")
        await one.sees("A long story")
        one.type("enough")
        await one.sees("A long story …\n[stopped]\n> enough\nGoodbye.")
    assert "There was no answer." not in one.seen


async def test_a_tool_under_way_is_named_with_its_seconds() -> None:
    seen = asyncio.Event()

    async def script(peer: Peer) -> None:
        await start(peer, "activity")
        await peer.begin()
        about = {"callId": "c", "name": "web.read", "source": "builtin"}
        await peer.send("tool.activity", {**about, "status": "started"})
        await seen.wait()
        await peer.send("tool.activity", {**about, "status": "finished", "display": "web.read: done, 2 ms"})
        await peer.answer("Read.")
        await peer.connection.wait_closed()

    async with scripted_server(script) as server, person(server.url) as one:
        await one.sees("Connected")
        one.type("read it")
        await one.sees(" web.read 0 s", "thinking")
        seen.set()
        await one.sees("· web.read: done, 2 ms", "Read.", gone="web.read 0 s")
        one.type("/tools")
        await one.sees("agent.spawn          simulated device", "web.read             builtin")


async def decided(*lines: str, **fields: Any) -> tuple[Json, str]:
    """Answer one card by these lines; give the decision and what was shown."""
    got: list[Json] = []
    async with (
        scripted_server(asking(request(**fields), got=got)) as server,
        person(server.url, "delete it", size=(80, 60)) as one,
    ):
        await one.sees("e edit", "y/n/a/s/e>")
        for line in lines:
            one.type(line)
        await one.sees("· allowed")
    assert one.status == 0
    return {key: got[0][key] for key in got[0] if key not in ("approvalId", "argumentsDigest")}, one.seen


async def test_a_card_shows_what_would_be_run_and_why() -> None:
    got, seen = await decided("n", arguments={"path": "a\x1b[2J\u202eb"}, risk="high", scopes=["once"])
    assert got == {"decision": "deny"}
    for shown in (
        "May I run notes delete, path notes.txt?",
        "notes.delete, high risk",
        '"path": "a\\u001b[2J\\u202eb"',
        "- It cannot be undone.",
        "y once, n [why] deny, e edit; or say it in words",
    ):
        assert shown in seen


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


async def test_the_arguments_are_edited_in_the_line_editor_and_a_refusal_asks_again() -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        assert (await answered(peer))["editedArguments"] == {"path": "notes.md"}
        await resolve(peer, "refused", message="no such file")
        assert (await answered(peer))["decision"] == "deny"
        await resolve(peer, "denied")
        await peer.answer("Done.")

    async with scripted_server(script) as server, person(server.url, "delete it", size=(80, 60)) as one:
        await one.sees("y/n/a/s/e>")
        one.type("e")
        await one.sees('arguments> {"path": "notes.txt"}')
        one.type("\x7f" * 2)
        await one.sees("That is no JSON object")
        one.type("\x7f" * 3 + 'md"}')
        await one.sees("The change was refused: no such file", "y/n/a/s/e>")
        one.type("n")


async def test_a_card_puts_a_draft_aside_and_a_sentence_is_said_to_the_assistant() -> None:
    card = asyncio.Event()

    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await card.wait()
        await peer.send("approval.request", request())
        await peer.receive("approval.shown")
        said = (await peer.receive("user.audio.transcript.final"))["payload"]["text"]
        assert said == "yes please"
        await peer.result(await peer.message("user", said))
        await resolve(peer, "expired", message="Too late\x1b[2J.")
        await peer.answer("Left alone.")
        await peer.connection.wait_closed()

    async with scripted_server(script) as server, person(server.url, size=(80, 60)) as one:
        await one.sees("Connected")
        one.type("delete it")
        one.type("y", enter=False)  # the beginning of a sentence, and no answer to the card
        await one.sees("> y")
        card.set()
        await one.sees("y/n/a/s/e>")
        one.type("yes please")
        await one.sees("Too late\\u001b[2J.", "Left alone.", "\n> y")
        one.type("\x7f", enter=False)  # Ctrl-D leaves an empty line only
    assert "approval.response" not in server.types_heard()


async def test_a_lost_connection_is_shown_and_a_server_that_is_gone_ends_it() -> None:
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

    async with scripted_server(losing(False), losing(True), refuses) as server, person(server.url) as one:
        await one.sees("Connected, session")
        cut.set()
        await one.sees("The connection broke.", "Connected again.", "connected · idle")
        cut.set()
        await one.sees("Try 2: The server refused the session: Later.")
    assert one.status == 2


async def test_lines_are_pasted_whole_and_commands_are_completed_and_obeyed() -> None:
    async def script(peer: Peer) -> None:
        await start(peer, "cancel")
        assert await peer.begin() == "first line\nsecond line"
        await peer.answer("Both.")
        await peer.connection.wait_closed()

    async def again(peer: Peer) -> None:
        await start(peer, "cancel")
        await peer.connection.wait_closed()

    async with scripted_server(script, again) as server, person(server.url, session_id="one") as one:
        await one.sees("Connected")
        one.type("\x1b[200~first line\nsecond line\x1b[201~", enter=False)
        await one.sees("second line")
        one.type("")
        await one.sees("Both.")
        one.type("/hi", enter=False)
        await one.sees("show what was said here", gone="begin a new session")
        one.type("\t", enter=False)
        await one.sees("> /history")
        one.type("")
        await one.sees("> /history\n> first line\nsecond line\nBoth.", gone="show what was said here")
        one.type("/voice")
        await one.sees("The voice says 15 characters a second.", gone="begin a new session")
        one.type("/session two")
        await one.sees("Session two.")
        one.type("/nonsense")
        await one.sees("/quit     leave")
        one.type("/quit")
        await one.sees("/quit")
    assert one.status == 0
    assert [peer.session_id for peer in server.peers] == ["one", "two"]


async def test_a_session_is_left_in_the_middle_of_an_answer() -> None:
    async def script(peer: Peer) -> None:
        await start(peer, "cancel")
        await peer.begin()
        await partial(peer, "A long story")
        await peer.connection.wait_closed()

    async def another(peer: Peer) -> None:
        await start(peer, "cancel")
        await peer.connection.wait_closed()

    async with scripted_server(script, another) as server, person(server.url) as one:
        await one.sees("Connected")
        one.type("tell me")
        await one.sees("A long story", "thinking 0 s")
        one.type("/session two")
        await one.sees("A long story …\nSession two.", gone="thinking 0 s")
    assert "closed" not in one.seen


async def test_segments_of_the_answer_are_not_shown_beside_it() -> None:
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

    async with scripted_server(script) as server, person(server.url) as one:
        await one.sees("Connected")
        one.type("and now?")
        await one.sees("It rains. Take a coat.\n🔊 And a hat.")
    assert one.seen.count("🔊") == 1


async def test_a_narrow_terminal_wraps_and_no_color_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def script(peer: Peer) -> None:
        await start(peer, "cancel", model="home")
        await peer.begin()
        await peer.send("error", {"code": "internal_error", "message": "It went wrong."})
        await peer.answer("`one` two three four five six seven eight nine \x1b[31mten\x1b[2J")
        await peer.connection.wait_closed()

    async with scripted_server(script) as server, person(server.url, size=(30, 12)) as one:
        await one.sees("connected · idle · home")
        one.type("count")
        await one.sees("Error: It went wrong.", "one two three four five six\nseven eight nine [31mten[2J")
    assert not any(code in one.raw for code in (b"\x1b[31m", b"\x1b[1;31m", b"\x1b[36m"))


async def test_ctrl_c_at_an_empty_line_leaves_and_with_text_clears_it() -> None:
    async with scripted_server() as server, person(server.url) as one:
        await one.sees("Connected")
        one.type("never said", enter=False)
        await one.sees("> never said")
        one.type(CTRL_C, enter=False)
        await one.sees(">", gone="never said")
        one.type(CTRL_C, enter=False)
        await one.left()
    assert one.status == 0


async def test_a_repository_is_chosen_by_number() -> None:
    async def script(peer: Peer) -> None:
        await start(peer, "cancel")
        await peer.begin()
        result = await peer.ask("repositories.select", {"prompt": "Which one?", "filter": "acme"})
        assert "acme/mobile-app" in result["result"]
        await peer.answer("Fine.")

    async with scripted_server(script) as server, person(server.url, "choose") as one:
        await one.sees("Which one?", "  2. acme/mobile-app", "number>")
        one.type("2")
    assert one.status == 0
