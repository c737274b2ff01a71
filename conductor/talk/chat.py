"""One conversation at a terminal: typed lines are sent as speech, answers are printed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from conductor.client.client import Client
from conductor.client.errors import ClientError, ConnectionLost
from conductor.client.events import state_of
from conductor.client.reconnect import GaveUp, Lost, Reconnected, TryFailed
from conductor.client.turns import Turn, TurnResult
from conductor.events.server import (
    ApprovalRequest,
    ApprovalResolved,
    ErrorEvent,
    SpeechFinal,
    SpeechPartial,
    ToolActivity,
    ToolCallEvent,
    is_ui_call,
)
from conductor.talk.approvals import ApprovalPrompt, visible
from conductor.talk.device import SimulatedDevice
from conductor.talk.screen import Screen, StdinReader

# Seconds in which a second Ctrl-C leaves.
LEAVE_WITHIN_S = 2.0
# Seconds that a choice between several names waits for the person.
CHOOSE_S = 300.0
# Seconds that tasks may take to end when the program leaves.
STOP_S = 2.0
# Characters of a call's arguments on its line: enough to recognise it.
MAX_SHOWN_ARGUMENTS = 200
HELP = "Ctrl-C stops the answer, twice leaves; /finish [agent] ends a simulated agent, /quit leaves."

DONE, FAILED, NO_CONNECTION, LEFT = 0, 1, 2, 130


class TerminalChat:
    """Runs a client that is not started yet; ``voice_chars_per_s`` 0 means that speech takes no time.

    Without ``cards``, and without a terminal, approval requests are spoken, and the next line answers them.
    """

    def __init__(
        self,
        client: Client,
        screen: Screen,
        lines: StdinReader,
        voice_chars_per_s: float,
        *,
        cards: bool = True,
    ) -> None:
        self._client = client
        self._screen = screen
        self._lines = lines
        self._voice = voice_chars_per_s
        self._device = SimulatedDevice(self._choose)
        self._floor = asyncio.Lock()
        self._asking = ApprovalPrompt(screen, lines, self._floor, self._typed)
        self._cards = cards
        self._leave = asyncio.Event()
        self._gave_up = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._typed_answers: set[asyncio.Task[bool]] = set()
        self._last_signal: float | None = None
        self._speech: tuple[str, float] | None = None
        self._prompting = False

    async def run(self, text: str | None) -> int:
        """Send one text, or each line until the input ends; return the exit code."""
        self._listen()
        talking = asyncio.create_task(self._talk(text))
        leaving = asyncio.create_task(self._leave.wait())
        try:
            # No time limit here: each turn and each try to connect has its own.
            await asyncio.wait({talking, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _stop({talking, leaving, *self._tasks, *self._typed_answers})
            await self._client.close()
            if self._prompting:
                self._screen.line("")  # the shell's prompt starts on a new line
        if not talking.cancelled():
            return talking.result()
        return DONE if text is None else LEFT

    def signalled(self) -> None:
        """Handle Ctrl-C: interrupt a turn. Without one, or pressed twice, leave."""
        now = time.monotonic()
        again = self._last_signal is not None and now - self._last_signal <= LEAVE_WITHIN_S
        self._last_signal = now
        # Ctrl-C is the barge-in of a terminal, while there is something to interrupt.
        if again or not self._client.connected or not self._client.busy:
            self._leave.set()
        else:
            self._spawn(self._interrupt())

    async def _talk(self, text: str | None) -> int:
        try:
            await self._client.start()
        except ClientError as error:
            self._screen.error(str(error))
            return NO_CONNECTION
        saying = asyncio.create_task(self._one(text) if text is not None else self._many())
        keeping = asyncio.create_task(self._client.wait_given_up())
        try:
            await asyncio.wait({saying, keeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _stop({saying, keeping})
        return NO_CONNECTION if self._gave_up or saying.cancelled() else saying.result()

    # What the person says

    async def _one(self, text: str) -> int:
        done = await self._finish(await self._say(text))
        while self._typed_answers:  # answers to an approval request of this turn: the last one decides
            ended, _ = await asyncio.wait(self._typed_answers)
            done = all(task.result() for task in ended)
        return DONE if done else FAILED

    async def _many(self) -> int:
        self._prompting = self._lines.tty
        if self._prompting:
            self._screen.line(f"Connected, session {self._client.session_id}. {HELP}")
            self._screen.prompt("> ")
        failed = False
        while (line := await self._lines.next()) is not None:
            if line.strip() == "/quit":
                break
            if not line.strip() or line.strip().startswith("/"):
                await self._command(line.split())
                if self._prompting:
                    self._screen.prompt("> ")
            else:
                turn = await self._say(line)
                if self._lines.tty:
                    self._spawn(self._follow(turn))  # a person may speak while the answer runs
                else:
                    failed = not await self._finish(turn) or failed
        return FAILED if failed else DONE

    async def _say(self, text: str) -> Turn | None:
        try:
            return await self._client.say(text)
        except (ClientError, ValueError) as error:
            self._tell_failure(error)
            return None

    async def _follow(self, turn: Turn | None) -> None:
        await self._finish(turn)

    async def _finish(self, turn: Turn | None) -> bool:
        if turn is None:
            return False
        try:
            result: TurnResult = await turn
        except ClientError as error:
            self._tell_failure(error)
            return False
        if result.ending == "lost":
            self._screen.error("That was lost on the way to the server; say it again.")
            return False
        asked = any(isinstance(event, ApprovalRequest) for event in result.events)
        answered = bool(result.finals or result.spoken) or asked  # a question is spoken, or shown
        if not answered and not result.errors and not result.interrupted:
            self._screen.error("There was no answer.")
        return answered and not result.errors

    def _typed(self, line: str) -> None:
        if line.strip() == "/quit":
            self._leave.set()
        elif line.strip().startswith("/"):
            self._spawn(self._command(line.split()))
        else:
            task = asyncio.create_task(self._say_and_finish(line))
            self._typed_answers.add(task)
            task.add_done_callback(self._typed_answers.discard)

    async def _say_and_finish(self, text: str) -> bool:
        return await self._finish(await self._say(text))

    def _tell_failure(self, error: Exception) -> None:
        if not self._gave_up:  # it was printed already
            self._screen.error(str(error))

    async def _command(self, words: list[str]) -> None:
        if words[:1] != ["/finish"]:
            if words:
                self._screen.line(HELP)
            return
        try:
            agent = self._device.finish(words[1] if len(words) > 1 else None)
            await self._client.agent_completed(
                agent.id, agent.status, name=agent.name, prompt=agent.prompts[0], summary="Done (simulated)."
            )
        except (LookupError, ConnectionLost) as error:
            self._screen.error(str(error))

    async def _choose(self, question: str, names: Sequence[str]) -> str | None:
        if not self._lines.tty:
            return names[0]
        async with self._floor:
            self._screen.line(question)
            for number, name in enumerate(names, 1):
                self._screen.line(f"  {number}. {name}")
            self._screen.prompt("number> ")
            answer = (await self._lines.ask(CHOOSE_S) or "").strip()
        if answer.isascii() and answer.isdecimal() and 1 <= int(answer) <= len(names):
            return names[int(answer) - 1]
        return answer if answer in names else None

    # What the person sees and hears

    def _listen(self) -> None:
        client, screen = self._client, self._screen
        client.on(SpeechPartial, lambda event: screen.live(event.text))
        client.on(SpeechFinal, lambda event: screen.line(event.text))
        client.on(ErrorEvent, lambda event: screen.error(f"Error: {event.message} ({event.code})"))
        client.on(ToolCallEvent, self._show_call)
        client.on(ToolActivity, self._show_activity)
        client.on(ApprovalResolved, self._show_resolved)
        if self._cards and self._lines.tty:
            client.on_approval(self._asking.ask)
        # A closed pipe (``talk | head``) is noticed by the next write only.
        client.on("*", self._notice_the_end)
        client.on(Lost, lambda event: screen.error(str(event.error)))
        client.on(TryFailed, lambda event: screen.error(f"Try {event.number}: {event.error}"))
        client.on(Reconnected, lambda _event: screen.error("Connected again."))
        client.on(GaveUp, self._give_up)
        client.on_speak(self._speak)
        for name, handler in self._device.handlers().items():
            client.on_tool(name, handler)

    def _show_call(self, call: ToolCallEvent) -> None:
        state = state_of(call)
        if state == "thinking":
            self._screen.live("…")
        elif state == "idle" and self._prompting:
            if not self._client.asking:  # a question has a prompt of its own
                self._screen.prompt("> ")
        elif not is_ui_call(call.name):
            self._screen.line(f"[tool, simulated] {call.name} {call.arguments[:MAX_SHOWN_ARGUMENTS]}")

    def _show_activity(self, activity: ToolActivity) -> None:
        if activity.status == "started":
            self._screen.live(f"· {activity.name}…")
        else:
            self._screen.dim(f"· {activity.display or activity.name}")

    def _show_resolved(self, resolved: ApprovalResolved) -> None:
        why = f": {visible(resolved.message)}" if resolved.message else ""
        self._screen.dim(f"· question {resolved.outcome}{why}")

    def _give_up(self, _event: GaveUp) -> None:
        self._gave_up = True

    def _notice_the_end(self, _event: object) -> None:
        if self._screen.gone:
            self._leave.set()

    async def _speak(self, text: str) -> None:
        self._screen.line(f"{self._screen.speech_mark} {text}")
        if self._voice > 0:
            self._speech = text, time.monotonic()
            try:
                await asyncio.sleep(len(text) / self._voice)
            finally:
                self._speech = None

    async def _interrupt(self) -> None:
        spoken, played_ms = None, None
        if self._speech is not None:
            text, since = self._speech
            played = time.monotonic() - since
            spoken, played_ms = text[: int(played * self._voice)], round(played * 1000)
        self._screen.line("[interrupted]")
        with contextlib.suppress(ConnectionLost):  # the loss is printed already
            # Only `interrupt` reports how much was heard; it ends the turn as well.
            if self._speech is None and await self._client.cancel_response():
                return
            await self._client.interrupt("user", spoken_text=spoken, played_ms=played_ms)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _stop(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=STOP_S)
