"""A client of the Conductor's protocol that behaves like a well-made voice app.

::

    async with connect("ws://127.0.0.1:8080/ws", locale="en") as client:

        @client.on_tool("repositories.list")
        def repositories(arguments):
            return {"repositories": ["https://github.com/acme/website"]}

        client.on("assistant.speech.partial", lambda event: print(event.text))
        turn = await client.say("list my repositories")
        result = await turn  # until the server says idle
        print(result.text, result.calls)

``connect(on_approval=handler)`` asks the person about calls that need consent. A tool's handler with a second
parameter is given a `ToolRun`: to report progress, to learn of a cancellation, or to become a job.

Inbound events are handled one at a time; UI calls (``convo.*``, ``tts.speak``) are answered by the library.
When the connection is lost, turns wait for the next one: ``connect(reconnect=Reconnect())`` reconnects
automatically, `Client.reconnect` on demand. Events that may have been lost are sent again then, and no call
is run twice. See docs/clients/python.md.
"""

from conductor.client.approvals import Approval, ApprovalDecision, ApprovalHandler, allow, deny, edit
from conductor.client.calls import SpeakHandler, ToolCancelledError, ToolHandler, ToolRun
from conductor.client.client import Client, connect
from conductor.client.errors import CannotConnect, ClientError, ConnectionLost, StartRefused, WaitTimeout
from conductor.client.events import Callback, Event, EventStream, Received, UnknownEvent
from conductor.client.options import ClientLimits, ClientOptions
from conductor.client.reconnect import GaveUp, Lost, Reconnect, Reconnected, TryFailed
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
