"""The device of scripts/tau2: runs the tools of a tau2 domain, in the package's own environment.

Each line of its standard input is a request, each line of its output an answer of the same ``id``, both JSON:
``tasks`` lists a domain's tasks, ``begin`` sets up a task's database under a key, ``call`` runs a tool there,
``end`` gives the hash of the database, and the hash that the task's reads leave with the writes of
``effects``, by number. A hash takes a child process, so that no call waits for it.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

SEPARATOR = "."
"""Between the requestor and the tool's name, in a name of the wire."""


@cache
def _tasks(domain: str) -> dict[str, Any]:
    registry = import_module("tau2.registry").registry
    return {str(task.id): task for task in registry.get_tasks_loader(domain)()}


@cache
def _first(domain: str) -> bytes:
    """Give a domain's environment before any task."""
    return pickle.dumps(import_module("tau2.registry").registry.get_env_constructor(domain)())


def _environment(domain: str, task_id: str) -> Any:
    first, state = _first(domain), _tasks(domain)[task_id].initial_state
    gc.disable()  # a collection for each thousand of the objects would take four fifths of the time
    environment = pickle.loads(first)
    gc.enable()
    environment.set_state(
        state and state.initialization_data,
        state and state.initialization_actions,
        (state and state.message_history) or [],
    )
    return environment


def _actions(task: Any) -> list[Any]:
    return (task.evaluation_criteria and task.evaluation_criteria.actions) or []


def _call(environment: Any, name: str, arguments: dict[str, Any]) -> Any:
    requestor, _, tool = name.partition(SEPARATOR)
    answer = environment.make_tool_call(tool, requestor=requestor, **arguments)
    environment.sync_tools()
    return json.loads(environment.to_json_str(answer)) if not isinstance(answer, str) else answer


def _hashes(environment: Any) -> str:
    return f"{environment.get_db_hash()} {environment.get_user_db_hash()}"


def _reads(environment: Any, action: Any) -> bool:
    kit = environment.tools if action.requestor == "assistant" else environment.user_tools
    return bool(kit.tool_type(action.name).value != "write")


def _gold(domain: str, task_id: str, effects: tuple[int, ...]) -> str:
    environment = _environment(domain, task_id)
    for number, action in enumerate(_actions(_tasks(domain)[task_id])):
        if number not in effects and not _reads(environment, action):
            continue
        with suppress(Exception):
            _call(environment, f"{action.requestor}{SEPARATOR}{action.name}", action.arguments)
    return _hashes(environment)


def _describe(domain: str) -> dict[str, Any]:
    environment = pickle.loads(_first(domain))
    tools = []
    for requestor, kit in (("assistant", environment.tools), ("user", environment.user_tools)):
        for name, tool in (kit.get_tools() if kit is not None else {}).items():
            schema = tool.openai_schema["function"]
            tools.append(
                {
                    "name": f"{requestor}{SEPARATOR}{name}",
                    "description": schema["description"][:200] or name,
                    "inputSchema": schema["parameters"],
                    "reads": kit.tool_type(name).value != "write",
                }
            )
    tasks = {
        task_id: [
            [f"{action.requestor}{SEPARATOR}{action.name}", action.arguments] for action in _actions(task)
        ]
        for task_id, task in _tasks(domain).items()
    }
    return {"tools": tools, "tasks": tasks}


def _answer(request: dict[str, Any], environments: dict[str, tuple[Any, str, str]]) -> dict[str, Any]:
    key = request.get("key", "")
    match request["do"]:
        case "tasks":
            return _describe(request["domain"])
        case "begin":
            domain, task_id = request["domain"], request["task"]
            environments[key] = (_environment(domain, task_id), domain, task_id)
        case "call":
            return {"result": _call(environments[key][0], request["name"], request["arguments"])}
        case "end":
            environment, domain, task_id = environments[key]
            gold = _gold(domain, task_id, tuple(request["effects"]))
            return {"hash": _hashes(environment), "gold": gold}
    return {}


def main() -> None:
    """Answer the requests of the standard input."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    environments: dict[str, tuple[Any, str, str]] = {}
    out, sys.stdout = sys.stdout.fileno(), sys.stderr  # the package prints
    for line in sys.stdin.buffer:
        request = json.loads(line)
        is_child = request["do"] == "end" and os.fork() == 0
        if request["do"] == "end" and not is_child:
            environments.pop(request["key"], None)
            continue
        try:
            answer = _answer(request, environments)
        except Exception as error:
            answer = {"error": str(error)[:500] or type(error).__name__}
        text = json.dumps({**answer, "id": request["id"]}, default=str).encode() + b"\n"
        while text:  # a pipe that is full takes a part
            text = text[os.write(out, text) :]
        if is_child:
            os._exit(0)


if __name__ == "__main__":
    main()
