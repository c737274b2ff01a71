"""Requests about a session that another process owns: they are passed to it through the store.

A claim would fence the owner, and cut its client off in mid-turn. So a process claims a session for a request
only if nobody owns it, or its owner does not answer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec
import structlog

from conductor.errors import StoreError, StoreUnavailable
from conductor.plugins.api.keys import ApiKey
from conductor.plugins.api.requests import ApiCall, ApiError, Route, find_session
from conductor.plugins.api.resources import PersonQuery
from conductor.server.listener import Listener
from conductor.session.fields import SubjectRecords
from conductor.stores.base import SessionKey

log = structlog.get_logger(__name__)

# The record of all requests on their way; no client can name it.
SUBJECT, RECORD, FIELD = "$node", "$relay", "requests"
# Seconds between two looks at it, at rest and while an answer is awaited.
LOOK_S, WAITING_LOOK_S = 0.2, 0.05
# Seconds in which a living owner answers, on a busy machine as well.
ANSWER_S = 6.0
# Tries to write the record, which all processes write.
TRIES = 20
# Requests that are kept; an abandoned one goes when there are more.
MAX_KEPT = 1_000


class Passed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request on its way to the owner, and back with the ``status`` and JSON of its ``answer``."""

    person: str
    session: str
    action: str
    path: dict[str, str]
    body: str
    key: str
    event_id: str
    status: int = 0
    answer: str = ""


_Requests = dict[str, Passed]


class Relay:
    """Does requests in sessions, here or at their owner."""

    def __init__(self, listener: Listener, routes: tuple[Route, ...]) -> None:
        self._listener = listener
        self._records = SubjectRecords(listener.services.store, RECORD)
        self._actions = {route.work.__name__: route for route in routes if route.acts}
        self._waiting: dict[str, asyncio.Future[Passed]] = {}
        self._handling: dict[str, asyncio.Task[None]] = {}
        self._changes: list[Callable[[_Requests], object]] = []
        self._next: asyncio.Task[None] | None = None
        self._writes: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Take the requests of other processes during the block."""
        if not self._listener.services.store.durable:  # it belongs to this process
            yield
            return
        looking = asyncio.create_task(self._run())
        try:
            yield
        finally:
            tasks = [looking, *self._handling.values(), *self._writes]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=self._listener.services.limits.close_timeout)

    async def do(self, route: Route, call: ApiCall) -> Any:
        """Do a request in its session. Raises `ApiError`, `StoreError`."""
        if not self._listener.services.store.durable:
            return await route.work(call)
        key, stored = await find_session(call)
        if stored.meta.token and not await self._listener.registry.owns(key):
            passed = await self._pass_on(key, route, call)
            if passed is not None:
                return _result(passed)
        return await route.work(call)

    # -- the process that was asked

    async def _pass_on(self, key: SessionKey, route: Route, call: ApiCall) -> Passed | None:
        """Pass a request on; None without an answer."""
        number = uuid4().hex
        body = "" if call.body is None else msgspec.json.encode(call.body).decode()
        names = (key.subject, key.session_id, route.work.__name__)
        request = Passed(*names, dict(call.path), body, call.key.name, call.event_id)
        answer: asyncio.Future[Passed] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            await self._change(lambda requests: requests.update({number: request}))
            async with asyncio.timeout(ANSWER_S):
                return await answer
        except TimeoutError:
            log.warning("owner of session does not answer", session=key.session_id)
            return None
        finally:
            del self._waiting[number]
            with suppress(StoreError):
                await self._change(lambda requests: requests.pop(number, None))

    # -- the owner

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(WAITING_LOOK_S if self._waiting else LOOK_S)
            try:
                await self._look()
            except StoreError as error:
                log.debug("requests not looked for", error=type(error).__name__)
            except Exception:
                log.exception("requests not looked for")

    async def _look(self) -> None:
        await self._records.load(SUBJECT)
        for number, request in _read(self._records.get(SUBJECT, FIELD)).items():
            waiter = self._waiting.get(number)
            if request.status:
                if waiter is not None and not waiter.done():
                    waiter.set_result(request)
            elif waiter is None and number not in self._handling:
                if self._listener.registry.has(SessionKey(request.person, request.session)):
                    task = self._handling[number] = asyncio.create_task(self._handle(number, request))
                    task.add_done_callback(partial(self._handled, number))

    def _handled(self, number: str, _: asyncio.Task[None]) -> None:
        del self._handling[number]

    async def _handle(self, number: str, request: Passed) -> None:
        try:
            if not await self._listener.registry.owns(SessionKey(request.person, request.session)):
                return
            status, answer = await self._answer(request)
            done = msgspec.structs.replace(request, status=status, answer=answer)
            # Not for one who has gone: the request was taken out.
            await self._change(lambda requests: requests.update({number: done} if number in requests else {}))
        except StoreError as error:
            log.warning("request of another process not answered", error=type(error).__name__)
        except Exception:
            log.exception("request of another process failed")

    async def _answer(self, request: Passed) -> tuple[int, str]:
        route = self._actions[request.action]
        body = None if route.body is None else msgspec.json.decode(request.body, type=route.body)
        query, key = PersonQuery(request.person), ApiKey(request.key, frozenset({route.scope}))
        call = ApiCall(self._listener, key, request.path, query, body, request.event_id)
        try:
            return 200, msgspec.json.encode(await route.work(call)).decode()
        except ApiError as error:
            return error.status, msgspec.json.encode([error.code, str(error)]).decode()

    async def _change(self, change: Callable[[_Requests], object]) -> None:
        """Change the record; all that waits for a write is in the next one. Raises `StoreUnavailable`."""
        self._changes.append(change)
        if self._next is None:
            self._next = asyncio.create_task(self._write())
            self._writes.add(self._next)
            self._next.add_done_callback(self._writes.discard)
        await asyncio.shield(self._next)

    async def _write(self) -> None:
        async with self._writing:
            self._next = None
            changes, self._changes = self._changes, []

            def changed(text: str) -> str:
                requests = _read(text)
                for change in changes:
                    change(requests)
                kept = dict(list(requests.items())[-MAX_KEPT:])
                return msgspec.json.encode(kept).decode() if kept else ""

            for attempt in range(1, TRIES + 1):
                try:
                    await self._records.update(SUBJECT, FIELD, changed)
                    return
                except StoreUnavailable:
                    if attempt == TRIES:
                        raise
                    await asyncio.sleep(random.uniform(0, LOOK_S / 2))


def _read(text: str) -> _Requests:
    return msgspec.json.decode(text, type=_Requests) if text else {}


def _result(passed: Passed) -> msgspec.Raw:
    if passed.status != 200:
        raise ApiError(passed.status, *msgspec.json.decode(passed.answer, type=tuple[str, str]))
    return msgspec.Raw(passed.answer.encode())
