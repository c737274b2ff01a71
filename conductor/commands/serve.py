"""``conductor serve``: run the server, or the supervisor of several processes."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

import structlog

from conductor.commands.banner import banner, facts, lan_address, private_address, unknown_names
from conductor.commands.workers import STOP_S, Supervisor, Worker, join
from conductor.env_file import ENV_FILE
from conductor.errors import SettingsError
from conductor.logs import configure_logs
from conductor.server.address import check_exposure, connections_within, raise_descriptor_limit
from conductor.settings import Settings, load_settings, read_settings

if TYPE_CHECKING:
    from conductor.server.listener import Listener

log = structlog.get_logger(__name__)

# Seconds for threads to end after everything is saved and closed.
HANGING_S = 2.0
_STOPPING = "Stopping: waiting up to 30 s for {}. Ctrl-C again stops at once."


def serve(options: argparse.Namespace) -> int:
    """Serve until a signal; returns the exit code. Raises `SettingsError`."""
    worker = None if options.worker is None else join(options.worker)
    if worker is not None:
        options = argparse.Namespace(**worker.options)
    lan_host, token = _lan(options)
    most = connections_within(raise_descriptor_limit())

    def read() -> Settings:
        settings = load_settings(
            **{**overrides(options), "host": lan_host or options.host},
            log_level=options.log_level,
            workers=options.workers,
        )
        tokens = settings.auth_tokens if token is None else (*settings.auth_tokens, token)
        limits = {"auth_tokens": tokens, "max_connections": min(settings.max_connections, most)}
        settings = settings.model_copy(update=limits)
        check_exposure(settings, insecure=options.insecure_no_auth)
        return settings

    settings = read()
    configure_logs(settings.log_level, settings.log_format, content=settings.log_content)
    try:
        if worker is None and settings.max_connections == most:
            log.warning("MAX_CONNECTIONS is limited by ulimit -Hn", connections=most)
        return _serve(settings, read, options, worker, token)
    except SettingsError as error:
        if settings.log_format != "json":
            raise
        log.critical("not started", reason=str(error))
        return error.exit_code


def _serve(
    settings: Settings,
    read: Callable[[], Settings],
    options: argparse.Namespace,
    worker: Worker | None,
    token: str | None,
) -> int:
    if worker is None and settings.workers > 1:
        supervisor = Supervisor(settings, {**vars(options), "lan": False, "lan_token": token})
        return asyncio.run(
            supervisor.run(
                lambda port: _announce(settings, port, token),
                lambda: _say(settings, _STOPPING.format("running turns")),
            )
        )
    from conductor.commands.process import (
        serve as serve_sessions,  # not in the supervisor, which needs less memory
    )

    def ready(listener: Listener) -> None:
        if worker is None:
            _announce(settings, listener.port, token)
        else:
            worker.ready()

    def stopping(turns: int) -> None:
        work = f"{turns} running turn{'' if turns == 1 else 's'}" if turns else "clients"
        if worker is None:
            _say(settings, _STOPPING.format(work))
            _exit_in(STOP_S, "the stop hangs; the process ends now", 1)

    _run(serve_sessions(settings, read, ready, worker, stopping))
    return 0


def _lan(options: argparse.Namespace) -> tuple[str | None, str | None]:
    # The host and the token of ``--lan``; a worker gets both from its supervisor.
    if not options.lan:
        return None, getattr(options, "lan_token", None)
    host = lan_address() if options.host is None else private_address(options.host)
    return host, secrets.token_urlsafe(24)


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


def _run(main: Coroutine[Any, Any, None]) -> None:
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with suppress(ImportError):
        factory = import_module("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)
        # Python waits for its threads, and a tool may hang in one.
        _exit_in(HANGING_S, "threads hang; the process ends without them", 0)


def _exit_in(seconds: float, reason: str, code: int) -> None:
    """End the process after some seconds, if it has not ended."""

    def end() -> None:
        log.warning(reason)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    watch = threading.Timer(seconds, end)
    watch.daemon = True
    watch.start()


def _announce(settings: Settings, port: int, lan_token: str | None) -> None:
    for name in unknown_names(read_settings(ENV_FILE, {})):
        log.warning("not a setting", name=name, file=str(ENV_FILE))
    if _has_reader(settings) or lan_token is not None:
        _write(banner(settings, port, lan_token))
    else:
        log.info("started", **facts(settings, port))


def _say(settings: Settings, text: str) -> None:
    if _has_reader(settings):
        _write(text)


def _has_reader(settings: Settings) -> bool:
    # A person, who reads lines that are not for machines.
    return settings.log_format == "console" and sys.stderr.isatty()


def _write(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
