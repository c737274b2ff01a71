"""Ask at the terminal whether a tool may run: show the call, and read a number."""

from __future__ import annotations

import asyncio
import json
import unicodedata
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from conductor.client.approvals import Approval, ApprovalDecision, Scope, allow, deny, edit
from conductor.client.options import ClientLimits
from conductor.talk.screen import Screen, StdinReader

# Seconds that a request waits at the terminal: as long as the library waits for a handler.
ANSWER_S = ClientLimits().approval_s
PROMPT = "1-5> "
# Characters of the arguments that are shown; the rest is counted in a warning.
MAX_SHOWN = 16_384
CHOICES: dict[str, Scope] = {"1": "once", "2": "session", "3": "always"}
HINT = "A number decides. What else you type is said to the assistant."
NO_ANSWER = "That decides nothing: type one of the numbers, or say it in a sentence."
_BARE = frozenset(("y", "yes", "n", "no"))

_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


class ApprovalPrompt:
    """Asks about one request at a time; ``typed`` is given lines that are meant for the assistant.

    ``floor`` is the lock that each question at this terminal holds.
    """

    def __init__(
        self, screen: Screen, lines: StdinReader, floor: asyncio.Lock, typed: Callable[[str], None]
    ) -> None:
        self._screen = screen
        self._lines = lines
        self._floor = floor
        self._typed = typed

    async def ask(self, approval: Approval, shown: Callable[[], Awaitable[None]]) -> ApprovalDecision | None:
        """Ask until there is a decision; None at the end of the input, and after the time limit.

        ``shown`` is awaited when the request is on the screen.
        """
        # One question at a time: a number typed for one must not answer the other.
        async with self._floor:
            self._show(approval)
            await shown()
            return await self._decide(approval)

    async def _decide(self, approval: Approval) -> ApprovalDecision | None:
        while True:
            self._screen.prompt(PROMPT)
            line = await self._lines.ask(ANSWER_S)
            if line is None:
                return None
            word = line.strip()
            scope = CHOICES.get(word)
            if scope is not None and scope in approval.scopes:
                return allow(scope)
            if word == "4":
                return deny()
            if word == "5":
                edited = await self._edit(approval)
                if edited is not None:
                    return edit(edited)
                self._screen.line(_choices(approval))
            elif _is_said(word):
                self._typed(line)
            else:
                self._screen.line(NO_ANSWER)

    async def _edit(self, approval: Approval) -> dict[str, Any] | None:
        self._screen.line(f"The arguments now: {visible(json.dumps(approval.arguments, ensure_ascii=False))}")
        self._screen.line("Type all of them, as a JSON object on one line. An empty line changes nothing.")
        while True:
            self._screen.prompt("arguments> ")
            line = await self._lines.ask(ANSWER_S)
            if line is None or not line.strip():
                return None
            try:
                return _decode_object(line)
            except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
                self._screen.line(f"That is no JSON object ({error}). Type it again.")

    def _show(self, approval: Approval) -> None:
        show = self._screen.line
        if approval.refused is not None:
            show(f"The change was refused: {visible(approval.refused)}")
        show(f"The assistant asks to run {visible(approval.name)} ({approval.risk} risk), with:")
        shown = json.dumps(approval.arguments, ensure_ascii=False, indent=2).split("\n")
        text = "\n".join(f"  {visible(line)}" for line in shown)
        show(text[:MAX_SHOWN])
        if len(text) > MAX_SHOWN:
            show(f"  WARNING: {len(text) - MAX_SHOWN} more characters are not shown.")
        for line in approval.preview.splitlines():
            show(f"  | {visible(line)}")
        for reason in approval.reasons:
            show(f"  - {visible(reason)}")
        if approval.risk == "high":
            show("WARNING: high risk. Look at what would be run before you allow it.")
        show(visible(approval.prompt))
        show(_choices(approval))
        show(HINT)


def _choices(approval: Approval) -> str:
    offered = [f"[{number}] {scope}" for number, scope in CHOICES.items() if scope in approval.scopes]
    return "  ".join([*offered, "[4] deny", "[5] edit"])


def _is_said(word: str) -> bool:
    # A bare "y" is taken for a slip: it approves nothing, neither here nor as speech.
    return word.casefold().rstrip(".!") not in _BARE and any(char.isalpha() for char in word)


def visible(text: str) -> str:
    """Write invisible and reordering characters as JSON escapes."""
    return "".join(
        char if char == " " or unicodedata.category(char)[0] not in "CZ" else json.dumps(char)[1:-1]
        for char in text
    )
