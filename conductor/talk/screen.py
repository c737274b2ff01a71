"""An interactive terminal: a line editor, the growing answer above it, and a status line below."""

from __future__ import annotations

import asyncio
import io
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.completion import ConditionalCompleter, WordCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output
from rich.console import Console, RenderableType
from rich.markdown import Markdown
from rich.text import Text

from conductor.talk.plain import clean

# Seconds between two frames of the spinner and of a growing answer.
FRAME_S = 0.1
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
# Lines under the growing answer: spinner, editor, completions, status.
BELOW = 6


class Screen:
    """Draws on a terminal within ``async with``; ``commands`` by name, with their help, are completed.

    ``signal`` is called for Esc and Ctrl-C during a turn, and for Ctrl-C on an empty line.
    """

    interactive = True
    is_closed = False

    def __init__(
        self, stdin: TextIO, stdout: TextIO, commands: Mapping[str, str], signal: Callable[[], None]
    ) -> None:
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._signal = signal
        self._partial = ""
        self._stopped = False
        self._last = ""
        self._working: tuple[str, float] | None = None
        self._status: dict[str, str] = {}
        self._question: tuple[str, asyncio.Queue[str]] | None = None
        self._pending: list[str] = []
        self._flushing: asyncio.Future[None] | None = None
        self._session: PromptSession[str] = PromptSession(
            self._message,
            bottom_toolbar=self._toolbar,
            completer=ConditionalCompleter(
                WordCompleter(list(commands), meta_dict=dict(commands), sentence=True),
                Condition(lambda: self._buffer.text.startswith("/")),
            ),
            history=_history(),
            key_bindings=self._keys(),
            erase_when_done=True,
            refresh_interval=FRAME_S,  # for the spinner
            input=create_input(stdin),
            output=create_output(stdout),
        )
        self._buffer = self._session.default_buffer
        self._session.app.ttimeoutlen = 0.05  # distinguishes Esc from a key's sequence
        self._session.app.min_redraw_interval = FRAME_S / 2

    async def __aenter__(self) -> Screen:
        self._editing = asyncio.create_task(self._edit())
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._session.app.is_running:
            self._session.app.exit(result="")
        await asyncio.wait({self._editing})
        self._flush()

    async def next(self) -> str | None:
        return await self._lines.get()

    @contextmanager
    def question(self, label: str, text: str = "") -> Iterator[Callable[[], Awaitable[str]]]:
        """Ask, with ``text`` in the editor; yields a function that waits for an answer.

        All lines within the block are answers. Its end restores the draft in the editor.
        """
        previous, draft = self._question, self._buffer.document
        answers: asyncio.Queue[str] = asyncio.Queue()
        self._question = label, answers
        self._buffer.reset(Document(text, len(text)))
        self._session.app.invalidate()
        try:
            yield answers.get
        finally:
            self._question = previous
            self._buffer.reset(draft)
            self._session.app.invalidate()

    def event(self, kind: str, payload: Any) -> None: ...

    def partial(self, text: str) -> None:
        if not self._stopped:
            self._partial = text
            self._session.app.invalidate()

    def answer(self, text: str) -> None:
        self._partial, self._last = "", text
        self.draw(Markdown(clean(text), hyperlinks=False))

    def speech(self, text: str) -> None:
        """Print a speech that is not part of the answer."""
        # While the answer grows, the voice speaks its sentences.
        if not self._partial and _words(text) not in _words(self._last):
            self.draw(Text(f"🔊 {clean(text)}", style="dim"))

    def cut(self) -> None:
        """Keep the visible part of an answer, and ignore its remainder."""
        self._keep()
        self._stopped = True
        self.note("[stopped]")

    def line(self, text: str) -> None:
        self.draw(Text(clean(text)))

    def note(self, text: str) -> None:
        self.draw(Text(" ".join(clean(text).split()), style="dim"))

    connection = note

    def error(self, text: str) -> None:
        self.draw(Text(" ".join(clean(text).split()), style="bold red"))

    def draw(self, content: RenderableType) -> None:
        """Print above the editor."""
        self._pending.append(self._render(content))
        if self._session.app.is_running and (self._flushing is None or self._flushing.done()):
            self._flushing = asyncio.ensure_future(run_in_terminal(self._flush))

    def working(self, label: str | None) -> None:
        """Show a spinner with this label and its seconds; None removes it."""
        if label is None:
            self._keep()
            self._stopped = False
            self._working = None
        elif self._working is None or self._working[0] != label:
            self._working = label, time.monotonic()
        self._session.app.invalidate()

    def status(self, **parts: str) -> None:
        """Change parts of the status line; an empty text removes a part."""
        self._status.update(parts)
        self._session.app.invalidate()

    def _keep(self) -> None:
        # A partial without a final: the answer failed or was stopped.
        if self._partial:
            self.draw(Markdown(f"{clean(self._partial)} …", hyperlinks=False))
            self._partial = ""

    async def _edit(self) -> None:
        try:
            await self._session.prompt_async(handle_sigint=False)
        except (EOFError, KeyboardInterrupt):
            pass
        finally:
            self._lines.put_nowait(None)

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter", filter=has_focus(DEFAULT_BUFFER))
        def enter(_event: KeyPressEvent) -> None:
            self._entered(self._buffer.text)

        @keys.add("escape", eager=True, filter=Condition(lambda: self._working is not None))
        def escape(_event: KeyPressEvent) -> None:
            self._signal()

        @keys.add("c-c")
        def control_c(_event: KeyPressEvent) -> None:
            if self._buffer.text and self._working is None:
                self._buffer.reset()
            else:
                self._signal()

        return keys

    def _entered(self, text: str) -> None:
        if self._partial and self._question is None and text.strip() and not text.startswith("/"):
            self.cut()  # these words end the answer
        self.draw(Text(f"{self._label()}{clean(text)}", style="bold"))
        if self._question is None:
            self._buffer.append_to_history()
        self._buffer.reset()
        (self._lines if self._question is None else self._question[1]).put_nowait(text)

    def _label(self) -> str:
        return "> " if self._question is None else self._question[0]

    def _message(self) -> ANSI:
        live = self._render(Markdown(clean(self._partial), hyperlinks=False)) if self._partial else ""
        rows = max(1, self._session.output.get_size().rows - BELOW)
        lines = live.splitlines()[-rows:]
        if self._working is not None and self._question is None:
            label, since = self._working
            seconds = time.monotonic() - since
            lines.append(f"{SPINNER[int(seconds / FRAME_S) % len(SPINNER)]} {clean(label)} {seconds:.0f} s")
        return ANSI("\n".join([*lines, self._label()]))

    def _toolbar(self) -> str:
        parts = (self._status.get(name, "") for name in ("connection", "state", "model", "session"))
        return " " + " · ".join(filter(None, map(clean, parts)))

    def _render(self, content: RenderableType) -> str:
        columns = max(20, self._session.output.get_size().columns)
        console = Console(file=io.StringIO(), force_terminal=True, width=columns, color_system="standard")
        with console.capture() as capture:
            console.print(content, markup=False, highlight=False, emoji=False)
        return capture.get()

    def _flush(self) -> None:
        self._session.output.write_raw("".join(self._pending))
        self._session.output.flush()
        self._pending.clear()


def _words(text: str) -> str:
    return " ".join(["", *re.findall(r"\w+", text), ""])  # without markdown, which is not spoken


def _history() -> History:
    # Only this user may read the history.
    try:
        path = Path.home() / ".local" / "state" / "conductor" / "talk_history"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.chmod(0o600)
    except (OSError, RuntimeError):  # no home, or one that is read-only
        return InMemoryHistory()
    return FileHistory(path)
