"""Cards: approval requests at the terminal, and the decisions that people type."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from conductor.client.approvals import Approval, ApprovalDecision, Scope, allow, deny
from conductor.commands.output import as_json, escape

# Visible characters of the arguments; a warning counts the others.
MAX_VISIBLE = 16_384
_SCOPES: dict[str, Scope] = {"y": "once", "s": "session", "a": "always"}
_WORDS = {"yes": "y", "no": "n", "edit": "e"}
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


def card(approval: Approval) -> RenderableType:
    """Draw a request: the tool, its arguments, the preview, the risk, the reasons, and the keys."""
    arguments = as_json(approval.arguments, 2)
    parts: list[RenderableType] = [
        Text(escape(approval.prompt)),
        Padding(Text(arguments[:MAX_VISIBLE], style="bold"), (0, 0, 0, 2)),
    ]
    if len(arguments) > MAX_VISIBLE:
        parts.append(Text(f"WARNING: {len(arguments) - MAX_VISIBLE} more characters are hidden."))
    if approval.preview:
        parts.append(Padding(Text(escape(approval.preview.strip("\n"), "\n")), (0, 0, 0, 2)))
    parts += [Text(f"- {escape(reason)}", style="dim") for reason in approval.reasons]
    if approval.refused is not None:
        parts.append(Text(f"The change was refused: {escape(approval.refused)}", style="bold"))
    parts.append(Text(keys(approval)))
    title = Text(f"{escape(approval.name)}, {approval.risk} risk")
    style = "red" if approval.risk == "high" else "yellow"
    return Panel(Group(*parts), title=title, title_align="left", border_style=style)


def keys(approval: Approval) -> str:
    """List the possible answers."""
    scopes = [f"{key} {scope}" for key, scope in _SCOPES.items() if scope in approval.scopes]
    return ", ".join([*scopes, "n [why] deny", "e edit"]) + "; or say it in words"


def decide(line: str, approval: Approval) -> ApprovalDecision | Literal["edit", "words"] | None:
    """Parse an answer: a decision, ``edit``, or ``words`` for other text; None for a typing error."""
    line = line.strip()
    key, _, reason = line.partition(" ")
    key = _WORDS.get(key.casefold(), key.casefold())
    scope = _SCOPES.get(key)
    if scope is not None and scope in approval.scopes and not reason:
        return allow(scope)
    if key == "e" and not reason:
        return "edit"
    # "no problem, go on" is a sentence; only the key accepts a reason.
    if key == "n" and (not reason or line[1] == " "):
        return deny(reason.strip() or None)
    return "words" if len(line) > 1 and any(map(str.isalpha, line)) else None


def read_arguments(text: str) -> dict[str, Any]:
    """Parse edited arguments. Raises `ValueError` for anything but a JSON object."""
    try:
        return _decode_object(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise ValueError(str(error)) from None
