"""Questions about tools at the terminal: what is shown, and that only a number decides."""

from __future__ import annotations

import asyncio
import io
import json
import queue
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from conductor.client import Reconnect
from conductor.talk.approvals import NO_ANSWER, PROMPT, visible
from conductor.talk.terminal import talk
from tests.client.extended import answered, asking, request, resolve, start
from tests.stand_ins.scripted_server import LIMIT_S, Json, Peer, scripted_server


class Keyboard(io.StringIO):
    """A terminal's input that gives a line when it is typed; `done` ends it."""

    def __init__(self) -> None:
        super().__init__()
        self._typed: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def type(self, *lines: str) -> None:
        for line in lines:
            self._typed.put(f"{line}\n")

    def done(self) -> None:
        self._typed.put(None)

    def isatty(self) -> bool:
        return True

    def __next__(self) -> str:  # type: ignore[override]  # for typeshed all streams are of bytes
        line = self._typed.get()
        if line is None:
            raise StopIteration
        return line


class Display(io.StringIO):
    """A terminal's output; ``shows`` waits for a text that comes after the last one that was waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = asyncio.Event()
        self._seen = 0

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._changed.set()
        return super().write(text)

    async def shows(self, text: str) -> None:
        async with asyncio.timeout(LIMIT_S):
            while (place := self.getvalue().find(text, self._seen)) < 0:
                self._changed.clear()
                await self._changed.wait()
        self._seen = place + len(text)


class Terminal:
    """A person at a terminal: ``person`` is played beside `talk`, and then the input ends."""

    def __init__(self) -> None:
        self.keys, self.screen, self.errors = Keyboard(), Display(), io.StringIO()

    async def talk(
        self, url: str, person: Callable[[Terminal], Awaitable[None]], text: str | None, **options: Any
    ) -> int:
        policy = Reconnect(first_s=0, most_s=0, tries=1)
        streams: dict[str, Any] = {"stdin": self.keys, "stdout": self.screen, "stderr": self.errors}
        async with asyncio.timeout(LIMIT_S):
            talking = asyncio.create_task(talk(url, text, reconnect=policy, **streams, **options))
            try:
                await person(self)
            finally:
                if text is None:
                    self.keys.done()
                status = await talking
                self.keys.done()
        return status

    async def asked(self) -> None:
        await self.screen.shows(PROMPT)


async def decide(*lines: str, **fields: Any) -> tuple[list[Json], str]:
    """Answer one question by these lines; give what was sent and what was shown."""

    async def person(terminal: Terminal) -> None:
        for line in lines:
            await terminal.asked()
            terminal.keys.type(line)

    got: list[Json] = []
    terminal = Terminal()
    async with scripted_server(asking(request(**fields), got=got)) as server:
        assert await terminal.talk(server.url, person, "delete it") == 0
    for one in got:
        assert one.pop("argumentsDigest") == "digest of appr_1"
        del one["approvalId"]
    return got, terminal.screen.getvalue()


async def test_a_question_shows_what_would_be_run_and_why() -> None:
    arguments = {"path": "a\x1b[2J\u202eb", "lines": [1, "\n"]}
    _, shown = await decide("4", arguments=arguments, preview="-old\n+new\x1b")
    assert "  | -old\n  | +new\\u001b\n" in shown
    assert "The assistant asks to run notes.delete (medium risk), with:\n" in shown
    assert '  {\n    "path": "a\\u001b[2J\\u202eb",\n' in shown
    assert '      "\\n"\n' in shown
    assert "  - It cannot be undone.\n" in shown
    assert "May I run notes delete, path notes.txt?\n" in shown
    assert "[1] once  [2] session  [3] always  [4] deny  [5] edit\n" in shown
    assert "WARNING" not in shown
    assert "· question allowed" in shown


async def test_a_high_risk_is_warned_of_and_only_the_scopes_offered_are_choices() -> None:
    got, shown = await decide("3", "2", "1", risk="high", scopes=["once"])
    assert "WARNING: high risk." in shown
    assert "[1] once  [4] deny  [5] edit\n" in shown
    assert shown.count(NO_ANSWER) == 2
    assert got == [{"decision": "allow"}]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("1", {"decision": "allow"}),
        (" 2 ", {"decision": "allow", "scope": "session"}),
        ("3", {"decision": "allow", "scope": "always"}),
        ("4", {"decision": "deny"}),
    ],
)
async def test_a_number_decides(line: str, expected: Json) -> None:
    got, _ = await decide(line)
    assert got == [expected]


async def test_what_is_no_number_of_the_list_decides_nothing() -> None:
    slips = ("y", "YES", "yes.", "no", "", "0", "6", "11", "1.", "-1", "١", "²")
    got, shown = await decide(*slips, "4")
    assert shown.count(NO_ANSWER) == len(slips)
    assert got == [{"decision": "deny"}]


async def test_the_arguments_are_edited_as_json_and_what_is_none_is_asked_for_again() -> None:
    async def person(terminal: Terminal) -> None:
        await terminal.asked()
        terminal.keys.type("5")
        await terminal.screen.shows('The arguments now: {"path": "notes.txt"}\n')
        for wrong in ("{path: a.txt}", "[1]", '{"n": NaN}', "[" * 5_000):
            await terminal.screen.shows("arguments> ")
            terminal.keys.type(wrong)
            await terminal.screen.shows("That is no JSON object")
        await terminal.screen.shows("arguments> ")
        terminal.keys.type('{"path": "a.txt"}')

    got: list[Json] = []
    terminal = Terminal()
    async with scripted_server(asking(request(), got=got)) as server:
        assert await terminal.talk(server.url, person, "delete it") == 0
    assert (got[0]["decision"], got[0]["editedArguments"]) == ("edit", {"path": "a.txt"})


async def test_an_empty_line_instead_of_arguments_goes_back_to_the_numbers() -> None:
    async def person(terminal: Terminal) -> None:
        await terminal.asked()
        terminal.keys.type("5")
        await terminal.screen.shows("arguments> ")
        terminal.keys.type("")
        await terminal.asked()
        terminal.keys.type("4")

    got: list[Json] = []
    terminal = Terminal()
    async with scripted_server(asking(request(), got=got)) as server:
        assert await terminal.talk(server.url, person, "delete it") == 0
    assert got[0]["decision"] == "deny"


async def test_an_edit_that_was_refused_is_asked_again_with_the_reason() -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        assert (await answered(peer))["decision"] == "edit"
        await resolve(peer, "refused", message="path must be a text")
        assert (await answered(peer))["decision"] == "deny"
        await resolve(peer, "denied")
        await peer.answer("Done.")

    async def person(terminal: Terminal) -> None:
        await terminal.asked()
        terminal.keys.type("5")
        await terminal.screen.shows("arguments> ")
        terminal.keys.type('{"path": 7}')
        await terminal.screen.shows("The change was refused: path must be a text\n")
        await terminal.asked()
        terminal.keys.type("4")

    async with scripted_server(script) as server:
        assert await Terminal().talk(server.url, person, "delete it") == 0


async def test_a_sentence_is_said_and_the_server_judges_it() -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        said = (await peer.receive("user.audio.transcript.final"))["payload"]["text"]
        assert said == "yes please"
        await peer.result(await peer.message("user", said))
        await peer.arrived()
        await resolve(peer, "allowed")
        await peer.arrived()
        await peer.answer("Deleted.")

    async def person(terminal: Terminal) -> None:
        await terminal.asked()
        terminal.keys.type("yes please")

    terminal = Terminal()
    async with scripted_server(script) as server:
        assert await terminal.talk(server.url, person, "delete it") == 0
    assert "Deleted.\n" in terminal.screen.getvalue()
    assert terminal.errors.getvalue() == ""
    assert "approval.response" not in server.types_heard()


async def test_two_questions_are_asked_one_after_the_other_and_commands_work_meanwhile() -> None:
    async def person(terminal: Terminal) -> None:
        await terminal.asked()
        terminal.keys.type("/help")
        await terminal.screen.shows("/quit leaves")
        terminal.keys.type("1")
        await terminal.screen.shows("notes.second")
        await terminal.asked()
        terminal.keys.type("4")

    got: list[Json] = []
    second = request("appr_2", name="notes.second")
    async with scripted_server(asking(request(), second, got=got)) as server:
        assert await Terminal().talk(server.url, person, "delete both") == 0
    assert [(one["approvalId"], one["decision"]) for one in got] == [("appr_1", "allow"), ("appr_2", "deny")]


async def test_the_server_is_told_of_each_question_when_it_is_on_the_screen() -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        await peer.send("approval.request", request("appr_2", name="notes.second"))
        await peer.result(await peer.state("idle"))
        for number in (1, 2):
            shown = await peer.receive("approval.shown")
            assert shown["payload"] == {"approvalId": f"appr_{number}"}
            assert ("notes.second" in terminal.screen.getvalue()) == (number == 2)
            terminal.keys.type("4")
            await answered(peer)
        for number in (1, 2):
            await resolve(peer, "denied", f"appr_{number}")
        await peer.answer("Done.")

    async def person(terminal: Terminal) -> None:
        for _ in range(2):
            await terminal.asked()

    terminal = Terminal()
    async with scripted_server(script) as server:
        assert await terminal.talk(server.url, person, "delete both") == 0


async def test_an_idle_beside_a_question_leaves_the_question_its_prompt() -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        await peer.result(await peer.state("idle"))
        await answered(peer)
        await resolve(peer, "denied")
        await peer.answer("Left alone.")

    async def person(terminal: Terminal) -> None:
        terminal.keys.type("delete it")
        await terminal.asked()
        terminal.keys.type("4")
        await terminal.screen.shows("Left alone.")
        await terminal.screen.shows("> ")

    terminal = Terminal()
    async with scripted_server(script) as server:
        assert await terminal.talk(server.url, person, None) == 0
    shown = terminal.screen.getvalue()
    question = shown[shown.index("The assistant asks") : shown.index("· question")]
    assert question.count("> ") == question.count(PROMPT) == 1
    assert not shown.partition("The assistant asks")[0].endswith("> ")


async def test_quit_at_a_question_leaves_without_a_decision() -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        await peer.receive("approval.response")

    async def person(terminal: Terminal) -> None:
        await terminal.asked()
        terminal.keys.type("/quit")

    async with scripted_server(script) as server:
        assert await Terminal().talk(server.url, person, "delete it") == 130
    assert "approval.response" not in server.types_heard()


async def test_a_question_that_was_settled_elsewhere_gives_the_terminal_back() -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        await peer.send("approval.request", request())
        await terminal.asked()
        await resolve(peer, "expired", message="Nobody answered\x1b[2J.")
        await peer.answer("Left alone.")
        assert await peer.begin() == "1"
        await peer.answer("One what?")

    async def person(terminal: Terminal) -> None:
        terminal.keys.type("delete it")
        await terminal.screen.shows("· question expired: Nobody answered\\u001b[2J.")
        await terminal.screen.shows("> ")
        terminal.keys.type("1")
        await terminal.screen.shows("One what?")

    terminal = Terminal()
    async with scripted_server(script) as server:
        assert await terminal.talk(server.url, person, None) == 0
    assert "approval.response" not in server.types_heard()


async def by_voice(peer: Peer) -> None:
    assert "approval" not in (await start(peer))["capabilities"]
    assert await peer.begin() == "delete it"
    await peer.message("assistant", "May I?")
    await peer.state("speaking")
    await peer.call("tts.speak", {"text": "May I?"})
    await peer.result(await peer.state("idle"))
    assert await peer.begin() == "yes"
    await peer.answer("Deleted.")


async def test_with_voice_approvals_the_question_is_spoken_and_the_next_line_answers_it() -> None:
    async def person(terminal: Terminal) -> None:
        terminal.keys.type("delete it")
        await terminal.screen.shows("🔊 May I?\n")
        terminal.keys.type("yes")
        await terminal.screen.shows("🔊 Deleted.\n")

    terminal = Terminal()
    async with scripted_server(by_voice) as server:
        assert await terminal.talk(server.url, person, None, voice_approvals=True) == 0
    assert terminal.errors.getvalue() == ""


async def test_where_the_input_is_no_terminal_the_question_is_spoken() -> None:
    out, err = io.StringIO(), io.StringIO()
    async with scripted_server(by_voice) as server, asyncio.timeout(LIMIT_S):
        assert await talk(server.url, stdin=io.StringIO("delete it\nyes\n"), stdout=out, stderr=err) == 0
    assert out.getvalue().splitlines() == ["🔊 May I?", "Deleted.", "🔊 Deleted."]
    assert err.getvalue() == ""


async def test_activity_is_shown_in_one_line_each() -> None:
    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        about = {"callId": "c", "name": "calculator", "source": "builtin"}
        await peer.send("tool.activity", {**about, "status": "started"})
        await peer.send(
            "tool.activity", {**about, "status": "finished", "display": "calculator: done,\n21 bytes, 2 ms"}
        )
        await peer.answer("Done.")

    async def person(terminal: Terminal) -> None:
        await terminal.screen.shows("\x1b[2m· calculator: done, 21 bytes, 2 ms\x1b[0m\n")

    async with scripted_server(script) as server:
        assert await Terminal().talk(server.url, person, "go") == 0


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcode 🔊", "plain ünïcode 🔊"),
        ("\x00\x7f\x9b\n\t", "\\u0000\\u007f\\u009b\\n\\t"),
        ("\u202e\u200b\u2028\u00a0\U000e0041", "\\u202e\\u200b\\u2028\\u00a0\\udb40\\udc41"),
    ],
)
def test_characters_without_a_shape_are_written_as_json_escapes(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert json.loads(f'"{shown}"') == text
