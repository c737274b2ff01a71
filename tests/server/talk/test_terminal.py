"""The terminal client against a scripted server: output, answers and exit codes."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from conductor.client import Reconnect
from conductor.rehearse.script import load_tools
from conductor.talk.terminal import talk
from tests.conftest import Main
from tests.server.client.extended import start
from tests.stand_ins.programs import launched
from tests.stand_ins.scripted_server import LIMIT_S, Json, Peer, Script, ScriptedServer, scripted_server


async def talked(
    *scripts: Script, text: str | None = "hello", stdin: str = "", **options: Any
) -> tuple[int, str, list[str], list[Json]]:
    """Run `talk` on these connections; return the exit code, the output, the errors and the events."""
    lines, out, err = io.StringIO(stdin), io.StringIO(), io.StringIO()
    async with scripted_server(*scripts) as server, asyncio.timeout(LIMIT_S):
        reconnect = Reconnect(first_s=0, most_s=0, tries=1)
        options = {"url": server.url, "reconnect": reconnect, **options}
        code = await talk(text=text, stdin=lines, stdout=out, stderr=err, **options)
        for peer in server.peers:
            await peer.connection.wait_closed()
    return code, out.getvalue(), err.getvalue().splitlines(), server.heard


async def begins(peer: Peer) -> None:
    await peer.start()
    await peer.begin()


async def test_one_text_is_sent_and_its_answer_printed() -> None:
    assert (await talked())[:3] == (0, "You said: hello\n", [])


async def test_each_line_of_a_pipe_is_sent_after_the_previous_answer() -> None:
    code, out, *_ = await talked(text=None, stdin="one\n\ntwo\n")
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("You")] == ["You said: one", "You said: two"]


async def test_an_error_is_one_line_and_status_1() -> None:
    async def script(peer: Peer) -> None:
        await begins(peer)
        await peer.send("error", {"code": "model_provider_failed", "message": "The model\nis away."})
        await peer.call("tts.speak", {"text": "Sorry."})
        await peer.result(await peer.state("idle"))

    errors = ["Error: The model is away. (model_provider_failed)"]
    assert (await talked(script))[:3] == (1, "🔊 Sorry.\n", errors)


async def test_a_turn_without_an_answer_is_status_1() -> None:
    async def script(peer: Peer) -> None:
        await begins(peer)
        await peer.result(await peer.state("idle"))

    assert (await talked(script))[:3] == (1, "", ["There was no answer."])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"url": "ws://127.0.0.1:1/ws"}, "Cannot connect to ws://127.0.0.1:1/ws: "),
        ({"token": "two words"}, "The token contains characters that are not allowed in a header."),
    ],
)
async def test_no_connection_is_status_2_and_one_sentence(options: dict[str, Any], error: str) -> None:
    code, out, (line,), _ = await talked(**options)
    assert (code, out) == (2, "") and line.startswith(error)


async def test_a_turn_continues_after_a_lost_connection() -> None:
    async def first(peer: Peer) -> None:
        await begins(peer)
        await peer.arrived()
        peer.connection.transport.abort()

    async def second(peer: Peer) -> None:
        await peer.start(resumed=True)
        await peer.answer("Here I am.")

    code, out, errors, _ = await talked(first, second)
    assert (code, errors) == (0, ["The connection broke.", "Connected again."]) and "Here I am." in out


TOOLS = """
tools:
  - name: lamp.switch
    description: Switch a lamp.
    inputSchema: {type: object, properties: {on: {type: boolean}}}
    answers:
      - {when: {on: true}, result: {lamp: bright}, once: true}
      - {when: {on: true}, error: The bulb is broken.}
  - {name: ui.evil, inputSchema: {type: object}}
"""


async def test_the_tools_of_a_file_are_declared_and_give_its_answers(tmp_path: Path) -> None:
    results: list[Json] = []

    async def script(peer: Peer) -> None:
        rejected = [{"name": "ui.evil", "reason": "The name is reserved."}]
        started = await peer.start(rejectedTools=rejected)
        assert [tool["name"] for tool in started["tools"]] == ["lamp.switch", "ui.evil"]
        assert "answers" not in started["tools"][0]
        await peer.begin()
        for arguments in ({"on": True}, {"on": True}, {"on": False}):
            results.append(await peer.ask("lamp.switch", arguments))
        await peer.answer("Done.")

    path = tmp_path / "tools.yaml"
    path.write_text(TOOLS + "steps: []")
    code, out, errors, _ = await talked(script, tools=load_tools(path))
    assert json.loads(results[0]["result"]) == {"lamp": "bright"}
    assert "The bulb is broken." in results[1]["error"] and "no answer" in results[2]["error"]
    assert (code, errors) == (0, ["The server rejects the tool ui.evil: The name is reserved."])
    assert out.splitlines()[0] == '[tool] lamp.switch {"on": true}' and out.splitlines()[-1] == "Done."


def test_a_file_without_tools_is_an_error(conductor: Main, tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text('{"tools": [{"title": "x"}]}')
    code, _, err = conductor("talk", "--tools", "tools.json", "--url", "ws://127.0.0.1:1/ws", "hello")
    assert (code, err) == (2, "conductor: tools.json: tools.1.name is missing.\n")


async def test_the_next_line_answers_the_spoken_question() -> None:
    async def script(peer: Peer) -> None:
        assert "approval" not in (await start(peer))["capabilities"]
        await peer.begin()
        await peer.message("assistant", "May I?")
        await peer.state("speaking")
        await peer.call("tts.speak", {"text": "May I?"})
        await peer.result(await peer.state("idle"))
        assert await peer.begin() == "yes"
        await peer.answer("Deleted.")

    code, out, *_ = await talked(script, text=None, stdin="delete it\nyes\n")
    assert (code, out.splitlines()) == (0, ["🔊 May I?", "Deleted."])


async def ask_by_voice(peer: Peer) -> None:
    """Begin a turn, and ask; with the capability ``turns`` it is open until the answer."""
    await start(peer, "turns")
    await peer.begin()
    await peer.call("tts.speak", {"text": "May I?"})
    await peer.result(await peer.state("idle"))


async def test_the_next_line_of_a_pipe_answers_the_question_of_a_turn_that_is_open() -> None:
    async def script(peer: Peer) -> None:
        await ask_by_voice(peer)
        assert await peer.begin() == "yes"
        await peer.answer("Deleted.")
        for event in peer.server.heard:
            if event["type"] == "user.audio.transcript.final":
                ended = {"turnId": "turn_1", "eventId": event["id"], "reason": "answered"}
                await peer.send("turn.ended", ended)

    code, out, errors, _ = await talked(script, text=None, stdin="delete it\nyes\n")
    assert (code, out.splitlines(), errors) == (0, ["🔊 May I?", "Deleted."], [])


@pytest.mark.parametrize("source", [{"text": "delete it"}, {"text": None, "stdin": "delete it\n"}])
async def test_without_a_line_for_it_a_question_ends_talk_with_status_1(source: dict[str, Any]) -> None:
    errors = ["The question was not answered: there are no more lines."]
    assert (await talked(ask_by_voice, **source))[:3] == (1, "🔊 May I?\n", errors)


async def test_json_writes_only_events() -> None:
    async def first(peer: Peer) -> None:
        await start(peer, "cancel")
        await peer.begin()
        await peer.send("assistant.speech.new", {"text": "\x1b"})
        await peer.arrived()
        peer.connection.transport.abort()

    async def second(peer: Peer) -> None:
        await start(peer, "cancel", resumed=True)
        await peer.answer("Here.")

    code, out, *_ = await talked(first, second, json=True)
    assert code == 0
    events = [json.loads(line) for line in out.splitlines()]
    kinds = [event["type"] for event in events]
    assert {"type": "assistant.speech.new", "payload": {"text": "\x1b"}} in events
    assert {"type": "client.lost", "payload": {"error": "The connection broke."}} in events
    order = ("client.lost", "client.reconnected", "assistant.speech.final")
    assert sorted(order, key=kinds.index) == list(order)
    assert "callId" in next(event["payload"] for event in events if event["type"] == "tool.call")


async def test_control_characters_are_removed() -> None:
    async def script(peer: Peer) -> None:
        await begins(peer)
        await peer.answer("a\x1b[2Jb\x07c\u202ed\x9be")

    assert (await talked(script))[1].splitlines()[0] == "a[2Jbcde"


# -- as a process


class Talking:
    """The command as a process, which a script may interrupt."""

    process: asyncio.subprocess.Process
    output: tuple[int | None, str, str]

    def press_ctrl_c(self) -> None:
        self.process.send_signal(signal.SIGINT)


@asynccontextmanager
async def talking(server: ScriptedServer, child: Talking, *arguments: str) -> AsyncIterator[None]:
    """Run the command until it ends; its input stays open within the block."""
    command = (sys.executable, "-m", "conductor", "talk", "--url", server.url, *arguments)
    pipe = asyncio.subprocess.PIPE
    async with launched(*command, stdin=pipe, stdout=pipe, stderr=pipe) as child.process:
        async with asyncio.timeout(LIMIT_S):
            yield
            out, err = await child.process.communicate()
    child.output = child.process.returncode, out.decode(), err.decode()


async def test_a_script_sends_its_lines_and_a_failed_turn_is_exit_code_1(tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await begins(peer)
        await peer.answer("One.")
        await peer.begin()
        await peer.send("error", {"code": "internal_error", "message": "No."})
        await peer.result(await peer.state("idle"))
        await peer.begin()
        await peer.answer("Three.")

    (tmp_path / "turns.txt").write_text("one\n\ntwo\n/session\nthree")
    child = Talking()
    async with scripted_server(script) as server:
        async with talking(server, child, "--script", str(tmp_path / "turns.txt")):
            pass
    code, out, err = child.output
    assert (code, err) == (1, "Error: No. (internal_error)\n")
    assert out.splitlines()[::2] == ["One.", "Three."]


@pytest.mark.parametrize("event", ["audio.output.interrupted", "response.cancel"])
async def test_ctrl_c_interrupts_the_answer(event: str) -> None:
    async def script(peer: Peer) -> None:
        await (start(peer, "cancel") if event == "response.cancel" else peer.start())
        await peer.begin()
        await peer.send("assistant.speech.partial", {"text": "One, two,"})
        await peer.arrived()
        child.press_ctrl_c()
        await peer.receive(event)
        await peer.result(await peer.state("idle"))

    child = Talking()
    async with scripted_server(script) as server:
        async with talking(server, child, "count", "to", "fifty"):
            pass
    assert child.output == (1, "[interrupted]\n", "")
    assert {"audio.output.interrupted", "response.cancel"} & set(server.types_heard()) == {event}


async def test_ctrl_c_exits_without_a_turn() -> None:
    async def script(peer: Peer) -> None:
        await begins(peer)
        await peer.answer("Yes.")
        child.press_ctrl_c()

    child = Talking()
    async with scripted_server(script) as server, talking(server, child):
        assert child.process.stdin is not None
        child.process.stdin.write(b"hello\n")  # and the input stays open
        await child.process.wait()
    assert child.output[::2] == (0, "")


async def test_a_second_ctrl_c_exits_during_a_turn() -> None:
    async def script(peer: Peer) -> None:
        await begins(peer)
        await peer.arrived()
        child.press_ctrl_c()
        await peer.receive("audio.output.interrupted")
        child.press_ctrl_c()

    child = Talking()
    async with scripted_server(script) as server, talking(server, child, "hello"):
        pass
    assert child.output[::2] == (130, "")


def test_an_address_that_is_no_websocket_is_an_error(conductor: Main) -> None:
    code, _, err = conductor("talk", "--url", "nonsense", "hello")
    assert code == 2 and err.startswith("Cannot connect to nonsense: not a WebSocket URL")
