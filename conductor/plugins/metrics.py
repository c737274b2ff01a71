"""``GET /metrics``: its authentication and its answer in Prometheus' text format.

It needs ADMIN_TOKEN in the ``Authorization`` header. Tokens of clients and requests of web pages are refused.
"""

from __future__ import annotations

import asyncio
import hmac
import http
import time
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager, nullcontext

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, Gauge, Info, generate_latest
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from conductor.errors import SettingsError
from conductor.server.access import MCP_PATH
from conductor.server.auth import token_digest
from conductor.server.listener import Listener, text_response
from conductor.server.refusals import WRONG_TOKENS_PER_MINUTE
from conductor.settings import Settings
from conductor.version import __version__

METRICS_PATH = "/metrics"
# Seconds of the monotonic clock; another token starts no other server.
_STARTED = time.monotonic()


def serve(listener: Listener, settings: Settings) -> AbstractAsyncContextManager[None]:
    """Serve the metrics while ADMIN_TOKEN is set. Raises `SettingsError`."""

    def prepare(settings: Settings) -> Callable[[], None]:
        route = None
        if settings.admin_token is not None:
            token = settings.admin_token.get_secret_value()
            check_admin_token(token, settings.auth_tokens)
            route = MetricsEndpoint(token, listener).answer
        return lambda: listener.routes.update({METRICS_PATH: route})

    listener.configure(prepare, settings)
    return nullcontext()


class MetricsEndpoint:
    """Serves ``/metrics`` to the operator; stores the token as a hash."""

    def __init__(self, token: str, listener: Listener) -> None:
        self._digest = token_digest(token)
        self._listener = listener

    async def answer(self, request: Request, peer: str) -> Response:
        """Answer with the metrics, or refuse."""
        refusal = self.refusal(request.headers)
        if refusal is None:
            # In a thread: with hundreds of tools it would block the event loop for too long.
            text = await asyncio.to_thread(self._metrics)
            return text_response(http.HTTPStatus.OK, text, {"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})
        (status, text), access = refusal, self._listener.access
        count = access.refusals.count(f"{METRICS_PATH} {status.value}", access.address(request, peer) or peer)
        if status is http.HTTPStatus.UNAUTHORIZED and count > WRONG_TOKENS_PER_MINUTE:
            status, text = http.HTTPStatus.TOO_MANY_REQUESTS, "Too many wrong tokens.\n"
            return text_response(status, text, {"Retry-After": "60"})
        return text_response(status, text)

    def refusal(self, headers: Headers) -> tuple[http.HTTPStatus, str] | None:
        """Return status and text for a request that is not the operator's; None if it is.

        A valid token always works: wrong guesses from other clients must not lock the operator out.
        """
        if "Origin" in headers:
            # A foreign page must not read metrics through a browser inside the network.
            return http.HTTPStatus.FORBIDDEN, "Web pages cannot read metrics.\n"
        token = _bearer(headers)
        # Hashes of one length are compared, so the time tells neither the token's length nor its beginning.
        if token is None or not hmac.compare_digest(self._digest, token_digest(token)):
            return http.HTTPStatus.UNAUTHORIZED, "The operator's bearer token is required.\n"
        return None

    def _metrics(self) -> str:
        services, worker = self._listener.services, self._listener.worker
        process = CollectorRegistry()
        labels = {"version": __version__} | ({"worker": str(worker)} if worker else {})
        Info("conductor", "The version and, if there are several, the worker.", registry=process).info(labels)
        name, version = services.observers.prompt
        meaning = "The system prompt: its name, and a hash of its text."
        Info("conductor_prompt", meaning, registry=process).info({"name": name, "version": version})
        is_invalid = services.policy_file is not None and bool(services.policy_file.problem)
        for name, meaning, value in (
            ("uptime_seconds", "Seconds since the server started.", time.monotonic() - _STARTED),
            ("ready", "1 if /readyz answers 200.", self._listener.lack() is None),
            ("sessions", "Loaded sessions.", len(self._listener.registry)),
            ("connections", "Open WebSocket connections.", self._listener.connections),
            ("mcp_connections", "Open WebSockets of MCP clients.", self._listener.connections_at(MCP_PATH)),
            ("policy_rules", "The operator's rules in force.", len(services.policies.rules)),
            ("policy_problem", "1 if the rules file is not valid and the earlier rules hold.", is_invalid),
        ):
            Gauge(f"conductor_{name}", meaning, registry=process).set(value)
        up = Gauge(
            "conductor_mcp_server_up",
            "1 for each MCP server whose tools are offered, 0 for one that is down or connecting.",
            ("server",),
            registry=process,
        )
        for toolset in services.toolsets:
            for name, is_ready in toolset.health().items():
                up.labels(name).set(is_ready)
        return (generate_latest(process) + generate_latest(services.metrics.registry)).decode()


def check_admin_token(token: str, client_tokens: Collection[str]) -> None:
    """Raise `SettingsError` if ADMIN_TOKEN is also a client's token, or does not fit into a header."""
    if token in client_tokens:
        raise SettingsError("ADMIN_TOKEN is one of AUTH_TOKENS; clients must not have the operator's token.")
    if not (token.isascii() and token.isprintable()):
        raise SettingsError("ADMIN_TOKEN contains characters that a header cannot carry; use a random token.")


def _bearer(headers: Headers) -> str | None:
    values = headers.get_all("Authorization")
    scheme, _, token = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    return token.strip() or None if scheme.lower() == "bearer" else None
