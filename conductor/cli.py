"""The command line: serve (the default), talk, check, policy, sessions, stats and protocol."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from conductor import __version__
from conductor.commands import check, policy, protocol, sessions, stats
from conductor.errors import SettingsError

if TYPE_CHECKING:
    from conductor.server.listener import Listener
    from conductor.settings import Settings

_COMMANDS = ("serve", "talk", "check", "policy", "sessions", "stats", "protocol")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code. A user's mistake is one sentence and 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] not in (*_COMMANDS, "-h", "--help", "--version"):
        given.insert(0, "serve")
    options = _parser().parse_args(given)
    try:
        if options.command == "talk":
            from conductor.client import terminal

            return terminal.run(options)
        if options.command == "check":
            return check.run(options)
        if options.command == "policy":
            return policy.run(options)
        if options.command == "sessions":
            return sessions.run(options)
        if options.command == "stats":
            return stats.run(options)
        if options.command == "protocol":
            return protocol.run(options)
        return _serve(options)
    except SettingsError as error:
        print(f"conductor: {error}", file=sys.stderr)  # noqa: T201 -- this is what a command line says
        return 2
    except KeyboardInterrupt:
        return 130


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        self.exit(2, f"conductor: {message}; --help says more.\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="conductor",
        description="A WebSocket server between a voice app and a language model.",
        epilog="Without a command it serves. Settings come from the environment and .env; see .env.example.",
    )
    parser.add_argument("--version", action="version", version=f"conductor {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="run the server (the default)")
    serve.add_argument("--host", help="address to listen on (HOST)")
    serve.add_argument("--port", type=int, help="port to listen on (PORT)")
    serve.add_argument("--provider", dest="model_provider", help="model provider (MODEL_PROVIDER)")
    serve.add_argument("--model", dest="anthropic_model", help="Claude model (ANTHROPIC_MODEL)")
    serve.add_argument("--log-level", dest="log_level", help="debug, info, warning or error (LOG_LEVEL)")
    serve.add_argument(
        "--insecure-no-auth", action="store_true", help="listen to other machines without AUTH_TOKENS"
    )
    serve.add_argument(
        "--lan",
        action="store_true",
        help="listen to the local network, with a token of its own; prints the address and a QR code",
    )
    serve.add_argument("--workers", type=int, help="processes that share the port (WORKERS)")
    serve.add_argument("--worker", type=int, help=argparse.SUPPRESS)  # how `--workers` starts each of them
    serve.set_defaults(lan_token=None)
    talk = commands.add_parser("talk", help="talk to a running server from the terminal")
    from conductor.client import terminal

    terminal.add_arguments(talk)
    check.add_arguments(commands.add_parser("check", help="try the settings and all that is needed, and end"))
    policy.add_arguments(commands.add_parser("policy", help="list, change and explain the operator's rules"))
    sessions.add_arguments(
        commands.add_parser("sessions", help="list, show, export and delete what the session store keeps")
    )
    stats.add_arguments(commands.add_parser("stats", help="print a running server's figures"))
    protocol.add_arguments(commands.add_parser("protocol", help="print what goes over the wire"))
    return parser


def _serve(options: argparse.Namespace) -> int:
    from conductor.logs import configure_logs
    from conductor.server.worker import join

    worker = None if options.worker is None else join(options.worker)
    if worker is not None:
        options = argparse.Namespace(**worker.options)
    settings, token = _settings(options)
    configure_logs(settings.log_level, settings.log_format, content=settings.log_content)
    if worker is None and settings.workers > 1:
        from conductor.server.workers import Supervisor

        supervisor = Supervisor(settings, {**vars(options), "lan": False, "lan_token": token})
        return asyncio.run(supervisor.run(lambda port: _announce(settings, port, lan_token=token)))
    from conductor.app import check_exposure, serve

    def ready(listener: Listener) -> None:
        if worker is None:
            _announce(settings, listener.port, lan_token=token)
        else:
            worker.ready()

    check_exposure(settings, insecure=options.insecure_no_auth)
    _run(serve(settings, ready, worker))
    return 0


def _settings(options: argparse.Namespace) -> tuple[Settings, str | None]:
    """Read the settings, and the local network's token where one is used, which is new or a parent's."""
    from conductor.settings import load_settings

    host, token = options.host, options.lan_token
    if options.lan:
        from conductor.commands import lan

        host, token = lan.lan_address() if host is None else lan.private(host), lan.new_token()
    settings = load_settings(
        host=host,
        port=options.port,
        model_provider=options.model_provider,
        anthropic_model=options.anthropic_model,
        log_level=options.log_level,
        workers=options.workers,
    )
    if token is not None:
        settings = settings.model_copy(update={"auth_tokens": (*settings.auth_tokens, token)})
    return settings, token


def _run(main: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop where there is one for this platform."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    try:
        import uvloop
    except ImportError:
        pass
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)


def _announce(settings: Settings, port: int, lan_token: str | None) -> None:
    """Say in a few lines what the server runs with and where to connect."""
    from conductor.stores.registry import describe_store

    lines = [
        f"Conductor {__version__}",
        f"  model     {_model(settings)}",
        f"  sessions  {describe_store(settings)}",
    ]
    if settings.workers > 1:
        lines.append(f"  workers   {settings.workers} processes")
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    if lan_token is not None:
        from conductor.commands import lan

        url = lan.phone_url(host, port, lan_token)
        lines += [f"  connect   {url}", "", lan.qr_code(url)]
    else:
        auth = "bearer token needed" if settings.auth_tokens else "no token needed"
        lines.append(f"  connect   ws://{host}:{port}/ws  ({auth})")
        lines.append(f"  try       python -m conductor talk --url ws://{host}:{port}/ws")
    print("\n".join(lines), file=sys.stderr, flush=True)  # noqa: T201 -- this is what a command line says


def _model(settings: Settings) -> str:
    if settings.provider == "anthropic":
        return f"Claude ({settings.anthropic_model})"
    if settings.provider == "demo" and settings.anthropic_api_key is None:
        return "demo, a scripted stand-in; set ANTHROPIC_API_KEY for Claude"
    return settings.provider
