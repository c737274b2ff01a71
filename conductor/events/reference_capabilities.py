"""What each of the protocol's extensions is for, in Markdown, and how the digest of an approval is made."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

CAPABILITIES: Mapping[str, str] = MappingProxyType(
    {
        "approval": (
            "A call that needs a person's consent waits while the app shows it. The server sends an "
            "`approval.request` for each such call, the client an `approval.response` with one decision or "
            "several, and the server says what came of each in `approval.resolved`: also when nobody "
            "answered in time (`expired`), and when the person went on to something else (`superseded`). "
            "A client without it is asked aloud, and answers by voice."
        ),
        "resume": (
            "When it comes back, the client sends in `session.start` what it knows: the last event that it "
            "has handled, the calls that it has run, and those that it is still running. The server says in "
            "`session.started` which results it wants again (`resend`), and which calls nobody waits for any "
            "more (`drop`); all other results are taken by then. What the client has not seen follows, under "
            "the original ids. Calls that change something are among it, so a `callId` must never be run "
            "twice; and a process that knows nothing of the session leaves `resume` out. `event.ack` names "
            "the transcripts, results and other events of the client that are recorded; until then it keeps "
            "its transcripts and results, and sends them again, under the same ids, when it comes back. A "
            "second socket for the session closes the first with 4409."
        ),
        "tools": (
            "The app declares its own tools, in `session.start` and later in `session.update`. The server "
            "says in `session.started` and `tools.changed` which of them it offers to the model, and why "
            "not the others."
        ),
        "cancel": (
            "The client ends a turn by `response.cancel`. The server sends `tool.cancel` for a call whose "
            "result it no longer waits for, and the client says in `tool.cancelled` how much of it took "
            "effect, so that the model claims neither too much nor too little."
        ),
        "lease": (
            "The time limit of a call counts silence: the client sends `tool.started` when it begins with a "
            "call, and `tool.progress` while it is at it, and with each of these the limit starts anew. The "
            "server says in `timeoutMs` of `tool.call` how long it is."
        ),
        "late": (
            "The client sends a `tool.result` as ever, if need be after the time limit; it is used from "
            "every client. With this capability the server confirms it by `tool.late`, which says how the "
            "model gets to read it."
        ),
        "async": (
            "The client answers a call that takes long by `tool.accepted`: the turn goes on without the "
            "result. The client sends the `tool.result`, with the same `callId`, when the job is done, and "
            "the server tells of it in a later turn, once the conversation is idle."
        ),
        "activity": (
            "The client sends nothing. The server sends `tool.activity` when a tool begins and when it "
            "ends, wherever it runs, for an app that shows what is under way."
        ),
    }
)
"""Capability -> what the client and the server send with it (protocol, "Extensions")."""


def digesting(request: Mapping[str, Any]) -> str:
    """Say how ``argumentsDigest`` is made; ``request`` is the payload of an example."""
    return f"""\
### The digest of an approval

A decision counts only for the arguments that were shown: it repeats the `argumentsDigest` of the
request, an `edit` too. An app need not compute it. One that wants to be sure that it shows what will be
run makes the SHA-256, in lower-case hexadecimal, of these bytes:

1. the tool's `name` in UTF-8,
2. a line feed (U+000A),
3. `arguments` as canonical JSON: UTF-8 without spaces or line feeds; the keys of each object, at any
   depth, sorted by code point; numbers written as they stand in the request; strings with no escapes
   but `\\"`, `\\\\`, `\\b`, `\\f`, `\\n`, `\\r`, `\\t`, and, for other characters below U+0020, such as
   `\\u001f` in lower case. A slash is not escaped.

Where the server shows `[REDACTED:kind]` in `arguments` instead of a secret, the digest is still that of
the true arguments: the app cannot compute it, and should offer no edit, which would replace the secret.

For the example of `approval.request` the digest of these two lines, without a line feed at the end,

```
{request["name"]}
{_canonical(request["arguments"])}
```

is `{request["argumentsDigest"]}`."""


def _canonical(value: Any) -> str:
    return msgspec.json.encode(value, order="sorted").decode()
