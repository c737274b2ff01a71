"""Images that tools of the server give, such as those of MCP servers."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from mcp.types import CallToolResult, ImageContent, TextContent

from conductor.images import Picture
from conductor.messages import ToolCall, ToolResult
from conductor.models.base import TextDelta
from conductor.plugins.mcp.toolset import to_outcome
from conductor.tools.base import CallContext, Toolset, ToolSpec
from conductor.tools.outcomes import ToolOutcome
from tests.models import Script
from tests.pictures import JPEG, png
from tests.session.helpers import Disk, Stage, make_services, open_session, open_stage, steps, tool


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
