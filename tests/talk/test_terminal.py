"""The terminal client against a scripted server: output, answers and exit codes."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from conductor.cli import main
from conductor.client import Reconnect
from conductor.talk.terminal import talk
from tests.client.extended import start
from tests.stand_ins.scripted_server import LIMIT_S, Peer, scripted_server


def at_once(tries: int) -> Reconnect:
    return Reconnect(first_s=0, most_s=0, tries=tries)


class Session:
    """Runs `talk` with an input and records its output."""

    def __init__(self, stdin: str = "") -> None:
        self.stdin, self.stdout, self.stderr = io.StringIO(stdin), io.StringIO(), io.StringIO()

    async def talk(self, url: str, text: str | None = None, **options: Any) -> int:
        options = {"reconnect": at_once(1), **options}
        async with asyncio.timeout(LIMIT_S):
            return await talk(url, text, stdin=self.stdin, stdout=self.stdout, stderr=self.stderr, **options)

    @property
    def out(self) -> str:
        return self.stdout.getvalue()

    @property
    def err(self) -> str:
        return self.stderr.getvalue()


async def test_one_text_is_sent_and_its_answer_printed() -> None:
    session = Session()
    async with scripted_server() as server:
        status = await session.talk(server.url, "hello")
    assert status == 0
    assert session.out.splitlines() == ["You said: hello", "🔊 You said: hello"]
    assert session.err == ""


async def test_each_line_of_a_pipe_is_sent_after_the_previous_answer() -> None:
    session = Session("one\n\ntwo\n")
    async with scripted_server() as server:
        status = await session.talk(server.url)
    assert status == 0
    finals = [line for line in session.out.splitlines() if line.startswith("You")]
    assert finals == ["You said: one", "You said: two"]


async def test_an_error_is_one_line_and_status_1() -> None:
    async def script(peer: Peer) -> None:
        await peer.start()
        await peer.begin()
        await peer.send("error", {"code": "model_provider_failed", "message": "The model\nis away."})
        await peer.call("tts.speak", {"text": "Sorry."})
        await peer.result(await peer.state("idle"))

    session = Session()
    async with scripted_server(script) as server:
        status = await session.talk(server.url, "hello")
    assert status == 1
    assert session.err == "Error: The model is away. (model_provider_failed)\n"
    assert session.out == "🔊 Sorry.\n"


async def test_a_turn_without_an_answer_is_status_1() -> None:
    async def script(peer: Peer) -> None:
        await peer.start()
        await peer.begin()
        await peer.result(await peer.state("idle"))

    session = Session()
    async with scripted_server(script) as server:
        assert await session.talk(server.url, "hello") == 1
    assert session.err == "There was no answer.\n"


async def test_no_server_is_status_2_and_one_sentence() -> None:
    async with scripted_server() as server:
        url = server.url
    session = Session()
    assert await session.talk(url, "hello") == 2
    assert session.err.startswith(f"Cannot connect to {url}: ")
    assert session.err.count("\n") == 1
    assert session.out == ""


async def test_a_token_with_invalid_characters_is_an_error() -> None:
    session = Session()
    assert await session.talk("ws://127.0.0.1:9/ws", "hello", token="two words") == 2
    assert session.err == "The token contains characters that are not allowed in a header.\n"


async def test_a_turn_continues_after_a_lost_connection() -> None:
    async def first(peer: Peer) -> None:
        await peer.start()
        await peer.begin()
        await peer.arrived()
        peer.connection.transport.abort()

    async def second(peer: Peer) -> None:
        await peer.start(resumed=True)
        await peer.answer("Here I am.")

    session = Session()
    async with scripted_server(first, second) as server:
        status = await session.talk(server.url, "hello")
    assert status == 0
    assert session.err.splitlines() == ["The connection broke.", "Connected again."]
    assert "Here I am." in session.out


def selecting(results: list[dict[str, Any]]) -> Any:
    async def script(peer: Peer) -> None:
        await peer.start()
        await peer.begin()
        results.append(await peer.ask("repositories.select", {"prompt": "Which one?", "filter": "acme"}))
        await peer.answer("Fine.")

    return script


async def test_without_a_terminal_the_first_repository_is_chosen() -> None:
    results: list[dict[str, Any]] = []
    session = Session()
    async with scripted_server(selecting(results)) as server:
        assert await session.talk(server.url, "choose") == 0
    assert json.loads(results[0]["result"]) == {
        "simulated": True,
        "repository": "https://github.com/acme/website",
    }


async def test_a_finished_simulated_agent_is_reported() -> None:
    async def script(peer: Peer) -> None:
        await peer.start()
        await peer.begin()
        await peer.ask("agent.spawn", {"prompt": "Fix the build", "repository": "acme/website"})
        await peer.answer("Started.")
        await peer.receive("agent.completed")

    session = Session("fix the build\n/finish\n/finish\n")
    async with scripted_server(script) as server:
        assert await session.talk(server.url) == 0
        await server.peers[0].connection.wait_closed()
    (report,) = [event["payload"] for event in server.heard if event["type"] == "agent.completed"]
    assert (report["agentId"], report["status"], report["name"]) == (
        "sim-agent-1",
        "FINISHED",
        "Fix the build",
    )
    assert session.err == "no agent is running\n"
    assert '[tool, simulated] agent.spawn {"prompt"' in session.out


@pytest.mark.parametrize("options", [{}, {"voice_approvals": True}], ids=["pipe", "asked for"])
async def test_without_cards_the_next_line_answers_the_spoken_question(
    options: dict[str, Any],
) -> None:
    async def script(peer: Peer) -> None:
        assert "approval" not in (await start(peer))["capabilities"]
        await peer.begin()
        await peer.message("assistant", "May I?")
        await peer.state("speaking")
        await peer.call("tts.speak", {"text": "May I?"})
        await peer.result(await peer.state("idle"))
        assert await peer.begin() == "yes"
        await peer.answer("Deleted.")

    session = Session("delete it\nyes\n")
    async with scripted_server(script) as server:
        assert await session.talk(server.url, **options) == 0
    assert session.out.splitlines() == ["🔊 May I?", "Deleted.", "🔊 Deleted."]


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

    session = Session("hello\n")
    async with scripted_server(first, second) as server:
        assert await session.talk(server.url, json=True) == 0
    events = [json.loads(line) for line in session.out.splitlines()]
    kinds = [event["type"] for event in events]
    assert {"type": "assistant.speech.new", "payload": {"text": "\x1b"}} in events
    assert {"type": "client.lost", "payload": {"error": "The connection broke."}} in events
    order = ("client.lost", "client.reconnected", "assistant.speech.final")
    assert sorted(order, key=kinds.index) == list(order)
    assert "callId" in next(event["payload"] for event in events if event["type"] == "tool.call")


async def test_a_script_sends_its_lines_and_a_failed_turn_is_exit_code_1(tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await peer.start()
        await peer.begin()
        await peer.answer("One.")
        await peer.begin()
        await peer.send("error", {"code": "internal_error", "message": "No."})
        await peer.result(await peer.state("idle"))
        await peer.begin()
        await peer.answer("Three.")

    file = tmp_path / "turns.txt"
    file.write_text("one\n\ntwo\n/tools\nthree")
    async with scripted_server(script) as server:
        process = await child("--url", server.url, "--script", str(file))
        async with asyncio.timeout(LIMIT_S * 2):
            out, err = await process.communicate()
    assert (process.returncode, err.decode()) == (1, "Error: No. (internal_error)\n")
    assert out.decode().splitlines()[:2] == ["One.", "🔊 One."]
    assert "agent.cancel         simulated device" in out.decode()
    assert out.decode().splitlines()[-1] == "🔊 Three."


async def test_without_the_extra_the_terminal_is_plain_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "conductor.talk.screen", None)
    session = Session("hello\n")
    for stream in (session.stdin, session.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    async with scripted_server() as server:
        assert await session.talk(server.url) == 0
    assert session.out.splitlines() == ["You said: hello", "🔊 You said: hello"]
    assert session.err.count("conductor-voice[talk]") == session.err.count("\n") == 1


async def test_control_characters_are_removed() -> None:
    async def script(peer: Peer) -> None:
        await peer.start()
        await peer.begin()
        await peer.answer("a\x1b[2Jb\x07c\u202ed\x9be")

    session = Session()
    async with scripted_server(script) as server:
        assert await session.talk(server.url, "hello") == 0
    assert session.out.splitlines()[0] == "a[2Jbcde"


async def child(*arguments: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "conductor", "talk", *arguments, stdin=pipe, stdout=pipe, stderr=pipe
    )


async def test_ctrl_c_interrupts_the_answer() -> None:
    async def script(peer: Peer) -> None:
        await peer.start()
        await peer.begin()
        await peer.send("assistant.speech.partial", {"text": "One, two,"})
        await peer.arrived()
        process.send_signal(signal.SIGINT)
        interrupted.append((await peer.receive("audio.output.interrupted"))["payload"])
        await peer.result(await peer.state("idle"))

    interrupted: list[dict[str, Any]] = []
    async with scripted_server(script) as server:
        process = await child("--url", server.url, "count", "to", "fifty")
        async with asyncio.timeout(LIMIT_S * 2):
            out, err = await process.communicate()
    assert interrupted == [{"reason": "user"}]
    assert (process.returncode, out.decode(), err.decode()) == (1, "[interrupted]\n", "")


async def test_ctrl_c_cancels_the_response_with_the_capability() -> None:
    async def script(peer: Peer) -> None:
        await start(peer, "cancel")
        await peer.begin()
        await peer.send("assistant.speech.partial", {"text": "One, two,"})
        await peer.arrived()
        process.send_signal(signal.SIGINT)
        await peer.receive("response.cancel")
        await peer.result(await peer.state("idle"))

    async with scripted_server(script) as server:
        process = await child("--url", server.url, "count", "to", "fifty")
        async with asyncio.timeout(LIMIT_S * 2):
            out, err = await process.communicate()
    assert (process.returncode, out.decode(), err.decode()) == (1, "[interrupted]\n", "")
    assert "audio.output.interrupted" not in server.types_heard()


async def test_ctrl_c_exits_without_a_turn() -> None:
    async def script(peer: Peer) -> None:
        await peer.start()
        await peer.begin()
        await peer.answer("Yes.")
        process.send_signal(signal.SIGINT)

    async with scripted_server(script) as server:
        process = await child("--url", server.url)
        assert process.stdin is not None
        process.stdin.write(b"hello\n")  # and the input stays open
        async with asyncio.timeout(LIMIT_S * 2):
            status = await process.wait()
    assert process.stderr is not None
    assert (status, await process.stderr.read()) == (0, b"")


async def test_a_second_ctrl_c_exits_during_a_turn() -> None:
    async def script(peer: Peer) -> None:
        await peer.start()
        await peer.begin()
        await peer.arrived()
        process.send_signal(signal.SIGINT)
        await peer.receive("audio.output.interrupted")
        process.send_signal(signal.SIGINT)

    async with scripted_server(script) as server:
        process = await child("--url", server.url, "hello")
        async with asyncio.timeout(LIMIT_S * 2):
            _, err = await process.communicate()
    assert (process.returncode, err.decode()) == (130, "")


def test_an_address_that_is_no_websocket_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["talk", "--url", "nonsense", "hello"]) == 2
    assert capsys.readouterr().err.startswith("Cannot connect to nonsense: not a WebSocket URL")


async def test_an_interruption_reports_the_spoken_text() -> None:
    async def script(peer: Peer) -> None:
        await start(peer, "cancel")  # `response.cancel` does not report the heard text
        await peer.begin()
        await peer.call("tts.speak", {"text": "a long story " * 1000})
        assert process.stdout is not None
        assert (await process.stdout.readline()).decode().startswith("🔊 a long story")
        process.send_signal(signal.SIGINT)
        interrupted.append((await peer.receive("audio.output.interrupted"))["payload"])
        await peer.result(await peer.state("idle"))

    interrupted: list[dict[str, Any]] = []
    async with scripted_server(script) as server:
        process = await child("--url", server.url, "--voice-speed", "20", "tell", "me")
        async with asyncio.timeout(LIMIT_S * 2):
            await process.wait()
    assert interrupted[0]["playedMs"] >= 0
    assert ("a long story " * 1000).startswith(interrupted[0]["spokenText"])
