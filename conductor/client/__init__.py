"""A client of the Conductor's protocol that behaves like a well-made voice app.

::

    async with connect("ws://127.0.0.1:8080/ws", locale="en") as client:
        client.on("assistant.speech.partial", lambda event: print(event.text))
        turn = await client.say("is the kitchen lamp on")
        result = await turn
        print(result.text, result.calls)

See docs/clients/python.md.
"""

from conductor.client.approvals import Approval, ApprovalDecision, allow, deny, edit
from conductor.client.calls import ToolCancelledError, ToolRun
from conductor.client.client import Client, connect
from conductor.client.connection import (
    CannotConnect,
    ClientError,
    ClientLimits,
    ConnectionLost,
    GaveUp,
    Lost,
    Reconnect,
    Reconnected,
    StartRefused,
    TryFailed,
    UnknownEvent,
    WaitTimeout,
)
from conductor.client.turns import Turn, TurnResult

__all__ = [
    "Approval",
    "ApprovalDecision",
    "CannotConnect",
    "Client",
    "ClientError",
    "ClientLimits",
    "ConnectionLost",
    "GaveUp",
    "Lost",
    "Reconnect",
    "Reconnected",
    "StartRefused",
    "ToolCancelledError",
    "ToolRun",
    "TryFailed",
    "Turn",
    "TurnResult",
    "UnknownEvent",
    "WaitTimeout",
    "allow",
    "connect",
    "deny",
    "edit",
]
