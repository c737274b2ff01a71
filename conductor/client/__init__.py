"""A client of the Conductor's protocol, for voice apps in Python; see docs/clients/python.md."""

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
