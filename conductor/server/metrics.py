"""``GET /metrics``: its authentication and its answer in Prometheus' text format.

It needs ADMIN_TOKEN in the ``Authorization`` header. Tokens of clients and requests of web pages are refused.
"""

from __future__ import annotations

import hmac
import http
import time
from collections.abc import Collection, Iterable

from prometheus_client import CollectorRegistry, Gauge, Info, generate_latest
from websockets.datastructures import Headers

from conductor import __version__
from conductor.conversation.services import Services
from conductor.errors import SettingsError
from conductor.server.auth import token_digest
from conductor.settings import Settings

METRICS_PATH = "/metrics"
# Seconds of the monotonic clock; another token starts no other server.
_STARTED = time.monotonic()


class MetricsEndpoint:
    """Serves ``/metrics`` to the operator; stores the token as a hash."""

    def __init__(self, token: str) -> None:
        self._digest = token_digest(token)

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

    def metrics(self, services: Services, worker: int | None, counts: Iterable[tuple[str, str, int]]) -> str:
        """Return the ``counts`` of the process and the metrics of its services in Prometheus' text format.

        A count has a name, a meaning and a number.
        """
        process = CollectorRegistry()
        labels = {"version": __version__} | ({"worker": str(worker)} if worker else {})
        Info("conductor", "The version and, if there are several, the worker.", registry=process).info(labels)
        is_invalid = services.policies is not None and bool(services.policies.problem)
        for name, meaning, value in (
            ("uptime_seconds", "Seconds since the server started.", time.monotonic() - _STARTED),
            *counts,
            ("policy_rules", "The operator's rules in force.", len(services.rules)),
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


def make_metrics_endpoint(settings: Settings) -> MetricsEndpoint | None:
    """Make the operator's endpoint, or None without ADMIN_TOKEN.

    Raises `SettingsError` if the token is also a client's, or does not fit into a header.
    """
    if settings.admin_token is None:
        return None
    token = settings.admin_token.get_secret_value()
    check_admin_token(token, settings.auth_tokens)
    return MetricsEndpoint(token)


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
