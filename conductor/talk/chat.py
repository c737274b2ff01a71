"""A conversation at a terminal: typed lines are transcripts, answers are text."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any

from conductor.client import Client
from conductor.client.connection import (
    ClientError,
    ConnectionLost,
    GaveUp,
    Lost,
    ReceivedEvent,
    Reconnected,
    TryFailed,
    UnknownEvent,
    state_of,
)
from conductor.client.turns import Turn
from conductor.commands.output import escape
from conductor.events import server
from conductor.talk.plain import Plain

# Seconds in which a second Ctrl-C exits.
LEAVE_WITHIN_S = 2.0
# Seconds for tasks to end at the exit.
STOP_S = 2.0
# After the last line the turn of an answer ends within this time; the turn of a spoken question does not.
END_S = 1.0
# Characters of a call's arguments on its line.
MAX_ARGUMENTS = 200
COMMANDS = {
    "/help": "list the commands",
    "/fact": "tell the model a fact, without a turn: /fact TEXT",
    "/new": "start a new session",
    "/session": "print the session's id, or change to another session: /session [ID]",
    "/quit": "exit",
}
HINT = "Ctrl-C stops the answer, Ctrl-D exits, /help lists the commands."

DONE, FAILED, NO_CONNECTION, LEFT = 0, 1, 2, 130


class TerminalChat:
    """Runs one client at a time; ``make`` makes a client for a session id, or for a new session.

    Approval requests are spoken: the next line answers.
    """

    def __init__(self, make: Callable[[str | None], Client]) -> None:
        self._make = make
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()
        self._last_signal = float("-inf")
        self._has_started = False  # the client's session, once

    async def run(self, view: Plain, session_id: str | None, text: str | None) -> int:
        """Send one text, or each line until the end of the input; return the exit code."""
        self._view = view
        self._client = self._make(session_id)
        talking = asyncio.create_task(self._talk(text))
        try:
            # Without a time limit: each turn and each try to connect has its own.
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
        """Handle Ctrl-C: interrupt the turn. Without a turn, or pressed twice, exit."""
        now = time.monotonic()
        repeated = now - self._last_signal <= LEAVE_WITHIN_S
        self._last_signal = now
        if repeated or not self._client.connected or not self._client.busy:
            self._leave(LEFT)
        else:
            self._spawn(self._interrupt())

    async def _talk(self, text: str | None) -> int:
        try:
            await self._start(self._client)
        except ClientError as error:
            self._view.error(str(error))
            return NO_CONNECTION
        if not self._view.interactive:
            return await self._send_lines(text)
        if text is not None:
            return await self._send_text(text)
        self._view.note(f"Connected, session {self._client.session_id}.")
        self._view.note(HINT)
        while not self._over.done() and (line := await self._view.next()) is not None:
            if line.strip():
                self._spawn(self._handle(line))
        return DONE

    async def _send_lines(self, text: str | None) -> int:
        # Each after the answer to the previous one; the turn of a spoken question is still open then.
        turns: list[asyncio.Task[bool]] = []
        line = await self._view.next() if text is None else text
        while not self._over.done() and line is not None:
            if line.strip():
                self._idle.clear()
                turns.append(self._spawn(self._handle(line)))
                idle = self._spawn(self._idle.wait())
                await asyncio.wait({turns[-1], idle}, return_when=asyncio.FIRST_COMPLETED)
                idle.cancel()
            line = await self._view.next() if text is None else None
        if turns and (await asyncio.wait(turns, timeout=END_S))[1]:
            self._view.error("The question was not answered: there are no more lines.")
        return DONE if all(turn.done() and turn.result() for turn in turns) else FAILED

    async def _send_text(self, text: str) -> int:
        reading = self._spawn(self._forward())
        success = await self._handle(text)
        # Answers to an approval request of this turn: the last one decides.
        while tasks := self._tasks - {reading, asyncio.current_task()}:
            ended, _ = await asyncio.wait(tasks)
            success = all(task.result() is not False for task in ended)
        return DONE if success else FAILED

    async def _forward(self) -> None:
        while (line := await self._view.next()) is not None:
            self._spawn(self._handle(line))
        self._leave(LEFT)

    async def _start(self, client: Client) -> None:
        self._has_started = False
        self._listen(client)
        self._show_started(await client.start())

    def _show_started(self, started: server.SessionStarted) -> None:
        self._has_started = True
        for tool in started.rejected_tools or ():
            self._view.error(f"The server rejects the tool {tool.name}: {tool.reason}")

    async def _handle(self, line: str) -> bool:
        command, client = line.lstrip().startswith("/"), self._client
        try:
            if command:
                name, _, argument = line.strip().partition(" ")
                await self._command(name, argument.strip() or None)
                return True
            return await self._finish(await client.say(line))
        except (ClientError, LookupError, ValueError) as error:
            # A lost connection is reported elsewhere, and the turn of a previous session is irrelevant.
            if not self._over.done() and (command or client is self._client):
                self._view.error(str(error))
            return command

    async def _finish(self, turn: Turn) -> bool:
        result = await turn
        if result.ending == "lost":
            raise ConnectionLost("The text did not reach the server; send it again.")
        has_request = any(isinstance(event, server.ApprovalRequest) for event in result.events)
        has_answer = has_request or bool(result.finals or result.speeches)
        stopped = result.interrupted or result.ending == "followed"  # by the person
        if not has_answer and not result.errors and not stopped:
            self._view.error("There was no answer.")
        return has_answer and not result.errors

    async def _command(self, name: str, argument: str | None) -> None:
        show = self._view.line
        match name:
            case "/quit":
                self._leave(DONE)
            case "/session" if argument is None:
                show(self._client.session_id)
            case "/fact" if argument is not None:
                await self._client.add_context(argument)
                show("The model reads it from the next turn on.")
            case "/new" | "/session":
                await self._change(self._make(argument))
            case _:
                show("\n".join([HINT, *(f"{name:<8}  {about}" for name, about in COMMANDS.items())]))

    async def _change(self, client: Client) -> None:
        previous, self._client = self._client, client
        await previous.close()
        try:
            await self._start(client)
        except ClientError as error:
            if client is not self._client:  # another session was chosen meanwhile
                return
            client.keep_trying(error)
            self._view.error(str(error))
            self._view.note("The session begins once the server is back.")
        else:
            self._view.line(f"Session {client.session_id}.")

    def _listen(self, client: Client) -> None:
        view = self._view
        client.on("*", self._event)
        client.on(server.SpeechPartial, lambda event: view.partial(event.text))
        client.on(server.SpeechFinal, lambda event: view.answer(event.text))
        client.on(server.ErrorEvent, lambda event: view.error(f"Error: {event.message} ({event.code})"))
        client.on(server.ToolCallEvent, self._show_call)
        client.on(server.ToolActivity, self._show_activity)
        client.on(server.ApprovalResolved, self._show_resolved)
        for kind in (Lost, TryFailed, Reconnected, GaveUp):
            client.on(kind, self._connection)
        client.on_speak(self._speak)

    def _event(self, event: ReceivedEvent) -> None:
        self._view.event(event.TYPE, event.payload if isinstance(event, UnknownEvent) else event)
        # A closed pipe (``talk | head``) is noticed by the next write only.
        if self._view.is_closed:
            self._leave(DONE)

    def _show_call(self, call: server.ToolCallEvent) -> None:
        if state_of(call) == "idle":
            self._idle.set()
        if not server.is_ui_call(call.name):
            self._view.note(f"[tool] {call.name} {call.arguments[:MAX_ARGUMENTS]}")

    def _show_activity(self, activity: server.ToolActivity) -> None:
        if activity.status != "started":
            self._view.note(f"· {activity.display or activity.name}")

    def _show_resolved(self, resolved: server.ApprovalResolved) -> None:
        reason = f": {escape(resolved.message)}" if resolved.message else ""
        self._view.note(f"· {resolved.outcome}{reason}")

    def _connection(self, event: Lost | TryFailed | Reconnected | GaveUp) -> None:
        view = self._view
        error = None if isinstance(event, Reconnected) else str(event.error)
        view.event(event.TYPE, {"error": error} if error else {})
        match event:
            case Lost():
                view.error(str(error))
            case TryFailed(number):
                view.error(f"Try {number}: {error}")
            case Reconnected(started):
                view.error("Connected again.")
                if not self._has_started:
                    self._show_started(started)
            case GaveUp():
                self._leave(NO_CONNECTION)

    async def _speak(self, text: str) -> None:
        self._view.speech(text)

    async def _interrupt(self) -> None:
        self._view.cut()
        with contextlib.suppress(ConnectionLost):  # the loss is reported elsewhere
            if not await self._client.cancel_response():
                await self._client.interrupt()

    def _leave(self, code: int) -> None:
        if not self._over.done():
            self._over.set_result(code)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
