"""One conversation at a terminal: typed lines are sent as speech, answers are shown."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from conductor.client.approvals import Approval, ApprovalDecision, edit
from conductor.client.client import Client
from conductor.client.errors import ClientError, ConnectionLost
from conductor.client.events import Event, UnknownEvent, state_of, wire_type
from conductor.client.reconnect import GaveUp, Lost, Reconnected, TryFailed
from conductor.client.turns import Turn
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
from conductor.talk import cards
from conductor.talk.device import SimulatedDevice
from conductor.talk.plain import Plain

if TYPE_CHECKING:
    from conductor.talk.screen import Screen

# Seconds in which a second Ctrl-C leaves.
LEAVE_WITHIN_S = 2.0
# Seconds that tasks may take to end when the program leaves.
STOP_S = 2.0
# Characters of a call's arguments on its line: enough to recognise it.
MAX_SHOWN_ARGUMENTS = 200
# Characters a second of a voice that is switched on.
VOICE = 15.0
COMMANDS = {
    "/help": "say what there is",
    "/tools": "list the tools used, and those of the simulated device",
    "/new": "begin a new session",
    "/session": "say the session, or change to another: /session [ID]",
    "/history": "show what was said here",
    "/voice": "let the voice take its time, or not: /voice [CHARACTERS A SECOND]",
    "/finish": "end a simulated agent: /finish [ID]",
    "/quit": "leave",
}
HINT = "Esc or Ctrl-C stops the answer, Ctrl-D leaves, /help lists the commands."

DONE, FAILED, NO_CONNECTION, LEFT = 0, 1, 2, 130
View: TypeAlias = "Plain | Screen"


class TerminalChat:
    """Shows clients of one server; ``make`` makes one for a session id, or for a new session.

    ``voice`` is in characters a second; 0 means that speech takes no time. Without ``cards``, and without a
    person at the terminal, approval requests are spoken, and the next line answers them.
    """

    def __init__(self, make: Callable[[str | None], Client], voice: float, *, cards: bool = True) -> None:
        self._make = make
        self._voice = voice
        self._cards = cards
        self._device = SimulatedDevice(self._choose)
        self._floor = asyncio.Lock()
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._said: list[str] = []
        self._used: dict[str, str] = {}
        self._running: dict[str, str] = {}
        self._last_signal = float("-inf")
        self._speech: tuple[str, float] | None = None

    async def run(self, view: View, session_id: str | None, text: str | None) -> int:
        """Say one text, or each line until the input ends; return the exit code."""
        self._view = view
        self._client = self._make(session_id)
        talking = asyncio.create_task(self._talk(text))
        try:
            # No time limit here: each turn and each try to connect has its own.
            await asyncio.wait({talking, self._over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = {talking, *self._tasks}
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=STOP_S)
            await self._client.close()
        if self._over.done():
            code = self._over.result()
            return DONE if code == LEFT and text is None else code
        return talking.result()

    def signalled(self) -> None:
        """Handle Esc and Ctrl-C: interrupt a turn. Without one, or pressed twice, leave."""
        now = time.monotonic()
        again = now - self._last_signal <= LEAVE_WITHIN_S
        self._last_signal = now
        if again or not self._client.connected or not self._client.busy:
            self._leave(LEFT)
        else:
            self._spawn(self._interrupt())

    async def _talk(self, text: str | None) -> int:
        try:
            await self._start(self._client)
        except ClientError as error:
            self._view.error(str(error))
            return NO_CONNECTION
        if text is not None:
            return await self._one(text)
        if self._view.interactive:
            self._view.note(f"Connected, session {self._client.session_id}.")
            self._view.note(HINT)
        failed = False
        while not self._over.done() and (line := await self._view.next()) is not None:
            if line.strip():
                handling = self._spawn(self._handle(line))
                if not self._view.interactive:  # a person may speak while the answer runs
                    failed = not await handling or failed
        return FAILED if failed else DONE

    async def _one(self, text: str) -> int:
        reading = self._spawn(self._forward()) if self._view.interactive else None
        done = await self._handle(text)
        # Answers to an approval request of this turn: the last one decides.
        while others := self._tasks - {reading, asyncio.current_task()}:
            ended, _ = await asyncio.wait(others)
            done = all(task.result() is not False for task in ended)
        return DONE if done else FAILED

    async def _forward(self) -> None:
        while (line := await self._view.next()) is not None:
            self._spawn(self._handle(line))
        self._leave(LEFT)

    async def _start(self, client: Client) -> None:
        self._listen(client)
        self._view.status(connection="connecting", session=client.session_id, model="", state="")
        started = await client.start()
        self._view.status(connection="connected", model=started.model or "", state="idle")

    # What the person says

    async def _handle(self, line: str) -> bool:
        command, client = line.lstrip().startswith("/"), self._client
        try:
            if command:
                name, _, argument = line.strip().partition(" ")
                await self._command(name, argument.strip() or None)
                return True
            self._said.append(f"> {line}")
            return await self._finish(await client.say(line))
        except (ClientError, LookupError, ValueError) as error:
            # A lost connection is shown already, and a turn of a session that was left matters no more.
            if not self._over.done() and (command or client is self._client):
                self._view.error(str(error))
            return command

    async def _finish(self, turn: Turn) -> bool:
        result = await turn
        if result.ending == "lost":
            raise ConnectionLost("That was lost on the way to the server; say it again.")
        asked = any(isinstance(event, ApprovalRequest) for event in result.events)
        answered = bool(result.finals or result.speeches) or asked  # a question is spoken, or shown
        stopped = result.interrupted or result.ending == "followed"  # by the person, with more words
        if not answered and not result.errors and not stopped:
            self._view.error("There was no answer.")
        return answered and not result.errors

    async def _command(self, name: str, argument: str | None) -> None:
        show = self._view.line
        match name:
            case "/quit":
                self._leave(DONE)
            case "/tools":
                tools = dict.fromkeys(self._device.handlers(), "simulated device") | self._used
                show(_table(dict(sorted(tools.items()))))
            case "/session" if argument is None:
                show(self._client.session_id)
            case "/new" | "/session":
                left, self._client = self._client, self._make(argument)
                await left.close()
                self._view.working(None)
                await self._start(self._client)
                show(f"Session {self._client.session_id}.")
            case "/history":
                show("\n".join(self._said) or "Nothing was said yet.")
            case "/voice":
                self._voice = voice_speed(argument) if argument else (0.0 if self._voice else VOICE)
                show(f"The voice says {self._voice:g} characters a second." if self._voice else "No voice.")
            case "/finish":
                agent = self._device.finish(argument)
                await self._client.agent_completed(
                    agent["id"],
                    agent["status"],
                    name=agent["name"],
                    prompt=agent["prompts"][0],
                    summary="Done (simulated).",
                )
            case _:
                show(f"{HINT}\n{_table(COMMANDS)}")

    async def _choose(self, question: str, names: Sequence[str]) -> str | None:
        view = self._view
        if isinstance(view, Plain):
            return names[0]
        async with self._floor:
            view.line("\n".join([question, *(f"  {number}. {name}" for number, name in enumerate(names, 1))]))
            with view.question("number> ") as answers:
                answer = (await answers()).strip()
        if answer.isascii() and answer.isdecimal() and 1 <= int(answer) <= len(names):
            return names[int(answer) - 1]
        return answer if answer in names else None

    async def _approve(
        self, approval: Approval, shown: Callable[[], Awaitable[None]]
    ) -> ApprovalDecision | None:
        view = self._view
        if isinstance(view, Plain):
            return None
        # One question at a time: a key typed for one must not answer the other.
        async with self._floor:
            view.draw(cards.card(approval))
            await shown()
            with view.question("y/n/a/s/e> ") as answers:
                while True:
                    line = await answers()
                    decision = cards.decide(line, approval)
                    if isinstance(decision, ApprovalDecision):
                        return decision
                    if decision == "said":
                        self._spawn(self._handle(line))
                    elif decision == "edit" and (arguments := await self._edit(view, approval)) is not None:
                        return edit(arguments)
                    else:
                        view.line(cards.keys(approval))

    async def _edit(self, view: Screen, approval: Approval) -> dict[str, Any] | None:
        text = cards.arguments_text(approval.arguments)
        while text.strip():
            with view.question("arguments> ", text) as answers:
                text = await answers()
            try:
                return cards.read_arguments(text)
            except ValueError as error:
                view.error(f"That is no JSON object ({error}). Change it, or empty the line.")
        return None

    # What the person sees and hears

    def _listen(self, client: Client) -> None:
        view = self._view
        client.on("*", self._event)
        client.on(SpeechPartial, lambda event: view.partial(event.text))
        client.on(SpeechFinal, self._answer)
        client.on(ErrorEvent, lambda event: view.error(f"Error: {event.message} ({event.code})"))
        client.on(ToolCallEvent, self._show_call)
        client.on(ToolActivity, self._show_activity)
        client.on(ApprovalResolved, self._show_resolved)
        for kind in (Lost, TryFailed, Reconnected, GaveUp):
            client.on(kind, self._connection)
        client.on_speak(self._speak)
        if self._cards and view.interactive:
            client.on_approval(self._approve)
        for name, handler in self._device.handlers().items():
            client.on_tool(name, handler)

    def _event(self, event: Event) -> None:
        self._view.event(wire_type(event), event.payload if isinstance(event, UnknownEvent) else event)
        # A closed pipe (``talk | head``) is noticed by the next write only.
        if self._view.gone:
            self._leave(DONE)

    def _answer(self, event: SpeechFinal) -> None:
        self._said.append(event.text)
        self._view.answer(event.text)

    def _show_call(self, call: ToolCallEvent) -> None:
        state = state_of(call)
        if state is not None:
            self._view.status(state=state)
        if state in ("thinking", "idle"):
            self._running.clear()
            self._view.working(None)
        if state == "thinking" or (state == "speaking" and self._voice):
            self._view.working(state)
        elif not is_ui_call(call.name):
            self._view.note(f"[tool, simulated] {call.name} {call.arguments[:MAX_SHOWN_ARGUMENTS]}")

    def _show_activity(self, activity: ToolActivity) -> None:
        if activity.status == "started":
            self._running[activity.call_id] = activity.name
        else:
            self._running.pop(activity.call_id, None)
            self._used[activity.name] = activity.source
            self._view.note(f"· {activity.display or activity.name}")
        self._view.working(", ".join(self._running.values()) or "thinking")

    def _show_resolved(self, resolved: ApprovalResolved) -> None:
        why = f": {cards.visible(resolved.message)}" if resolved.message else ""
        self._view.note(f"· {resolved.outcome}{why}")

    def _connection(self, event: Lost | TryFailed | Reconnected | GaveUp) -> None:
        view = self._view
        error = None if isinstance(event, Reconnected) else str(event.error)
        view.event(event.TYPE, {"error": error} if error else {})
        view.status(connection="reconnecting" if error else "connected")
        if isinstance(event, GaveUp):
            self._leave(NO_CONNECTION)
        elif isinstance(event, TryFailed):
            view.error(f"Try {event.number}: {error}")
        elif error:
            view.error(error)
        else:
            view.connection("Connected again.")

    async def _speak(self, text: str) -> None:
        self._view.speech(text)
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
        self._view.cut()
        with contextlib.suppress(ConnectionLost):  # the loss is shown already
            # Only `interrupt` reports how much was heard; it ends the turn as well.
            if self._speech is None and await self._client.cancel_response():
                return
            await self._client.interrupt("user", spoken_text=spoken, played_ms=played_ms)

    def _leave(self, code: int) -> None:
        if not self._over.done():
            self._over.set_result(code)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _table(rows: Mapping[str, str]) -> str:
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {about}" for name, about in rows.items())


def voice_speed(text: str) -> float:
    """Read characters a second. Raises `ValueError`."""
    with contextlib.suppress(ValueError):
        if 0 <= (speed := 0.0 if text == "off" else float(text)) < float("inf"):
            return speed
    raise ValueError("it must be a number of characters, 0 or more")
