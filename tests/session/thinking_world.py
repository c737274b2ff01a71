"""A model that thinks, an app that changes its mind, and a session that moves, from one seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from conductor.conversation.services import Services
from conductor.conversation.session import Session
from conductor.errors import ModelError
from conductor.events import client
from conductor.models.base import ModelEvent, ModelRequest
from conductor.plugins.models.anthropic import AnthropicProvider
from conductor.plugins.models.anthropic_request import Account
from tests.models import AnthropicService, Call, JsonObject, Reply, Thought
from tests.session.helpers import (
    SPOKEN,
    App,
    Disk,
    LocalTools,
    at_rest,
    die,
    later,
    make_services,
    open_session,
    steps,
)
from tests.stand_ins.anthropic_binding import THINKING
from tests.stand_ins.anthropic_script import Refused, stream_pieces
from tests.stand_ins.http_connection import HttpRequest

TURNS = 3
TEXTS = ("Let me see.", " One moment. \n\n", "Ça va, 日本. ", "Well")
ARGUMENTS = ("{}", '{"x": 1}', '{ "x" : 2.0 }')
PROMPTS = ("Be brief.", "Be kind.")


class ThinkingModel:
    """The provider's own requests and decoder, and behind them the service's rules, with no socket between.

    ``refused`` holds why requests were refused, ``tally`` counts those received and the thinking in them.
    """

    name = AnthropicProvider.name

    def __init__(self, rng: random.Random, tally: Counter[str]) -> None:
        self.refused: list[str] = []
        self._rng = rng
        self._tally = tally
        self._service = AnthropicService(api_keys=None)
        self._provider = AnthropicProvider(Account("key"), "test-model", 512)

    async def start(self) -> None:
        """Nothing to prepare."""

    async def aclose(self) -> None:
        """Nothing is open."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        rng = self._rng
        post = self._provider._post(request)
        headers = {
            "authorization": "Bearer key",
            "anthropic-version": "2026-10-21",
            "content-type": "application/json",
            **post.headers,
        }
        self._tally["requests"] += 1
        try:
            body = self._service.accept(HttpRequest("POST", "/v1/messages", headers, post.body))
        except Refused as refusal:
            self.refused.append(str(refusal))
            raise ModelError("protocol", "The request was refused.") from None
        thinking = sum(
            block["type"] in THINKING for message in body["messages"] for block in message["content"]
        )
        self._tally["requests with thinking"] += thinking > 0
        self._tally["thinking of several replies"] += thinking > 3
        if rng.random() < 0.04:
            raise ModelError(rng.choice(("context_too_long", "overloaded")), "No.")
        reply = self._reply(body)
        message_id = str(self._tally["requests"])
        content = self._service.compose(reply, message_id, body)
        decoder = post.new_decoder()
        breaks = rng.random() < 0.05
        usage = {"input_tokens": rng.choice((10, len(post.body))), "output_tokens": 1}
        for piece in stream_pieces(reply, content, message_id, "test-model", usage):
            if piece.delta and rng.random() < 0.2:
                await later(rng.choice((0.0, 0.01, 1.0)))
            if piece.delta and breaks and rng.random() < 0.2:
                self._tally["broken replies"] += 1
                raise ModelError("connection", "The reply broke off.")
            for event in decoder.feed(piece.data):
                yield event

    def _reply(self, body: JsonObject) -> Reply:
        """Think, speak and call, in any order; end after some rounds."""
        rng = self._rng
        tools = [tool["name"] for tool in body.get("tools", ())]
        calls = bool(tools) and body.get("tool_choice") is None and rng.random() < 0.6
        blocks: list[Thought | str | Call] = []
        for _ in range(rng.choice((1, 1, 2, 3))):
            if rng.random() < 0.8:
                blocks.append(Thought(rng.choice(TEXTS), redacted=rng.random() < 0.2))
            if not calls or rng.random() < 0.4:
                blocks.append(rng.choice(TEXTS))
            if calls:
                blocks.append(Call(rng.choice([*tools, "nobody_home"]), rng.choice(ARGUMENTS)))
        if calls and rng.random() < 0.05:
            return Reply(blocks=(*blocks, Call(tools[0], '{"x": ')), stop_reason="max_tokens")
        return Reply(
            blocks=tuple(blocks), stop_reason="pause_turn" if not calls and rng.random() < 0.1 else None
        )


class World:
    """One conversation of a few turns, with changes of its prompt in each."""

    def __init__(self, seed: int, tally: Counter[str]) -> None:
        self.rng = rng = random.Random(seed)
        self.tally = tally
        self.trail: list[str] = []
        self.model = ThinkingModel(rng, tally)
        self._store = Disk()
        self._local = LocalTools()
        self._local.go.set()
        self._mode = rng.choice(("cancel", "cancel", "queue"))
        self._turns = rng.choice((2, 3, 20))
        self._summarizes = rng.random() < 0.5
        self._late: list[str] = []

    async def play(self) -> None:
        """Talk until the turns are over; the model must have refused nothing."""
        session = await open_session(self._services())
        app = App(self._answer)
        app.capabilities = self.rng.choice((["tools", "late"], ["tools", "late", "cancel", "segments"]))
        await app.connect(session)
        self._change_tools(app)
        for number in range(TURNS):
            app.say(f"words {number}")
            for _ in range(self.rng.randint(0, 3)):
                await self._pause()
                session = await self._step(session, app)
            if self.rng.random() < 0.8:
                await at_rest(session)
        await at_rest(session)
        await session.close()
        await app.close()

    def _services(self) -> Services:
        services = make_services(
            store=self._store,
            toolsets=[self._local] if self.rng.random() < 0.8 else [],
            mode=self._mode,
            max_turns=self._turns,
            tool_timeout=3.0,
            model_retry=0.01,
            max_tool_rounds=self.rng.choice((2, 4)),
            turns_per_minute=1e6,
            calls_per_minute=1e6,
        )
        prompt = PROMPTS[self.rng.random() < 0.2]
        return replace(
            services, provider=self.model, system_prompt=prompt, summarize_history=self._summarizes
        )

    def _answer(self, name: str, call_id: str) -> str | None:
        if not name.startswith("device."):
            return SPOKEN
        if self.rng.random() < 0.2:
            self._late.append(call_id)
            return None
        return "done"

    async def _pause(self) -> None:
        if self.rng.random() < 0.5:
            await steps(self.rng.randint(0, 40))
        else:
            await later(self.rng.choice((0.01, 0.5, 2.0, 5.0)))

    async def _step(self, session: Session, app: App) -> Session:
        rng = self.rng
        action = rng.choice(("tools", "tools", "prompt", "barge in", "interrupt", "late", "agent", "move"))
        self.trail.append(action)
        self.tally[action] += session.busy
        match action:
            case "tools":
                self._change_tools(app)
            case "prompt":
                session.reload(self._services())
            case "barge in":
                self._interrupt(app)
                app.say("no, wait")
            case "interrupt":
                self._interrupt(app)
            case "late" if self._late:
                app.result(self._late.pop(), "late")
            case "agent":
                app.agent_done("a-1")
            case "move":
                die(session, app)
                await steps(3)
                session = await open_session(self._services())
                await app.connect(session, resumed=True)
        return session

    def _change_tools(self, app: App) -> None:
        names = self.rng.sample(("device.look", "device.do", "device.find"), self.rng.randint(0, 3))
        tools: list[Any] = [
            {
                "name": name,
                "description": f"Version {self.rng.randint(1, 2)}.",
                "inputSchema": {"type": "object"},
                "_meta": {"conductor": {"approval": "never"}},
            }
            for name in names
        ]
        app.line.say(client.SessionUpdate(tools))

    def _interrupt(self, app: App) -> None:
        fields: dict[str, Any] = self.rng.choice(({}, {"spokenText": "Let"}, {"playedMs": 300.0}))
        app.interrupt(**fields)
