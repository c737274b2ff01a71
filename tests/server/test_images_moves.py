"""Images in a store that nodes share: a process dies at a commit, and each image still has its two turns."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from itertools import product
from random import Random

import pytest

from conductor.conversation.replay import replay
from conductor.messages import AssistantMessage, Illustrated, ToolCall, UserMessage
from conductor.models.base import ModelRequest, TextDelta
from conductor.stores.base import NO_ATTACHMENTS, Attachments, Claim, SessionLog
from tests.app import App, Shown
from tests.models import Script
from tests.pictures import on_the_wire, png
from tests.server.nodes import KEY, Shelf, node
from tests.server.wires import WiredStore

SAID, SNAPPED = png(seed=1), png(seed=2)
SNAP = {"name": "snap", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
COMMITS = 13  # of the whole conversation, at least
SEED = Random().randrange(2**32)
ALL = list(product(range(1, COMMITS + 1), ("before", "after")))
FEW = Random(SEED).sample(ALL, 4)


class Dies(WiredStore):
    """A store whose process dies at the commit ``at`` from now on, ``before`` or ``after`` it is stored."""

    def __init__(self, inner: SessionLog, when: str) -> None:
        super().__init__(inner)
        self.at, self._when = 0, when
        self.died = asyncio.Event()

    async def append(
        self,
        claim: Claim,
        commit_id: str,
        data: bytes,
        *,
        snapshot: bool = False,
        attachments: Attachments = NO_ATTACHMENTS,
    ) -> None:
        dies = self.at == 1 or self.died.is_set()
        if not dies or (self._when == "after" and not self.died.is_set()):
            await super().append(claim, commit_id, data, snapshot=snapshot, attachments=attachments)
        self.at -= 1
        if dies:
            self.died.set()
            await asyncio.Event().wait()


def turn_of(request: ModelRequest) -> int:
    return sum(isinstance(message, UserMessage) for message in request.messages)


def answers(request: ModelRequest) -> Script:
    """Call the camera in the second turn."""
    is_words = isinstance(request.messages[-1], UserMessage)
    if is_words and turn_of(request) == 2:
        return [ToolCall("c-1", "snap", "{}")]
    return [TextDelta("Yes.")]


def seen(requests: list[ModelRequest]) -> list[tuple[int, list[bytes]]]:
    """List, for each request, its turn and the images that a model sees."""
    return [
        (
            turn_of(request),
            [
                (request.images or {})[image.id]
                for message in request.messages
                if not isinstance(message, AssistantMessage)
                for image in message.images
                if not image.gone and image.id in (request.images or {})
            ],
        )
        for request in requests
    ]


async def play(shelf: Shelf, at: int, when: str) -> tuple[list[ModelRequest], bool]:
    """Talk for five turns; the node dies at a commit, and the app goes on with another one."""
    async with AsyncExitStack() as stack:
        dying = Dies(shelf.make(), when)
        a = await stack.enter_async_context(node(dying, answers, close_timeout=0.05))
        b = await stack.enter_async_context(node(shelf.make(), answers))
        phone = App(
            a.url,
            tools={"snap": lambda _: Shown("a photo", [on_the_wire(SNAPPED)])},
            start_fields={"capabilities": ["images", "tools", "resume"], "tools": [SNAP]},
        )
        await phone.open()
        stack.push_async_callback(phone.close)
        dying.at = at
        moving = asyncio.create_task(move(phone, dying, b.url))
        stack.callback(moving.cancel)
        for number in range(1, 6):
            since = len(phone.log)
            phone.say(f"turn {number}", images=[on_the_wire(SAID)] if number == 1 else [])
            await phone.until("assistant.speech.final", since=since)
            await phone.idle(since=since)
        return [*a.provider.requests, *b.provider.requests], dying.died.is_set()


async def move(phone: App, dying: Dies, url: str) -> None:
    await dying.died.wait()
    await phone.cut()
    phone.url = url
    await phone.open()


async def kept_for_two_turns(shelf: Shelf, at: int, when: str) -> bool:
    """Play a conversation; tells whether the node died."""
    requests, died = await play(shelf, at, when)
    for turn, images in seen(requests):
        said = [SAID] if turn <= 2 else []
        has_snapped = turn == 3 or (turn == 2 and SNAPPED in images)
        assert images == [*said, *([SNAPPED] if has_snapped else [])], (turn, len(images))
    last = [images for turn, images in seen(requests) if turn == 2][-1]
    assert last == [SAID, SNAPPED]
    return died


@pytest.mark.parametrize("number", range(len(FEW)))  # all workers of a run collect the same tests
async def test_each_image_has_its_two_turns_wherever_a_process_dies(shelf: Shelf, number: int) -> None:
    at, when = FEW[number]
    print(f"seed {SEED}, {when} commit {at}")  # noqa: T201 -- to find the place again
    await kept_for_two_turns(shelf, at, when)


@pytest.mark.extended
@pytest.mark.parametrize(("at", "when"), ALL)
async def test_each_image_has_its_two_turns_at_every_place(shelf: Shelf, at: int, when: str) -> None:
    await kept_for_two_turns(shelf, at, when)


async def test_the_places_are_those_of_the_conversation(file_shelf: Shelf) -> None:
    assert await kept_for_two_turns(file_shelf, COMMITS - 3, "after")


async def test_the_store_keeps_no_image_after_its_turns(shelf: Shelf) -> None:
    await play(shelf, 0, "after")
    store = shelf.make()
    await store.open()
    state = replay((await store.claim(KEY)).commits)
    images = [
        image.id for message in state.log if isinstance(message, Illustrated) for image in message.images
    ]
    assert len(images) == 2 and state.images == {} and await store.read_attachments(KEY, images) == {}
    await store.aclose()
