"""Log configuration: one line per event, with ids and figures; content only with LOG_CONTENT."""

from __future__ import annotations

import io
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TextIO

import structlog
from structlog.typing import ExcInfo, Processor


def configure_logs(level: str, log_format: str, *, content: bool = False, cache: bool = True) -> None:
    """Write structured lines to standard error, from ``level`` upwards, as ``json`` or ``console``.

    A traceback contains locations and classes. Messages of exceptions may quote a person or an argument, so
    they need ``content``. ``cache`` binds each logger once to this configuration, which is faster.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    # The library's own formatter would print all local variables if `rich` is installed.
    write = structlog.dev.plain_traceback if content else write_locations
    render: list[Processor]
    if log_format == "json":
        format_exception = structlog.processors.ExceptionRenderer(lambda info: _text(write, info))
        render = [format_exception, structlog.processors.JSONRenderer()]
    else:
        render = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=write)]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        # Each line is one write, so that lines of several processes do not mix.
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=cache,
    )
    # Clients cause the libraries' warnings, such as failed handshakes: errors only.
    logging.basicConfig(level=logging.ERROR, handlers=[_LibraryHandler()])
    logging.getLogger("websockets").setLevel(logging.CRITICAL)
    if log_format == "json":
        # What Python itself would print as text.
        logging.captureWarnings(True)
        logging.getLogger("py.warnings").setLevel(logging.WARNING)
        sys.excepthook = lambda _, error, __: _log_uncaught(error)
        threading.excepthook = lambda raised: _log_uncaught(raised.exc_value)
        sys.unraisablehook = lambda raised: _log_uncaught(raised.exc_value)


class _LibraryHandler(logging.Handler):
    # Writes the libraries' records as lines of the same format.

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(record.name)
        log.log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info)


def _log_uncaught(error: BaseException | None) -> None:
    structlog.get_logger(__name__).critical("uncaught exception", exc_info=error)


def write_locations(stream: TextIO, exc_info: ExcInfo) -> None:
    """Write a traceback and the tracebacks of its causes, without messages of exceptions."""
    error: BaseException | None = exc_info[1]
    visited: set[int] = set()
    stream.write("\n")  # structlog leaves the end of the event's line to the traceback
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        stream.write("Traceback (most recent call last):\n")
        stream.write("".join(traceback.format_tb(error.__traceback__)))
        stream.write(f"{type(error).__qualname__}\n")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if error is not None:
            stream.write("\ncaused by:\n")


def _text(write: Callable[[TextIO, ExcInfo], None], exc_info: ExcInfo) -> str:
    stream = io.StringIO()
    write(stream, exc_info)
    return stream.getvalue().strip("\n")
