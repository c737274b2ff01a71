"""The command line: ``serve`` (the default), ``talk``, ``rehearse`` and `conductor.commands`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from conductor import __version__
from conductor.errors import SettingsError

if TYPE_CHECKING:
    from conductor.server.listener import Listener
    from conductor.settings import Settings

_Run: TypeAlias = Callable[[argparse.Namespace], int]

# Only the module of the given command is imported.
_COMMANDS = {
    "serve": "run the server (the default)",
    "talk": "talk to a running server from the terminal",
    "models": "list models, test their capabilities, and measure them",
    "tools": "list, disable, enable and call tools",
    "mcp": "list, add, remove and test MCP servers",
    "knowledge": "index the documents of the knowledge base",
    "check": "check the settings and every service that they name",
    "policy": "list, change and explain the operator's rules",
    "sessions": "list, show, export and delete stored sessions, and print their events",
    "protocol": "print the events of the protocol and their schemas",
    "rehearse": "play conversations from files, and compare the results",
    "verify-client": "test an app against a scripted server",
}

_STOPPING = "Stopping: waiting up to 30 s for {}. Ctrl-C again stops at once."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code, which is 2 for a user's mistake."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] not in (*_COMMANDS, "-h", "--help", "--version"):
        words.insert(0, "serve")
    options, run = _parse(words)
    try:
        code = run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader has closed the pipe, as in ``check | head``
        # The flush at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # the exit code of a process that SIGPIPE ends
    except SettingsError as error:
        print(f"conductor: {error}", file=sys.stderr)  # noqa: T201 -- output of the command line
        return error.exit_code
    except KeyboardInterrupt:
        return 130


class _Parser(argparse.ArgumentParser):
    # Exits with one sentence instead of the usage text.
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"conductor: {message}; see --help.\n")


def _parse(words: Sequence[str]) -> tuple[argparse.Namespace, _Run]:
    parser = _Parser(
        prog="conductor",
        description="A WebSocket server between a voice app and a language model.",
        epilog="The default command is serve. Settings come from the environment and .env; see .env.example.",
    )
    parser.add_argument("--version", action="version", version=f"conductor {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    parsers = {name: commands.add_parser(name, help=summary) for name, summary in _COMMANDS.items()}
    run: _Run = _serve
    if words[0] == "serve":
        _add_serve_arguments(parsers["serve"])
    elif words[0] == "talk":
        from conductor.talk import terminal

        terminal.add_arguments(parsers["talk"])
        run = _talk
    elif words[0] == "rehearse":
        from conductor.rehearse import command, record

        rehearse = record if words[1:2] == ["record"] else command
        rehearse.add_arguments(parsers["rehearse"])
        run = rehearse.run
    elif words[0] in parsers:
        module = import_module(f"conductor.commands.{words[0].replace('-', '_')}")
        module.add_arguments(parsers[words[0]])
        run = module.run
    return parser.parse_args(words), run


def _add_serve_arguments(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--host", help="address to listen on (HOST)")
    serve.add_argument("--port", help="port to listen on (PORT)")
    serve.add_argument("--provider", dest="model_provider", help="model provider (MODEL_PROVIDER)")
    serve.add_argument("--model", help="name of the model (ANTHROPIC_MODEL, OPENAI_MODEL)")
    serve.add_argument("--log-level", dest="log_level", help="debug, info, warning or error (LOG_LEVEL)")
    serve.add_argument(
        "--insecure-no-auth", action="store_true", help="accept other machines without AUTH_TOKENS"
    )
    serve.add_argument(
        "--lan",
        action="store_true",
        help="listen on the local network with a new token; prints the address and a QR code",
    )
    serve.add_argument("--workers", help="processes that share the port (WORKERS)")
    serve.add_argument("--worker", type=int, help=argparse.SUPPRESS)  # how `--workers` starts each of them
    serve.set_defaults(lan_token=None)


def _talk(options: argparse.Namespace) -> int:
    from conductor.talk import terminal

    if options.url is None:
        from conductor.commands.banner import server_address
        from conductor.settings import load_settings

        settings = load_settings(host=options.host, port=options.port)
        options.url = f"ws://{server_address(settings)}/ws"
        options.token = options.token or next(iter(settings.auth_tokens), None)
    elif options.host or options.port is not None:
        raise SettingsError("--url cannot be combined with --host or --port.")
    return terminal.run(options)


def _serve(options: argparse.Namespace) -> int:
    from conductor.logs import configure_logs
    from conductor.server.workers import join

    worker = None if options.worker is None else join(options.worker)
    if worker is not None:
        options = argparse.Namespace(**worker.options)
    settings, token = _settings(options)
    settings = _within_descriptors(settings, quiet=worker is not None)
    configure_logs(settings.log_level, settings.log_format, content=settings.log_content)
    if worker is None and settings.workers > 1:
        from conductor.server.workers import Supervisor

        supervisor = Supervisor(settings, {**vars(options), "lan": False, "lan_token": token})
        return asyncio.run(
            supervisor.run(
                lambda port: _announce(settings, port, lan_token=token),
                lambda: _say(_STOPPING.format("running turns")),
            )
        )
    from conductor.app import serve
    from conductor.server.address import check_exposure

    def ready(listener: Listener) -> None:
        if worker is None:
            _announce(settings, listener.port, lan_token=token)
        else:
            worker.ready()

    def stopping(turns: int) -> None:
        work = f"{turns} running turn{'' if turns == 1 else 's'}" if turns else "clients"
        if worker is None:
            _say(_STOPPING.format(work))

    check_exposure(settings, insecure=options.insecure_no_auth)
    _run(serve(settings, ready, worker, stopping))
    return 0


def _settings(options: argparse.Namespace) -> tuple[Settings, str | None]:
    from conductor.settings import load_settings

    host, token = options.host, options.lan_token
    if options.lan:
        from conductor.commands.banner import lan_address, new_token, private_address

        host, token = lan_address() if host is None else private_address(host), new_token()
    settings = load_settings(
        host=host,
        port=options.port,
        model_provider=options.model_provider,
        anthropic_model=options.model,
        openai_model=options.model,
        log_level=options.log_level,
        workers=options.workers,
    )
    if token is not None:
        settings = settings.model_copy(update={"auth_tokens": (*settings.auth_tokens, token)})
    return settings, token


def _within_descriptors(settings: Settings, *, quiet: bool) -> Settings:
    from conductor.server.address import connections_within, raise_descriptor_limit

    limit = raise_descriptor_limit()
    most = connections_within(limit)
    if settings.max_connections <= most:
        return settings
    if not quiet:
        _say(f"MAX_CONNECTIONS is {most} instead of {settings.max_connections}; ulimit -Hn is {limit}.")
    return settings.model_copy(update={"max_connections": most})


def _run(main: Coroutine[Any, Any, None]) -> None:
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with suppress(ImportError):
        factory = import_module("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)


def _announce(settings: Settings, port: int, lan_token: str | None) -> None:
    from conductor.commands.banner import banner, unknown_names

    for name in unknown_names(settings):
        _say(f"conductor: {name} in .env is not a setting.")
    _say(banner(settings, port, lan_token))


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
