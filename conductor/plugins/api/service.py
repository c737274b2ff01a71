"""The API over HTTP: keys, scopes, bodies, errors and the audit log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler
from websockets.datastructures import Headers
from websockets.http11 import Request

from conductor.errors import StoreUnavailable, TooManySessions, Unreadable
from conductor.plugins.api.keys import ApiKey, ApiKeys
from conductor.plugins.api.relay import Relay
from conductor.plugins.api.requests import ApiCall, ApiError, Route
from conductor.plugins.api.resources import Failure, Problem
from conductor.plugins.api.routes import ROUTES
from conductor.plugins.http_server import serving_http
from conductor.server.listener import Listener
from conductor.server.refusals import WRONG_TOKENS_PER_MINUTE

log = structlog.get_logger(__name__)

MAX_BODY_BYTES = 65_536
MAX_KEY_CHARS = 128
# Seconds until a request must be answered.
REQUEST_S = 30.0
_CODES = {404: "not_found", 405: "method_not_allowed", 408: "timeout", 413: "too_large"}


@asynccontextmanager
async def serving_api(listener: Listener, keys: ApiKeys) -> AsyncIterator[None]:
    """Serve the API on the listener's port during the block."""
    application = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_answer])
    relay = Relay(listener, ROUTES)
    for route in ROUTES:
        application.router.add_route(route.method, route.path, partial(_work, listener, keys, relay, route))
    async with relay.running(), serving_http(listener, b"/v1", application, _refuse_http):
        yield


@web.middleware
async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        async with asyncio.timeout(REQUEST_S):
            return await handler(request)
    except ApiError as error:
        return _refuse(error.status, error.code, str(error))
    except web.HTTPException as error:
        return _refuse_http(error.status, f"{error.reason}.")
    except TimeoutError:
        return _refuse(408, "timeout", "The request took too long.")
    except TooManySessions as error:
        return _refuse(429, "rate_limited", str(error))
    except Unreadable:
        return _refuse(409, "unreadable", "What is stored of this session cannot be read by this version.")
    except StoreUnavailable:
        return _refuse(503, "store_unavailable", "The session store cannot be reached.")
    except Exception:
        log.exception("request failed", method=request.method)
        return _refuse(500, "internal_error", "The server made a mistake; its log says more.")


def _refuse(status: int, code: str, message: str) -> web.Response:
    response = _json(Failure(Problem(code, message)), status)
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _refuse_http(status: int, message: str) -> web.Response:
    return _refuse(status, _CODES.get(status, "invalid_request"), message)


def _json(value: Any, status: int = 200) -> web.Response:
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    body = msgspec.json.encode(value)
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


async def _work(
    listener: Listener, keys: ApiKeys, relay: Relay, route: Route, request: web.Request
) -> web.Response:
    key = _authorise(listener, keys, route, request)
    try:
        query = msgspec.convert(dict(request.query), route.query, strict=False)
        data = await request.read()
        body = None if route.body is None else msgspec.json.decode(data, type=route.body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ApiError(400, "invalid_request", f"{error}.") from None
    number = request.headers.get("Idempotency-Key", uuid4().hex)
    if not 0 < len(number) <= MAX_KEY_CHARS:
        raise ApiError(400, "invalid_request", f"Idempotency-Key has 1 to {MAX_KEY_CHARS} characters.")
    call = ApiCall(listener, key, request.match_info, query, body, f"api:{key.name}:{number}")
    await listener.services.admission.enter()
    status = 500
    try:
        answer = await (relay.do(route, call) if route.acts else route.work(call))
        status = 200
    except ApiError as error:
        status = error.status
        raise
    finally:
        _audit(listener, route, call, status)
    return _json(answer)


def _authorise(listener: Listener, keys: ApiKeys, route: Route, request: web.Request) -> ApiKey:
    key = keys.find(request.headers.get("Authorization", ""))
    if key is None:
        peer = request.remote or ""
        address = listener.access.address(Request("", Headers(request.headers.items())), peer) or peer
        # A valid key always works: wrong guesses of others must not lock it out.
        if listener.access.refusals.count("/v1 401", address) > WRONG_TOKENS_PER_MINUTE:
            raise ApiError(429, "rate_limited", "Too many wrong keys; wait a minute.")
        raise ApiError(401, "unauthorized", "A valid API key is required.")
    if request.transport is not None:
        listener.handshakes.discard(request.transport)
    if route.scope not in key.scopes:
        raise ApiError(403, "forbidden", f"This key needs the scope {route.scope}.")
    return key


def _audit(listener: Listener, route: Route, call: ApiCall, status: int) -> None:
    """Record who did what; a path has no text of the person."""
    action = f"{route.method} {route.path}"
    facts = {"key": call.key.name, "action": action, "status": status, **call.path}
    log.info("api", **facts)
    if listener.services.audit is not None:
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        listener.services.audit.write({"time": time, "event": "api", **facts})
