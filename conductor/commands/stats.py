"""``conductor stats``: ask a running server for its figures and print them.

The server answers requests with its ADMIN_TOKEN; see `conductor.server.stats`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO
from urllib.parse import urlsplit

import httpx2
import msgspec
from msgspec.structs import asdict

from conductor.commands.banner import server_address
from conductor.commands.output import write_table
from conductor.errors import SettingsError
from conductor.server.stats import STATS_PATH
from conductor.settings import load_settings

# Seconds for each step of the request.
TIMEOUT_S = 5.0
# Bytes of an answer: ten times that of a server with all rows in use.
MAX_ANSWER_BYTES = 4_194_304

_NO_ADDRESS = "--url is no address: it must begin with http:// or ws:// and a host."
_SCHEMES = {"ws": "http", "wss": "https", "http": "http", "https": "https"}


class _Times(msgspec.Struct, frozen=True):
    p50: float | None
    p99: float | None


class _Approvals(msgspec.Struct, frozen=True):
    asked: int
    allowed: int
    denied: int
    expired: int


class _Counts(msgspec.Struct, frozen=True):
    calls: int
    successes: int
    errors: dict[str, int]
    approvals: _Approvals


class _Tool(_Counts, frozen=True):
    tool: str
    source: str
    run_ms: _Times
    decide_ms: _Times


class _Model(msgspec.Struct, frozen=True):
    profile: str
    subject: str
    replies: int
    input: int
    output: int
    cache_read: int
    cache_write: int
    cost: float


class _Stats(msgspec.Struct, frozen=True):
    version: str
    uptime_s: float
    sessions: int
    connections: int
    since: str
    totals: _Counts
    tools: list[_Tool]
    models: list[_Model] = []  # a former server has none


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--url", help="the server (default: as HOST and PORT say)")
    parser.add_argument("--token", help="the operator's token (ADMIN_TOKEN)")
    parser.add_argument("--json", action="store_true", help="print the server's answer, which says more")


def run(options: argparse.Namespace, stdout: TextIO | None = None, timeout_s: float = TIMEOUT_S) -> int:
    """Ask and print; returns 0. ``timeout_s`` bounds each step in seconds. Raises `SettingsError`."""
    out = stdout or sys.stdout
    url = address(f"http://{server_address(load_settings())}" if options.url is None else options.url)
    answer = _fetch(url, _token(options.token), timeout_s)
    try:
        stats = msgspec.json.decode(answer, type=_Stats)
        # Decoded twice: the struct checks what the table shows, --json passes on newer servers' fields too.
        everything = json.loads(answer)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise _not_conductor(url) from None
    if options.json:
        out.write(f"{json.dumps(everything, indent=2)}\n")  # escapes control characters and all but ASCII
    else:
        _write(stats, out)
    return 0


def address(url: str) -> str:
    """Complete a server's address, as a user may write it. Raises `SettingsError`."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
        good = good and parts.netloc.isascii() and parts.netloc.isprintable() and " " not in parts.netloc
    except ValueError:  # an invalid port or IPv6 address
        good = False
    if not good:
        raise SettingsError(_NO_ADDRESS)
    if parts.username is not None or parts.password is not None:
        raise SettingsError("--url must hold no user name and no password.")
    path = parts.path.rstrip("/").removesuffix(STATS_PATH).removesuffix("/ws")
    return f"{_SCHEMES[parts.scheme]}://{parts.netloc}{path}{STATS_PATH}"


def _token(given: str | None) -> str:
    token = (given or "").strip()
    if not token:
        # Only without --token: a mistake in .env must not stop who needs nothing of it.
        secret = load_settings().admin_token
        token = secret.get_secret_value() if secret is not None else ""
    if not token:
        raise SettingsError("The operator's token is needed: set ADMIN_TOKEN, or give --token.")
    if not (token.isascii() and token.isprintable()):
        raise SettingsError("The operator's token holds characters that no header can carry.")
    return token


def _fetch(url: str, token: str, timeout_s: float) -> bytes:
    # No proxy and no redirect: the token is for this server alone.
    headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"}
    try:
        with (
            httpx2.Client(timeout=timeout_s, trust_env=False, follow_redirects=False) as client,
            client.stream("GET", url, headers=headers) as response,
        ):
            if response.status_code != 200:
                raise _refused(url, response.status_code, response.headers)
            return body(response, url, timeout_s)
    except httpx2.TimeoutException:
        raise _late(url, timeout_s) from None
    except httpx2.ConnectError as error:
        raise SettingsError(f"Cannot reach {url}: {_reason(error)}.") from None
    except (httpx2.InvalidURL, UnicodeError):  # a name that is too long for the resolver is a UnicodeError
        raise SettingsError(_NO_ADDRESS) from None
    except httpx2.HTTPError:
        raise _not_conductor(url) from None


def body(response: Any, url: str, timeout_s: float) -> bytes:
    """Read a response within ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    body = bytearray()
    for chunk in response.iter_raw():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise _not_conductor(url)
        if time.monotonic() > deadline:
            raise _late(url, timeout_s)
    return bytes(body)


def _refused(url: str, status: int, headers: Mapping[str, str]) -> SettingsError:
    if status == 401:
        return SettingsError(f"{url} refused the token: look at ADMIN_TOKEN here and there.")
    if status == 404:
        return SettingsError(
            f"{url} is not there: the server runs without ADMIN_TOKEN, or --url is not Conductor's."
        )
    if status == 429:
        after = headers.get("Retry-After", "")
        wait = f"in {int(after)} s" if after.isascii() and after.isdigit() and len(after) < 6 else "later"
        return SettingsError(f"{url} was asked with too many wrong tokens: try again {wait}.")
    return SettingsError(f"{url} answered {status}, so it is not Conductor, or something is in between.")


def _late(url: str, timeout_s: float) -> SettingsError:
    return SettingsError(f"{url} did not answer within {timeout_s:g} s.")


def _not_conductor(url: str) -> SettingsError:
    return SettingsError(f"{url} gave no answer of Conductor's: look at --url.")


def _reason(error: BaseException | None) -> str:
    text = str(error)
    while error is not None:
        if isinstance(error, OSError) and error.strerror:
            text = error.strerror
        error = error.__cause__ or error.__context__
    return _plain(text).rstrip(".").lower() or "no connection"


# -- the table


_NUMBERS = ("calls", "ok %", "p50 ms", "p99 ms", "asked", "allowed", "denied", "expired", "decide s")
_HEADINGS = ("tool", "source", *_NUMBERS, "errors")


def _write(stats: _Stats, out: TextIO) -> None:
    out.write(
        f"Conductor {_plain(stats.version)}, up {duration(stats.uptime_s)}, "
        f"sessions {stats.sessions}, connections {stats.connections}\n"
    )
    if stats.tools:
        out.write(f"Tools since {_plain(stats.since)}\n\n")
        none = _Times(None, None)
        total = _Tool(**asdict(stats.totals), tool="total", source="", run_ms=none, decide_ms=none)
        write_table(out, _HEADINGS, map(_row, [*stats.tools, total]), _NUMBERS)
    else:
        out.write(f"No tool was called since {_plain(stats.since)}.\n")
    if stats.models:
        out.write(f"\nModels since {_plain(stats.since)}\n\n")
        write_table(out, _MODEL_HEADINGS, map(_model_row, stats.models), _MODEL_HEADINGS[2:])


_MODEL_HEADINGS = ("model", "subject", "replies", "input", "output", "cached", "cached%", "cost")


def _model_row(model: _Model) -> tuple[str, ...]:
    read = model.input + model.cache_write
    hits = 100 * model.cache_read / (read + model.cache_read) if read + model.cache_read else 0.0
    counts = (model.replies, read, model.output, model.cache_read, round(hits))
    return (_plain(model.profile), _plain(model.subject), *map(str, counts), f"{model.cost:.4f}")


def _row(tool: _Tool) -> tuple[str, ...]:
    approvals, decide = tool.approvals, tool.decide_ms.p50
    often_first = sorted(tool.errors.items(), key=lambda item: (-item[1], item[0]))
    return (
        _plain(tool.tool),
        _plain(tool.source),
        str(tool.calls),
        f"{100 * tool.successes / tool.calls:.1f}" if tool.calls else "-",
        _number(tool.run_ms.p50),
        _number(tool.run_ms.p99),
        *map(str, (approvals.asked, approvals.allowed, approvals.denied, approvals.expired)),
        _number(None if decide is None else decide / 1000),
        ", ".join(f"{_plain(name)} {count}" for name, count in often_first) or "-",
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Word a time with its two largest units."""
    minutes = int(seconds) // 60
    if minutes < 1:
        return f"{int(seconds)} s"
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def _plain(text: str) -> str:
    # Clients make up these names: control characters must not reach the terminal.
    return "".join(char if char.isprintable() else "?" for char in text)
