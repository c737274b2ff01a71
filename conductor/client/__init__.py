"""A client of the Conductor's protocol that behaves like a well-made voice app.

::

    async with connect("ws://127.0.0.1:8080/ws", locale="en") as client:

        @client.on_tool("lamp.status")
        def status(arguments):
            return {"on": True}

        client.on("assistant.speech.partial", lambda event: print(event.text))
        turn = await client.say("is the kitchen lamp on")
        result = await turn  # until the server says idle
        print(result.text, result.calls)

``connect(on_approval=handler)`` puts calls that need consent to the person. A second parameter of a tool's
handler receives a `ToolRun`, which reports progress, signals a cancellation, and starts a job.

Inbound events are handled one at a time. The library answers UI calls (``convo.*``, ``tts.speak``).
After a lost connection ``connect(reconnect=Reconnect())`` reconnects automatically, `Client.reconnect` on
demand. Unconfirmed events are then sent again, and no call runs twice. See docs/clients/python.md.
"""

from conductor.client.approvals import Approval, ApprovalDecision, ApprovalHandler, allow, deny, edit
from conductor.client.calls import SpeakHandler, ToolCancelledError, ToolHandler, ToolRun
from conductor.client.client import Callback, Client, connect
from conductor.client.connection import (
    CannotConnect,
    ClientError,
    ClientLimits,
    ConnectionLost,
    Event,
    GaveUp,
    Lost,
    Reconnect,
    Reconnected,
    StartRefused,
    TryFailed,
    UnknownEvent,
    WaitTimeout,
)
from conductor.client.turns import CalledTool, Turn, TurnResult

__all__ = [
    "Approval",
    "ApprovalDecision",
    "ApprovalHandler",
    "CalledTool",
    "Callback",
    "CannotConnect",
    "Client",
    "ClientError",
    "ClientLimits",
    "ConnectionLost",
    "Event",
    "GaveUp",
    "Lost",
    "Reconnect",
    "Reconnected",
    "SpeakHandler",
    "StartRefused",
    "ToolCancelledError",
    "ToolHandler",
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
