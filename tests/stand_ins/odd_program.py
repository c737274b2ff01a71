"""An MCP server on standard input and output that dies at a step of a call.

``python odd_program.py STEP FILE``: it notes in the file that it did the work. Written by hand, it starts
in a tenth of a second.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

STEPS = {
    # step: whether the work is done
    "dies before": False,
    "dies after": True,
    "dies in its answer": True,
    "hangs before": False,
    "hangs after": True,
    "answers": True,
    "answers half a surrogate": True,
    "answers no result": True,
    "answers no message": True,
    "fails after": True,
    "refuses": False,
}
INITIALIZED = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "odd", "version": "1"},
}
TOOLS = {"tools": [{"name": "write", "inputSchema": {"type": "object"}}]}


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def answer(request_id: Any, **fields: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": request_id, **fields}) + "\n"


def call(step: str, file: Path, request_id: Any) -> None:
    if STEPS[step]:
        file.write_text("did it")
    result = answer(request_id, result={"content": [{"type": "text", "text": "done"}]})
    match step:
        case "dies before" | "dies after":
            os._exit(1)
        case "dies in its answer":
            write(result[:40])
            os._exit(1)
        case "hangs before" | "hangs after":
            threading.Event().wait()
        case "answers half a surrogate":
            write(result.replace("done", "\\ud83d"))
        case "answers no result":
            write(answer(request_id, result={"content": 7}))
        case "answers no message":
            write("done\n")
            os._exit(1)
        case "fails after":
            write(answer(request_id, error={"code": -32603, "message": "It broke"}))
        case "refuses":
            write(answer(request_id, error={"code": -32602, "message": "No such room"}))
        case _:
            write(result)


def main(step: str, file: Path) -> None:
    """Answer requests until the input ends."""
    for line in sys.stdin:
        message = json.loads(line)
        match message.get("method"):
            case "initialize":
                write(answer(message["id"], result=INITIALIZED))
            case "tools/list":
                write(answer(message["id"], result=TOOLS))
            case "tools/call":
                call(step, file, message["id"])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
