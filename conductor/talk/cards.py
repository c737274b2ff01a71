"""Cards: what a call that needs consent looks like at the terminal, and what a typed answer decides."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from conductor.client.approvals import Approval, ApprovalDecision, Scope, allow, deny

# Characters of the arguments that are shown; the rest is counted in a warning.
MAX_SHOWN = 16_384
_SCOPES: dict[str, Scope] = {"y": "once", "s": "session", "a": "always"}
_WORDS = {"yes": "y", "no": "n", "edit": "e"}
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


def card(approval: Approval) -> RenderableType:
    """Draw a request: the tool, all its arguments, what it would do, the risk, the reasons, and the keys."""
    high = approval.risk == "high"
    lines = [Text(visible(approval.prompt)), Text(f"{visible(approval.name)} ({approval.risk} risk), with:")]
    shown = json.dumps(approval.arguments, ensure_ascii=False, indent=2).split("\n")
    text = "\n".join(f"  {visible(line)}" for line in shown)
    lines.append(Text(text[:MAX_SHOWN], style="bold"))
    if len(text) > MAX_SHOWN:
        lines.append(Text(f"WARNING: {len(text) - MAX_SHOWN} more characters are not shown."))
    lines += [Text(f"| {visible(line)}") for line in approval.preview.split("\n") if line]
    lines += [Text(f"- {visible(reason)}", style="dim") for reason in approval.reasons]
    if high:
        lines.append(Text("WARNING: high risk. Look at what would be run before you allow it.", style="bold"))
    if approval.refused is not None:
        lines.append(Text(f"The change was refused: {visible(approval.refused)}", style="bold"))
    lines.append(Text(keys(approval)))
    return Panel(Group(*lines), title="May it run?", border_style="red" if high else "yellow")


def keys(approval: Approval) -> str:
    """Say which answers there are."""
    scopes = [f"{key} {scope}" for key, scope in _SCOPES.items() if scope in approval.scopes]
    return ", ".join([*scopes, "n [why] deny", "e edit"]) + "; a sentence is said to the assistant."


def decide(line: str, approval: Approval) -> ApprovalDecision | None:
    """Read an answer; None for what is no key of this card. `wants_edit` reads the edit's."""
    key, _, words = line.strip().partition(" ")
    key = _WORDS.get(key.casefold(), key.casefold())
    scope = _SCOPES.get(key)
    if scope in approval.scopes and not words:
        return allow(scope)
    # "no problem, go on" is a sentence; only the key takes words.
    if key == "n" and (not words or line.strip()[1] == " "):
        return deny(words.strip() or None)
    return None


def wants_edit(line: str) -> bool:
    """Tell whether an answer asks for other arguments."""
    return line.strip().casefold() in ("e", "edit")


def is_said(line: str) -> bool:
    """Tell a sentence or a command from a slip of one key."""
    return len(line.strip()) > 1 and any(char.isalpha() for char in line)


def arguments_text(arguments: dict[str, Any]) -> str:
    """Write arguments on one line, to be edited."""
    return visible(json.dumps(arguments, ensure_ascii=False))


def read_arguments(text: str) -> dict[str, Any]:
    """Read edited arguments. Raises `ValueError` for what is no JSON object."""
    try:
        return _decode_object(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def visible(text: str) -> str:
    """Write invisible and reordering characters as JSON escapes."""
    return "".join(
        char if char == " " or unicodedata.category(char)[0] not in "CZ" else json.dumps(char)[1:-1]
        for char in text
    )
