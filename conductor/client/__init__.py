"""A client of the Conductor's protocol that behaves like a well-made voice app.

::

    async with connect("ws://127.0.0.1:8080/ws", locale="en") as client:

        @client.on_tool("repositories.list")
        def repositories(arguments):
            return {"repositories": ["acme/website"]}

        client.on("assistant.speech.partial", lambda event: print(event.text))
        turn = await client.say("list my repositories")
        result = await turn  # until the server says idle
        print(result.text, result.calls)

What needs a person's consent is asked through ``connect(on_approval=handler)``; a tool's handler with a
second parameter is given a `ToolRun`, to report progress, hear of a cancellation, or become a job.

Inbound events are handled one at a time; what the server asks of the app's screen and voice (``convo.*``,
``tts.speak``) is acknowledged without further ado. When the connection is lost, turns wait for the next one,
which ``connect(reconnect=Reconnect())`` opens by itself, and `Client.reconnect` by hand; what may not have
reached the server is sent again then, and no call is run twice. docs/client.md tells more.
"""

from conductor.client.approvals import Approval, ApprovalDecision, ApprovalHandler, allow, deny, edit
from conductor.client.calls import SpeakHandler
from conductor.client.client import Client
from conductor.client.connecting import connect
from conductor.client.errors import CannotConnect, ClientError, ConnectionLost, StartRefused, WaitTimeout
from conductor.client.frames import Event, Received, UnknownEvent
from conductor.client.listeners import Callback, EventStream
from conductor.client.options import ClientLimits, ClientOptions
from conductor.client.reconnect import GaveUp, Lost, Reconnect, Reconnected, TryFailed
from conductor.client.runs import ToolCancelledError, ToolHandler, ToolRun
from conductor.client.turn import CalledTool, Turn, TurnResult

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
    "ClientOptions",
    "ConnectionLost",
    "Event",
    "EventStream",
    "GaveUp",
    "Lost",
    "Received",
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
