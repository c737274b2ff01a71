"""The command line: the table of the commands and their arguments, and `main`."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from conductor.errors import SettingsError, StoreUnavailable
from conductor.logs import configure_logs
from conductor.version import __version__

GROUPS = {
    "tools": "list and call tools",
    "mcp": "log in to MCP servers, and serve MCP",
    "rehearse": "play conversations from files as tests, and record them",
    "policy": "list and explain the operator's rules and presets",
    "sessions": "list, show, replay, export, delete, back up and restore stored sessions",
    "webhooks": "list the webhooks that were given up",
}
# Command -> its help, its function, and its arguments. Only the module of the given command is imported.
COMMANDS = {
    "serve": (
        "run the server (the default)",
        ".serve:serve",
        "--host --port --provider --model --log-level --insecure-no-auth --lan --workers --worker",
    ),
    "talk": (
        "talk to a running server from the terminal",
        "..talk.terminal:run",
        "text* --tools --script --json --url --host --port --token --session",
    ),
    "check": (
        "check the settings and every service that they name",
        ".check:run",
        "--host --port --provider --model --offline --insecure-no-auth --json",
    ),
    "verify-client": (
        "test an app against a scripted server",
        ".verify_client:run",
        "--host --port --seed --patience",
    ),
    "tools list": ("list the tools, and the decision on each", ".tools:list_tools", "--json"),
    "tools call": ("call a tool of the server, by the same rules", ".tools:call", "tool arguments --yes"),
    "mcp login": ("log in to a server with OAuth, in a browser", ".mcp:login", "name"),
    "mcp serve": (
        "serve the tools of a session (default: the newest) on standard input and output",
        ".mcp:serve",
        "--url --token --session",
    ),
    "mcp token": ("print the tokens of programs that use this server by MCP", ".mcp:token", ""),
    "policy list": ("list the rules, and problems with them", ".policy:list_rules", "--json"),
    "policy presets": ("show what each preset allows for the tools at hand", ".policy:presets", "--json"),
    "policy explain": ("explain the decision on a call", ".policy:explain", "tool arguments --tainted"),
    "sessions list": ("list sessions by subject and id", ".sessions:list_sessions", "--subject --json"),
    "sessions show": (
        "print the state of a session as JSON, with the conversation",
        ".sessions:show",
        "session --subject",
    ),
    "sessions replay": (
        "print the records since the last snapshot of a session (up to 64 commits) in order: time (UTC), "
        "number, name and fields; below each, the events that it showed the client",
        ".sessions:replay",
        "session --text --subject",
    ),
    "sessions export": (
        "write the state of each session as a line of JSON, with the conversation",
        ".sessions:export",
        "-o/--output --force --subject",
    ),
    "sessions delete": (
        "delete a session, or all data of a subject with its permissions; a server that has it is fenced",
        ".sessions:delete",
        "session? --all --yes --subject",
    ),
    "sessions backup": (
        "copy the SQLite store to a file, while servers use it",
        ".sessions:back_up",
        "file --force",
    ),
    "sessions restore": (
        "make a backup the SQLite store, while no server runs",
        ".sessions:restore",
        "file --force",
    ),
    "webhooks dead": ("list the events that the app's backend did not take in time", ".webhooks:dead", ""),
    "rehearse init": (
        "write a first rehearsal, which runs at once",
        "..rehearse.command:init",
        "file? --force",
    ),
    "rehearse run": (
        "play rehearsals, and compare the results with the expectations",
        "..rehearse.command:run",
        "files --runs --threshold --model --person --judge --junit --seed --patience",
    ),
    "rehearse record": (
        "write the turns since the last snapshot of a stored session as a rehearsal, with all texts",
        "..rehearse.record:run",
        "session --subject -o/--output --force",
    ),
    "completion": ("print the completion of a shell, to be read by it", ".completion:run", "shell"),
}
_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "--all": {"action": "store_true", "help": "delete all data of the subject"},
    "--force": {"action": "store_true", "help": "replace an existing file"},
    "--host": {"metavar": "ADDRESS", "help": "the server's address (HOST)"},
    "--insecure-no-auth": {"action": "store_true", "help": "accept other machines without AUTH_TOKENS"},
    "--json": {"action": "store_true", "help": "print JSON"},
    "--judge": {"metavar": "MODEL", "help": "the model that answers judge questions"},
    "--person": {"metavar": "MODEL", "help": "the model that plays the person of a file"},
    "--junit": {"type": Path, "metavar": "OUT.xml", "help": "also write JUnit XML"},
    "--lan": {
        "action": "store_true",
        "help": "listen on the local network with a new token; prints the address and a QR code",
    },
    "--log-level": {"metavar": "LEVEL", "help": "debug, info, warning or error (LOG_LEVEL)"},
    "--model": {"help": "the model (ANTHROPIC_MODEL, OPENAI_MODEL)"},
    "--offline": {"action": "store_true", "help": "do not connect to the models' services and MCP servers"},
    "-o/--output": {"type": Path, "metavar": "FILE", "help": "write to this file"},
    "--patience": {"type": float, "metavar": "SECONDS", "help": "time limit of a step"},
    "--port": {"help": "the server's port (PORT)"},
    "--provider": {"help": "model provider (MODEL_PROVIDER)"},
    "--runs": {"type": int, "default": 1, "help": "times to play each file; prints how many passed"},
    "--script": {
        "type": argparse.FileType(encoding="utf-8"),
        "metavar": "FILE",
        "help": "send the lines of a file, each after the previous answer, and exit",
    },
    "--seed": {"type": int, "default": 1, "help": "seed of random choices (%(default)s)"},
    "--session": {"metavar": "ID", "help": "the session's id"},
    "--subject": {"help": "the session's subject; required if the id is ambiguous"},
    "--tainted": {"action": "store_true", "help": "as if the conversation contained text of third parties"},
    "--text": {"action": "store_true", "help": "also print texts and arguments"},
    "--threshold": {
        "type": float,
        "default": 1.0,
        "metavar": "RATE",
        "help": "passed runs of each file for exit code 0, for example 0.9 (%(default)s: all)",
    },
    "--token": {"help": "the server's token (without --url: the first of AUTH_TOKENS)"},
    "--tools": {
        "type": Path,
        "metavar": "FILE",
        "help": "declare the tools of this file, and give the answers in it",
    },
    "--url": {"help": "the WebSocket of a running server"},
    "--worker": {"type": int, "help": argparse.SUPPRESS},  # how `--workers` starts each of them
    "--workers": {"help": "processes that share the port (WORKERS)"},
    "--yes": {"action": "store_true", "help": "do not ask"},
    "arguments": {"nargs": "?", "default": "{}", "help": "the call's arguments as JSON ({})"},
    "file?": {"nargs": "?", "type": Path, "default": "rehearsal.yaml", "help": "the file (%(default)s)"},
    "file": {"type": Path, "metavar": "FILE", "help": "the backup"},
    "files": {"nargs": "+", "type": Path, "metavar": "FILE", "help": "a rehearsal, as YAML"},
    "name": {"help": "the server's name in mcp.json"},
    "shell": {"choices": ("bash", "zsh", "tcsh"), "help": "bash, zsh or tcsh"},
    "session": {"help": "the session's id"},
    "session?": {"nargs": "?", "help": "the session's id"},
    "text*": {"nargs": "*", "metavar": "TEXT", "help": "send this text and exit after the answer"},
    "tool": {"help": "the tool's name"},
}
_OWN_HELP = {
    ("talk", "--json"): "print the server's events as JSON, one a line",
    ("rehearse run", "--model"): "the model that answers (PROFILE or PROVIDER:MODEL)",
    ("sessions list", "--subject"): "only the sessions of this subject",
    ("sessions export", "--subject"): "only the sessions of this subject",
    (
        "sessions delete",
        "--subject",
    ): "the subject; required with --all, and if the id is ambiguous",
}


def argument_of(command: str, argument: str) -> Mapping[str, Any]:
    """Return the keywords of an argument of a command, for `argparse`; it may mean something else to one."""
    own = _OWN_HELP.get((command, argument))
    return _ARGUMENTS[argument] if own is None else {**_ARGUMENTS[argument], "help": own}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code, which is 2 for a user's mistake."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    elif not words or (words[0].startswith("-") and words[0] not in ("-h", "--help", "--version")):
        words.insert(0, "serve")
    parser = _parser()
    if unknown := _unknown_command(words):
        parser.error(unknown)
    options = parser.parse_args(words)
    module, _, function = COMMANDS[options.command][1].partition(":")
    if isinstance(sys.stdout, io.TextIOWrapper):  # of a terminal that lacks a character
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if options.command != "serve":
            configure_logs("error", "console", cache=False)
        code = getattr(import_module(module, "conductor.commands"), function)(options)
        sys.stdout.flush()
        return code or 0
    except BrokenPipeError:  # the reader has closed the pipe, as in ``check | head``
        # The flush at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # the exit code of a process that SIGPIPE ends
    except (SettingsError, StoreUnavailable) as error:
        print(f"conductor: {error}", file=sys.stderr)  # noqa: T201 -- output of the command line
        return error.exit_code if isinstance(error, SettingsError) else 2
    except KeyboardInterrupt:
        return 130


def _unknown_command(words: Sequence[str]) -> str:
    """Return the mistake in the name of a command; empty for a known one."""
    known = {tuple(name.split()[: number + 1]) for name in COMMANDS for number in (0, 1)}
    for number, word in enumerate(words[:2]):
        names = [name[number] for name in known if len(name) > number and name[:number] == (*words[:number],)]
        if word.startswith("-") or not names or word in names:
            continue
        given = " ".join(words[: number + 1])
        near = get_close_matches(word, names, 1)
        return f"no such command: {given}" + (f"; did you mean {near[0]}?" if near else "")
    return ""


class _Parser(argparse.ArgumentParser):
    # Exits with one sentence instead of the usage text.
    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith("?") else f"; see {self.prog} --help."
        self.exit(2, f"conductor: {message}{end}\n")


def _parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = _Parser(
        prog="conductor",
        description="A WebSocket server between a voice app and a language model.",
        epilog="The default command is serve. Settings come from the environment and .env.",
    )
    parser.add_argument("--version", action="version", version=f"conductor {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    groups = {}
    for name, (about, _, arguments) in COMMANDS.items():
        group, _, action = name.partition(" ")
        if action and group not in groups:
            parent = commands.add_parser(group, help=GROUPS[group], description=f"{GROUPS[group]}.")
            groups[group] = parent.add_subparsers(metavar="COMMAND", required=True)
        parsers, word = (groups[group], action) if action else (commands, name)
        command = parsers.add_parser(word, help=about, description=f"{about[:1].upper()}{about[1:]}.")
        command.set_defaults(command=name)
        if name == "completion":
            command.set_defaults(parser=parser)
        for argument in arguments.split():
            names = argument.rstrip("?*").split("/")
            shown = {} if argument.startswith("-") else {"metavar": names[0].upper()}
            command.add_argument(*names, **{**shown, **argument_of(name, argument)})
    return parser
