"""The parts of the Markdown reference that no struct can say: how a connection and a conversation go."""

from __future__ import annotations

from conductor.events.reference import Facts, Reference


def introduction(reference: Reference) -> str:
    """Say what this is about, and how the file is made."""
    return f"""\
# The protocol, version {reference.protocol_version}

<!-- Made by `python -m conductor protocol --format markdown --output docs/protocol.md`; do not edit. -->

This is what a voice app and Conductor say to each other. It is made from the code of the server, which
also prints it as JSON Schema (`python -m conductor protocol --format schema`) and as an AsyncAPI 3.0
document (`--format asyncapi`).

In short: the app opens a WebSocket, sends `session.start`, and then what the person says as
`user.audio.transcript.final`. The server sends the reply as text, and asks the app by `tool.call` to
show it, to speak it, and to run tools. The app answers each call by a `tool.result`."""


def transport(facts: Facts) -> str:
    """Say how frames get from one side to the other."""
    return f"""\
## Connection

- Connect a WebSocket to `{facts.path}`, by default `ws://{facts.host}:{facts.port}{facts.path}`. Each
  text frame is one event: an object in UTF-8 JSON.
- Where the server has `AUTH_TOKENS`, send one of them before the upgrade: as the header
  `Authorization: Bearer TOKEN`; from a browser as the subprotocol `bearer.TOKEN` beside
  `{facts.subprotocol}`; or, if neither can be sent, as `?token=TOKEN`. Without a good one the answer is
  status 401.
- One connection serves one session. Its first event, as a rule `session.start`, says which. An event
  for another session is answered by the error `session_mismatch`.
- A frame that is no valid event, or that is binary, is answered by the error `invalid_event`, and the
  connection stays open. An event of a type that the server does not know is ignored; an app does well
  to do the same.
- By default an event may have {facts.max_event_bytes} bytes. A `tool.result` may be larger, and is
  shortened for the model; above {facts.hard_event_bytes} bytes the connection is closed with code 1009.
- The server sends a WebSocket ping, and the event `session.ping`, every {facts.ping_interval:g}
  seconds. It closes with code 1012 when it restarts: connect again."""


def answering(facts: Facts) -> str:
    """Say what is expected of an app that is called."""
    return f"""\
## Answering calls

- Answer every `tool.call`, UI calls too, with one `tool.result` that has its `callId`. A UI call is
  answered as soon as it is done, with any result, such as `{{"ok":true}}`; `tts.speak` when the speech
  is over or was stopped.
- The answers tell the server what has arrived and what was heard. An app that answers none of the UI
  calls is served too, without that knowledge.
- Handle calls one at a time, in the order in which they come. The time limit of a call, by default
  {facts.tool_timeout:g} seconds, begins when the one before it was answered. At most one `tts.speak` is
  under way.
- If a tool fails, give `error` in words that the model can pass on. If nobody knows whether it worked,
  say that.
- A call that is not answered in time has an *unknown* outcome: the model is told that it may have
  happened. A `tool.result` that comes later is not lost; the model hears of it in its next turn, or in
  one of its own."""


INTERRUPTING = """\
## Being interrupted

When the person speaks while the app does, stop the speech, send `audio.output.interrupted`, and then
the transcript. The running turn is ended, unless it belongs to a later speech than the one that was
stopped, and the model is told how much of its reply was heard: as `spokenText` says; else as `playedMs`
does; else that it was cut somewhere.

While the person is speaking, send `user.audio.transcript.partial`. It keeps the server from starting a
turn by itself, about a late result or an agent that has ended, in the middle of a sentence."""

TOOLS = """\
## Tools on the device

The tools that the model may have the app run are declared in one of two ways: by the server's
`DEVICE_TOOLS_FILE`, or by the app, which names the capability `tools` and lists them in
`session.start`, later in `session.update`. A declaration is a Tool of the Model Context Protocol:

| Field | Meaning |
| --- | --- |
| `name` | 1 to 128 of `A-Z a-z 0-9 _ . : / -`; not beginning with `convo.`, `tts.` or `bridge.`. Required. |
| `description` | For the model: what the tool does, and when to use it. |
| `inputSchema` | A JSON Schema of the arguments. Required. The app gets only arguments that fit it. |
| `annotations.readOnlyHint` | The tool changes nothing: a lost call may be made again. |
| `annotations.destructiveHint` | What the tool does cannot be undone. |
| `_meta.conductor.timeoutMs` | How long a call may take, in milliseconds. |
| `_meta.conductor.interactive` | A person acts in it: it may take minutes. |
| `_meta.conductor.onInterrupt` | `cancel` or `keep`: what an interruption does to a running call. |
| `_meta.conductor.mode` | `sync`, or `async`: a call may go on as a job (capability `async`). |
| `_meta.conductor.approval` | `never` or `ask`: whether a person is asked first. The server's rules win. |

A tool that is not accepted is named in `rejectedTools` with the reason, and costs the others nothing.
The declared tools belong to the session and outlive the connection."""


def reconnecting(facts: Facts) -> str:
    """Say what becomes of a session whose connection is lost."""
    return f"""\
## Losing the connection

A session outlives its connections, by default for {facts.session_grace:g} seconds after the last one.
Connect again and send `session.start` with the same `sessionId`: `session.started` then says
`"resumed": true`, and what the app has not acknowledged is sent again, **with its original event ids**.
So keep the ids of the events that were handled, some thousands of them, and pass over an event whose id
is among them: else a tool would run twice.

A call that changes something, and may have reached the app before, is sent again only to an app with the
capability `resume` that says in `session.start` what it knows. From any other its answer is still waited
for. Events of the app that it is not sure about may be sent again with their original ids:
each is taken once.

Where two connections serve one session, the newer one gets the events. The older one stays open and
silent; a transcript that comes by it takes the session back. Where the app has the capability `resume`,
the older one is closed with code 4409 instead: do not connect again then."""


EXTENDING = """\
## Capabilities

What is beyond the base of the protocol is for clients that ask for it: name the extensions in
`capabilities` of `session.start`. `session.started` repeats those that this version accepts, which are
the ones below; events and fields that belong to others are neither sent nor acted upon."""
