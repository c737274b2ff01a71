"""The bytes of a session's images: while they are recorded and shown, and of tools of the server."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from mcp.types import CallToolResult, ImageContent, TextContent
from msgspec.structs import replace

from conductor.conversation import records as r
from conductor.conversation.state import Notice
from conductor.images import Picture, Taken
from conductor.messages import Image, ToolCall, ToolResult
from conductor.models.base import TextDelta
from conductor.plugins.mcp.toolset import to_outcome
from conductor.session.images import Images
from conductor.stores.base import SessionKey
from conductor.stores.memory import MemoryStore
from conductor.tools.base import CallContext, Toolset, ToolSpec
from conductor.tools.outcomes import ToolOutcome
from tests.conversation.build import STARTED, fold
from tests.models import Script
from tests.pictures import JPEG, png
from tests.session.helpers import (
    KEY,
    Disk,
    Stage,
    StoreProxy,
    make_services,
    open_session,
    open_stage,
    steps,
    tool,
)


class Shelf(StoreProxy):
    """Has the bytes of each image, and remembers which were read."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.were_read: list[str] = []

    async def read_attachments(self, key: SessionKey, names: Sequence[str]) -> Mapping[str, bytes]:
        self.were_read += names
        return {name: name.encode() for name in names}


A, B = (Image(id=key, media_type="image/png", size=1, width=1, height=1) for key in "ab")
SHOWN = replace(STARTED, images=(A,))
TAKEN = Taken((A,), (("a", b"a"),))
ENDED = r.TurnEnded(reason="answered")
LATE = r.NoticeTaken("", Notice(text="late", late=True, images=(A,)))


def test_bytes_are_stored_with_the_record_that_has_the_image_and_only_then() -> None:
    images = Images(Shelf(), KEY, fold())
    with images.holding(TAKEN):
        assert images.attachments([STARTED]).put == {}
        assert images.attachments([SHOWN]).put == {"a": b"a"}
    assert images.attachments([SHOWN]).put == {}


async def test_a_turn_shows_the_images_that_it_has_recorded_without_the_store() -> None:
    shelf, state = Shelf(), fold(SHOWN)
    images = Images(shelf, KEY, state)
    with images.holding(TAKEN):
        pass
    assert await images.read(state.log) == {"a": b"a"} and shelf.were_read == []


async def test_an_image_that_waits_for_a_turn_is_in_the_store_alone() -> None:
    shelf, state = Shelf(), fold(LATE)
    images = Images(shelf, KEY, state)
    with images.holding(TAKEN):
        pass
    assert images.attachments([], again=True).put == {}


async def test_a_turn_reads_an_image_once_and_a_later_turn_again() -> None:
    shelf, state = Shelf(), fold(SHOWN)
    images = Images(shelf, KEY, state)
    for _ in range(2):
        assert await images.read(state.log) == {"a": b"a"}
        images.rest()  # a round of the turn has ended
    assert shelf.were_read == ["a"]
    state.turn = None
    images.rest()
    await images.read(state.log)
    assert shelf.were_read == ["a", "a"]


async def test_an_image_that_is_gone_is_not_looked_for() -> None:
    shelf, state = Shelf(), fold(SHOWN, ENDED, STARTED, ENDED, replace(STARTED, images=(B,)))
    assert await Images(shelf, KEY, state).read(state.log) == {"b": b"b"} and shelf.were_read == ["b"]


async def test_a_store_that_has_lost_commits_gets_the_shown_images_again() -> None:
    state = fold(SHOWN)
    images = Images(Shelf(), KEY, state)
    await images.read(state.log)
    assert images.attachments([]).put == {} and images.attachments([], again=True).put == {"a": b"a"}


def shots(*pictures: tuple[str, bytes], **fields: Any) -> ToolOutcome:
    """Make the outcome of an MCP server's result with image blocks."""
    blocks = [
        ImageContent(type="image", mime_type=kind, data=b64encode(data).decode()) for kind, data in pictures
    ]
    result = CallToolResult(content=[TextContent(type="text", text="See:"), *blocks], **fields)
    return to_outcome(result, "read")


class Camera(Toolset):
    """Gives the images of an MCP server, when it is let."""

    def __init__(self) -> None:
        self.started, self.go = asyncio.Event(), asyncio.Event()
        self.go.set()

    def specs(self) -> Sequence[ToolSpec]:
        return [tool("camera.look", source="mcp", effect="read", risk="safe")]

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        self.started.set()
        await self.go.wait()
        return shots(("image/jpeg", JPEG), ("image/png", JPEG))


LOOKS: list[Script] = [[ToolCall("c-1", "camera.look", "{}")], [TextDelta("A cat.")]]


def seen(stage: Stage) -> list[bytes]:
    """List the images of the last result that the model got."""
    request = stage.provider.requests[-1]
    result = request.messages[-1]
    assert isinstance(result, ToolResult) and "See:" in result.content
    assert "is called image/png, and its first bytes are image/jpeg" in result.content
    return [(request.images or {})[image.id] for image in result.images if image.id in (request.images or {})]


async def test_the_model_gets_the_images_of_a_server_and_reads_why_one_was_refused() -> None:
    stage = await open_stage(make_services(LOOKS, toolsets=[Camera()]))
    await stage.ask("look")
    assert seen(stage) == [JPEG]


async def test_a_result_is_recorded_with_its_image_though_its_call_is_stopped_meanwhile() -> None:
    store, camera = Disk(), Camera()
    camera.go.clear()
    stage = await open_stage(make_services(LOOKS, store=store, toolsets=[camera]), say="look")
    await camera.started.wait()
    await steps(20)
    store.hold = asyncio.Event()
    store.entered.clear()
    proof = stage.session.spawn(stage.session.commits.verify())
    await store.entered.wait()
    camera.go.set()
    await steps(20)  # the result waits for the commit of the proof
    stopping = asyncio.create_task(stage.session.close(ends=False))
    await steps(20)
    store.hold.set()
    await asyncio.gather(proof, stopping)
    stage.session = await open_session(stage.services)
    await stage.app.connect(stage.session)
    await stage.quiet()
    assert seen(stage) == [JPEG]


def test_the_images_of_a_result_are_pictures_beside_its_text_or_value() -> None:
    picture = png()
    assert shots(("image/png", picture)).pictures == (Picture("image/png", picture),)
    outcome = shots(("image/png", picture), structured_content={"at": "noon"})
    assert (outcome.data, outcome.pictures) == ({"at": "noon"}, (Picture("image/png", picture),))
    failure = shots(("image/png", picture), is_error=True)
    assert (failure.success, failure.pictures) == (False, (Picture("image/png", picture),))
