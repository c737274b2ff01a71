"""``conductor serve``: run the server, or the supervisor of several processes."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from conductor.commands.banner import banner, lan_address, new_token, private_address, unknown_names
from conductor.logs import configure_logs
from conductor.server.address import check_exposure, connections_within, raise_descriptor_limit
from conductor.server.workers import Supervisor, join
from conductor.settings import Settings, load_settings

if TYPE_CHECKING:
    from conductor.server.listener import Listener

_STOPPING = "Stopping: waiting up to 30 s for {}. Ctrl-C again stops at once."


def serve(options: argparse.Namespace) -> int:
    """Serve until a signal; returns the exit code. Raises `SettingsError`."""
    worker = None if options.worker is None else join(options.worker)
    if worker is not None:
        options = argparse.Namespace(**worker.options)
    settings, token = _settings(options)
    settings = _within_descriptors(settings, quiet=worker is not None)
    configure_logs(settings.log_level, settings.log_format, content=settings.log_content)
    if worker is None and settings.workers > 1:
        supervisor = Supervisor(settings, {**vars(options), "lan": False, "lan_token": token})
        return asyncio.run(
            supervisor.run(
                lambda port: _announce(settings, port, token),
                lambda: _say(_STOPPING.format("running turns")),
            )
        )
    from conductor.app import serve as serve_sessions  # not in the supervisor, which needs less memory

    def ready(listener: Listener) -> None:
        if worker is None:
            _announce(settings, listener.port, token)
        else:
            worker.ready()

    def stopping(turns: int) -> None:
        work = f"{turns} running turn{'' if turns == 1 else 's'}" if turns else "clients"
        if worker is None:
            _say(_STOPPING.format(work))

    check_exposure(settings, insecure=options.insecure_no_auth)
    _run(serve_sessions(settings, ready, worker, stopping))
    return 0


def _settings(options: argparse.Namespace) -> tuple[Settings, str | None]:
    # The settings, and the token of ``--lan``.
    host, token = options.host, getattr(options, "lan_token", None)
    if options.lan:
        host, token = lan_address() if host is None else private_address(host), new_token()
    settings = load_settings(
        **{**overrides(options), "host": host}, log_level=options.log_level, workers=options.workers
    )
    if token is not None:
        settings = settings.model_copy(update={"auth_tokens": (*settings.auth_tokens, token)})
    return settings, token


def overrides(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that the options replace, by name."""
    values = {
        "host": options.host,
        "port": options.port,
        "model_provider": options.provider,
        "anthropic_model": options.model,
        "openai_model": options.model,
    }
    return {name: value for name, value in values.items() if value is not None}


def _within_descriptors(settings: Settings, *, quiet: bool) -> Settings:
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
    for name in unknown_names(settings):
        _say(f"conductor: {name} in .env is not a setting.")
    _say(banner(settings, port, lan_token))


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
