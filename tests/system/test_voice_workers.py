"""The stand-in of OpenAI's Live API answers others as it answers our bridge: by the types."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.app import WAIT
from tests.conftest import ROOT
from tests.stand_ins.anthropic_script import JsonObject, Reply
from tests.stand_ins.openai_live import LiveService, VoiceSession
from tests.stand_ins.openai_service import OpenAIService
from tests.system.clients.programs import CLIENTS, STARTING, missing, program, started

CONFIG = {"model": "gpt-live-1.1", "delegation": {"type": "client"}, "instructions": "You are the voice."}


async def idle(_: VoiceSession) -> None:
    """Say nothing."""


async def asked(app: ClientConnection, command: Mapping[str, Any]) -> dict[str, Any]:
    """Send a command; returns the next event."""
    await app.send(json.dumps({"event_id": f"own-{command['type']}", **command}))
    event: dict[str, Any] = json.loads(await asyncio.wait_for(app.recv(), WAIT))
    return event


async def test_what_the_types_acknowledge_is_acknowledged_with_the_id_of_the_command() -> None:
    delay = {"delegation": {"type": "client", "acknowledgement_delay_ms": 900}}
    commands: dict[str, dict[str, Any]] = {
        "session.started": {"type": "session.start", "session": CONFIG},
        "session.input_audio.muted": {"type": "session.input_audio.mute"},
        "session.input_audio.unmuted": {"type": "session.input_audio.unmute"},
        "session.updated": {"type": "session.update", "session": delay},
        "session.closed": {"type": "session.close"},
    }
    async with LiveService(idle) as service, connect(service.url) as app:
        answers = [await asked(app, command) for command in commands.values()]
    assert [answer["type"] for answer in answers] == list(commands)
    assert [answer["client_event_id"] for answer in answers] == [
        f"own-{command['type']}" for command in commands.values()
    ]
    started, *_, updated, closed = answers
    assert CONFIG.items() <= started["session"].items()
    assert closed["session"] == updated["session"] == {**started["session"], **delay}


def started_with(*texts: int) -> dict[str, Any]:
    """Give a command that starts a session after messages with so many texts each."""
    part = {"type": "input_text", "text": "Hello."}
    messages = [{"role": "user", "content": [part] * count} for count in texts]
    return {"type": "session.start", "session": {**CONFIG, "input": messages}}


@pytest.mark.parametrize(
    ("path", "command", "why"),
    [
        ("", {"type": "session.close"}, "the session has not started"),
        ("", started_with(1, 2), "a message has one text part"),
        ("", started_with(*[1] * 129), "the input has more than 128 messages"),
        ("?key=a", started_with(), "the session has started"),
        (
            "?key=a",
            {"type": "session.input_audio.append", "audio": "AAAA"},
            "the audio of this session is on its media transport",
        ),
        (
            "?key=a",
            {"type": "session.output_audio.fixture.play", "audio": "AAAA"},
            "the stand-in plays no fixture of an app",
        ),
    ],
)
async def test_a_command_is_refused_where_it_has_no_place(
    path: str, command: Mapping[str, Any], why: str
) -> None:
    async with LiveService(idle) as service, connect(service.url + path) as app:
        if path:
            await app.recv()
        answer = await asked(app, command)
    assert (answer["type"], answer["error"]["message"]) == ("error", why)


# -- workers of others


@dataclass
class Worker:
    """A worker of others, in a process of its own; its lines on standard output are JSON."""

    process: asyncio.subprocess.Process
    voices: asyncio.Queue[VoiceSession]

    async def voice(self) -> VoiceSession:
        """Wait for its next session of the voice."""
        return await asyncio.wait_for(self.voices.get(), STARTING)

    async def tells(self, what: str) -> Any:
        """Wait for its next line about something."""
        assert self.process.stdout is not None
        async with asyncio.timeout(STARTING):
            async for line in self.process.stdout:
                told = json.loads(line)
                if what in told:
                    return told[what]
        raise AssertionError(f"the worker ended without a word of {what}")

    async def ends(self) -> None:
        """Wait for its end, which must be a good one."""
        _, errors = await asyncio.wait_for(self.process.communicate(), STARTING)
        assert self.process.returncode == 0, errors.decode()


@asynccontextmanager
async def working(
    *command: str, environment: Mapping[str, str] | None = None, suffix: str = "", model: str = ""
) -> AsyncIterator[Worker]:
    """Run a worker at the stand-in, whose address without the suffix follows its command."""
    voices: asyncio.Queue[VoiceSession] = asyncio.Queue()

    async def play(session: VoiceSession) -> None:
        voices.put_nowait(session)
        await session.socket.wait_closed()

    async with LiveService(play) as service:
        arguments = [*command, service.url.removesuffix(suffix), *filter(None, [model])]
        async with started(arguments, environment=environment) as process:
            yield Worker(process, voices)
        assert not service.failures


def words_of(request: JsonObject) -> str:
    """Give what pipecat's backend was told of the talk, in its last message."""
    text: str = request["messages"][-1]["content"]
    return text.split("Act on the user's most recent request")[0].strip()


@asynccontextmanager
async def pipecat() -> AsyncIterator[tuple[Worker, OpenAIService]]:
    """Run pipecat's worker, with a model behind."""
    python = ROOT / "build" / "live" / "bin" / "python"
    if not python.with_name("pipecat").exists():
        missing("pipecat (in build/live)")
    async with OpenAIService(default=Reply(text=">> It is noon.")) as model:
        command = [str(python), str(CLIENTS / "pipecat_worker.py")]
        async with working(*command, model=model.base_url) as worker:
            yield worker, model


async def test_pipecats_worker_is_heard_answers_and_takes_its_leave() -> None:
    async with pipecat() as (worker, model):
        voice = await worker.voice()
        assert [message["role"] for message in voice.config["input"]] == ["user", "assistant"]
        await voice.say("person", " what time")
        delegation = await voice.delegate()
        await voice.say("person", " is it in Paris", size=3)
        answer = await asyncio.wait_for(voice.commentary.get(), WAIT)
        assert (answer.delegation_id, answer.content) == (delegation, "It is noon.")
        await voice.send("session.output_audio.delta", delta="AAAA")
        await voice.say("voice", f" {answer.content}")
        assert await worker.tells("heard") == " what time is it in Paris"

        model.play(Reply(text=">> " + "The train to Paris leaves at noon. " * 200))
        await voice.delegate()
        pieces = [await asyncio.wait_for(voice.commentary.get(), WAIT) for _ in range(4)]
        assert sum(piece.content.count("Paris") for piece in pieces) == 200

        await voice.say("person", " goodbye")
        await worker.ends()
    assert voice.refused == []
    # It takes a delegation's words as they are, and the rest for the next one.
    first, second = map(words_of, model.requests)
    assert first.endswith("\nUSER: what time")
    assert second.endswith("\nUSER: is it in Paris\nASSISTANT: It is noon.")
    assert [command.kind for command in voice.accepted] == ["commentary"] * 5


async def test_pipecats_worker_works_twice_on_an_utterance_that_is_delegated_twice() -> None:
    async with pipecat() as (worker, model):
        voice = await worker.voice()
        await voice.say("person", " what time is it")
        delegations = [await voice.delegate(), await voice.delegate()]
        answers = [await asyncio.wait_for(voice.commentary.get(), WAIT) for _ in delegations]
        assert [answer.delegation_id for answer in answers] == delegations
        assert [answer.content for answer in answers] == ["It is noon.", "It is noon."]
        await voice.say("person", " goodbye")
        await worker.ends()
    assert words_of(model.requests[0]).endswith("\nUSER: what time is it")
    assert words_of(model.requests[1]) == ""


async def test_pipecats_worker_loses_commentary_that_is_refused() -> None:
    async with pipecat() as (worker, model):
        voice = await worker.voice()
        await voice.say("person", " what time is it")
        voice.fixture = True
        await voice.delegate()
        assert "an audio fixture is active" in await worker.tells("error")
        voice.fixture = False
        # A token has four letters, but never four digits or signs: it counts them alike.
        model.play(Reply(text=">> " + "7 " * 800))
        await voice.delegate()
        assert "more than 500 tokens" in await worker.tells("error")
        await voice.say("person", " goodbye")
        await worker.ends()
    assert voice.accepted == []


async def test_pipecats_worker_gives_up_when_the_voice_is_cut() -> None:
    async with pipecat() as (worker, _):
        voice = await worker.voice()
        await voice.say("person", " what time is it")
        await voice.delegate()
        voice.cut()
        assert await worker.tells("isOver")
        await worker.ends()
        assert worker.voices.empty()


@asynccontextmanager
async def livekit() -> AsyncIterator[Worker]:
    """Run LiveKit's agent."""
    packages = ROOT / "build" / "livekit" / "node_modules"
    if not (packages / "@livekit" / "agents-plugin-openai").exists():
        missing("LiveKit's agent (in build/livekit)")
    command = [program("node"), str(CLIENTS / "livekit_worker.js")]
    environment = {"NODE_PATH": str(packages)}
    async with working(*command, environment=environment, suffix="/live/sessions") as worker:
        yield worker


async def test_livekits_agent_is_heard_answers_and_takes_its_leave() -> None:
    async with livekit() as worker:
        voice = await worker.voice()
        assert voice.config["instructions"] == "You are the voice."
        microphone = [await worker.tells("microphone") for _ in range(2)]
        assert microphone == ["session.input_audio.muted", "session.input_audio.unmuted"]
        await voice.say("person", " what time")
        delegations = [await voice.delegate()]
        await voice.say("person", " is it", size=3)
        delegations += [await voice.delegate(), await voice.delegate()]
        answers = [await asyncio.wait_for(voice.commentary.get(), WAIT) for _ in delegations]
        await voice.send("session.output_audio.delta", delta="AAAA")
        await voice.say("voice", " It is noon.")
        assert await worker.tells("heard") == " what time is it"
        voice.now_ms += 2000
        await voice.say("person", " goodbye")
        await worker.ends()
    # It takes a delegation's words as they are, and takes the words of one utterance again and again.
    said = ["You said: what time", "You said: what time is it", "You said: what time is it"]
    assert [(answer.delegation_id, answer.content) for answer in answers] == list(
        zip(delegations, said, strict=True)
    )
    assert voice.refused == []


async def test_livekits_agent_loses_commentary_that_is_refused() -> None:
    async with livekit() as worker:
        voice = await worker.voice()
        voice.fixture = True
        await voice.delegate()
        await worker.tells("error")  # of the thinking
        await worker.tells("error")
        voice.fixture = False
        await voice.say("person", " 7" * 300)
        await voice.delegate()
        await worker.tells("error")
        voice.now_ms += 2000
        await voice.say("person", " goodbye")
        await worker.ends()
    assert voice.refused == ["an audio fixture is active"] * 2 + ["the content has more than 500 tokens"]
    assert [command.kind for command in voice.accepted] == ["thinking"]


async def test_livekits_agent_gives_a_new_voice_the_talk_and_loses_answers_on_their_way() -> None:
    async with livekit() as worker:
        voice = await worker.voice()
        await voice.say("person", " tell me later")
        await voice.say("voice", " Fine.")
        await voice.delegate()
        voice.cut()
        new = await worker.voice()
        await worker.tells("answered")
        await new.say("person", " goodbye")
        await worker.ends()
    talk = [(message["role"], message["content"][0]["text"]) for message in new.config["input"]]
    assert talk[:2] == [("user", " tell me later"), ("assistant", " Fine.")]
    assert new.accepted == []
