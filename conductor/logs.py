"""How the log looks: one line an event, ids and figures, never content unless it is asked for."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import Processor


def configure_logs(level: str, log_format: str) -> None:
    """Write structured lines to standard error, from ``level`` upwards, as ``json`` or ``console``."""
    number = logging.getLevelNamesMapping()[level.upper()]
    render: list[Processor]
    if log_format == "json":
        render = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        render = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # The libraries' own lines: handshakes that fail and the like, which are the peers' affair.
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    logging.getLogger("websockets").setLevel(logging.CRITICAL)
