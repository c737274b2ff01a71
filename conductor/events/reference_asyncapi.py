"""The wire as an AsyncAPI 3.0 document, for tools that make documentation or code of one.

The application that it describes is the server: it *receives* what a client sends
(https://www.asyncapi.com/docs/reference/specification/v3.0.0).
"""

from __future__ import annotations

from conductor.events.reference import Event, Facts, Json, Reference
from conductor.events.reference_capabilities import CAPABILITIES
from conductor.events.reference_schema import definitions_of

VERSION = "3.0.0"
_CHANNEL = "session"


def asyncapi(reference: Reference) -> Json:
    """Make the document."""
    facts = reference.facts
    return {
        "asyncapi": VERSION,
        "info": {
            "title": "Conductor",
            "version": facts.version,
            "description": (
                "What a voice app and the Conductor server say to each other over a WebSocket: "
                f"protocol version {reference.protocol_version}."
            ),
        },
        "defaultContentType": "application/json",
        "servers": {"local": _server(facts)},
        "channels": {_CHANNEL: _channel(reference)},
        "operations": {
            "receiveClientEvents": _operation("receive", "What a client sends.", reference.sent_by("client")),
            "sendServerEvents": _operation("send", "What the server sends.", reference.sent_by("server")),
        },
        "components": {
            "messages": {event.type: _message(event, reference) for event in reference.events},
            "schemas": definitions_of(reference, "#/components/schemas/"),
            "securitySchemes": _security_schemes(facts),
        },
    }


def _server(facts: Facts) -> Json:
    return {
        "host": f"{facts.host}:{facts.port}",
        "protocol": "ws",
        "description": "Where a server listens unless it is told otherwise; wss behind a proxy with TLS.",
        "security": [{"$ref": f"#/components/securitySchemes/{name}"} for name in _security_schemes(facts)],
    }


def _security_schemes(facts: Facts) -> Json:
    return {
        "bearer": {
            "type": "http",
            "scheme": "bearer",
            "description": (
                "One of the server's AUTH_TOKENS; nothing where none are set. Browsers send it as the "
                f"subprotocol bearer.TOKEN beside {facts.subprotocol}."
            ),
        },
        "query": {
            "type": "httpApiKey",
            "in": "query",
            "name": "token",
            "description": "The same, from a client that can send neither a header nor a subprotocol.",
        },
    }


def _channel(reference: Reference) -> Json:
    return {
        "address": reference.facts.path,
        "description": "One connection serves one session; each text frame is one event, UTF-8 JSON.",
        "messages": {
            event.type: {"$ref": f"#/components/messages/{event.type}"} for event in reference.events
        },
        "bindings": {"ws": {"method": "GET", "bindingVersion": "0.1.0"}},
    }


def _operation(action: str, summary: str, events: tuple[Event, ...]) -> Json:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{_CHANNEL}"},
        "summary": summary,
        # An operation's messages must be the channel's, not the components', says the specification.
        "messages": [{"$ref": f"#/channels/{_CHANNEL}/messages/{event.type}"} for event in events],
    }


def _message(event: Event, reference: Reference) -> Json:
    message: Json = {
        "name": event.type,
        "title": event.type,
        "summary": event.summary,
        "description": event.description,
        "contentType": "application/json",
        "payload": {"$ref": f"#/components/schemas/{event.type}"},
        "examples": [{"name": event.type, "payload": event.example}],
    }
    if event.type == "tool.call":
        message["x-ui-calls"] = {
            call.name: {"description": call.description, "arguments": call.arguments}
            for call in reference.ui_calls
        }
        message["x-states"] = dict(reference.states)
    if event.type == "error":
        message["x-error-codes"] = dict(reference.codes)
    if event.type == "session.start":
        message["x-capabilities"] = {
            name: CAPABILITIES.get(name, "") for name in reference.facts.capabilities
        }
    return message
